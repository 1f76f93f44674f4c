"""The recipes of antonyms: backbones supervised in two ways and the map of both, and the same for smaller models."""

from __future__ import annotations

from dataclasses import replace

from loopscope.studies.language.scales import EIGHT, adapt, ouro, ouro_map, small, smol
from loopscope.tasks import Antonyms
from loopscope.tasks.antonyms import BACKBONE_SEED, MAP_SEED
from loopscope.training.lm.recipe import Recipe


def antonym_final() -> Recipe:
    """Ouro on the first four deletions, asked for one by one."""
    return ouro(
        name="antonym-final", about="antonyms, deletions 1-4, answered after loop 4", task=Antonyms(), updates=500,
        seed=BACKBONE_SEED,
    )  # fmt: skip


def antonym_stepwise() -> Recipe:
    """Ouro on four deletions, of which loop t says the t-th."""
    return replace(
        antonym_final(), name="antonym-stepwise", about="antonyms, loop t says deletion t of 4",
        task=Antonyms(form="stepwise"), stepwise=True, averaging="sequence",
    )  # fmt: skip


def antonym_map() -> Recipe:
    """A map of rank 128 after every loop, for deletions one to eight; both backbones are asked in the stepwise form."""
    return ouro_map(
        name="antonym-map", about="a rank-128 J after each loop of `antonym-*`: deletions 1-8",
        task=Antonyms(form="stepwise"), seed=MAP_SEED, placement="after-each", family="residual-low-rank", rank=128,
    )  # fmt: skip


_SMALLER = (
    adapt(Antonyms(), 16, 3, boundary="norm"),
    smol(antonym_final(), rate=5e-5),
    smol(antonym_stepwise(), rate=5e-5, examples=16),
    smol(antonym_map(), EIGHT, loops=8),
)

LANGUAGE = (antonym_final(), antonym_stepwise(), antonym_map(), *_SMALLER, *map(small, _SMALLER))
