"""The sentences that say what was found: every number is a verdict's, and nothing is said where nothing is known."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from loopscope.stats import Estimate
from loopscope.studies.claim import Claim
from loopscope.studies.claims import HOLDS, NOT_RUN, ROWS, Verdict
from loopscope.studies.report.sections import UNDECIDED, answer, finding

NOTHING = {claim.id: Verdict(claim, NOT_RUN) for claim in ROWS}


def measured(share: float) -> dict[str, Verdict]:
    estimate = Estimate(share, share, share, 9, "graph", 0)
    return {
        claim.id: Verdict(
            claim, HOLDS, f"ours of {claim.id}", estimate, told={each: f"<{each}>" for each in named(claim)}
        )
        for claim in ROWS
    }


def named(claim: Claim) -> set[str]:
    """The numbers in its sentence that its judge names."""
    return set(re.findall(r"\{(\w+)\}", claim.finding)) - {"share"}


SAYING = [claim for claim in ROWS if claim.finding]


def test_most_claims_that_are_shown_first_have_a_sentence() -> None:
    """Those of the sections on lasting control, selecting and failures are written by these themselves."""
    assert {claim.id.partition(".")[0] for claim in SAYING} == {
        *("native", "target", "compose", "pattern", "output", "matched", "continue"),
        *("parity", "kg", "letter", "antonym", "iterate"),
    }


@pytest.mark.parametrize("claim", SAYING, ids=lambda each: each.id)
def test_every_number_is_of_a_verdict(claim: Claim) -> None:
    said = finding([claim.id], measured(0.4321))
    assert ("{share}" in claim.finding) == ("43.2" in said)
    assert all(f"<{each}>" in said for each in named(claim))
    assert named(claim) or "{share}" in claim.finding
    assert said.endswith(".")
    assert said != finding([claim.id], {each: replace(v, told={}) for each, v in measured(0.9).items()})


def test_a_section_has_the_sentences_of_its_claims_or_their_texts() -> None:
    known = measured(0.5)
    both = finding(["target.one", "target.two"], known)
    assert both == f"{finding(['target.one'], known)} {finding(['target.two'], known)}"
    plain = known["select.native"]
    assert plain.claim.finding == ""
    assert finding(["select.native"], known) == f"{plain.claim.text}: {plain.ours}."
    assert finding(["target.one", "compose.order"], known) == finding(["target.one"], known)


def test_the_first_screen_says_what_came_out_with_the_numbers_of_verdicts() -> None:
    assert answer(measured(0.4321)).count("43.2 %") == sum(bool(claim.in_short) for claim in ROWS) > 2
    assert answer(NOTHING) == ""


def test_what_was_not_measured_is_said_to_be_undecided() -> None:
    assert {finding([claim.id], NOTHING) for claim in ROWS} == {UNDECIDED}
    assert finding([], NOTHING) == UNDECIDED


def test_a_sentence_without_its_number_is_left_out() -> None:
    known = measured(0.5)
    nan = replace(known["target.one"], estimate=Estimate(math.nan, math.nan, math.nan, 0, "graph", 0))
    claims = ["target.one", "target.two"]
    both, one = finding(claims, known), finding(claims, {**known, "target.one": nan})
    assert both.endswith(one)
    assert "J_one" in both
    assert "J_one" not in one
