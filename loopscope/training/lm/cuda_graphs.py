"""Passes captured as CUDA graphs on a GPU and replayed.

A pass through a small model is thousands of short kernels, and starting them one by one takes the processor several
times longer than the GPU needs for them.  So the first pass of a shape is captured as a CUDA graph, and every later one
of that shape is started as a whole.  For shapes to come again, units are padded first: with tokens that no token before
them sees, and with targets that weigh nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.training.lm.batches import Unit

LENGTH, TARGETS, ANSWERS = 64, 2048, 256
"""Padded numbers of tokens in a row, of targets and of answers are multiples of these; fewer, of a part of them."""


def padded(unit: Unit, positions: int) -> Unit:
    """A unit with the same loss and gradients up to rounding, of a shape that comes often.

    Rows stay within `positions`.  What is added to the answers has depth 0 and is read after 0 loops.
    """
    length = min(positions, _up(unit.tokens.shape[1], LENGTH if unit.tokens.shape[1] > LENGTH else LENGTH // 4))
    targets = _up(len(unit.targets), TARGETS if len(unit.targets) > TARGETS else TARGETS // 8)
    answers = _up(len(unit.answers), ANSWERS)
    sizes = {"tokens": length, "branches": length, "answers": answers, "depths": answers, "after": answers}
    longer: dict[str, Any] = {name: _longer(each, sizes.get(name, targets)) for name, each in unit.tensors.items()}
    return replace(unit, **longer)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _longer(tensor: Tensor, size: int) -> Tensor:
    return nnf.pad(tensor, (0, size - tensor.shape[-1]))


class CudaGraphs:
    """Does `work` on units, by replaying what was captured of the first one of each shape.

    Work may change only memory that stays where it is, such as gradients that are there from the start, and must not
    wait for the GPU.  While it is captured, no other thread may use the GPU.
    """

    def __init__(self, work: Callable[[Unit], None]) -> None:
        self._work = work
        self._graphs: dict[Hashable, tuple[Unit, torch.cuda.CUDAGraph]] = {}
        self._pool: Any = None

    def new(self, units: Iterable[Unit]) -> list[Unit]:
        """A unit of every shape that is not captured yet."""
        return list({_shape(unit): unit for unit in units if _shape(unit) not in self._graphs}.values())

    def capture(self, unit: Unit) -> None:
        """Capture the work on a unit of a new shape.  The work is tried out first: what it changes must be put back."""
        copies: dict[str, Any] = {name: each.clone() for name, each in unit.tensors.items()}
        held = replace(unit, **copies)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._work(held)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Passes run one after another and leave nothing behind but what the work changes, so they share their memory.
        with torch.cuda.graph(graph, pool=self._pool):
            self._work(held)
        self._pool = graph.pool()
        self._graphs[_shape(unit)] = held, graph

    def __call__(self, unit: Unit) -> None:
        """Do the work on a unit of a captured shape."""
        held, graph = self._graphs[_shape(unit)]
        given = unit.tensors
        for name, each in held.tensors.items():
            each.copy_(given[name], non_blocking=True)
        graph.replay()


def _shape(unit: Unit) -> Hashable:
    return (unit.kind, unit.loops, unit.reads, *((name, each.shape) for name, each in unit.tensors.items()))
