"""Measuring as a job: one experiment, or a piece of a long one, on one backbone with the maps that the job names.

The maps are those among the job's inputs and no others, whatever else a store has by then: so a record does not depend
on the order in which jobs of a campaign come to their end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loopscope.jobs.job import Job, Needs
from loopscope.jobs.task import Keys, Place, Task, input_of, object_of, text_of
from loopscope.store.artefacts import BACKBONE
from loopscope.store.manifest import artefact_key
from loopscope.store.store import Store
from loopscope.studies.experiment import Cohort
from loopscope.studies.records import PIECE, RECORD, config_of
from loopscope.studies.registry import EXPERIMENTS, chosen
from loopscope.studies.runner import Step, measured, measured_piece
from loopscope.studies.trained import load_trained

WHAT = "loopscope.studies.measuring:MEASURE"


class _Measure(Task):
    def found(self, job: Job, store: Store) -> Keys | None:
        key = _key(job)
        return {_kind(job): key} if store.has(_kind(job), key) else None

    def run(self, job: Job, at: Place) -> Keys:
        key, keys = input_of(job, BACKBONE), set(job.inputs.values())
        weights = Store(Path(text_of(job, "weights"))) if job.settings.get("weights") else at.store
        step = _step(job)
        trained = load_trained(weights, key, at.device, step.cohort.prefix, step.cohort.task, keys)
        if _kind(job) == PIECE:
            made = measured_piece(step, step.settings, trained, at.store)
        else:
            made = measured(step, trained, weights, at.store, at.log)
        return {_kind(job): made.key}


MEASURE = _Measure()


def measuring(
    step: Step,
    inputs: Mapping[str, str],
    needs: Needs,
    *,
    after: Sequence[str] = (),
    name: str | None = None,
    piece: Mapping[str, Any] | None = None,
    weights: Path | None = None,
) -> Job:
    """The job of a step; `inputs` are backbone and maps by role, as `runner.inputs_of` names them.

    `piece` are the settings of one of its pieces, `weights` is the store with the models, where that is another one.
    """
    settings: dict[str, Any] = {
        "experiment": step.experiment.name, "backbone": step.backbone, "cohort": step.cohort.name,
        "prefix": step.cohort.prefix, "task": step.cohort.task,
        "settings": dict(step.settings if piece is None else piece),
    }  # fmt: skip
    more: dict[str, Any] = {"piece": True} if piece is not None else {}
    more |= {"weights": str(weights.absolute())} if weights is not None else {}
    return Job(name or str(step), WHAT, settings | more, dict(inputs), needs, tuple(after))


def record_of(job: Job) -> str | None:
    """The key of the record that a job makes; None for a piece, and for another kind of job."""
    return _key(job) if job.what == WHAT and _kind(job) == RECORD else None


def _kind(job: Job) -> str:
    return PIECE if job.settings.get("piece") else RECORD


def _step(job: Job) -> Step:
    (experiment,) = chosen([text_of(job, "experiment")])
    cohort = Cohort(
        text_of(job, "cohort"), "", (), (), prefix=str(job.settings["prefix"]), task=text_of(job, "task")
    )  # fmt: skip
    return Step(experiment, text_of(job, "backbone"), cohort, object_of(job, "settings"))


def _key(job: Job) -> str:
    name = text_of(job, "experiment")
    uses = EXPERIMENTS[name].uses if name in EXPERIMENTS else None
    mine = {
        role: key
        for role, key in job.inputs.items()
        if role == BACKBONE or uses is None or role.rpartition("-")[0] in uses
    }
    return artefact_key(_kind(job), config_of(name, text_of(job, "backbone"), object_of(job, "settings")), mine)
