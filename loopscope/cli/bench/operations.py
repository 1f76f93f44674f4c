"""What a sweep asks of the machine, counted: operations are what a GPU waits for, whatever its speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from loopscope.address import Address, grid
from loopscope.cli.bench.sweeping import llama, model_of, sweeps_on_models
from loopscope.execute.executor import run
from loopscope.execute.sweeping import sweep
from loopscope.log import Log, silent
from loopscope.models.passes import LanguageModel
from loopscope.program import F, Run

DEEP = llama(vocabulary=64, width=64, middle=160, layers=48, heads=16, shared=16)
"""As many layers and heads as Ouro-2.6B, but narrow: what is counted does not depend on the width."""

LOOPS, TOKENS, PROMPTS = 4, 24, 2
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}
FREE = {"_unsafe_view", "detach", "empty", "empty_like", "empty_strided", "lift_fresh"}
"""Operations besides views that compute nothing."""


@dataclass(frozen=True)
class Operations:
    """One piece of work: operations of torch but for views, and matrix products among them.

    They are those of a second call: the first one also looks whether the model is as it says.
    """

    work: str
    about: str
    cells: int
    operations: int
    products: int


class Count(TorchDispatchMode):
    """Counts the operations of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.operations += not func.is_view and name not in FREE
        self.products += name in PRODUCTS
        return func(*args, **(kwargs or {}))


def bench_operations(log: Log = silent) -> Iterator[Operations]:
    """Count the sweeps of `bench patching`, then work at the depth of a released model; `log` gets each beforehand."""
    for case, model in sweeps_on_models(log):
        yield counted(model, case.name, case.about, case.cells, _texts(case.config, 1, case.tokens))
    deep, last = model_of(DEEP, LOOPS), (TOKENS - 1,)
    layers, every = range(1, len(deep.layers) + 1), range(1, LOOPS + 1)

    def places(component: str, loops: range, rows: tuple[int, ...] = last) -> tuple[Address, ...]:
        return grid(component, loops=loops, layers=layers, heads=range(deep.heads), rows=rows)

    final = range(LOOPS, LOOPS + 1)
    works = {
        "deep: one run": (),
        "deep: heads": places("z", final),
        "deep: patterns": places("pattern", every),
        "deep: stream": grid("resid", loops=every, layers=layers, rows=last),
        "deep: heads in all rows": places("z", final, tuple(range(TOKENS)))[::12],
    }
    for name, cells in works.items():
        log(name)
        about = f"48 layers, {LOOPS} loops, {PROMPTS} prompts of {TOKENS} tokens"
        yield counted(deep, name, about, cells, _texts(DEEP, PROMPTS, TOKENS))


@torch.no_grad()
def counted(
    model: LanguageModel, work: str, about: str, cells: tuple[Address, ...], texts: tuple[Tensor, Tensor]
) -> Operations:
    """One piece of work on texts and others beside them; a whole run where there are no cells."""
    (tokens, other), program = texts, F**model.loops

    def once() -> None:
        if cells:
            sweep(model, tokens, program, cells, Run(program, "other"), others={"other": other})
        else:
            run(model, tokens, program)

    once()
    with Count() as count:
        once()
    return Operations(work, about, len(cells), count.operations, count.products)


def _texts(config: dict[str, Any], examples: int, length: int) -> tuple[Tensor, Tensor]:
    """Two batches of tokens, drawn with seeds 1 and 2."""
    first, second = (
        torch.randint(0, config["vocab_size"], (examples, length), generator=torch.Generator().manual_seed(seed))
        for seed in (1, 2)
    )
    return first, second
