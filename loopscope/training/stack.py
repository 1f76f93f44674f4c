"""Parameters of several members of one shape (backbones, or maps) as one array, so that one job trains them all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


class Stack:
    """`flat` [members, parameters] in fp32; `weights` by name are views of it with a leading axis of members."""

    def __init__(self, members: Sequence[Mapping[str, Tensor]], device: torch.device | str = "cpu") -> None:
        self.shapes = {name: tuple(tensor.shape) for name, tensor in members[0].items()}
        rows = [torch.cat([member[name].detach().flatten() for name in self.shapes]) for member in members]
        self.flat = torch.stack(rows).to(device=device, dtype=torch.float32)
        self.weights = {name: view.requires_grad_() for name, view in self._views(self.flat).items()}

    def __len__(self) -> int:
        return len(self.flat)

    def _views(self, flat: Float[Tensor, "S parameters"]) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        pieces = flat.detach().split(sizes, 1)
        return {name: p.view(len(flat), *shape) for (name, shape), p in zip(self.shapes.items(), pieces, strict=True)}

    def gradients(self, loss: Float[Tensor, ""]) -> Float[Tensor, "S parameters"]:
        """Gradients of a loss that is a sum over members, in the layout of `flat`."""
        grads = torch.autograd.grad(loss, list(self.weights.values()))
        return torch.cat([grad.flatten(1) for grad in grads], 1)

    def member(self, index: int, flat: Float[Tensor, "S parameters"] | None = None) -> dict[str, Tensor]:
        """One member's parameters by name, copied to the CPU; from another array of the same layout if given."""
        views = self._views(self.flat if flat is None else flat)
        return {name: view[index].to("cpu", copy=True) for name, view in views.items()}

    def per_parameter(self, name: str, value: float) -> Float[Tensor, " parameters"]:
        """`value` where a parameter belongs to the tensor `name`, 1 elsewhere."""
        row = torch.ones_like(self.flat[:1])
        self._views(row)[name].fill_(value)
        return row[0]
