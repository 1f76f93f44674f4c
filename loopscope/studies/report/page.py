"""The page: a `Report` as one self-contained HTML file, and its figures as files beside it.

No script, no font and no style is fetched: the page can be mailed, archived and read without a network.  It adapts to
phone, laptop and printer, and to the reader's light or dark theme, by CSS alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from importlib import resources
from itertools import count
from pathlib import Path

from loopscope.errors import InputError
from loopscope.store.files import draft_beside, make_folder, names_in, read, reporting, sync_folder, write_synced
from loopscope.store.outputs import found_at, only_writer
from loopscope.studies.closeness import CHANGED
from loopscope.studies.report.contents import (
    COST,
    FAILS,
    HOLDS,
    LEDGER,
    MAIN,
    NOT_RUN,
    Figure,
    LedgerRow,
    Report,
    Section,
)
from loopscope.studies.report.tables import costs, ledger, numbers, sentence, verdict, words

PAGE, FIGURES = "index.html", "figures"
KICKER = '<p class="kicker">Loopscope report</p>'
"""The line by which a page of ours is known."""

PLURAL = {HOLDS: "claims hold", FAILS: "claims do not hold", NOT_RUN: "claims not run"}


def write_page(report: Report, folder: Path, log: Callable[[str], None] = lambda _: None) -> Path:
    """Write `folder`/index.html, and each figure as `folder`/figures/NAME.svg and NAME.pdf; returns the page's path.

    All files are written beside their places first and then renamed, the page last, so what was there before stays
    until everything is ready.  `log` gets a line before every figure is drawn.  InputError as `check_page`;
    StoreError, with nothing new left behind, when the file system refuses.
    """
    check_page(folder)
    files: dict[Path, bytes] = {}
    for figure in (figure for section in report.sections for figure in section.figures):
        log(f"drawing {figure.name}")
        files[folder / FIGURES / f"{figure.name}.svg"] = alone(figure.drawings.svg).encode()
        files[folder / FIGURES / f"{figure.name}.pdf"] = figure.drawings.pdf
    log("writing")
    page = folder / PAGE
    files[page] = html(report).encode()
    _publish(page, files)
    return page


def check_page(folder: Path) -> None:
    """InputError unless a page can be written into a folder: one that we wrote is replaced, and nothing else is.

    Other files in the folder stay.  Figures are ours where the page beside them is.
    """
    page, figures = folder / PAGE, folder / FIGURES
    for path, kinds in ((folder, "a folder"), (page, "a file"), (figures, "a folder")):
        if (found := found_at(path)) not in (None, kinds):
            raise InputError(
                f"{path} exists already, as {found}, so no report is written to {folder}; give another folder"
            )
    if found_at(page) is None:
        if found_at(figures) and names_in(figures):
            raise InputError(f"{figures} holds files, but no report is beside it; give another folder for the report")
    elif KICKER.encode() not in read(page):
        raise InputError(f"{page} exists already and is no report of ours; give another folder for the report")


def html(report: Report) -> str:
    """The page as text."""
    figure_numbers, table_numbers = count(1), count(1)
    sections = "\n".join(_section(each, report.ledger, figure_numbers, table_numbers) for each in report.sections)
    style = resources.files("loopscope.studies.report").joinpath("style.css").read_text(encoding="utf-8")
    contents = _contents(report)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(report.title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#{MAIN}">Skip to the text</a>
<div class="layout">
<nav class="contents" aria-label="Contents"><p>Contents</p>{contents}</nav>
<main id="{MAIN}" tabindex="-1">
<header>
{KICKER}
<h1>{words(report.title)}</h1>
</header>
<details class="contents"><summary>Contents</summary>{contents}</details>
{_paragraphs(report.lead)}
{_tally(report.ledger)}
{sections}
{_claims(report.ledger, table_numbers)}
{_section_of(COST, "Cost", costs(report.costs, next(table_numbers))) if report.costs else ""}
<footer><p>Numbers in brackets are 95 % intervals; n counts instances.</p></footer>
</main>
</div>
</body>
</html>
"""


def alone(svg: str) -> str:
    """A figure as a file of its own: the light theme's colours in place of the page's variables."""
    return '<?xml version="1.0" encoding="utf-8"?>\n' + re.sub(r"var\(--[a-z]+, (#[0-9a-f]{6})\)", r"\1", svg)


def _paragraphs(texts: Iterable[str]) -> str:
    return "\n".join(f"<p>{words(text)}</p>" for text in texts)


