"""A campaign as jobs is the campaign of `from_nothing`: the same artefacts, to the last byte, in whatever order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.jobs.driver import run
from loopscope.jobs.job import Needs
from loopscope.store.artefacts import MAP, name_of
from loopscope.store.store import Store
from loopscope.studies import campaign, runner
from loopscope.studies.campaign import Campaign, records_of
from loopscope.studies.experiment import Cohort, Experiment
from loopscope.studies.graph_walk.experiments import TARGETS, TRAJECTORIES
from loopscope.studies.graph_walk.targets import measure as steer
from loopscope.studies.records import Predictions
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.runner import from_nothing
from loopscope.studies.selection import Role
from loopscope.studies.trained import TrainedModel
from loopscope.tasks.graph_walk import advance, all_starts
from loopscope.tasks.populations import population
from loopscope.training.cohort.jobs import Settings
from loopscope.training.recipe import BackboneRecipe, MapRecipe
from tests.campaign_toys import contents
from tests.jobs_here import Here
from tests.toys import CPU, toy_map, toy_walk

WALKS: Mapping[int, list[int]] = {0: [0, 1, 2, 3], 1: [0, 1, 2, 4], 2: [0, 1, 2, 4], 3: [0, 1, 3, 4]}
"""Steps from the start after loops 0 to 3, by seed: the first does not qualify."""


def walked(trained: TrainedModel, **_: Any) -> Predictions:
    graphs, starts = all_starts(population("rings").graphs)
    nodes = [advance(graphs, starts, taken) for taken in WALKS[int(trained.name[-1])]]
    return {"rings": {"native": torch.stack(nodes).to(torch.uint8)}}


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Cohort], list[Experiment]]:
    """The cohort of the rule with two seeds and two more, and two others that share a backbone."""
    walk = replace(toy_walk(), model=replace(toy_walk().model, loops=3))

    def backbone_recipe(name: str) -> BackboneRecipe:
        assert name == "toy"
        return walk

    def map_recipe(name: str) -> MapRecipe:
        made = toy_map(name.rpartition("-")[2])
        return replace(made, name=name)

    def settings(role: Role, profile: str) -> list[dict[str, Any]]:
        return [] if role == "other" else [{"where": "tiny-test", "targets": ("one",)}]

    for module in (campaign, runner):
        monkeypatch.setattr(module, "backbone_recipe", backbone_recipe)
        monkeypatch.setattr(module, "map_recipe", map_recipe)
    rule = Cohort(
        "mechanism", "", ("toy",), (0, 1), ("toy-one",), (1, 2), "toy-", more_seeds=(2, 3),
        chosen_maps=(("toy-more-two",),),
    )  # fmt: skip
    early = Cohort("early", "", ("toy",), (7,), ("toy-one",), (1,), "toy-")
    late = Cohort("late", "", ("toy",), (7,), ("toy-late-one",), (1,), "toy-")
    monkeypatch.setitem(COHORTS, "mechanism", rule)
    native = Experiment(TRAJECTORIES, "?", ("mechanism",), walked, lambda role, profile: [{}])
    monkeypatch.setitem(EXPERIMENTS, TRAJECTORIES, native)

    def measure(trained: TrainedModel, where: str, targets: Any) -> Predictions:
        return steer(trained, where=where, targets=tuple(targets))

    steered_one = Experiment(TARGETS, "?", ("mechanism",), measure, settings, ("one", "more-two"))
    counted = Experiment(
        "matched", "?", ("early", "late"), lambda trained: {"tiny-test": {"maps": torch.tensor([len(trained.keys)])}},
        lambda role, profile: [{}], None, raw=True,
    )  # fmt: skip
    monkeypatch.setitem(EXPERIMENTS, TARGETS, steered_one)
    monkeypatch.setitem(EXPERIMENTS, "matched", counted)
    return [rule, early, late], [native, steered_one, counted]


def test_jobs_make_what_one_process_makes(toys: tuple[list[Cohort], list[Experiment]], tmp_path: Path) -> None:
    """The rule asks for more seeds; maps of the other cohort are not among those of the first."""
    cohorts, experiments = toys
    serial, spread = Store(tmp_path / "serial"), Store(tmp_path / "spread")
    made = [r for cohort in cohorts for r in from_nothing(cohort, experiments, serial, Settings(CPU))]
    engine = Here({"train toy 0-1": 1})
    report = run(Campaign(cohorts, experiments, spread, Needs()).graph(), spread, engine)
    assert report.failures == []
    assert contents(spread) == contents(serial)
    assert {name_of(each) for each in spread.every(MAP)} >= {"toy-late-one-1@toy-7", "toy-more-two-1@toy-3"}
    found = records_of(report, spread)
    assert {each.key for each in found} == {each.key for each in made}
    trained = sorted(job for job in engine.tried if job.startswith("train"))
    assert trained == ["train toy 0-1", "train toy 0-1", "train toy 2-3", "train toy 7"]
    again = Here()
    assert run(Campaign(cohorts, experiments, spread, Needs()).graph(), spread, again).failures == []
    assert again.tried == []
