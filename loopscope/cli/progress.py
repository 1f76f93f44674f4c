"""How far a command of many steps is: a bar, the time left and what is being done; lines now and then in a log.

with steps("reproduce", len(todo)) as shown:
    records = list(carry_out(todo, ..., shown.log, shown.advance))
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from loopscope.cli.display import Display, display


class Steps:
    """The bar of a command, on a display that may have other bars and a line of its own."""

    def __init__(self, shown: Display, name: str, total: int) -> None:
        self._shown, self._name, self._total = shown, name, total
        self._done, self._started = 0, time.monotonic()
        shown.show(name, name, 0, total, "")

    def log(self, doing: str) -> None:
        """Say what is being done."""
        self._shown.log(doing, f"{self._name}, {self._done} of {self._total} done{self._left()}: ")

    def advance(self, many: int = 1) -> None:
        """So many more steps are done; a log is told with what comes next, and how long all will take."""
        self._done = min(self._total, self._done + many)
        self._shown.show(self._name, self._name, self._done, self._total, "", logged=False)

    def _left(self) -> str:
        """In words, by the mean of the steps that are done; nothing before the first."""
        if not self._done:
            return ""
        seconds = (time.monotonic() - self._started) / self._done * (self._total - self._done)
        return f", about {seconds:.0f} s left" if seconds < 100 else f", about {seconds / 60:.0f} min left"


@contextmanager
def steps(name: str, total: int) -> Iterator[Steps]:
    """The bar of a command of so many steps, wiped away at the end."""
    with display() as shown:
        yield Steps(shown, name, total)
