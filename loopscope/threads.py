"""How many threads torch computes with on a CPU.

Threads that share a small operation wait for each other longer than they compute, above all on a machine that has other
work: one thread is then several times faster than two.  So commands choose by the size of the work.  Sums are split
otherwise with another number of threads, and so rounded otherwise; artefacts and records name the number.

    with threads_for(model.width * rows):   # as many as suit operations on so many numbers
        fit(...)

The number is fixed, whatever the size, inside `fixed_threads`, by `LOOPSCOPE_THREADS`, and by `OMP_NUM_THREADS`, which
torch itself obeys.  Nothing changes outside these blocks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from loopscope.bounds import whole
from loopscope.errors import InputError

VARIABLE = "LOOPSCOPE_THREADS"
EACH = 2**21
"""Numbers that an operation must touch for every thread that takes part in it (`loopscope bench threads`)."""
MOST = 1024

_fixed: ContextVar[bool] = ContextVar("fixed", default=False)


def suitable(numbers: int, most: int) -> int:
    """How many of at most so many threads suit operations on so many numbers: one for each `EACH`."""
    return max(1, min(most, numbers // EACH))


def asked_for() -> int | None:
    """The number in `LOOPSCOPE_THREADS`; None where it is not set, InputError where it is no number of threads."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InputError(f"the environment variable {VARIABLE} must be a whole number, not {text[:40]!r}")
    return whole(f"the environment variable {VARIABLE}", int(text), 1, MOST)


def fixed_to() -> int | None:
    """The number that `fixed_threads` around this or the variable asks for; None where neither does."""
    if not _fixed.get():
        return asked_for()
    import torch

    return torch.get_num_threads()


@contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Inside, torch computes with `count` threads, and `threads_for` leaves it at that; InputError for less than 1."""
    with _set(whole("the number of threads", count, 1, MOST)):
        before = _fixed.set(True)
        try:
            yield
        finally:
            _fixed.reset(before)


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Inside, torch computes with as many threads as suit operations on so many numbers, and never more than before.

    Of a small model these are width x rows (examples, tokens and members trained side by side), of a language model its
    weights, all of which every pass reads.
    """
    import torch

    if _fixed.get():
        yield
        return
    count = asked_for()
    if count is None and os.environ.get("OMP_NUM_THREADS"):
        count = torch.get_num_threads()
    with _set(suitable(numbers, torch.get_num_threads()) if count is None else count):
        yield


@contextmanager
def _set(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
