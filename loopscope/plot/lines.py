"""Tables as lines by loop, with intervals as bands: trajectories, starts, contraction, ranks, exits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopscope.errors import InputError
from loopscope.plot.canvas import (
    WIDE,
    Axes,
    Canvas,
    MaxNLocator,
    canvas,
    check_some,
    common_legend,
    heading,
    panels_of,
)
from loopscope.plot.cells import line, mesh
from loopscope.plot.look import SHARES, Look, entitled, label_of, scale_of
from loopscope.plot.words import in_order, short, ticks, values_of
from loopscope.table import Cell, Table

MOST_LINES = 6
"""Series in one panel; more of them are drawn as maps, a row each."""

NAMES = {
    "norm": "length of the state", "step": "length of the step", "relative": "step over length",
    "turn": "cosine of steps", "cosine": "cosine to the loop before", "distance": "distance to the end",
    "agreement": "answers as at the end",
}  # fmt: skip
"""What panels of trajectories are called."""


def trajectories(table: Table, look: Look) -> Canvas:
    """Lengths, steps, turns and distances by loop: a line for every place and row."""
    return entitled(by_loop(table, tuple(NAMES), ("place", "row"), look, NAMES), f"Trajectories{_of(table)}")


def starts(table: Table, look: Look) -> Canvas:
    """How far apart runs from several starts are."""
    names = {"distance": "distance over length", "cosine": "cosine", "agreement": "same answer"}
    return entitled(by_loop(table, tuple(names), ("row",), look, names), f"Runs from several starts{_of(table)}")


def contraction(table: Table, look: Look) -> Canvas:
    """The largest singular value of every call's Jacobian, how often it is below 1, and whether it has settled."""
    names = {"singular": "largest singular value", "below": "share below 1", "change": "last change, as a share"}
    drawn = by_loop(table, tuple(names), (), look, names)
    drawn.axes[0].axhline(1.0, color=look.palette.faint, linewidth=0.9, linestyle=(0, (1, 2)))
    return entitled(drawn, f"Contraction{_of(table)}")


def ranks(table: Table, look: Look) -> Canvas:
    """How likely given answers are after every loop."""
    names = {
        "rank": "mean rank",
        "first": "share first",
        "probability": "mean probability",
        "log": "mean log probability",
    }
    drawn = by_loop(table, tuple(names), ("answer", "place", "row"), look, names)
    return entitled(drawn, f"Given answers{_of(table)}")


def exits(table: Table, look: Look) -> Canvas:
    """Accuracy, or agreement with the last loop, against the mean number of loops: a line for every rule."""
    measure = "accuracy" if "accuracy" in table.names else "agreement"
    rules = list(dict.fromkeys(table["rule"].tolist()))
    check_some("exits", rules)
    drawn, (axes,) = panels_of(look.width, [""], "mean number of loops", height=330, above=50)
    order = [*(rule for rule in rules if rule != "loops"), *(rule for rule in rules if rule == "loops")]
    for number, rule in enumerate(order):
        mine = table.where(rule=rule)
        sort = np.argsort(mine["loops"], kind="stable")
        band = (mine[f"{measure}_low"][sort], mine[f"{measure}_high"][sort])
        shown = "no look (loops)" if rule == "loops" else rule
        line(axes, mine["loops"][sort], mine[measure][sort], band, number, shown, thin=number >= 6 or rule == "loops",
             palette=look.palette)  # fmt: skip
    axes.set_ylabel("right" if measure == "accuracy" else "answer as at the end")
    _measure_axis(axes, measure)
    common_legend(drawn, [axes], 4 if look.width >= WIDE else 2, below=True)
    return entitled(drawn, f"When a run could have stopped{_of(table)}")


def profile(table: Table, value: str, x: str, look: Look) -> Canvas:
    """One number along one axis, with its interval as a band."""
    drawn, (axes,) = panels_of(look.width, [""], x, height=250, above=36)
    if x == "head":  # heads are in no order
        dots = table[value], *(table[f"{value}_{end}"] for end in ("low", "high") if value in table.estimated)
        axes.plot(table[x], dots[0], "o", color=look.palette.blue, markersize=6.5)
        if len(dots) == 3:
            axes.vlines(table[x], dots[1], dots[2], color=look.palette.blue, linewidth=2.2)
    else:
        _series(axes, table, value, x, 0, "", look)
    axes.set_ylabel(label_of(value, table.about))
    _measure_axis(axes, value)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return drawn


