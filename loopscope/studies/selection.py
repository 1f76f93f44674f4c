"""Which backbones are taken apart, and what each is to experiments on the mechanism.

The rule that chooses them is of one study, which has it as `experiments.selection`; `registry.selection` finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Role = Literal["main", "mechanism", "other"]
"""What a backbone is to the experiments on the mechanism."""

MECHANISM = 3
"""Backbones on which the mechanism is tested: the first that qualify, in the order of seeds."""


@dataclass(frozen=True)
class Selection:
    """The mechanism backbones by the rule, the main one first; `threes` says that increments of 3 had to be allowed."""

    names: tuple[str, ...]
    threes: bool = False

    def role(self, name: str) -> Role:
        """What a backbone is to the mechanism experiments."""
        if name not in self.names:
            return "other"
        return "main" if name == self.names[0] else "mechanism"

    def first(self, count: int, names: Iterable[str]) -> list[str]:
        """So many backbones: the chosen ones, then the first others in the order given, trained here or not."""
        return [*self.names, *(name for name in names if name not in self.names)][:count]
