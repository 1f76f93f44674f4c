"""Campaigns: carry out the suite, on released weights or from nothing, one record after the other.

Every step is an artefact, and so is every piece of a long one.  What a store already holds is not done again, so an
interrupted campaign goes on where it stopped, and a second one takes no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loopscope.store.artefacts import BACKBONE, MAP, name_of, recipe_of
from loopscope.store.store import Artefact, Store
from loopscope.studies.experiment import Cohort, Experiment, Profile
from loopscope.studies.graph_walk.experiments import TRAJECTORIES, selection
from loopscope.studies.graph_walk.selection import MECHANISM, Selection
from loopscope.studies.layouts import layout_of
from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.studies.records import (
    PIECE,
    RECORD,
    Facts,
    Predictions,
    Record,
    config_of,
    copy_records,
    in_words,
    load,
    save,
)
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.subject import Meter, Subject, load_subject
from loopscope.studies.training_logs import keep
from loopscope.training.cohort.jobs import Settings, fit, train

Log = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One record to be: an experiment with its settings on one backbone of a store."""

    experiment: Experiment
    backbone: str
    cohort: Cohort
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.experiment.name} on {self.backbone}"


def steps(
    there: Store, cohorts: Iterable[Cohort], experiments: Sequence[Experiment], chosen: Selection, profile: Profile
) -> list[Step]:
    """All steps of these experiments on the backbones of these cohorts that a store has, the main backbone first.

    An experiment that uses maps of chosen backbones is left out where a backbone has none of those that it uses, and
    one that is done on some backbones of a cohort is left out on the others.
    """
    known = _trained(there)
    fitted = {(fit.manifest.inputs.get(BACKBONE), recipe_of(fit)["name"]) for fit in there.every(MAP)}

    def has_maps(name: str, cohort: Cohort, experiment: Experiment) -> bool:
        groups = cohort.chosen_for(experiment)
        used = {cohort.prefix + target for target in experiment.uses or ()}
        if experiment.apart:
            return any((known[name].key, each) in fitted for each in used)
        return not groups or any((known[name].key, each) in fitted for group in groups for each in used & set(group))

    found = [
        Step(experiment, name, cohort, settings)
        for cohort in cohorts
        for name in _by_seed(cohort, set(known))
        for experiment in experiments
        if cohort.name in experiment.cohorts and name in experiment.on(cohort, chosen)
        if has_maps(name, cohort, experiment)
        for settings in experiment.settings(chosen.role(name), profile)
    ]
    # A backbone of two cohorts is measured once: whatever maps it has are in one record.
    once: dict[tuple[str, str, str], Step] = {}
    for step in found:
        once.setdefault((step.experiment.name, step.backbone, repr(step.settings)), step)
    rank = {"main": 0, "mechanism": 1, "other": 2}
    return sorted(once.values(), key=lambda step: rank[chosen.role(step.backbone)])


def _trained(store: Store) -> dict[str, Artefact]:
    """The backbones of a store by name, of several with one name the first."""
    return {name_of(each): each for each in reversed(store.every(BACKBONE))}


def _by_seed(cohort: Cohort, known: set[str]) -> list[str]:
    """Its backbones among those known, in the order of seeds."""
    return [name for name in cohort.every if name in known]


def carry_out(
    todo: Sequence[Step], weights: Store, store: Store, device: torch.device, log: Log = lambda _: None
) -> Iterator[Record]:
    """The record of every step: from the store if it is there, else measured with the weights and written to it."""
    subjects: dict[str, Subject] = {}
    for number, step in enumerate(todo, 1):
        log(f"{number}/{len(todo)} {step}")
        if step.backbone not in subjects:
            subjects = {
                step.backbone: load_subject(weights, step.backbone, device, step.cohort.prefix, step.cohort.task)
            }
        yield measured(step, subjects[step.backbone], weights, store, log)


def measured(step: Step, subject: Subject, weights: Store, store: Store, log: Log = lambda _: None) -> Record:
    """One record, found in the store or made; `weights` is where the subject comes from."""
    inputs = inputs_of(step.experiment, subject)
    name = step.experiment.name
    known = store.find(RECORD, config_of(name, subject.name, step.settings), inputs)
    if known is not None:
        return load(known, layout_of(step.experiment))
    pieces = step.experiment.pieces
    cuts = [] if pieces is None else pieces.cut(step.settings)
    if pieces is None or len(cuts) < 2:
        predictions, cost = _measure(step.experiment, subject, step.settings)
    else:
        found = []
        for number, settings in enumerate(cuts, 1):
            log(f"{step}: piece {number} of {len(cuts)}")
            found.append(_piece(step.experiment, subject, settings, inputs, store))
        predictions = pieces.join([each.predictions for each in found])
        cost = {"seconds": sum(each.cost["seconds"] for each in found), "device": found[-1].cost["device"]}
    notes = {} if step.experiment.notes is None else step.experiment.notes(weights, subject.name, step.cohort.prefix)
    record = Record(name, Facts.of(subject), predictions, step.settings, cost, notes, step.experiment.raw)
    save(store, record, inputs, subject.device)
    return record


