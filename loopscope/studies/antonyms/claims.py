"""The claims on cancelling antonyms, each with the predicate that was fixed before our models were trained."""

from __future__ import annotations

from loopscope.studies.antonyms import judges
from loopscope.studies.claim import Claim
from loopscope.studies.language.layouts import ANTONYMS

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "antonym.native", "6", "stepwise: one deletion per loop; final-only: answers by loop 3", "64/64; 255/256",
        ">= 90 % each", ANTONYMS, judges.native,
    ),
    Claim(
        "antonym.steer", "6", "with J at depths 5-8", "98.0 vs 7.8", "final-only >= 70 %, stepwise <= 30 %",
        ANTONYMS, judges.steer,
    ),
)  # fmt: skip
