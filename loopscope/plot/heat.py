"""Tables as maps of colours: sweeps, ablations, spans, cosines of loops, changes of patterns, endings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from loopscope.errors import InputError, nearest
from loopscope.plot.canvas import WIDE, Canvas, heading
from loopscope.plot.cells import mesh, multiples, numbers, outer_labels
from loopscope.plot.lines import profile
from loopscope.plot.look import Look, Scale, entitled, label_of, scale_of
from loopscope.plot.words import in_order, rounded, short, ticks, upright, values_of
from loopscope.table import Cell, Table

PLACES = ("kind", "component", "stage", "at", "row", "loop", "layer", "head")
"""Columns that say where, those first that panels are made of."""

ACROSS = ("head", "row", "at", "loop", "place", "layer")
DOWN = ("layer", "place", "loop", "component", "stage", "row", "at", "head", "kind")
"""Which of them lie along the axes, the first that has several values."""

MOST_PANELS = 96
"""Panels that one picture has."""

TOLD = 144
"""Cells of all panels, up to which each has its number in it."""


@dataclass(frozen=True)
class Panel:
    """A map of one number: rows upwards along the column `y`, columns along `x`."""

    title: str
    values: Float[np.ndarray, "rows columns"]
    x: str
    y: str
    across: Sequence[str]
    down: Sequence[str]


def sweep(table: Table, look: Look, value: str = "", x: str = "", y: str = "") -> Canvas:
    """What a patch at each place does: by loop, layer and head, whichever there are several of.

    `value` is the column, by default the first with an interval; `x` and `y` are the columns along the axes.
    """
    chosen = _column(table, value or _default(table))
    for name in (x, y):
        _column(table, name) if name else None
    panels = _by_kind(table, chosen, x, y)
    return entitled(_drawn(table, chosen, panels, look), _title(table, chosen))


def ablations(table: Table, look: Look, value: str = "change") -> Canvas:
    """By how much the number changes where a place is taken out, or a call; a panel for each way."""
    chosen = _column(table, value)
    panels = _by_kind(table, chosen)
    title = _title(table, chosen, f"{label_of('value', table.about)}, {chosen}")
    return entitled(_drawn(table, chosen, panels, look), title)


def spans(table: Table, look: Look, value: str = "value") -> Canvas:
    """The first loop of a patch against its last: a panel for every place."""
    chosen = _column(table, value)
    return entitled(spread(table, chosen, ("row", "place"), look, "last", "first"), _title(table, chosen))


def paths(table: Table, look: Look, value: str = "value") -> Canvas:
    """What goes from each sender into the input of each receiver."""
    chosen = _column(table, value)
    return entitled(spread(table, chosen, ("row",), look, "receiver", "sender"), _title(table, chosen))


def similarities(table: Table, look: Look) -> Canvas:
    """The cosine of every two loops: a panel for every place."""
    drawn = spread(table, "cosine", ("row", "place"), look, "other", "loop")
    return entitled(drawn, _title(table, "cosine", "Cosine of the states of every two loops"))


def pattern_changes(table: Table, look: Look) -> Canvas:
    """How much each head looks elsewhere than in the loop before."""
    drawn = spread(table, "change", ("row", "loop", "place", "head"), look)
    return entitled(drawn, _title(table, "change", "Change of patterns from the loop before"))


def endings(table: Table, look: Look) -> Canvas:
    """The share of examples that end in each way, at every place."""
    drawn = spread(table, "share", ("row",), look, "ending", "place")
    return entitled(drawn, _title(table, "share", "Where states have come to"))


def _by_kind(table: Table, value: str, x: str = "", y: str = "") -> list[Panel]:
    """The panels of places in heads, then of those in layers, then of calls as they are: their axes differ."""
    parts = [name for name in ("layer", "head") if name in table.names]
    there = np.array([[each is not None for each in values_of(table, name)] for name in parts])
    depth = there.sum(0) if parts else np.zeros(len(table), dtype=int)
    titled = [name for name in ("kind", "component") if name in table.names and len(set(values_of(table, name))) > 1]
    found: list[Panel] = []
    for each in sorted(set(depth.tolist()), reverse=True):
        some = Table(table.kind, {name: table[name][depth == each] for name in table.names}, table.about)
        found += panels_of_table(some, value, PLACES, x, y, titled)
    return found


def _column(table: Table, name: str) -> str:
    """The name of a column; InputError for one that is not there."""
    if name not in table.names:
        there = ", ".join(table.names)
        raise InputError(f"no column {name!r} in {table.kind}: {there}{nearest(name, table.names)}")
    return name


def _default(table: Table) -> str:
    if table.estimated:
        return table.estimated[0]
    floats = [name for name in table.names if table[name].dtype.kind == "f" and name not in PLACES]
    if not floats:
        raise InputError(f"{table.kind} have no column of numbers to draw: {', '.join(table.names)}")
    return floats[0]


def _title(table: Table, value: str, said: str = "") -> str:
    about: Mapping[str, Any] = table.about
    words = said or label_of(value, about)
    words = words[:1].upper() + words[1:]
    if "program" in about:
        words += f": {about['program']}"
    if "source" in about:
        words += f", from {about['source']}"
    return words


def spread(table: Table, value: str, places: Sequence[str], look: Look, x: str = "", y: str = "") -> Canvas:
    """A column over the columns that say where, whichever have several values: two along the axes, others as panels.

    Along one axis alone it is a line with its interval.
    """
    return _drawn(table, value, panels_of_table(table, value, places, x, y), look)


def _drawn(table: Table, value: str, panels: Sequence[Panel], look: Look) -> Canvas:
    one, *others = panels
    numbered = one.x in table.names and table[one.x].dtype.kind in "if"
    if not others and not one.y and numbered and len(one.down) == 1 < len(one.across):
        return profile(table, value, one.x, look)
    metric = str(table.about.get("metric", value)) if value == "value" else value
    return draw_panels(panels, scale_of(table[value], metric), label_of(value, table.about), look)


def panels_of_table(
    table: Table, value: str, places: Sequence[str], x: str = "", y: str = "", titled: Sequence[str] = ()
) -> list[Panel]:
    """The panels of a column, see `spread`; `titled` columns stand in titles even where they have one value.

    InputError where there are too many panels, or several numbers for a cell.
    """
    columns = {name: values_of(table, name) for name in (*places, x, y) if name in table.names}
    orders = {name: {each: at for at, each in enumerate(in_order(column))} for name, column in columns.items()}
    several = [name for name in columns if len(orders[name]) > 1]
    x = x or next((name for name in ACROSS if name in several and name != y), "")
    y = y or next((name for name in DOWN if name in several and name != x), "")
    x = x or next((name for name in ("loop", "layer", "head", "place") if name in columns and name != y), "")
    by = [name for name in columns if (name in several or name in titled) and name not in (x, y)]
    rows: dict[tuple[Cell, ...], list[int]] = {}
    for number in range(len(table)):
        rows.setdefault(tuple(columns[name][number] for name in by), []).append(number)
    if len(rows) > MOST_PANELS:
        raise InputError(
            f"{len(rows)} panels, one for each {' and '.join(by)}, are more than {MOST_PANELS};"
            f" choose some with where({by[0]}=...)"
        )
    found = []
    for key in sorted(rows, key=lambda key: [orders[name][each] for name, each in zip(by, key, strict=True)]):
        mine = rows[key]
        axes: list[dict[Cell, int]] = []
        for name in (y, x):
            there = {columns[name][row] for row in mine} if name else {None}
            kept = [each for each in orders[name] if each in there] if name else [None]
            axes.append({each: at for at, each in enumerate(kept)})
        down, across = axes
        values = np.full((len(down), len(across)), np.nan)
        seen = np.zeros_like(values, dtype=bool)
        for row in mine:
            at = down[columns[y][row] if y else None], across[columns[x][row] if x else None]
            if seen[at]:
                raise InputError(f"several rows of {table.kind} have one place; choose some with where(...)")
            values[at], seen[at] = table[value][row], True
        title = ", ".join(filter(None, (_named(name, each) for name, each in zip(by, key, strict=True))))
        labels = [[short(each) if name else "" for each in axis] for name, axis in ((x, across), (y, down))]
        found.append(Panel(title, values, _axis(x), _axis(y), *labels))
    return found


def _axis(name: str) -> str:
    return {"at": "row", "other": "loop", "first": "first loop", "last": "last loop"}.get(name, name)


def _named(name: str, value: Cell) -> str:
    if value is None:
        return "" if name in ("component", "stage", "layer") else f"all {_axis(name)}s"
    return short(value) if name in ("kind", "component", "stage", "place") else f"{_axis(name)} {short(value)}"


def draw_panels(panels: Sequence[Panel], scale: Scale, label: str, look: Look) -> Canvas:
    """Panels of maps with one scale and a bar of its colours below; small maps have their numbers in them."""
    most_across, most_down = (max(len(getattr(panel, axis)) for panel in panels) for axis in ("across", "down"))
    alike = len({(panel.x, panel.y, *panel.across, "", *panel.down) for panel in panels}) == 1
    left = 34 + 7 * max(len(label) for panel in panels for label in panel.down)
    if len(panels) == 1:
        columns, each = 1, min(look.width - left - 20, max(260, most_across * 34))
        height, across = min(620, max(60, most_down * (22 if most_down <= 16 else 12))), max(300, each + left + 20)
    else:
        beside = 16 if alike else left + 8
        room, across = look.width - (left if alike else 0), look.width
        columns = max(1, min(len(panels), room // (max(110, min(300, most_across * 16)) + beside)))
        if len(panels) > 8 and look.width >= WIDE:
            columns = max(columns, min(8, math.ceil(math.sqrt(len(panels)))))
        columns = -(-len(panels) // -(-len(panels) // columns))  # rows of panels as full as can be
        each = room // columns - beside
        height = min(260 if len(panels) <= 12 else 110, max(36, most_down * (15 if most_down <= 12 else 11)))
    lines = max(heading(panel.title, across, columns).count("\n") + bool(panel.title) for panel in panels)
    turned = [7 * max(map(len, panel.across)) for panel in panels if upright(panel.across, each)]
    under = 36 + max(turned, default=0)  # tick labels and a name, below every panel or below the lowest
    below = under if alike else 0
    drawn, grid, bar, columns = multiples(
        look.width, len(panels), columns, height + 15 * lines + (0 if below else under), across, extra=below + 16
    )
    cells = sum(panel.values.size for panel in panels)
    for index, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        mesh(axes, panel.values, low=scale.low, high=scale.high, palette=look.palette)
        if cells <= TOLD and each / len(panel.across) >= 30 and height / len(panel.down) >= 14:
            text = _percent if scale == (0.0, 1.0) else rounded
            numbers(axes, panel.values, text, full=scale.high, palette=look.palette)
        ticks(axes, "x", panel.across, each)
        ticks(axes, "y", panel.down, height)
        axes.set_title(heading(panel.title, across, columns), parse_math=False)
        if alike:
            outer_labels(axes, index, len(panels), columns, panel.x, panel.y)
        else:
            outer_labels(axes, 0, 1, 1, panel.x, panel.y)
    scale.bar(bar, label, look.palette)
    return drawn


def _percent(share: float) -> str:
    return f"{round(100 * share)}"
