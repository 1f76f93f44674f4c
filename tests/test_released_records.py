"""The records that come with a checkout are found by the suite as it is, whatever maps there are besides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopscope.maps import DiagonalLowRank, map_files
from loopscope.store.artefacts import BACKBONE, MAP, name_of
from loopscope.store.manifest import artefact_key
from loopscope.store.store import Artefact, Store
from loopscope.store.zoo import find, open_zoo
from loopscope.studies.experiment import Experiment
from loopscope.studies.graph_walk.experiments import LASTING, selection
from loopscope.studies.parity import exact as parity_exact
from loopscope.studies.parity.experiments import PARITY_EXACT
from loopscope.studies.recipes import map_recipe
from loopscope.studies.records import RECORD, config_of, load, open_results
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.runner import inputs_of, measured, steps
from loopscope.studies.selection import Selection
from loopscope.studies.trained import TrainedModel, load_trained
from tests.toys import CPU


@pytest.fixture(scope="module")
def results() -> Store:
    return next(store for store in open_results() if store.root.name == "graph-walks")


@pytest.fixture(scope="module")
def chosen(results: Store) -> Selection:
    walks = [each for each in results.every(RECORD) if each.manifest.config["experiment"] == "trajectories"]
    return selection(map(load, walks))


def test_every_released_record_is_one_that_the_suite_asks_for(results: Store, chosen: Selection) -> None:
    """Its settings are those of its backbone's role, and it rests on the maps that its experiment uses, no others."""
    there = results.every(RECORD)
    assert len(there) >= 115
    for artefact in there:
        config, inputs = dict(artefact.manifest.config), dict(artefact.manifest.inputs)
        experiment = EXPERIMENTS[config["experiment"]]
        if experiment.name == PARITY_EXACT and config["settings"]:  # a part: the first strings of some lengths
            whole = {length: end for length, _, end in parity_exact.STRINGS}
            assert all(first == 0 and end <= whole[length] for length, first, end in config["settings"]["strings"])
            continue
        profiles = experiment.settings(chosen.role(config["subject"]), "paper")
        if config["subject"] == leading(results, experiment):
            profiles = [*profiles, *experiment.settings("main", "paper")]
        keys = [
            artefact_key(RECORD, config_of(experiment.name, config["subject"], settings), inputs)
            for settings in profiles
        ]
        assert artefact.key in keys
        if experiment.uses is not None:
            targets = {name.rpartition("-")[0] for name in inputs if name != BACKBONE}
            # Maps that are fitted by commands of their own need not all be there.
            assert targets <= set(experiment.uses) if experiment.apart else targets == set(experiment.uses)


def leading(results: Store, experiment: Experiment) -> str | None:
    """The backbone that an experiment chooses by what was measured on all, as those that are not chosen are."""
    if experiment.lead is None:
        return None
    found = [each for each in results.every(RECORD) if each.manifest.config["experiment"] == experiment.name]
    (settings,) = experiment.settings("other", "paper")
    return experiment.lead(
        {
            each.manifest.config["subject"]: load(each).predictions
            for each in found
            if dict(each.manifest.config["settings"]) == settings
        }
    )


def test_the_chosen_backbone_of_parity_is_measured_as_all_and_as_the_main_one(results: Store) -> None:
    chosen, parity = leading(results, EXPERIMENTS["parity"]), []
    for each in results.every(RECORD):
        config = each.manifest.config
        if config["experiment"] == "parity":
            parity.append((config["subject"], config["settings"].get("far", "all")))
    assert sorted(parity, key=str) == sorted([*((f"parity-{s}", None) for s in range(3)), (chosen, "all")], key=str)


def with_lasting_maps(zoo: Store, folder: Path, name: str) -> Store:
    """A store with one backbone of the zoo, its published maps, and invented ones for lasting control."""
    store, backbone = Store(folder), find(zoo, name, BACKBONE)
    store.adopt(backbone)
    for fit in zoo.every(MAP):
        if fit.manifest.inputs[BACKBONE] == backbone.key and _published(fit):
            store.adopt(fit)
    for group in COHORTS["mechanism"].chosen_maps:
        for each in group:
            config: dict[str, Any] = {"recipe": map_recipe(each).to_dict(), "fit": 1}
            with store.write(MAP, config, {BACKBONE: backbone.key}) as draft:
                for file, data in map_files(DiagonalLowRank(256, 48, seed=1)).items():
                    draft.bytes(file, data)
    return store


def test_maps_for_lasting_control_change_no_other_record(results: Store, chosen: Selection, tmp_path: Path) -> None:
    """What was measured before there were any is found again, on the main backbone and on another."""

    def refuse(trained: TrainedModel, **_: Any) -> Any:
        raise AssertionError(trained.name)

    cohort = COHORTS["mechanism"]
    asked = [each for name, each in EXPERIMENTS.items() if name != LASTING and not each.apart]
    for name in chosen.names[:2]:
        weights = with_lasting_maps(open_zoo(), tmp_path / name, name)
        trained = load_trained(weights, name, CPU)
        assert {"rollout-one", "pool-two", "strings-one"} < set(trained.maps)
        todo = steps(weights, [cohort], asked, chosen, "paper")
        mine = [each for each in results.every(RECORD) if each.manifest.config["subject"] == name]
        known = {each.key for each in mine if each.manifest.config["experiment"] in {one.name for one in asked}}
        found = set()
        for step in todo:
            unused = replace(step, experiment=replace(step.experiment, measure=refuse))
            assert measured(unused, trained, weights, results).facts.name == name
            config = config_of(step.experiment.name, name, step.settings)
            found.add(artefact_key(RECORD, config, inputs_of(step.experiment, trained)))
        assert found == known
        (lasting,) = steps(weights, [cohort], [EXPERIMENTS[LASTING]], chosen, "paper")
        used = inputs_of(lasting.experiment, trained)
        assert set(used) == {BACKBONE, *(f"{t}-{n}" for t in ("one", "two") for n in (1, 2)),
                             *(f"{each}-1" for group in cohort.chosen_maps for each in group)}  # fmt: skip


def test_without_such_maps_lasting_control_is_left_out(chosen: Selection, tmp_path: Path) -> None:
    """A store of the main backbone and its published maps; in the quick profile the main one alone is measured."""
    cohort, experiment = COHORTS["mechanism"], EXPERIMENTS[LASTING]
    whole = with_lasting_maps(open_zoo(), tmp_path / "whole", chosen.names[0])
    few = Store(tmp_path / "few")
    for kind in (BACKBONE, MAP):
        for artefact in whole.every(kind):
            if kind == BACKBONE or _published(artefact):
                few.adopt(artefact)
    for profile in ("quick", "paper"):
        assert steps(few, [cohort], [experiment], chosen, profile) == []
        assert [step.backbone for step in steps(whole, [cohort], [experiment], chosen, profile)] == [chosen.names[0]]
    second = Selection((chosen.names[1], chosen.names[0]))
    assert steps(whole, [cohort], [experiment], second, "quick") == []
    assert len(steps(whole, [cohort], [experiment], second, "paper")) == 1


def _published(fit: Artefact) -> bool:
    return name_of(fit).partition("@")[0] in ("one-1", "one-2", "two-1", "two-2")
