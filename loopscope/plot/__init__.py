"""Pictures of what instruments find, drawn with matplotlib (extra `[plot]`).

    figure = found.plot()               or  draw(table, dark=True, width=WIDE)

Every drawing returns a matplotlib Figure, which is not shown and belongs to no global state; notebooks show it where
it is the last line of a cell, and `figure.savefig("found.svg")` writes it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from loopscope.errors import InputError, nearest

DRAWINGS: dict[str, str] = {
    "ablations": "heat:ablations",
    "answers": "grids:answers",
    "attribution": "dots:attribution",
    "contraction": "lines:contraction",
    "endings": "heat:endings",
    "exits": "lines:exits",
    "next tokens": "grids:next_tokens",
    "pattern changes": "heat:pattern_changes",
    "paths": "heat:paths",
    "patterns": "grids:patterns",
    "quantities": "dots:quantities",
    "ranks": "lines:ranks",
    "readouts": "grids:readouts",
    "right": "dots:right",
    "search": "dots:search",
    "similarities": "heat:similarities",
    "spans": "heat:spans",
    "starts": "lines:starts",
    "sweep": "heat:sweep",
    "trajectories": "lines:trajectories",
}
"""What draws a table of each kind: a module of this room and its function."""

UNDRAWN: dict[str, str] = {
    "heads": "a list of heads is drawn with the search that found it",
    "generation": "new tokens are texts; print the table",
    "recording": "what rules made of it is drawn: exits(recording).plot()",
    "work": "three counts; print the table",
}
"""Why tables of a kind have no drawing."""


def draw(table: Any, *, dark: bool = False, width: int | None = None, title: str | None = None, **settings: Any) -> Any:
    """Draw a table as its kind is drawn; a matplotlib figure.

    - `dark`: light on dark; `width` in pixels, by default that of a column of text (720; 328 for a phone);
    - `title` in place of the one that the table gives;
    - `settings` are those of the kind: `value`, `x` and `y` of a sweep, `example` and `tokens` of readouts.

    InputError for a kind that nothing draws, settings that it has not, a table without rows, or without matplotlib.
    """
    if table.kind not in DRAWINGS:
        why = f": {UNDRAWN[table.kind]}" if table.kind in UNDRAWN else nearest(table.kind, DRAWINGS)
        raise InputError(f"there is no drawing of {table.kind}{why}; there are drawings of {', '.join(DRAWINGS)}")
    if not len(table):
        raise InputError(f"there is nothing to draw: these {table.kind} have no rows")
    module, name = DRAWINGS[table.kind].split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(f"loopscope.plot.{module}"), name)
    known = list(inspect.signature(function).parameters)[2:]
    for setting in settings:
        if setting not in known:
            there = ", ".join(["dark", "width", "title", *known])
            raise InputError(f"{table.kind} are drawn with {there}, not with {setting}{nearest(setting, known)}")
    canvas, look = importlib.import_module("loopscope.plot.canvas"), importlib.import_module("loopscope.plot.look")
    palette = canvas.DARK if dark else canvas.LIGHT
    with canvas.rc_context(palette.settings):
        drawn = function(table, look.Look(palette, canvas.WIDE if width is None else width), **settings)
        if title is not None:
            look.entitled(drawn, title)
        drawn.draw_without_rendering()  # what is made late, such as labels, has these settings, too
    return drawn
