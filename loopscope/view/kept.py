"""What was computed is kept, the last used first, up to so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """Values by key; what was not used for longest goes when there are more than `most` bytes."""

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """The value of a key; None where it is not there (any more)."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Keep a value of so many bytes; one that is larger than all that may be kept is not."""
        if key in self._values:
            self.bytes -= self._values.pop(key)[1]
        if size > self.most:
            return
        self._values[key] = value, size
        self.bytes += size
        while self.bytes > self.most:
            _, (_, gone) = self._values.popitem(last=False)
            self.bytes -= gone

    def clear(self) -> None:
        """Let go of everything."""
        self._values.clear()
        self.bytes = 0
