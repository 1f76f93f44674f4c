"""The tables of a record of a language model, whichever study it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loopscope.quantity import Table
from loopscope.studies.antonyms.tables import antonym_tables
from loopscope.studies.iterations.tables import iteration_tables
from loopscope.studies.language.layouts import ANTONYMS, ITERATIONS, LETTERS
from loopscope.studies.letters.tables import letter_tables
from loopscope.studies.records import Record

_TABLES: Mapping[str, Callable[[Record], list[Table]]] = {
    LETTERS: letter_tables,
    ANTONYMS: antonym_tables,
    ITERATIONS: iteration_tables,
}


def tables(record: Record) -> list[Table]:
    """The tables of a record of a language model, the published numbers beside ours."""
    return _TABLES[record.experiment](record)
