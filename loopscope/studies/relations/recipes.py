"""How the backbone of relation chains and its map are trained."""

from __future__ import annotations

from loopscope.model import relations_config
from loopscope.studies.numerics import OWN_STREAM, TF32
from loopscope.training.recipe import (
    BackboneRecipe,
    MapRecipe,
    Optimiser,
    Recipe,
    RelationData,
    RelationFit,
    Schedule,
    Stage,
)


def relations() -> BackboneRecipe:
    """Chains of one to three relations, one loop for each."""
    schedule = Schedule(3e-4, warmup=2_000, hold=60_000, decay=18_000, shape="linear")
    stage = Stage("train", 80_000, Optimiser(schedule, betas=(0.9, 0.95)), check_every=2_000)
    return BackboneRecipe(
        "relations", "relation chains of 1-3 steps, one loop for each", relations_config(), RelationData(), "aligned",
        512, (stage,), stream="relations", numerics=(OWN_STREAM,),
    )  # fmt: skip


def relations_curriculum() -> MapRecipe:
    """A dense J for relation chains, trained at length 4, 5, ..., 16, then on all of them."""
    optimiser = Optimiser(Schedule(1e-4), betas=(0.9, 0.95))
    grow = tuple(Stage(f"length {m}", 3_000, optimiser, check_every=250, stop_at=1.0) for m in range(4, 17))
    last = Schedule(3e-5, warmup=500, hold=8_500, decay=1_000, shape="linear")
    rest = Stage("all lengths", 10_000, Optimiser(last, betas=(0.9, 0.95)), check_every=500)
    half = "in the last stage each update takes any length with probability one half; the reference marks exactly half"
    return MapRecipe(
        "relations-curriculum", "a dense J for relation chains: lengths 4, 5, ..., 16, then all", "relations",
        RelationFit((*range(4, 17), 16)), 128, (*grow, rest), stream="relation-maps", family="dense", rank=None,
        keep="trail", numerics=(OWN_STREAM, TF32, half),
    )  # fmt: skip


RECIPES: tuple[Recipe, ...] = (relations(), relations_curriculum())
