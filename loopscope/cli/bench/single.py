"""Single runs of looped Llamas: one patched run, and readouts after every loop, ours beside the plain way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.address import Address, Site
from loopscope.cli.bench.by_hand import ByHand
from loopscope.cli.bench.sweeping import LOOPED, SHORT, model_of
from loopscope.cli.bench.timing import in_turn
from loopscope.execute.executor import run
from loopscope.log import Log, silent
from loopscope.models.passes import LanguageModel
from loopscope.program import F, Run

ROUNDS = 5


@dataclass(frozen=True)
class SingleTiming:
    """One case both ways, in CPU seconds: medians of several rounds in which both take turns."""

    case: str
    about: str
    plain_s: float
    ours_s: float
    ratio: float
    max_abs_diff: float


def bench_single(log: Log = silent) -> Iterator[SingleTiming]:
    """Time every case; `log` gets the name of each before it starts.  Weights are random (seed 0)."""
    for shape, name, loops, tokens in ((LOOPED, "looped", 4, 64), (SHORT, "short", 1, 5), (SHORT, "four loops", 4, 5)):
        model = model_of(shape, loops)
        yield from time_single(model, loops, tokens, shape["vocab_size"], name, log)


@torch.no_grad()
def time_single(
    model: LanguageModel, loops: int, length: int, vocabulary: int, name: str, log: Log = silent
) -> Iterator[SingleTiming]:
    """One patched run (plainly: its source and itself, both whole, as with hooks), and readings of all loops."""
    generator = torch.Generator().manual_seed(1)
    tokens, other = (torch.randint(0, vocabulary, (1, length), generator=generator) for _ in range(2))
    layer = 1 + len(model.layers) // 2
    place = Address(loops // 2 + 1, Site(layer, "z", (0,), (length - 1,)))
    patched = (F**loops).patch(place, Run(F**loops, "other"))
    log(f"{name}: one patched run")
    yield _timed(
        f"{name}: one run", f"{length} tokens, {loops} loops: one head's output in the last row, amid the layers",
        lambda: ByHand(model, tokens, loops, place, ByHand(model, other, loops)).logits,
        lambda: run(model, tokens, patched, others={"other": other})[patched].logits[:, 0],
    )  # fmt: skip
    log(f"{name}: readouts")
    yield _timed(
        f"{name}: readouts", f"{length} tokens: the next token after each of {loops} loops",
        lambda: torch.stack(ByHand(model, tokens, loops).readouts),
        lambda: torch.stack(_read(run(model, tokens, F**loops, read="calls")[F**loops].logits_at)),
    )  # fmt: skip


def _read(logits: Mapping[str, Tensor]) -> list[Tensor]:
    return [each[:, 0] for each in logits.values()]


def _timed(name: str, about: str, plain: Callable[[], Tensor], ours: Callable[[], Tensor]) -> SingleTiming:
    apart = float((plain() - ours()).abs().max())
    found = in_turn({"plain": plain, "ours": ours}, ROUNDS, time.process_time)
    return SingleTiming(name, about, found["plain"], found["ours"], found["plain"] / found["ours"], apart)
