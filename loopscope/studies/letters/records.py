"""Measuring the letter walk: which tests there are, and the records that they make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from loopscope.errors import InputError, nearest
from loopscope.measure.heads import Heads, Selection, select
from loopscope.measure.replies import Log, under
from loopscope.store.files import damaged
from loopscope.store.store import Store
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.language.records import LanguageSubject, Measure, recorded
from loopscope.studies.letters import tests as letter_tests
from loopscope.studies.letters.layouts import (
    BY_LOOP,
    CONFIRMATION,
    DISCOVERY,
    HEADS,
    WHOLE,
    letter_layout,
    selection_in,
)
from loopscope.studies.letters.tests import Chosen
from loopscope.studies.letters.walks import LETTERS as WALKED
from loopscope.studies.letters.walks import WALKS, measure_walks
from loopscope.studies.records import Predictions, Record
from loopscope.studies.schema import MisfitError
from loopscope.tasks.letters.pairs import SETS

LETTER_TESTS = (WALKS, *letter_tests.TESTS)
"""How far a letter walker goes, and the tests on pairs, for which heads are chosen."""


def selected_heads(subject: LanguageSubject, store: Store, log: Log = lambda _: None) -> tuple[Record, Chosen | None]:
    """The record of the head selection, and the heads; None where the map does nothing that heads could carry."""

    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        log("choosing heads")
        at = [letter_tests.discovery(subject.tokenizer, name) for name in (DISCOVERY, CONFIRMATION)]
        found = select(subject.model, subject.steering, *at[0], confirmation=at[1], log=under("choosing heads", log))
        tried = found.tried if found else ()
        counts = {
            "rescued": torch.tensor([each.rescued for each in tried], dtype=torch.int16),
            "damaged": torch.tensor([each.damaged for each in tried], dtype=torch.int16),
        }
        return {HEADS: counts}, {"selection": found and found.to_dict()}, found.forwards if found else None

    record = recorded(subject, store, LETTERS, {"set": DISCOVERY}, measure, letter_layout)
    found = selection_of(record)
    return record, None if found is None else Chosen.selected(found, subject.model)


def selection_of(record: Record) -> Selection | None:
    """The selection in its record; DamagedError where there is none."""
    try:
        return selection_in(record.notes)
    except MisfitError as error:
        raise damaged(f"record of {record.facts.name}", error.expected, error.found) from None


def check_letters(tests: Iterable[str], count: int | None) -> None:
    """InputError for a test of letters that there is not, or a number of pairs that one does not take."""
    for test in tests:
        if test not in LETTER_TESTS:
            raise InputError(f"no test {test!r}; there are {', '.join(LETTER_TESTS)}{nearest(test, LETTER_TESTS)}")
        letter_tests.first_pairs(letter_tests.STEERING if test == WALKS else test, count)


def measure_letters(
    subject: LanguageSubject,
    store: Store,
    *,
    tests: tuple[str, ...] = LETTER_TESTS,
    heads: Heads | None = None,
    count: int | None = None,
    batch: int = 16,
    log: Log = lambda _: None,
) -> list[Record]:
    """A record per test, and that of the head selection before those on pairs.

    If heads are given, none are selected, and these are patched at the last loop.  Without a selection, only runs
    without patches are recorded: the map did nothing that heads could carry.
    """
    check_letters(tests, count)
    on_pairs = [test for test in tests if test != WALKS]
    chosen = None if heads is None else Chosen.of(heads, subject.model, [subject.model.loops])
    made: list[Record] = []
    if WALKS in tests:
        made.append(_walks(subject, store, min(count or WALKED, WALKED), batch, log))
    if on_pairs and heads is None:
        record, chosen = selected_heads(subject, store, log)
        made.append(record)
    for test in on_pairs:
        settings: dict[str, Any] = {"set": test, "pairs": count or SETS[test].size, "heads": None}
        if chosen is not None:
            late = [*chosen.late.by_layer]
            settings |= {"heads": str(chosen.heads), "patched": [*chosen.loops], "late": late}
        measure = _on_pairs(subject, test, chosen, count, batch, log)
        made.append(recorded(subject, store, LETTERS, settings, measure, letter_layout))
    return made


def _walks(subject: LanguageSubject, store: Store, count: int, batch: int, log: Log) -> Record:
    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        found = measure_walks(
            subject.model, subject.tokenizer, subject.steering, count=count, batch=batch, log=under(WALKS, log)
        )
        return {WALKS: found}, {}, None

    return recorded(subject, store, LETTERS, {"set": WALKS, "letters": count}, measure, letter_layout)


def _on_pairs(
    subject: LanguageSubject, test: str, chosen: Chosen | None, count: int | None, batch: int, log: Log
) -> Measure:
    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        found = letter_tests.measure(
            subject.model, subject.tokenizer, subject.steering, test, chosen, count=count, batch=batch, log=log
        )
        predictions = {test: found.first, f"{test}{WHOLE}": found.whole}
        if found.by_loop:
            predictions[f"{test}{BY_LOOP}"] = found.by_loop
        return predictions, {"errors": found.errors}, found.forwards

    return measure
