"""What a trainer needs to know about what it trains."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.maps import AffineMap, make_map
from loopscope.training.cohort.cohort import Precision
from loopscope.training.cohort.stack import Stack
from loopscope.training.recipe import MapRecipe, Stage


class Step(NamedTuple):
    """One update's loss of each member, and the integers it was made from (they enter the digest of the data)."""

    losses: Float[Tensor, " S"]
    drawn: Int[Tensor, "S n"]


@runtime_checkable
class Objective(Protocol):
    """Losses and scores of the members of a stack: a pure function of their parameters and the update's number.

    One whose steps also go on from one another is `Carrying`.
    """

    @property
    def stack(self) -> Stack:
        """The parameters that are trained."""
        ...

    @property
    def stages(self) -> Sequence[Stage]:
        """What is done to them, in order."""
        ...

    @property
    def precision(self) -> Precision:
        """Of the products of a step, on a GPU."""
        ...

    def shape(self, stage: int, update: int) -> Hashable:
        """What decides the shapes of this update's tensors: updates of one shape can share a captured graph."""
        ...

    def step(self, stage: int, shape: Any, update: Int[Tensor, ""]) -> Step:
        """Losses of update `update` (on the device, counted from 1 in each stage), with their graph."""
        ...

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """A score for each member, in fp32 or as its protocol says; tuples compare, and higher is better."""
        ...


@runtime_checkable
class Carrying(Protocol):
    """An objective whose steps go on from one another: they read these tensors and change them in place.

    The tensors belong to what a trainer saves and restores, so they have one shape and one place for good.
    """

    @property
    def carried(self) -> Mapping[str, Tensor]:
        """By name, apart from the names of `Trainer.state`."""
        ...


def each_loss(logits: Float[Tensor, "S B classes"], targets: Int[Tensor, "S B"]) -> Float[Tensor, "S B"]:
    """Cross-entropy of each example."""
    return nnf.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


def mean_loss(logits: Float[Tensor, "S B classes"], targets: Int[Tensor, "S B"]) -> Float[Tensor, " S"]:
    """Cross-entropy of each member, averaged over its examples."""
    return each_loss(logits, targets).mean(1)


def share(outcome: Tensor) -> list[tuple[float, ...]]:
    """The mean of each member's outcomes [S, n] (hits, say) as its score."""
    return [(value,) for value in outcome.double().mean(1).tolist()]


class Maps:
    """The stacked maps of a fit: the definition in `maps.py`, applied to each member's own parameters."""

    def __init__(self, recipe: MapRecipe, width: int, fits: Sequence[int], device: torch.device) -> None:
        self.template = new_map(recipe, width, 0)
        self.stack = Stack([dict(new_map(recipe, width, fit).state_dict()) for fit in fits], device)

    def __call__(self, h: Float[Tensor, "S M d"]) -> Float[Tensor, "S M d"]:
        """J(h), each member's own."""

        def each(weights: Mapping[str, Tensor], rows: Tensor) -> Tensor:
            return torch.func.functional_call(self.template, dict(weights), (rows,))

        return torch.func.vmap(each)(self.stack.weights, h)


def new_map(recipe: MapRecipe, width: int, fit: int) -> AffineMap:
    """The map a fit starts from: the identity, with A drawn by the fit's number."""
    settings: dict[str, Any] = {"width": width}
    if recipe.rank is not None:
        settings |= {"rank": recipe.rank, "seed": recipe.init + fit}
    if recipe.std is not None:
        settings["std"] = recipe.std
    return make_map(recipe.family, **settings)
