"""Composed walks with planted answers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from loopscope.studies.graph_walk.composition import (
    CONTROLS,
    TWO_CALLS,
    beginnings,
    hops,
    long_strings,
    name_of,
)
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import Walks, instances

CPU = torch.device("cpu")


def asked() -> list[str]:
    return beginnings(string for strings in long_strings().values() for string in strings)


Walker = Callable[[str, int, Walks], Tensor]


def perfect(string: str, fit: int, at: Walks) -> Tensor:
    return at.ahead(hops(string))


def planted(where: str, facts: ModelFacts, graphs: int, walker: Walker = perfect) -> Predictions:
    """What a walker would answer in `measure_two` and `measure_long`, on the first graphs of a population."""
    at, n = instances(where, facts.depth, CPU), graphs * facts.nodes
    strings = {*TWO_CALLS, *(control(string) for control in CONTROLS.values() for string in asked())}
    found: dict[str, Tensor] = {}
    for fit in (1, 2):
        found |= {name_of(string, fit): walker(string, fit, at) for string in strings}
        found |= {f"{string}-{fit} before F": walker(string[:-1], fit, at) for string in asked()}
    return {where: {name: nodes[:n].to(torch.uint8) for name, nodes in found.items()}}
