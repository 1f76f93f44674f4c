"""Continuation, judged: how long does a map trained for sixteen calls lead, and what would holding still score?

Everything follows from the counts of `continuation`.  Answering f^8(s) at every loop is a baseline that is counted, not
measured: it is right wherever the cycle length of the start divides t - 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from loopscope.errors import InputError
from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.stats import Estimate, mean_bootstrap
from loopscope.studies.graph_walk.continuation import (
    ALONE,
    BROAD,
    BROAD_LOOPS,
    INSTANCES,
    MOVED,
    NATIVE,
    STRICT,
    WITHHELD,
    Asked,
    asked_of,
)
from loopscope.studies.records import ModelFacts, Predictions, check_measured
from loopscope.tasks.graph_walk import DEPTHS
from loopscope.tasks.populations import population

STEERED, UNSTEERED, HOLD, J_MOVED, J_ALONE = "J F", "F alone", "hold f^8(s)", "J moved", "J alone"
GROUPS: Mapping[str, slice] = {"all graphs": slice(None), "single cycles": slice(-1, None)}
"""Which cycle lengths of the start count; a cycle as long as there are nodes is the whole graph."""

ALL, RINGS = GROUPS

Range = tuple[int, int]
"""The first and the last of some loops."""

Published = Mapping[Range, float]
TRAINED_CALLS = 16
"""The last loop that the maps were trained for."""

INSIDE: Range = (9, TRAINED_CALLS)
BEYOND: Range = (17, 32)
RANGES: Sequence[Range] = (INSIDE, BEYOND, (17, 40), (17, 128), (9, 128))

SEED, DRAWS = 2026092403, 10_000
NESTED_SEED, NESTED_DRAWS = 2026092101, 2_000

PAPER: Mapping[tuple[str, str, str], Published] = {
    (BROAD, ALL, STEERED): {INSIDE: 0.9681, BEYOND: 0.4631, (17, 40): 0.3837},
    (BROAD, ALL, UNSTEERED): {INSIDE: 0.31462, BEYOND: 0.34586, (17, 40): 0.34054},
    (BROAD, ALL, HOLD): {INSIDE: 0.31462, BEYOND: 0.34586, (17, 40): 0.34054},
    (WITHHELD, RINGS, STEERED): {INSIDE: 0.9742, BEYOND: 0.3511},
    (WITHHELD, RINGS, UNSTEERED): {INSIDE: 0.125, BEYOND: 0.125},
}
"""By population, graphs and condition: printed in the paper, or in the data behind its figure."""

PAPER_STRICT: Mapping[str, Published] = {
    STEERED: {INSIDE: 0.9640, (17, 128): 0.1722, (9, 128): 0.2274},
    UNSTEERED: {INSIDE: 0.0, (17, 128): 0.0003, (9, 128): 0.0003},
    J_ALONE: {INSIDE: 0.1255, (17, 128): 0.1253, (9, 128): 0.1254},
    J_MOVED: {INSIDE: 0.1523, (17, 128): 0.1294, (9, 128): 0.1311},
}
"""Strict accuracy in the data published with the paper."""

NOTE = (
    "Loop t is judged by f^t(s); all starts count.  Mean over loops, then maps, then backbones; backbones are "
    "resampled.  One backbone alone: from its lowest run to its highest.  n counts instances times loops."
)
STRICT_NOTE = (
    "Only starts with f^t(s) other than f^8(s) count.  Mean over the starts of a graph, then graphs, maps, backbones, "
    "loops; backbones are resampled, one map for each, and graphs.  n sums, over loops, the graphs that count."
)


# ---- what was measured, put in order ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Backbone:
    """One backbone on one population: what its record holds, and what is counted without a model."""

    depth: int
    asked: Asked
    maps: Sequence[str]
    found: Mapping[str, Tensor]

    @classmethod
    def of(cls, name: str, depth: int, where: str, found: Mapping[str, Tensor]) -> _Backbone:
        """InputError unless all counts are there, of the first graphs of the population."""
        endings = (STRICT, MOVED, ALONE)
        # Files do not keep an order, and draws of a bootstrap are shared out in it.
        maps = sorted(each for each in found if each not in (NATIVE, INSTANCES) and not each.endswith(endings))
        nodes, loops = population(where).nodes, found[NATIVE].shape[-1] if NATIVE in found else 0
        graphs = int(found[INSTANCES].sum()) // nodes if INSTANCES in found else 0
        shapes: dict[str, tuple[int, ...]] = {INSTANCES: (nodes,)} | dict.fromkeys((NATIVE, *maps), (nodes, loops))
        if any(each.endswith(endings) for each in found):
            shapes |= dict.fromkeys([run + STRICT for run in (NATIVE, *maps)], (loops, graphs))
            shapes |= {run + end: (loops, graphs) if end == MOVED else (loops,) for run in maps for end in endings[1:]}
        for each, shape in shapes.items():
            there = list(found[each].shape) if each in found else "none"
            if there != list(shape):
                raise InputError(f"{name} needs counts {each!r} of shape {list(shape)} on {where}, and has {there}")
        asked = asked_of(where, loops, graphs)
        if not maps or not torch.equal(found[INSTANCES].long(), asked.sizes):
            raise InputError(f"{name} has no counts of any map on the first {graphs} graphs of {where}")
        return cls(depth, asked, maps, found)

    @property
    def loops(self) -> int:
        return len(self.asked.path) - 1

    def instances(self, lengths: slice) -> int:
        """How many starts lie on cycles of these lengths."""
        return int(self.asked.sizes[lengths].sum())

    def shares(self, condition: str, lengths: slice) -> Float[np.ndarray, "runs loops"]:
        """Right answers at every loop among starts on cycles of these lengths, for each fit or for the single run."""
        if condition == HOLD:
            right = (self.asked.holds(self.depth) * self.asked.sizes[:, None])[None]
        else:
            right = torch.stack([self.found[run] for run in (self.maps if condition == STEERED else [NATIVE])])
        return right[:, lengths].sum(1).double().numpy() / self.instances(lengths)

    def strict(self, condition: str) -> Float[np.ndarray, "runs graphs loops"]:
        """Per graph, the share of right answers among starts that count; NaN where none does."""
        if NATIVE + STRICT not in self.found:
            raise InputError("strict accuracy was not measured: it takes counts by graph, as `measure_strict` makes")
        counted = self.asked.counted(self.depth)
        if condition == J_ALONE:
            answers = [self.found[run + ALONE][:, None] for run in self.maps]
            right = [self.asked.by_graph((node == self.asked.path[1:]) & counted) for node in answers]
        else:
            runs = [NATIVE] if condition == UNSTEERED else self.maps
            right = [self.found[run + (MOVED if condition == J_MOVED else STRICT)] for run in runs]
        shares = torch.stack(right).double() / self.asked.by_graph(counted)  # 0 / 0 is NaN
        return shares.transpose(1, 2).numpy()


_Study = Mapping[str, _Backbone]
"""Backbones by name; they may differ in the number of graphs and loops."""


def _study(found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str) -> _Study:
    """InputError without backbones, for one without facts or measurements, and for counts that do not fit."""
    if not found:
        raise InputError("continuation needs the counts of at least one backbone, not of none")
    check_measured(found, facts, where)
    return {name: _Backbone.of(name, facts[name].depth, where, found[name][where]) for name in found}


def _loops(study: _Study) -> int:
    """Loops that every backbone was run for."""
    return min(backbone.loops for backbone in study.values())


def _instances(study: _Study, lengths: slice) -> int:
    """Starts on cycles of these lengths that every backbone was asked about."""
    return min(backbone.instances(lengths) for backbone in study.values())


def _over(shares: Float[np.ndarray, "... loops"], loops: Range) -> Float[np.ndarray, " ..."]:
    """The mean over a range of loops, both ends counted."""
    return np.asarray(shares[..., loops[0] - 1 : loops[1]].mean(-1))


def hold(
    where: str = BROAD, loops: int = BROAD_LOOPS, graphs: int | None = None, depth: int = DEPTHS
) -> Float[np.ndarray, " loops"]:
    """The baseline that answers f^depth(s) at every loop: its accuracy at loops 1, 2, ..., counted over all starts."""
    return (~asked_of(where, loops, graphs).counted(depth)).double().mean(1).numpy()


# ---- plain accuracy --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Accuracy loop by loop: `estimates[i]` is that after `loops[i]` calls, over `n` instances (strict: graphs)."""

    condition: str
    group: str
    loops: list[int]
    estimates: list[Estimate]
    n: int


