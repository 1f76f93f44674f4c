"""Heat maps: how often each position is read at each loop, and shares by any two labels.  Needs matplotlib.

One hue fades into the page's background, so that a map looks right on light and on dark paper.  Maps of many cells are
pictures (`loop_maps`): drawn cell by cell they would weigh more than the rest of the page.  The colours of a picture
cannot follow the page's theme, so on the page it is the mask of a rectangle that does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from loopscope.plot.canvas import (
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
    heading,
)
from loopscope.plot.cells import in_multiples, mesh, numbers
from loopscope.studies.report.contents import Drawings, Figure, percent
from loopscope.studies.report.drawing import draw

T = TypeVar("T")


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

    def paint(axes: Axes, walk: Walk) -> None:
        reads, nodes = walk.frequencies.shape
        mesh(axes, walk.frequencies.T)
        axes.axvline(walk.loops, color=ALARM, linestyle=(0, (4, 2.5)), linewidth=1.3)
        _mark(axes, [(loop, mode) for loop, mode in enumerate(walk.modes) if mode is not None], 3.4)
        axes.set_xticks(range(0, reads, 4))
        axes.set_yticks(range(0, nodes, 3))

    def words(walk: Walk) -> str:
        modes = " ".join("tie" if mode is None else str(mode) for mode in walk.modes)
        return f"{walk.name} (trained for {walk.loops} loops): positions read most often at loops 0, 1, …: {modes}."

    check_some(name, walks)
    named = [(walk.name, walk) for walk in walks]

    def plot(width: int) -> Canvas:
        return in_multiples(width, named, paint, "loop", "position", "share of readouts, %")

    return draw(name, title, caption, " ".join(map(words, walks)), plot)


def label_heat(
    name: str, title: str, caption: str, panels: Mapping[str, Float[np.ndarray, "rows columns"]], x: str, y: str
) -> Figure:
    """Shares by two labels, one panel for each matrix: rows upwards along `y`, columns along `x`, both from 0."""

    def paint(axes: Axes, shares: Float[np.ndarray, "rows columns"]) -> None:
        mesh(axes, shares)
        axes.set_xticks(range(0, shares.shape[1], max(1, shares.shape[1] // 4)))
        axes.set_yticks(range(0, shares.shape[0], 3))

    check_some(name, panels)

    def plot(width: int) -> Canvas:
        return in_multiples(width, [*panels.items()], paint, x, y, "share, %")

    return draw(name, title, caption, _in_words(panels, x, y), plot)


def matrices(
    name: str, title: str, caption: str, panels: Mapping[str, Float[np.ndarray, "rows columns"]], x: str, y: str
) -> Figure:
    """Small matrices of shares with their numbers written in, per cent: rows downwards along `y`, both from 1."""

    def paint(axes: Axes, shares: Float[np.ndarray, "rows columns"]) -> None:
        rows, across = shares.shape
        mesh(axes, shares, first=1)
        numbers(axes, shares, lambda share: f"{100 * share:.0f}", first=1)
        axes.set_xticks(range(1, across + 1))
        axes.set_yticks(range(1, rows + 1))
        axes.invert_yaxis()

    check_some(name, panels)

    def plot(width: int) -> Canvas:
        return in_multiples(width, [*panels.items()], paint, x, y, "right, %")

    return draw(name, title, caption, _in_words(panels, x, y, first=1), plot)


def _in_words(panels: Mapping[str, Float[np.ndarray, "rows columns"]], x: str, y: str, first: int = 0) -> str:
    """All shares of all panels; rows are numbered from `first` on."""

    def each(label: str, shares: Float[np.ndarray, "rows columns"]) -> str:
        rows = "; ".join(f"{y} {row}: " + " ".join(map(percent, values)) for row, values in enumerate(shares, first))
        return f"{label}, per cent by {x}: {rows}."

    return " ".join(each(*panel) for panel in panels.items())


def _mark(axes: Axes, places: Sequence[tuple[int, int]], size: float) -> None:
    """Dots of this size, to be seen on light cells and on dark ones."""
    axes.plot(*zip(*places, strict=True) if places else ([], []), "o", color=PAPER, markersize=size,
              markeredgecolor=HEAT, markeredgewidth=0.6)  # fmt: skip


# ---- maps of many cells, as pictures ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Square:
    """Shares by length n (upwards) and loop t (to the right), both from 1; `best` is a loop to mark for each length."""

    shares: Float[np.ndarray, "lengths loops"]
    best: Sequence[int | None] = ()


def loop_maps(
    name: str,
    title: str,
    caption: str,
    panels: Mapping[str, Square],
    last: int,
    enlarged: tuple[int, int] | None = None,
) -> Figure:
    """Small multiples, two in a row, with the diagonal t = n and a dotted line at the length `last`.

    `enlarged`: the lengths and loops from one to the other are shown once more in an inset, cell by cell, of maps that
    have all of them.
    """
    check_some(name, panels)

    def plot(width: int) -> Canvas:
        side = (width - 90) // 2 if width == WIDE else (width - 50) // 2
        rows = -(-len(panels) // 2)
        drawn = canvas(width, rows * (min(side, 250) + 48) + 12)
        grid = drawn.subplots(rows, 2, squeeze=False).flatten()
        for index, (axes, (label, panel)) in enumerate(zip(grid, panels.items(), strict=False)):
            _map(axes, panel, 1, 2.6)
            if last < len(panel.shares):
                axes.axhline(last, color=ALARM, linestyle=(0, (1, 2)), linewidth=1.3)
            if enlarged is not None and min(panel.shares.shape) >= enlarged[1]:
                _inset(axes, panel, *enlarged, 5.0 if width == WIDE else 3.2)
            axes.set_title(heading(label, width, 2))
            axes.set_xlabel("loop t")
            if index % 2 == 0:
                axes.set_ylabel("length n")
        for axes in grid[len(panels) :]:
            axes.remove()
        return drawn

    def words(label: str, panel: Square) -> str:
        """Right on the diagonal, by tens of lengths."""
        found = np.diagonal(panel.shares)
        shares = (
            f"{first + 1}-{min(first + 10, len(found))} {percent(float(found[first : first + 10].mean()))}"
            for first in range(0, len(found), 10)
        )
        return f"{label}: {', '.join(shares)}."

    described = f"Per cent right at t = n, by lengths. {' '.join(words(*panel) for panel in panels.items())}"
    figure = draw(name, title, caption, described, plot)

    def masked() -> Drawings:
        svg, narrow, pdf = figure.drawings
        return Drawings(_masked(svg, f"{name}-wide"), _masked(narrow, f"{name}-narrow"), pdf)

    return replace(figure, draw=masked)


def _map(axes: Axes, panel: Square, first: int, size: float) -> None:
    """The cells from length and loop `first` on, the diagonal, and a dot of this size at each best loop."""
    shares = panel.shares[first - 1 :, first - 1 :]
    lengths, loops = (first - 0.5 + each for each in shares.shape)
    axes.imshow(shares, cmap=RAMP, vmin=0, vmax=1, origin="lower", interpolation="none",
                extent=(first - 0.5, loops, first - 0.5, lengths), aspect="equal")  # fmt: skip
    corner = min(lengths, loops)
    axes.plot((first - 0.5, corner), (first - 0.5, corner), color=INK, linewidth=0.8)
    dots = [(loop, n) for n, loop in enumerate(panel.best, 1) if loop is not None and min(n, loop) >= first]
    _mark(axes, dots, size)
    axes.spines[["top", "right"]].set_visible(True)


def _inset(axes: Axes, panel: Square, first: int, last: int, size: float) -> None:
    """Where loops are far fewer than bits, and nothing is right but by chance: some cells of the corner, larger."""
    part = Square(panel.shares[:last, :last], [None if at is None or at > last else at for at in panel.best[:last]])
    inset = axes.inset_axes((0.05, 0.52, 0.43, 0.43), facecolor=PAPER)
    _map(inset, part, first, size)
    inset.set_xticks((first, last))
    inset.set_yticks([])
    inset.tick_params(length=0, labelsize=8.5, pad=1.5, labelcolor=INK)
    for spine in inset.spines.values():
        spine.set_edgecolor(INK)
    low, high = first - 0.5, last + 0.5
    axes.plot((low, low, high, high, low), (low, high, high, low, low), color=INK, linewidth=0.8)


def _masked(svg: str, prefix: str) -> str:
    """Every picture as the mask of a rectangle in the colour of heat."""
    count = 0

    def rectangle(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        size = dict(re.findall(r'(\w+)="([\d.]+)"', found[0]))
        placed = re.search(r' transform="[^"]*"', found[0])
        place = placed[0] if placed else "".join(f' {each}="{size[each]}"' for each in ("x", "y") if each in size)
        mask = f"{prefix}-mask-{count}"
        return (
            f'<mask id="{mask}" style="mask-type: alpha">{found[0]}</mask><g mask="url(#{mask})"><rect{place} '
            f'width="{size["width"]}" height="{size["height"]}" style="fill: var(--heat, {HEAT})"/></g>'
        )

    return re.sub(r"<image [^>]*/>", rectangle, svg)
