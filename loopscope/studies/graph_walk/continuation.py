"""Continuation, measured: a map trained for sixteen calls goes on for many more; what does each call answer?

Backbones of eight nodes answer f^8(s) after eight loops.  Their maps stand before every call, from h0 on, and were
trained to make loop t answer f^t(s) up to t = 16; the request stays 8.  Here the same program J F J F ... runs on.

The walk wraps around the cycle of the start, so an answer that never moves is right every so often: holding f^8(s)
scores wherever the cycle length divides t - 8.  *Strict* accuracy leaves those starts out, graph by graph; a graph all
of whose starts are left out at a loop drops out of that loop.

Two controls.  J alone never calls F: J treats every row by itself, and ANSWER's row is the same in all inputs, so it
answers one node for all.  J moved hands each call of F what J made of the graph before in the list: F knows nothing but
the state, so these are that graph's answers, judged by this one's.

Records hold counts, not answers: by cycle length of the start, and for the strict part by graph.  What follows from
them is in `continuation_curves`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

import torch
from jaxtyping import Bool, Int, Integer, UInt8
from torch import Tensor

from loopscope.bounds import taken
from loopscope.errors import InputError
from loopscope.maps import AffineMap
from loopscope.program import F, J
from loopscope.studies.records import Predictions
from loopscope.studies.trained import TrainedModel
from loopscope.tasks.graph_walk import GraphWalk, all_starts, cycle_lengths, walk
from loopscope.tasks.populations import population

BROAD, WITHHELD = "eight-broad", "eight-test"
BROAD_LOOPS, STRICT_LOOPS = 40, 128
TARGET = "continue16"
"""The maps: trained for sixteen calls."""

AT_ONCE = 1024
"""Graphs whose logits are held at a time."""

NATIVE, INSTANCES, STRICT, MOVED, ALONE = "native", "instances", " strict", " moved", " alone"
"""What a record calls its tensors: runs are `native`, `continue16-1`, ..., with or without an ending."""


# ---- what is asked ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """All starts of some graphs, the cycle lengths of the starts, and what is right: `path[t]` is f^t(s)."""

    graphs: Int[Tensor, "n nodes"]
    starts: Int[Tensor, " n"]
    lengths: Int[Tensor, " n"]
    path: Int[Tensor, "reads n"]

    @property
    def nodes(self) -> int:
        """Of every graph."""
        return self.graphs.shape[1]

    @property
    def sizes(self) -> Int[Tensor, " lengths"]:
        """Starts by cycle length, from 1 to all nodes."""
        return self.lengths.bincount(minlength=self.nodes + 1)[1:]

    def holds(self, depth: int) -> Bool[Tensor, "lengths loops"]:
        """Whether f^depth(s) is right at loops 1, 2, ...: where the cycle length divides the steps between."""
        steps = torch.arange(1, len(self.path)) - depth
        return steps % torch.arange(1, 1 + self.nodes)[:, None] == 0

    def counted(self, depth: int) -> Bool[Tensor, "loops n"]:
        """The starts that strict accuracy counts: those for which holding f^depth(s) is wrong."""
        return ~self.holds(depth)[self.lengths - 1].T

    def by_length(self, right: Bool[Tensor, "loops n"]) -> Integer[Tensor, "lengths loops"]:
        """How many are right, by cycle length of the start."""
        counts = torch.zeros(self.nodes, len(right), dtype=torch.int32)
        return counts.index_add_(0, self.lengths - 1, right.T.int())

    def by_graph(self, right: Bool[Tensor, "loops n"]) -> UInt8[Tensor, "loops graphs"]:
        """How many are right in each graph."""
        return right.unflatten(1, (-1, self.nodes)).sum(-1).to(torch.uint8)


@lru_cache(maxsize=4)
def asked_of(where: str, loops: int, graphs: int | None = None) -> Asked:
    """The first graphs of a population (None: all), kept, as all backbones are asked about the same."""
    every = population(where).graphs
    if graphs is not None:
        taken(graphs, len(every), f"graphs of {where}")
    rows, starts = all_starts(every[:graphs])
    lengths = cycle_lengths(rows).gather(1, starts[:, None])[:, 0]
    return Asked(rows, starts, lengths, walk(rows, starts, loops).T)


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure_broad(
    trained: TrainedModel, where: str = BROAD, loops: int = BROAD_LOOPS, graphs: int | None = None, target: str = TARGET
) -> Predictions:
    """How many answers are right after loops 1, 2, ..., without a map and with each fit of the target's.

    - `native`, `continue16-1`, ... [nodes, loops] int32: right answers by cycle length of the start, 1 to all nodes.
    - `instances` [nodes] int32: how many starts there are of each.

    `graphs` takes the first ones of the population alone (None: all).  InputError for a number that is not there, and
    for a model without such maps or of another number of nodes.
    """
    asked, answers = answers_of(trained, where, loops, graphs, target)
    return {where: _counts(asked, answers)}


def measure_strict(
    trained: TrainedModel,
    where: str = WITHHELD,
    loops: int = STRICT_LOOPS,
    graphs: int | None = None,
    target: str = TARGET,
) -> Predictions:
    """What `measure_broad` counts, and besides, graph by graph, the right answers among starts that count strictly.

    - `native strict`, `continue16-1 strict`, `continue16-1 moved` [loops, graphs] uint8, at most the number of nodes.
    - `continue16-1 alone` [loops] uint8: the node that J answers without F, whatever the input.
    """
    asked, answers = answers_of(trained, where, loops, graphs, target)
    counted, targets = asked.counted(trained.depth), asked.path[1:]
    found = _counts(asked, answers)
    for name, nodes in answers.items():
        found[name + STRICT] = asked.by_graph((nodes == targets) & counted)
    for name, step in trained.named(target).items():
        elsewhere = answers[name].roll(asked.nodes, 1)
        found[name + MOVED] = asked.by_graph((elsewhere == targets) & counted)
        found[name + ALONE] = _alone(trained, step, _tokens(trained, asked)[:1], loops)
    return {where: found}


@torch.no_grad()
def _alone(
    trained: TrainedModel, step: AffineMap, tokens: Int[Tensor, "1 tokens"], loops: int
) -> UInt8[Tensor, " loops"]:
    """The node read out at ANSWER after J, J J, ..."""
    h, nodes = trained.model.embed(tokens)[:, -1], []
    for _ in range(loops):
        h = step(h)
        nodes.append(trained.model.read(h).argmax(-1))
    return torch.cat(nodes).to(torch.uint8).cpu()


def answers_of(
    trained: TrainedModel, where: str, loops: int, graphs: int | None, target: str
) -> tuple[Asked, dict[str, UInt8[Tensor, "loops n"]]]:
    """The node read out at ANSWER after every call, native and with each fit before every call."""
    maps = trained.named(target)
    asked = asked_of(where, loops, graphs)
    if asked.nodes != trained.model.config.classes:
        there = trained.model.config.classes
        raise InputError(f"{where} has graphs of {asked.nodes} nodes, and {trained.name} walks on {there}")
    programs = {NATIVE: F**loops} | {name: reduce(or_, [J(name) | F] * loops) for name in maps}
    pieces: dict[str, list[Tensor]] = {name: [] for name in programs}
    for tokens in _tokens(trained, asked).split(AT_ONCE * asked.nodes):
        found = trained.run(tokens, list(programs.values()), maps=maps, read="calls")
        for name, program in programs.items():
            reads = [logits[:, 0].argmax(-1) for logits in found[program].logits_at.values()]
            pieces[name].append(torch.stack(reads).to(torch.uint8).cpu())
    return asked, {name: torch.cat(parts, 1) for name, parts in pieces.items()}


def _tokens(trained: TrainedModel, asked: Asked) -> Int[Tensor, "n tokens"]:
    return GraphWalk(asked.nodes).tokens(asked.graphs, asked.starts, trained.depth).to(trained.device)


def _counts(asked: Asked, answers: Mapping[str, UInt8[Tensor, "loops n"]]) -> dict[str, Tensor]:
    right = {name: asked.by_length(nodes == asked.path[1:]) for name, nodes in answers.items()}
    return {INSTANCES: asked.sizes.int()} | right
