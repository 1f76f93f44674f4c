"""Tables as dots with intervals: right answers, quantities, scopes of a search; and attribution beside the exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from loopscope.errors import InputError
from loopscope.plot.canvas import MARKERS, WIDE, Axes, Canvas, canvas, check_some, panels_of, percent_axis
from loopscope.plot.cells import dot
from loopscope.plot.heat import sweep
from loopscope.plot.look import Look, entitled, label_of
from loopscope.plot.words import rounded, values_of, visible
from loopscope.table import Table

MOST_ROWS = 80
"""Rows of dots in one picture."""


@dataclass(frozen=True)
class Dots:
    """A row of dots: its name, and the value, low and high end of each series that it has."""

    name: str
    found: dict[str, tuple[float, float, float]] = field(default_factory=dict)


def right(table: Table, look: Look) -> Canvas:
    """Shares of right answers of every condition, of all examples and by steps."""
    rows: dict[str, Dots] = {}
    steps = values_of(table, "steps") if "steps" in table.names else [None] * len(table)
    for number, condition in enumerate(table["condition"].tolist()):
        series = "all" if steps[number] is None else f"{steps[number]} {'step' if steps[number] == 1 else 'steps'}"
        found = tuple(float(table[f"right{end}"][number]) for end in ("", "_low", "_high"))
        rows.setdefault(condition, Dots(condition)).found[series] = (found[0], found[1], found[2])
    return entitled(draw_dots(list(rows.values()), "right, %", look, shares=True), "Right answers")


def quantities(table: Table, look: Look) -> Canvas:
    """Quantities of records: a dot for each, as they come."""
    rows = []
    for row in table:
        names = [str(row[name]) for name in ("model", "id", "at") if row.get(name)]
        found = [row[name] for name in ("value", "low", "high")]
        numbers = [math.nan if each is None else float(each) for each in found]
        rows.append(Dots(" ".join(names), {"": (numbers[0], numbers[1], numbers[2])}))
    values = np.array([row.found[""] for row in rows])
    shares = bool(len(values)) and bool(np.nanmin(values) >= -1) and bool(np.nanmax(values) <= 1)
    return entitled(draw_dots(rows, "%" if shares else "value", look, shares=shares), "Quantities")


def search(table: Table, look: Look) -> Canvas:
    """What rescue and damage gave in every scope of a search, step by step; filled where the scope passed."""
    pairs = int(table.about.get("pairs", 0)) or 1
    steps = list(dict.fromkeys(table["step"].tolist()))
    check_some("search", steps)
    palette = look.palette
    drawn = canvas(look.width, 100 + 30 * len(steps))
    axes = drawn.subplots()
    for at, step in enumerate(steps):
        mine = table.where(step=step)
        for name, colour, marker, off in (
            ("rescued", palette.blue, "o", -0.16),
            ("damaged", palette.orange, "s", 0.16),
        ):
            shares = mine[name] / pairs
            for passed in (False, True):
                some = shares[mine["passed"] == passed]
                axes.plot(some, np.full(len(some), at + off), marker, markersize=6 if passed else 5, color=colour,
                          alpha=1.0 if passed else 0.35, markeredgewidth=0)  # fmt: skip
        if at:
            axes.axhline(at - 0.5, color=palette.rule, linewidth=0.6)
    for colour, marker, name in ((palette.blue, "o", "rescue"), (palette.orange, "s", "damage")):
        axes.plot([], [], marker, color=colour, label=name)
    axes.set_yticks(range(len(steps)), [visible_step(step) for step in steps], color=palette.ink)
    axes.set_ylim(len(steps) - 0.45, -0.55)
    percent_axis(axes, horizontal=True)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("right, %")
    drawn.legend(loc="outside lower left", ncols=2, handlelength=1.0)
    return entitled(drawn, f"The search for heads: {table.about.get('heads', '')}")


def visible_step(step: str) -> str:
    """A step as a label."""
    return step if len(step) <= 30 else f"{step[:29]}…"


def attribution(table: Table, look: Look, value: str = "") -> Canvas:
    """Each place's approximate number against the exact one; without exact ones, a map of the approximate."""
    if value or "exact" not in table.names:
        return sweep(table, look, value or "approximate")
    exact, guess = table["exact"], table["approximate"]
    drawn, (axes,) = panels_of(look.width if look.width < WIDE else 520, [""], "exact", height=400, above=40)
    axes.axhline(0, color=look.palette.rule, linewidth=0.8)
    axes.axvline(0, color=look.palette.rule, linewidth=0.8)
    ends = [float(min(np.nanmin(exact), np.nanmin(guess))), float(max(np.nanmax(exact), np.nanmax(guess)))]
    axes.plot(ends, ends, color=look.palette.faint, linewidth=0.9, linestyle=(0, (1, 2)))
    components = list(dict.fromkeys(table["component"].tolist())) if "component" in table.names else [""]
    for number, component in enumerate(components):
        mine = table["component"] == component if "component" in table.names else np.ones(len(table), dtype=bool)
        axes.plot(exact[mine], guess[mine], MARKERS[number % len(MARKERS)], markersize=5, alpha=0.7, label=component,
                  color=look.palette.series[number % len(look.palette.series)], markeredgewidth=0)  # fmt: skip
    _name_furthest(axes, table, look)
    axes.set_ylabel("approximate")
    axes.grid(True)
    axes.tick_params(length=0)
    if len(components) > 1:
        drawn.legend(loc="outside lower left", ncols=4, handlelength=1.0)
    said = label_of("value", table.about)
    rank = table.about.get("rank correlation")
    found = rank.get("value") if isinstance(rank, dict) else rank
    more = f", rank correlation {rounded(float(found))}" if isinstance(found, int | float) else ""
    return entitled(drawn, f"Attribution of {said}{more}")


