"""The records of language models that come with a checkout: each is whole, has its key, and says what it said."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from loopscope.store.manifest import artefact_key, digest
from loopscope.store.store import Artefact, Store
from loopscope.studies.antonyms.claims import native
from loopscope.studies.evidence import Evidence
from loopscope.studies.language.names import identity
from loopscope.studies.reading import EVERY_LAYOUT
from loopscope.studies.records import RECORD, config_of, load, open_results
from loopscope.studies.registry import LANGUAGE

NUMBERS = "98b29310572a592e49e88bef114326eafcaac7fdfb40990e4d0d5039988d2e47"
"""Of every share in every table of every record: right answers, of how many, under which name."""


@pytest.fixture(scope="module")
def results() -> Store:
    return next(store for store in open_results() if store.root.name == "language-models")


@pytest.fixture(scope="module")
def there(results: Store) -> tuple[Artefact, ...]:
    return results.every(RECORD)


def test_every_record_is_whole_and_has_its_key(there: tuple[Artefact, ...]) -> None:
    assert Counter(each.manifest.config["experiment"] for each in there) == {
        "letters": 22,
        "antonyms": 10,
        "iterations": 2,
    }
    for each in there:
        each.verify()
        record = load(each, EVERY_LAYOUT[each.manifest.config["experiment"]])
        config = config_of(record.experiment, record.facts.name, record.settings)
        assert artefact_key(RECORD, config, dict(each.manifest.inputs)) == each.key
        assert each.manifest.inputs["weights"] == record.facts.key
        assert each.manifest.inputs["map"] == record.notes["map"]["key"]


def test_no_two_records_answer_the_same_question(there: tuple[Artefact, ...]) -> None:
    asked = Counter(
        (*identity(record), record.experiment, str(sorted(record.settings.items()))) for record in map(load, there)
    )
    assert max(asked.values()) == 1


def test_their_numbers_are_those_that_were_published(there: tuple[Artefact, ...]) -> None:
    """The whole answers that every table counts, not their intervals: those are of `stats`."""
    told = {
        each.key: [
            [table.title, [[row.label, round(row.estimate.value * row.n), row.n] for row in table.rows if row.n]]
            for table in LANGUAGE[each.experiment].tables(each)
        ]
        for each in map(load, there)
    }
    assert sum(len(rows) for found in told.values() for _, rows in found) > 2500
    assert digest(told) == NUMBERS


def test_a_model_of_few_loops_decides_nothing_on_native_readouts(there: tuple[Artefact, ...]) -> None:
    """There is no reply after a loop that was not made."""
    found = load(next(each for each in there if each.manifest.config["experiment"] == "antonyms"))
    finding = native(Evidence([replace(found, facts=replace(found.facts, loops=2))]))
    assert finding is not None
    assert (finding.holds, finding.ours) == (None, "fewer than 4 loops were made")
