"""Tables as lines of text, for any width: no word and no number is broken.

Text is wrapped between words.  Where not all columns fit, every row becomes a paragraph: its first cell, then the
others with their heads.  A word that is longer than a line, such as a path, stays whole and runs over its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len

Cell = tuple[str, ...]
"""What stands in one place of a table, line by line."""

WORDS = re.compile("( *)([^ ]+)")
COMFORTABLE = 22
"""A column of texts is not made narrower than this; fewer columns of the terminal would make a tower of it."""


class Lines(NamedTuple):
    """A table: the lines of its heads, and those of its rows."""

    head: list[str]
    body: list[str]


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], width: int, left: int = 1, whole: int = 1) -> Lines:
    """A table with `left` columns of text, the others aligned to the right as numbers.

    Texts after the first `whole` columns may be wrapped.  A column after the first that is empty in every row is left
    out.
    """
    kept = [at for at in range(len(heads)) if at == 0 or not rows or any(any(row[at]) for row in rows)]
    heads, rows = [heads[at] for at in kept], [[row[at] for at in kept] for row in rows]
    left = sum(at < left for at in kept)
    for gap in (2, 1):
        if (widths := _widths(heads, rows, width - gap * (len(heads) - 1), left, whole)) is not None:
            head = [*_row([(each,) for each in heads], widths, gap, left), (" " * gap).join("-" * w for w in widths)]
            return Lines(head, [line for row in rows for line in _row(row, widths, gap, left)])
    return Lines([], [line for row in rows for line in _paragraph(heads, row, width)])


def wrapped(text: str, width: int, indent: str = "", first: str | None = None) -> list[str]:
    """A text in lines of at most this width, broken between words; `first` stands before the first line."""
    lines, line, empty = [], indent if first is None else first, True
    for space, word in WORDS.findall(text):
        if not empty and cell_len(line + space + word) > width:
            lines.append(line)
            line, empty, space = indent, True, ""
        line, empty = line + space + word, False
    return [*lines, line]


def _widths(
    heads: Sequence[str], rows: Sequence[Sequence[Cell]], room: int, left: int, unbroken: int
) -> list[int] | None:
    """The width of every column; None where not all fit."""
    widths, wishes = [], []
    for at, head in enumerate(heads):
        lines = [line for row in rows for line in row[at]]
        whole = max(map(cell_len, lines), default=0)
        word = max((cell_len(word) for text in (head, *lines) for _, word in WORDS.findall(text)), default=0)
        wishes.append(max(whole, cell_len(head)))
        widths.append(max(word, min(whole, COMFORTABLE)) if unbroken <= at < left else max(word, whole))
    if sum(widths) > room:
        return None
    for _ in range(room - sum(widths)):
        at = max(range(len(widths)), key=lambda at: wishes[at] / max(1, widths[at]))
        if widths[at] >= wishes[at]:
            break
        widths[at] += 1
    return widths


def _row(row: Sequence[Cell], widths: Sequence[int], gap: int, left: int) -> Iterator[str]:
    cells = [[part for line in cell for part in wrapped(line, width)] for cell, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, cells), default=0)):
        parts = []
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            text = cell[number] if number < len(cell) else ""
            blank = " " * (width - cell_len(text))
            parts.append(text + blank if at < left else blank + text)
        yield (" " * gap).join(parts).rstrip()


def _paragraph(heads: Sequence[str], row: Sequence[Cell], width: int) -> Iterator[str]:
    first, *others = (", ".join(filter(None, cell)) for cell in row)
    yield from wrapped(first, width, "  ", "")
    parts = [f"{head}: {text}" if head else text for head, text in zip(heads[1:], others, strict=True) if text]
    if parts:
        yield from wrapped("; ".join(parts), width, "    ")