def _name_furthest(axes: Axes, table: Table, look: Look) -> None:
    """The places with the largest exact numbers by name."""
    exact, guess = table["exact"], table["approximate"]
    for at, up in zip(np.argsort(-np.abs(np.nan_to_num(exact))), (4, -11, 14), strict=False):
        left = exact[at] > np.nanmean([np.nanmin(exact), np.nanmax(exact)])
        axes.annotate(str(table["place"][at]), (exact[at], guess[at]), textcoords="offset points", fontsize=8.5,
                      xytext=(-6 if left else 6, up), ha="right" if left else "left", color=look.palette.faint,
                      parse_math=False)  # fmt: skip


def draw_dots(rows: Sequence[Dots], x: str, look: Look, *, shares: bool) -> Canvas:
    """Rows of dots with their names at the left and their numbers at the right; a series has a colour and a marker."""
    if not rows:
        raise InputError("there is nothing to draw: the table has no rows")
    if len(rows) > MOST_ROWS:
        raise InputError(f"{len(rows):,} rows of dots are more than {MOST_ROWS}; choose some with where(...)")
    series = list(dict.fromkeys(name for row in rows for name in row.found))
    apart = 0.62
    places, place = [], 0.0
    for row in rows:
        places.append(place + apart * (len(row.found) - 1) / 2)
        place += 1 + apart * (len(row.found) - 1)
    drawn = canvas(look.width, round(100 + place * 23))
    axes = drawn.subplots()
    for at, row in zip(places, rows, strict=True):
        first = at - apart * (len(row.found) - 1) / 2
        for lane, (name, (value, low, high)) in enumerate(row.found.items()):
            said = f"{100 * value:.1f}" if shares else rounded(value)
            dot(axes, first + lane * apart, value, low, high, series.index(name), said, look.palette)
    names = [visible_name(row.name, 44 if look.width >= WIDE else 22) for row in rows]
    axes.set_yticks(places, names, color=look.palette.ink, parse_math=False)
    axes.set_ylim(place - 0.4, -0.6)
    if shares:
        lowest = (
            min(found[1] for row in rows for found in row.found.values() if not math.isnan(found[1])) if rows else 0
        )
        percent_axis(axes, horizontal=True, low=-1.0 if lowest < 0 else 0.0)
    else:
        axes.grid(True, axis="x")
        axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(x)
    if len(series) > 1:
        for number, name in enumerate(series):
            axes.plot([], [], MARKERS[number % len(MARKERS)], label=name,
                      color=look.palette.series[number % len(look.palette.series)])  # fmt: skip
        drawn.legend(loc="outside lower left", ncols=4, handlelength=1.0)
    return drawn


def visible_name(name: str, most: int) -> str:
    """A name as a label, its middle left out where it is long."""
    said = visible(name).replace("·", " ")
    return said if len(said) <= most else f"{said[: most // 2 - 1]}…{said[-(most - most // 2) :]}"
