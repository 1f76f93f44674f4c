"""Where rows are in a block: found at planning time, and on a device from the first use on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor


@lru_cache(maxsize=4096)
def indices(numbers: tuple[int, ...], device: torch.device) -> Int[Tensor, " numbers"]:
    """Whole numbers on a device, where the same stay, as a GPU waits for everything that is brought there."""
    with torch.inference_mode(False):  # those who ask later may want gradients
        return torch.tensor(numbers, dtype=torch.long, device=device)


@dataclass(eq=False, slots=True)
class Places:
    """Whole numbers that stay the same from chunk to chunk; they go to a device once."""

    numbers: Sequence[int]
    _tensor: Int[Tensor, " places"] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def on(self, device: torch.device) -> Int[Tensor, " places"]:
        """The numbers as a tensor."""
        if self._tensor is None or self._tensor.device != device:
            self._tensor = indices(tuple(self.numbers), device)
        return self._tensor


@dataclass(eq=False, slots=True)
class Picked:
    """Some rows of a block: their places in it, None for all of them, and their numbers in the input."""

    places: Places | None
    rows: Places
    _first: int | None = field(default=None)

    @classmethod
    def of(cls, places: Sequence[int], rows: Sequence[int], held: int) -> Picked:
        """Rows at these places of a block that holds so many."""
        count, first = len(places), places[0] if places else 0
        adjacent = isinstance(places, range) or list(places) == list(range(first, first + count))
        if adjacent and count == held:
            return cls(None, Places(rows))
        return cls(Places(places), Places(rows), first if adjacent else None)

    @classmethod
    def among(cls, rows: Sequence[int], held: Sequence[int]) -> Picked:
        """These rows of a block that holds some."""
        at = {row: place for place, row in enumerate(held)}
        return cls.of([at[row] for row in rows], rows, len(held))

    def __len__(self) -> int:
        return len(self.rows)

    def same(self, other: Picked) -> bool:
        """Whether both pick the same rows at the same places."""
        if self is other:
            return True
        mine, theirs = (None if each.places is None else list(each.places.numbers) for each in (self, other))
        return mine == theirs and list(self.rows.numbers) == list(other.rows.numbers)

    def take(self, data: Tensor, dim: int = -2) -> Tensor:
        """These rows of a tensor; a view where they are adjacent."""
        if self.places is None:
            return data
        if self._first is not None:
            return data.narrow(dim, self._first, len(self.places))
        return data.index_select(dim, self.places.on(data.device))


@dataclass(frozen=True, slots=True)
class LayerRows:
    """What rows of a block do in a layer: some get keys and values, some attend, some leave; `left` among the mixed."""

    keyed: Picked
    mixed: Picked
    leaving: Picked
    left: Picked

    @property
    def together(self) -> bool:
        """Whether all rows that attend get keys and values, and no others."""
        return self.keyed.same(self.mixed)


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows of several blocks as one: what is taken of each, and the order in which it then stands."""

    pieces: tuple[tuple[Hashable, Picked], ...]
    order: Picked

    @classmethod
    def of(cls, parts: Iterable[tuple[Hashable, Sequence[int]]], held: Mapping[Hashable, int]) -> Gather:
        """Rows in this order, each part at its places in a block; `held` says how many rows a block has."""
        taken: dict[Hashable, list[int]] = {}
        found: list[tuple[Hashable, range]] = []
        for key, places in parts:
            mine = taken.setdefault(key, [])
            found.append((key, range(len(mine), len(mine) + len(places))))
            mine.extend(places)
        starts, start = {}, 0
        for key, places in taken.items():
            starts[key], start = start, start + len(places)
        order = [starts[key] + place for key, places in found for place in places]
        pieces = tuple((key, Picked.of(places, places, held.get(key, -1))) for key, places in taken.items())
        return cls(pieces, Picked.of(order, order, start))

    def of_blocks(self, blocks: Mapping[Hashable, Tensor]) -> Tensor:
        """The rows, [examples, rows, ...], from blocks whose second axis they are on."""
        found = [picked.take(blocks[key], 1) for key, picked in self.pieces]
        return self.order.take(found[0] if len(found) == 1 else torch.cat(found, 1), 1)
