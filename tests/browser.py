"""What the tests of the report share: a report with every kind of figure and table, and a browser to show it in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from loopscope.quantity import Quantity, QuantityTable
from loopscope.stats import Estimate
from loopscope.studies.report.contents import (
    FAILS,
    HOLDS,
    NOT_RUN,
    NOW,
    STORED,
    Cost,
    Figure,
    LedgerRow,
    Report,
    Section,
)
from loopscope.studies.report.dots import rates
from loopscope.studies.report.figures import Line, components, lines_by_call, paired, stacked_answers, subsets
from loopscope.studies.report.heat import Walk, heat_maps, label_heat
from loopscope.studies.report.task import task_figure

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def installed() -> str | None:
    """The path of a Chromium among the system's programs, if any."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """The browser, headless, closed afterwards."""
    from playwright.sync_api import sync_playwright

    # A container gives the browser's sandbox no user namespaces; the only page it shows is our own.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def share(value: float, half: float = 0.012, n: int = 512) -> Estimate:
    return Estimate(value, max(0.0, value - half), min(1.0, value + half), n, "graph", 5000)


def walk(name: str, loops: int, speed: int, seed: int, nodes: int = 10) -> Walk:
    """A made-up backbone that goes `speed` nodes per loop and blurs on the way; loop 0 knows nothing."""
    generator = np.random.default_rng(seed)
    frequencies = np.full((17, nodes), 1 / nodes)
    modes: list[int | None] = [None]
    for loop in range(1, 17):
        place = min(8, max(0, 8 - speed * (loops - loop)))
        sure = 0.55 + 0.45 * min(loop, loops) / loops
        frequencies[loop] = generator.dirichlet([0.4] * nodes) * (1 - sure)
        frequencies[loop, place] += sure
        modes.append(place)
    return Walk(name, frequencies, loops, modes)


def demo_figures() -> dict[str, Figure]:
    """One figure of every kind."""
    eight = [
        walk(f"D8L8 seed {seed}", 8, 1 + seed % 2, seed) for seed in range(5)
    ]  # an odd number: the last row is not full
    answers = {
        "unsteered": (0.501, 0.482, 0.013, 0.004), "J_one": (0.001, 0.996, 0.002, 0.001),
        "J_two": (0.002, 0.008, 0.982, 0.008), "J_one, before F": (0.993, 0.005, 0.001, 0.001),
        "J_one, moved": (0.118, 0.125, 0.122, 0.635),
    }  # fmt: skip
    labels = {"u": "u (stay)", "one": "one hop", "two": "two hops", "other": "other"}
    shares = {name: dict(zip(labels, map(share, row), strict=True)) for name, row in answers.items()}
    calls = {
        "repeated one": (0.995, 0.936, 0.563, 0.196, 0.084, 0.060, 0.067, 0.097),
        "repeated two": (0.982, 0.680, 0.236, 0.107, 0.105, 0.109, 0.096, 0.101),
        "mixed strings": (0.990, 0.789, 0.395, 0.126, 0.094, 0.093, 0.097, 0.101),
        "current map left out": (0.500, 0.478, 0.519, 0.202, 0.085, 0.057, 0.068, 0.094),
        "no map": (0.500, 0.020, 0.010, 0.030, 0.080, 0.060, 0.070, 0.080),
        "copy u": (0.0, 0.0, 0.0, 0.0, 0.147, 0.166, 0.159, 0.169),
    }
    lines = [Line(name, [share(each) for each in row], index > 2) for index, (name, row) in enumerate(calls.items())]
    levels = {"pattern": 0.454, "queries": 0.065, "keys": 0.055, "values": 0.040, "head outputs": 0.400,
              "attention output": 0.420, "MLP output": 0.681, "residual": 0.982}  # fmt: skip
    bars = {
        title: {
            part: {"layer 1": share(level * 0.1), "layer 2": share(level), "both": share(min(1.0, level * 1.1))}
            for part, level in levels.items()
        }
        for title in ("two-hop run into one-hop run", "one-hop run into two-hop run")
    }
    groups = [heads for size in range(1, 5) for heads in combinations(range(4), size)]
    chosen = {
        title: {heads: share(0.2 * len(heads) + 0.15 * (2 in heads)) for heads in groups}
        for title in ("steered patterns, unsteered run", "unsteered patterns, steered run")
    }
    by_label = {f"loop {loop}": np.abs(np.sin(np.arange(100.0).reshape(10, 10) * loop)) for loop in range(1, 4)}
    pairs = {
        "one hop": [(0.62, 1.0), (0.71, 1.0), (0.66, 1.0), (0.58, 0.999), (0.75, 1.0)],
        "two hops": [(0.48, 0.11), (0.55, 0.14), (0.51, 0.13), (0.44, 0.16), (0.54, 0.12)],
    }
    about = "Demonstration numbers; 512 graphs, all starts. Intervals resample graphs."
    return {
        "heat_maps": heat_maps("trajectories", "Native trajectories", f"{about} Dots: unique modes.", eight),
        "one_map": heat_maps("main", "The main backbone", about, [walk("D8L6 seed 5", 6, 2, 1)]),
        "label_heat": label_heat("labels", "Readouts by start label", about, by_label, "position", "label"),
        "stacked": stacked_answers("answers", "Answers of the seventh call", about, shares, labels),
        "lines": lines_by_call("calls", "Accuracy by call", about, lines),
        "rates": rates("rates", "The battery", about, demo_tables()),
        "paired": paired("pairs", "Five pairs", f"{about} Short bars: means.", pairs),
        "components": components("components", "Every component", about, bars),
        "subsets": subsets("subsets", "All subsets of heads", about, chosen, 4),
    }


