"""How the parity backbone and its map are trained."""

from __future__ import annotations

from loopscope.model import parity_config
from loopscope.studies.numerics import OWN_STREAM, SCALED, TF32
from loopscope.training.recipe import (
    BackboneRecipe,
    MapRecipe,
    Optimiser,
    ParityData,
    ParityFit,
    Recipe,
    Schedule,
    Stage,
)


def parity() -> BackboneRecipe:
    """Parity of up to twenty bits, as many loops as bits."""
    schedule = Schedule(1e-4, hold=10_502, decay=89_501)
    stage = Stage("train", 100_001, Optimiser(schedule, decay=0.01), check_every=1_000)
    return BackboneRecipe(
        "parity", "parity of 1-20 bits, n loops for n bits, growing lengths", parity_config(), ParityData(),
        "own-length", 64, (stage,), stream="parity", precision="fp16", numerics=(OWN_STREAM, SCALED,
        "checkpoints are scored from update 1,000 on (10,000 in the reference), where none can be the best"),
    )  # fmt: skip


def parity_staged() -> MapRecipe:
    """J before calls 2..n of parity, trained on lengths 20-24, then 20-32, then 20-40."""
    schedule = Schedule(2e-5, warmup=1_024, decay=768, floor=0.1)
    stage = Stage("fit", 1_792, Optimiser(schedule, slow=("D", 0.1)), check_every=256)
    data = ParityFit(((20, 24, 256, 64), (20, 32, 512, 48), (20, 40, 1_024, 32)))
    return MapRecipe(
        "parity-staged", "J before calls 2..n of parity, lengths 20-24, 20-32, 20-40", "parity", data, 64, (stage,),
        stream="parity-maps", init=211_000, keep="last", numerics=(OWN_STREAM, TF32),
    )  # fmt: skip


RECIPES: tuple[Recipe, ...] = (parity(), parity_staged())
