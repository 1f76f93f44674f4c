"""The pages: a `Report` as a folder of HTML files, and its figures as files beside them.

The first page tells the story; each section has a page of its own with everything, and so have the ledger and the cost.
No script, no font and no style is fetched: pages can be archived and read from disk without a network.  They adapt to
phone, laptop and printer, to the reader's light or dark theme, and mark the section being read, by CSS alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from importlib import resources
from itertools import count
from pathlib import Path

from loopscope.errors import InputError
from loopscope.log import Log, silent
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
    READING,
    TERMS,
    Figure,
    LedgerRow,
    Report,
    Section,
)
from loopscope.studies.report.tables import costs, ledger, numbers, sentence, verdict, words

PAGE, PAGES, FIGURES = "index.html", "pages", "figures"
KICKER = '<p class="kicker">Loopscope report</p>'
"""The line by which a page of ours is known."""

EXPLORER = "explorer/index.html"
"""Where `make explorer` puts the explorer's page, beside the report."""

PLURAL = {HOLDS: "claims hold", FAILS: "claims do not hold", NOT_RUN: "claims not run"}


def write_page(report: Report, folder: Path, log: Log = silent) -> Path:
    """Write the pages, and each figure as `folder`/figures/NAME.svg and NAME.pdf; returns the path of the first page.

    That is `folder`/index.html; the others lie in `folder`/pages.  All files are written beside their places first and
    then renamed, the first page last, so what was there before stays until everything is ready.  Where the explorer's
    page lies in `folder`/explorer, the first page has a link to it.  `log` gets a line
    before every figure is drawn.  InputError as `check_page`; StoreError, with nothing new left behind, when the file
    system refuses.
    """
    check_page(folder)
    files: dict[Path, bytes] = {}
    for figure in report.figures:
        log(f"drawing {figure.name}")
        files[folder / FIGURES / f"{figure.name}.svg"] = alone(figure.drawings.svg).encode()
        files[folder / FIGURES / f"{figure.name}.pdf"] = figure.drawings.pdf
    log("writing")
    for name, text in pages(report).items():
        files[folder / name] = text.encode()
    page = folder / PAGE
    files[page] = html(report, explorer=(folder / EXPLORER).is_file()).encode()
    _publish(page, files)
    return page


def check_page(folder: Path) -> None:
    """InputError unless a report can be written into a folder: one that we wrote is replaced, and nothing else is.

    Other files in the folder stay.  Figures and second pages are ours where the first page beside them is.
    """
    page, inner = folder / PAGE, (folder / PAGES, folder / FIGURES)
    for path, kinds in ((folder, "a folder"), (page, "a file"), *((each, "a folder") for each in inner)):
        if (found := found_at(path)) not in (None, kinds):
            raise InputError(
                f"{path} exists already, as {found}, so no report is written to {folder}; give another folder"
            )
    if found_at(page) is None:
        for each in inner:
            if found_at(each) and names_in(each):
                raise InputError(f"{each} holds files, but no report is beside it; give another folder for the report")
    elif KICKER.encode() not in read(page):
        raise InputError(f"{page} exists already and is no report of ours; give another folder for the report")


def pages(report: Report) -> dict[str, str]:
    """The text of every page by its place in the folder, the first page last."""
    made = {section.anchor: _section_page(report, section) for section in report.sections}
    if report.ledger:
        made[LEDGER] = _ledger_page(report)
    if report.costs:
        made[COST] = _page(report, COST, "Cost", costs(report.costs, 1))
    return {**{f"{PAGES}/{name}.html": text for name, text in made.items()}, PAGE: html(report)}


def html(report: Report, explorer: bool = False) -> str:
    """The first page as text: the question, the tally, and what each section found; `explorer` for a link to it."""
    numbered = count(1)
    ends = len(report.sections) + 1
    opening = "\n".join(_figure(figure, next(numbered)) for figure in report.opening)
    places = _places(report, "", f"{PAGES}/")
    return _framed(
        report.title,
        _contents(places, marked=True),
        '<div class="lead" style="view-timeline-name: --place-0">',
        _paragraphs(report.lead[:1]),
        f'<p class="finding">{words(report.answer)}</p>' if report.answer else "",
        f'<p class="further"><a href="{EXPLORER}">See it walk in the explorer</a></p>' if explorer else "",
        _tally(report.ledger),
        f'<div class="opening">\n{opening}\n</div>' if opening else "",
        "</div>",
        *(
            _overview(section, report.ledger, numbered, at)
            for at, section in enumerate(report.sections)
        ),
        _section_of(READING, "How to read this", _paragraphs(report.lead[1:]), at=ends) if report.lead[1:] else "",
        _terms(report.terms, ends + bool(report.lead[1:])),
        places=len(places),
    )  # fmt: skip