def curves(found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str = BROAD) -> list[Curve]:
    """Plain accuracy at every loop, for each condition and group of graphs; backbones are resampled."""
    study = _study(found, facts, where)
    loops = list(range(1, 1 + _loops(study)))
    result = []
    for group, lengths in GROUPS.items():
        n = _instances(study, lengths)
        for condition in (STEERED, UNSTEERED, HOLD) if n else ():
            points = [_estimate(study, condition, lengths, (loop, loop)) for loop in loops]
            result.append(Curve(condition, group, loops, points, n))
    return result


def _estimate(study: _Study, condition: str, lengths: slice, loops: Range) -> Estimate:
    """Mean over loops, then runs, then backbones, which are resampled; one alone has its lowest and highest run."""
    runs = [_over(backbone.shares(condition, lengths), loops) for backbone in study.values()]
    if len(runs) > 1:
        return mean_bootstrap([each.mean() for each in runs], seed=SEED, draws=DRAWS)
    (only,) = runs
    low, high = float(only.min()), float(only.max())
    return Estimate(float(only.mean()), low, high, len(only), "run, lowest to highest", 0)


def _rows(
    id: str,
    label: str,
    study: _Study,
    condition: str,
    lengths: slice,
    ranges: Iterable[Range],
    at: At,
    paper: Published | None = None,
) -> list[Quantity]:
    """One row for each range that all backbones were run for; none where one of them saw no such cycles."""
    n, known = _instances(study, lengths), paper or {}
    return [
        Quantity(
            id, f"{label}, loops {loops[0]}-{loops[1]}", _estimate(study, condition, lengths, loops),
            n * (loops[1] - loops[0] + 1), known.get(loops), {**_at(condition, loops), **at},
        )
        for loops in ranges
        if n and loops[1] <= _loops(study)
    ]  # fmt: skip


