"""Does the end depend on the start?  Runs of one program from several first states, compared loop by loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any, Unpack

import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.errors import InputError
from loopscope.estimates import DRAWS, means
from loopscope.execute.unequal import Texts
from loopscope.measure.streaming import (
    NUMBER,
    STATE,
    Examples,
    Inputs,
    Part,
    Rows,
    about,
    after_calls,
    columns_of,
    logits_at,
    logits_size,
    on,
    states_at,
    together,
)
from loopscope.program import Call, Program, ProgramLike, Seed
from loopscope.protocol import LoopedModel
from loopscope.table import Table


def path_independence(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None = None,
    *,
    seeds: Iterable[int] = range(4),
    noise: float | None = None,
    rows: Rows = (-1,),
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """How far apart runs from several starts are, loop by loop, and how often they give the same answer.

    The starts are those that the model draws from `seeds`.  With `noise`, they are the program's own first state with
    normal noise, in every entry so many times the root mean square of the state at that row; that is for any model.

    - `distance`: |h - h'| over the mean of both lengths, and `cosine`, that of h and h': means over pairs of starts;
    - `agreement`: the share of pairs with the same likeliest class.

    A row for every row and loop, from loop 0, the starts.  All else as `trajectories`; InputError for a model that
    draws no start where there is no `noise`.
    """
    chosen = [Seed(each) for each in dict.fromkeys(seeds)]
    if len(chosen) < 2:
        raise InputError(f"paths are compared in pairs: give two seeds or more, not {len(chosen)} (nearest: 0, 1)")
    examples = Examples(model, tokens, program, rows, inputs)
    asked = examples.program
    if noise is None and not (examples.pieces.draws and not asked.given):
        raise InputError(
            "this model starts from its input, not from a seed; start near it instead (nearest: noise=0.1)"
        )
    if noise is not None and not 0 < noise < float("inf"):
        raise InputError(f"noise is a share of a state's size, above 0, not {noise} (nearest: 0.1)")
    points = after_calls(asked)
    loops = [asked.first, *(asked.loop_of(i) for i, step in enumerate(asked.steps) if isinstance(step, Call))]
    found: dict[int, list[tuple[list[int], Tensor]]] = {}
    seen = max(examples.lengths) if noise is not None else len(examples.rows)
    size = NUMBER * examples.pieces.state_width * (len(points) * len(examples.rows) * len(chosen) + 2 * seen)
    for part in examples.parts(size + logits_size(examples, len(points)), memory):
        paths, answers = [], []
        for start in chosen:
            mine, theirs = _started(examples, part, start, noise)
            states, _ = states_at(examples, theirs, mine.points[:1] + after_calls(mine)[1:], program=mine)
            paths.append(torch.stack([states[point] for point in after_calls(mine)]).double())
            read = dict(logits_at(examples, theirs, states, program=mine))
            answers.append(torch.stack([read[point].argmax(-1) for point in after_calls(mine)]))
        for number, loop in enumerate(loops):
            pairs = [
                _apart(paths[one][number], paths[two][number], (answers[one] == answers[two])[number])
                for one, two in combinations(range(len(chosen)), 2)
            ]
            found.setdefault(loop, []).append((part["at"], torch.stack(pairs).mean(0)))
    values = together(list(found.values()), examples, 3)
    columns = columns_of(examples, [(STATE, loop) for loop in found])
    how: dict[str, Any] = {"clusters": clusters, "seed": seed, "draws": draws}
    for at, name in enumerate(("distance", "cosine", "agreement")):
        made = means(values[..., at], share=name == "agreement", **how)
        columns |= {name: made.flat(), "n": made.n.reshape(-1)}
    columns["n"] = columns.pop("n")
    return Table("starts", columns, {**about(examples), "starts": [each.number for each in chosen], "noise": noise})


def _started(examples: Examples, part: Part, start: Seed, noise: float | None) -> tuple[Program, Part]:
    """The program from one of the starts, and the inputs it then has."""
    asked = examples.program
    if noise is None:
        return replace(asked, start=start), part
    first = asked.points[0]
    length = examples.lengths[part["at"][0]]
    state = states_at(examples, part, [first], rows=tuple(range(length)))[0][first]
    scale = state.double().square().mean(-1, keepdim=True).sqrt().to(state)
    drawn = []
    for number in part["at"]:  # an example's noise is its own, however the examples are parted
        generator = torch.Generator().manual_seed(1_000_003 * start.number + number)
        drawn.append(torch.randn(state.shape[1:], generator=generator, dtype=torch.float64))
    moved = state + noise * scale * on(examples.model, torch.stack(drawn)).to(state)
    inputs: Inputs = {**part["inputs"], "state": moved}
    return replace(asked, start=asked.first, prelude=()), {**part, "inputs": inputs}


def _apart(one: Float[Tensor, "B R s"], two: Float[Tensor, "B R s"], same: Tensor) -> Float[Tensor, "R three B"]:
    lengths = one.norm(dim=-1), two.norm(dim=-1)
    distance = (one - two).norm(dim=-1) / ((lengths[0] + lengths[1]) / 2)
    cosine = (one * two).sum(-1) / (lengths[0] * lengths[1])
    return torch.stack([distance, cosine, same.double()], -1).permute(1, 2, 0)
