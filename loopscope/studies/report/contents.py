"""What a report consists of: sections with figures and tables, the ledger of claims, the cost.

Values only; they are drawn by `figures` and written by `page`.  Text is plain: `&`, `<` and `>` may be written as they
are, words between backticks come out as code, and a term that is explained there stands between `[[` and `]]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from loopscope.errors import InputError, nearest
from loopscope.quantity import Quantity, QuantityTable
from loopscope.studies import records

HOLDS, FAILS, NOT_RUN = "holds", "does not hold", "not run"
VERDICTS = (HOLDS, FAILS, NOT_RUN)

NOW, STORED, BOTH = "recomputed now", "results/", "recomputed now and results/"
ORIGINS = (NOW, STORED, BOTH, "")
"""Where a number comes from: weights run just now, predictions stored in `results/`, some of each, or nowhere."""

MAIN, LEDGER, COST, READING, TERMS = "main", "ledger", "cost", "reading", "terms"
"""Anchors and pages that every report has."""


class Drawings(NamedTuple):
    """A figure as drawn: `svg` for a laptop's column, `narrow` for a phone, `pdf` as `svg` but in light colours.

    The first two take their colours from the page.
    """

    svg: str
    narrow: str
    pdf: bytes


@dataclass(frozen=True)
class Figure:
    """A drawing and its words; `description` says what the drawing shows, for readers who do not see it.

    It is drawn when it is first looked at.  Two figures are equal if their words are: `description` has every number.
    """

    name: str
    title: str
    caption: str
    description: str
    draw: Callable[[], Drawings] = field(compare=False, repr=False)

    @cached_property
    def drawings(self) -> Drawings:
        """What `draw` makes."""
        return self.draw()


@dataclass(frozen=True)
class Grid:
    """Several backbones side by side: a line for each, a column for each condition; not all need be there.

    `head` says what the lines are.
    """

    title: str
    columns: Sequence[str]
    lines: Mapping[str, Mapping[str, Quantity]]
    note: str = ""
    head: str = "backbone"


@dataclass(frozen=True)
class Listing:
    """Quantities that are no shares, as they are told: a line for each name, a column for each; some may be missing."""

    title: str
    columns: Sequence[str]
    lines: Mapping[str, Mapping[str, str]]
    note: str = ""
    head: str = "backbone"


Tabled = QuantityTable | Grid | Listing


@dataclass(frozen=True)
class Section:
    """One experiment: its question, what was done in a few paragraphs, what came out, and the claims it decides.

    - `finding` says the result in a sentence; the first page shows it with the first figure and the verdicts.
    - `more` are tables for the curious, which stand folded up at the end of the section's own page.
    """

    anchor: str
    title: str
    question: str
    text: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Tabled] = ()
    claims: Sequence[str] = ()
    more: Sequence[Tabled] = ()
    finding: str = ""


@dataclass(frozen=True)
class LedgerRow:
    """A claim of the paper, or a row of ours, and what became of it.

    `where` is the paper's section; `n` counts instances; `short` is the claim without its condition.
    `asides` stand beside the number: failed controls, remarks, what models gave that the verdict does not rest on.
    `failing` are the controls that failed alone, which stand wherever the row is told.
    `protocol` is the label of how it was measured, `changed` what it differs in, `numerics` what changes no label.
    A row that is not `counted` is no claim of the paper.
    """

    id: str
    where: str
    claim: str
    paper: str
    verdict: str
    ours: str = ""
    interval: str = ""
    n: int | None = None
    seeds: str = ""
    scale: str = ""
    origin: str = ""
    command: str = ""
    asides: Sequence[str] = ()
    protocol: str = ""
    changed: Sequence[str] = ()
    numerics: Sequence[str] = ()
    counted: bool = True
    short: str = ""
    failing: Sequence[str] = ()

    def __post_init__(self) -> None:
        """InputError for a verdict or an origin that does not exist."""
        for what, asked, known in (("verdict", self.verdict, VERDICTS), ("origin", self.origin, ORIGINS)):
            if asked not in known:
                choices = ", ".join(filter(None, known))
                raise InputError(f"no {what} {asked!r} (claim {self.id}): there are {choices}{nearest(asked, known)}")


@dataclass(frozen=True)
class Cost:
    """What one step took.  `forwards` are forward-equivalents of the model, `plain` those of one run per program."""

    step: str
    seconds: float
    device: str = ""
    forwards: int | float | None = None
    plain: int | float | None = None


@dataclass(frozen=True)
class Report:
    """All pages.  The first opens with the first paragraph of `lead`, `answer` and the figures of `opening`.

    It ends with the other paragraphs, which say how to read it, and with `terms` and what they mean.
    """

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    ledger: Sequence[LedgerRow] = ()
    costs: Sequence[Cost] = ()
    opening: Sequence[Figure] = ()
    terms: Mapping[str, str] = field(default_factory=dict)
    answer: str = ""

    @property
    def figures(self) -> list[Figure]:
        """Every figure, those of the opening first."""
        return [*self.opening, *(figure for section in self.sections for figure in section.figures)]

    def __post_init__(self) -> None:
        """InputError for names that are used twice or cannot be part of an address, and for unknown claims."""
        known = [row.id for row in self.ledger]
        _check_names("section", (MAIN, LEDGER, COST, READING, TERMS, *(section.anchor for section in self.sections)))
        _check_names("figure", (figure.name for figure in self.figures))
        _check_names("claim", known)
        for section in self.sections:
            for claim in section.claims:
                if claim not in known:
                    raise InputError(
                        f"section {section.anchor}: no claim {claim!r} in the ledger{nearest(claim, known)}"
                    )


def percent(share: float) -> str:
    """A share as it is printed everywhere: per cent with one decimal and a proper minus sign."""
    return records.percent(share).replace("-", "\N{MINUS SIGN}")


def _check_names(kind: str, names: Iterable[str]) -> None:
    """They become anchors and file names: letters, digits and . _ - only, and each once."""
    seen: set[str] = set()
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise InputError(f"{kind} {name!r}: a name has letters, digits and . _ - only, a letter or digit first")
        if name in seen:
            raise InputError(f"{kind} {name!r} is there twice; names must differ")
        seen.add(name)
