"""Heat maps: how often each position is read at each loop, and shares by any two labels.  Needs matplotlib.

One hue fades into the page's background, so that a map looks right on light and on dark paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from loopscope.studies.report.contents import Figure, percent
from loopscope.studies.report.drawing import (
    ALARM,
    HEAT,
    INK,
    PAPER,
    RAMP,
    WIDE,
    Axes,
    Canvas,
    canvas,
    check_some,
    draw,
    heading,
)


@dataclass(frozen=True)
class Walk:
    """A backbone's readouts: `frequencies[t, p]` of position p after loop t, and each loop's mode (None: a tie)."""

    name: str
    frequencies: Float[np.ndarray, "reads nodes"]
    loops: int
    modes: Sequence[int | None]


def heat_maps(name: str, title: str, caption: str, walks: Sequence[Walk]) -> Figure:
    """Small multiples of native trajectories: loop against path position, a dashed line at the trained budget.

    Dots mark unique modes.
    """
    check_some(name, walks)

    def plot(width: int) -> Canvas:
        drawn, grid, bar, columns = _multiples(width, len(walks))
        for index, (axes, walk) in enumerate(zip(grid, walks, strict=True)):
            reads, nodes = walk.frequencies.shape
            _mesh(axes, walk.frequencies.T)
            axes.axvline(walk.loops, color=ALARM, linestyle=(0, (4, 2.5)), linewidth=1.3)
            dots = [(loop, mode) for loop, mode in enumerate(walk.modes) if mode is not None]
            axes.plot(*zip(*dots, strict=True) if dots else ([], []), "o", color=PAPER, markersize=3.4,
                      markeredgecolor=HEAT, markeredgewidth=0.7)  # fmt: skip
            axes.set_title(heading(walk.name, width, columns))
            axes.set_xticks(range(0, reads, 4))
            axes.set_yticks(range(0, nodes, 3))
            _outer_labels(axes, index, len(walks), columns, "loop", "position")
        _colour_bar(bar, "share of readouts, %")
        return drawn

    def words(walk: Walk) -> str:
        modes = " ".join("tie" if mode is None else str(mode) for mode in walk.modes)
        return f"{walk.name} (trained for {walk.loops} loops): positions read most often at loops 0, 1, …: {modes}."

    return draw(name, title, caption, " ".join(map(words, walks)), plot)


def label_heat(
    name: str, title: str, caption: str, panels: Mapping[str, Float[np.ndarray, "rows columns"]], x: str, y: str
) -> Figure:
    """Shares by two labels, one panel for each matrix: rows upwards along `y`, columns along `x`, both from 0."""
    check_some(name, panels)

    def plot(width: int) -> Canvas:
        drawn, grid, bar, columns = _multiples(width, len(panels))
        for index, (axes, (label, shares)) in enumerate(zip(grid, panels.items(), strict=True)):
            _mesh(axes, shares)
            axes.set_title(heading(label, width, columns))
            axes.set_xticks(range(0, shares.shape[1], max(1, shares.shape[1] // 4)))
            axes.set_yticks(range(0, shares.shape[0], 3))
            _outer_labels(axes, index, len(panels), columns, x, y)
        _colour_bar(bar, "share, %")
        return drawn

    return draw(name, title, caption, _in_words(panels, x, y), plot)


def matrices(
    name: str, title: str, caption: str, panels: Mapping[str, Float[np.ndarray, "rows columns"]], x: str, y: str
) -> Figure:
    """Small matrices of shares with their numbers written in, per cent: rows downwards along `y`, both from 1."""
    check_some(name, panels)

    def plot(width: int) -> Canvas:
        drawn, grid, bar, columns = _multiples(width, len(panels))
        for index, (axes, (label, shares)) in enumerate(zip(grid, panels.items(), strict=True)):
            rows, across = shares.shape
            _mesh(axes, shares, first=1)
            for row, column in np.ndindex(rows, across):
                share = float(shares[row, column])
                axes.text(column + 1, row + 1, f"{100 * share:.0f}", color=PAPER if share > 0.55 else INK, ha="center",
                          va="center_baseline")  # fmt: skip
            axes.set_title(heading(label, min(width, 200 * columns), columns))
            axes.set_xticks(range(1, across + 1))
            axes.set_yticks(range(1, rows + 1))
            axes.invert_yaxis()
            _outer_labels(axes, index, len(panels), columns, x, y)
            if index + columns >= len(panels):
                axes.set_xlabel(x)
        _colour_bar(bar, "right, %")
        return drawn

    return draw(name, title, caption, _in_words(panels, x, y, first=1), plot)


def _in_words(panels: Mapping[str, Float[np.ndarray, "rows columns"]], x: str, y: str, first: int = 0) -> str:
    """All shares of all panels; rows are numbered from `first` on."""

    def each(label: str, shares: Float[np.ndarray, "rows columns"]) -> str:
        rows = "; ".join(f"{y} {row}: " + " ".join(map(percent, values)) for row, values in enumerate(shares, first))
        return f"{label}, per cent by {x}: {rows}."

    return " ".join(each(*panel) for panel in panels.items())


def _mesh(axes: Axes, shares: Float[np.ndarray, "rows columns"], first: int = 0) -> None:
    """A square for every share, rows upwards; the middles of the first ones are at `first`."""
    rows, columns = shares.shape
    axes.pcolormesh(np.arange(columns + 1) + first - 0.5, np.arange(rows + 1) + first - 0.5, shares, cmap=RAMP,
                    vmin=0, vmax=1, linewidth=0, antialiased=False)  # fmt: skip


def _multiples(width: int, panels: int) -> tuple[Canvas, list[Axes], Axes, int]:
    """A canvas with so many panels, a flat one below for the colour bar, and how many panels a row has."""
    columns = min(panels, 4 if width == WIDE else 2)
    across = min(width, 400) if columns == 1 else min(width, columns * 200)
    height = 170 if columns == 1 else 124
    rows = math.ceil(panels / columns)
    drawn = canvas(across, 70 + rows * (height + 14))
    spec = drawn.add_gridspec(rows + 1, columns, height_ratios=[*[height] * rows, 9])
    grid = [drawn.add_subplot(spec[index // columns, index % columns]) for index in range(panels)]
    return drawn, grid, drawn.add_subplot(spec[rows, :]), columns


def _outer_labels(axes: Axes, index: int, panels: int, columns: int, x: str, y: str) -> None:
    """Number the axes where no panel is beside or below, and name them in the first column and the last row."""
    axes.tick_params(length=2)
    axes.spines[["top", "right"]].set_visible(True)
    if index % columns == 0:
        axes.set_ylabel(y)
    else:
        axes.tick_params(labelleft=False)
    axes.tick_params(labelbottom=index + columns >= panels)
    if index // columns == (panels - 1) // columns:
        axes.set_xlabel(x)


def _colour_bar(axes: Axes, label: str) -> None:
    """What the colours of `RAMP` mean."""
    steps = np.linspace(0, 1, 51)
    axes.pcolormesh(steps, [0, 1], (steps[:-1] + 0.01)[None], cmap=RAMP, vmin=0, vmax=1, linewidth=0, antialiased=False)
    axes.set_yticks([])
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1), ("0", "25", "50", "75", "100"))
    axes.tick_params(length=2)
    axes.spines[["top", "right"]].set_visible(True)
    axes.set_xlabel(label)
