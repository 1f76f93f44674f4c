"""What jobs do: a task is looked up by name, told whether its outcome is there, and run in some process somewhere.

The library's own tasks have short names.  Others are named by module and attribute, such as "my_lab.tasks:SOLVE", and
must be a `Task`: a file of jobs can call nothing else.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from loopscope.errors import InputError, nearest
from loopscope.jobs.job import Job
from loopscope.log import Log, silent
from loopscope.store.store import Store
from loopscope.training.job import Progress

Keys = Mapping[str, str]
"""What a job gives back: keys of artefacts in the store by name; other short texts where there are no artefacts."""

SHORT: Mapping[str, str] = {
    "train": "loopscope.jobs.cohort:TRAIN",
    "fit": "loopscope.jobs.cohort:FIT",
    "lm-finetune": "loopscope.jobs.language:FINETUNE",
    "lm-fit": "loopscope.jobs.language:FIT",
    "sweep": "loopscope.jobs.sweeping:SWEEP",
    "recover": "loopscope.jobs.recovering:RECOVER",
    "probe": "loopscope.jobs.probe:PROBE",
}
"""The library's own tasks."""


@dataclass(frozen=True)
class Place:
    """Where a job runs and how it shows itself; `stop` is asked now and then, and `save_every` in seconds."""

    store: Store
    device: torch.device
    save_every: float = 30.0
    log: Log = silent
    watch: Callable[[Progress], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False


class Task(ABC):
    """A kind of job.  It raises the library's errors; nothing of it is kept but what is in the store."""

    looks: bool = True
    """Whether `found` sees what the job has made; False where only the job itself can tell."""

    @abstractmethod
    def found(self, job: Job, store: Store) -> Keys | None:
        """What the job gives, if all of it is in the store; a look that costs little."""

    @abstractmethod
    def run(self, job: Job, at: Place) -> Keys:
        """Do it, or go on with it; the same call again only looks up."""


def task_of(what: str) -> Task:
    """The task of this name; InputError where there is none."""
    full = SHORT.get(what, what)
    module, colon, attribute = full.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise InputError(f"no task {what!r}; there are {', '.join(SHORT)}, or MODULE:NAME{nearest(what, SHORT)}")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise InputError(f"no task {what!r}: {error}") from None
    if not isinstance(found, Task):
        raise InputError(f"no task {what!r}: {attribute} of {module} is none")
    return found


def text_of(job: Job, name: str) -> str:
    """A setting that must be a text; InputError where it is none."""
    return _setting(job, name, str, "a text")


def numbers_of(job: Job, name: str) -> list[int]:
    """A setting that must be a list of whole numbers; InputError where it is none."""
    found: list[int] = _setting(job, name, list, "a list of whole numbers")
    if not found or not all(type(each) is int for each in found):
        raise InputError(f"job {job.name!r}: the setting {name!r} must be a list of whole numbers")
    return found


def object_of(job: Job, name: str) -> dict[str, Any]:
    """A setting that must be an object; InputError where it is none."""
    return _setting(job, name, dict, "an object")


def input_of(job: Job, role: str) -> str:
    """The key of an input; InputError where the job has none of this role."""
    if role not in job.inputs:
        raise InputError(f"job {job.name!r} needs an input {role!r}; it has {', '.join(job.inputs) or 'none'}")
    return job.inputs[role]


def _setting(job: Job, name: str, kind: type, words: str) -> Any:
    if not isinstance(job.settings.get(name), kind):
        raise InputError(f"job {job.name!r}: the setting {name!r} must be {words}")
    return job.settings[name]