def _piece(
    experiment: Experiment, subject: Subject, settings: dict[str, Any], inputs: dict[str, str], store: Store
) -> Record:
    """One piece of a long record, found in the store or made."""
    known = store.find(PIECE, config_of(experiment.name, subject.name, settings), inputs)
    if known is not None:
        return load(known, layout_of(experiment))
    predictions, cost = _measure(experiment, subject, settings)
    record = Record(experiment.name, Facts.of(subject), predictions, settings, cost, raw=experiment.raw)
    save(store, record, inputs, subject.device, PIECE)
    return record


def _measure(experiment: Experiment, subject: Subject, settings: dict[str, Any]) -> tuple[Predictions, dict[str, Any]]:
    """What was measured, and what it cost."""
    before, started = Meter(subject.meter.rows, subject.meter.plain_rows), time.perf_counter()
    predictions = experiment.measure(subject, **settings)
    cost: dict[str, Any] = {"seconds": time.perf_counter() - started, "device": in_words(subject.device)}
    if subject.meter != before:
        cost["forwards"] = subject.forwards(subject.meter.rows - before.rows)
        cost["plain"] = subject.forwards(subject.meter.plain_rows - before.plain_rows)
    return predictions, cost


def inputs_of(experiment: Experiment, subject: Subject) -> dict[str, str]:
    """The keys of what a record rests on: the backbone, and of its maps those that the experiment uses."""
    return {BACKBONE: subject.key} | {
        f"{target}-{number}": key
        for target, keys in subject.keys.items()
        if experiment.uses is None or target in experiment.uses
        for number, key in enumerate(keys, 1)
    }


def from_nothing(
    cohort: Cohort, experiments: Sequence[Experiment], store: Store, settings: Settings, log: Log = lambda _: None
) -> list[Record]:
    """Train a cohort, choose by the rule, fit its maps, measure: everything of it, into one store.

    The rule comes before the first map.  If it finds too few backbones, `more_seeds` are trained and it is asked again.
    Where an experiment chooses a backbone by what was measured on all (`lead`), that one is then measured as the main
    one.
    Maps for the chosen backbones alone come last, and only if one of the experiments uses them.
    """
    for seeds in (cohort.seeds, cohort.more_seeds):
        for recipe in cohort.recipes if seeds else ():
            train(backbone_recipe(recipe), list(seeds), store, settings)
        chosen, native = _select(cohort, store, settings.device, log)
        if len(chosen.names) == MECHANISM or not cohort.more_seeds:
            break
    trained = _trained(store)
    wanted = [(name, cohort.maps) for name in _by_seed(cohort, set(trained)) if cohort.maps]
    groups = dict.fromkeys(group for experiment in experiments for group in cohort.chosen_for(experiment))
    wanted += [(name, group) for name in chosen.names for group in groups]
    for name, maps in wanted:
        fit([map_recipe(each) for each in maps], trained[name], list(cohort.fits), store, settings)
    todo = steps(store, [cohort], experiments, chosen, "paper")
    made = list(carry_out(todo, store, store, settings.device, log))
    more = [step for experiment in experiments for step in _led(cohort, experiment, made, store)]
    made += carry_out(more, store, store, settings.device, log)
    asked = {each.name for each in experiments}
    return [*(record for record in native if record.experiment not in asked), *made]


def _led(cohort: Cohort, experiment: Experiment, made: Sequence[Record], store: Store) -> list[Step]:
    """The steps of the backbone that an experiment chooses, once all of the cohort were measured."""
    found = {record.facts.name: record.predictions for record in made if record.experiment == experiment.name}
    if experiment.lead is None or cohort.name not in experiment.cohorts or not set(cohort.backbones) <= set(found):
        return []
    name = experiment.lead(found)
    return [step for step in steps(store, [cohort], [experiment], Selection((name,)), "paper") if step.backbone == name]


def _select(cohort: Cohort, store: Store, device: torch.device, log: Log) -> tuple[Selection, list[Record]]:
    """The mechanism backbones among those trained so far, and the native records that decide; none in other cohorts."""
    native = EXPERIMENTS[TRAJECTORIES]
    if cohort.name != COHORTS["mechanism"].name:
        return Selection(()), []
    todo = steps(store, [cohort], [native], Selection(()), "paper")
    found = list(carry_out(todo, store, store, device, log))
    return selection(found, cohort), found


def export(records: Store, results: Store) -> int:
    """Copy all records of a store to another, and the histories of its weights; how many records there are.

    InputError where there is none.
    """
    count = copy_records(records, results)
    keep(records, results)
    return count
