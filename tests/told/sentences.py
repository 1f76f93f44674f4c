"""Sentences with quantities of records in place of their numbers, and how they are found in a page.

A sentence is written as `str.format` takes it: `{steering[rescue].p} % {steering[rescue].i}` is the share of a row of a
record's table, in per cent, and its interval.  No number with a decimal point stands in one by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from loopscope.quantity import Coordinate, Quantity, every
from loopscope.studies.evidence import Evidence
from loopscope.studies.records import AnyRow, Record, Table, percent

ROOT = Path(__file__).parent.parent.parent
README, FINDINGS = "README.md", "docs/findings.md"
LEDGER, PERFORMANCE = "docs/ledger.md", "docs/performance.md"

NUMBER = r"[-+]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e-\d+)?"
HEAD = r"\d+\.\d+(?:,\d+)*"
SAID = rf"(?:\[{NUMBER}, {NUMBER}\]|{NUMBER}|{HEAD}(?: {HEAD})*)"
"""What a field may stand for: an interval, a number, or heads such as 1.3 3.0 4.1,2."""

FIELD = re.compile(r"\{[^{}]*\}")
DECIMAL = re.compile(r"\d+\.\d")

Known = Mapping[str, Any]
"""What the fields of a section's sentences name."""


def page(name: str) -> str:
    """A page as one line, without the ledger: white space is a single space."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return " ".join(re.sub(r"<!-- ledger -->.*<!-- end of ledger -->", " ", text, flags=re.DOTALL).split())


def pattern(sentence: str) -> re.Pattern[str]:
    """What a sentence looks like with any numbers in its fields."""
    literal = FIELD.split(" ".join(sentence.split()))
    return re.compile(SAID.join(map(re.escape, literal)))


@dataclass(frozen=True)
class Said:
    """A quantity as pages tell it."""

    row: AnyRow

    @property
    def p(self) -> str:
        """Per cent, with one decimal."""
        return percent(self.row.estimate.value)

    @property
    def whole(self) -> str:
        """Per cent, without decimals."""
        return f"{100 * self.row.estimate.value:.0f}"

    @property
    def i(self) -> str:
        """The interval."""
        return f"[{percent(self.row.estimate.low)}, {percent(self.row.estimate.high)}]"

    @property
    def k(self) -> str:
        """How many of n."""
        return f"{round(self.row.estimate.value * self.row.n):,}"

    @property
    def n(self) -> str:
        """Of how many."""
        return f"{self.row.n:,}"

    @property
    def paper(self) -> str:
        """The published share, in per cent."""
        assert self.row.paper is not None, self.row.name
        return percent(self.row.paper)

    @property
    def paper_k(self) -> str:
        """The published count."""
        assert self.row.paper is not None, self.row.name
        return f"{round(self.row.paper * self.row.n):,}"


class Rows(dict[str, Said]):
    """Quantities by their coordinates, or rows of tables by name."""

    @classmethod
    def at(cls, quantities: Iterable[Quantity], id: str, *names: str, **at: Coordinate) -> Rows:
        """Those of an id with these coordinates, by their coordinates of these names: "one" or "one, f(u)"."""
        found = every(quantities, id, **at)
        named = cls({", ".join(str(each.at[name]) for name in names): Said(each) for each in found})
        assert len(named) == len(found) > 0, (id, names, at)
        return named

    @classmethod
    def of(cls, tables: Iterable[Table], title: str = "") -> Rows:
        """Those of all tables whose titles begin so."""
        return cls({row.name: Said(row) for table in tables if table.title.startswith(title) for row in table.rows})

    @classmethod
    def in_record(cls, evidence: Evidence, record: Record, title: str = "") -> Rows:
        """Those of a record."""
        return cls.of(evidence.tables(record), title)

    def value(self, name: str) -> float:
        """The share itself."""
        return self[name].row.estimate.value


@dataclass(frozen=True)
class Section:
    """A part of a page: what its fields name, its sentences, and sentences without fields beside what must hold."""

    page: str
    name: str
    known: Callable[[Evidence], Known]
    sentences: Sequence[str]
    facts: Mapping[str, Callable[[Known], bool]] = field(default_factory=dict)
    slow: bool = False

    @cached_property
    def patterns(self) -> list[re.Pattern[str]]:
        """What its sentences look like."""
        return [pattern(each) for each in (*self.sentences, *self.facts)]


def table_row(*cells: str) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")
