"""The sentences that say what was found: every number is a verdict's, and nothing is said where nothing is known."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from loopscope.stats import Estimate
from loopscope.studies.claims import HOLDS, NOT_RUN, ROWS, Verdict
from loopscope.studies.report.findings import SENTENCES, UNDECIDED, finding
from loopscope.studies.report.sections import SECTIONS

NOTHING = {claim.id: Verdict(claim, NOT_RUN) for claim in ROWS}


def measured(share: float) -> dict[str, Verdict]:
    estimate = Estimate(share, share, share, 9, "graph", 0)
    return {claim.id: Verdict(claim, HOLDS, f"ours of {claim.id}", estimate) for claim in ROWS}


def test_sentences_are_of_sections_and_of_rows_of_the_ledger() -> None:
    assert set(SECTIONS) - set(SENTENCES) == {"lasting", "selecting"}  # which say it themselves
    assert set(SENTENCES) <= set(SECTIONS)
    assert {row for rows in SENTENCES.values() for row in rows} <= {claim.id for claim in ROWS}


@pytest.mark.parametrize("section", SENTENCES)
def test_every_number_is_of_a_verdict(section: str) -> None:
    said = finding(section, measured(0.4321))
    for row, sentence in SENTENCES[section].items():
        fields = set(re.findall(r"\{(\w+)\}", sentence))
        assert fields
        assert fields <= {"share", "ours"}
        assert ("share" in fields) <= ("43.2" in said)
        assert ("ours" in fields) <= (f"ours of {row}" in said)
    assert said.endswith(".")
    assert said != finding(section, {each: replace(v, ours="") for each, v in measured(0.9).items()})


@pytest.mark.parametrize("section", SECTIONS)
def test_what_was_not_measured_is_said_to_be_undecided(section: str) -> None:
    assert finding(section, NOTHING) == UNDECIDED


def test_a_sentence_without_its_number_is_left_out() -> None:
    known = measured(0.5)
    nan = replace(known["target.one"], estimate=Estimate(math.nan, math.nan, math.nan, 0, "graph", 0))
    both, one = finding("targets", known), finding("targets", {**known, "target.one": nan})
    assert both.endswith(one)
    assert "J_one" in both
    assert "J_one" not in one
