"""What recipes cost: floating-point operations, counted from shapes.

Only the layers' products are counted (attention between tokens, norms and readouts add a few per cent), for full rows:
what is saved by leaving rows out counts as speed, not as less work.
"""

from __future__ import annotations

from loopscope.model import ModelConfig
from loopscope.studies.recipes import backbone_recipe
from loopscope.training.recipe import (
    BackboneRecipe,
    GraphData,
    LastingFit,
    MapRecipe,
    ParityData,
    ParityFit,
    Recipe,
    WalkFit,
)


def row_flops(config: ModelConfig) -> float:
    """One row through one layer, forward: a multiplication and an addition for each weight."""
    return 2.0 * config.width * (4 * config.width + 2 * config.mlp)


def training_flops(recipe: Recipe) -> float:
    """All updates of one member: forward and backward, for the maps through the frozen block to its input alone."""
    return _backbone(recipe) if isinstance(recipe, BackboneRecipe) else _map(recipe)


def _backbone(recipe: BackboneRecipe) -> float:
    config, data = recipe.model, recipe.data
    updates = sum(stage.updates for stage in recipe.stages)
    if isinstance(data, GraphData):
        rows = float(config.positions * config.loops * updates)
    elif isinstance(data, ParityData):
        rows = float(sum(m * (m + 2) for m in map(data.reached, range(1, updates + 1))))
    else:
        rows = updates * sum(n * (n + 2) for n in range(1, data.longest + 1)) / data.longest
    return 3 * recipe.batch * rows * config.layers * row_flops(config)


def _map(recipe: MapRecipe) -> float:
    data, updates = recipe.data, sum(stage.updates for stage in recipe.stages)
    config = backbone_recipe(recipe.made_for).model
    if isinstance(data, WalkFit):
        prefix = config.loops if data.prefix is None else data.prefix
        fresh = (isinstance(data, LastingFit) and data.fresh) or (recipe.batch,) * len(recipe.stages)
        new = sum(stage.updates * each for stage, each in zip(recipe.stages, fresh, strict=True))
        rows = float(config.positions * ((0 if data.pool else prefix * new) + 2 * data.calls * recipe.batch * updates))
    elif isinstance(data, ParityFit):
        rows = 0.0
        for first, last, part, batch in data.lengths:
            lengths = [first + done % (last + 1 - first) for done in range(part)]
            rows += sum(batch * (n + 2) * (2 * n - 1) for n in lengths)
    else:
        per_stage = zip(recipe.stages, data.lengths, strict=True)
        rows = float(recipe.batch * sum(stage.updates * (n + 2) * (2 * n - 1) for stage, n in per_stage))
    return rows * config.layers * row_flops(config)
