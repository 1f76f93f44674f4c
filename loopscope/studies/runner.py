"""The runner: measures whatever is asked, on weights that are there or trained for it, one record after the other.

What is measured is a list of steps.  A step is one experiment on one model, a small backbone or a language model.  The
runner loads the model, looks up what the store has and measures the rest.  Every record is an artefact, and so is every
piece of a long one.  What a store holds is not done again: an interrupted run goes on where it stopped, and a second
one takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from loopscope.log import Log, silent
from loopscope.store.artefacts import BACKBONE, LM_MAP, MAP, name_of, recipe_of
from loopscope.store.store import Artefact, Store
from loopscope.studies.experiment import Cohort, Experiment, Profile
from loopscope.studies.layouts import layout_of
from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.studies.recording import Outcome, Wanted, recorded
from loopscope.studies.records import PIECE, ModelFacts, Record, copy_records
from loopscope.studies.registry import COHORTS, DECIDING, EXPERIMENTS, selection
from loopscope.studies.selection import MECHANISM, Selection
from loopscope.studies.trained import Meter, TrainedModel, load_trained
from loopscope.studies.training_logs import keep
from loopscope.training.cohort.jobs import Settings, fit, train
from loopscope.training.lm.jobs import TRAINING


class Measurement(Protocol):
    """A step: what is measured on one model; as text, what it is and on which model."""

    @property
    def model(self) -> Hashable:
        """Steps in a row with equal ones load their model once."""
        ...

    def load(self, weights: Store, device: torch.device) -> Any:
        """The model, from a store of weights."""
        ...

    def records(self, loaded: Any, weights: Store, store: Store, log: Log) -> Iterable[Record]:
        """Its records: those in the store, or else measured and written to it."""
        ...


@dataclass(frozen=True)
class Step:
    """An experiment with its settings on one backbone of a store, which makes one record."""

    experiment: Experiment
    backbone: str
    cohort: Cohort
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.experiment.name} on {self.backbone}"

    @property
    def model(self) -> Hashable:
        """The backbone with the maps of its cohort."""
        return self.backbone, self.cohort.prefix, self.cohort.task

    def load(self, weights: Store, device: torch.device) -> TrainedModel:
        """The backbone with the maps of its cohort."""
        return load_trained(weights, self.backbone, device, self.cohort.prefix, self.cohort.task)

    def records(self, loaded: TrainedModel, weights: Store, store: Store, log: Log) -> Iterable[Record]:
        """Its one record."""
        return [measured(self, loaded, weights, store, log)]


def steps(
    there: Store, cohorts: Iterable[Cohort], experiments: Sequence[Experiment], chosen: Selection, profile: Profile
) -> list[Step]:
    """All steps of these experiments on the backbones of these cohorts that a store has, the main backbone first.

    An experiment that uses maps of chosen backbones is left out where a backbone has none of those that it uses, and
    one that is done on some backbones of a cohort is left out on the others.
    """
    known = _trained(there)
    names = {each.key: name for name, each in known.items()}
    fits = ((fit.manifest.inputs.get(BACKBONE, ""), recipe_of(fit)["name"]) for fit in there.every(MAP))
    fitted = {(names[key], name) for key, name in fits if key in names}
    return steps_on(set(known), fitted, cohorts, experiments, chosen, profile)


def steps_on(
    known: Set[str], fitted: Set[tuple[str, str]], cohorts: Iterable[Cohort], experiments: Sequence[Experiment],
    chosen: Selection, profile: Profile,
) -> list[Step]:  # fmt: skip
    """As `steps`, on backbones of these names with maps by (name of the backbone, recipe), there or yet to be made."""

    def has_maps(name: str, cohort: Cohort, experiment: Experiment) -> bool:
        groups = cohort.chosen_for(experiment)
        used = {cohort.prefix + target for target in experiment.uses or ()}
        if experiment.apart:
            return any((name, cohort.prefix + each) in fitted for each in experiment.apart)
        return not groups or any((name, each) in fitted for group in groups for each in used & set(group))

    found = [
        Step(experiment, name, cohort, settings)
        for cohort in cohorts
        for name in _by_seed(cohort, known)
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


def _by_seed(cohort: Cohort, known: Set[str]) -> list[str]:
    """Its backbones among those known, in the order of seeds."""
    return [name for name in cohort.every if name in known]


def carry_out(
    todo: Sequence[Measurement],
    weights: Store,
    store: Store,
    device: torch.device,
    log: Log = silent,
    done: Callable[[], object] = lambda: None,
) -> Iterator[Record]:
    """The records of every step: from the store, or measured with the weights and written to it.

    `done` is called after each step.
    """
    held: Hashable = None
    loaded: Any = None
    for number, step in enumerate(todo, 1):
        log(f"{number}/{len(todo)} {step}")
        if step.model != held:
            loaded = None  # so that two models are never in memory
            loaded, held = step.load(weights, device), step.model
        yield from step.records(loaded, weights, store, log)
        done()


def measured(step: Step, trained: TrainedModel, weights: Store, store: Store, log: Log = silent) -> Record:
    """The record of a step, found in the store or made; `weights` is where the model comes from."""
    experiment = step.experiment
    wanted = _wanted(experiment, trained, step.settings)

    def measure() -> Outcome:
        pieces = experiment.pieces
        cuts = cuts_of(step)
        if pieces is None or not cuts:
            found = _measure(experiment, trained, step.settings)
        else:
            parts = []
            for number, settings in enumerate(cuts, 1):
                log(f"{step}: piece {number} of {len(cuts)}")
                parts.append(measured_piece(step, settings, trained, store))
            cost = {name: sum(each.cost[name] for each in parts) for name in parts[0].cost if name != "device"}
            cost["device"] = parts[-1].cost["device"]
            found = Outcome(pieces.join([each.predictions for each in parts]), cost=cost)
        notes = {} if experiment.notes is None else experiment.notes(weights, dict(wanted.inputs), step.cohort.prefix)
        return found._replace(notes=notes)

    return recorded(wanted, store, measure)


def cuts_of(step: Step) -> list[dict[str, Any]]:
    """The settings of the pieces that a step is measured in; none where it is measured in one go."""
    pieces = step.experiment.pieces
    cuts = [] if pieces is None else pieces.cut(step.settings)
    return cuts if len(cuts) > 1 else []


def measured_piece(step: Step, settings: dict[str, Any], trained: TrainedModel, store: Store) -> Record:
    """One piece of a step, found in the store or made."""
    piece = _wanted(step.experiment, trained, settings)
    return recorded(piece, store, partial(_measure, step.experiment, trained, settings), PIECE)


def _wanted(experiment: Experiment, trained: TrainedModel, settings: dict[str, Any]) -> Wanted:
    return Wanted(
        experiment.name, ModelFacts.of(trained), settings, inputs_of(experiment, trained), trained.device,
        layout_of(experiment), experiment.raw,
    )  # fmt: skip


def _measure(experiment: Experiment, trained: TrainedModel, settings: dict[str, Any]) -> Outcome:
    """What was measured, and what it cost in forward-equivalents where its runs are metered."""
    before = Meter(trained.meter.rows, trained.meter.plain_rows)
    predictions = experiment.measure(trained, **settings)
    if trained.meter == before:
        return Outcome(predictions)
    rows, plain = trained.meter.rows - before.rows, trained.meter.plain_rows - before.plain_rows
    return Outcome(predictions, cost={"forwards": trained.forwards(rows), "plain": trained.forwards(plain)})


def inputs_of(experiment: Experiment, trained: TrainedModel) -> dict[str, str]:
    """The keys of what a record rests on: the backbone, and of its maps those that the experiment uses."""
    return {BACKBONE: trained.key} | {
        f"{target}-{number}": key
        for target, keys in trained.keys.items()
        if experiment.uses is None or target in experiment.uses
        for number, key in enumerate(keys, 1)
    }


def from_nothing(
    cohort: Cohort, experiments: Sequence[Experiment], store: Store, settings: Settings, log: Log = silent
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
    if cohort.name != COHORTS["mechanism"].name:
        return Selection(()), []
    todo = steps(store, [cohort], [EXPERIMENTS[DECIDING]], Selection(()), "paper")
    found = list(carry_out(todo, store, store, device, log))
    return selection(found, cohort), found


def export(records: Store, results: Store) -> int:
    """Copy all records of a store to another, with how their models were trained; how many records there are.

    Of backbones and their maps that is a history each; of language models the notes of training and the maps.
    InputError where there is no record.
    """
    count = copy_records(records, results)
    keep(records, results)
    for kind in (LM_MAP, TRAINING):
        for artefact in records.every(kind):
            results.adopt(artefact)
    return count
