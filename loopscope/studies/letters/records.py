"""Measuring the letter walk: which tests there are, and the records that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from loopscope.errors import InputError, nearest
from loopscope.log import Log, silent, under
from loopscope.measure.controls import Chosen
from loopscope.measure.heads import Heads, Selection
from loopscope.measure.searching import select
from loopscope.store.files import damaged
from loopscope.store.store import Store
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.language.records import SteeredModel, recorded
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
from loopscope.studies.letters.walks import GRAPHS, WALKS, measure_walks
from loopscope.studies.recording import Outcome
from loopscope.studies.records import Record
from loopscope.studies.schema import MisfitError
from loopscope.tasks.letters.pairs import SETS

LETTER_TESTS = (WALKS, *letter_tests.TESTS)
"""How far a letter walker goes, and the tests on pairs, for which heads are chosen."""


def selected_heads(trained: SteeredModel, store: Store, log: Log = silent) -> tuple[Record, Chosen | None]:
    """The record of the head selection, and the heads; None where the map does nothing that heads could carry."""

    def measure() -> Outcome:
        log("choosing heads")
        at = [letter_tests.discovery(trained.tokenizer, name) for name in (DISCOVERY, CONFIRMATION)]
        found = select(trained.model, trained.steering, *at[0], confirmation=at[1], log=under("choosing heads", log))
        tried = found.tried if found else ()
        counts = {
            "rescued": torch.tensor([each.rescued for each in tried], dtype=torch.int16),
            "damaged": torch.tensor([each.damaged for each in tried], dtype=torch.int16),
        }
        cost = {"forwards": found.forwards} if found else {}
        return Outcome({HEADS: counts}, {"selection": found and found.to_dict()}, cost)

    record = recorded(trained, store, LETTERS, {"set": DISCOVERY}, measure, letter_layout)
    found = selection_of(record)
    return record, None if found is None else Chosen.selected(found, trained.model)


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
    trained: SteeredModel,
    store: Store,
    *,
    tests: tuple[str, ...] = LETTER_TESTS,
    heads: Heads | None = None,
    count: int | None = None,
    batch: int = 16,
    log: Log = silent,
) -> list[Record]:
    """A record per test, and that of the head selection before those on pairs.

    If heads are given, none are selected, and these are patched at the last loop.  Without a selection, only runs
    without patches are recorded: the map did nothing that heads could carry.
    """
    check_letters(tests, count)
    on_pairs = [test for test in tests if test != WALKS]
    chosen = None if heads is None else Chosen.of(heads, trained.model, [trained.model.loops])
    made: list[Record] = []
    if WALKS in tests:
        made.append(_walks(trained, store, min(count or GRAPHS, GRAPHS), batch, log))
    if on_pairs and heads is None:
        record, chosen = selected_heads(trained, store, log)
        made.append(record)
    for test in on_pairs:
        settings: dict[str, Any] = {"set": test, "pairs": count or SETS[test].size, "heads": None}
        if chosen is not None:
            late = [*chosen.late.by_layer]
            settings |= {"heads": str(chosen.heads), "patched": [*chosen.loops], "late": late}
        measure = _on_pairs(trained, test, chosen, count, batch, log)
        made.append(recorded(trained, store, LETTERS, settings, measure, letter_layout))
    return made


def _walks(trained: SteeredModel, store: Store, count: int, batch: int, log: Log) -> Record:
    def measure() -> Outcome:
        found = measure_walks(
            trained.model, trained.tokenizer, trained.steering, count=count, batch=batch, log=under(WALKS, log)
        )
        return Outcome({WALKS: found})

    return recorded(trained, store, LETTERS, {"set": WALKS, "letters": count}, measure, letter_layout)


def _on_pairs(
    trained: SteeredModel, test: str, chosen: Chosen | None, count: int | None, batch: int, log: Log
) -> Callable[[], Outcome]:
    def measure() -> Outcome:
        found = letter_tests.measure(
            trained.model, trained.tokenizer, trained.steering, test, chosen, count=count, batch=batch, log=log
        )
        predictions = {test: found.first, f"{test}{WHOLE}": found.whole}
        if found.by_loop:
            predictions[f"{test}{BY_LOOP}"] = found.by_loop
        return Outcome(predictions, {"errors": found.errors}, {"forwards": found.forwards})

    return measure
