"""Native trajectories: what each loop reads out, with no map and no patch, on single cycles.

On a ring every node is some number of steps from the start, so a readout after loop t is a position on the path, 0 to
N - 1.  How often each position is read, over all rings and starts, shows how a backbone walks: its *mode* at a loop is
the position read most often (none where two tie), an *increment* the step from one mode to the next around the ring.

Two closer looks: `labels` asks whether the labels of nodes decide who is ahead of whom, and `measure` also reads the
ANSWER row inside each call, after the attention and after the MLP of every layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Integer, UInt8
from torch import Tensor

from loopscope.address import Address, grid
from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.execute.traces import Trace
from loopscope.pieces import pieces_of
from loopscope.program import F
from loopscope.protocol import LoopedModel
from loopscope.quantity import Quantity, QuantityTable
from loopscope.studies.graph_walk.counting import share
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, Walks, first_graphs, instances, walks
from loopscope.tasks.graph_walk import DEPTHS, advance, all_starts, path_position, walk
from loopscope.tasks.populations import population

LOOPS = 16
"""Loops that are read; backbones are trained for six or eight."""

TIE = 1e-8
"""Frequencies closer than this are a tie."""

LAYERED = 256
"""Rings that are also read inside each call."""

AT_ONCE = 64
"""Graphs whose kept activations are held at a time."""

NATIVE, LAYERS = "native", "layers"

Walk = Literal["one", "two", "neither"]
"""What a backbone mainly advances per loop."""


# ---- measuring -------------------------------------------------------------------------------------------------------


def read_native(
    model: LoopedModel, device: torch.device, rings: str = "rings", loops: int = LOOPS, depth: int = DEPTHS
) -> Int[Tensor, "reads instances"]:
    """The node each loop reads out at ANSWER, for every ring and start (see `all_starts`); row t is loop t."""
    return _after_calls(run(model, instances(rings, depth, device).tokens, F**loops, read="all")[F**loops])


def measure(trained: TrainedModel, rings: str = "rings", loops: int = LOOPS, layered: int = LAYERED) -> Predictions:
    """The nodes read out at ANSWER, for every graph of `rings` and every start.

    - `native` [loops + 1, n]: as `read_native`.
    - `layers` [loops, 2 * layers, of the first n]: inside each call, after each sublayer in turn (see `sublayers`), for
      the first `layered` graphs, or all where there are fewer; absent for `layered=0`.

    InputError for fewer loops than the backbone is trained for.
    """
    if loops < trained.loops:
        raise InputError(
            f"cannot read {loops} loops: {trained.name} is trained for {trained.loops} (nearest: {trained.loops})"
        )
    if layered < 0:
        raise InputError(f"cannot read {layered} graphs layer by layer (nearest: 0, which leaves the layers out)")
    model, nodes = trained.model, population(rings).nodes
    tokens = walks(rings, trained, "all").tokens
    closer, others = tokens[: layered * nodes], tokens[layered * nodes :]
    native, inside = [], []
    for piece in closer.split(AT_ONCE * nodes) if len(closer) else ():
        inner = _sublayer_addresses(len(model.layers), loops)
        trace = trained.run(piece, [F**loops], read="all", keep=inner)[F**loops]
        native.append(_after_calls(trace))
        inside.append(_inside_calls(model, trace, loops))
    if len(others):
        native.append(_after_calls(trained.run(others, [F**loops], read="all")[F**loops]))
    found = {NATIVE: torch.cat(native, -1).to(torch.uint8)}
    if inside:
        found[LAYERS] = torch.cat(inside, -1).to(torch.uint8)
    return {rings: found}


def sublayers(layers: int) -> list[str]:
    """The names of a call's sublayers, in order."""
    return [f"layer {layer} {part}" for layer in range(1, layers + 1) for part in ("attention", "MLP")]


def _sublayer_addresses(layers: int, loops: int) -> list[Address]:
    parts = ("resid", "attn_out", "mlp_out")
    every = [grid(part, loops=range(1, loops + 1), layers=range(1, layers + 1), rows=(-1,)) for part in parts]
    return [address for part in every for address in part]


def _after_calls(trace: Trace) -> Int[Tensor, "reads instances"]:
    return torch.stack([logits[:, 0].argmax(-1) for logits in trace.logits_at.values()]).cpu()


@torch.no_grad()
def _inside_calls(model: LoopedModel, trace: Trace, loops: int) -> Int[Tensor, "loops sublayers instances"]:
    """The residual stream of the ANSWER row summed up sublayer by sublayer, as the layers do it, and read."""
    last, pieces = len(model.layers), pieces_of(model)
    found = []
    for loop, layer in product(range(1, loops + 1), range(1, last + 1)):
        entering, attention, mlp = (
            trace.kept[grid(part, loops=[loop], layers=[layer], rows=(-1,))[0]][:, 0]
            for part in ("resid", "attn_out", "mlp_out")
        )
        middle = entering + attention
        leaving = middle + mlp
        found += [middle, pieces.close(leaving, None, F.stack) if layer == last else leaving]
    nodes = torch.stack([model.read(state).argmax(-1) for state in found])
    return nodes.unflatten(0, (loops, 2 * last)).cpu()


