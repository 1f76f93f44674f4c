"""Recipes: how language models are fine-tuned and maps are fitted to them, as values.

    letter, antonym-final, antonym-stepwise, iterations          the paper's backbones, from a released checkpoint
    letter-map, antonym-map, iterations-map                      its maps, fitted to those backbones
    smol-*                                                       the same for a small model that was never looped
    small-*                                                      the same for a smaller one, from nothing

A model that was not made for loops first needs a stage (`smol-*-adapt`) in which every token of texts full of look-ups
is learned, with requests that grow from depth 1.  The task comes after it, and then the map.  A model with random
weights (`small-*`) learns longer, faster and from more examples.

`deviations` names each point in which a recipe differs from the reference protocol, `numerics` what leaves the protocol
as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from loopscope.errors import InputError, nearest
from loopscope.tasks import Antonyms, Iterations, Letters, Task, antonyms, iterations
from loopscope.tasks.general_text import BACKBONE_SEED, MAP_SEED
from loopscope.tasks.letters import training as letter_training
from loopscope.training.lm.recipe import Recipe, changed

WORDING = "the wording of the prompts is ours (the reference gives its own by a sketch)"
GENERAL = "general text is prose and code of this Python unless --text gives other files"
OURS = "beyond the published protocol: a small model that was never looped"
EIGHT = "eight loops, one for every step; four in the reference"
SHARED = "ten questions share a set of rules, half or more of them of the largest depth asked for"
GROWN = "depths grow from five, each with as many loops"
BY_STEPS = "learned after fewer loops, too, with answers after fewer steps; stepwise=false leaves that out"
_ALWAYS = (WORDING, GENERAL)


# ---- the paper's -----------------------------------------------------------------------------------------------------


def letter() -> Recipe:
    """Ouro on one to four transfers: the checkpoint of update 200 of a schedule for 500."""
    return Recipe(
        name="letter", about="letter walk, 1-4 transfers, answered after loop 4", trains="weights", task=Letters(),
        loops=4, updates=200, examples=8, micro=2, rate=1e-5, horizon=500, optimiser="adafactor", deepest=4,
        seed=letter_training.BACKBONE.first_seed, general_seed=BACKBONE_SEED, deviations=_ALWAYS,
    )  # fmt: skip


def letter_map() -> Recipe:
    """A dense map before loops 2 to 4, for one to eight transfers."""
    return Recipe(
        name="letter-map", about="a dense J before loops 2-4 of `letter`: 1-8 transfers", trains="map", task=Letters(),
        loops=4, updates=500, examples=16, micro=2, rate=1e-4, horizon=500, deepest=8,
        seed=letter_training.MAP.first_seed, general_seed=MAP_SEED, deviations=_ALWAYS,
    )  # fmt: skip


def antonym_final() -> Recipe:
    """Ouro on the first four deletions, asked for one by one."""
    return replace(
        letter(), name="antonym-final", about="antonyms, deletions 1-4, answered after loop 4",
        task=Antonyms(), updates=500, seed=antonyms.BACKBONE_SEED,
    )  # fmt: skip


def antonym_stepwise() -> Recipe:
    """Ouro on four deletions, of which loop t says the t-th."""
    return replace(
        antonym_final(), name="antonym-stepwise", about="antonyms, loop t says deletion t of 4",
        task=Antonyms(form="stepwise"), stepwise=True, averaging="sequence",
    )  # fmt: skip


def antonym_map() -> Recipe:
    """A map of rank 128 after every loop, for deletions one to eight; both backbones are asked in the stepwise form."""
    return replace(
        letter_map(), name="antonym-map", about="a rank-128 J after each loop of `antonym-*`: deletions 1-8",
        task=Antonyms(form="stepwise"), seed=antonyms.MAP_SEED, placement="after-each", family="residual-low-rank",
        rank=128,
    )  # fmt: skip


def iterate() -> Recipe:
    """Qwen3-8B, looped four times, on five iteration tasks."""
    return Recipe(
        name="iterations", about="five iteration tasks, 1-4 steps, answered after loop 4", trains="weights",
        task=Iterations(), loops=4, updates=12_000, examples=5, micro=5, rate=1e-5, horizon=0, warmup=300, beta2=0.95,
        decay=0.01, deepest=4, seed=iterations.SEED, general_seed=iterations.SEED + 1, newline=False,
        averaging="sequence", general="instead", share=0.3, check_every=500, gate=0.99,
        deviations=(*_ALWAYS, "starts are split between training and test, and the gate looks at training starts"),
        numerics=("AdamW with states in fp32 (8 bits in the reference)", "the residual stream is fp32 (bf16 in the "
        "reference)"),
    )  # fmt: skip


def iterate_map() -> Recipe:
    """A dense map before loops 2 to 8, for one to eight steps."""
    return replace(
        iterate(), name="iterations-map", about="a dense J before loops 2-8 of `iterations`: 1-8 steps", trains="map",
        loops=8, rate=1e-6, warmup=100, decay=0.0, deepest=8,
    )  # fmt: skip


# ---- a small model ---------------------------------------------------------------------------------------------------


def _adapt(task: Task, texts: int, per_text: int, **changes: Any) -> Recipe:
    found = Recipe(
        name=f"smol-{task.key}-adapt", trains="weights", task=task,
        about=f"{task.key}: every token of texts full of look-ups, depths growing from 1 to 4", loops=4, updates=2_000,
        examples=texts, micro=texts, rate=3e-4, horizon=2_000, warmup=100, beta2=0.95, decay=0.01,
        seed=letter_training.ADAPTATION_SEED, general_seed=BACKBONE_SEED, deepest=4, grow_every=50, grow_at=0.8,
        stepwise=True, text="look-ups", per_text=per_text, averaging="token", emphasis=10.0, check_every=100, gate=0.9,
        saved="bf16", deviations=(OURS,),
    )  # fmt: skip
    return replace(found, **changes)


def _small(made: Recipe) -> Recipe:
    """The same for a model with random weights, whose look-ups come suddenly and late: depth waits for them."""
    about = made.about.replace(" `smol-", " `small-").removesuffix("; small")
    new: dict[str, Any] = {
        "name": made.name.replace("smol-", "small-"), "about": f"{about}; from nothing", "check_every": 500,
        "deviations": (*made.deviations, "weights are random at first"),
    }  # fmt: skip
    if made.text == "look-ups":
        new |= {"updates": 8_000, "warmup": 200, "examples": 32, "rate": 1e-3, "boundary": "norm", "grow_every": 100}
    elif made.trains == "weights":
        new |= {"updates": 1_500, "rate": 3e-4}
    else:
        new |= {"updates": 4_000, "examples": 200, "rate": 1e-3}
    found = replace(made, **new)
    return replace(found, horizon=found.updates, micro=found.examples)


def _smol(made: Recipe, *deviations: str, **changes: Any) -> Recipe:
    """A recipe of the paper with batches and rates for a small model; `deviations` are named beside those of all."""
    trained: dict[str, Any] = {"examples": 40, "micro": 40, "averaging": "sequence", "check_every": 100}
    if made.trains == "weights":
        trained |= {"updates": 600, "horizon": 600, "rate": 1e-4, "optimiser": "adamw", "beta2": 0.95, "saved": "bf16"}
    else:
        trained |= {"updates": 1_500, "horizon": 1_500, "rate": 5e-4, "saved": "fp16", "check_every": 250,
                    "stepwise": True, "pace": made.deepest / changes.get("loops", made.loops)}  # fmt: skip
    common = {"warmup": 50, "general": "beside", "share": 0.2, "gate": 0.93, "name": f"smol-{made.name}"}
    about = made.about.replace(" `", " `smol-")
    found = replace(made, **{**common, **trained, "about": f"{about}; small", **changes})
    by_steps = (BY_STEPS,) * (found.stepwise and not made.stepwise)
    return replace(found, deviations=(*made.deviations, OURS, *by_steps, *deviations))


def _listed(*recipes: Recipe) -> Mapping[str, Recipe]:
    return {recipe.name: recipe for recipe in recipes}


_PUBLISHED = (letter(), antonym_final(), antonym_stepwise(), iterate(), letter_map(), antonym_map(), iterate_map())
_BOTH = (
    # A loop ends as in the paper's models: with the final norm as Ouro's, or with nothing as the looped Qwen3's.  A map
    # has a loop for every step.  Iterations are five tasks, of unlike difficulty.
    _adapt(Letters(), 24, 10, boundary="norm", updates=1_500, horizon=1_500),
    _adapt(Antonyms(), 16, 3, boundary="norm"), _adapt(Iterations(), 16, 1, checked=8),
    _smol(letter(), rate=5e-5, stepwise=True), _smol(antonym_final(), rate=5e-5),
    _smol(antonym_stepwise(), rate=5e-5, examples=16), _smol(iterate(), checked=8),
    _smol(letter_map(), EIGHT, loops=8, about="a dense J before loops 2-8 of `smol-letter`: 1-8 transfers; small"),
    _smol(antonym_map(), EIGHT, loops=8), _smol(iterate_map(), checked=4),
)  # fmt: skip


def _letters(made: Recipe) -> Recipe:
    """As SmolLM2 learned letters: from 200 questions an update, which it can have if ten share a set of rules."""
    if not isinstance(made.task, Letters) or made.text == "look-ups":
        return made
    found = replace(
        made, updates=300, horizon=300, examples=20, micro=20, per_text=10, deviations=(*made.deviations, SHARED)
    )
    if made.trains == "weights":
        return found
    return replace(
        found, updates=3_000, horizon=3_000, rate=7e-4, grow_every=50, grow_at=0.8, grow_from=5, check_every=150,
        checked=8, deviations=(*found.deviations, GROWN),
    )  # fmt: skip


RECIPES: Mapping[str, Recipe] = _listed(*_PUBLISHED, *map(_letters, _BOTH), *map(_small, _BOTH))
"""Every recipe by name."""


def recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """The recipe with this name, with changes such as "rate=3e-4"; InputError names the nearest where there is none."""
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}; there are {', '.join(RECIPES)}{nearest(name, RECIPES)}")
    return changed(RECIPES[name], changes)