def _section_page(report: Report, section: Section) -> str:
    """Everything of a section."""
    figures, tables = count(1), count(1)
    claims = _verdicts(section, report.ledger, "")
    return _page(
        report,
        section.anchor,
        section.title,
        f'<p class="question">{words(section.question)}</p>' if section.question else "",
        f'<p class="finding">{words(section.finding)}</p>' if section.finding else "",
        claims,
        _paragraphs(section.text),
        *(_figure(figure, next(figures), "../") for figure in section.figures),
        *(numbers(table, next(tables)) for table in section.tables),
        _folded([numbers(table, next(tables)) for table in section.more]),
    )


def _ledger_page(report: Report) -> str:
    said = (
        "Each claim was fixed, with the condition under which it holds, before our backbones were measured. One that "
        "does not hold is a finding. Which record decides is fixed by how close it is to the published protocol: "
        "published at its size, scaled to a smaller model, or changed, with a list of what was. A control that fails "
        "stands in the row of its effect. The last rows are ours, and are not counted among the paper's claims."
    )
    by_verdict = []
    for which in PLURAL:
        links = [
            f'<a href="#claim-{row.id}"><code>{row.id}</code></a>' for row in report.ledger if row.verdict == which
        ]
        listed = ", ".join(links) or "none"
        by_verdict.append(f'<p class="listed" id="{_slug(which)}">{verdict(which)}: {listed}</p>')
    return _page(report, LEDGER, "Claims", f"<p>{said}</p>", *by_verdict, ledger(report.ledger, 1))


def _page(report: Report, name: str, title: str, *parts: str) -> str:
    """A second page: its own head, the contents with its place marked, and a way back."""
    places = _places(report, f"../{PAGE}", "")
    back = f'<p class="further"><a href="../{PAGE}#{name if _shown_first(report, name) else MAIN}">Overview</a></p>'
    return _framed(title, _contents(places, name), back, *parts)


def _shown_first(report: Report, name: str) -> bool:
    return any(section.anchor == name for section in report.sections)


def _framed(title: str, contents: str, *parts: str, places: int = 0) -> str:
    """A whole page.  Of so many `places` in the contents, those on the page are marked while they are on the screen."""
    scope = ", ".join(f"--place-{at}" for at in range(places))
    scoped = f' style="timeline-scope: {scope}"' if scope else ""
    style = resources.files("loopscope.studies.report").joinpath("style.css").read_text(encoding="utf-8")
    content = "\n".join(filter(None, parts))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#{MAIN}">Skip to the text</a>
<div class="layout"{scoped}>
<nav class="contents" aria-label="Contents"><p>Contents</p>{contents}</nav>
<main id="{MAIN}" tabindex="-1">
<header>
{KICKER}
<h1>{words(title)}</h1>
</header>
<details class="contents"><summary>Contents</summary>{contents}</details>
{content}
<footer><p>Numbers in brackets are 95 % intervals; n counts instances. To see the runs themselves, loop by loop:
<code>loopscope view</code>.</p></footer>
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


Place = tuple[str, str, str]
"""The name of a place in the contents, its address and its title."""


def _places(report: Report, first: str, folder: str) -> list[Place]:
    """The contents: sections on the first page, where one is on it, or else their own pages; then the other pages."""
    places = [(MAIN, f"{first}#{MAIN}", "Overview")]
    for section in report.sections:
        at = f"{folder}{section.anchor}.html" if first else f"#{section.anchor}"
        places.append((section.anchor, at, section.title))
    if report.lead[1:]:
        places.append((READING, f"{first}#{READING}", "How to read this"))
    if report.terms:
        places.append((TERMS, f"{first}#{TERMS}", "Terms"))
    if report.ledger:
        places.append((LEDGER, f"{folder}{LEDGER}.html", "All claims"))
    if report.costs:
        places.append((COST, f"{folder}{COST}.html", "Cost"))
    return places


def _contents(places: Sequence[Place], current: str = "", marked: bool = False) -> str:
    """`current` is the page itself; with `marked`, sections are marked while they are on the screen."""

    def item(at: int, place: Place) -> str:
        name, address, title = place
        here = ' aria-current="page"' if name == current else ""
        seen = f' style="animation-timeline: --place-{at}"' if marked and name not in (LEDGER, COST) else ""
        return f'<li><a href="{address}"{here}{seen}>{words(title)}</a></li>'

    return "<ol>" + "".join(item(at, place) for at, place in enumerate(places)) + "</ol>"


def _tally(rows: Sequence[LedgerRow]) -> str:
    """How many claims of the paper there are of each verdict, at a glance; apart, those at a changed protocol."""
    if not rows:
        return ""
    found = Counter((row.verdict, row.protocol == CHANGED) for row in rows if row.counted)

    def item(each: str, said: str) -> str:
        count, changed = found[each, False], found[each, True]
        aside = f'<span class="side">and {changed} at a changed protocol</span>' if changed else ""
        text = f"<strong>{count}</strong>{verdict(each, f'claim {each}' if count == 1 else said)}{aside}"
        return f'<li><a href="{PAGES}/{LEDGER}.html#{_slug(each)}">{text}</a></li>'

    items = "".join(item(*each) for each in PLURAL.items())
    return f'<ul class="tally" aria-label="Claims of the paper, by verdict">{items}</ul>'


