"""The rule that chooses the mechanism backbones: by how they walk natively."""

from __future__ import annotations

from collections.abc import Mapping

from loopscope.studies.graph_walk import trajectories
from loopscope.studies.selection import MECHANISM, Selection


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
