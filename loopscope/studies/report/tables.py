"""The tables of the page: measured shares, the ledger of claims, the cost.

Each stands in a box of its own that scrolls, also by keyboard, so that the page never does.  Roles are written out
because the ledger's rows become cards on a phone, and browsers take a table that is laid out as blocks for none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from loopscope.quantity import Quantity
from loopscope.stats import Estimate
from loopscope.studies.report.contents import FAILS, HOLDS, NOT_RUN, Cost, Grid, LedgerRow, Listing, Tabled, percent

SIGNS = {HOLDS: "\N{CHECK MARK}", FAILS: "\N{BALLOT X}", NOT_RUN: "\N{EN DASH}"}
MINUTE, HOUR = 60, 3600


def words(text: str) -> str:
    """Plain text as HTML; what is between backticks becomes code, and between `[[` and `]]` a term explained there."""
    return re.sub(r"\[\[(.+?)\]\]", r"<dfn>\1</dfn>", re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)))


def sentence(title: str) -> str:
    """A title as HTML, with a full stop unless it has its own end."""
    return words(title if title.endswith((".", "?", "!")) else f"{title}.")


def verdict(which: str, said: str = "") -> str:
    """A verdict by sign, word and colour; `said` in place of its own word."""
    kind = which.replace(" ", "-")
    return f'<span class="verdict {kind}"><b aria-hidden="true">{SIGNS[which]}</b> {said or which}</span>'


def numbers(table: Tabled, number: int) -> str:
    """Measured shares with their intervals, beside the paper's where it prints one, or of several backbones."""
    if isinstance(table, Grid):
        return _grid(table, number)
    if isinstance(table, Listing):
        return _listing(table, number)
    compared = any(row.published is not None for row in table.rows)

    def line(row: Quantity) -> str:
        ours = _estimate(row.estimate)
        paper = [_cell("" if row.published is None else percent(row.published), number=True)] if compared else []
        return _row(_name(words(row.label)), _cell(ours, number=True), *paper, _cell(f"{row.n:,}", number=True))

    head = [("condition", False), ("ours, %", True), *([("paper, %", True)] if compared else []), ("n", True)]
    return _boxed("numbers", number, table.title, head, _body(map(line, table.rows)), table.note)


def _grid(table: Grid, number: int) -> str:
    def line(name: str, rows: Mapping[str, Quantity]) -> str:
        cells = (_estimate(rows[column].estimate) if column in rows else "" for column in table.columns)
        return _row(_name(words(name)), *(_cell(cell, number=True) for cell in cells))

    counts = sorted({row.n for rows in table.lines.values() for row in rows.values()})
    n = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}" if counts else "none"
    head = [(words(table.head), False), *((words(column), True) for column in table.columns)]
    body = _body(line(*each) for each in table.lines.items())
    return _boxed("numbers grid", number, table.title, head, body, f"Per cent; n = {n}. {table.note}")


def _listing(table: Listing, number: int) -> str:
    def line(name: str, cells: Mapping[str, str]) -> str:
        return _row(_name(words(name)), *(_cell(words(cells.get(each, "")), number=True) for each in table.columns))

    head = [(words(table.head), False), *((words(column), True) for column in table.columns)]
    return _boxed(
        "numbers grid", number, table.title, head, _body(line(*each) for each in table.lines.items()), table.note
    )


def _estimate(each: Estimate) -> str:
    """A share and its interval; what could not be had is left out."""
    ours = "" if math.isnan(each.value) else percent(each.value)
    if math.isnan(each.low):
        return ours
    return f'{ours} <span class="interval">[{percent(each.low)}, {percent(each.high)}]</span>'


def _sides(said: Iterable[str]) -> str:
    """Remarks below what a cell says."""
    return "".join(f'<span class="side">{words(each)}</span>' for each in said)


