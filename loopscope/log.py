"""What long work says of itself: a log takes a line, and may show it, keep it or drop it."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[str], None]
"""Takes a line on what is being done."""


def silent(line: str) -> None:
    """The log of who listens to nobody."""


def under(name: str, log: Log) -> Log:
    """The same log, with a name before every line."""
    return lambda line: log(f"{name}: {line}")
