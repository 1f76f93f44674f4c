"""The suite: what it names exists, the rule that chooses backbones, and what a model's runs are counted as."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.program import F, J, Program
from loopscope.store.zoo import open_zoo
from loopscope.studies.experiment import PROFILES, Experiment, Profile
from loopscope.studies.graph_walk.experiments import QUICK_GRAPHS, QUICK_LASTING, QUICK_PARTS, TRAJECTORIES, selection
from loopscope.studies.graph_walk.selection import select
from loopscope.studies.graph_walk.trajectories import Trajectory, increments
from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.studies.records import ModelFacts, Record
from loopscope.studies.registry import COHORTS, EXPERIMENTS, chosen
from loopscope.studies.selection import MECHANISM, Role, Selection
from loopscope.studies.trained import TrainedModel, load_trained, walks
from loopscope.tasks.graph_walk import advance, all_starts
from loopscope.tasks.populations import population
from loopscope.training.recipe import WalkFit

ROLES: tuple[Role, ...] = ("main", "mechanism", "other")


# ---- experiments and cohorts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_experiment_can_be_done_as_it_is_set(experiment: Experiment) -> None:
    """`measure` takes a model and each choice of settings; populations it names exist."""
    assert EXPERIMENTS[experiment.name] is experiment
    assert experiment.question.endswith("?")
    assert experiment.cohorts
    assert set(experiment.cohorts) <= set(COHORTS)
    signature = inspect.signature(experiment.measure)
    for role, profile in product(ROLES, PROFILES):
        for settings in experiment.settings(role, profile):
            bound = signature.bind(None, **settings)
            assert next(iter(bound.arguments)) == "trained"
            bound.apply_defaults()
            for name, value in bound.arguments.items():
                if name in ("where", "rings", "discovery", "confirmation"):
                    assert len(population(value).rows) in (32, 512)


def test_every_experiment_uses_maps_that_its_cohorts_fit() -> None:
    for experiment in EXPERIMENTS.values():
        for cohort in (COHORTS[name] for name in experiment.cohorts):
            chosen = [name for group in cohort.chosen_maps for name in group]
            fitted = {name.removeprefix(cohort.prefix) for name in (*cohort.maps, *chosen)}
            assert experiment.uses is None or experiment.apart or set(experiment.uses) <= fitted


def test_maps_of_chosen_backbones_are_those_that_only_lasting_control_uses() -> None:
    cohort = COHORTS["mechanism"]
    groups = [(f"{family}-one", f"{family}-two") for family in ("rollout", "pool", "strings")]
    assert list(cohort.chosen_maps) == groups
    assert not set(cohort.maps) & {name for group in groups for name in group}
    for name, experiment in EXPERIMENTS.items():
        assert cohort.chosen_for(experiment) == (groups if name == "lasting" else [])
    for group in groups:  # those of one group differ in their target alone, so that they are fitted side by side
        first, second = (map_recipe(name) for name in group)
        assert isinstance(first.data, WalkFit)
        assert isinstance(second.data, WalkFit)
        assert (first.data.hops, second.data.hops) == (1, 2)
        same = replace(second, name=first.name, about=first.about, data=replace(second.data, hops=1))
        assert same == first
    assert [each.name for each in COHORTS.values() if each.chosen_maps] == ["mechanism"]


def test_cohorts_are_made_by_recipes_that_exist() -> None:
    for name, cohort in COHORTS.items():
        assert cohort.name == name
        assert not set(cohort.seeds) & set(cohort.more_seeds)
        for recipe in cohort.recipes:
            assert backbone_recipe(recipe).name == recipe
        for each in cohort.maps:
            data, hops = map_recipe(each).data, {"stay": 0, "one": 1, "two": 2}
            assert isinstance(data, WalkFit) == (cohort.task == "graph-walk")
            if isinstance(data, WalkFit) and each.removeprefix(cohort.prefix) in hops:
                assert data.hops == hops[each.removeprefix(cohort.prefix)]
    assert COHORTS["mechanism"].backbones == [f"d8l6-{seed}" for seed in range(3, 14)]
    assert COHORTS["mechanism"].more_seeds == tuple(range(14, 20))
    assert COHORTS["walkers"].backbones == [f"d8l8-{seed}" for seed in range(12)]
    pairs = [f"matched-{regime}-{seed}" for seed in range(5) for regime in ("final", "stepwise")]
    assert COHORTS["matched"].backbones == pairs
    assert COHORTS["matched-long"].backbones == pairs[:2]
    for name in COHORTS["matched-long"].maps:  # the maps of the cohort before it, but for the number of updates
        long, short = map_recipe(name), map_recipe(name.removesuffix("-long"))
        assert (long.stages[0].updates, short.stages[0].updates) == (32_000, 8_000)
        named = replace(long, name=short.name, about=short.about, deviations=short.deviations)
        assert replace(named, stages=short.stages) == short
    assert COHORTS["eight"].backbones == [f"n8-d8l8-{seed}" for seed in range(100, 112)]
    assert (COHORTS["eight"].maps, COHORTS["eight"].fits) == (("continue16",), (1, 2))
    assert COHORTS["parity"].backbones == [f"parity-{seed}" for seed in range(3)]
    assert (COHORTS["relations"].backbones, COHORTS["relations"].fits) == (["relations-0"], (1, 2, 3))


def test_the_paper_profile_leaves_nothing_out() -> None:
    for experiment, role in product(EXPERIMENTS.values(), ROLES):
        whole, quick = (experiment.settings(role, profile) for profile in ("paper", "quick"))
        assert len(whole) >= len(quick)
        for settings in whole:
            assert settings == {} or not experiment.raw or experiment.name == "parity"
            assert "graphs" not in settings
            assert settings.get("layered", 256) == 256
        populations = [{settings.get(name) for name in ("where", "confirmation")} for settings in whole]
        for settings in quick:  # the same populations, if on fewer graphs
            assert {settings.get(name) for name in ("where", "confirmation")} in populations


def test_long_strings_of_parity_are_for_the_backbone_that_leads() -> None:
    (main,), *others = (EXPERIMENTS["parity"].settings(role, "paper") for role in ROLES)
    assert main.keys() == {"products", "check"}
    assert others == [[main | {"far": None}]] * 2


def test_what_the_quick_profile_leaves_out() -> None:
    def asked(name: str, role: Role, profile: Profile = "quick") -> list[dict[str, object]]:
        return EXPERIMENTS[name].settings(role, profile)

    assert asked("eight-calls", "main") == [{"where": "independent-3001", "graphs": QUICK_GRAPHS}]
    assert asked("eight-calls", "main", "paper") == [{"where": "independent-3001"}, {"where": "switching-2501"}]
    assert asked("switching", "main") == [{"where": "switching-2501", "graphs": QUICK_PARTS}]
    assert asked("crossing", "main") == [{"confirmation": "pairs-2404-receiver"}]
    assert asked("lasting", "main") == [QUICK_LASTING]
    assert asked("lasting", "mechanism") == []
    assert [asked("lasting", role, "paper") for role in ROLES] == [[{}], [{}], []]
    for name in ("targets", "two-calls", "crossing", "switching", "eight-calls", "lasting"):
        assert asked(name, "other") == []
    for role in ROLES:
        assert len(asked("trajectories", role)) == len(asked("matched", role)) == 1


def test_experiments_are_chosen_by_name_and_done_in_one_order(refused: Callable[..., str]) -> None:
    assert chosen([]) == list(EXPERIMENTS.values())
    assert [each.name for each in chosen(["matched", "targets", "matched"])] == ["targets", "matched"]
    told = refused(InputError, chosen, ["targets", "swithcing"])
    assert told.startswith("no experiment 'swithcing'; there are trajectories, targets, ")
    assert told.endswith(" (nearest: switching)")


# ---- the rule --------------------------------------------------------------------------------------------------------

BOTH, AGAIN, STILL = [0, 1, 3, 5, 6, 7, 8], [3, 0, 2, 4, 6, 7, 8], [0, 1, 3, 4, 6, 8, 8]
ONES, TWOS = [0, 3, 4, 5, 6, 7, 8], [0, 0, 2, 4, 6, 8, 8]
THREES, FOURS, BACK = [0, 0, 1, 3, 6, 7, 8], [0, 0, 1, 3, 7, 8, 8], [0, 1, 3, 5, 6, 9, 8]


def walk(modes: list[int | None]) -> Trajectory:
    return Trajectory(6, 8, modes, increments(modes, 10), 1.0, 1.0, 5120)


def among(*walks: list[int], complete: bool = True) -> Selection:
    """The choice among backbones a, b, c, ... that walk so."""
    return select({name: walk([*modes]) for name, modes in zip("abcdefgh", walks, strict=False)}, complete)


def test_the_first_three_that_walk_in_ones_and_twos() -> None:
    assert among(ONES, BOTH, TWOS, AGAIN, THREES, STILL, BOTH) == Selection(("b", "d", "f"))
    for wrong in (ONES, TWOS, THREES, FOURS, BACK):
        assert among(wrong, BOTH, BOTH, BOTH, BOTH) == Selection(("b", "c", "d"))


def test_a_tie_is_no_increment() -> None:
    tied: list[int | None] = [0, 1, 3, None, 6, 7, 8]
    assert select({"a": walk(tied)}).names == ("a",)  # the increments that are left are 2, 1, 1
    alone: list[int | None] = [0, 1, None, 3, None, 6, 8]
    assert select({"a": walk(alone)}).names == ()


def test_too_few_are_fewer_until_the_cohort_is_complete() -> None:
    assert among(THREES, BOTH, ONES, BOTH, complete=False) == Selection(("b", "d"))
    assert among(THREES, ONES, complete=False) == Selection(())
    assert among(complete=False) == Selection(())


def test_threes_are_allowed_only_then_and_said() -> None:
    assert among(THREES, BOTH, ONES, BOTH) == Selection(("a", "b", "d"), threes=True)
    assert among(FOURS, BOTH, THREES, THREES, BOTH) == Selection(("b", "c", "d"), threes=True)
    assert among(THREES, BOTH, BOTH, BOTH) == Selection(("b", "c", "d"))  # three without them: no reason to
    assert among(FOURS, BOTH, ONES) == Selection(("b",))  # nothing gained, nothing to be said
    assert among(FOURS, BACK, TWOS) == Selection(())


def test_roles() -> None:
    some = Selection(("d8l6-5", "d8l6-7"))
    assert [some.role(name) for name in ("d8l6-5", "d8l6-7", "d8l6-6")] == ["main", "mechanism", "other"]
    assert Selection(()).role("d8l6-5") == "other"
    assert MECHANISM == 3


PATCHED = "F2 F[layer[2].row[-1].pattern<-(F2 J:one-1 F)]"
RINGS, STARTS = all_starts(population("rings").graphs)


def native(name: str, steps: list[int], experiment: str = TRAJECTORIES) -> Record:
    """The record of a perfect walker that is so many steps from its start after each loop."""
    nodes: Tensor = torch.stack([advance(RINGS, STARTS, taken) for taken in steps]).to(torch.uint8)
    facts = ModelFacts(name, "0" * 64, loops=6, depth=8, nodes=10, heads=4, fits={})
    return Record(experiment, facts, {"rings": {"native": nodes}})


def test_the_rule_on_records_goes_by_the_number_of_the_seed() -> None:
    seeds = {14: BOTH, 10: BOTH, 9: BOTH, 4: ONES, 3: BOTH, 13: BOTH}
    found = [native(f"d8l6-{seed}", steps) for seed, steps in seeds.items()]
    others = [native("d8l8-0", BOTH), native("d8l6-99", BOTH), native("d8l6-5", BOTH, "targets")]
    assert selection([*found, *others]) == Selection(("d8l6-3", "d8l6-9", "d8l6-10"))
    assert selection(others) == Selection(())


def test_threes_wait_for_the_additional_seeds() -> None:
    cohort = COHORTS["mechanism"]
    first = [native(f"d8l6-{seed}", THREES if seed == 3 else ONES) for seed in cohort.seeds]
    assert selection(first) == Selection(())
    more = [native(f"d8l6-{seed}", BOTH if seed == 17 else ONES) for seed in cohort.more_seeds]
    assert selection([*first, *more[:-1]]) == Selection(("d8l6-17",))
    assert selection([*first, *more]) == Selection(("d8l6-3", "d8l6-17"), threes=True)


# ---- what runs cost --------------------------------------------------------------------------------------------------


@pytest.fixture
def trained() -> TrainedModel:
    return load_trained(open_zoo(), "tiny-0", torch.device("cpu"), prefix="tiny-")


def test_the_meter_counts_what_was_run(trained: TrainedModel) -> None:
    tokens = walks("tiny-test", trained).tokens[:30]
    layers = len(trained.model.layers)
    assert (trained.meter.rows, trained.meter.plain_rows) == (0, 0)
    maps = trained.named("one")
    asked = [F**2, F**2 | J("one-1") | F, F**2 | J("one-2") | F, Program.parse(PATCHED)]
    once = trained.run(tokens, asked, maps=maps)
    assert trained.meter.rows == once.work.rows
    assert trained.meter.plain_rows == 30 * tokens.shape[1] * layers * (2 + 3 + 3 + 3)
    assert 0 < trained.meter.rows < trained.meter.plain_rows  # the first two calls are run once
    twice = trained.run(tokens, [F**2])
    assert trained.meter.rows == once.work.rows + twice.work.rows
    assert trained.meter.plain_rows == 30 * tokens.shape[1] * layers * (2 + 3 + 3 + 3 + 2)


def test_shared_beginnings_are_counted_once(trained: TrainedModel) -> None:
    tokens = walks("tiny-test", trained).tokens[:12]
    trained.run(tokens, [F**5], read="all")
    alone = trained.meter.rows
    trained.run(tokens, [F**5, F**4, F**3], read="all")
    assert trained.meter.rows - alone == alone
    assert trained.meter.plain_rows == 12 * tokens.shape[1] * len(trained.model.layers) * (5 + 5 + 4 + 3)
    assert trained.meter.rows <= trained.meter.plain_rows


def test_a_forward_equivalent_is_the_trained_calls_on_one_instance(trained: TrainedModel) -> None:
    one = walks("tiny-test", trained).tokens[:1]
    trained.run(one, [F**trained.loops], read="all")
    assert trained.forwards(trained.meter.plain_rows) == 1.0
    assert trained.forwards(0) == 0.0
