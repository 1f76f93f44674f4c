"""How states move from loop to loop: lengths, steps, turns, where they end.

    trajectories(model, tokens, layers="all")     norm, step, turn, distance to the end, answers; loop by loop
    similarities(model, tokens)                   the cosine of every two loops
    pattern_changes(model, tokens)                how much every head's pattern changes from loop to loop
    endings(model, tokens)                        fixed point, cycle or drift

A place is the `state` after a call or what enters a layer, `layer[2].resid`; of a model with several stacks that of one
stack, which moves from one call of its stack to the next.  Maps between calls are part of the step to the next state.
Every mean is over examples, with an interval that resamples them or the clusters they are given in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.address import Address
from loopscope.bounds import whole
from loopscope.errors import InputError
from loopscope.estimates import DRAWS, means
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
    states_at,
    stream_places,
    together,
)
from loopscope.program import Call, ProgramLike
from loopscope.protocol import LoopedModel
from loopscope.table import Table

MEASURES = ("norm", "step", "relative", "turn", "cosine", "distance", "agreement")

ENDINGS = ("fixed point", "cycle", "drift")


def trajectories(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None = None,
    *,
    layers: Layers = (),
    rows: Rows = (-1,),
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """How the state, and the streams that enter `layers`, move: a row for every place, row and loop.

    - `norm`: the length |h_t|;
    - `step`: |h_t - h_{t-1}|, and `relative`, the same over |h_t|;
    - `turn`: the cosine of this step and the one before;
    - `cosine`: that of h_t and h_{t-1};
    - `distance`: |h_t - h_T|, T the last loop;
    - `agreement`: how often the likeliest class is that of the last loop; of states alone.

    `program` is by default the model's own; it may have any number of loops.  `inputs` are those of `execute.run`.
    `memory` bounds the bytes that are recorded at a time.  Errors as `execute.run`.
    """
    examples = Examples(model, tokens, program, rows, inputs)
    found: dict[tuple[str, int], dict[str, list[tuple[list[int], Tensor]]]] = {}
    for place, loop, part, values in _each(examples, layers, memory):
        mine = found.setdefault((place, loop), {})
        for name, value in values.items():
            mine.setdefault(name, []).append((part["at"], value))
    places = {place: number for number, (place, _) in enumerate(found)}
    keys = sorted(found, key=lambda key: (places[key[0]], key[1]))
    arrays = {name: together([found[key].get(name, []) for key in keys], examples) for name in MEASURES}
    how: dict[str, Any] = {"clusters": clusters, "seed": seed, "draws": draws}
    made = {name: means(each, share=name == "agreement", **how) for name, each in arrays.items()}
    return Table(
        "trajectories",
        {
            **columns_of(examples, keys),
            **{name: each.flat() for name, each in made.items()},
            "n": made["norm"].n.reshape(-1),
        },
        about(examples),
    )


def similarities(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None = None,
    *,
    layers: Layers = (),
    rows: Rows = (-1,),
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """The cosine of what is at a place in every two loops: a row for every place, row, `loop` and `other` loop.

    All else as `trajectories`.
    """
    examples = Examples(model, tokens, program, rows, inputs)
    found: dict[tuple[str, int, int], list[tuple[list[int], Tensor]]] = {}
    for place, part, series in _series(examples, layers, memory):
        units = {loop: _unit(each) for loop, each in series.items()}
        for loop, one in units.items():
            for other, two in units.items():
                found.setdefault((place, loop, other), []).append((part["at"], (one * two).sum(-1).mT))
    keys = list(found)
    made = means(together(list(found.values()), examples), clusters=clusters, seed=seed, draws=draws)
    where = columns_of(examples, [key[:2] for key in keys])
    others = np.repeat([key[2] for key in keys], len(examples.rows))
    columns = {**where, "other": others, "cosine": made.flat(), "n": made.n.reshape(-1)}
    return Table("similarities", columns, about(examples))


def pattern_changes(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None = None,
    *,
    layers: Layers = "all",
    rows: Rows = (-1,),
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """How much the pattern of every head changes from one call to the next: `change` is their total variation.

    That is half the sum of absolute differences: 0 where a head looks at the same rows, 1 where at wholly others.  A
    row for every place, row, loop from the second on, and head.  All else as `trajectories`.
    """
    examples = Examples(model, tokens, program, rows, inputs)
    asked = examples.program
    found: dict[tuple[str, int], list[tuple[list[int], Tensor]]] = {}
    longest = max(examples.lengths)
    for place, streams in stream_places(examples, layers).items():
        sites = {loop: Address(loop, replace(each.site, component="pattern")) for loop, each in streams.items()}
        size = NUMBER * len(sites) * model.heads * len(examples.rows) * longest
        for part in examples.parts(size, memory):
            _, kept = states_at(examples, part, asked.points[-1:], sites.values())
            loops = sorted(sites)
            for before, loop in pairwise(loops):
                change = (kept[sites[loop]].double() - kept[sites[before]].double()).abs().sum(-1) / 2
                name = place.replace("resid", "pattern")
                found.setdefault((name, loop), []).append((part["at"], change.permute(2, 1, 0)))
    if not found:
        raise InputError(f"'{asked}' calls no stack twice, so no pattern can change")
    made = means(together(list(found.values()), examples, model.heads), clusters=clusters, seed=seed, draws=draws)
    by_head: dict[str, Any] = {
        name: np.repeat(each, model.heads) for name, each in columns_of(examples, list(found)).items()
    }
    by_head["head"] = np.tile(np.arange(model.heads), len(found) * len(examples.rows))
    return Table("pattern changes", {**by_head, "change": made.flat(), "n": made.n.reshape(-1)}, about(examples))


def endings(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None = None,
    *,
    layers: Layers = (),
    rows: Rows = (-1,),
    tolerance: float = 0.01,
    window: int = 3,
    longest: int = 6,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """Where the motion at a place has come to by the last loop: shares of examples that end in each way.

    The rule, with |h_t - h_{t-p}| over |h_t| as the return after p loops:

    - `fixed point`: the returns after 1 of the last `window` loops are all at most `tolerance`;
    - `cycle`: else, for some p from 2 to `longest`, those after p of the last max(p, window) loops are;
    - `drift`: else.

    So a slow approach to a fixed point is drift until its steps are that small, and cycles are found up to the p for
    which there are max(p, window) + p loops.  A row for every place, row and ending: `share` of the examples, and, of
    cycles, `period`, the mean p of those that end in one.  All else as `trajectories`.  InputError for a program with
    fewer loops than `window`.
    """
    whole("window", window, 1, 10_000)
    whole("longest", longest, 1, 10_000)
    if not 0 < tolerance < 1:
        raise InputError(f"the tolerance is a share between 0 and 1, not {tolerance} (nearest: 0.01)")
    examples = Examples(model, tokens, program, rows, inputs)
    found: dict[str, list[tuple[list[int], Tensor]]] = {}
    for place, part, series in _series(examples, layers, memory):
        states = list(series.values())
        if len(states) < window + 1:
            raise InputError(f"the last {window} steps at {place} need as many calls, but there are {len(states) - 1}")
        found.setdefault(place, []).append((part["at"], _periods(states, tolerance, window, longest).double().mT))
    periods = together(list(found.values()), examples)
    shares = np.stack([periods == 1, periods > 1, periods == 0], -1).astype(float)
    made = means(shares, clusters=clusters, seed=seed, draws=draws, share=True)
    where = columns_of(examples, [(place, 0) for place in found])
    columns: dict[str, Any] = {name: np.repeat(where[name], len(ENDINGS)) for name in ("place", "row")}
    columns["ending"] = list(ENDINGS) * (len(found) * len(examples.rows))
    cycles = np.full(shares.shape, np.nan)
    cycles[..., ENDINGS.index("cycle")] = np.where(periods > 1, periods, np.nan)
    columns["period"] = means(cycles, clusters=clusters, seed=seed, draws=draws).flat()
    rule = {"tolerance": tolerance, "window": window, "longest": longest}
    columns = {**columns, "share": made.flat(), "n": made.n.reshape(-1)}
    return Table("endings", columns, {**about(examples), "rule": rule})


# ---- what moves ------------------------------------------------------------------------------------------------------


def _each(
    examples: Examples, layers: Layers, memory: int | None
) -> Iterator[tuple[str, int, Part, dict[str, Float[Tensor, "R B"]]]]:
    """What `trajectories` measures, for every place, loop and part of the examples."""
    for place, part, series in _series(examples, layers, memory):
        moved = dict(_motion(series))
        if place == STATE:
            points = dict(zip(series, after_calls(examples.program), strict=True))
            names = {point: loop for loop, point in points.items()}
            last: Int[Tensor, "B R"] | None = None
            read = logits_at(examples, part, {points[loop]: series[loop] for loop in reversed(series)})
            for point, logits in read:  # the last loop comes first
                answers = logits.argmax(-1)
                last = answers if last is None else last
                moved[names[point]]["agreement"] = (answers == last).double()
        for loop, values in moved.items():
            yield place, loop, part, {name: value.mT for name, value in values.items()}


def _series(
    examples: Examples, layers: Layers, memory: int | None
) -> Iterator[tuple[str, Part, dict[int, Float[Tensor, "B R d"]]]]:
    """The states of every part of the examples by loop, then the streams that enter layers, one layer at a time."""
    program, rows = examples.program, len(examples.rows)
    loops = (program.first, *(program.loop_of(i) for i, step in enumerate(program.steps) if isinstance(step, Call)))
    points = after_calls(program)
    size = NUMBER * len(points) * rows * examples.pieces.state_width + logits_size(examples, len(points))
    for part in examples.parts(size, memory):
        states, _ = states_at(examples, part, points)
        yield STATE, part, {loop: states[point] for loop, point in zip(loops, points, strict=True)}
    for place, addresses in stream_places(examples, layers).items():
        for part in examples.parts(NUMBER * len(addresses) * rows * examples.pieces.width, memory):
            _, kept = states_at(examples, part, points[-1:], addresses.values())
            yield place, part, {loop: kept[address] for loop, address in addresses.items()}


def _motion(series: Mapping[int, Float[Tensor, "B R d"]]) -> Iterator[tuple[int, dict[str, Float[Tensor, "B R"]]]]:
    last = list(series.values())[-1].double()
    before = step_before = None
    for loop, state in series.items():
        h = state.double()
        values = {"norm": h.norm(dim=-1), "distance": (h - last).norm(dim=-1)}
        step = None
        if before is not None:
            step = h - before
            values["step"] = step.norm(dim=-1)
            values["relative"] = _over(values["step"], values["norm"])
            values["cosine"] = (_unit(h) * _unit(before)).sum(-1)
            if step_before is not None:
                values["turn"] = (_unit(step) * _unit(step_before)).sum(-1)
        yield loop, values
        before, step_before = h, step


def _periods(
    states: Sequence[Float[Tensor, "B R d"]], tolerance: float, window: int, longest: int
) -> Int[Tensor, "B R"]:
    """After how many loops each example returns: 1 at a fixed point, 0 for drift."""
    tail = [each.double() for each in states[-(window + 2 * longest) :]]
    found = torch.zeros(tail[0].shape[:-1], dtype=torch.long, device=tail[0].device)
    for period in range(1, longest + 1):
        looked = max(window, period)
        if len(tail) < looked + period:
            break
        returns = torch.stack(
            [_over((tail[-i] - tail[-i - period]).norm(dim=-1), tail[-i].norm(dim=-1)) for i in range(1, looked + 1)]
        )
        found = torch.where((found == 0) & (returns <= tolerance).all(0), period, found)
    return found


def _unit(x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
    """x over its length; NaN where that is 0, as zeros have no direction."""
    x = x.double()
    return x / x.norm(dim=-1, keepdim=True)


def _over(part: Float[Tensor, "*B"], whole: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    return torch.where(whole > 0, part / whole, torch.where(part > 0, torch.nan, 0.0))
