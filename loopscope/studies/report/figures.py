"""The figures of the report, each a function from plain numbers to a `Figure`.

Every function takes `name` (file name and anchor), `title` (a few words) and `caption` (what the reader should know:
population, n, what the intervals resample).  Shares are in [0, 1] and shown in per cent.  Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loopscope.plot.canvas import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    MARKERS,
    ORANGE,
    PAPER,
    PURPLE,
    RULE,
    SERIES,
    WIDE,
    Axes,
    Canvas,
    canvas,
    check_some,
    common_legend,
    doubling_axis,
    heading,
    panels_of,
    percent_axis,
)
from loopscope.plot.cells import line as banded
from loopscope.stats import Estimate
from loopscope.studies.report.contents import Figure, percent
from loopscope.studies.report.drawing import draw


@dataclass(frozen=True)
class Line:
    """A series by call; a control is drawn thinner and dashed.

    `at` says where the estimates stand if not at 1, 2, ...; `dots` are single measurements (place, share) behind them,
    `paper` what the paper printed (place, share), drawn as hollow diamonds.
    """

    name: str
    calls: Sequence[Estimate]
    control: bool = False
    at: Sequence[int | float] = ()
    dots: Sequence[tuple[float, float]] = ()
    paper: Sequence[tuple[float, float]] = ()

    @property
    def places(self) -> Sequence[int | float]:
        """Where the estimates stand."""
        return self.at or range(1, len(self.calls) + 1)


def stacked_answers(
    name: str, title: str, caption: str, answers: Mapping[str, Mapping[str, Estimate]], labels: Mapping[str, str]
) -> Figure:
    """One bar per condition, divided by answer in the order of `labels` (answer -> what it is called).

    Whiskers are the intervals of the shares, drawn at each part's end.  Every condition has every answer.
    """
    check_some(name, answers)

    def plot(width: int) -> Canvas:
        drawn = canvas(width, 62 + 34 * len(answers))
        axes = drawn.subplots()
        _stack(axes, answers, labels, 0.08 if width == WIDE else 0.16)
        axes.set_xlabel("answers, %")
        drawn.legend(
            loc="outside upper left", ncols=len(labels), columnspacing=1.1, handlelength=0.9, handletextpad=0.4
        )
        return drawn

    return draw(name, title, caption, _stack_in_words(answers, labels), plot)


def stacked_panels(
    name: str, title: str, caption: str, panels: Mapping[str, Mapping[str, Mapping[str, Estimate]]],
    labels: Mapping[str, str],
) -> Figure:  # fmt: skip
    """The same for several models: a panel for each, which need not have the same conditions.

    There is less room, so small parts have no whiskers.
    """
    check_some(name, panels)

    def plot(width: int) -> Canvas:
        columns = min(len(panels), 2) if width == WIDE else 1
        rows = [list(panels.items())[first : first + columns] for first in range(0, len(panels), columns)]
        heights = [46 + 25 * max(len(answers) for _, answers in row) for row in rows]
        drawn = canvas(width, 40 + sum(heights))
        grid = drawn.subplots(len(rows), columns, squeeze=False, height_ratios=heights).flatten()
        for axes, (label, answers) in zip(grid, panels.items(), strict=False):
            _stack(axes, answers, labels, 0.15 if columns > 1 else 0.18, whiskers=0.1)
            axes.set_title(heading(label, round(0.7 * width), columns))  # it begins where the bars do
        for axes in grid[len(panels) :]:
            axes.remove()
        for axes in grid[max(0, len(panels) - columns) : len(panels)]:
            axes.set_xlabel("answers, %")
        drawn.legend(
            *grid[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(labels) if width == WIDE else 2,
            columnspacing=1.1, handlelength=0.9, handletextpad=0.4,
        )  # fmt: skip
        return drawn

    text = " ".join(f"{label}: {_stack_in_words(answers, labels)}" for label, answers in panels.items())
    return draw(name, title, caption, text, plot)


PARTS, MORE_PARTS = (GREY, BLUE, ORANGE, PURPLE, FAINT), (GREY, BLUE, ORANGE, PURPLE, GREEN, INK)
"""The colours of a bar of up to five parts, and of six."""


def _stack(
    axes: Axes, answers: Mapping[str, Mapping[str, Estimate]], labels: Mapping[str, str], smallest: float,
    whiskers: float = 0.0,
) -> None:  # fmt: skip
    """A bar per condition; parts from the share `smallest` on have their number in them, from `whiskers` on these."""
    for place, parts in enumerate(answers.values()):
        start = 0.0
        for colour, answer in zip(MORE_PARTS if len(labels) > len(PARTS) else PARTS, labels, strict=False):
            part = parts[answer]
            axes.barh(place, part.value, 0.66, start, color=colour, edgecolor=PAPER, linewidth=1.0,
                      label=labels[answer] if place == 0 else None)  # fmt: skip
            if part.value >= smallest:
                axes.text(start + part.value / 2, place, percent(part.value), color=PAPER, ha="center",
                          va="center_baseline")  # fmt: skip
            start += part.value
            if answer != list(labels)[-1] and part.value >= whiskers:
                _whisker(axes, place + 0.42, part, start - part.value)
    axes.set_yticks(range(len(answers)), list(answers), color=INK)
    axes.set_ylim(len(answers) - 0.45, -0.55)
    percent_axis(axes, horizontal=True)
    axes.spines["left"].set_visible(False)


def _stack_in_words(answers: Mapping[str, Mapping[str, Estimate]], labels: Mapping[str, str]) -> str:
    return " ".join(
        f"{condition}: " + ", ".join(f"{labels[each]} {percent(parts[each].value)} %" for each in labels) + "."
        for condition, parts in answers.items()
    )


def lines_by_call(name: str, title: str, caption: str, lines: Sequence[Line]) -> Figure:
    """Accuracy at calls 1, 2, ... for several series, each with its interval as a band."""
    check_some(name, lines)

    def plot(width: int) -> Canvas:
        drawn = canvas(width, 330 if width == WIDE else 300 + 8 * len(lines))
        axes = drawn.subplots()
        for index, line in enumerate(lines):
            _line(axes, line, index)
        axes.set_xticks(range(1, 1 + max(len(line.calls) for line in lines)))
        percent_axis(axes, horizontal=False)
        axes.set_xlabel("call after the trained loops")
        axes.set_ylabel("right, %")
        drawn.legend(loc="outside upper left", ncols=4 if width == WIDE else 2, columnspacing=1.2)
        return drawn

    words = [f"{line.name}: " + " ".join(percent(each.value) for each in line.calls) + "." for line in lines]
    return draw(name, title, caption, "Per cent right by call. " + " ".join(words), plot)


def lines_in_panels(
    name: str, title: str, caption: str, panels: Mapping[str, Sequence[Line]], x: str,
    shaded: tuple[float, float] | None = None, doublings: bool = False, share: str = "right",
) -> Figure:  # fmt: skip
    """Long series in panels, a grey region behind them; `doublings`: places 1, 2, 4, 8, ... are equally far apart.

    `share` is what the percentages are of.
    """
    check_some(name, panels)
    shown = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))

    def plot(width: int) -> Canvas:
        drawn, grid = panels_of(width, [*panels], x, f"{share}, %")
        for axes, lines in zip(grid, panels.values(), strict=True):
            if shaded is not None:
                axes.axvspan(*shaded, color=RULE, alpha=0.55, linewidth=0, zorder=0)
            for line in lines:
                _line(axes, line, shown.index(line.name), markers=len(line.calls) <= MARKED)
            last = max(place for line in lines for place in line.places)
            if doublings:
                doubling_axis(axes, last)
            elif last <= COUNTED:
                axes.set_xticks(range(1, round(last) + 1))
        common_legend(drawn, grid, 4 if width == WIDE else 2)
        return drawn

    def words(label: str, line: Line) -> str:
        every = -(-len(line.calls) // SPOKEN)
        points = list(zip(line.places, line.calls, strict=True))
        values = ", ".join(f"{percent(each.value)} at {place:g}" for place, each in (*points[:-1:every], points[-1]))
        paper = ", ".join(f"{percent(share)} at {place:g}" for place, share in line.paper)
        return f"{label}, {line.name}: {values}{f' (paper: {paper})' if paper else ''}."

    text = " ".join(words(label, line) for label, lines in panels.items() for line in lines)
    return draw(name, title, caption, f"Per cent right by {x}. {text}", plot)


MARKED, SPOKEN = 40, 12
"""A longer series has no markers, and is told by so many points."""

COUNTED = 12
"""Up to here every place has its number on the axis."""


def _line(axes: Axes, line: Line, index: int, markers: bool = True) -> None:
    """A series with its interval as a band, in the colour and with the marker of its number."""
    colour, places = SERIES[index % len(SERIES)], line.places
    if line.dots:  # one path for all of them, of strokes too short to be seen as such
        axes.plot(*np.array([each for x, y in line.dots for each in ((x, y), (x + 1e-3, y), (x, np.nan))]).T,
                  color=colour, alpha=0.3, linewidth=2.4, solid_capstyle="round")  # fmt: skip
    band = [each.low for each in line.calls], [each.high for each in line.calls]
    banded(
        axes, places, [each.value for each in line.calls], band, index, line.name, thin=line.control, markers=markers
    )
    if line.paper:
        axes.plot(*zip(*line.paper, strict=True), "D", markerfacecolor="none", markeredgecolor=colour,
                  markeredgewidth=1.2, markersize=7.5, clip_on=False)  # fmt: skip
        axes.plot([], [], "D", markerfacecolor="none", markeredgecolor=INK, markersize=6.5, label="paper")


def paired(
    name: str, title: str, caption: str, panels: Mapping[str, Sequence[tuple[float, float]]],
    sides: tuple[str, str] = ("final-only", "stepwise"),
) -> Figure:  # fmt: skip
    """Pairs of backbones joined by lines, one panel per task; a short bar is the mean of each side."""
    check_some(name, panels)

    def plot(width: int) -> Canvas:
        drawn = canvas(width, 290)
        grid = drawn.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (label, pairs) in zip(grid, panels.items(), strict=True):
            for index, pair in enumerate(pairs):
                axes.plot((0, 1), pair, color=GREY, linewidth=1.0, zorder=1)
                for side, colour in enumerate((BLUE, ORANGE)):
                    axes.plot(side, pair[side], MARKERS[index % len(MARKERS)], color=colour, markersize=6.5, zorder=2)
            for side in (0, 1):
                mean = float(np.mean([pair[side] for pair in pairs]))
                axes.plot((side - 0.16, side + 0.16), (mean, mean), color=INK, linewidth=2.4, zorder=3)
            axes.set_title(heading(label, width, len(panels)))
            axes.set_xticks((0, 1), sides, color=INK)
            axes.set_xlim(-0.45, 1.45)
            percent_axis(axes, horizontal=False)
        grid[0].set_ylabel("right, %")
        return drawn

    def words(label: str, pairs: Sequence[tuple[float, float]]) -> str:
        return f"{label}, {sides[0]} and {sides[1]}: " + "; ".join(" ".join(map(percent, pair)) for pair in pairs) + "."

    return draw(name, title, caption, " ".join(words(*panel) for panel in panels.items()), plot)


def curves(
    name: str, title: str, caption: str, panels: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], x: str
) -> Figure:
    """Accuracy against a count such as updates: panel -> series -> points.  A series has one colour in all panels."""
    check_some(name, panels)
    shown = list(dict.fromkeys(series for panel in panels.values() for series in panel))

    def plot(width: int) -> Canvas:
        drawn, grid = panels_of(width, [*panels], x, "right, %", height=230, above=40, rows_alike=True)
        for axes, panel in zip(grid, panels.values(), strict=True):
            for series, points in panel.items():
                index = shown.index(series)
                axes.plot(*zip(*points, strict=True), color=SERIES[index % len(SERIES)], linewidth=1.6, label=series,
                          linestyle="-" if index < len(SERIES) else (0, (3, 2)))  # fmt: skip
        common_legend(drawn, grid, 5 if width == WIDE else 2)
        return drawn

    words = [
        f"{label}, {series}: "
        + " to ".join(f"{percent(share)} at {count:,}" for count, share in (points[0], points[-1]))
        for label, panel in panels.items()
        for series, points in panel.items()
    ]
    return draw(name, title, caption, f"Per cent right by {x}. {'; '.join(words)}.", plot)


def components(
    name: str, title: str, caption: str, panels: Mapping[str, Mapping[str, Mapping[str, Estimate]]]
) -> Figure:
    """Grouped bars: panel (direction of the exchange) -> component -> layer.  A layer missing somewhere is left out."""
    check_some(name, panels)
    layers = list(dict.fromkeys(layer for panel in panels.values() for bars in panel.values() for layer in bars))
    shown = list(dict.fromkeys(component for panel in panels.values() for component in panel))

    def plot(width: int) -> Canvas:
        side_by_side = width == WIDE
        height = 56 + len(shown) * (8 + 12 * len(layers))
        shape = (1, len(panels)) if side_by_side else (len(panels), 1)
        drawn = canvas(width, height if side_by_side else height * len(panels))
        grid = drawn.subplots(*shape, sharey=True, squeeze=False).flatten()
        thick = 0.84 / len(layers)
        for axes, (label, panel) in zip(grid, panels.items(), strict=True):
            for index, layer in enumerate(layers):
                there = [
                    (place, panel[each][layer]) for place, each in enumerate(shown) if layer in panel.get(each, {})
                ]
                at = [place + (index - (len(layers) - 1) / 2) * thick for place, _ in there]
                axes.barh(
                    at, [bar.value for _, bar in there], 0.88 * thick, color=SERIES[index % len(SERIES)], label=layer
                )
                for place, (_, bar) in zip(at, there, strict=True):
                    _whisker(axes, place, bar)
            axes.set_title(heading(label, width, shape[1]))
            axes.set_yticks(range(len(shown)), shown, color=INK)
            axes.set_ylim(len(shown) - 0.5, -0.5)
            percent_axis(axes, horizontal=True)
        grid[-1].set_xlabel("switched to the giver's target, %")
        if side_by_side:
            for axes in grid[:-1]:
                axes.set_xlabel("switched to the giver's target, %")
        handles, names = grid[0].get_legend_handles_labels()
        drawn.legend(handles, names, loc="outside upper left", ncols=len(layers), handlelength=0.9, handletextpad=0.4)
        return drawn

    def words(label: str, panel: Mapping[str, Mapping[str, Estimate]]) -> str:
        parts = (f"{each} " + ", ".join(f"{layer} {percent(bar.value)}" for layer, bar in bars.items())
                 for each, bars in panel.items())  # fmt: skip
        return f"{label}, per cent: " + "; ".join(parts) + "."

    return draw(name, title, caption, " ".join(words(*panel) for panel in panels.items()), plot)


def subsets(
    name: str, title: str, caption: str, panels: Mapping[str, Mapping[tuple[int, ...], Estimate]], heads: int
) -> Figure:
    """A bar for every subset of heads, whose members are the filled dots of a matrix; smaller subsets come first."""
    check_some(name, panels)
    rows = sorted({subset for panel in panels.values() for subset in panel}, key=lambda subset: (len(subset), subset))

    def plot(width: int) -> Canvas:
        drawn = canvas(width, 62 + 19 * len(rows))
        ratios = [0.22 if width == WIDE else 0.62, *[1.0] * len(panels)]
        matrix, *grid = drawn.subplots(1, 1 + len(panels), sharey=True, width_ratios=ratios, squeeze=False)[0]
        for place, subset in enumerate(rows):
            matrix.plot(range(heads), [place] * heads, "o", color=RULE, markersize=6)
            matrix.plot(subset, [place] * len(subset), "o-", color=INK, markersize=6, linewidth=1.6)
        matrix.set_xticks(range(heads), [str(head) for head in range(heads)], color=INK)
        matrix.set_yticks([])
        matrix.set_xlim(-0.6, heads - 0.4)
        matrix.set_title("heads")
        matrix.tick_params(length=0)
        for spine in matrix.spines.values():
            spine.set_visible(False)
        for axes, (label, panel) in zip(grid, panels.items(), strict=True):
            for place, subset in enumerate(rows):
                if subset in panel:
                    axes.barh(place, panel[subset].value, 0.62, color=BLUE)
                    _whisker(axes, place, panel[subset])
            axes.set_title(heading(label, width, len(panels) + 1))
            axes.set_ylim(len(rows) - 0.4, -0.6)
            percent_axis(axes, horizontal=True)
            axes.set_xlabel("%")
        return drawn

    def words(label: str, panel: Mapping[tuple[int, ...], Estimate]) -> str:
        bars = (
            f"heads {'+'.join(map(str, subset))} {percent(panel[subset].value)}" for subset in rows if subset in panel
        )
        return f"{label}, per cent: " + "; ".join(bars) + "."

    return draw(name, title, caption, " ".join(words(*panel) for panel in panels.items()), plot)


def _whisker(axes: Axes, place: float | int, estimate: Estimate, start: float = 0.0) -> None:
    """The interval of a bar, unless it is too short to be seen."""
    if estimate.high - estimate.low > 0.002:
        axes.plot(
            (start + estimate.low, start + estimate.high),
            (place, place),
            color=INK,
            linewidth=1.2,
            marker="|",
            markersize=4,
        )
