"""What README and findings say is what the records say: the ledger word for word, sentences number by number.

Sentences stand in `tests.told`, with quantities of the records where the pages have numbers.  A decimal number of a
page that neither a sentence covers nor `ELSEWHERE` names is an error, so no number can be written that nothing checks.
"""

from __future__ import annotations

import re

import pytest

from loopscope.experiments.claims import decide
from loopscope.experiments.evidence import Evidence
from loopscope.experiments.lineage import lineage
from loopscope.experiments.records import open_results, records
from loopscope.report.ledger import markdown
from tests.told import letters, walks
from tests.told.sentences import DECIMAL, FIELD, README, ROOT, Section, page, pattern

SECTIONS: tuple[Section, ...] = (*walks.SECTIONS, *letters.SECTIONS)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """All records of the checkout."""
    stores = open_results()
    return Evidence([record for store in stores for record in records(store)], (), lineage(stores))


CASES = [
    pytest.param(each, id=f"{each.page.partition('.')[0]}: {each.name}", marks=[pytest.mark.slow] * each.slow)
    for each in SECTIONS
]


@pytest.mark.parametrize("section", CASES)
def test_sentences_say_what_the_records_say(section: Section, evidence: Evidence) -> None:
    known, text = section.known(evidence), page(section.page)
    wrong = []
    for sentence in section.sentences:
        said, there = " ".join(sentence.format_map(known).split()), pattern(sentence).findall(text)
        if there != [said]:
            wrong.append(f"\n  records: {said}\n  page:    {there or 'no such sentence'}")
    for sentence, holds in section.facts.items():
        if " ".join(sentence.split()) not in text:
            wrong.append(f"\n  page:    no such sentence as {sentence!r}")
        elif not holds(known):
            wrong.append(f"\n  records: it is not so that {sentence!r}")
    assert not wrong, (
        f"{section.page}, {section.name}: {len(wrong)} sentences are not as the records say{''.join(wrong)}"
    )
