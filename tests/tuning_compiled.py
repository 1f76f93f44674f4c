"""Compares compiled layers with plain ones; a program of its own, as nothing with checked annotations can be compiled.

python -m tests.tuning_compiled           # passes: prints how many graphs there are
python -m tests.tuning_compiled FOLDER    # the stages of a protocol, one after another, in a new folder
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
import torch._dynamo

from loopscope.models.passes import states
from loopscope.program import F
from loopscope.store.store import Store
from loopscope.training.lm.jobs import Settings, finetune, fit
from tests.ouro_tiny import tiny_ouro
from tests.tuning_tiny import small, sources, tuning_folder


def stages(folder: Path) -> None:
    """An adaptation, a fine-tuning and a fit with all that is compiled in forms of its own, in one process."""
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    store, settings = Store(folder / "store"), Settings(torch.device("cpu"), compiled=True)
    several = ["examples=3", "micro=2", "per_text=4", "share=0.2"]
    start = tuning_folder(folder / "llama")
    plain = finetune(start, small("smol-letter-adapt", *several), folder / "one", store, settings, sources=sources())
    asked = small("smol-letter", *several, "loops=2")
    made = finetune(plain.folder, asked, folder / "two", store, settings, sources=sources())
    fit(made.folder, small("smol-letter-map", *several, "loops=2"), store, settings, sources=sources())


def passes() -> None:
    """Compiled layers and plain ones give the same."""
    model = tiny_ouro()
    model.requires_grad_(True)
    for recompute in (False, True):
        for shape, examples in (((2, 5), [2, 2, 2]), ((3, 9), [3, 2, 2]), ((1, 4), [1, 1, 1]), ((4, 7), [4, 4, 1])):
            tokens = torch.arange(shape[0] * shape[1]).view(shape) % 8
            found = []
            for compiled in (False, True):
                model.zero_grad()
                h = states(model, tokens, F**3, examples=examples, recompute=recompute, compiled=compiled)["h3"]
                h.square().sum().backward()
                found.append((h.detach(), [each.grad for each in model.parameters() if each.grad is not None]))
            torch.testing.assert_close(found[0], found[1])
    print(torch._dynamo.utils.counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    # By the first half of the compiler, which finds the graphs; the second makes them fast.
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend="eager")
    stages(Path(sys.argv[1])) if sys.argv[1:] else passes()
