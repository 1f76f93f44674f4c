"""Tables as grids of tokens: what is read out by loop and row, and where heads look."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from loopscope.errors import InputError
from loopscope.plot.canvas import Axes, Canvas, canvas, heading
from loopscope.plot.cells import mesh, multiples, outer_labels, share_bar
from loopscope.plot.look import Look, entitled
from loopscope.plot.words import in_order, short, ticks, values_of, visible
from loopscope.table import Cell, Table

WRITTEN = 1_600
"""Cells of a grid, up to which each has its token in it."""

LINES = 40
"""Loops or points, up to which each cell has its token in it."""


MOST_PATTERNS = 64
"""Patterns that one picture has."""


@dataclass(frozen=True)
class Grid:
    """What is said at every place: a word and how likely it is."""

    title: str
    words: Sequence[Sequence[str]]
    likely: Float[np.ndarray, "down across"]
    down: Sequence[str]
    across: Sequence[str]


def readouts(table: Table, look: Look, example: int | None = None, tokens: Sequence[str] | None = None) -> Canvas:
    """The likeliest token after every loop at every row, its probability as colour.

    A grid for every place of one example, by default the first; `tokens` are what stands in its rows, where the table
    does not say.
    """
    one, chosen = _example(table, example)
    if "rank" in table.names:
        one = one.where(rank=int(min(one["rank"])))
    grids = []
    for place in dict.fromkeys(one["place"].tolist()):
        mine = one.where(place=place)
        words = mine["text" if "text" in mine.names else "token"].tolist()
        title = "" if place == "state" else short(place)
        grids.append(_grid(title, mine, "loop", "row", words, mine["probability"], tokens))
    title = f"What would be said after every loop, example {chosen}{_of(table)}"
    return entitled(draw_grids(grids, "loop", "probability", look), title)


def answers(table: Table, look: Look, example: int | None = None, tokens: Sequence[str] | None = None) -> Canvas:
    """The likeliest class at every point and row that was read, its probability as colour: a grid for every program."""
    one, chosen = _example(table, example)
    grids = []
    for program in dict.fromkeys(one["program"].tolist()):
        mine = one.where(program=program)
        words = mine["answer"].tolist()
        grids.append(_grid(program, mine, "point", "row", words, mine["probability"], tokens))
    return entitled(draw_grids(grids, "point", "probability", look), f"Answers to example {chosen}")


def next_tokens(table: Table, look: Look) -> Canvas:
    """The likeliest next tokens of a program and its plain program, the likeliest on top."""
    words = table["text" if "text" in table.names else "token"].tolist()
    of = values_of(table, "rank")
    ranks, programs = in_order(of), list(dict.fromkeys(table["program"].tolist()))
    likely = np.full((len(ranks), len(programs)), np.nan)
    said = [[""] * len(programs) for _ in ranks]
    for row, word in enumerate(words):
        at = ranks.index(of[row]), programs.index(table["program"][row])
        likely[at], said[at[0]][at[1]] = table["probability"][row], visible(word)
    grid = Grid("", said[::-1], likely[::-1], [short(rank) for rank in ranks[::-1]], programs)
    return entitled(draw_grids([grid], "rank", "probability", look, 150), "Likeliest next tokens")


def _example(table: Table, example: int | None) -> tuple[Table, Cell]:
    there = in_order(values_of(table, "example"))
    if not there:
        raise InputError(f"{table.kind} have no example to draw")
    chosen = there[0] if example is None else example
    if chosen not in there:
        said = f"{short(there[0])} to {short(there[-1])}" if len(there) > 1 else short(there[0])
        raise InputError(f"no example {chosen} in {table.kind}: {said} (nearest: {short(there[0])})")
    return table.where(example=chosen), chosen


def _grid(
    title: str, table: Table, y: str, x: str, words: Sequence[object], likely: Sequence[float] | np.ndarray,
    tokens: Sequence[str] | None,
) -> Grid:  # fmt: skip
    down, across = in_order(values_of(table, y)), in_order(values_of(table, x))
    values = np.full((len(down), len(across)), np.nan)
    said = [[""] * len(across) for _ in down]
    for number, (one, two) in enumerate(zip(values_of(table, y), values_of(table, x), strict=True)):
        at = down.index(one), across.index(two)
        values[at], said[at[0]][at[1]] = likely[number], visible(words[number])
    return Grid(title, said, values, [short(each) for each in down], _labels(table, x, across, tokens))


def _labels(table: Table, x: str, across: Sequence[Cell], tokens: Sequence[str] | None) -> list[str]:
    """What stands in the rows: given, as the table has it, or their numbers."""
    if tokens is not None:
        if any(not isinstance(row, int) or not -len(tokens) <= row < len(tokens) for row in across):
            raise InputError(f"{len(tokens)} tokens do not name the rows {', '.join(map(str, across))[:80]}")
        return [visible(tokens[int(row)], 12) for row in across if row is not None]
    name = next((each for each in ("read_text", "read") if each in table.names), None)
    if name is None:
        return [short(each) for each in across]
    read = dict(zip(values_of(table, x), table[name].tolist(), strict=True))
    return [visible(read[row], 12) for row in across]


def draw_grids(grids: Sequence[Grid], y: str, bar: str, look: Look, most: int = 64) -> Canvas:
    """Grids below each other, cut into bands of as many columns as can be read; without words where they are too many.

    `most` is how wide a column may become, in pixels.
    """
    rows, columns = max(len(grid.down) for grid in grids), max(len(grid.across) for grid in grids)
    letters = min(8, max((len(word) for grid in grids for line in grid.words for word in line), default=1))
    written = rows * columns * len(grids) <= WRITTEN and rows <= LINES
    room = look.width - 70
    least = max(22, 7 * letters + 6)
    across = min(columns, max(1, room // least)) if written else columns
    across = -(-columns // -(-columns // across))  # bands as equal as can be
    each = min(most, room / across) if written else min(24, room / across)
    bands = [_band(grid, start, across) for grid in grids for start in range(0, len(grid.across), across)]
    tall = 17 if written else max(2, min(13, 420 // rows))
    heights = [len(band.down) * tall + 46 + (18 if band.title else 0) for band in bands]
    drawn = canvas(int(min(look.width, max(300, across * each + 78))), 92 + sum(heights))
    spec = drawn.add_gridspec(len(bands) + 1, 1, height_ratios=[*heights, 9])
    for index, band in enumerate(bands):
        axes = drawn.add_subplot(spec[index, 0])
        _paint(axes, band, across, written, each, tall * len(band.down), look)
        axes.set_ylabel(y)
    share_bar(drawn.add_subplot(spec[len(bands), 0]), f"{bar}, %", look.palette)
    return drawn


def _band(grid: Grid, start: int, count: int) -> Grid:
    some = slice(start, start + count)
    title = grid.title if start == 0 else ""
    return Grid(title, [line[some] for line in grid.words], grid.likely[:, some], grid.down, grid.across[some])


def _paint(axes: Axes, band: Grid, across: int, written: bool, each: int | float, height: int, look: Look) -> None:
    mesh(axes, band.likely, palette=look.palette)
    if written:
        fits = max(1, int((each - 3) / 6.3))
        for row, column in np.ndindex(*band.likely.shape):
            colour = look.palette.paper if band.likely[row, column] > 0.55 else look.palette.ink
            axes.text(column, row, shortened(band.words[row][column], fits), ha="center", va="center_baseline",
                      fontsize=10, parse_math=False, color=colour)  # fmt: skip
        ticks(axes, "x", [shortened(word, fits) for word in band.across], each * len(band.across))
    else:
        ticks(axes, "x", [shortened(word, 8) for word in band.across], each * len(band.across))
    axes.set_xlim(-0.5, across - 0.5)
    ticks(axes, "y", list(band.down), height)
    axes.tick_params(length=2)
    axes.spines[["left", "bottom"]].set_visible(False)
    if band.title:
        axes.set_title(band.title, parse_math=False)


def shortened(word: str, most: int) -> str:
    """A word that can be seen already, cut to so many letters."""
    return word if len(word) <= most else f"{word[: max(1, most - 1)]}…"


# ---- patterns --------------------------------------------------------------------------------------------------------


def patterns(table: Table, look: Look) -> Canvas:
    """Where heads look: a panel for every address and head, query rows downwards and the rows they look at across."""
    tokens = [visible(each, 10) for each in table.about.get("tokens", [])]
    of = list(zip(table["place"].tolist(), values_of(table, "head"), strict=True))
    panels = list(dict.fromkeys(of))
    if len(panels) > MOST_PATTERNS:
        raise InputError(
            f"{len(panels)} patterns are more than {MOST_PATTERNS}, which one picture has; choose some with where(...)"
        )
    count = int(table["key"].max()) + 1
    names = [shortened(each, 10) for each in tokens] if len(tokens) == count else [str(row) for row in range(count)]
    room = 24 + 7 * max(map(len, names))
    wanted = max(120, min(560, 17 * count))
    columns = max(1, min(len(panels), (look.width - room) // (min(wanted, 300) + 14)))
    columns = -(-len(panels) // -(-len(panels) // columns))
    each = min(wanted, (look.width - room) // columns - 14)
    width = max(300, room + columns * (each + 14))
    titles = [_title(*panel) for panel in panels]
    lines = max(heading(title, width - room, columns).count("\n") + 1 for title in titles)
    drawn, grid, bar, columns = multiples(
        look.width, len(panels), columns, each + 15 * lines, min(look.width, width), extra=room + 20
    )
    for index, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        mine = np.array([one == panel for one in of])
        rows = in_order([int(row) for row in table["row"][mine]])
        at = {row: number for number, row in enumerate(rows)}
        values = np.full((len(rows), count), np.nan)
        for row, key, weight in zip(table["row"][mine], table["key"][mine], table["weight"][mine], strict=True):
            values[at[int(row)], int(key)] = weight
        mesh(axes, values, palette=look.palette)
        axes.invert_yaxis()
        ticks(axes, "x", names, each)
        ticks(axes, "y", [names[int(row)] for row in rows if row is not None], each)
        outer_labels(axes, index, len(panels), columns, "looked at", "row")
        axes.set_title(heading(titles[index], width - room, columns), parse_math=False)
    share_bar(bar, "weight, %", look.palette)
    return entitled(drawn, f"Where heads look{_of(table)}")


def _title(place: str, head: Cell) -> str:
    words = re.sub(r"\[(-?\d+(?:,\d+)*)\]", r" \1", place.removesuffix(".pattern")).replace(".", ", ")
    return words if head is None else f"{words}, head {short(head)}"


def _of(table: Table) -> str:
    return f": {table.about['program']}" if "program" in table.about else ""
