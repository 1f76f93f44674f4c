"""From a matplotlib canvas to a `Figure`: colours that follow the page's theme, text that stays text, ids of its own.

Figures are drawn in the colours of the light theme, which is what PDFs and separate SVG files show.  On the page each
of these colours becomes a CSS variable with the light one as fallback, so one drawing serves both themes.  Everything
is drawn twice, for the two widths of the page, because text shrunk to a phone cannot be read.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sized
from typing import Any, TypeAlias
from xml.etree import ElementTree

from loopscope.errors import InputError
from loopscope.studies.report.contents import Drawings, Figure

# The other modules that draw import matplotlib's names from here, where its absence is explained.
try:
    import matplotlib
    from matplotlib.axes import Axes as Axes
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.colors import LinearSegmentedColormap, to_rgba
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.patches import FancyArrowPatch as FancyArrowPatch
    from matplotlib.patches import FancyBboxPatch as FancyBboxPatch
    from matplotlib.ticker import LogLocator, MultipleLocator, NullLocator, PercentFormatter
except ModuleNotFoundError as error:
    raise InputError("drawing figures needs matplotlib: pip install 'loopscope[plot]'") from error

Canvas: TypeAlias = MatplotlibFigure

WIDE, NARROW = 720, 328
"""Widths in CSS pixels: a column of text on a laptop, and a 360-pixel phone without its margins."""

PAPER, INK, FAINT, RULE = "#ffffff", "#1d2125", "#59616b", "#d5d9de"
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0b5fa5", "#b45309", "#00775a", "#8a3f8f", "#68707a"
HEAT, ALARM = "#0a4a86", "#c8102e"

THEMED = {
    PAPER: "paper", INK: "ink", FAINT: "faint", RULE: "rule", BLUE: "blue", ORANGE: "orange", GREEN: "green",
    PURPLE: "purple", GREY: "grey", HEAT: "heat", ALARM: "alarm",
}  # fmt: skip
"""The CSS variable (less its two hyphens) that stands for each colour on the page; style.css defines both themes."""

RAMP = LinearSegmentedColormap.from_list("heat", [to_rgba(HEAT, 0.0), to_rgba(HEAT, 1.0)])
"""One hue from nothing to full, over whatever the page's background is."""

SERIES = (BLUE, ORANGE, GREEN, PURPLE, GREY, INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Series differ by colour and by marker: no reader needs the colours."""

SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 11.0, "axes.titlesize": 11.5, "axes.labelsize": 11.0, "legend.fontsize": 11.0,
    "xtick.labelsize": 10.5, "ytick.labelsize": 10.5,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT, "axes.edgecolor": RULE, "xtick.color": RULE, "ytick.color": RULE, "grid.color": RULE,
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "axes.linewidth": 1.0, "grid.linewidth": 0.7,
    "axes.titlelocation": "left", "axes.titlepad": 5.0, "axes.axisbelow": True, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "legend.handlelength": 1.8, "hatch.linewidth": 0.7,
}  # fmt: skip

FONTS = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
SVG = "http://www.w3.org/2000/svg"
POINTER = r"url\(#([^)]+)\)"


def canvas(width: int, height: int) -> Canvas:
    """An empty canvas of so many CSS pixels, laid out so that nothing overlaps."""
    return MatplotlibFigure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def percent_axis(axes: Axes, horizontal: bool, low: float = 0.0, high: float = 1.0) -> None:
    """Shares as percentages, with a light grid along the axis that measures."""
    axis = axes.xaxis if horizontal else axes.yaxis
    step = 0.25 if high - low <= 1.0 else 0.5
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    margin = 0.02 * (high - low)
    (axes.set_xlim if horizontal else axes.set_ylim)(low - margin, high + margin)
    axes.grid(True, axis="x" if horizontal else "y")
    axes.tick_params(length=0)


def doubling_axis(axes: Axes, last: int | float) -> None:
    """Places from 1 to `last` along the horizontal axis, with 1, 2, 4, 8, ... equally far apart."""
    axes.set_xscale("log", base=2)
    places = [2**power for power in range(1 + int(math.log2(last)))]
    axes.set_xticks(places, [str(place) for place in places])
    axes.set_xticks([], minor=True)
    axes.tick_params(length=0)


def size_axis(axes: Axes) -> None:
    """Positive sizes along the vertical axis, on a logarithmic scale with a light grid; to be called after drawing."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda size, _: f"{size:g}")
    axes.grid(True, axis="y")
    axes.tick_params(length=0)


def heading(title: str, width: int, columns: int) -> str:
    """The title of one of so many panels side by side, in as many lines as it needs."""
    return textwrap.fill(title, max(8, int(width / columns / 7.5)))


def check_some(name: str, given: Sized) -> None:
    """InputError for a figure without content."""
    if not len(given):
        raise InputError(f"figure {name!r} has nothing to draw: at least one entry is needed")


def draw(name: str, title: str, caption: str, description: str, plot: Callable[[int], Canvas]) -> Figure:
    """A figure of what `plot` draws for both widths; equal drawings give equal bytes."""

    def drawings() -> Drawings:
        with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
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
