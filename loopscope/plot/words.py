"""Words in pictures: tokens whose spaces can be seen, short names of places, no more labels than there is room for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from loopscope.plot.canvas import Axes, font_of
from loopscope.table import Cell, Table

SPACE = "·"
"""How a space is shown."""

_PLACE = re.compile(r"((?:[A-Z]\.)?)layer\[(\d+)\]\.(?:resid|pattern)")


def visible(text: object, most: int = 0) -> str:
    """A token as it can be seen: spaces as dots, line breaks and what the font has not as escapes; cut to `most`."""
    found = "".join(map(_seen, str(text))) or "''"
    return found if not most or len(found) <= most else f"{found[: max(1, most - 1)]}…"


@cache
def _seen(one: str) -> str:
    if one == " ":
        return SPACE
    if one.isprintable() and (one.isascii() or font_of(one)):
        return one
    return one.encode("unicode_escape").decode()


def short(place: Cell) -> str:
    """A place as a label: "layer 2" for layer[2].resid or .pattern, "L layer 2" for that of a stack; "all" for none."""
    if place is None:
        return "all"
    if isinstance(place, float):
        return f"{place:g}"
    match = _PLACE.fullmatch(str(place))
    return str(place) if match is None else f"{match[1].replace('.', ' ')}layer {match[2]}"


def values_of(table: Table, name: str) -> list[Cell]:
    """A column as plain values: whole numbers as such, None where there is none."""
    found: list[Cell] = []
    for value in table[name].tolist():
        if isinstance(value, float):
            found.append(None if math.isnan(value) else int(value) if value.is_integer() else value)
        else:
            found.append(value)
    return found


def in_order(values: Sequence[Cell]) -> list[Cell]:
    """Each value once: numbers by size, and others as they first come; None last."""
    each = list(dict.fromkeys(values))
    there = [value for value in each if value is not None]
    if all(isinstance(value, int | float) for value in there):
        there = sorted(there, key=lambda value: float(value))
    return [*there, *([None] if len(there) < len(each) else [])]


def ticks(axes: Axes, side: str, labels: Sequence[str], room: int | float) -> None:
    """Labels at 0, 1, 2, ... of the axis "x" or "y", every k-th where `room` pixels are too few for all of them.

    Labels of the axis "x" stand upright where they are too wide for their places.
    """
    each = room / max(1, len(labels))
    turned = side == "x" and upright(labels, room)
    needs = 6.4 * _longest(labels) + 6 if side == "x" and not turned else 12.5
    every = next((step for step in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100) if step * each >= needs), 200)
    places = range(0, len(labels), every)
    settings: dict[str, Any] = {"parse_math": False, **({"rotation": 90} if turned else {})}
    put = axes.set_xticks if side == "x" else axes.set_yticks
    put(list(places), [labels[place] for place in places], **settings)


def upright(labels: Sequence[str], room: int | float) -> bool:
    """Whether labels of the axis "x" are too wide for their places."""
    return _longest(labels) > 3 and 6.4 * _longest(labels) + 6 > room / len(labels)


def _longest(labels: Sequence[str]) -> int:
    return max(map(len, labels), default=1)


def rounded(value: float) -> str:
    """A number in a cell: three characters or so."""
    if abs(value) >= 99.5:
        return f"{value:.0f}"
    text = f"{value:.2f}" if abs(value) < 9.95 else f"{value:.1f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")
