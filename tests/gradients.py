"""Gradients and steps of many models at once against those of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from loopscope.maps import AffineMap
from loopscope.model import LoopedTransformer
from loopscope.training.cohort.jobs import initial_model
from loopscope.training.cohort.objective import Objective, Step, new_map
from loopscope.training.cohort.stack import Stack
from loopscope.training.recipe import BackboneRecipe, MapRecipe


def check_gradient(module: torch.nn.Module, loss: Tensor, found: Mapping[str, Tensor]) -> None:
    """The gradients found, by name, are those of the module's own loss."""
    named = dict(module.named_parameters())
    wanted = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    size = float(torch.stack([gradient.norm() for gradient in wanted]).norm())
    assert size > 0.01
    assert set(found) == set(named)
    for name, gradient in zip(named, wanted, strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5 * size)


def shaken_models(recipe: BackboneRecipe, seeds: Sequence[int], far: float = 0.2) -> list[LoopedTransformer]:
    """The models seeds start from, moved so far that every parameter counts."""
    models = [initial_model(recipe, seed) for seed in seeds]
    for model in models:
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=far)
    return models


def shaken_maps(recipe: MapRecipe, stack: Stack, width: int) -> list[AffineMap]:
    """Move the maps of a stack away from the identity, and give each as the module it is."""
    with torch.no_grad():
        stack.flat.add_(torch.randn_like(stack.flat), alpha=0.2)
    maps = [new_map(recipe, width, 0) for _ in range(len(stack))]
    for index, step in enumerate(maps):
        step.load_state_dict(stack.member(index))
    return maps


def check_step(objective: Objective, step: Step, own: Sequence[torch.nn.Module], losses: Sequence[Tensor]) -> None:
    """Losses and gradients of a step are those of each member's own module."""
    torch.testing.assert_close(step.losses, torch.stack(list(losses)), rtol=1e-5, atol=1e-6)
    gradients = objective.stack.gradients(step.losses.sum())
    for index, module in enumerate(own):
        check_gradient(module, losses[index], objective.stack.member(index, gradients))
