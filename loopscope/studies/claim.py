"""What a claim is: a sentence of the paper and the predicate that decides it here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loopscope.studies.evidence import Judge


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what it published, and the predicate that decides it here; or a row of ours."""

    id: str
    where: str
    text: str
    paper: str
    holds_if: str
    experiment: str = ""
    judge: Judge | None = None
    kind: Literal["paper", "ours"] = "paper"
    finding: str = ""
    """What the report's first page says of it, with `{share}`, the number that the verdict rests on, and others that
    its judge names (`Finding.told`); nothing is said where one is missing.  The words claim nothing, so they stay true
    whatever the numbers are."""
    in_short: str = ""
    """The same for the first screen, of a few claims."""