def _contents(report: Report) -> str:
    places = [(section.anchor, section.title) for section in report.sections]
    places += [(LEDGER, "Claims")] if report.ledger else []
    places += [(COST, "Cost")] if report.costs else []
    return "<ol>" + "".join(f'<li><a href="#{anchor}">{words(title)}</a></li>' for anchor, title in places) + "</ol>"


def _tally(rows: Sequence[LedgerRow]) -> str:
    """How many claims of the paper there are of each verdict, at a glance; apart, those at a changed protocol."""
    if not rows:
        return ""
    found = Counter((row.verdict, row.protocol == CHANGED) for row in rows if row.counted)

    def item(each: str, said: str) -> str:
        count, changed = found[each, False], found[each, True]
        aside = f'<span class="side">and {changed} at a changed protocol</span>' if changed else ""
        return f"<li><strong>{count}</strong>{verdict(each, f'claim {each}' if count == 1 else said)}{aside}</li>"

    items = "".join(item(*each) for each in PLURAL.items())
    return f'<ul class="tally" aria-label="Claims of the paper, by verdict">{items}</ul>'


def _section_of(anchor: str, title: str, *parts: str) -> str:
    head = f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n<h2 id="{anchor}-title">{words(title)}</h2>'
    return "\n".join([head, *filter(None, parts), "</section>"])


def _section(section: Section, rows: Sequence[LedgerRow], figures: Iterator[int], tables: Iterator[int]) -> str:
    verdicts = {row.id: row.verdict for row in rows}
    claims = [f'<li>{verdict(verdicts[each])} <a href="#claim-{each}">{each}</a></li>' for each in section.claims]
    return _section_of(
        section.anchor,
        section.title,
        f'<p class="question">{words(section.question)}</p>' if section.question else "",
        f'<ul class="claims" aria-label="Claims decided here">{"".join(claims)}</ul>' if claims else "",
        _paragraphs(section.text),
        *(_figure(figure, next(figures)) for figure in section.figures),
        *(numbers(table, next(tables)) for table in section.tables),
        _folded([numbers(table, next(tables)) for table in section.more]),
    )


def _folded(tables: Sequence[str]) -> str:
    """Tables that open on demand."""
    if not tables:
        return ""
    said = "One more table" if len(tables) == 1 else f"{len(tables)} more tables"
    return f"<details><summary>{said}</summary>\n" + "\n".join(tables) + "\n</details>"


def _figure(figure: Figure, number: int) -> str:
    name = figure.name
    files = ", ".join(
        f'<a href="figures/{name}.{kind}" aria-label="Figure {number} as {kind.upper()}">{kind.upper()}</a>'
        for kind in ("pdf", "svg")
    )
    return f"""<figure id="figure-{name}">
<div class="wide">{figure.drawings.svg}</div>
<div class="narrow">{figure.drawings.narrow}</div>
<figcaption><strong>Figure {number}. {sentence(figure.title)}</strong> {words(figure.caption)}
<span class="files">({files})</span></figcaption>
</figure>"""


def _claims(rows: Sequence[LedgerRow], tables: Iterator[int]) -> str:
    if not rows:
        return ""
    said = (
        "Each claim was fixed, with the condition under which it holds, before our backbones were measured. One that "
        "does not hold is a finding. Which record decides is fixed by how close it is to the published protocol: "
        "published at its size, scaled to a smaller model, or changed, with a list of what was. A control that fails "
        "stands in the row of its effect. The last rows are ours, and are not counted among the paper's claims."
    )
    return _section_of(LEDGER, "Claims", f"<p>{said}</p>", ledger(rows, next(tables)))


def _publish(page: Path, files: Mapping[Path, bytes]) -> None:
    """Write all files into a hidden folder beside the page, then rename them one by one, in order."""
    made = [each for path in files for each in (*reversed(path.parent.parents), path.parent) if not each.exists()]
    try:
        for path in files:
            with reporting("write", path):
                make_folder(path.parent)
        with only_writer(page.parent), draft_beside(page) as drafts:
            for path, data in files.items():
                write_synced(drafts / path.name, data)
            for path in files:
                with reporting("write", path):
                    (drafts / path.name).replace(path)
        for folder in {path.parent for path in files}:
            sync_folder(folder)
    except BaseException:
        for folder in reversed(list(dict.fromkeys(made))):
            with suppress(OSError):
                folder.rmdir()
        raise
