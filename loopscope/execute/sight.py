"""Which rows attention lets see which, as the plan needs it: how far a changed key reaches, what a query looks at."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from loopscope.pieces import LayerPieces

Rows = frozenset[int]
NONE: Rows = frozenset()


@runtime_checkable
class Sight(Protocol):
    """Who sees whom among the rows 0, 1, ..., `total` - 1 of an input."""

    def reached(self, keys: Rows, total: int) -> Rows:
        """Rows that see any of these."""
        ...

    def seen(self, queries: Rows) -> Rows:
        """Rows that any of these see."""
        ...


class Causal:
    """Every row sees itself and those before it."""

    def reached(self, keys: Rows, total: int) -> Rows:
        """Rows from the first of these on."""
        return _between(min(keys), total) if keys else NONE

    def seen(self, queries: Rows) -> Rows:
        """Rows up to the last of these."""
        return _between(0, max(queries) + 1) if queries else NONE


class Masked:
    """What a mask says, worked out once for an input's length; rows as the bits of whole numbers."""

    def __init__(self, visible: Bool[Tensor, "T T"]) -> None:
        self._sees, self._seen_by = _bits(visible), _bits(visible.T)

    def reached(self, keys: Rows, total: int) -> Rows:
        """Rows that see any of these."""
        return frozenset(_rows(self._seen_by, keys))

    def seen(self, queries: Rows) -> Rows:
        """Rows that any of these see."""
        return frozenset(_rows(self._sees, queries))


def sight_of(layer: LayerPieces, rows: int) -> Sight:
    """Who sees whom in a layer, on an input of so many rows."""
    if layer.causal:
        return Causal()
    every = torch.arange(rows)
    return Masked(layer.visible(every, every))


def closed_splits(layers: list[LayerPieces], rows: int) -> Bool[Tensor, " rows"] | None:
    """For how many leading rows none of them sees a row behind them, in any layer; None where that holds of all."""
    closed = None
    every = torch.arange(rows)
    for layer in layers:
        if not layer.causal:
            visible = layer.visible(every, every)
            last = torch.where(visible, every, -1).amax(1).cummax(0).values  # the last row that rows 0..r see
            mine = torch.cat([torch.tensor([True]), last[:-1] < every[1:]])
            closed = mine if closed is None else closed & mine
    return closed


@lru_cache(maxsize=1024)  # the same few sets for thousands of runs
def _between(first: int, end: int) -> Rows:
    return frozenset(range(first, end))


def _bits(visible: Bool[Tensor, "T T"]) -> list[int]:
    return [sum(1 << at for at, bit in enumerate(row) if bit) for row in visible.tolist()]


def _rows(bits: list[int], chosen: Rows) -> list[int]:
    union = 0
    for row in chosen:
        union |= bits[row]
    return [row for row in range(union.bit_length()) if union >> row & 1]
