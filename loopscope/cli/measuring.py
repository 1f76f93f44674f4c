"""What `reproduce` measures: on the zoo's weights or on its own, in this process or as jobs of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loopscope.cli.app import note
from loopscope.cli.jobs_shown import carried_out
from loopscope.cli.lm import quiet_transformers
from loopscope.cli.progress import steps as steps_done
from loopscope.cli.threads import SMALL, choose_threads, numbers_of
from loopscope.cli.training import job
from loopscope.errors import InputError

if TYPE_CHECKING:
    from loopscope.jobs.job import Needs
    from loopscope.studies.experiment import Cohort, Experiment, Profile
    from loopscope.studies.language.steps import LanguageStep
    from loopscope.studies.records import Record
    from loopscope.studies.runner import Measurement, Step


def measure(todo: list[Measurement], folder: Path, zoo: Path | None, device: str) -> list[Record]:
    """Measure on the zoo's weights."""
    from loopscope.store.store import Store
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.runner import carry_out
    from loopscope.training.job import pick_device

    at = pick_device(device)
    choose_threads(SMALL)
    with steps_done("measuring", len(todo)) as shown:
        return list(carry_out(todo, open_zoo(zoo), Store(folder), at, shown.log, shown.advance))


def backbone_steps(
    asked: list[Experiment], by_name: bool, cohorts: list[Cohort], stored: list[Record], zoo: Path | None,
    amount: Profile,
) -> list[Step]:  # fmt: skip
    """What is measured on the zoo's backbones; InputError for what was asked for by name and cannot be done on any."""
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.registry import selection
    from loopscope.studies.runner import steps

    weights = open_zoo(zoo)
    chosen = selection(stored)
    todo = steps(weights, cohorts, asked, chosen, amount)
    done = {step.experiment.name for step in todo}
    idle = [each.name + _needs(each, cohorts) for each in asked if each.name not in done]
    if not todo or (by_name and idle):
        raise InputError(
            f"{weights.root} has no backbone of the cohorts {', '.join(each.name for each in cohorts)} for "
            f"{', '.join(idle)}; mechanism backbones by the stored records: {', '.join(chosen.names) or 'none'}"
        )
    return todo


def refuse_unmeasurable(names: list[str], zoo: Path | None) -> None:
    """InputError for experiments on language models, asked for by name, that the zoo's weights do not allow."""
    from loopscope.models.extras import lacking
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.registry import LANGUAGE

    for name in names:
        if missing := lacking():
            raise InputError(f"{name} {missing}")
        from loopscope.studies.language.zoo import kept

        weights = open_zoo(zoo)
        if not kept(weights, LANGUAGE[name]):
            raise InputError(f"{weights.root} has no language model for {name}; `{LANGUAGE[name].command}` tests one")


def language_steps(names: list[str], zoo: Path | None, whole: bool) -> list[LanguageStep]:
    """The zoo's language models, on a part of these experiments (none: of all) or on all of them.

    Where packages are missing, say so in a line and go on.
    """
    from loopscope.models.extras import lacking
    from loopscope.store.artefacts import LM_MAP
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.registry import LANGUAGE

    weights = open_zoo(zoo)
    if not weights.every(LM_MAP):
        return []
    asked = [each for each in LANGUAGE.values() if each.in_zoo is not None and (not names or each.name in names)]
    if missing := lacking():
        note(f"loopscope: {', '.join(each.name for each in asked)} are left out: a language model {missing}")
        return []
    quiet_transformers()
    from loopscope.studies.language.zoo import zoo_steps

    return [step for each in asked for step in zoo_steps(weights, each, whole)]


def _needs(experiment: Experiment, cohorts: list[Cohort]) -> str:
    """The maps without which an experiment is not done on a backbone, in brackets; nothing where there are none."""
    maps = [each for cohort in cohorts for group in cohort.chosen_for(experiment) for each in group]
    return f" (with maps such as {', '.join(maps)})" if maps else ""


def train_and_measure(
    asked: list[Experiment], cohorts: list[Cohort], folder: Path, device: str, save_every: float
) -> list[Record]:
    """Train the cohorts, fit their maps, measure them."""
    from loopscope.studies.recipes import backbone_recipe
    from loopscope.studies.runner import from_nothing

    sizes = [(backbone_recipe(name), len(cohort.seeds)) for cohort in cohorts for name in cohort.recipes]
    choose_threads(max(numbers_of(each.model, each.batch, seeds) for each, seeds in sizes))
    with job(device, folder, save_every) as (store, settings, log):
        return [record for cohort in cohorts for record in from_nothing(cohort, asked, store, settings, log)]


def train_and_measure_on(
    on: str, asked: list[Experiment], cohorts: list[Cohort], stored: list[Record], folder: Path, needs: Needs,
    save_every: float, events: bool,
) -> list[Record]:  # fmt: skip
    """The whole campaign as jobs of an engine."""
    from loopscope.cli.stores import store_to_be
    from loopscope.studies.campaign import Campaign, records_of
    from loopscope.studies.times import recorded_times

    store = store_to_be(folder)
    graph = Campaign(cohorts, asked, store, needs, recorded_times()).graph()
    return records_of(carried_out(graph, store, on, save_every, events), store)


def measure_on(on: str, todo: list[Step], folder: Path, zoo: Path | None, needs: Needs, events: bool) -> list[Record]:
    """Measurements on the zoo's backbones as jobs of an engine."""
    from loopscope.cli.stores import store_to_be
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.campaign import measuring_graph, records_of
    from loopscope.studies.times import recorded_times

    store = store_to_be(folder)
    graph = measuring_graph(todo, open_zoo(zoo), needs, recorded_times())
    return records_of(carried_out(graph, store, on, events=events), store)
