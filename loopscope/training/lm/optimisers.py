"""The optimisers of language models: AdamW, and Adafactor without its own schedule.

Adafactor keeps, for a matrix, running means of the squared gradient by row and by column instead of one number for each
weight: its state is small beside the weights.  It is used as in the reference study: a given learning rate, no scaling
by the parameter's size, no momentum, the update clipped to a root mean square of 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.training.lm.processes import everywhere
from loopscope.training.lm.recipe import OptimiserSettings


class Adafactor(torch.optim.Optimizer):
    """Adafactor (Shazeer and Stern, 2018) with a given learning rate; its state is tensors only."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": decay, "tiny": 1e-30, "power": -0.8})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update from the gradients that are there."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        square = gradient.square().add_(group["tiny"])
        names = ("row", "column") if gradient.dim() >= 2 else ("square",)
        means = (everywhere(square.mean(-1)), everywhere(square.mean(-2))) if len(names) == 2 else (square,)
        if not state:
            state["step"] = torch.zeros(())  # on the CPU, so that reading it waits for nobody
            state |= {name: torch.zeros_like(mean) for name, mean in zip(names, means, strict=True)}
        state["step"] += 1
        share = float(state["step"]) ** group["power"]
        for name, mean in zip(names, means, strict=True):
            state[name].lerp_(mean, share)
        if len(names) == 2:
            rows = (state["row"] / state["row"].mean(-1, keepdim=True)).rsqrt().unsqueeze(-1)
            change = rows * state["column"].rsqrt().unsqueeze(-2) * gradient
        else:
            change = state["square"].rsqrt() * gradient
        change /= everywhere(change.square().mean()).sqrt().clamp(min=1.0)
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(change, alpha=group["lr"])


def make_optimiser(
    recipe: OptimiserSettings, parameters: Iterable[nn.Parameter], device: torch.device
) -> torch.optim.Optimizer:
    """The recipe's optimiser; its learning rate is set before every update."""
    if recipe.optimiser == "adafactor":
        return Adafactor(parameters, recipe.rate, recipe.decay)
    return torch.optim.AdamW(
        parameters,
        lr=recipe.rate,
        betas=(recipe.beta1, recipe.beta2),
        weight_decay=recipe.decay,
        fused=device.type == "cuda",
    )
