"""Training backbones and fitting maps as jobs.

    train: settings recipe, seeds                        -> a key for each seed
    fit:   settings recipes, fits; input backbone        -> a key for each map and fit

Recipes stand in the job as values, so that a worker needs nothing but the job and the store.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopscope.errors import InputError
from loopscope.jobs.job import Job
from loopscope.jobs.task import Keys, Place, Task, input_of, numbers_of, object_of
from loopscope.store.artefacts import BACKBONE, MAP
from loopscope.store.manifest import artefact_key
from loopscope.store.store import Store
from loopscope.training.cohort import jobs
from loopscope.training.cohort.controls import other_task
from loopscope.training.recipe import BackboneRecipe, ControlFit, MapRecipe
from loopscope.training.recipe_values import recipe_from


class _Train(Task):
    def found(self, job: Job, store: Store) -> Keys | None:
        keys = backbone_keys(_backbone(job), numbers_of(job, "seeds"))
        return keys if all(store.has(BACKBONE, key) for key in keys.values()) else None

    def run(self, job: Job, at: Place) -> Keys:
        done = jobs.train(_backbone(job), numbers_of(job, "seeds"), at.store, _settings(at))
        return {each.name: each.key for each in done}


class _Fit(Task):
    def found(self, job: Job, store: Store) -> Keys | None:
        keys = map_keys(_maps(job), input_of(job, BACKBONE), numbers_of(job, "fits"))
        return keys if all(store.has(MAP, key) for key in keys.values()) else None

    def run(self, job: Job, at: Place) -> Keys:
        backbone = at.store.open(BACKBONE, input_of(job, BACKBONE))
        jobs.fit(_maps(job), backbone, numbers_of(job, "fits"), at.store, _settings(at))
        return map_keys(_maps(job), backbone.key, numbers_of(job, "fits"))


TRAIN, FIT = _Train(), _Fit()


def backbone_keys(recipe: BackboneRecipe, seeds: Sequence[int]) -> dict[str, str]:
    """The keys of the backbones of these seeds, trained or not, by name."""
    whole = recipe.to_dict()
    return {f"{recipe.name}-{seed}": artefact_key(BACKBONE, {"recipe": whole, "seed": seed}) for seed in seeds}


def map_keys(recipes: Sequence[MapRecipe], backbone: str, fits: Sequence[int]) -> dict[str, str]:
    """The keys of maps of a backbone, fitted or not, by recipe and number of the fit: "one-1"."""
    found: dict[str, str] = {}
    for each in recipes:
        block = other_task(each.data.block) if isinstance(each.data, ControlFit) else None
        inputs = {BACKBONE: backbone} | ({} if block is None else {"block": block.key})
        config = each.to_dict()
        found |= {f"{each.name}-{fit}": artefact_key(MAP, {"recipe": config, "fit": fit}, inputs) for fit in fits}
    return found


def _settings(at: Place) -> jobs.Settings:
    metrics = at.store.root / "metrics"
    return jobs.Settings(at.device, at.save_every, at.watch, at.log, at.stop, metrics)


def _backbone(job: Job) -> BackboneRecipe:
    made = recipe_from(object_of(job, "recipe"))
    if not isinstance(made, BackboneRecipe):
        raise InputError(f"job {job.name!r}: its recipe fits maps; the task 'fit' does that")
    return made


def _maps(job: Job) -> list[MapRecipe]:
    given = job.settings.get("recipes")
    if not isinstance(given, list) or not given:
        raise InputError(f"job {job.name!r}: the setting 'recipes' must be a list of recipes of maps")
    made = [recipe_from(each) for each in given]
    for each in made:
        if not isinstance(each, MapRecipe):
            raise InputError(f"job {job.name!r}: the recipe {each.name!r} trains backbones; the task 'train' does that")
    return [each for each in made if isinstance(each, MapRecipe)]
