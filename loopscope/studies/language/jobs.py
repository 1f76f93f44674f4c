"""A protocol on a language model as jobs: train, fit and test each arm; arms are independent of each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loopscope.jobs.driver import Report
from loopscope.jobs.job import Graph, Job, Needs
from loopscope.jobs.language import boundary_in, fitted
from loopscope.jobs.task import Keys, Place, Task, text_of
from loopscope.models.folders import outline
from loopscope.models.hub import called
from loopscope.models.passes import Boundary
from loopscope.store.store import Store
from loopscope.studies.language.experiment import Amount
from loopscope.studies.language.protocols import ProtocolPlan
from loopscope.studies.language.steps import LanguageStep
from loopscope.studies.records import RECORD, Record, load
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.runner import carry_out
from loopscope.training.lm.jobs import new_map

WHAT = "loopscope.studies.language.jobs:TEST"


class _Test(Task):
    """The records of one arm: its map is looked up by its recipe, then model and map are tested."""

    looks = False

    def found(self, job: Job, store: Store) -> Keys | None:
        return None

    def run(self, job: Job, at: Place) -> Keys:
        experiment = LANGUAGE[text_of(job, "experiment")]
        arm = next(each for each in experiment.arms if each.backbone == job.settings["arm"])
        folder, amount = text_of(job, "folder"), Amount(job.settings["cases"], job.settings["batch"])
        step = LanguageStep(
            experiment, arm, amount, text_of(job, "name"), Path(folder), fitted(job, at, folder).folder,
            boundary_in(job),
        )  # fmt: skip

        def say(doing: str) -> None:
            if at.stop():
                raise KeyboardInterrupt
            at.log(doing)

        made = carry_out([step], at.store, at.store, at.device, say)
        return {f"record-{number}": each.key for number, each in enumerate(made, 1)}


TEST = _Test()


def protocol_graph(
    asked: ProtocolPlan, folder: Path, out: Path, needs: Needs, *, name: str | None = None,
    boundary: Boundary | None = None, text: Iterable[Path] | None = None, compiled: bool = False,
) -> Graph:  # fmt: skip
    """The jobs of a protocol; InputError for a map that does not fit.  Tests are done by one process each."""
    width = outline(folder, loops=1, boundary=boundary).width
    for _, step, _ in asked.arms:
        new_map(step, width)
    model = name or called(folder)
    common: dict[str, Any] = {"text": None if text is None else [str(each.absolute()) for each in text]}
    common |= {"compiled": compiled}
    out, start, first = out.absolute(), folder.absolute(), tuple[str, ...]()
    jobs: list[Job] = []

    def trained(recipe: Any, start: Path, after: tuple[str, ...], ending: Boundary | None) -> Job:
        settings = {"folder": str(start), "recipe": recipe.to_dict(), "out": str(out / recipe.name), **common}
        return Job(f"train {recipe.name}", "lm-finetune", settings | {"boundary": ending}, {}, needs, after)

    if asked.adapt is not None:
        jobs.append(trained(asked.adapt, start, (), boundary))
        start, first = out / asked.adapt.name, (jobs[-1].name,)
    alone = replace(needs, nodes=1, gpus=min(needs.gpus, 1.0))
    for backbone, step, arm in asked.arms:
        jobs.append(trained(backbone, start, first, boundary if asked.adapt is None else None))
        written = {"folder": str(out / backbone.name), "recipe": step.to_dict(), **common}
        jobs.append(Job(f"fit {step.name} on {backbone.name}", "lm-fit", written, {}, needs, (jobs[-1].name,)))
        tested: Mapping[str, Any] = {
            **written, "experiment": asked.experiment.name, "arm": arm.backbone, "name": model,
            "boundary": step.boundary, "cases": asked.amount.cases, "batch": asked.amount.batch,
        }  # fmt: skip
        jobs.append(Job(f"test {step.name} on {backbone.name}", WHAT, tested, {}, alone, (jobs[-1].name,)))
    return Graph(tuple(jobs))


def records_of(report: Report, asked: ProtocolPlan, store: Store) -> list[Record]:
    """The records that the tests made, in order."""
    keys = [key for name, job in report.jobs.items() if job.what == WHAT for key in report.outcomes[name].keys.values()]
    return [load(store.open(RECORD, key), asked.experiment.layout) for key in keys]
