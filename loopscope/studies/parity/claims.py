"""The claims on parity, each with the predicate that was fixed before our models were trained."""

from __future__ import annotations

from loopscope.studies.claim import Claim
from loopscope.studies.parity import judges
from loopscope.studies.parity.experiments import PARITY

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "parity.gain", "A", "J improves lengths 101-500", "3 of 3 seeds", "at least 2 of 3", PARITY,
        judges.parity_gain,
    ),
    Claim(
        "parity.limit", "A", "the gain does not last beyond 500", "47.55 vs 36.40",
        "J not above native over 505-1000 for the seed with the largest gain", PARITY, judges.parity_limit,
    ),
)  # fmt: skip
