"""The claims on chains of relations, each with the predicate that was fixed before our models were trained."""

from __future__ import annotations

from loopscope.studies.claim import Claim
from loopscope.studies.relations import judges
from loopscope.studies.relations.experiments import CHAINS

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "kg.inside", "H", "relation composition at 4-16", "2.53 -> 99.92", "<= 10 % without, >= 95 % with J", CHAINS,
        judges.chains_inside,
    ),
    Claim(
        "kg.beyond", "H", "declines beyond the map range", "42.87 (17-24), 1.65 (25-32)",
        "17-24 below 4-16, and 25-32 <= 10 %", CHAINS, judges.chains_beyond,
    ),
)  # fmt: skip
