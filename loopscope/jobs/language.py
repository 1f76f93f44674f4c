"""Training language models and fitting maps to them as jobs.

    lm-finetune: settings folder, recipe, out      -> the folder
    lm-fit:      settings folder, recipe           -> the key of the map

Beside these: boundary, loop, text (files of general text), compiled.  Folders are paths that every machine sees.  With
`needs.gpus` above one, or several nodes, `torchrun` starts the job in as many processes, which train together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loopscope.errors import InputError
from loopscope.jobs.job import Job
from loopscope.jobs.task import Keys, Place, Task, object_of, text_of
from loopscope.models.passes import Boundary, boundary_named
from loopscope.store.store import Store
from loopscope.tasks.general_text import Source, read
from loopscope.training.lm.jobs import Finished, Settings, finetune, fit
from loopscope.training.lm.recipe import Recipe


class _Finetune(Task):
    looks = False

    def found(self, job: Job, store: Store) -> Keys | None:
        return None

    def run(self, job: Job, at: Place) -> Keys:
        out = Path(text_of(job, "out"))
        done = finetune(
            text_of(job, "folder"), recipe_in(job), out, at.store, settings_in(job, at), sources=sources_in(job),
            boundary=boundary_in(job), loop=job.settings.get("loop"),
        )  # fmt: skip
        return {"folder": str(done.folder)}


class _Fit(Task):
    looks = False

    def found(self, job: Job, store: Store) -> Keys | None:
        return None

    def run(self, job: Job, at: Place) -> Keys:
        done = fitted(job, at, text_of(job, "folder"))
        return {} if done.key is None else {recipe_in(job).name: done.key}


FINETUNE, FIT = _Finetune(), _Fit()


def fitted(job: Job, at: Place, folder: str) -> Finished:
    """The map of a job's recipe: looked up, or fitted."""
    how = settings_in(job, at)
    return fit(folder, recipe_in(job), at.store, how, sources=sources_in(job), loop=job.settings.get("loop"))


def recipe_in(job: Job) -> Recipe:
    """The recipe that stands in a job as a value."""
    return Recipe.from_dict(object_of(job, "recipe"))


def settings_in(job: Job, at: Place) -> Settings:
    """How it is run there."""
    return Settings(
        at.device, save_every=at.save_every, watch=at.watch, log=at.log, stop=at.stop,
        compiled=bool(job.settings.get("compiled", False)),
    )  # fmt: skip


def sources_in(job: Job) -> Sequence[Source] | None:
    """The general text that a job names; None for what needs no download."""
    named = job.settings.get("text")
    if named is None:
        return None
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise InputError(f"job {job.name!r}: the setting 'text' must be a list of files")
    return [read([Path(each) for each in named])]


def boundary_in(job: Job) -> Boundary | None:
    """What ends a loop; None: as the folder has it."""
    named = job.settings.get("boundary")
    return None if named is None else boundary_named(str(named))
