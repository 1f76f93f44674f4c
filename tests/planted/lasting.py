"""Lasting requests with planted answers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from loopscope.studies.graph_walk.composition import long_strings
from loopscope.studies.graph_walk.lasting import (
    MARKS,
    STRINGS,
)
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.tasks.populations import population

Right = Callable[[int, Tensor], Tensor]


def planted(
    facts: ModelFacts,
    where: str,
    graphs: int,
    walkers: dict[str, Right],
    calls: int = 64,
    fits: int = 2,
    strings: int = 4,
) -> Predictions:
    """Counts of walkers that are right where they say, given the call and the number of each graph."""
    nodes = facts.nodes
    kept = population(where).mask("five")[: graphs * nodes].view(graphs, nodes).sum(1)
    mixed = torch.tensor([[int(c) for c in (s * 8)[:calls]] for s in long_strings()["mixed"][:strings]])
    found = {STRINGS: mixed.to(torch.uint8)}
    for family, right in walkers.items():
        for kind, times in (("one", 1), ("two", 1), ("mixed", strings)):
            hits = torch.stack([right(call, torch.arange(graphs)) for call in range(1, calls + 1)]).int() * kept
            so_far = torch.stack([hits[: call + 1].amin(0) for call in range(calls)])
            for name, counted in (("right", hits * times), ("so far", so_far * times)):
                found[f"{family} {kind} {name}"] = counted.sum(1).expand(fits, -1).int()
                marked = counted[[mark - 1 for mark in MARKS if mark <= calls]] * fits
                found[f"{family} {kind} {name} by graph"] = marked.to(torch.int16)
            found[f"{family} {kind} limits"] = torch.ones(fits, 1 + calls, 3)
    return {where: found}


def always(call: int, graph: Tensor) -> Tensor:
    return torch.ones_like(graph, dtype=torch.bool)


def until(last: int) -> Right:
    return lambda call, graph: torch.full_like(graph, call <= last, dtype=torch.bool)
