"""The recipes of the letter walk: a backbone and its dense map, and the same for smaller models."""

from __future__ import annotations

from dataclasses import replace

from loopscope.studies.language.scales import EIGHT, adapt, ouro, ouro_map, small, smol
from loopscope.tasks import Letters
from loopscope.tasks.letters import training
from loopscope.training.lm.recipe import Recipe

SHARED = "ten questions share a set of rules, half or more of them of the largest depth asked for"
GROWN = "depths grow from five, each with as many loops"


def letter() -> Recipe:
    """Ouro on one to four transfers: the checkpoint of update 200 of a schedule for 500."""
    return ouro(
        name="letter", about="letter walk, 1-4 transfers, answered after loop 4", task=Letters(), updates=200,
        seed=training.BACKBONE.first_seed,
    )  # fmt: skip


def letter_map() -> Recipe:
    """A dense map before loops 2 to 4, for one to eight transfers."""
    return ouro_map(
        name="letter-map", about="a dense J before loops 2-4 of `letter`: 1-8 transfers", task=Letters(),
        seed=training.MAP.first_seed,
    )  # fmt: skip


def _shared(made: Recipe) -> Recipe:
    """As SmolLM2 learned letters: from 200 questions an update, which it can have if ten share a set of rules."""
    found = replace(
        made, updates=300, horizon=300, examples=20, micro=20, per_text=10, deviations=(*made.deviations, SHARED)
    )
    if made.trains == "weights":
        return found
    return replace(
        found, updates=3_000, horizon=3_000, rate=7e-4, grow_every=50, grow_at=0.8, grow_from=5, check_every=150,
        checked=8, deviations=(*found.deviations, GROWN),
    )  # fmt: skip


_ADAPT = adapt(Letters(), 24, 10, boundary="norm", updates=1_500, horizon=1_500)
_SMOL = (
    smol(letter(), rate=5e-5, stepwise=True),
    smol(letter_map(), EIGHT, loops=8, about="a dense J before loops 2-8 of `smol-letter`: 1-8 transfers; small"),
)

LANGUAGE = (letter(), letter_map(), _ADAPT, *map(_shared, _SMOL), *map(small, (_ADAPT, *_SMOL)))
