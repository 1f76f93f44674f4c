"""Figures of sizes that grow or shrink from call to call: lengths, distances, eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loopscope.studies.report.contents import Figure
from loopscope.studies.report.drawing import (
    FAINT,
    MARKERS,
    PAPER,
    SERIES,
    WIDE,
    Canvas,
    canvas,
    check_some,
    doubling_axis,
    draw,
    heading,
    size_axis,
)

SPOKEN = 6
"""Points by which a trace is told."""


@dataclass(frozen=True)
class Trace:
    """A series of sizes at places 1, 2, ...; `ring` is a place to be marked, 0 for none.

    Sizes that are not positive and finite have no place on a logarithmic axis; they are left out and said.
    """

    name: str
    sizes: Sequence[float]
    ring: int = 0

    @property
    def points(self) -> list[tuple[int, float]]:
        """The places that can be drawn, with their sizes."""
        return [(place, size) for place, size in enumerate(self.sizes, 1) if 0 < size < math.inf]


@dataclass(frozen=True)
class Panel:
    """Traces of one quantity, with what is counted along the horizontal axis."""

    title: str
    x: str
    traces: Sequence[Trace]


def traces(name: str, title: str, caption: str, panels: Sequence[Panel]) -> Figure:
    """Panels side by side, places and sizes both on logarithmic axes, a faint line where a size is 1.

    A series has one colour in all panels.
    """
    check_some(name, panels)
    shown = list(dict.fromkeys(trace.name for panel in panels for trace in panel.traces))

    def plot(width: int) -> Canvas:
        columns = min(len(panels), 2) if width == WIDE else 1
        rows = -(-len(panels) // columns)
        drawn = canvas(width, 50 + 195 * rows)
        grid = drawn.subplots(rows, columns, squeeze=False).flatten()
        for axes, panel in zip(grid, panels, strict=False):
            axes.axhline(1.0, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
            for trace in panel.traces:
                index, points = shown.index(trace.name), trace.points
                colour, doubled = SERIES[index % len(SERIES)], [place.bit_count() == 1 for place, _ in points]
                axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.8, label=trace.name,
                          marker=MARKERS[index % len(MARKERS)], markersize=5, markevery=doubled)  # fmt: skip
                if trace.ring in dict(points):
                    axes.plot(trace.ring, dict(points)[trace.ring], "o", markeredgecolor=colour, markersize=11,
                              markerfacecolor=PAPER, markeredgewidth=1.8)  # fmt: skip
            axes.set_title(heading(panel.title, width, columns))
            axes.set_xlabel(panel.x)
            size_axis(axes)
            doubling_axis(axes, max((len(trace.sizes) for trace in panel.traces), default=1))
        for axes in grid[len(panels) :]:
            axes.remove()
        handles = {text: line for axes in grid for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        drawn.legend(handles.values(), handles, loc="outside upper left", ncols=4 if width == WIDE else 2)
        return drawn

    told = " ".join(_words(panel, trace) for panel in panels for trace in panel.traces)
    return draw(name, title, caption, told, plot)


def _words(panel: Panel, trace: Trace) -> str:
    points = trace.points
    every = max(1, -(-len(points) // SPOKEN))
    told = [f"{size:.3g} at {place}" for place, size in (*points[:-1:every], *points[-1:])]
    missing = len(trace.sizes) - len(points)
    told += [f"{missing} of {len(trace.sizes)} cannot be drawn"] if missing else []
    return f"{panel.title}, {trace.name}: {', '.join(told)}."
