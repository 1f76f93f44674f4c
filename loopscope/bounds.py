"""How large anything may be that somebody gives as a number or a text: bounds that no real use meets.

A slip of the finger, or a file that lies, is refused in one line before it takes memory or time.
"""

from __future__ import annotations

import math
from typing import TypeGuard

from loopscope.errors import InputError

LOOPS = 10_000
"""Calls of F in one run."""

LAYERS = 4096
"""Layers of F; heads of a layer."""

WIDTH = 2**20
"""Width of a state, of an MLP or of a head."""

VOCABULARY = 2**24
"""Tokens, classes and positions of a table."""

POSITIONS = 2**31
"""Rotary positions, which take no memory."""

BATCH = 2**20
"""Questions at a time."""

MOST_CALLS = LOOPS
"""Calls that a program may have; a guard against a slip of the finger, not a limit of the model."""

MOST_STEPS = 2 * MOST_CALLS
"""Calls and maps that a program may have, without those of its sources (`Program.size` counts those, too)."""

MOST_MAPS = 100
"""Maps that may follow each other: the name of a state tells all since the last call."""

MOST_PATCHES = 1000
"""Patches in one call."""

MOST_NESTED = 20
"""How deep source programs may stand inside each other."""

MOST_SIZE = 200_000
"""Steps and patches of a program with those of its sources, written out."""

MOST_TEXT = 2_000_000
"""Characters of a program's text."""

SHOWN = 200
"""Characters of what somebody wrote that stand in an error line."""

LINE = 150
"""Characters of what a value says of itself when it is printed."""


def whole(name: str, value: object, low: int, high: int) -> int:
    """A whole number from `low` to `high`; InputError for anything else, JSON's true among it."""
    if type(value) is not int:
        raise InputError(f"{name} must be a whole number, not {shown(value)}")
    if not low <= value <= high:
        most, near = ("least", low) if value < low else ("most", high)
        raise InputError(f"{name} must be at {most} {near}, not {shown(value)} (nearest: {near})")
    return value


def taken(count: int, there: int, what: str, least: int = 1) -> int:
    """So many of those that there are; InputError for more, or for fewer than `least`."""
    if not least <= count <= there:
        raise InputError(f"cannot take {count} of {there} {what} (nearest: {min(max(count, least), there)})")
    return count


def real(name: str, value: object, low: float, high: float) -> float:
    """A number above `low` and up to `high`; InputError for anything else, NaN among it."""
    if type(value) not in (int, float):
        raise InputError(f"{name} must be a number, not {shown(value)}")
    if not is_finite(value) or not low < value <= high:
        raise InputError(f"{name} must be above {low:g} and at most {high:g}, not {shown(value)}")
    return float(value)


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number, and neither NaN, infinite nor a whole number too large for a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def shown(value: object) -> str:
    """A value as it stands in an error line: on one line, cut where it is long."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"  # Python refuses to print those of some thousands
    return cut(repr(value)) if value is not None else "missing"


def cut(text: str) -> str:
    """A text as it stands in an error line."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def line(text: str, most: int = LINE) -> str:
    """A text on one line, as it stands in what prints a value: no line breaks, and cut where it is long."""
    one = " ".join(text.split())
    return one if len(one) <= most else f"{one[: most - 3]}..."
