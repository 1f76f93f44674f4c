"""Quantities: numbers that were measured, as values with ids.

    one(quantities, "letters.steering", condition="rescue").estimate.value

What a number is, is its `id` and its coordinates `at`; its label is for people, and no code reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from loopscope.bounds import line
from loopscope.errors import InputError, nearest
from loopscope.stats import Estimate

Coordinate = str | int
At = Mapping[str, Coordinate]
ID = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")


@dataclass(frozen=True)
class Quantity:
    """One number with its interval: mostly a share, or a difference of shares, of `n` instances.

    - `id`: what is measured, the same for every model: lower-case words with dots, "letters.steering".
    - `at`: where in that measurement: `{"condition": "rescue", "loop": 3}`.
    - `label`: the name of its row, for people.
    - `published`: what the paper has there.
    """

    id: str
    label: str
    estimate: Estimate
    n: int
    published: float | None = None
    at: At = field(default_factory=dict)

    def __post_init__(self) -> None:
        """InputError for an id of other characters."""
        if not ID.fullmatch(self.id):
            raise InputError(f"{self.id!r} is no id of a quantity: lower-case words with dots, as in letters.steering")

    def fits(self, id: str, at: At) -> bool:
        """Whether it has this id and all of these coordinates."""
        return self.id == id and at.items() <= self.at.items()


@dataclass(frozen=True, repr=False)
class QuantityTable:
    """Quantities that are shown together; `note` says what was counted and what was resampled."""

    id: str
    title: str
    rows: list[Quantity]
    note: str = ""

    def __repr__(self) -> str:
        return f"<{self.id}: {len(self.rows):,} quantities; {line(self.title)}>"

    def under(self, name: str) -> QuantityTable:
        """The same, with the name of a model before its title."""
        return replace(self, title=f"{name}: {self.title}")


def of_tables(tables: Iterable[QuantityTable]) -> Iterator[Quantity]:
    """All quantities of these tables."""
    return (row for table in tables for row in table.rows)


def every(quantities: Iterable[Quantity], id: str, **at: Coordinate) -> list[Quantity]:
    """The quantities of this id with these coordinates, in order; none is no error."""
    return [each for each in quantities if each.fits(id, at)]


def one(quantities: Iterable[Quantity], id: str, **at: Coordinate) -> Quantity:
    """The only quantity of this id with these coordinates; InputError where there is none, or more than one."""
    there = list(quantities)
    found = every(there, id, **at)
    if len(found) == 1:
        return found[0]
    asked = " ".join([id, *(f"{name}={value}" for name, value in at.items())])
    if found:
        raise InputError(f"{len(found)} quantities are {asked}; say more of where")
    ids = sorted({each.id for each in there})
    raise InputError(f"no quantity {asked} among {len(there)} of {', '.join(ids) or 'none'}{nearest(id, ids)}")
