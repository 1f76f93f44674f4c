"""What recipes of language models share: the paper's protocol, and the same for smaller models.

    *                      the paper's backbones, from a released checkpoint, and the maps fitted to them
    smol-*                 the same for a small model that was never looped
    small-*                the same for a smaller one, from nothing

A model that was not made for loops first needs a stage (`smol-*-adapt`) in which every token of texts full of look-ups
is learned, with requests that grow from depth 1.  The task comes after it, and then the map.  A model with random
weights (`small-*`) learns longer, faster and from more examples.

`deviations` names each point in which a recipe differs from the reference protocol, `numerics` what leaves the protocol
as it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loopscope.tasks import Task
from loopscope.tasks.general_text import BACKBONE_SEED, MAP_SEED
from loopscope.tasks.letters.training import ADAPTATION_SEED
from loopscope.training.lm.recipe import Recipe

SCALES = ("paper", "smol", "small")
"""Which recipes: the paper's; those for a small model that was never looped; or for one that has random weights."""

WORDING = "the wording of the prompts is ours (the reference gives its own by a sketch)"
GENERAL = "general text is prose and code of this Python unless --text gives other files"
OURS = "beyond the published protocol: a small model that was never looped"
EIGHT = "eight loops, one for every step; four in the reference"
BY_STEPS = "learned after fewer loops, too, with answers after fewer steps; stepwise=false leaves that out"
ALWAYS = (WORDING, GENERAL)


def scale_of(recipe: Recipe) -> str:
    """Of which of `SCALES` a recipe is."""
    prefix = recipe.name.partition("-")[0]
    return prefix if prefix in SCALES else SCALES[0]


def ouro(**settings: Any) -> Recipe:
    """A backbone of the paper: Ouro, fine-tuned on one to four steps, answered after loop 4."""
    return Recipe(**{
        "trains": "weights", "loops": 4, "examples": 8, "micro": 2, "rate": 1e-5, "horizon": 500,
        "optimiser": "adafactor", "deepest": 4, "general_seed": BACKBONE_SEED, "deviations": ALWAYS, **settings,
    })  # fmt: skip


def ouro_map(**settings: Any) -> Recipe:
    """A map to such a backbone, fitted to one to eight steps."""
    return Recipe(**{
        "trains": "map", "loops": 4, "updates": 500, "examples": 16, "micro": 2, "rate": 1e-4, "horizon": 500,
        "deepest": 8, "general_seed": MAP_SEED, "deviations": ALWAYS, **settings,
    })  # fmt: skip


def adapt(task: Task, texts: int, per_text: int, **changes: Any) -> Recipe:
    """The stage before the task: `texts` an update, with `per_text` look-ups each.

    A loop ends as in the paper's models: with the final norm as Ouro's, or with nothing as the looped Qwen3's.
    """
    found = Recipe(
        name=f"smol-{task.key}-adapt", trains="weights", task=task,
        about=f"{task.key}: every token of texts full of look-ups, depths growing from 1 to 4", loops=4, updates=2_000,
        examples=texts, micro=texts, rate=3e-4, horizon=2_000, warmup=100, beta2=0.95, decay=0.01,
        seed=ADAPTATION_SEED, general_seed=BACKBONE_SEED, deepest=4, grow_every=50, grow_at=0.8,
        stepwise=True, text="look-ups", per_text=per_text, averaging="token", emphasis=10.0, check_every=100, gate=0.9,
        saved="bf16", deviations=(OURS,),
    )  # fmt: skip
    return replace(found, **changes)


def smol(made: Recipe, *deviations: str, **changes: Any) -> Recipe:
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


def small(made: Recipe) -> Recipe:
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
