"""Looking at a page in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.studies.report.contents import Report
from loopscope.studies.report.page import PAGES, write_page
from tests.browser import chromium, installed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZES = {"phone": (360, 740), "laptop": (1280, 800)}

# What every look at the page needs: which elements are shown, and the colour behind a text.
TOOLS = """
const shown = e => e.checkVisibility({visibilityProperty: true}) && e.getBoundingClientRect().width > 0;
// The length of (a, b) is the scale of a rotated text too.
const size = e => parseFloat(getComputedStyle(e).fontSize) *
    (e.getScreenCTM ? Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b) : 1);
const name = e => e.href ?? e.getAttribute('aria-labelledby') ?? e.tagName;
const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return [...n.slice(0, 3), n[3] ?? 1]; };
const over = (top, below) => below.map((b, i) => top[i] * top[3] + b * (1 - top[3]));
const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
function behind(e) {
    const layers = [];
    if (e.ownerSVGElement) {
        const box = e.getBoundingClientRect();
        for (const under of document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2)) {
            if (!under.ownerSVGElement || under.closest('text')) continue;
            const style = getComputedStyle(under);
            if (style.fill === 'none') continue;
            const fill = rgba(style.fill); fill[3] *= Number(style.fillOpacity); layers.push(fill);
        }
    }
    for (let at = e; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
}
"""


def opened(browser: Browser, written: Path, size: tuple[int, int], theme: str = "light") -> Iterator[Page]:
    """The page at this size, offline; whatever it asks for or complains about is an error."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, offline=True, reduced_motion="reduce"
    )
    found = context.new_page()
    noise: list[str] = []
    found.on("request", lambda request: noise.append(f"asked for {request.url}"))
    found.on("console", lambda message: noise.append(f"said {message.text}"))
    found.on("pageerror", lambda error: noise.append(f"failed with {error}"))
    found.goto(written.as_uri())
    yield found
    context.close()
    assert set(noise) == {f"asked for {written.as_uri()}"}


def look(page: Page, code: str) -> Any:
    """What a piece of JavaScript finds on the page."""
    return page.evaluate(f"() => {{ {TOOLS} {code} }}")


def phone_width(report: Report, folder: Path) -> tuple[int, int]:
    """How wide the widest page of a report is with all details open, on a phone, and how wide the phone is."""
    program, size = installed(), SIZES["phone"]
    assert program is not None
    widths = []
    with chromium(program) as browser:
        for place in every_page(write_page(report, folder)).values():
            for page in opened(browser, place, size):
                look(page, "document.querySelectorAll('details').forEach(e => e.open = true)")
                widths.append(look(page, "return document.documentElement.scrollWidth"))
    return max(widths), size[0]


def every_page(first: Path) -> dict[str, Path]:
    """All pages of a report by their names, the first one first."""
    return {each.stem: each for each in (first, *sorted((first.parent / PAGES).iterdir()))}
