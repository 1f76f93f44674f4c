"""The loss of a unit: a pass through the model, with or without a map, and the cross-entropy of the learned tokens.

It is one module, so that it can be spread over processes as one: F is then gathered once for a pass, however many loops
the pass has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loopscope.maps import AffineMap
from loopscope.models.folders import Adapter
from loopscope.models.passes import one_pass
from loopscope.models.placement import placed
from loopscope.program import Program
from loopscope.protocol import LoopedModel, TokenMap
from loopscope.training.lm.batches import Unit

MAP = "step"
"""What the map is called in programs."""

ROWS = 4096
"""Tokens whose logits are held at a time: over a large vocabulary they take more memory than the states."""


def narrow_products(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold the frozen matrices of linear layers in the precision of the products, which changes no value.

    Autocast casts a frozen matrix anew for every product, so in every loop, and each copy is kept for the backward
    pass; trained ones it casts once.
    """
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.weight.data = part.weight.data.to(dtype)


class Loss(nn.Module, ABC):
    """A model, and perhaps a map that is fitted; calling it gives the loss of a unit.

    `recompute` and `compiled` are as in `passes.one_pass`.
    """

    def __init__(self, model: LoopedModel, step: AffineMap | None = None) -> None:
        super().__init__()
        self.model, self.step = model, step
        self.recompute, self.compiled = False, False

    @abstractmethod
    def program(self, loops: int) -> Program:
        """What is run for so many loops; that of fewer is how that of more begins."""

    @property
    def maps(self) -> dict[str, TokenMap]:
        """The maps of its programs, by name."""
        return {} if self.step is None else {MAP: self.steer}

    def steer(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """The map in fp32, whatever the rest is computed in: near the identity, bf16 would round its work away."""
        assert self.step is not None
        with torch.autocast(h.device.type, enabled=False):
            return self.step(h.float())

    def forward(self, unit: Unit) -> tuple[Float[Tensor, ""], Bool[Tensor, " answers"]]:
        """The sum of weights times cross-entropies of the unit's targets, and which of its answers begin right.

        An answer begins right if its first token is the likeliest, given the right text before it.
        """
        h, targets = self._read(unit)[unit.rows, unit.columns], unit.targets
        if len(targets) <= ROWS:
            loss = self._cost(h, targets, unit.weights)
        else:
            parts = zip(h.split(ROWS), targets.split(ROWS), unit.weights.split(ROWS), strict=True)
            costs = [checkpoint(self._cost, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
            loss = torch.stack(costs).sum()
        with torch.no_grad():  # behind the loss: of weights cast under autocast, those with gradients are kept for both
            right = self.model.read(h[unit.answers]).argmax(-1) == targets[unit.answers]
        return loss, right

    def _read(self, unit: Unit) -> Float[Tensor, "states T d"]:
        """For every number of loops that is read after, what is read of the lines that have as many, one after another.

        A line takes no more steps than it needs.
        """
        program = self.program(unit.loops[0])
        steps = {loops: len(self.program(loops).steps) for loops in unit.reads}
        found = one_pass(
            self.model,
            unit.tokens,
            program,
            maps=self.maps,
            branches=unit.branches,
            examples=[sum(steps[loops] > before for loops in unit.loops) for before in range(len(program.steps))],
            recompute=self.recompute and torch.is_grad_enabled(),
            compiled=self.compiled,
        )
        return torch.cat([found.left(program.points[steps[loops]]) for loops in unit.reads])

    def _cost(
        self, h: Float[Tensor, "n d"], targets: Int[Tensor, " n"], weights: Float[Tensor, " n"]
    ) -> Float[Tensor, ""]:
        costs = nnf.cross_entropy(self.model.read(h).float(), targets, reduction="none")
        return (weights * costs).sum()


class Objective(Loss):
    """A language model and perhaps a map before or after its loops, as a recipe says."""

    model: Adapter

    def __init__(
        self, model: Adapter, step: AffineMap | None = None, placement: Literal["between", "after-each"] = "between"
    ) -> None:
        super().__init__(model, step)
        self.placement = placement

    def program(self, loops: int) -> Program:
        """So many loops, with the map where it stands."""
        program, readings = self.model.program(loops), self.model.readings(loops)
        if self.step is None:
            return program
        return placed(MAP, program, readings[:-1] if self.placement == "between" else readings)
