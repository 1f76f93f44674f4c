"""Continuation again: do backbones that took no map of sixteen calls take one in more time, or in fp32?

The program, the graphs and the judgement are those of `continuation`, on graphs withheld from training; the maps were
fitted with more updates, or with products in fp32.  Single cycles are kept graph by graph, so that graphs can be
resampled: their starts are all on a cycle of as many nodes as there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from loopscope.errors import InputError
from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.stats import Tally, cluster_bootstrap_later
from loopscope.studies.graph_walk.continuation import WITHHELD, Asked, answers_of, asked_of
from loopscope.studies.graph_walk.continuation_curves import BEYOND, INSIDE, Range
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel
from loopscope.tasks.graph_walk import is_ring

AGAIN: Mapping[str, str] = {
    "continue16-twice": "16,000 updates",
    "continue16-long": "32,000 updates",
    "continue16-fp32": "8,000 updates, products in fp32",
}
"""The maps, and how they were fitted; the published protocol has 8,000 updates."""

LOOPS = BEYOND[1]
RIGHT = " right"
SEED = 2026111901
NOTE = "Loop t is judged by f^t(s); all starts of single cycles count.  Mean over loops, then fits; graphs resampled."


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(trained: TrainedModel, graphs: int | None = None) -> Predictions:
    """For every map of `AGAIN` that the model has, the right answers of every single cycle after each loop.

    `continue16-twice right` and so on: uint8 [fits, loops, cycles], at most the number of nodes.  `graphs` takes the
    first ones of the population alone (None: all).  InputError for a model without any of these maps, and for graphs
    of which none is a single cycle.
    """
    there = [target for target in AGAIN if target in trained.maps]
    if not there:
        raise InputError(f"{trained.name} has none of the maps {', '.join(AGAIN)}")
    if not cycles_of(graphs):
        raise InputError(f"none of the first {graphs} graphs of {WITHHELD} is a single cycle")
    found = {}
    for target in there:
        asked, answers = answers_of(trained, WITHHELD, LOOPS, graphs, target)
        cycles = single(asked)
        right = [asked.by_graph(answers[name] == asked.path[1:])[:, cycles] for name in trained.named(target)]
        found[target + RIGHT] = torch.stack(right)
    return {WITHHELD: found}


def single(asked: Asked) -> Bool[Tensor, " graphs"]:
    """The graphs that are one cycle."""
    return is_ring(asked.graphs[:: asked.nodes])


# ---- analysis --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """What was counted of one backbone on so many graphs, by target."""

    found: Mapping[str, UInt8[Tensor, "fits loops cycles"]]
    nodes: int

    @classmethod
    def of(cls, predictions: Predictions, facts: ModelFacts) -> Counted:
        """Those of a record."""
        found = {name.removesuffix(RIGHT): right for name, right in predictions[WITHHELD].items()}
        return cls({target: found[target] for target in AGAIN if target in found}, facts.nodes)

    def row(self, target: str, loops: Range) -> Quantity:
        """Accuracy over a range of loops, both ends counted: `failures.continuation`."""
        first, last = loops
        right: Float[Tensor, "fits cycles"] = self.found[target][:, first - 1 : last].double().sum(1)
        most = torch.full_like(right, self.nodes * (last - first + 1))
        share = cluster_bootstrap_later(Tally(right.numpy(), most.numpy()), seed=SEED)
        label = f"{AGAIN[target]}, loops {first}-{last}"
        at: At = {"target": target, "first": first, "last": last}
        return Quantity("failures.continuation", label, share, int(most[0].sum()), None, at)


def tables(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> list[QuantityTable]:
    """Accuracy inside the range of loops that maps were trained for, and beyond it, by target."""
    counted = Counted.of(predictions, facts)
    rows = [counted.row(target, loops) for target in counted.found for loops in (INSIDE, BEYOND)]
    return [QuantityTable("failures.continuation", f"Continuation again, single cycles ({WITHHELD})", rows, NOTE)]


def cycles_of(graphs: int | None) -> int:
    """How many of the first graphs are single cycles."""
    return int(single(asked_of(WITHHELD, LOOPS, graphs)).sum())
