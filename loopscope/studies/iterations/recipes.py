"""The recipes of iterations: a looped Qwen3 and its dense map, and the same for smaller models."""

from __future__ import annotations

from dataclasses import replace

from loopscope.studies.language.scales import ALWAYS, adapt, small, smol
from loopscope.tasks import Iterations
from loopscope.tasks.iterations import SEED
from loopscope.training.lm.recipe import Recipe


def iterate() -> Recipe:
    """Qwen3-8B, looped four times, on five iteration tasks."""
    return Recipe(
        name="iterations", about="five iteration tasks, 1-4 steps, answered after loop 4", trains="weights",
        task=Iterations(), loops=4, updates=12_000, examples=5, micro=5, rate=1e-5, horizon=0, warmup=300, beta2=0.95,
        decay=0.01, deepest=4, seed=SEED, general_seed=SEED + 1, newline=False,
        averaging="sequence", general="instead", share=0.3, check_every=500, gate=0.99,
        deviations=(*ALWAYS, "starts are split between training and test, and the gate looks at training starts"),
        numerics=("AdamW with states in fp32 (8 bits in the reference)", "the residual stream is fp32 (bf16 in the "
        "reference)"),
    )  # fmt: skip


def iterate_map() -> Recipe:
    """A dense map before loops 2 to 8, for one to eight steps."""
    return replace(
        iterate(), name="iterations-map", about="a dense J before loops 2-8 of `iterations`: 1-8 steps", trains="map",
        loops=8, rate=1e-6, warmup=100, decay=0.0, deepest=8,
    )  # fmt: skip


# Five tasks of unlike difficulty: each is checked.
_SMALLER = (adapt(Iterations(), 16, 1, checked=8), smol(iterate(), checked=8), smol(iterate_map(), checked=4))

LANGUAGE = (iterate(), iterate_map(), *_SMALLER, *map(small, _SMALLER))
