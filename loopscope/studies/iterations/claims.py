"""The claims on iterated functions, each with the predicate that was fixed before our models were trained."""

from __future__ import annotations

from loopscope.studies.claim import Claim
from loopscope.studies.iterations import judges
from loopscope.studies.language.layouts import ITERATIONS

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "iterate.continue", "H", "continuing with J and F, five task families", "89.69 vs 28.59 (F only)",
        "long requests: J+F at least 30 points above F only, and above J only and stop",
        ITERATIONS, judges.continued("train"),
    ),
)  # fmt: skip

OURS: tuple[Claim, ...] = (
    Claim(
        "iterate.strict", "H", "the same from starts that neither the backbone nor the map has seen",
        "no starts held out", "as iterate.continue", ITERATIONS, judges.continued("test"), kind="ours",
    ),
)  # fmt: skip