def _slug(which: str) -> str:
    return which.replace(" ", "-")


def _section_of(anchor: str, title: str, *parts: str, kicker: str = "", at: int | None = None) -> str:
    above = f'<p class="kicker">{words(kicker)}</p>\n' if kicker else ""
    seen = "" if at is None else f' style="view-timeline-name: --place-{at}"'
    head = f'<section id="{anchor}" aria-labelledby="{anchor}-title"{seen}>\n{above}'
    head += f'<h2 id="{anchor}-title">{words(title)}</h2>'
    return "\n".join([head, *filter(None, parts), "</section>"])


def _overview(section: Section, rows: Sequence[LedgerRow], figures: Iterator[int], at: int) -> str:
    """What a section found: the sentence, the figure, the verdicts, and where the rest is."""
    tables = len(section.tables) + len(section.more)
    rest = " and ".join(
        f"{number} {what}{'' if number == 1 else 's'}"
        for number, what in ((len(section.figures), "figure"), (tables, "table"))
        if number
    )
    return _section_of(
        section.anchor,
        section.question or section.title,
        f'<p class="finding">{words(section.finding)}</p>' if section.finding else "",
        *(_figure(figure, next(figures)) for figure in section.figures[:1]),
        _verdicts(section, rows, f"{PAGES}/"),
        f'<p class="further"><a href="{PAGES}/{section.anchor}.html">{words(section.title)}: how it was measured'
        f"{f', {rest}' if rest else ''}</a></p>",
        kicker=section.title if section.question else "",
        at=at + 1,
    )


def _verdicts(section: Section, rows: Sequence[LedgerRow], folder: str) -> str:
    """The claims that a section decides, each with its verdict, our number, the paper's, and controls that failed."""
    by_id = {row.id: row for row in rows}
    items = []
    for row in (by_id[each] for each in section.claims):
        ours = f"ours: {words(row.ours)}; " if row.ours else ""
        protocol = "; at a changed protocol" if row.protocol == CHANGED else "" if row.counted else "; a row of ours"
        fails = "".join(f'<span class="side">{words(each)}</span>' for each in row.failing)
        items.append(
            f"<li>{verdict(row.verdict)} "
            f'<a href="{folder}{LEDGER}.html#claim-{row.id}">{words(row.short or row.claim)}</a>'
            f'<span class="side">{ours}paper: {words(row.paper)}{protocol}</span>{fails}</li>'
        )
    return f'<ul class="claims" aria-label="Claims decided here">{"".join(items)}</ul>' if items else ""


def _terms(terms: Mapping[str, str], at: int) -> str:
    if not terms:
        return ""
    lines = "".join(f"<dt>{words(term)}</dt><dd>{words(said)}</dd>\n" for term, said in terms.items())
    return _section_of(TERMS, "Terms", f"<dl>{lines}</dl>", at=at)


def _folded(tables: Sequence[str]) -> str:
    """Tables that open on demand."""
    if not tables:
        return ""
    said = "One more table" if len(tables) == 1 else f"{len(tables)} more tables"
    return f"<details><summary>{said}</summary>\n" + "\n".join(tables) + "\n</details>"


def _figure(figure: Figure, number: int, up: str = "") -> str:
    """A figure with its caption and its files, which lie `up` from the page."""
    name = figure.name
    files = ", ".join(
        f'<a href="{up}{FIGURES}/{name}.{kind}" aria-label="Figure {number} as {kind.upper()}">{kind.upper()}</a>'
        for kind in ("pdf", "svg")
    )
    return f"""<figure id="figure-{name}">
<div class="wide">{figure.drawings.svg}</div>
<div class="narrow">{figure.drawings.narrow}</div>
<figcaption><strong>Figure {number}. {sentence(figure.title)}</strong> {words(figure.caption)}
<span class="files">({files})</span></figcaption>
</figure>"""


def _publish(page: Path, files: Mapping[Path, bytes]) -> None:
    """Write all files into a hidden folder beside the page, then rename them one by one, in order."""
    made = [each for path in files for each in (*reversed(path.parent.parents), path.parent) if not each.exists()]
    try:
        for path in files:
            with reporting("write", path):
                make_folder(path.parent)
        with only_writer(page.parent), draft_beside(page) as drafts:
            ready = {path: drafts / str(number) for number, path in enumerate(files)}
            for path, data in files.items():
                write_synced(ready[path], data)
            for path, draft in ready.items():
                with reporting("write", path):
                    draft.replace(path)
        for folder in {path.parent for path in files}:
            sync_folder(folder)
    except BaseException:
        for folder in reversed(list(dict.fromkeys(made))):
            with suppress(OSError):
                folder.rmdir()
        raise