# ---- frequencies, modes, increments ----------------------------------------------------------------------------------


def positions(nodes: Integer[Tensor, "*reads instances"], rings: str = "rings") -> Int[Tensor, "*reads instances"]:
    """How many steps from its start each node that was read out is; -1 if it is on another cycle.

    `nodes` may hold the first graphs only.
    """
    _check_first(nodes, rings)
    n, steps = nodes.shape[-1], _steps_to(rings)
    return steps[:n].gather(1, nodes.long().movedim(-1, 0).reshape(n, -1)).T.reshape(nodes.shape)


@lru_cache(maxsize=2)
def _steps_to(rings: str) -> Int[Tensor, "instances nodes"]:
    """How many steps from its start each node is, for all starts of a population; -1 on another cycle."""
    graphs, starts = all_starts(population(rings).graphs)
    return path_position(graphs, starts, torch.arange(graphs.shape[1]).expand_as(graphs))


def frequencies(positions: Int[Tensor, "*reads instances"], nodes: int) -> Float[Tensor, "*reads nodes"]:
    """How often each position is read."""
    reads, n = positions.shape[:-1], positions.shape[-1]
    counts = [row.bincount(minlength=nodes + 1)[1:] for row in (positions + 1).reshape(-1, n)]
    return torch.stack(counts).double().reshape(*reads, nodes) / n


def by_label(
    nodes_read: Integer[Tensor, "reads instances"], step: int = 0, rings: str = "rings"
) -> Float[Tensor, "labels reads nodes"]:
    """Frequencies of positions, apart for each label of f^step(s): step 0 splits by the start, `depth` by u."""
    graphs, starts = _first(nodes_read, rings)
    where, places = advance(graphs, starts, step), positions(nodes_read, rings)
    nodes = graphs.shape[1]
    return torch.stack([frequencies(places[:, where == label], nodes) for label in range(nodes)])


def modes(frequencies: Float[Tensor, "reads nodes"]) -> list[int | None]:
    """The position read most often at each loop; None where it is not the only one."""
    top, place = frequencies.topk(2, dim=1)
    alone = (top[:, 0] - top[:, 1]) > TIE
    return [int(which) if bool(sure) else None for which, sure in zip(place[:, 0], alone, strict=True)]


def increments(modes: Sequence[int | None], nodes: int) -> list[int | None]:
    """Steps around the ring from each loop's mode to the next one's; None where either is a tie."""
    return [None if a is None or b is None else (b - a) % nodes for a, b in pairwise(modes)]


@dataclass(frozen=True)
class Trajectory:
    """A backbone's walk: modes at loops 0, 1, ... and the increments to loops 1, 2, ...

    `target` is the position of the right answer; `endpoint` is the share of instances that give it at the last trained
    loop, `retained` at the last loop read.
    """

    loops: int
    target: int
    modes: list[int | None]
    increments: list[int | None]
    endpoint: float
    retained: float
    instances: int

    @property
    def walks_one_and_two(self) -> bool:
        """The rule that chooses the mechanism backbones: to loops 2..L, increments of 1 and of 2, else only 0."""
        return self.walks_within({0, 1, 2})

    def walks_within(self, allowed: set[int]) -> bool:
        """Whether increments to loops 2..L contain 1 and 2, and are all among those allowed."""
        taken = {step for step in self.increments[1 : self.loops] if step is not None}
        return {1, 2} <= taken <= allowed

    @property
    def walk(self) -> Walk:
        """One or two nodes per loop, if more than half of the increments say so; else neither.

        Counted are the increments to loops 2..L up to the one that first reaches the target.  One that a tie leaves
        undefined counts, but for neither.
        """
        trained = self.modes[1 : self.loops + 1]
        arrival = 1 + trained.index(self.target) if self.target in trained else self.loops
        counted = self.increments[1:arrival]
        names: dict[int, Walk] = {1: "one", 2: "two"}
        return next((names[step] for step in names if 2 * counted.count(step) > len(counted)), "neither")

    @property
    def holds(self) -> bool:
        """Whether the right answer is still the mode at the last loop read."""
        return self.modes[-1] == self.target


