"""Signals: what a terminal's interrupt (SIGINT) and a scheduler's or system's end (SIGTERM) do to a command.

Either ends a command in one line, exit code 130 or 143, after what it holds is tidied away.  A command that trains
takes the first for a wish: it makes one more checkpoint, as those of large models are minutes apart.  The second ends
it at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a command that SIGTERM ended."""


class Terminated(BaseException):
    """SIGTERM came: what KeyboardInterrupt is to SIGINT."""


@contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM raises `Terminated` inside the block, the next one ends the process; elsewhere nothing changes."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # where Python lets nobody set a handler
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def asked_to_stop(log: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether SIGINT or SIGTERM has come; the second of them acts as outside the block.

    Whoever is asked makes a checkpoint and raises KeyboardInterrupt, which leaves the block as `Terminated` if it was
    SIGTERM that asked.
    """
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        asked.append(number)
        restore()
        log("interrupted: stops with a checkpoint as soon as it can, or at once if interrupted again")

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    except KeyboardInterrupt:
        if asked[:1] == [signal.SIGTERM]:
            raise Terminated from None
        raise
    finally:
        restore()
