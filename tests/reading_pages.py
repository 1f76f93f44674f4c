"""What stands on a page of the report: its text, tables and figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser

from loopscope.quantity import Quantity, QuantityTable
from loopscope.studies.report.contents import (
    Figure,
    Grid,
    Section,
)

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Reads a page strictly: every element closed in order; keeps elements, ids and the text of each table cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data


def rows_of(tables: Sequence[QuantityTable | Grid], title: str) -> dict[str, Quantity]:
    (table,) = (table for table in tables if table.title == title)
    if isinstance(table, Grid):
        assert all(set(rows) <= set(table.columns) for rows in table.lines.values())
        return {f"{name}, {column}": row for name, rows in table.lines.items() for column, row in rows.items()}
    rows = {row.label: row for row in table.rows}
    assert len(rows) == len(table.rows)
    return rows


def figure(made: Section, name: str) -> Figure:
    return next(each for each in made.figures if each.name == name)


def told(figure: Figure, series: str) -> dict[float, float]:
    """Per cent by place, as the description tells them."""
    (said,) = re.findall(rf"{re.escape(series)}: ([^:]*?)\.(?: |$)", figure.description)
    pairs = (each.split(" at ") for each in said.split(", "))
    return {float(place): float(share) for share, place in pairs}
