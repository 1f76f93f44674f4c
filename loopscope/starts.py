"""What a program starts from, besides tokens: a state that the model draws, zeros, or a state that is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from loopscope import bounds


@dataclass(frozen=True)
class Seed:
    """Start: the state that the model draws with this seed."""

    number: int

    def __post_init__(self) -> None:
        bounds.whole("the seed of a start", self.number, 0, bounds.POSITIONS)

    def __str__(self) -> str:
        return f"seed:{self.number}"


@dataclass(frozen=True)
class Zeros:
    """Start: a state of zeros."""

    def __str__(self) -> str:
        return "zeros"


Start: TypeAlias = int | Seed | Zeros | None
"""None: as the model starts from tokens; t: a given state that is called h_t."""
