"""Shares as dots with their intervals, the paper's beside them as hollow diamonds.  Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loopscope.plot.canvas import (
    BLUE,
    FAINT,
    INK,
    MARKERS,
    ORANGE,
    PAPER,
    RULE,
    SERIES,
    WIDE,
    Canvas,
    canvas,
    check_some,
    heading,
    percent_axis,
)
from loopscope.plot.cells import dot
from loopscope.quantity import QuantityTable
from loopscope.stats import Estimate
from loopscope.studies.report.contents import Figure, percent
from loopscope.studies.report.drawing import draw

OURS = "ours, with 95 % interval"


@dataclass(frozen=True)
class Spot:
    """One row: the share of each series that has one, and what the paper printed."""

    name: str
    shares: Mapping[str, Estimate]
    paper: float | None = None


def rates(name: str, title: str, caption: str, tables: Sequence[QuantityTable]) -> Figure:
    """Every row of the tables as a dot; several tables have their titles above their rows."""
    groups = [
        (table.title, [Spot(row.label, {OURS: row.estimate}, row.published) for row in table.rows]) for table in tables
    ]
    words = [
        f"{row.label}: {percent(row.estimate.value)} %"
        + ("" if row.published is None else f" (paper {percent(row.published)})")
        for table in tables
        for row in table.rows
    ]  # fmt: skip
    return _dots(name, title, caption, groups, (OURS,), "; ".join(words) + ".")


def dots(name: str, title: str, caption: str, groups: Mapping[str, Sequence[Spot]], series: Sequence[str]) -> Figure:
    """Groups of rows under their headings; in a row a dot for each series, in its colour and with its marker."""

    def words(group: str, spot: Spot) -> str:
        shares = ", ".join(f"{each} {percent(share.value)} %" for each, share in spot.shares.items())
        return f"{group}, {spot.name}: {shares}{'' if spot.paper is None else f' (paper {percent(spot.paper)})'}"

    text = "; ".join(words(group, spot) for group, spots in groups.items() for spot in spots)
    return _dots(name, title, caption, list(groups.items()), series, f"{text}.")


def _dots(
    name: str, title: str, caption: str, groups: Sequence[tuple[str, Sequence[Spot]]], series: Sequence[str], text: str
) -> Figure:
    spots = [spot for _, group in groups for spot in group]
    check_some(name, spots)
    low = -1.0 if any(share.value < 0 for spot in spots for share in spot.shares.values()) else 0.0

    def plot(width: int) -> Canvas:
        wide = width == WIDE
        apart = 0.62 if wide else 0.42
        places, headings, place = [], [], 0.0
        for number, (group, rows) in enumerate(groups):
            if len(groups) > 1:
                place += 0.35 if number else 0.0
                headings.append((place, group))
                place += 1
            for spot in rows:  # a row is as high as its dots need; its name stands in the middle, or above them
                more = apart * (max(1, len(spot.shares)) - 1)
                places.append(place + more / 2 if wide else place)
                place += 1 + more
        drawn = canvas(width, round(66 + place * (23 if wide else 36)))
        axes = drawn.subplots()
        for at, spot in zip(places, spots, strict=True):
            if not wide:
                axes.text(low, at - 0.45, spot.name, va="center_baseline")
            first = at - apart * (len(spot.shares) - 1) / 2 if wide else at
            for lane, (which, share) in enumerate(spot.shares.items()):
                dot(axes, first + lane * apart, share.value, share.low, share.high, series.index(which),
                    percent(share.value))  # fmt: skip
            if spot.paper is not None:
                axes.plot(
                    spot.paper, at, "D", markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.2,
                    markersize=6.5,
                )  # fmt: skip
        for at, group in headings:
            axes.text(0.0, at, group, transform=axes.get_yaxis_transform(), weight="bold", va="center_baseline")
        axes.set_yticks(places, [spot.name if wide else "" for spot in spots], color=INK)
        axes.set_ylim(place - 0.4, -0.6 if wide or headings else -0.9)
        percent_axis(axes, horizontal=True, low=low)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("%")
        shown = [which for which in series if any(which in spot.shares for spot in spots)]
        columns = 2 if wide or len(shown) == 1 else 1
        for which in shown:
            number = series.index(which)
            axes.plot([], [], MARKERS[number % len(MARKERS)], color=SERIES[number % len(SERIES)], markersize=6.5,
                      label=heading(which, width, columns) if len(shown) > 1 else which)  # fmt: skip
        if any(spot.paper is not None for spot in spots):
            axes.plot([], [], "D", markerfacecolor="none", markeredgecolor=INK, markersize=6.5, label="paper")
        drawn.legend(loc="outside upper left", ncols=columns, handlelength=1.0, handletextpad=0.4)
        return drawn

    return draw(name, title, caption, text, plot)


# ---- a search --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A step of a search: what rescue and damage give in every scope that it tried, and which of them it took."""

    name: str
    scopes: Sequence[tuple[float, float]]
    taken: int | None = None


