"""Maps of cells, lines with bands, dots: what the report's figures and the pictures of tables have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from loopscope.plot.canvas import LIGHT, MARKERS, WIDE, Axes, Canvas, Palette, QuadMesh, canvas, heading

T = TypeVar("T")


def mesh(
    axes: Axes,
    values: Float[np.ndarray, "rows columns"],
    first: int = 0,
    low: float = 0.0,
    high: float = 1.0,
    palette: Palette = LIGHT,
) -> QuadMesh:
    """A square for every number, rows upwards; the middles of the first ones are at `first`.

    Numbers from `low` to `high` are shades of one colour, or of two where `low` is below 0; NaN is left empty.
    """
    rows, columns = values.shape
    return axes.pcolormesh(
        np.arange(columns + 1) + first - 0.5, np.arange(rows + 1) + first - 0.5, values,
        cmap=palette.both if low < 0 else palette.ramp, vmin=low, vmax=high, linewidth=0, antialiased=False,
    )  # fmt: skip


def numbers(
    axes: Axes,
    values: Float[np.ndarray, "rows columns"],
    words: Callable[[float], str],
    first: int = 0,
    full: float = 1.0,
    palette: Palette = LIGHT,
) -> None:
    """Every number of a `mesh` as text in its cell, to be read on cells that are more than half of `full` and less."""
    for row, column in np.ndindex(*values.shape):
        value = float(values[row, column])
        if not math.isnan(value):
            axes.text(column + first, row + first, words(value), ha="center", va="center_baseline",
                      color=palette.paper if abs(value) > 0.55 * full else palette.ink)  # fmt: skip


def multiples(
    width: int, panels: int, columns: int = 0, height: int = 0, across: int = 0, extra: int = 0
) -> tuple[Canvas, list[Axes], Axes, int]:
    """A canvas with so many panels, a flat one below for the colour bar, and how many panels a row has.

    How many that is, how high a panel is and how wide all are follows from the width of the page, unless given; `extra`
    is what the canvas is higher for, such as a title.
    """
    columns = columns or min(panels, 4 if width == WIDE else 2)
    across = across or (min(width, 400) if columns == 1 else min(width, columns * 200))
    height = height or (170 if columns == 1 else 124)
    rows = math.ceil(panels / columns)
    drawn = canvas(across, 70 + extra + rows * (height + 14))
    spec = drawn.add_gridspec(rows + 1, columns, height_ratios=[*[height] * rows, 9])
    grid = [drawn.add_subplot(spec[index // columns, index % columns]) for index in range(panels)]
    return drawn, grid, drawn.add_subplot(spec[rows, :]), columns


def in_multiples(
    width: int, panels: Sequence[tuple[str, T]], paint: Callable[[Axes, T], None], x: str, y: str, bar: str
) -> Canvas:
    """Small multiples of maps of shares: a titled panel each, and what their colours mean."""
    drawn, grid, legend, columns = multiples(width, len(panels))
    for index, (axes, (label, each)) in enumerate(zip(grid, panels, strict=True)):
        paint(axes, each)
        axes.set_title(heading(label, min(width, 200 * columns) if columns > 1 else width, columns))
        outer_labels(axes, index, len(panels), columns, x, y)
    share_bar(legend, bar)
    return drawn


def outer_labels(axes: Axes, index: int, panels: int, columns: int, x: str, y: str) -> None:
    """Number the axes where no panel is beside or below, and name them there."""
    axes.tick_params(length=2)
    axes.spines[["top", "right"]].set_visible(True)
    if index % columns == 0:
        axes.set_ylabel(y)
    else:
        axes.tick_params(labelleft=False)
    lowest = index + columns >= panels
    axes.tick_params(labelbottom=lowest)
    if lowest:
        axes.set_xlabel(x)


def share_bar(axes: Axes, label: str, palette: Palette = LIGHT) -> None:
    """What the colours of shares mean, in per cent."""
    colour_bar(axes, label, palette=palette)
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1), ("0", "25", "50", "75", "100"))


def colour_bar(axes: Axes, label: str, low: float = 0.0, high: float = 1.0, palette: Palette = LIGHT) -> None:
    """What the colours of `mesh` mean."""
    steps = np.linspace(low, high, 51)
    ramp = palette.both if low < 0 else palette.ramp
    axes.pcolormesh(steps, [0, 1], (steps[:-1] + (high - low) / 100)[None], cmap=ramp, vmin=low, vmax=high, linewidth=0,
                    antialiased=False)  # fmt: skip
    axes.set_yticks([])
    axes.tick_params(length=2)
    axes.spines[["top", "right"]].set_visible(True)
    axes.set_xlabel(label)


def line(
    axes: Axes,
    places: ArrayLike,
    values: ArrayLike,
    band: tuple[ArrayLike, ArrayLike],
    index: int,
    name: str,
    *,
    thin: bool = False,
    markers: bool = True,
    palette: Palette = LIGHT,
) -> None:
    """A series with its interval as a band, in the colour and with the marker of its number; thin ones are dashed."""
    colour = palette.series[index % len(palette.series)]
    axes.fill_between(places, *band, color=colour, alpha=0.18, linewidth=0)
    axes.plot(places, values, color=colour, marker=MARKERS[index % len(MARKERS)] if markers else "", markersize=5,
              linewidth=1.2 if thin else 2.0, label=name, linestyle=(0, (3, 2)) if thin else "-",
              markerfacecolor=palette.paper if thin else colour)  # fmt: skip


def dot(
    axes: Axes, at: float, value: float, low: float, high: float, number: int, text: str, palette: Palette = LIGHT
) -> None:
    """A number with its interval in the colour and with the marker of its series, `text` at the right; not for NaN."""
    if math.isnan(value):
        return
    colour = palette.series[number % len(palette.series)]
    axes.plot([low, high], [at, at], color=colour, linewidth=2.2, solid_capstyle="butt")
    axes.plot(value, at, MARKERS[number % len(MARKERS)], color=colour, markersize=6.5)
    axes.text(1.035, at, text, transform=axes.get_yaxis_transform(), va="center_baseline")