def trajectory(
    nodes_read: Integer[Tensor, "reads instances"], loops: int, rings: str = "rings", depth: int = DEPTHS
) -> Trajectory:
    """Sum up what `read_native` gave, for a backbone trained for `loops` loops and asked for `depth` steps."""
    nodes = population(rings).nodes
    found = modes(frequencies(positions(nodes_read, rings), nodes))
    right = _right(nodes_read, rings, depth).sum(1).double() / nodes_read.shape[1]
    return Trajectory(
        loops, depth % nodes, found, increments(found, nodes), float(right[loops]), float(right[-1]),
        nodes_read.shape[1],
    )  # fmt: skip


PAPER_INCREMENTS: Mapping[str, Sequence[int | None]] = {
    "d8l8-0": (None, 0, 0, 1, 0, 7, 0, 0), "d8l8-1": (None, 1, 1, 1, 1, 1, 1, 1),
    "d8l8-2": (None, 1, 0, 0, 8, 7, 1, 0), "d8l8-3": (None, 1, 1, 1, 1, 1, 1, 1),
    "d8l8-4": (None, 2, 0, 2, 2, 0, 0, 0), "d8l8-5": (None, 2, 2, 2, 2, 0, 0, 0),
    "d8l8-6": (None, 1, 1, None, None, 1, 1, 0), "d8l8-7": (None, 1, 1, 1, 1, 1, 1, 1),
    "d8l8-8": (None, 1, 1, 1, 1, 1, 1, 1), "d8l8-9": (None, 2, 2, 2, 2, 0, 0, 0),
    "d8l8-10": (None, 1, 1, 1, 1, 1, 1, 1), "d8l8-11": (None, 1, 2, 2, 1, 1, 0, 0),
}  # fmt: skip
"""The increments to loops 1 through 8 of the paper's D8L8 backbones; None where a tie leaves one undefined."""


def published_walks(target: int = DEPTHS, nodes: int = 10) -> list[Walk]:
    """How the paper's D8L8 backbones walk, by the rule of `Trajectory.walk` on the increments it published.

    All of them answer `target` at the last loop, so modes follow from increments backwards; before a tie they are
    unknown.
    """
    found: list[Walk] = []
    for steps in PAPER_INCREMENTS.values():
        modes: list[int | None] = [target]
        for step in reversed(steps):
            modes.insert(0, None if step is None or modes[0] is None else (modes[0] - step) % nodes)
        found.append(Trajectory(len(steps), target, modes, [*steps], math.nan, math.nan, 0).walk)
    return found


# ---- labels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """Do labels of nodes decide who is ahead at a loop?

    `behind` and `ahead` are the two positions read most often, in walking order the short way round, each with the
    share of instances that read it.  Explained is the variance of "reads `ahead`" over all instances, as a share:

    - `by_step[j]`: by the label of f^j(s), ten groups of instances on ten nodes; 0 is the start, the request's depth u.
    - `passed`: by whether the path s, ..., f^behind(s) contains `label`, the one label for which this is most.  It is 1
      if that label is passed for free.
    """

    loop: int
    behind: int
    ahead: int
    at_behind: float
    at_ahead: float
    by_step: list[float]
    label: int
    passed: float


def labels(nodes_read: Integer[Tensor, "reads instances"], rings: str = "rings") -> list[Labels]:
    """Each loop's `Labels`, from loop 1; a loop at which a single position is read has nothing to explain."""
    graphs, starts = _first(nodes_read, rings)
    nodes = graphs.shape[1]
    path = walk(graphs, starts, nodes - 1)
    places = positions(nodes_read, rings)
    shares = frequencies(places, nodes)
    found = []
    for loop in range(1, len(places)):
        first, second = sorted(shares[loop].sort(descending=True, stable=True).indices[:2].tolist())
        behind, ahead = (first, second) if 2 * (second - first) <= nodes else (second, first)
        if not 0 < float(shares[loop, ahead]) < 1:
            continue
        is_ahead = places[loop] == ahead
        by_step = [_explained(is_ahead, path[:, step]) for step in range(nodes)]
        contains = [(path[:, : behind + 1] == label).any(1) for label in range(nodes)]
        passed = [_explained(is_ahead, met.long()) for met in contains]
        label = max(range(nodes), key=passed.__getitem__)
        at_behind, at_ahead = (float(shares[loop, place]) for place in (behind, ahead))
        found.append(Labels(loop, behind, ahead, at_behind, at_ahead, by_step, label, passed[label]))
    return found


def _explained(outcome: Bool[Tensor, " instances"], group: Int[Tensor, " instances"]) -> float:
    """The share of the variance of `outcome` that lies between groups; `outcome` must vary."""
    values = outcome.double()
    sizes = group.bincount()
    means = group.bincount(values) / sizes.clamp(min=1)
    between = (sizes * (means - values.mean()) ** 2).sum() / len(values)
    return float(between / values.var(correction=0))


# ---- tables ----------------------------------------------------------------------------------------------------------