def _at(condition: str, loops: Range) -> dict[str, str | int]:
    return {"condition": condition, "first": loops[0], "last": loops[1]}


# ---- strict accuracy -------------------------------------------------------------------------------------------------


def nested_bootstrap(
    backbones: Sequence[Float[np.ndarray, "_runs _graphs loops"]], seed: int = NESTED_SEED, draws: int = NESTED_DRAWS
) -> Float[np.ndarray, "draws loops"]:
    """Means over graphs, then backbones: backbones are drawn, one run for each, and its graphs, all with replacement.

    NaN marks a graph that drops out of a loop; the result is NaN where a draw has no graph left for one.
    """
    rng = np.random.default_rng(seed)
    total = np.zeros((draws, backbones[0].shape[-1]))
    for _ in backbones:
        picked = rng.integers(len(backbones), size=draws)
        for number in np.unique(picked):
            runs, graphs, _ = backbones[number].shape
            mine = np.flatnonzero(picked == number)
            weights = rng.multinomial(graphs, np.full(graphs, 1 / graphs), size=len(mine)).astype(np.float64)
            drawn = rng.integers(runs, size=len(mine))
            for run, shares in enumerate(backbones[number]):
                these, there = drawn == run, ~np.isnan(shares)
                total[mine[these]] += _divided(weights[these] @ np.nan_to_num(shares), weights[these] @ there)
    return total / len(backbones)


