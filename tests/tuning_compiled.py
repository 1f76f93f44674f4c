"""Compares compiled layers with plain ones; a program of its own, as nothing with checked annotations can be compiled.

python -m tests.tuning_compiled
"""

from __future__ import annotations

from functools import partial

import torch
import torch._dynamo

from loopscope.lm.passes import states
from loopscope.program import F
from tests.ouro_tiny import tiny_ouro


def main() -> None:
    """By the first half of the compiler, which finds the graphs; the second makes them fast."""
    torch.set_num_threads(1)
    torch.compile = partial(torch.compile, backend="eager")
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
    main()