def ledger(rows: Sequence[LedgerRow], number: int) -> str:
    """Every claim with its verdict, the paper's value, ours, and how ours came about."""

    def line(row: LedgerRow) -> str:
        claim = f'<span class="id">{row.id}</span> {words(row.claim)}'
        side = _sides(each for each in (row.scale, row.origin) if each)
        interval = f' <span class="interval">{words(row.interval)}</span>' if row.interval else ""
        return _row(
            _cell(verdict(row.verdict) + _sides([row.protocol] if row.protocol else [])),
            _name(f'{claim} <span class="side">Section {words(row.where)}</span>'),
            _cell(words(row.paper), label="paper"),
            _cell(words(row.ours) + interval + _sides(row.asides) + _protocol(row), label="ours"),
            _cell("" if row.n is None else f"{row.n:,}", number=True, label="n"),
            _cell(words(row.seeds) + side, label="measured on"),
            _cell(f"<code>{escape(row.command)}</code>" if row.command else "", label="command"),
            anchor=f"claim-{row.id}",
        )

    columns = ("verdict", "claim", "paper", "ours", "n", "measured on", "command")
    head = [(column, column == "n") for column in columns]
    return _boxed("ledger", number, "The ledger of claims", head, _body(map(line, rows)))


def _protocol(row: LedgerRow) -> str:
    """What was changed of the published protocol, and numerics, folded up."""
    folded = ((f"changed ({len(row.changed)})", row.changed), (f"numerics ({len(row.numerics)})", row.numerics))
    return "".join(
        f"<details><summary>{name}</summary><ul>{''.join(f'<li>{words(each)}</li>' for each in texts)}</ul></details>"
        for name, texts in folded
        if texts
    )


def costs(rows: Sequence[Cost], number: int) -> str:
    """What each step took, and how much work the sharing of common beginnings saved."""

    def line(cost: Cost) -> str:
        saved = ""
        if cost.forwards and cost.plain:
            saved = f"{cost.plain / cost.forwards:.1f}\N{MULTIPLICATION SIGN}"
        work = ["" if each is None else f"{each:,.0f}" for each in (cost.forwards, cost.plain)]
        device = f' <span class="side">{words(cost.device)}</span>' if cost.device else ""
        cells = (_cell(each, number=True) for each in (duration(cost.seconds), *work, saved))
        return _row(_name(words(cost.step) + device), *cells)

    both = [(cost.forwards, cost.plain) for cost in rows if cost.forwards is not None and cost.plain is not None]
    forwards, plain = (sum(each) for each in zip(*both, strict=True)) if both else (None, None)
    whole = Cost("all steps", sum(cost.seconds for cost in rows), "", forwards, plain)
    head = [("step", False), ("time", True), ("forwards", True), ("plain", True), ("saved", True)]
    note = (
        "A forward-equivalent is one pass of one instance through the trained loops. The plain way runs every program "
        "from its beginning; sums are over the steps that count both."
    )
    body = f'{_body(map(line, rows))}<tfoot role="rowgroup">{line(whole)}</tfoot>'
    return _boxed("costs", number, "Time and work", head, body, note)


def duration(seconds: float) -> str:
    """Seconds as a reader says them."""
    if seconds < MINUTE - 0.05:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // MINUTE} min {whole % MINUTE} s" if whole < HOUR else f"{seconds / HOUR:.1f} h"


def _boxed(kind: str, number: int, title: str, head: Sequence[tuple[str, bool]], body: str, note: str = "") -> str:
    columns = "".join(f'<th scope="col" role="columnheader"{_class(numeric)}>{column}</th>' for column, numeric in head)
    below = f'\n<p class="note">{words(note)}</p>' if note else ""
    return f"""<div class="table {kind}">
<div class="scroll" role="region" tabindex="0" aria-labelledby="table-{number}">
<table role="table">
<caption id="table-{number}"><strong>Table {number}. {sentence(title)}</strong></caption>
<thead role="rowgroup"><tr role="row">{columns}</tr></thead>
{body}
</table>
</div>{below}
</div>"""


def _body(rows: Iterable[str]) -> str:
    return f'<tbody role="rowgroup">{"".join(rows)}</tbody>'


def _row(*cells: str, anchor: str = "") -> str:
    name = f' id="{anchor}"' if anchor else ""
    return f'<tr role="row"{name}>{"".join(cells)}</tr>\n'


def _name(content: str) -> str:
    return f'<th scope="row" role="rowheader">{content}</th>'


def _cell(content: str, number: bool = False, label: str = "") -> str:
    """`label` is the column's head, repeated where a phone shows the row as a card."""
    named = f' data-label="{label}"' if label else ""
    return f'<td role="cell"{named}{_class(number)}>{content}</td>'


def _class(number: bool) -> str:
    return ' class="number"' if number else ""