@dataclass(frozen=True)
class Search:
    """The steps in order, and what rescue must keep and damage may leave for a scope to pass."""

    steps: Sequence[Step]
    keeps: float
    leaves: float


def searches(name: str, title: str, caption: str, panels: Mapping[str, Search]) -> Figure:
    """A row for every step: rescue above, damage below; marks grow with the number of scopes, filled ones are taken."""
    check_some(name, panels)

    def plot(width: int) -> Canvas:
        wide = width == WIDE
        heights = [40 + len(search.steps) * (30 if wide else 46) for search in panels.values()]
        drawn = canvas(width, 40 + sum(heights))
        grid = drawn.subplots(len(panels), 1, squeeze=False, height_ratios=heights).flatten()
        for axes, (label, search) in zip(grid, panels.items(), strict=True):
            for bound in (search.keeps, search.leaves):
                axes.axvline(bound, color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)))
            for place, step in enumerate(search.steps):
                for lane, (colour, marker, offset) in enumerate(((BLUE, "o", -0.16), (ORANGE, "s", 0.16))):
                    at = place + offset if wide else place + 0.14 + 0.8 * offset
                    shares = [scope[lane] for scope in step.scopes]
                    for share in dict.fromkeys(shares):
                        axes.plot(share, at, marker, markersize=min(13.0, 3.6 + shares.count(share) ** 0.5),
                                  color=colour, alpha=0.35, markeredgewidth=0)  # fmt: skip
                    if step.taken is not None:
                        axes.plot(shares[step.taken], at, marker, color=colour, markeredgecolor=PAPER, markersize=7.5)
                if not wide:
                    axes.text(0.0, place - 0.34, step.name, va="center_baseline")
                if place:
                    axes.axhline(place - 0.5, color=RULE, linewidth=0.6)
            axes.set_yticks(range(len(search.steps)), [step.name if wide else "" for step in search.steps], color=INK)
            axes.set_ylim(len(search.steps) - 0.45, -0.55)
            axes.set_title(heading(label, width, 1))
            percent_axis(axes, horizontal=True)
            axes.spines["left"].set_visible(False)
        grid[-1].set_xlabel("right, %")
        for colour, marker, said in ((BLUE, "o", "rescue"), (ORANGE, "s", "damage")):
            grid[0].plot([], [], marker, color=colour, markersize=7.5, label=said)
        drawn.legend(*grid[0].get_legend_handles_labels(), loc="outside upper left", ncols=2, handlelength=1.0)
        return drawn

    def words(label: str, step: Step) -> str:
        if step.taken is None:
            return f"{label}, {step.name}: {len(step.scopes)} tried, none taken"
        rescue, damage = (percent(share) for share in step.scopes[step.taken])
        return f"{label}, {step.name}: {len(step.scopes)} tried, taken: rescue {rescue} %, damage {damage} %"

    text = "; ".join(words(label, step) for label, search in panels.items() for step in search.steps)
    return draw(name, title, caption, f"{text}.", plot)
