"""The pages in a real browser, on a phone and on a laptop, light and dark: all is there, legible, reachable by keys.

Left out, with a word in pytest's summary, on a machine without Chromium.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loopscope.studies.report.contents import Figure, Report
from loopscope.studies.report.page import write_page
from tests.browser import chromium, demo_report, installed
from tests.looking import SIZES, every_page, look, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: the page was not looked at in a browser"),
]

SETTINGS = [(size, theme) for size in SIZES for theme in ("light", "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with chromium(PROGRAM) as running:
        yield running


@pytest.fixture(scope="module")
def report() -> Report:
    return demo_report()


@pytest.fixture(scope="module")
def written(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(report, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module", params=SETTINGS, ids="-".join)
def pages(request: pytest.FixtureRequest, browser: Browser, written: Path) -> Iterator[dict[str, Page]]:
    """Every page of the report by its name, all at one size and in one theme."""
    size, theme = request.param
    with ExitStack() as stack:
        open_one = contextmanager(opened)
        yield {
            name: stack.enter_context(open_one(browser, place, SIZES[size], theme))
            for name, place in every_page(written).items()
        }


def figures_on(name: str, report: Report) -> list[Figure]:
    """What a page has to show."""
    if name == "index":
        return [*report.opening, *(section.figures[0] for section in report.sections if section.figures)]
    return [figure for section in report.sections if section.anchor == name for figure in section.figures]


def test_every_figure_is_shown_once_and_fills_the_column(pages: dict[str, Page], report: Report) -> None:
    shown = set()
    for name, page in pages.items():
        boxes = look(page, """return [...document.querySelectorAll('figure')].map(f => {
            const seen = [...f.querySelectorAll('svg')].filter(shown).map(s => s.getBoundingClientRect());
            return [f.id, seen.map(b => [b.width, b.height, b.right]), f.querySelector('figcaption').innerText];
        })""")  # fmt: skip
        figures = figures_on(name, report)
        assert [each[0] for each in boxes] == [f"figure-{figure.name}" for figure in figures]
        shown |= {figure.name for figure in figures}
        for (_, seen, caption), figure in zip(boxes, figures, strict=True):
            ((width, height, right),) = seen
            assert width >= 300
            assert height >= 100
            assert right <= page.viewport_size["width"]
            assert figure.title in caption
            assert figure.caption in caption
    assert shown == {figure.name for figure in report.figures}


def test_every_figure_is_named_for_those_who_do_not_see_it(pages: dict[str, Page], report: Report) -> None:
    for name, page in pages.items():
        for figure in figures_on(name, report):
            images = page.get_by_role("img", name=figure.title, exact=True).all()
            (image,) = (each for each in images if each.is_visible())
            assert image.locator("desc").text_content() == figure.description


def test_every_table_is_shown_with_all_its_rows(pages: dict[str, Page], report: Report) -> None:
    tables = {
        name: look(page, """return [...document.querySelectorAll('table')].filter(shown).map(
            t => [...t.querySelectorAll('tbody tr')].filter(shown).map(r => r.innerText))""")
        for name, page in pages.items()
    }  # fmt: skip
    for section in report.sections:
        assert [len(rows) for rows in tables[section.anchor]] == [len(table.rows) for table in section.tables]
    (ledger,), (costs,) = tables["ledger"], tables["cost"]
    assert len(costs) == len(report.costs)
    for said, row in zip(ledger, report.ledger, strict=True):
        for part in (row.id, row.claim, row.paper, row.verdict, row.ours, row.interval, row.seeds, row.command):
            assert part in said


def test_what_was_found_stands_on_the_first_page(pages: dict[str, Page], report: Report) -> None:
    said = look(pages["index"], """return [...document.querySelectorAll('main > section')].map(
        s => [s.id, s.querySelector('h2').innerText, s.innerText])""")  # fmt: skip
    found = {anchor: (title, text) for anchor, title, text in said}
    rows = {row.id: row for row in report.ledger}
    for section in report.sections:
        title, text = found[section.anchor]
        assert title == (section.question or section.title)
        assert section.finding in text
        for row in (rows[each] for each in section.claims):
            for part in (row.verdict, row.claim, row.ours, row.paper):
                assert part in text


def test_text_in_figures_can_be_read(pages: dict[str, Page]) -> None:
    look_at = "return [...document.querySelectorAll('svg text')].filter(shown).map(t => [size(t), t.textContent])"
    sizes = [each for page in pages.values() for each in look(page, look_at)]
    assert len(sizes) > 150
    assert min(sizes)[0] >= 9


def test_text_in_figures_neither_overlaps_nor_leaves_the_drawing(pages: dict[str, Page]) -> None:
    clashes = [clash for page in pages.values() for clash in look(page, """const found = [];
        for (const svg of [...document.querySelectorAll('svg')].filter(shown)) {
            const frame = svg.getBoundingClientRect();
            const title = svg.querySelector('title').textContent;
            const texts = [...svg.querySelectorAll('text')].filter(shown)
                .map(t => [t.textContent, t.getBoundingClientRect()]);
            for (const [i, [name, a]] of texts.entries()) {
                if (a.left < frame.left - 1 || a.right > frame.right + 1
                    || a.top < frame.top - 1 || a.bottom > frame.bottom + 1) found.push(`${name} leaves ${title}`);
                for (const [other, b] of texts.slice(i + 1))
                    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
                        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)  // ascenders and descenders
                        found.push(`${name} on ${other} in ${title}`);
            }
        }
        return found;""")]  # fmt: skip
    assert clashes == []


def test_text_stands_out_from_what_is_behind_it(pages: dict[str, Page]) -> None:
    texts = [each for page in pages.values() for each in look(page, """const found = [];
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const e = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
            if (!text || !shown(e) || e.closest('title, desc')) continue;
            e.scrollIntoView({block: 'center', behavior: 'instant'});
            const style = getComputedStyle(e);
            found.push([contrast(rgba(e.ownerSVGElement ? style.fill : style.color), behind(e)), text]);
        }
        return found;""")]  # fmt: skip
    assert len(texts) > 300
    assert min(texts)[0] >= 4.5, min(texts)


def test_theme_is_the_readers(pages: dict[str, Page], request: pytest.FixtureRequest, report: Report) -> None:
    theme = request.node.callspec.params["pages"][1]
    for name, page in pages.items():
        body = "return [behind(document.body), rgba(getComputedStyle(document.body).color)].map(light)"
        paper, ink = look(page, body)
        assert (paper > ink) == (theme == "light")
        fills = look(page, """return [...document.querySelectorAll('figure svg > g > g:first-child path')]
            .filter(shown).map(p => light(rgba(getComputedStyle(p).fill)))""")  # fmt: skip
        assert set(fills) == ({paper} if figures_on(name, report) else set())


def test_tab_reaches_every_link_and_every_table_in_order(pages: dict[str, Page]) -> None:
    for page in pages.values():
        page.goto(page.url)  # from the top
        wanted = look(page, """return [...document.querySelectorAll('a, summary, .scroll')]
            .filter(e => e.checkVisibility()).map(name)""")  # fmt: skip
        reached = []
        for _ in wanted:
            page.keyboard.press("Tab")
            where = "document.activeElement"
            name, outline = look(page, f"return [name({where}), getComputedStyle({where}).outlineStyle]")
            assert outline == "solid", name
            reached.append(name)
        assert reached == wanted


def test_links_lead_to_what_is_shown(pages: dict[str, Page], written: Path) -> None:
    places = {path.resolve(): pages[name] for name, path in every_page(written).items()}
    for here, page in places.items():
        for link in {link.get_attribute("href") for link in page.locator("a").all()}:
            assert link is not None
            file, _, anchor = link.partition("#")
            there = (here.parent / file).resolve() if file else here
            assert there.is_file(), link
            if anchor:
                assert places[there].locator(f"[id='{anchor}']").count() == 1, link


def test_the_section_that_is_read_is_marked(browser: Browser, written: Path, report: Report) -> None:
    marked = "return [...document.querySelectorAll('nav.contents a')].filter(weight).map(a => a.getAttribute('href'))"
    weight = "const weight = a => Number(getComputedStyle(a).fontWeight) > 400;"
    for page in opened(browser, written, SIZES["laptop"]):
        assert look(page, weight + marked) == ["#main"]
        for section in report.sections[:-1]:
            look(page, f"document.getElementById('{section.anchor}').scrollIntoView()")
            page.wait_for_timeout(100)
            assert look(page, weight + marked) == [f"#{section.anchor}"]


def test_pages_never_scroll_sideways_at_any_width(browser: Browser, written: Path) -> None:
    for page in (page for each in every_page(written).values() for page in opened(browser, each, SIZES["phone"])):
        for width in (320, 360, 600, 719, 721, 768, 1023, 1025, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            assert look(page, "return document.documentElement.scrollWidth") <= width
            outside = look(page, """return [...document.querySelectorAll('main *')].filter(
                e => !e.closest('.scroll table, svg') && e.getBoundingClientRect().right > innerWidth + 0.5)
                .map(e => e.outerHTML.slice(0, 80))""")  # fmt: skip
            assert outside == []
            sizes = look(page, "return [...document.querySelectorAll('svg text')].filter(shown).map(size)")
            assert min(sizes, default=9) >= 9, width


def test_contents_open_by_keyboard_on_a_phone_and_stay_on_a_laptop(browser: Browser, written: Path) -> None:
    for page in opened(browser, written, SIZES["phone"]):
        link = page.locator("details.contents a").first
        assert not link.is_visible()
        page.locator("summary").focus()
        page.keyboard.press("Enter")
        assert link.is_visible()
    for page in opened(browser, written, SIZES["laptop"]):
        contents = page.locator("nav.contents")
        page.locator("#terms").scroll_into_view_if_needed()
        box = contents.bounding_box()
        assert box is not None
        assert box["y"] >= 0


def test_skip_link_is_first_and_leads_past_the_contents(browser: Browser, written: Path) -> None:
    for page in opened(browser, written, SIZES["laptop"]):
        page.keyboard.press("Tab")
        box = page.locator(".skip").bounding_box()
        assert box is not None
        assert box["y"] >= 0
        page.keyboard.press("Enter")
        assert look(page, "return document.activeElement.id") == "main"


def test_print_has_light_paper_no_contents_and_whole_tables(browser: Browser, written: Path) -> None:
    for page in opened(browser, every_page(written)["mechanism"], SIZES["laptop"], "dark"):
        page.emulate_media(media="print", color_scheme="dark")
        assert look(page, "return behind(document.body)") == [255, 255, 255]
        assert look(page, "return [...document.querySelectorAll('.contents')].filter(shown).length") == 0
        assert look(page, "return getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