def demo_tables() -> list[QuantityTable]:
    return [
        QuantityTable(
            "test",
            "Patterns and outputs moved between graphs",
            [
                Quantity("test.share", "pattern patch gives E", share(0.812), 3966, 0.799),
                Quantity("test.share", "pattern patch gives D", share(0.015, 0.004), 3966),
                Quantity("test.share", "output patch gives D", share(0.838), 3966, 0.832),
                Quantity("test.share", "output patch gives E", share(0.006, 0.002), 3966),
            ],
            "Eligible pairs only; fits are averaged first, graphs are resampled.",
        ),
        QuantityTable(
            "test",
            "Restoring heads after the queries were replaced",
            [
                Quantity("test.share", "selected head", share(0.601), 4413, 0.601),
                Quantity("test.share", "comparison head", share(0.009, 0.003), 4413, 0.009),
                Quantity("test.share", "all four heads", share(1.0, 0.0), 4413),
            ],
        ),
    ]


@cache
def demo_report() -> Report:
    """A full report: every figure and table, every verdict, sections with and without figures."""
    figures = demo_figures()
    command = "loopscope reproduce targets --device cpu"
    rows = [
        LedgerRow("native.endpoint", "3", "every backbone answers at its last trained loop", "~100 %", HOLDS, "99.9",
                  "[99.8, 100.0]", 5120, "D8L6 3-13, D8L8 0-11", "paper scale", STORED,
                  "loopscope reproduce trajectories"),
        LedgerRow("native.hold", "3", "extra loops keep the answer", '"eventually they stabilise"', FAILS,
                  "21 of 23 backbones", "", 5120, "D8L6 3-13, D8L8 0-11", "paper scale", STORED,
                  "loopscope reproduce trajectories"),
        LedgerRow("target.one", "4", "J_one selects the one-hop target", "48.2 → 99.6", HOLDS, "47.9 → 99.4",
                  "[99.1, 99.6]", 4110, "D8L6 5", "paper scale", NOW, command),
        LedgerRow("target.two", "4", "J_two selects the two-hop target", "98.2", HOLDS, "97.0", "[96.3, 97.6]", 4110,
                  "D8L6 5", "paper scale", NOW, command),
        LedgerRow("compose.order", "4", "order matters", "65.3 vs 74.5", HOLDS, "−9.1", "[−10.6, −7.7]", 3200,  # noqa: RUF001
                  "D8L6 5", "paper scale", NOW, "loopscope reproduce composition"),
        LedgerRow("letter.steer", "5", "the eight-step letter walk needs J", "0 → 251/256", NOT_RUN),
    ]  # fmt: skip
    sections = [
        Section(
            "trajectories", "Native trajectories", "How does a looped transformer walk along a path?",
            ["Every backbone is read out after each of sixteen loops, on 512 rings and from all ten starts, no map "
             "and no patch: `F16`. A readout is a position on the path, counted from the start.",
             "The dashed line is the trained budget. What happens to its right was never trained."],
            [figures["heat_maps"], figures["label_heat"]],
            claims=["native.endpoint", "native.hold"], finding="Loops advance by one node or by two: 3 & 2 of 5.",
        ),
        Section(
            "targets", "Target selection", "From one and the same state, does the map decide which node comes next?",
            ["The state after the trained loops is handed to one more call of F, with a map before it or without."],
            [figures["stacked"], figures["lines"]], claims=["target.one", "target.two", "compose.order"],
        ),
        Section(
            "mechanism", "Mechanism", "What carries the choice: patterns, values, or the stream?",
            ["Patterns say where a head looks, outputs what it brings back."],
            [figures["rates"], figures["components"], figures["subsets"], figures["paired"]], demo_tables(),
        ),
        Section("limits", "Limits", "", ["Ten nodes, two layers & one task: x < y is not y > x."]),
    ]  # fmt: skip
    lead = [
        "A [[looped transformer]] applies the same block again and again. Can one small affine map between two calls "
        "decide what the next call computes, and by which parts of the block is that decision carried out?",
        "Every number on this page was computed from predictions that are stored example by example. The ledger says "
        "which rows were recomputed from weights on this machine and which come from `results/`.",
    ]
    costs = [
        Cost("trajectories", 12.4, "cpu, 2 threads", 5120 * 16 / 6, 5120 * 16 / 6),
        Cost("mechanism", 83.0, "cpu, 2 threads", 61_440, 512_000),
        Cost("page", 4.2),
    ]
    opening, terms = [task_figure(), figures["one_map"]], {"F": "the block", "J": "a map on the state"}
    title = "Steering looped transformers: ten-node graph walks"
    return Report(title, lead, sections, rows, costs, opening, terms)
