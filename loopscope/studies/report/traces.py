"""Figures of sizes that grow or shrink from call to call: lengths, distances, eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loopscope.plot.canvas import (
    FAINT,
    MARKERS,
    PAPER,
    SERIES,
    WIDE,
    Canvas,
    check_some,
    common_legend,
    doubling_axis,
    panels_of,
    size_axis,
)
from loopscope.studies.report.contents import Figure
from loopscope.studies.report.drawing import draw

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
        titles, along = [panel.title for panel in panels], [panel.x for panel in panels]
        drawn, grid = panels_of(width, titles, along, height=195)
        for axes, panel in zip(grid, panels, strict=True):
            axes.axhline(1.0, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
            for trace in panel.traces:
                index, points = shown.index(trace.name), trace.points
                colour, doubled = SERIES[index % len(SERIES)], [place.bit_count() == 1 for place, _ in points]
                axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.8, label=trace.name,
                          marker=MARKERS[index % len(MARKERS)], markersize=5, markevery=doubled)  # fmt: skip
                if trace.ring in dict(points):
                    axes.plot(trace.ring, dict(points)[trace.ring], "o", markeredgecolor=colour, markersize=11,
                              markerfacecolor=PAPER, markeredgewidth=1.8)  # fmt: skip
            size_axis(axes)
            doubling_axis(axes, max((len(trace.sizes) for trace in panel.traces), default=1))
        common_legend(drawn, grid, 4 if width == WIDE else 2)
        return drawn

    text = " ".join(_words(panel, trace) for panel in panels for trace in panel.traces)
    return draw(name, title, caption, text, plot)


def _words(panel: Panel, trace: Trace) -> str:
    points = trace.points
    every = max(1, -(-len(points) // SPOKEN))
    sizes = [f"{size:.3g} at {place}" for place, size in (*points[:-1:every], *points[-1:])]
    missing = len(trace.sizes) - len(points)
    sizes += [f"{missing} of {len(trace.sizes)} cannot be drawn"] if missing else []
    return f"{panel.title}, {trace.name}: {', '.join(sizes)}."