def by_loop(
    table: Table, measures: Sequence[str], by: Sequence[str], look: Look, names: dict[str, str] | None = None
) -> Canvas:
    """A panel for every measure that has any number, against the loop; a series for every value of the columns `by`."""
    shown = [name for name in measures if name in table.names and bool(np.isfinite(table[name]).any())]
    if not shown:
        raise InputError(f"{table.kind} have no numbers to draw")
    columns = {name: values_of(table, name) for name in by if name in table.names}
    several = [name for name, values in columns.items() if len(set(values)) > 1]
    keys = [tuple(columns[name][row] for name in several) for row in range(len(table))]
    series = list(dict.fromkeys(keys))
    titles = [(names or {}).get(name, name) for name in shown]
    if len(series) > MOST_LINES:
        return _as_maps(table, shown, titles, [_name(several, key) for key in keys], look)
    drawn, grid = panels_of(look.width, titles, "loop", height=190, above=44 if several else 24)
    for axes, name in zip(grid, shown, strict=True):
        for number, key in enumerate(series):
            mine = np.array([each == key for each in keys])
            some = Table(table.kind, {each: table[each][mine] for each in table.names})
            _series(axes, some, name, "loop", number, _name(several, key), look)
        _measure_axis(axes, name)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    if several:
        common_legend(drawn, grid, 4 if look.width >= WIDE else 2, below=True)
    return drawn


def _series(axes: Axes, table: Table, name: str, x: str, number: int, label: str, look: Look) -> None:
    places, values = table[x], table[name]
    there = np.isfinite(values)
    low, high = (table[f"{name}_{end}"] if name in table.estimated else values for end in ("low", "high"))
    band = (np.where(np.isfinite(low), low, values)[there], np.where(np.isfinite(high), high, values)[there])
    line(axes, places[there], values[there], band, number, label, markers=int(there.sum()) <= 20, palette=look.palette)


def _measure_axis(axes: Axes, name: str) -> None:
    axes.grid(True, axis="y")
    axes.tick_params(length=0)
    low, high = axes.get_ylim()
    if name in SHARES:
        axes.set_ylim(-0.03, 1.03)
    elif high - low < 1e-6 * max(abs(high), 1e-12):
        axes.set_ylim(low - 0.5, high + 0.5)


def _name(columns: Sequence[str], key: Sequence[Cell]) -> str:
    said = [f"row {each}" if name == "row" else short(each) for name, each in zip(columns, key, strict=True)]
    return ", ".join(said)


def _as_maps(table: Table, shown: Sequence[str], titles: Sequence[str], keys: Sequence[str], look: Look) -> Canvas:
    """A panel for every measure, a row for every series; each panel has colours of its own."""
    loops, series = in_order(values_of(table, "loop")), list(dict.fromkeys(keys))
    at = {loop: place for place, loop in enumerate(loops)}
    columns = 2 if look.width >= WIDE and len(shown) > 1 else 1
    rows, room = -(-len(shown) // columns), min(420, max(60, 13 * len(series)))
    drawn = canvas(look.width, 30 + rows * (room + 90))
    for index, name in enumerate(shown):
        axes = drawn.add_subplot(rows, columns, index + 1)
        values = np.full((len(series), len(loops)), np.nan)
        for row, (key, loop) in enumerate(zip(keys, values_of(table, "loop"), strict=True)):
            values[series.index(key), at[loop]] = table[name][row]
        scale = scale_of(values, name)
        cells = mesh(axes, values, low=scale.low, high=scale.high, palette=look.palette)
        ticks(axes, "x", [short(loop) for loop in loops], look.width / columns - 110)
        ticks(axes, "y", series, room)
        axes.tick_params(length=2)
        axes.spines[["top", "right"]].set_visible(True)
        axes.set_title(heading(titles[index], look.width, columns))
        axes.set_xlabel("loop")
        bar = drawn.colorbar(cells, ax=axes, location="right", fraction=0.04, pad=0.02, aspect=room / 9)
        bar.outline.set_edgecolor(look.palette.rule)
        bar.ax.tick_params(length=2, labelsize=9.5)
    return drawn


def _of(table: Table) -> str:
    return f": {table.about['program']}" if "program" in table.about else ""
