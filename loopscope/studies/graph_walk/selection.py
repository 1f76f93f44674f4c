"""Which backbones are taken apart: the mechanism backbones, chosen by how they walk natively."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from loopscope.studies.graph_walk import trajectories

Role = Literal["main", "mechanism", "other"]
"""What a backbone is to the experiments on the mechanism."""

MECHANISM = 3
"""Backbones on which the mechanism is tested: the first that qualify, in the order of seeds."""


@dataclass(frozen=True)
class Selection:
    """The mechanism backbones by the rule, the main one first; `threes` says that increments of 3 had to be allowed."""

    names: tuple[str, ...]
    threes: bool = False

    def role(self, name: str) -> Role:
        """What a backbone is to the mechanism experiments."""
        if name not in self.names:
            return "other"
        return "main" if name == self.names[0] else "mechanism"

    def first(self, count: int, names: Iterable[str]) -> list[str]:
        """So many backbones: the chosen ones, then the first others in the order given, trained here or not."""
        return [*self.names, *(name for name in names if name not in self.names)][:count]


def select(walks: Mapping[str, trajectories.Trajectory], complete: bool = True) -> Selection:
    """Choose the mechanism backbones among native trajectories, given in the order of seeds, before any map is fitted.

    One qualifies if its increments to loops 2..L contain 1 and 2 and nothing else but 0.  The first three are taken.
    If there are fewer although the cohort is complete, with its additional seeds, those are taken that qualify when 3
    is allowed, too.
    """
    strict = [name for name, walk in walks.items() if walk.walks_one_and_two]
    if len(strict) >= MECHANISM or not complete:
        return Selection(tuple(strict[:MECHANISM]))
    loose = [name for name, walk in walks.items() if walk.walks_within({0, 1, 2, 3})]
    return Selection(tuple(loose[:MECHANISM]), threes=loose != strict)
