"""How a picture is to look, and what colours mean in it."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from loopscope.plot.canvas import LIGHT, WIDE, Axes, Canvas, Palette
from loopscope.plot.cells import colour_bar, share_bar

SHARES = frozenset({
    "accuracy", "agreement", "below", "changed", "first", "named", "probability", "right", "share", "stopped", "weight",
})  # fmt: skip
"""Columns whose numbers are shares, so that colours go from 0 to 1 whatever is there."""


@dataclass(frozen=True)
class Look:
    """Colours and the width in pixels."""

    palette: Palette = LIGHT
    width: int = WIDE


class Scale(NamedTuple):
    """The numbers at both ends of the colours: from `low`, 0 or less `high`, to `high`."""

    low: float
    high: float

    def bar(self, axes: Axes, label: str, palette: Palette) -> None:
        """What the colours mean."""
        if self == (0.0, 1.0):
            share_bar(axes, f"{label}, %", palette)
        else:
            colour_bar(axes, label, self.low, self.high, palette)


def scale_of(values: ArrayLike, name: str) -> Scale:
    """The scale of a column of this name: of two colours where some of its numbers are well below 0."""
    numbers = np.asarray(values, dtype=float)
    there = numbers[np.isfinite(numbers)]
    most, least = (float(there.max()), float(there.min())) if len(there) else (1.0, 0.0)
    if name in SHARES and least >= 0 and most <= 1:
        return Scale(0.0, 1.0)
    high = _round_up(max(most, -least if least < -0.02 * max(most, 0.0) else 0.0))
    return Scale(-high if least < -0.02 * high else 0.0, high)


def _round_up(size: float) -> float:
    """The next of 1, 1.5, 2, 3, 5, 7.5 times a power of ten, or one that is less by a hair; 1 for nothing."""
    if size <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(size))
    return next(step * power for step in (1, 1.5, 2, 3, 5, 7.5, 10) if step * power >= 0.97 * size)


def label_of(name: str, about: object) -> str:
    """What a column is called in a picture; `value` by its metric."""
    metric = about.get("metric") if isinstance(about, dict) else None
    called = str(metric) if metric is not None and name == "value" else name
    return {"kl": "KL, nats", "recovered": "share recovered", "changed": "answers changed"}.get(called, called)


def entitled(drawn: Canvas, title: str) -> Canvas:
    """The picture with a title above all of it, at the left."""
    width = drawn.get_figwidth() * 72
    drawn.suptitle(textwrap.fill(title, int(width / 7.3)), x=6 / width, ha="left", fontsize=12.5, parse_math=False)
    return drawn
