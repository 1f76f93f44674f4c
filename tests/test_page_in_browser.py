"""The page in a real browser, on a phone and on a laptop, light and dark: all is there, legible, and reachable by keys.

Left out, with a word in pytest's summary, on a machine without Chromium.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loopscope.studies.report.contents import Report
from loopscope.studies.report.page import write_page
from tests.browser import chromium, demo_report, installed
from tests.looking import SIZES, look, opened

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
def page(request: pytest.FixtureRequest, browser: Browser, written: Path) -> Iterator[Page]:
    size, theme = request.param
    yield from opened(browser, written, SIZES[size], theme)


def test_every_figure_is_shown_once_and_fills_the_column(page: Page, report: Report) -> None:
    boxes = look(page, """return [...document.querySelectorAll('figure')].map(f => {
        const seen = [...f.querySelectorAll('svg')].filter(shown).map(s => s.getBoundingClientRect());
        return [f.id, seen.map(b => [b.width, b.height, b.right]), f.querySelector('figcaption').innerText];
    })""")  # fmt: skip
    figures = [figure for section in report.sections for figure in section.figures]
    assert [each[0] for each in boxes] == [f"figure-{figure.name}" for figure in figures]
    for (_, seen, caption), figure in zip(boxes, figures, strict=True):
        ((width, height, right),) = seen
        assert width >= 300
        assert height >= 100
        assert right <= page.viewport_size["width"]
        assert figure.title in caption
        assert figure.caption in caption


def test_every_figure_is_named_for_those_who_do_not_see_it(page: Page, report: Report) -> None:
    for figure in (figure for section in report.sections for figure in section.figures):
        (image,) = (each for each in page.get_by_role("img", name=figure.title, exact=True).all() if each.is_visible())
        assert image.locator("desc").text_content() == figure.description


def test_every_table_is_shown_with_all_its_rows(page: Page, report: Report) -> None:
    tables = look(page, """return [...document.querySelectorAll('table')].filter(shown).map(
        t => [...t.querySelectorAll('tbody tr')].filter(shown).map(r => r.innerText))""")  # fmt: skip
    measured = [table for section in report.sections for table in section.tables]
    *numbers, ledger, costs = tables
    assert [len(rows) for rows in numbers] == [len(table.rows) for table in measured]
    assert len(costs) == len(report.costs)
    for said, row in zip(ledger, report.ledger, strict=True):
        for part in (row.id, row.claim, row.paper, row.verdict, row.ours, row.interval, row.seeds, row.command):
            assert part in said


def test_text_in_figures_can_be_read(page: Page) -> None:
    sizes = look(
        page, "return [...document.querySelectorAll('svg text')].filter(shown).map(t => [size(t), t.textContent])"
    )
    assert len(sizes) > 150
    assert min(sizes)[0] >= 9


def test_text_in_figures_neither_overlaps_nor_leaves_the_drawing(page: Page) -> None:
    clashes = look(page, """const found = [];
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
        return found;""")  # fmt: skip
    assert clashes == []


def test_text_stands_out_from_what_is_behind_it(page: Page) -> None:
    texts = look(page, """const found = [];
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const e = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
            if (!text || !shown(e) || e.closest('title, desc')) continue;
            e.scrollIntoView({block: 'center', behavior: 'instant'});
            const style = getComputedStyle(e);
            found.push([contrast(rgba(e.ownerSVGElement ? style.fill : style.color), behind(e)), text]);
        }
        return found;""")  # fmt: skip
    assert len(texts) > 300
    assert min(texts)[0] >= 4.5, min(texts)


def test_theme_is_the_readers(page: Page, request: pytest.FixtureRequest) -> None:
    theme = request.node.callspec.params["page"][1]
    paper, ink = look(page, "return [behind(document.body), rgba(getComputedStyle(document.body).color)].map(light)")
    assert (paper > ink) == (theme == "light")
    fills = look(page, """return [...document.querySelectorAll('figure svg > g > g:first-child path')]
        .filter(shown).map(p => light(rgba(getComputedStyle(p).fill)))""")  # fmt: skip
    assert fills
    assert set(fills) == {paper}


def test_tab_reaches_every_link_and_every_table_in_order(page: Page) -> None:
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


def test_links_on_the_page_lead_to_what_is_shown(page: Page, written: Path) -> None:
    for link in {link.get_attribute("href") for link in page.locator("a").all()}:
        assert link is not None
        if link.startswith("#"):
            assert page.locator(f"[id='{link[1:]}']").count() == 1, link
        else:
            assert (written.parent / link).is_file(), link


def test_page_never_scrolls_sideways_at_any_width(browser: Browser, written: Path) -> None:
    for page in opened(browser, written, SIZES["phone"]):
        for width in (320, 360, 600, 719, 721, 768, 1023, 1025, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            assert look(page, "return document.documentElement.scrollWidth") <= width
            outside = look(page, """return [...document.querySelectorAll('main *')].filter(
                e => !e.closest('.scroll table, svg') && e.getBoundingClientRect().right > innerWidth + 0.5)
                .map(e => e.outerHTML.slice(0, 80))""")  # fmt: skip
            assert outside == []
            sizes = look(page, "return [...document.querySelectorAll('svg text')].filter(shown).map(size)")
            assert min(sizes) >= 9, width


def test_contents_open_by_keyboard_on_a_phone_and_stay_on_a_laptop(browser: Browser, written: Path) -> None:
    for page in opened(browser, written, SIZES["phone"]):
        link = page.locator("details.contents a").first
        assert not link.is_visible()
        page.locator("summary").focus()
        page.keyboard.press("Enter")
        assert link.is_visible()
    for page in opened(browser, written, SIZES["laptop"]):
        contents = page.locator("nav.contents")
        page.locator("#cost").scroll_into_view_if_needed()
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
    for page in opened(browser, written, SIZES["laptop"], "dark"):
        page.emulate_media(media="print", color_scheme="dark")
        assert look(page, "return behind(document.body)") == [255, 255, 255]
        assert look(page, "return [...document.querySelectorAll('.contents')].filter(shown).length") == 0
        assert look(page, "return getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
