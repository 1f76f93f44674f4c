"""What a model would say at every place of a run: the likeliest classes, and where given answers rank.

    logit_lens(model, tokens, layers="all", tokenizer=tokenizer)     the likeliest tokens of every example
    answer_ranks(model, tokens, {"last": last, "step 2": second})    how likely given answers are, over all examples

A place is the `state` after a call, which the model reads as it always does, or what enters a layer,
`layer[2].resid`: that is read as if the call ended there (the logit lens).  Of a model with a coda, `head` is "coda",
and what is read goes through its layers, in which every row sees the others as they are at the same place; or it is
"bare", and the readout alone is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.bounds import whole
from loopscope.errors import InputError, nearest
from loopscope.estimates import DRAWS, means
from loopscope.execute.executor import run
from loopscope.execute.unequal import Texts
from loopscope.measure.streaming import (
    NUMBER,
    STATE,
    Examples,
    Inputs,
    Layers,
    Part,
    Rows,
    about,
    after_calls,
    columns_of,
    logits_at,
    logits_size,
    on,
    states_at,
    stream_places,
    together,
)
from loopscope.program import Call, Program, ProgramLike
from loopscope.protocol import LoopedModel
from loopscope.table import Table

HEADS = ("coda", "bare")

Answers: TypeAlias = Mapping[str, Iterable[int] | Tensor] | Iterable[int] | Tensor
"""An answer for every example, or several under names."""


def logit_lens(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None = None,
    *,
    top: int = 5,
    layers: Layers = (),
    head: str = "coda",
    rows: Rows = (-1,),
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """The `top` likeliest classes of every example: a row for every example, place, row, loop and rank.

    With a `tokenizer` among the inputs there is their `text`, too.  `program` is by default the model's own; errors as
    `execute.run`.
    """
    whole("top", top, 1, 10_000)
    examples = Examples(model, tokens, program, rows, inputs)
    tokenizer = inputs.get("tokenizer")
    columns: dict[str, list[Any]] = {name: [] for name in ("example", "place", "row", "loop", "rank", "token")}
    likely: list[float] = []
    for place, loop, part, logits in _readings(examples, layers, head, memory):
        best = logits.softmax(-1).topk(min(top, logits.shape[-1]), -1)
        shape = best.indices.shape
        count = shape[1] * shape[2]
        columns["example"] += np.repeat(part["at"], count).tolist()
        columns["place"] += [place] * (len(part["at"]) * count)
        columns["row"] += np.tile(np.repeat(np.array(examples.row_names), shape[2]), shape[0]).tolist()
        columns["loop"] += [loop] * (shape[0] * count)
        columns["rank"] += [*range(1, shape[2] + 1)] * (shape[0] * shape[1])
        columns["token"] += best.indices.flatten().tolist()
        likely += best.values.flatten().tolist()
    if tokenizer is not None:
        text = {token: tokenizer.decode([token]) for token in set(columns["token"])}
        columns["text"] = [text[token] for token in columns["token"]]
    made = {**columns, "probability": likely}
    # Parts come as they fit; the table is by example.
    order = sorted(range(len(likely)), key=lambda at: columns["example"][at])
    sorted_columns = {name: [values[at] for at in order] for name, values in made.items()}
    return Table("readouts", sorted_columns, {**about(examples), "head": head})


def answer_ranks(
    model: LoopedModel,
    tokens: Texts | None,
    answers: Answers,
    program: ProgramLike | None = None,
    *,
    layers: Layers = (),
    head: str = "coda",
    rows: Rows = (-1,),
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """How likely given answers are, over all examples: a row for every answer, place, row and loop.

    - `rank`: the mean rank, 1 for the likeliest class; of equally likely ones, all have the lowest rank of them;
    - `first`: how often it is 1;
    - `probability`: the mean probability, and `log`, that of its logarithm.

    `answers` has a class for every example, or several such under names: intermediate results, for instance.  Every
    mean has an interval that resamples examples, or the clusters they are given in.
    """
    examples = Examples(model, tokens, program, rows, inputs)
    named = {"answer": answers} if not isinstance(answers, Mapping) else dict(answers)
    wanted = {name: _checked(name, each, len(examples)) for name, each in named.items()}
    if not wanted:
        raise InputError("there are no answers to rank; give a class for each example, or several under names")
    found: dict[tuple[str, int], list[tuple[list[int], Tensor]]] = {}
    for place, loop, part, logits in _readings(examples, layers, head, memory):
        readings = [_reading(logits, each[part["at"]], name) for name, each in wanted.items()]
        found.setdefault((place, loop), []).append((part["at"], torch.stack(readings, 1)))
    values = together(list(found.values()), examples, len(wanted), 4)
    where = {name: np.repeat(each, len(wanted)) for name, each in columns_of(examples, list(found)).items()}
    columns: dict[str, Any] = {
        "answer": np.tile(np.array(list(wanted), dtype=object), len(found) * len(examples.rows)),
        **where,
    }
    for at, name in enumerate(("rank", "first", "probability", "log")):
        made = means(values[..., at], clusters=clusters, seed=seed, draws=draws, share=name == "first")
        columns |= {name: made.flat(), "n": made.n.reshape(-1)}
    columns["n"] = columns.pop("n")
    return Table("ranks", columns, {**about(examples), "head": head})


def _checked(name: str, answers: Iterable[int] | Tensor, examples: int) -> Int[Tensor, " examples"]:
    found = torch.as_tensor(answers if isinstance(answers, Tensor) else list(answers))
    if found.shape != (examples,) or found.is_floating_point() or found.dtype == torch.bool:
        kind = f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
        raise InputError(f"answers {name!r} must be a class for each of {examples} examples, not {kind}")
    return found.cpu()


def _reading(logits: Float[Tensor, "B R classes"], answers: Int[Tensor, " B"], name: str) -> Float[Tensor, "R four B"]:
    """Rank, whether it is 1, probability and its logarithm."""
    classes = logits.shape[-1]
    if bool((answers < 0).any()) or bool((answers >= classes).any()):
        worst = int(answers.max()) if int(answers.max()) >= classes else int(answers.min())
        raise InputError(f"answers {name!r} has class {worst}, but the model has 0..{classes - 1}")
    at = answers.to(logits.device)[:, None, None].expand(-1, logits.shape[1], 1)
    mine = logits.gather(-1, at)
    rank = 1 + (logits > mine).sum(-1)
    log = logits.double().log_softmax(-1).gather(-1, at)[..., 0]
    return torch.stack([rank.double(), (rank == 1).double(), log.exp(), log], -1).permute(1, 2, 0)


def _readings(
    examples: Examples, layers: Layers, head: str, memory: int | None
) -> Iterator[tuple[str, int, Part, Float[Tensor, "B R classes"]]]:
    """Logits at every place, loop and part of the examples."""
    if head not in HEADS:
        raise InputError(f"a readout goes through the {' or is '.join(HEADS)}, not {head!r}{nearest(head, HEADS)}")
    program, bare = examples.program, head == "bare" or not examples.pieces.coda
    points = after_calls(program)[1:]
    if not points:
        raise InputError(f"'{program}' calls F nowhere, so there is nothing to read")
    size = NUMBER * len(points) * len(examples.rows) * examples.pieces.state_width
    for part in examples.parts(size + logits_size(examples, len(points)), memory):
        states, _ = states_at(examples, part, points)
        for point, logits in logits_at(examples, part, states, bare):
            yield STATE, program.calls_before(point), part, logits
    for place, addresses in stream_places(examples, layers).items():
        if not bare:  # a coda sees all rows
            addresses = {loop: replace(each, site=replace(each.site, rows=None)) for loop, each in addresses.items()}
        seen = len(examples.rows) if bare else max(examples.lengths)
        size = NUMBER * seen * (len(addresses) * examples.pieces.width + len(points) * examples.pieces.state_width)
        for part in examples.parts(size + logits_size(examples, 2), memory):
            yield from ((place, *each) for each in _inside(examples, part, addresses, bare))


def _inside(
    examples: Examples, part: Part, addresses: Mapping[int, Any], bare: bool
) -> Iterator[tuple[int, Part, Float[Tensor, "B R classes"]]]:
    """Logits of streams inside calls, as if each call ended there."""
    pieces, program = examples.pieces, examples.program
    befores = {loop: program.points[program.index_of(loop)] for loop in addresses}
    length = examples.lengths[part["at"][0]]
    rows = examples.rows if bare else tuple(range(length))
    states, kept = states_at(examples, part, dict.fromkeys(befores.values()), addresses.values(), rows)
    for loop, address in addresses.items():
        call = program.steps[program.index_of(loop)]
        assert isinstance(call, Call)
        with torch.no_grad():
            closed = pieces.close(kept[address], states[befores[loop]], call.stack)
            said = pieces.read(pieces.leave(closed)).float() if bare else None
        if said is not None:
            yield loop, part, said
            continue
        ended = Program((), start=loop)
        inputs: Inputs = {**part["inputs"], "state": closed}
        tokens = None if part["tokens"] is None else on(examples.model, part["tokens"])
        trace = run(examples.model, tokens, ended, rows=examples.rows, **inputs)[ended]
        yield loop, part, trace.logits.float()
