"""What goes wrong and how it is said: one line, with what was asked, what exists and the nearest valid choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LoopscopeError(Exception):
    """Base of every error this library raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(LoopscopeError, ValueError):
    """The user asked for something that does not exist or does not fit.  Nothing was written."""

    exit_code = 2


class BusyError(InputError):
    """Another process is at work on what was asked for.  Nothing was written; later the same call may succeed."""


class DamagedError(LoopscopeError):
    """A file on disk is not what its manifest promises.  The message names file, expectation and finding."""

    exit_code = 3


class NewerError(LoopscopeError):
    """A file is of a newer schema than this version reads.  It is not damaged: nothing replaces or removes it."""

    exit_code = 3


class NotFiniteError(LoopscopeError, ArithmeticError):
    """Numbers left the range of their type: NaN or infinity in a run or in training.  Nothing was written."""

    exit_code = 2


def nearest(asked: str, choices: Iterable[str]) -> str:
    """The choice most like `asked`, as the tail of an error line: " (nearest: ...)", or "" without choices."""
    known = list(choices)
    if not known:
        return ""
    close = difflib.get_close_matches(asked, known, n=1, cutoff=0.0)
    return f" (nearest: {close[0]})"
