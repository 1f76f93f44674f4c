"""The row on selecting or creating, with the predicate that was fixed before the first such map was fitted."""

from __future__ import annotations

from loopscope.studies.claim import Claim
from loopscope.studies.selecting.experiments import SELECTING
from loopscope.studies.selecting.hops import PREDICATE
from loopscope.studies.selecting.judges import select_native

CLAIMS: tuple[Claim, ...] = ()

OURS: tuple[Claim, ...] = (
    Claim(
        "select.native", "-", "J_k reaches its target for those k that the backbone's own loops show, not for others",
        "not asked", PREDICATE, SELECTING, select_native, kind="ours",
    ),
)  # fmt: skip
