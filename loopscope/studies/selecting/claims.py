"""The row on selecting or creating, with the predicate that was fixed before the first such map was fitted."""

from __future__ import annotations

from loopscope.studies.claim import Claim
from loopscope.studies.graph_walk.experiments import SELECTING
from loopscope.studies.graph_walk.selecting import PREDICATE
from loopscope.studies.graph_walk.selecting_judge import select_native

CLAIMS: tuple[Claim, ...] = ()

OURS: tuple[Claim, ...] = (
    Claim(
        "select.native", "-", "J_k reaches its target for those k that the backbone's own loops show, not for others",
        "not asked", PREDICATE, SELECTING, select_native, kind="ours",
    ),
)  # fmt: skip