def walk_of(predictions: Predictions, facts: ModelFacts, rings: str = "rings") -> Trajectory:
    """The trajectory in a record."""
    return trajectory(predictions[rings][NATIVE], facts.loops, rings, facts.depth)


def tables(predictions: Predictions, facts: ModelFacts, rings: str = "rings") -> list[QuantityTable]:
    """Accuracy at the last trained loop and at the last one; each loop's mode; the steps inside calls, where read."""
    found = predictions[rings]
    native = found[NATIVE]
    tables = [_accuracies(native, facts, rings), _modes(native, facts, rings)]
    if LAYERS in found:
        tables.append(_steps_inside(native, found[LAYERS], facts, rings))
    return tables


def _accuracies(native: UInt8[Tensor, "reads n"], facts: ModelFacts, rings: str) -> QuantityTable:
    right, at = _right(native, rings, facts.depth), _walks(native, facts, rings)
    rows = [
        share(f"native.{name}", f"{name}, loop {loop}", right[loop], at, {"loop": loop})
        for name, loop in (("endpoint", facts.loops), ("retained", len(native) - 1))
    ]
    return QuantityTable(
        "native.accuracy", "Right answers of native loops", rows, "All graphs and starts; graphs are resampled."
    )


def _modes(native: UInt8[Tensor, "reads n"], facts: ModelFacts, rings: str) -> QuantityTable:
    """Trained loops only; a tie has no row."""
    places, at = positions(native[: facts.loops + 1], rings), _walks(native, facts, rings)
    rows = [
        share(
            "native.mode", f"loop {loop}: position {mode}", places[loop] == mode, at, {"loop": loop, "position": mode}
        )
        for loop, mode in enumerate(modes(frequencies(places, facts.nodes)))
        if mode is not None
    ]
    note = "Share of all graphs and starts that read it; ties left out."
    return QuantityTable("native.modes", "The position read most often", rows, note)


def _steps_inside(
    native: UInt8[Tensor, "reads n"], layers: UInt8[Tensor, "loops sublayers few"], facts: ModelFacts, rings: str
) -> QuantityTable:
    """Up to the first loop after training; a call that changes the reading on fewer than two graphs has no rows."""
    native = native[:, : layers.shape[-1]]
    at, names = _walks(native, facts, rings), sublayers(layers.shape[1] // 2)
    rows: list[Quantity] = []
    for loop in range(1, min(facts.loops + 1, len(layers)) + 1):
        changed = native[loop] != native[loop - 1]
        if int(changed.view(-1, facts.nodes).any(1).sum()) < 2:
            continue
        for name, nodes in list(zip(names, layers[loop - 1], strict=True))[:-1]:
            hits, label = nodes == native[loop], f"loop {loop}, {name}"
            rows.append(share("native.inside", label, hits, at, {"loop": loop, "sublayer": name}, counted=changed))
    note = (
        "Among instances whose reading the call changes: the share that already reads the new node after this "
        f"sublayer; {at.many} graphs, which are resampled."
    )
    return QuantityTable("native.inside", "Where in a call the reading changes", rows, note)


def _walks(nodes_read: UInt8[Tensor, "reads n"], facts: ModelFacts, rings: str) -> Walks:
    """The graphs and starts that were read, all of which count."""
    at = instances(rings, facts.depth, torch.device("cpu"), "all")
    return first_graphs(at, nodes_read.shape[-1] // facts.nodes)


def _right(nodes_read: Integer[Tensor, "reads n"], rings: str, depth: int) -> Bool[Tensor, "reads n"]:
    _check_first(nodes_read, rings)
    return nodes_read == _targets(rings, depth)[: nodes_read.shape[-1]]


@lru_cache(maxsize=2)
def _targets(rings: str, depth: int) -> UInt8[Tensor, " instances"]:
    """The right answers, as records keep nodes."""
    return advance(*all_starts(population(rings).graphs), depth).to(torch.uint8)


def _first(nodes_read: Integer[Tensor, "*reads n"], rings: str) -> tuple[Int[Tensor, "n nodes"], Int[Tensor, " n"]]:
    """The graphs and starts that were read: the first ones of the population."""
    _check_first(nodes_read, rings)
    graphs, starts = all_starts(population(rings).graphs)
    return graphs[: nodes_read.shape[-1]], starts[: nodes_read.shape[-1]]


def _check_first(nodes_read: Integer[Tensor, "*reads n"], rings: str) -> None:
    """InputError for anything but all starts of the first graphs."""
    n, nodes, most = nodes_read.shape[-1], population(rings).nodes, population(rings).graphs.numel()
    if n > most or n % nodes:
        raise InputError(f"{n} readouts are not all starts of the first graphs of {rings!r}, which has {most}")
