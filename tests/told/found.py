"""Quantities of records as the fields of sentences name them: by their coordinates."""

from __future__ import annotations

from collections.abc import Iterable

from loopscope.quantity import Coordinate, every
from loopscope.studies.evidence import Evidence
from loopscope.studies.records import Record
from tests.told.sentences import Said


class Found(dict[Coordinate, Said]):
    """The quantities of one id by some of their coordinates: `{content[pattern E].p}`, `{ahead[3].p}`."""

    @classmethod
    def of(cls, evidence: Evidence, record: Record, id: str, *names: str, **at: Coordinate) -> Found:
        """Those of a record at some place; `names` are the coordinates that tell them apart."""
        there = every(evidence.quantities(record), id, **at)
        made = cls({_key(each.at[name] for name in names): Said(each) for each in there})
        assert len(made) == len(there), (id, names)
        return made

    def value(self, *where: Coordinate) -> float:
        """The share itself."""
        return self[_key(where)].row.estimate.value


def _key(where: Iterable[Coordinate]) -> Coordinate:
    """As `str.format` reads what stands in brackets: a single number is one, all else is text."""
    parts = list(where)
    return parts[0] if len(parts) == 1 else " ".join(map(str, parts))
