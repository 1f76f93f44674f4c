"""The task as a picture: a ring of ten nodes with the asked walk, and the looped block that has to walk it."""

from __future__ import annotations

import math

from loopscope.plot.canvas import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    PAPER,
    RULE,
    Axes,
    Canvas,
    FancyArrowPatch,
    FancyBboxPatch,
    canvas,
)
from loopscope.studies.report.contents import Figure
from loopscope.studies.report.drawing import draw

NODES, DEPTH = 10, 8
POWERS = ("s", "f(s)", "f²(s)", "f³(s)", "f⁴(s)", "f⁵(s)", "f⁶(s)", "f⁷(s)", "f⁸(s)", "")
"""What the nodes are called, on from the start."""

LABELS = (3, 7, 0, 5, 9, 2, 8, 1, 6, 4)
"""An example: which node follows which."""

CAPTION = (
    "Top: a graph of ten nodes, in which every node points to one other, f. Given its edges and a start s (blue), the "
    "model answers the node that is eight hops on (orange). Bottom: it does so with one block F, applied again and "
    "again to the state h; each application is a loop. A map J changes the state that enters a loop."
)


def task_figure() -> Figure:
    """The ring above the loops."""
    names = ", ".join(f"{label}" for label in LABELS[: DEPTH + 1])
    description = (
        f"A ring of {NODES} nodes. The walk of {DEPTH} hops from the start goes through the nodes {names}; the last "
        "is the answer. Below, the input goes through the block F, drawn three times with arrows between, and a map J "
        "before the last one; then the answer is read out."
    )

    def plot(width: int) -> Canvas:
        drawn = canvas(width, 310)
        ring, loops = drawn.subplots(2, 1, gridspec_kw={"height_ratios": (4.6, 1)})
        _ring(ring)
        _loops(loops)
        return drawn

    return draw("task", "The task: where does a walk of eight hops end?", CAPTION, description, plot)


def _ring(axes: Axes) -> None:
    axes.set(xlim=(-1.75, 1.75), ylim=(-1.38, 1.38), aspect="equal")
    axes.axis("off")
    places = [(math.sin(math.tau * at / NODES), math.cos(math.tau * at / NODES)) for at in range(NODES)]
    for at, (x, y) in enumerate(places):
        walked = at < DEPTH
        colour = BLUE if at == 0 else ORANGE if at == DEPTH else FAINT
        axes.add_patch(
            FancyArrowPatch(
                (x, y), places[(at + 1) % NODES], arrowstyle="-|>", mutation_scale=11, shrinkA=13, shrinkB=13,
                color=INK if walked else RULE, linewidth=1.6 if walked else 1.0,
            )
        )  # fmt: skip
        filled = at in (0, DEPTH)
        axes.plot([x], [y], "o", markersize=21, color=colour if filled else PAPER, markeredgecolor=colour)
        axes.text(x, y, str(LABELS[at]), ha="center", va="center_baseline", color=PAPER if filled else INK)
        axes.text(1.38 * x, 1.26 * y, POWERS[at], ha="center", va="center", color=colour)


def _loops(axes: Axes) -> None:
    axes.set(xlim=(0, 10), ylim=(0.3, 1.7))
    axes.axis("off")
    parts = (("s", 0.5, INK), ("F", 2.1, BLUE), ("F", 3.9, BLUE), ("J", 5.7, ORANGE), ("F", 7.4, BLUE))
    for name, x, colour in parts:
        if name != "s":
            box = FancyBboxPatch((x - 0.42, 0.45), 0.84, 1.1, boxstyle="round,pad=0,rounding_size=0.18", fill=False,
                                 edgecolor=colour, linewidth=1.5)  # fmt: skip
            axes.add_patch(box)
        axes.text(x, 1.0, name, ha="center", va="center", color=colour)
    axes.text(9.42, 1.0, "answer", ha="center", va="center", color=INK)
    ends = [(0.75, 1.6), (2.55, 3.4), (4.35, 5.2), (6.2, 6.9), (7.9, 8.75)]
    for begin, end in ends:
        axes.add_patch(
            FancyArrowPatch(
                (begin, 1.0), (end, 1.0), arrowstyle="-|>", mutation_scale=10, shrinkA=0, shrinkB=0, color=FAINT,
            )
        )  # fmt: skip
