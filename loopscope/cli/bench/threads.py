"""How many threads pay: the same work with one thread, two, four and so on, taking turns in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from loopscope.cli.bench.timing import in_turn
from loopscope.execute.executor import run
from loopscope.log import Log, silent
from loopscope.model import LoopedTransformer, graph_walk_config
from loopscope.program import F
from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.tasks.graph_walk import GraphWalk
from loopscope.tasks.populations import population
from loopscope.threads import fixed_threads, suitable
from loopscope.training.cohort.jobs import BACKBONES, FITS, initial_model
from loopscope.training.cohort.objective import Objective

LAYER, ROWS = (2048, 8192), 256
"""The product of a language model of some billion weights, and the tokens of a prompt."""


@dataclass(frozen=True)
class Threads:
    """One case: how many numbers an operation touches, milliseconds with one thread, how much faster others are.

    `chosen` is the number of threads that `threads_for` takes on this machine.
    """

    case: str
    numbers: int
    one_ms: float
    ratios: dict[int, float]
    chosen: int


def bench_threads(most: int, *, rounds: int = 3, log: Log = silent) -> list[Threads]:
    """Every case with 1, 2, 4, ... up to `most` threads; the medians of so many rounds."""
    counts = sorted({*(2**n for n in range(most.bit_length()) if 2**n <= most), most})
    found = []
    for case, numbers, step in cases():
        log(case)
        seconds = in_turn({count: partial(_with, count, step) for count in counts}, rounds)
        ratios = {count: seconds[1] / each for count, each in seconds.items()}
        found.append(Threads(case, numbers, 1e3 * seconds[1], ratios, suitable(numbers, most)))
    return found


def _with(count: int, step: Callable[[], object]) -> None:
    with fixed_threads(count):
        step()


def cases() -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Name, numbers of a state and a call of each case, from small to large."""
    tiny, cpu = backbone_recipe("tiny"), torch.device("cpu")
    rows = tiny.model.positions * tiny.batch
    fits = FITS["graph-walk"](map_recipe("tiny-one"), initial_model(tiny, 0), [(1, 1)], cpu)
    yield "a pass of one tiny map", rows * tiny.model.width, _passes(fits)
    both = BACKBONES["graph-walk"](tiny, [initial_model(tiny, seed) for seed in (0, 1)], [0, 1], cpu)
    yield "a pass of two tiny backbones", 2 * rows * tiny.model.width, _passes(both)
    walk, model = GraphWalk(10), LoopedTransformer(graph_walk_config(10, 6))
    for graphs in (1, 16, 128):
        tokens = walk.tokens(population("confirmation").graphs[:graphs], torch.arange(graphs) % 10)
        yield f"six calls of D8L6, graphs: {graphs}", tokens.numel() * model.width, partial(run, model, tokens, [F**6])
    weights, states = torch.randn(LAYER), torch.randn(ROWS, LAYER[0])
    yield f"a product of {LAYER[0]:,} x {LAYER[1]:,} weights", weights.numel(), partial(torch.mm, states, weights)


def _passes(objective: Objective) -> Callable[[], object]:
    """The losses and gradients of an update."""
    shape, update = objective.shape(0, 1), torch.tensor(1)

    def step() -> object:
        return objective.stack.gradients(objective.step(0, shape, update).losses.sum())

    return step
