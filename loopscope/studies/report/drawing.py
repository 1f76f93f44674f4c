"""From a matplotlib canvas to a `Figure`: colours that follow the page's theme, text that stays text, ids of its own.

Figures are drawn in the colours of the light theme, which is what PDFs and separate SVG files show.  On the page each
of these colours becomes a CSS variable with the light one as fallback, so one drawing serves both themes.  Everything
is drawn twice, for the two widths of the page, because text shrunk to a phone cannot be read.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from xml.etree import ElementTree

from loopscope.plot.canvas import LIGHT, NARROW, WIDE, Canvas, FigureCanvasPdf, FigureCanvasSVG, rc_context
from loopscope.studies.report.contents import Drawings, Figure

THEMED = {colour: name for name, colour in asdict(LIGHT).items()}
"""The CSS variable (less its two hyphens) that stands for each colour on the page; style.css defines both themes."""

FONTS = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
SVG = "http://www.w3.org/2000/svg"
POINTER = r"url\(#([^)]+)\)"


def draw(name: str, title: str, caption: str, description: str, plot: Callable[[int], Canvas]) -> Figure:
    """A figure of what `plot` draws for both widths; equal drawings give equal bytes."""

    def drawings() -> Drawings:
        with rc_context({**LIGHT.settings, "svg.hashsalt": name}):
            wide, narrow = plot(WIDE), plot(NARROW)
            # Laid out once, not for every format; printed, not saved, as `savefig` would first draw all of it unseen.
            for drawn in (wide, narrow):
                if (engine := drawn.get_layout_engine()) is not None:
                    engine.execute(drawn)
                drawn.set_layout_engine("none")
            file = io.BytesIO()
            about = {"CreationDate": None, "Creator": "loopscope", "Title": title}
            FigureCanvasPdf(wide).print_pdf(file, metadata=about)
            page_wide = _themed(_svg(wide), f"{name}-wide", title, description)
            page_narrow = _themed(_svg(narrow), f"{name}-narrow", title, description)
        return Drawings(page_wide, page_narrow, file.getvalue())

    return Figure(name, title, caption, description, drawings)


def _svg(drawn: Canvas) -> str:
    file = io.StringIO()
    FigureCanvasSVG(drawn).print_svg(file, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return file.getvalue()


def _themed(text: str, prefix: str, title: str, description: str) -> str:
    """matplotlib's file as an element of a page: named for screen readers, themed, compact, its ids its own."""
    root = ElementTree.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.partition("}")[2]
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    used = dict.fromkeys(found for element in root.iter() for found in _references(element))
    # Numbered: matplotlib's names are hashes of coordinates, in which layout leaves rounding that differs between runs.
    ids = {name: f"{prefix}-{number}" for number, name in enumerate(used, 1)}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "style") or _unseen(child):
                parent.remove(child)
    for element in root.iter():
        _rewrite(element, ids)
    _, _, width, height = root.attrib["viewBox"].split()
    words = [ElementTree.Element(tag, {"id": f"{prefix}-{tag}"}) for tag in ("title", "desc")]
    words[0].text, words[1].text = title, description
    root[:0] = words
    root.attrib = {
        "xmlns": SVG, "viewBox": root.attrib["viewBox"], "width": width, "height": height, "role": "img",
        "aria-labelledby": f"{prefix}-title", "aria-describedby": f"{prefix}-desc", "stroke-linejoin": "round",
        "font-family": FONTS,
    }  # fmt: skip
    for element in root.iter():  # line breaks between elements say nothing; those of texts would be seen
        if element.tag not in ("text", "tspan", "title", "desc"):
            element.text = None
        element.tail = None
    return ElementTree.tostring(root, encoding="unicode")


def _references(element: ElementTree.Element) -> list[str]:
    """The ids an element points to, by href or by url()."""
    links = [element.attrib["href"][1:]] if element.get("href", "").startswith("#") else []
    return links + [found for value in element.attrib.values() for found in re.findall(POINTER, value)]


def _unseen(element: ElementTree.Element) -> bool:
    """Cells of a heat map with nothing in them."""
    return element.tag == "path" and element.get("style") == "fill: none"


def _rewrite(element: ElementTree.Element, ids: Mapping[str, str]) -> None:
    """Give one element its themed colours, short numbers, and an id of its own, or none."""
    name = element.attrib.pop("id", "")
    if name in ids:
        element.set("id", ids[name])
    if name.startswith("QuadMesh"):
        element.set("shape-rendering", "crispEdges")  # else the page shines through between neighbouring cells
    for key, value in element.attrib.items():
        match key:
            case "d" | "x" | "y" | "width" | "height" | "transform":
                value = " ".join(re.sub(r"-?\d+\.\d+", lambda number: _short(number[0]), value).split())
            case "style":
                value = re.sub(r"#[0-9a-f]{6}", lambda colour: _variable(colour[0]), value)
                value = re.sub(r"font-family: [^;]+;?", "", value)  # the root names one for all
            case "href" if value.startswith("#"):
                value = f"#{ids[value[1:]]}"
        element.set(key, re.sub(POINTER, lambda found: f"url(#{ids[found[1]]})", value))


def _short(number: str) -> str:
    """A hundredth of a pixel is enough."""
    return f"{float(number):.2f}".rstrip("0").rstrip(".")


def _variable(colour: str) -> str:
    return f"var(--{THEMED[colour]}, {colour})" if colour in THEMED else colour
