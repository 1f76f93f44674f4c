"""Which layers of a pretrained model are looped: "11-20", counted from 1 as in addresses, or "7" for one alone."""

from __future__ import annotations

import re
from typing import NamedTuple

from loopscope.bounds import LAYERS, shown
from loopscope.errors import InputError


class LoopLayers(NamedTuple):
    """The first and the last layer of the loop: those before are the prelude, those after the coda."""

    first: int
    last: int

    def __str__(self) -> str:
        """As `parse` takes it."""
        return f"{self.first}-{self.last}" if self.last > self.first else str(self.first)

    @classmethod
    def parse(cls, text: object) -> LoopLayers:
        """Layers written as "11-20" or "7"; InputError for anything else."""
        found = re.fullmatch(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?", text) if isinstance(text, str) else None
        if found is None:
            raise InputError(f'a loop is some layers of a model, such as "11-20" or "7", not {shown(text)}')
        first, last = int(found[1]), int(found[2] or found[1])
        if first > last:
            raise InputError(f"loop {text} goes backwards (nearest: {last}-{first})")
        return cls(first, last)

    def of(self, layers: int) -> LoopLayers | None:
        """The same if a model of so many layers has them, None if they are all of them; InputError where it has not."""
        if self.last > min(layers, LAYERS):
            near = LoopLayers(min(self.first, layers), layers)
            raise InputError(f"loop {self} does not exist: the model has {layers} layers (nearest: {near})")
        return None if self == (1, layers) else self
