"""How long an update of a recipe takes: the plain way, with compiled layers, with captured passes, in turn.

All begin with the same weights and learn from the same texts, so their losses can be compared, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from loopscope.cli.bench.timing import timed_windows
from loopscope.errors import InputError
from loopscope.log import Log, silent
from loopscope.training.lm.jobs import Settings, prepared, tuner_of
from loopscope.training.lm.recipe import Recipe
from loopscope.training.lm.trainer import LOOK_EVERY


@dataclass(frozen=True)
class Pace:
    """One way: seconds and tokens of an update, how much faster than the plain way, and the loss at the end."""

    way: str
    seconds: float
    tokens: int
    ratio: float
    loss: float


WAYS = {"plain": (False, False), "compiled": (True, False), "compiled and captured": (True, True)}
"""Whether layers are compiled, and passes captured."""


def bench_tuning(
    folder: Path,
    recipe: Recipe,
    device: torch.device,
    *,
    windows: int = 3,
    log: Log = silent,
) -> list[Pace]:
    """Every way that a device has (a CPU: the plain one), each for so many windows of updates, the first not timed.

    Requests are as deep as the recipe's from the start.  InputError for fewer than two windows, and as `finetune`.
    """
    if windows < 2:
        raise InputError(f"there must be at least 2 windows, one before the clock starts, not {windows}")
    updates = windows * LOOK_EVERY[device.type]
    pace = recipe.pace if recipe.trains == "map" else 1.0  # of a map it does not grow
    at_once: dict[str, Any] = {"grow_every": 0, "grow_at": None, "grow_from": 1, "pace": pace}
    asked = replace(recipe, updates=updates, gate=None, horizon=0, **at_once)
    job = prepared(folder, asked, Settings(device), None, None)
    recompute = job.memory.recompute
    found: list[Pace] = []
    for way, (compiled, captured) in WAYS.items():
        if device.type == "cpu" and compiled:
            continue
        log(way)
        tuner = tuner_of(job, recompute=recompute, compiled=compiled, captured=captured)
        tuner.checks = lambda _: {}  # which would be timed
        (began, first, before), *_, (ended, last, after) = timed_windows(tuner, lambda tuner: tuner.tokens)
        seconds, tokens = (ended - began) / (last - first), (after - before) // (last - first)
        loss = next(row["loss"] for row in reversed(tuner.history) if row.get("loss") is not None)
        found.append(Pace(way, seconds, tokens, found[0].seconds / seconds if found else 1.0, loss))
    return found
