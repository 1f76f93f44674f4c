"""Keys and values of the rows so far, so that a text can be continued without computing it anew."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from loopscope.errors import InputError

Where = int | str
"""A part of a run: the loop that a call is, "prelude", or "coda[8]" for the coda that reads the state after loop 8."""


class Cache:
    """Keys and values of the rows so far, one slot for every layer of every part, each with space for `room` rows.

    The layers of F are used again in every loop, but on other states: a slot per layer would mix the loops.  So it is
    with a coda, which reads another state at every point.
    """

    def __init__(self, room: int) -> None:
        self.room, self.length = room, 0
        self._slots: dict[tuple[Where, int], tuple[Tensor, Tensor]] = {}
        self._filled: dict[tuple[Where, int], int] = {}

    def __len__(self) -> int:
        """How many slots are in use."""
        return len(self._slots)

    def extend(
        self, where: Where, layer: int, k: Float[Tensor, "B H R k"], v: Float[Tensor, "B H R k"], before: int
    ) -> tuple[Float[Tensor, "B H S k"], Float[Tensor, "B H S k"]]:
        """Put the keys and values of the next rows into a slot, behind `before` rows; all S rows of it, as views.

        InputError where the slot has not those rows: a coda is continued where it was read for all rows before.
        """
        slot = (where, layer)
        if self._filled.get(slot, 0) != before:
            raise InputError(f"the cache has no keys of {where} for the {before} rows before: it was not read there")
        if slot not in self._slots:
            shape = (*k.shape[:2], self.room, k.shape[3])
            self._slots[slot] = (k.new_zeros(shape), v.new_zeros(shape))
        keys, values = self._slots[slot]
        end = before + k.shape[2]
        keys[:, :, before:end], values[:, :, before:end] = k, v
        self._filled[slot] = end
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, rows: int) -> None:
        """The cache now holds `rows` rows more."""
        self.length += rows
