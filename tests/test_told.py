"""What README, ledger and findings say is what the records say: the ledger word for word, sentences number by number.

Sentences stand in `tests.told`, with quantities of the records where the pages have numbers.  A decimal number of a
page that neither a sentence covers nor `ELSEWHERE` names is an error, so no number can be written that nothing checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from loopscope.studies.claims import CLAIMS, decide
from loopscope.studies.evidence import Evidence
from loopscope.studies.lineage import lineage
from loopscope.studies.records import open_results, records
from loopscope.studies.report.ledger import markdown
from tests.told import depths, letters, readme, replies, walks
from tests.told.elsewhere import ELSEWHERE
from tests.told.sentences import DECIMAL, FIELD, FINDINGS, LEDGER, README, ROOT, Known, Section, page, pattern

SECTIONS: tuple[Section, ...] = tuple(
    section for module in (walks, letters, replies, depths, readme) for section in module.SECTIONS
)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """All records of the checkout."""
    stores = open_results()
    return Evidence([record for store in stores for record in records(store)], (), lineage(stores))


CASES = [
    pytest.param(each, id=f"{each.page.partition('.')[0]}: {each.name}", marks=[pytest.mark.slow] * each.slow)
    for each in SECTIONS
]


def ledger() -> str:
    """What stands on the ledger's page in the place of what the command prints."""
    (there,) = re.findall(
        r"<!-- ledger -->\n(.*?)<!-- end of ledger -->", (ROOT / LEDGER).read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return str(there).strip()


@pytest.mark.slow
def test_the_ledger_is_what_the_command_prints(evidence: Evidence) -> None:
    assert ledger() == markdown(decide(evidence)).strip(), "paste what `loopscope claims --markdown` prints"


def test_the_readme_has_the_tally_of_the_ledger() -> None:
    tally = ledger().partition("\n")[0]
    assert tally.startswith(f"{len(CLAIMS)} claims: ")
    assert f"\n{tally}\n" in (ROOT / README).read_text(encoding="utf-8")


@pytest.mark.parametrize("section", CASES)
def test_sentences_say_what_the_records_say(section: Section, evidence: Evidence) -> None:
    wrong = differences(section, section.known(evidence), page(section.page))
    assert not wrong, f"{section.page}, {section.name}:{''.join(wrong)}"


def differences(section: Section, known: Known, text: str) -> list[str]:
    """What a page says otherwise than the records do, or not at all, or more than once."""
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
    return wrong


def test_sentences_have_no_numbers_of_their_own() -> None:
    """Or such a number would be compared with itself."""
    every = [each for section in SECTIONS for each in (*section.sentences, *section.facts)]
    assert len(every) > 150
    assert not [each for each in every if DECIMAL.search(FIELD.sub("", each))]
    assert not [each for section in SECTIONS for each in section.facts if FIELD.search(each)]


@pytest.mark.parametrize("name", [README, LEDGER, FINDINGS])
def test_every_decimal_number_is_compared_or_comes_from_elsewhere(name: str) -> None:
    text = page(name)
    patterns = [each for section in SECTIONS if section.page == name for each in section.patterns]
    fragments = [fragment for where, fragment, _ in ELSEWHERE if where == name]
    assert not [each for each in fragments if each not in text], "fragments that the page no longer has"
    assert not uncovered(text, patterns, fragments), "numbers that no sentence and no entry of ELSEWHERE covers"


def uncovered(text: str, patterns: Iterable[re.Pattern[str]], fragments: Iterable[str]) -> list[str]:
    """The decimal numbers of a page outside of sentences and fragments, with what is around them."""
    every = [*patterns, *(re.compile(re.escape(each)) for each in fragments)]
    spans = [found.span() for each in every for found in each.finditer(text)]
    return [
        text[max(0, number.start() - 60) : number.end() + 30]
        for number in DECIMAL.finditer(text)
        if not any(first <= number.start() and number.end() <= last for first, last in spans)
    ]


def test_an_edited_or_added_number_is_found(evidence: Evidence) -> None:
    """Every field of a section, and a sentence that nobody knows."""
    section, text = walks.NATIVE, page(FINDINGS)
    known = section.known(evidence)
    assert not differences(section, known, text)
    for number in ("(98.7 %)", "(5.7 and", "3.8 % in", "(20.0 %", "at most 44 %"):
        assert text.count(number) == 1
        other = re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), number)
        assert len(differences(section, known, text.replace(number, other))) == 1
    fragments = [fragment for where, fragment, _ in ELSEWHERE if where == FINDINGS]
    patterns = [each for every in SECTIONS if every.page == FINDINGS for each in every.patterns]
    before, after = (uncovered(each, patterns, fragments) for each in (text, f"{text} It is right in 12.3 %."))
    assert after[:-1] == before
    assert "12.3" in after[-1]
