"""What every drawing starts from: a canvas, colours for light and dark, axes, small multiples.  Needs matplotlib.

The report and the pictures of `loopscope.plot` are drawn with this; the report's are in the light colours, which its
page replaces by its own.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

from loopscope.errors import InputError

# The other modules that draw import matplotlib's names from here, where its absence is explained.
try:
    from matplotlib import rc_context as rc_context
    from matplotlib.axes import Axes as Axes
    from matplotlib.backends.backend_pdf import FigureCanvasPdf as FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG as FigureCanvasSVG
    from matplotlib.collections import QuadMesh as QuadMesh
    from matplotlib.colors import LinearSegmentedColormap, to_rgba
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from matplotlib.patches import FancyArrowPatch as FancyArrowPatch
    from matplotlib.patches import FancyBboxPatch as FancyBboxPatch
    from matplotlib.ticker import LogLocator, MultipleLocator, NullLocator, PercentFormatter
    from matplotlib.ticker import MaxNLocator as MaxNLocator
except ModuleNotFoundError as error:
    raise InputError("drawing figures needs matplotlib: pip install 'loopscope[plot]'") from error


class Canvas(MatplotlibFigure):
    """A matplotlib figure of no global state, which notebooks show."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=2 * self.get_dpi())
        return file.getvalue()


WIDE, NARROW = 720, 328
"""Widths in CSS pixels: a column of text on a laptop, and a 360-pixel phone without its margins."""


@dataclass(frozen=True)
class Palette:
    """Colours by what they are for; `heat` is the full end of a ramp that begins with the paper."""

    paper: str
    ink: str
    faint: str
    rule: str
    blue: str
    orange: str
    green: str
    purple: str
    grey: str
    heat: str
    alarm: str

    @property
    def series(self) -> tuple[str, ...]:
        """The colours of series, one after the other."""
        return (self.blue, self.orange, self.green, self.purple, self.grey, self.ink)

    @property
    def ramp(self) -> LinearSegmentedColormap:
        """One hue from nothing to full, over whatever the background is."""
        return LinearSegmentedColormap.from_list("heat", [to_rgba(self.heat, 0.0), to_rgba(self.heat, 1.0)])

    @property
    def both(self) -> LinearSegmentedColormap:
        """From full alarm over nothing to full heat: for numbers of either sign."""
        ends = [to_rgba(self.alarm, 1.0), to_rgba(self.heat, 0.0), to_rgba(self.heat, 1.0)]
        return LinearSegmentedColormap.from_list("both", ends)

    @property
    def settings(self) -> dict[Any, Any]:
        """matplotlib's settings for a drawing in these colours."""
        return {
            "svg.fonttype": "none",
            "font.size": 11.0, "axes.titlesize": 11.5, "axes.labelsize": 11.0, "legend.fontsize": 11.0,
            "xtick.labelsize": 10.5, "ytick.labelsize": 10.5,
            "text.color": self.ink, "axes.labelcolor": self.ink, "axes.titlecolor": self.ink,
            "xtick.labelcolor": self.faint, "ytick.labelcolor": self.faint, "axes.edgecolor": self.rule,
            "xtick.color": self.rule, "ytick.color": self.rule, "grid.color": self.rule,
            "figure.facecolor": self.paper, "axes.facecolor": self.paper, "axes.linewidth": 1.0, "grid.linewidth": 0.7,
            "axes.titlelocation": "left", "axes.titlepad": 5.0, "axes.axisbelow": True, "legend.frameon": False,
            "axes.spines.top": False, "axes.spines.right": False, "legend.handlelength": 1.8, "hatch.linewidth": 0.7,
        }  # fmt: skip


LIGHT = Palette(
    paper="#ffffff", ink="#1d2125", faint="#59616b", rule="#d5d9de", blue="#0b5fa5", orange="#b45309", green="#00775a",
    purple="#8a3f8f", grey="#68707a", heat="#0a4a86", alarm="#c8102e",
)  # fmt: skip
DARK = Palette(
    paper="#14171b", ink="#e7eaee", faint="#a3acb7", rule="#363d46", blue="#6fb3f2", orange="#f0a155", green="#45c7a1",
    purple="#d79be0", grey="#98a2ae", heat="#8cc6ff", alarm="#ff7b87",
)  # fmt: skip

PAPER, INK, FAINT, RULE = LIGHT.paper, LIGHT.ink, LIGHT.faint, LIGHT.rule
BLUE, ORANGE, GREEN, PURPLE, GREY = LIGHT.blue, LIGHT.orange, LIGHT.green, LIGHT.purple, LIGHT.grey
HEAT, ALARM = LIGHT.heat, LIGHT.alarm
RAMP, SERIES = LIGHT.ramp, LIGHT.series

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Series differ by colour and by marker: no reader needs the colours."""


def canvas(width: int, height: int) -> Canvas:
    """An empty canvas of so many CSS pixels, laid out so that nothing overlaps."""
    return Canvas(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def font_of(letter: str) -> bool:
    """Whether the font of the settings has a letter."""
    return get_font(findfont(FontProperties())).get_char_index(ord(letter)) != 0


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


SCREEN = 500
"""What panels are high together on a laptop, in CSS pixels: with title and caption they fit on one screen."""


def panels_of(
    width: int, titles: Sequence[str], x: str | Sequence[str], y: str = "", *, height: int = 225, above: int = 50,
    rows_alike: bool = False,
) -> tuple[Canvas, list[Axes]]:  # fmt: skip
    """A canvas with axes for every title, `above` them room for a legend; rows are of this height, or less on a laptop.

    `x` names the horizontal axes: all alike, in the lowest panel of every column, or each its own.  With `y`, the name
    of a share, panels have one vertical axis in per cent.  `rows_alike`: panels of a row have one horizontal axis.
    """
    check_some("panels", titles)
    columns = 1
    if width == WIDE:
        columns = min(len(titles), 2 if len(titles) <= 4 else 3 if len(titles) <= 9 else 4)
    rows = -(-len(titles) // columns)
    if width == WIDE:
        height = min(height, SCREEN // rows)
    drawn = canvas(width, above + height * rows)
    every = drawn.subplots(rows, columns, sharey=bool(y), sharex="row" if rows_alike else False, squeeze=False)
    grid = list(every.flatten())
    for unused in grid[len(titles) :]:
        unused.remove()
    for index, (axes, title) in enumerate(zip(grid, titles, strict=False)):
        axes.set_title(heading(title, width, columns))
        if not isinstance(x, str):
            axes.set_xlabel(x[index])
        elif index + columns >= len(titles):
            axes.set_xlabel(x)
        if y:
            percent_axis(axes, horizontal=False)
        if y and index % columns == 0:
            axes.set_ylabel(y)
    return drawn, grid[: len(titles)]


def common_legend(drawn: Canvas, grid: Sequence[Axes], columns: int, below: bool = False) -> None:
    """One legend for all panels, above or below them, with every name once."""
    handles = {text: line for axes in grid for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend(handles.values(), handles, loc="outside lower left" if below else "outside upper left", ncols=columns)


def check_some(name: str, given: Sized) -> None:
    """InputError for a figure without content."""
    if not len(given):
        raise InputError(f"figure {name!r} has nothing to draw: at least one entry is needed")
