"""Stacked training mathematics against the model itself."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as nnf

from loopscope.model import LoopedTransformer, ModelConfig, graph_walk_config
from loopscope.training.cohort import Cohort


def models(config: ModelConfig, seeds: int) -> list[LoopedTransformer]:
    made = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        made.append(LoopedTransformer(config))
    return made


def test_stacked_logits_and_gradients_equal_each_models_own() -> None:
    config = graph_walk_config(nodes=5, loops=3)
    singles = models(config, 3)
    cohort = Cohort(config, singles)
    tokens = torch.randint(0, config.vocabulary, (3, 4, config.positions))
    targets = torch.randint(0, config.classes, (3, 4))
    logits = cohort.answer_logits(tokens, loops=3)
    losses = nnf.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(3, 4).mean(1)
    gradients = cohort.gradients(losses.sum())
    for index, model in enumerate(singles):
        own = model(tokens[index], 3)[:, -1]
        torch.testing.assert_close(logits[index], own, rtol=0, atol=1e-5)
        wanted = torch.autograd.grad(nnf.cross_entropy(own, targets[index]), list(model.parameters()))
        flat = torch.cat([gradient.flatten() for gradient in wanted])
        torch.testing.assert_close(gradients[index], flat, rtol=1e-4, atol=1e-6)


def test_weights_are_views_and_go_back_into_models() -> None:
    config = graph_walk_config(nodes=5, loops=2)
    singles = models(config, 2)
    cohort = Cohort(config, singles)
    assert cohort.flat.shape == (2, sum(math.prod(shape) for shape in cohort.shapes.values()))
    with torch.no_grad():
        cohort.flat.mul_(2)
    again = LoopedTransformer(config)
    again.load_state_dict(cohort.state_dict(1))
    for name, parameter in singles[1].named_parameters():
        assert torch.equal(again.get_parameter(name), 2 * parameter)