def _divided(sums: Float[np.ndarray, "*shape"], counts: Num[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


@dataclass(frozen=True)
class _Strict:
    """One condition's strict accuracy by loop, as it is and in every draw; `graphs` of each backbone that count."""

    value: Float[np.ndarray, " loops"]
    draws: Float[np.ndarray, "draws loops"]
    graphs: Int[np.ndarray, " loops"]
    backbones: int

    @classmethod
    def of(cls, study: _Study, condition: str) -> _Strict:
        shares = [backbone.strict(condition)[..., : _loops(study)] for backbone in study.values()]
        counts = np.stack([(~np.isnan(each[0])).sum(0) for each in shares])
        means = _divided(np.stack([np.nansum(each, 1).mean(0) for each in shares]), counts)
        return cls(means.mean(0), nested_bootstrap(shares), counts.min(0), len(shares))

    def estimate(self, loops: Range) -> Estimate:
        """NaN if no graph counts at one of the loops; draws of which that is true are left out."""
        value, draws = float(_over(self.value, loops)), _over(self.draws, loops)
        draws = draws[~np.isnan(draws)]
        low, high = np.quantile(draws, [0.025, 0.975]) if len(draws) else (np.nan, np.nan)
        return Estimate(value, float(low), float(high), self.backbones, "backbone, map, graph", len(draws))


def strict_curves(
    found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str = WITHHELD
) -> list[Curve]:
    """Strict accuracy of J F, F alone and the two controls at every loop at which some graph counts."""
    study = _study(found, facts, where)
    result = []
    for condition in PAPER_STRICT:
        strict = _Strict.of(study, condition)
        loops = [loop for loop, value in enumerate(strict.value, 1) if not np.isnan(value)]
        points = [strict.estimate((loop, loop)) for loop in loops]
        result.append(Curve(condition, ALL, loops, points, int(strict.graphs.max())))
    return result


# ---- tables ----------------------------------------------------------------------------------------------------------


def tables(
    found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str = BROAD, paper: bool = False
) -> list[QuantityTable]:
    """Everything that follows from the counts of these backbones on one population; tables without rows are left out.

    Plain accuracy over ranges of loops, for all backbones, for each, and by cycle length; where it was measured, strict
    accuracy with its controls.  `paper`: with the published numbers beside.  InputError where counts do not fit.
    """
    study = _study(found, facts, where)
    made = [_ranges(study, where, paper), _by_backbone(study, where), _by_length(study, where)]
    if all(NATIVE + STRICT in backbone.found for backbone in study.values()):
        made.append(_strict(study, where, paper))
    return [table for table in made if table.rows]


def plain(found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str) -> list[Quantity]:
    """What `tables` has of plain accuracy over ranges of loops, of all backbones and of each."""
    study = _study(found, facts, where)
    return [*_ranges(study, where, False).rows, *_by_backbone(study, where).rows]


def _ranges(study: _Study, where: str, paper: bool) -> QuantityTable:
    rows = []
    for group, lengths in GROUPS.items():
        for condition in (STEERED, UNSTEERED, HOLD):
            published, label = PAPER.get((where, group, condition)) if paper else None, f"{group}, {condition}"
            at = {"group": group, "where": where}
            rows += _rows("continuation.accuracy", label, study, condition, lengths, RANGES, at, published)
    return QuantityTable("continuation.accuracy", f"Continuation: accuracy over ranges of loops ({where})", rows, NOTE)


def _by_backbone(study: _Study, where: str) -> QuantityTable:
    rows = []
    for name, backbone in study.items():
        for group, lengths in GROUPS.items():
            at = {"backbone": name, "group": group, "where": where}
            label, alone = f"{name}, {group}", {name: backbone}
            rows += _rows("continuation.backbone", label, alone, STEERED, lengths, RANGES[:3], at)
    return QuantityTable("continuation.backbone", f"Continuation: accuracy of J F by backbone ({where})", rows, NOTE)


def _by_length(study: _Study, where: str) -> QuantityTable:
    rows = []
    for length in range(1, 1 + population(where).nodes):
        for condition in (STEERED, HOLD):
            lengths, label = slice(length - 1, length), f"cycle of {length}, {condition}"
            at: At = {"cycle": length, "where": where}
            rows += _rows("continuation.cycle", label, study, condition, lengths, (INSIDE, BEYOND), at)
    return QuantityTable(
        "continuation.cycle", f"Continuation: accuracy by the cycle length of the start ({where})", rows, NOTE
    )


def _strict(study: _Study, where: str, paper: bool) -> QuantityTable:
    rows = []
    for condition, published in PAPER_STRICT.items():
        strict = _Strict.of(study, condition)
        for loops in (loops for loops in RANGES if loops[1] <= _loops(study)):
            estimate, n = strict.estimate(loops), int(strict.graphs[loops[0] - 1 : loops[1]].sum())
            if not np.isnan(estimate.value):
                label, beside = f"{condition}, loops {loops[0]}-{loops[1]}", published.get(loops) if paper else None
                rows.append(
                    Quantity(
                        "continuation.strict", label, estimate, n, beside, {**_at(condition, loops), "where": where}
                    )
                )
    return QuantityTable("continuation.strict", f"Continuation: strict accuracy ({where})", rows, STRICT_NOTE)
