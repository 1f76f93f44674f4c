"""Memory that was freed, and the C library that keeps it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

LARGE = 64 * 2**20
"""Bytes of a batch behind which it is worth looking; in small ones no gaps add up."""


def give_back(peak: int) -> None:
    """Hand freed memory back to the system behind work that took so many bytes at its peak.

    Blocks of many sizes that are freed in any order leave gaps in glibc's heap, into which later ones do not fit, so
    that a process which goes on for long grows to many times what it holds.  Other C libraries are left alone.
    """
    if peak >= LARGE:
        trim = _trim()
        if trim is not None:
            trim(0)


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
