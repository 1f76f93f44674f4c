"""A campaign as a graph of jobs: train, choose by the rule, fit, measure; the order of `runner.from_nothing`.

What follows from results comes later (`Later`): which backbones the rule chooses, whether more seeds are needed, which
backbone an experiment calls its main one.  For a plan, the records that come with a checkout say what to expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from loopscope.jobs.cohort import backbone_keys, map_keys
from loopscope.jobs.driver import Report
from loopscope.jobs.job import Graph, Job, Later, Needs
from loopscope.store.artefacts import BACKBONE
from loopscope.store.store import Store
from loopscope.studies.experiment import Cohort, Experiment
from loopscope.studies.layouts import layout_of
from loopscope.studies.measuring import measuring, record_of
from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.studies.records import RECORD, Record, load
from loopscope.studies.registry import COHORTS, DECIDING, EXPERIMENTS, selection
from loopscope.studies.runner import Step, cuts_of, inputs_of, steps_on
from loopscope.studies.selection import MECHANISM, Selection
from loopscope.studies.times import Times
from loopscope.studies.trained import load_trained

NOTHING_YET = Selection(())


@dataclass(frozen=True)
class Campaign:
    """What a graph is made from: the store, what every job needs, times as recorded, the selection to expect."""

    cohorts: Sequence[Cohort]
    experiments: Sequence[Experiment]
    store: Store
    needs: Needs
    times: Times = Times()  # noqa: RUF009  (a frozen value)
    expected: Selection = NOTHING_YET

    def graph(self) -> Graph:
        """All that can be told before the first result, and what follows from results."""
        whole, made_by = Graph(()), dict[str, str]()
        for cohort in self.cohorts:
            whole |= _Cohort(self, cohort, made_by).graph(cohort.seeds)
        return whole

    def takes(self, minutes: float | None) -> Needs:
        """The needs of a job that takes so long."""
        return replace(self.needs, minutes=minutes)


class _Cohort:
    """The jobs of one cohort; `made_by` names the job that makes an artefact, of the cohorts before, too, by key."""

    def __init__(self, campaign: Campaign, cohort: Cohort, made_by: dict[str, str]) -> None:
        self.campaign, self.cohort, self.made_by = campaign, cohort, made_by
        self.asked = campaign.experiments
        self.keys: dict[str, str] = {}
        self.walked: set[str] = set()

    def graph(self, seeds: Sequence[int]) -> Graph:
        """Training of these seeds and, in the cohort of the rule, native walks; then whatever follows."""
        jobs = self._training(seeds)
        if self.cohort.name != COHORTS["mechanism"].name:
            return Graph(tuple(jobs)) | self._then(NOTHING_YET)
        natives = self._natives()
        later = Later(
            tuple(each.name for each in natives), partial(self._chosen, natives), partial(self._chosen, natives, True)
        )
        new = [each for each in natives if each.name not in self.walked]
        self.walked |= {each.name for each in new}
        return Graph((*jobs, *new), (later,))

    # ---- training and choosing ---------------------------------------------------------------------------------------

    def _training(self, seeds: Sequence[int]) -> list[Job]:
        made = []
        for name in self.cohort.recipes:
            recipe = backbone_recipe(name)
            self.keys |= backbone_keys(recipe, seeds)
            mine = [seed for seed in seeds if self.keys[f"{name}-{seed}"] not in self.made_by]
            if mine:
                settings = {"recipe": recipe.to_dict(), "seeds": mine}
                needs = self.campaign.takes(self.campaign.times.training(name, mine))
                made.append(Job(f"train {name} {_range(mine)}", "train", settings, needs=needs))
                self.made_by |= dict.fromkeys(backbone_keys(recipe, mine).values(), made[-1].name)
        return made

    def _natives(self) -> list[Job]:
        native = EXPERIMENTS[DECIDING]
        found = steps_on(set(self.keys), set(), [self.cohort], [native], NOTHING_YET, "paper")
        return [job for step in found for job in self._measuring(step, {})]

    def _chosen(self, natives: Sequence[Job], planning: bool = False) -> Graph:
        """What follows from native walks: more seeds where the rule finds too few, or else maps and measurements."""
        if planning:
            chosen = self.campaign.expected if self.campaign.expected.names else Selection(tuple(self.keys)[:MECHANISM])
        else:
            chosen = selection(_records(natives, self.campaign.store), self.cohort)
        more = [seed for seed in self.cohort.more_seeds if f"{self.cohort.recipes[0]}-{seed}" not in self.keys]
        lacking = len(chosen.names) < MECHANISM or not set(chosen.names) <= set(self.keys)
        return self.graph(more) if more and lacking else self._then(chosen)

    # ---- maps and measurements ---------------------------------------------------------------------------------------

    def _then(self, chosen: Selection) -> Graph:
        names = [name for name in self.cohort.every if name in self.keys]
        groups = dict.fromkeys(group for each in self.asked for group in self.cohort.chosen_for(each))
        wanted = [(name, self.cohort.maps) for name in names if self.cohort.maps]
        wanted += [(name, group) for name in chosen.names for group in groups]
        fits = [job for name, maps in wanted for job in self._fitting(name, maps)]
        fitted = {(name, each) for name, maps in wanted for each in maps}
        inputs = {name: self._inputs(name, wanted) for name in names}
        found = steps_on(set(names), fitted, [self.cohort], self.asked, chosen, "paper")
        measures = [job for step in found for job in self._measuring(step, inputs[step.backbone])]
        return Graph((*fits, *measures), tuple(self._led(measures, inputs)))

    def _fitting(self, name: str, maps: Sequence[str]) -> list[Job]:
        """Maps of one group; those of relations are fitted in turn anyway, so each fit is a job of its own."""
        alone = self.cohort.task == "relations"
        made = []
        for fits in [[fit] for fit in self.cohort.fits] if alone else [list(self.cohort.fits)]:
            settings = {"recipes": [map_recipe(each).to_dict() for each in maps], "fits": fits}
            needs = self.campaign.takes(self.campaign.times.fitting(maps, fits, name))
            title = f"fit {'+'.join(maps)} on {name}" + (f", fit {fits[0]}" if alone else "")
            key = self.keys[name]
            made.append(Job(title, "fit", settings, {BACKBONE: key}, needs, (self.made_by[key],)))
            keys = map_keys([map_recipe(each) for each in maps], key, fits)
            self.made_by |= dict.fromkeys(keys.values(), title)
        return made

    def _inputs(self, name: str, wanted: Iterable[tuple[str, Sequence[str]]]) -> dict[str, str]:
        """The keys of the maps that a backbone gets in this cohort and in those before, by role.

        What other cohorts get only by their results is not among them, whether it is there by then or not.
        """
        planned = [(maps, self.cohort.fits) for of, maps in wanted if of == name]
        for before in self.campaign.cohorts[: self.campaign.cohorts.index(self.cohort)]:
            if name in before.every and before.prefix == self.cohort.prefix:
                planned.append((before.maps, before.fits))
        found: dict[str, str] = {}
        for maps, fits in planned:
            for each in maps:
                keys = map_keys([map_recipe(each)], self.keys[name], sorted(fits)).values()
                target = each.removeprefix(self.cohort.prefix)
                roles = {f"{target}-{number}": key for number, key in enumerate(keys, 1)}
                found |= {role: key for role, key in roles.items() if key in self.made_by}
        return found

    def _measuring(self, step: Step, maps: Mapping[str, str], more: str = "") -> list[Job]:
        """The jobs of a record, once its backbone and these maps are made."""
        inputs = {BACKBONE: self.keys[step.backbone], **maps}
        before = list(dict.fromkeys(self.made_by[key] for key in inputs.values()))
        return record_jobs(
            step, inputs, self.campaign.needs, self.campaign.times, after=before, more=f" ({self.cohort.name}){more}"
        )

    def _led(self, measures: Sequence[Job], inputs: Mapping[str, Mapping[str, str]]) -> Iterable[Later]:
        """The backbone that an experiment calls its main one, once it was measured on all."""
        for experiment in self.asked:
            if experiment.lead is None or self.cohort.name not in experiment.cohorts:
                continue
            mine = [job for job in measures if record_of(job) and job.settings["experiment"] == experiment.name]
            if not set(self.cohort.backbones) <= {job.settings["backbone"] for job in mine}:
                continue

            def led(planning: bool, experiment: Experiment = experiment, mine: Sequence[Job] = mine) -> Graph:
                found = {} if planning else {each.facts.name: each for each in _records(mine, self.campaign.store)}
                assert experiment.lead is not None
                name = (
                    self.cohort.backbones[0]
                    if planning
                    else experiment.lead({name: each.predictions for name, each in found.items()})
                )
                steps = steps_on(set(self.keys), set(), [self.cohort], [experiment], Selection((name,)), "paper")
                chosen = [step for step in steps if step.backbone == name]
                jobs = [j for step in chosen for j in self._measuring(step, inputs[name], " as the main one")]
                return Graph(tuple(jobs))

            yield Later(tuple(job.name for job in mine), partial(led, False), partial(led, True))


def records_of(report: Report, store: Store) -> list[Record]:
    """The records that the jobs of a campaign made or found, each once."""
    done = [report.jobs[name] for name, outcome in report.outcomes.items() if outcome.state == "done"]
    return _records(done, store)


def measuring_graph(steps: Sequence[Step], weights: Store, needs: Needs, times: Times) -> Graph:
    """Measurements alone, on models that a store of weights has, with whatever maps they have there."""
    jobs: list[Job] = []
    inputs: dict[tuple[str, str], dict[str, str]] = {}
    for step in steps:
        at = step.backbone, step.cohort.prefix
        if at not in inputs:
            loaded = load_trained(weights, step.backbone, torch.device("cpu"), step.cohort.prefix, step.cohort.task)
            inputs[at] = inputs_of(replace(step.experiment, uses=None), loaded)
        jobs += record_jobs(step, inputs[at], needs, times, weights=Path(weights.root))
    return Graph(tuple(jobs))


def record_jobs(
    step: Step, inputs: Mapping[str, str], needs: Needs, times: Times, *, after: Sequence[str] = (), more: str = "",
    weights: Path | None = None,
) -> list[Job]:  # fmt: skip
    """The jobs of a record: its pieces, if it is measured in pieces, and the record itself; `more` ends their names."""
    minutes, cuts = times.measuring(step.experiment.name, step.backbone, step.settings), cuts_of(step)
    each = None if minutes is None else minutes / max(1, len(cuts))
    title = f"{step}{''.join(f', {key} {value}' for key, value in step.settings.items())[:60]}{more}"
    job = partial(measuring, step, inputs, weights=weights)
    pieces = [
        job(replace(needs, minutes=each), after=after, name=f"{title}: piece {number}", piece=cut)
        for number, cut in enumerate(cuts, 1)
    ]
    waits = [*after, *(piece.name for piece in pieces)]
    return [*pieces, job(replace(needs, minutes=0.1 if cuts else minutes), after=waits, name=title)]


def _records(jobs: Iterable[Job], store: Store) -> list[Record]:
    found = {}
    for job in jobs:
        key = record_of(job)
        if key is not None and key not in found:
            layout = layout_of(EXPERIMENTS[job.settings["experiment"]])
            found[key] = load(store.open(RECORD, key), layout)
    return list(found.values())


def _range(seeds: Sequence[int]) -> str:
    whole = len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ",".join(map(str, seeds))
