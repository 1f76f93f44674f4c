"""Parameters of several members of one shape (backbones, or maps) as one array, so that one job trains them all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

ALIGNED = 64
"""Every weight starts at a multiple of this many numbers: products of unaligned matrices take twice the time."""


class SideStream:
    """A second stream for work that nothing waits for until the end: gradients of weights, beside those of states.

    It helps where single operations are too small to fill the GPU.  What it reads is held until `join`, because memory
    let go of earlier would be written again while this stream still reads it.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.held: list[Tensor] = []

    @contextmanager
    def take(self, *tensors: Tensor) -> Iterator[None]:
        """Work in the block runs beside what follows it, after what came before it."""
        self.stream.wait_stream(torch.cuda.current_stream())
        self.held += tensors
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """What follows waits for all that was taken."""
        torch.cuda.current_stream().wait_stream(self.stream)
        self.held.clear()


class Sink(NamedTuple):
    """Where a kernel adds the gradient of a weight, and the stream that it may do so in."""

    total: Tensor
    side: SideStream | None = None

    def rows(self, part: slice) -> Sink:
        """The same for some of the weight's outputs."""
        return Sink(self.total[:, part], self.side)


class Stack:
    """`flat` [members, parameters] in fp32; `weights` by name are views of it with a leading axis of members.

    `gradient` has the layout of `flat`; `sinks` are its parts for the weights that `collect` names, whose gradients the
    kernels add there, in the stream `side` if there is one.  What is used outside the kernels comes from autograd.
    """

    def __init__(
        self,
        members: Sequence[Mapping[str, Tensor]],
        device: torch.device | str = "cpu",
        collect: Callable[[str], bool] = lambda _: False,
        side: SideStream | None = None,
    ) -> None:
        self.shapes = {name: tuple(tensor.shape) for name, tensor in members[0].items()}
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        ends = list(itertools.accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes))
        self._places = dict(zip(self.shapes, zip([0, *ends], sizes, strict=False), strict=True))
        self.flat = torch.zeros(len(members), ends[-1], device=device)
        self.gradient = torch.zeros_like(self.flat)
        for name, view in self._views(self.flat).items():
            view.copy_(torch.stack([member[name].detach() for member in members]))
        self.weights = {name: view.requires_grad_() for name, view in self._views(self.flat).items()}
        self.side = side
        self.sinks = {name: Sink(view, side) for name, view in self._views(self.gradient).items() if collect(name)}

    def __len__(self) -> int:
        return len(self.flat)

    def _views(self, flat: Float[Tensor, "S parameters"]) -> dict[str, Tensor]:
        flat = flat.detach()
        return {
            name: flat[:, start : start + size].unflatten(1, self.shapes[name])
            for name, (start, size) in self._places.items()
        }

    def gradients(self, loss: Float[Tensor, ""]) -> Float[Tensor, "S parameters"]:
        """Gradients of a loss that is a sum over members, in the layout of `flat`, good until the next call."""
        self.gradient.zero_()
        grads = torch.autograd.grad(loss, list(self.weights.values()), allow_unused=True)
        if self.side is not None:
            self.side.join()
        # Autograd knows of a weight with a sink only where it was used outside the kernels.
        for view, grad in zip(self._views(self.gradient).values(), grads, strict=True):
            if grad is not None:
                view.add_(grad)
        return self.gradient

    def member(self, index: int, flat: Float[Tensor, "S parameters"] | None = None) -> dict[str, Tensor]:
        """One member's parameters by name, copied to the CPU; from another array of the same layout if given."""
        views = self._views(self.flat if flat is None else flat)
        return {name: view[index].to("cpu", copy=True) for name, view in views.items()}

    def per_parameter(self, name: str, value: float) -> Float[Tensor, " parameters"]:
        """`value` where a parameter belongs to the tensor `name`, 1 elsewhere."""
        row = torch.ones_like(self.flat[:1])
        self._views(row)[name].fill_(value)
        return row[0]
