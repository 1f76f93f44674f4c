"""Sweeps of looped Llamas, ours beside the plain way and beside what an expert writes by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

import torch
from torch import Tensor

from loopscope.address import Address, grid
from loopscope.cli.bench.by_hand import ByHand
from loopscope.cli.bench.timing import each_call
from loopscope.execute.sweeping import Sweep, sweep
from loopscope.log import Log, silent
from loopscope.models.passes import LanguageModel
from loopscope.models.stacks import stack_from_config
from loopscope.program import F, Run

REPEATS, PLAIN_CELLS = 3, 12


def llama(vocabulary: int, width: int, middle: int, layers: int, heads: int, shared: int) -> dict[str, Any]:
    """The config of a Llama; `shared` heads have keys and values of their own."""
    return {
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": middle,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": shared,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    }  # fmt: skip


LOOPED = llama(vocabulary=1024, width=512, middle=1408, layers=12, heads=8, shared=8)
"""A looped Llama of medium size."""

SHORT = llama(vocabulary=49152, width=576, middle=1536, layers=30, heads=9, shared=3)
"""SmolLM2-135M's shape: many layers, and a vocabulary that takes as long as ten of them."""


@dataclass(frozen=True)
class SweepCase:
    """A shape of model and input, and the places swept; row numbers count from the first."""

    name: str
    about: str
    config: dict[str, Any]
    loops: int
    tokens: int
    cells: tuple[Address, ...]


@dataclass(frozen=True)
class SweepTiming:
    """One case, four ways, in CPU seconds: what else the machine does enters them least.

    `plain_s` is that of all cells, from the mean of `plain_cells` that were run.  `ratio` is that of the better way by
    hand to ours.
    """

    case: str
    about: str
    cells: int
    plain_s: float
    plain_cells: int
    one_by_one_s: float
    by_hand_s: float
    ours_s: float
    ratio: float
    ours_work: float
    max_abs_diff: float


def sweep_cases() -> Iterator[SweepCase]:
    """The cases of `loopscope bench patching` on language models: a looped Llama, and SmolLM2-135M's shape."""
    yield SweepCase(
        "looped: heads",
        "12 layers, width 512, four loops, 64 tokens: every head's output in the last row",
        LOOPED, 4, 64, grid("z", loops=range(1, 5), layers=range(1, 13), heads=range(8), rows=(63,)),
    )  # fmt: skip
    rows = (15, 31, 47, 63)
    stream = tuple(a for row in rows for a in grid("resid", loops=range(1, 5), layers=range(1, 13), rows=(row,)))
    yield SweepCase("looped: stream", "the same: what enters each layer, in four rows", LOOPED, 4, 64, stream)
    yield SweepCase(
        "short: heads",
        "SmolLM2-135M's shape, one loop, five tokens: every head's output in the last row",
        SHORT, 1, 5, grid("z", loops=[1], layers=range(1, 31), heads=range(9), rows=(4,)),
    )  # fmt: skip
    resid = tuple(a for row in range(5) for a in grid("resid", loops=[1], layers=range(1, 31), rows=(row,)))
    yield SweepCase("short: stream", "the same: what enters each layer, row by row", SHORT, 1, 5, resid)


def bench_sweeps(log: Log = silent) -> list[SweepTiming]:
    """Time every case; `log` gets the name of each before it starts.  Weights are random (seed 0)."""
    return [time_sweep(model, case) for case, model in sweeps_on_models(log)]


def sweeps_on_models(log: Log = silent) -> Iterator[tuple[SweepCase, LanguageModel]]:
    """Every case with its model, which cases of one shape share; `log` gets the name of each beforehand."""
    models = dict[str, LanguageModel]()
    for case in sweep_cases():
        log(case.name)
        key = str((case.config, case.loops))
        if key not in models:
            models[key] = model_of(case.config, case.loops)
        yield case, models[key]


def model_of(config: dict[str, Any], loops: int) -> LanguageModel:
    """A looped stack of a shape, with random weights (seed 0)."""
    torch.manual_seed(0)
    return stack_from_config(config, loops).eval()


@torch.no_grad()
def time_sweep(model: LanguageModel, case: SweepCase) -> SweepTiming:
    """One case by us, one full run a cell, and with a cache by hand: cell by cell, and a layer's heads side by side.

    Ways by hand include their two base runs, as ours does.
    """
    generator = torch.Generator().manual_seed(1)
    tokens, other = (
        torch.randint(0, case.config["vocab_size"], (1, case.tokens), generator=generator) for _ in range(2)
    )
    cells = case.cells

    def ours() -> Sweep:
        return sweep(model, tokens, F**case.loops, cells, Run(F**case.loops, "other"), others={"other": other})

    def prepared() -> tuple[ByHand, ByHand]:
        return ByHand(model, tokens, case.loops), ByHand(model, other, case.loops)

    def by_hand(together: bool) -> Tensor:
        mine, theirs = prepared()
        found: list[Tensor] = []
        for _, group in groupby(cells, lambda cell: (cell.loop, cell.site.layer) if together else cell):
            some = list(group)
            found.append(_layer_by_hand(mine, theirs, some))
        return torch.cat(found)

    def plainly(chosen: list[Address]) -> Callable[[], list[Tensor]]:
        mine, theirs = prepared()
        return lambda: [mine.whole(cell, theirs) for cell in chosen]

    chosen = list(cells[:: max(1, len(cells) // PLAIN_CELLS)])
    ours()  # warm up
    plain, _ = each_call(plainly(chosen), 1, time.process_time)
    singly, _ = each_call(lambda: by_hand(together=False), 1, time.process_time)
    elapsed, layered = [], []
    for _ in range(REPEATS):  # in turns, so that what else the machine does befalls both alike
        taken, wanted = each_call(lambda: by_hand(together=True), 1, time.process_time)
        layered += taken
        taken, found = each_call(ours, 1, time.process_time)
        elapsed += taken
    ours_s, best = median(elapsed), min(singly[0], median(layered))
    return SweepTiming(
        case=case.name, about=case.about, cells=len(cells), plain_s=plain[0] * len(cells) / len(chosen),
        plain_cells=len(chosen), one_by_one_s=singly[0], by_hand_s=median(layered), ours_s=ours_s,
        ratio=best / ours_s, ours_work=found.work.forwards,
        max_abs_diff=float((found.logits[:, 0, 0] - wanted).abs().max()),
    )  # fmt: skip


def _layer_by_hand(mine: ByHand, theirs: ByHand, cells: list[Address]) -> Tensor:
    """Cells of one layer: its heads side by side, rows of the stream one by one, as they reach other rows."""
    first = cells[0]
    if first.site.component == "resid":
        return torch.cat([mine.resid(c.loop, c.site.layer, c.site.numbers[0], theirs) for c in cells])
    heads = [head for cell in cells for head in cell.site.heads or ()]
    return mine.heads(first.loop, first.site.layer, heads, theirs)
