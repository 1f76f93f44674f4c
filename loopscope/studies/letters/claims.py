"""The claims on the letter walk, each with the predicate that was fixed before our models were trained."""

from __future__ import annotations

from loopscope.studies.claim import Claim
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.letters import judges

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "letter.steer", "5", "eight-step letter-walk needs J", "0 -> 251/256", "<= 15 % without, >= 80 % with J",
        LETTERS, judges.steer,
        finding="Eight transfers are answered right in {share} % with J, in {without} % without it.",
    ),
    Claim(
        "letter.rescue", "5", "steered patterns suffice", "248/256", ">= 70 % of the steered score", LETTERS,
        judges.rescue,
        finding="Given only the attention patterns of a few heads of the run with J, the run without J is right in "
                "{share} %.",
    ),
    Claim(
        "letter.damage", "5", "unsteered patterns destroy", "0/256", "<= 20 %", LETTERS, judges.damage
    ),
    Claim(
        "letter.controls", "5", "values only, unrelated graph, wrong loop, comparison heads do nothing", "0/256 each",
        "each <= 20 %", LETTERS, judges.controls,
    ),
    Claim(
        "letter.content", "5", "pattern gives E, output gives D", "71.1 / 93.8", ">= 50 % and >= 70 %", LETTERS,
        judges.content,
    ),
    Claim(
        "letter.restore", "5", "selected heads repair", "249/249 vs 0", ">= 80 % vs <= 10 %", LETTERS,
        judges.restore,
    ),
)  # fmt: skip
