"""Campaigns: what is there is not done again, what fails leaves nothing and is gone on with, the rule before the maps.

They are done on the tiny backbone of the zoo, and from nothing with toy recipes whose native walks are planted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.errors import DamagedError, InputError
from loopscope.store.artefacts import BACKBONE, MAP, RESULT, name_of
from loopscope.store.store import Store
from loopscope.store.zoo import open_zoo
from loopscope.studies import runner as campaign
from loopscope.studies.experiment import Cohort, Experiment, Pieces
from loopscope.studies.graph_walk import experiments as graph_walk
from loopscope.studies.graph_walk import targets, trajectories
from loopscope.studies.graph_walk.experiments import TRAJECTORIES
from loopscope.studies.records import PIECE, RECORD, Predictions, Record, load, records
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.runner import Step, carry_out, export, from_nothing, steps
from loopscope.studies.selection import Role, Selection
from loopscope.studies.trained import TrainedModel
from loopscope.studies.training_logs import histories
from loopscope.tasks.graph_walk import advance, all_starts
from loopscope.tasks.populations import population
from loopscope.training.cohort.jobs import Progress, Settings
from loopscope.training.recipe import BackboneRecipe, LastingFit, MapRecipe, WalkFit
from tests.toys import CPU, toy_map, toy_walk

TINY = Cohort("tiny", "six nodes", ("tiny",), (0,), ("tiny-stay", "tiny-one"), prefix="tiny-")
NATIVE: dict[str, Any] = {"rings": "tiny-test", "loops": 4, "layered": 2}
STEERED: dict[str, Any] = {"where": "tiny-test", "targets": ("stay", "one")}


class BrokenError(Exception):
    """Something that is none of the library's errors."""


@dataclass
class Measuring:
    """A measurement that notes on which backbones it was done, and breaks down where it is told to."""

    what: Any
    done: list[str] = field(default_factory=list)
    breaks_on: str = ""

    def __call__(self, trained: TrainedModel, **settings: Any) -> Predictions:
        if trained.name == self.breaks_on:
            raise BrokenError
        self.done.append(trained.name)
        return self.what(trained, **settings)


def experiment(name: str, measure: Any, *settings: dict[str, Any], uses: tuple[str, ...] | None = ()) -> Experiment:
    """One for the tiny cohort, done alike on every backbone."""
    return Experiment(name, "And?", ("tiny",), measure, lambda role, profile: list(settings), uses)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "records")


def same(a: Predictions, b: Predictions) -> bool:
    return {where: set(found) for where, found in a.items()} == {where: set(found) for where, found in b.items()} and (
        all(torch.equal(a[where][name], b[where][name]) for where in a for name in a[where])
    )


def todo(*experiments: Experiment) -> list[Step]:
    return steps(open_zoo(), [TINY], experiments, Selection(()), "quick")


def kept(store: Store) -> set[str]:
    """The experiments with a record."""
    return {artefact.manifest.config["experiment"] for artefact in store.every(RECORD)}


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_the_steps_of_a_store_the_main_backbone_first(store: Store) -> None:
    """Two recipes, a seed missing, seeds beyond nine: by role, then by number of the seed; experiments in order."""
    for name, seed in [("a", 2), ("a", 10), ("b", 2), ("a", 9), ("b", 30), ("c", 2), ("a", 5)]:
        with store.write(BACKBONE, {"recipe": {"name": name}, "seed": seed}):
            pass
    cohort = Cohort("toys", "", ("a", "b"), (2, 3, 9, 10), more_seeds=(30,))

    def by_role(role: Role, profile: str) -> list[dict[str, Any]]:
        return [{"role": role}, {"profile": profile}] if role == "main" else [{"role": role}]

    first = Experiment("first", "?", ("toys", "others"), Measuring(None), by_role)
    second = Experiment(
        "second", "?", ("toys",), Measuring(None), lambda role, profile: [] if role == "other" else [{}]
    )
    elsewhere = Experiment("elsewhere", "?", ("others",), Measuring(None), by_role)
    found = steps(store, [cohort], [first, second, elsewhere], Selection(("a-9", "b-2")), "paper")
    assert [(str(step), step.settings) for step in found] == [
        ("first on a-9", {"role": "main"}), ("first on a-9", {"profile": "paper"}), ("second on a-9", {}),
        ("first on b-2", {"role": "mechanism"}), ("second on b-2", {}),
        ("first on a-2", {"role": "other"}), ("first on a-10", {"role": "other"}), ("first on b-30", {"role": "other"}),
    ]  # fmt: skip
    assert {step.cohort for step in found} == {cohort}


def test_a_backbone_of_two_cohorts_is_measured_once_and_some_experiments_on_few_backbones(store: Store) -> None:
    for seed in range(4):
        with store.write(BACKBONE, {"recipe": {"name": "a"}, "seed": seed}):
            pass
    both = Cohort("toys", "", ("a",), (0, 1, 2, 3)), Cohort("again", "", ("a",), (1,))

    def asked(role: Role, profile: str) -> list[dict[str, Any]]:
        return [{"k": 1}, {"k": 2}]

    every = Experiment("every", "?", ("toys", "again"), Measuring(None), asked)
    found = steps(store, both, [every], Selection(("a-2",)), "paper")
    assert [(step.backbone, step.settings["k"], step.cohort.name) for step in found] == [
        (f"a-{seed}", k, "toys") for seed in (2, 0, 1, 3) for k in (1, 2)
    ]
    # Two of four: the chosen one and the first other, which need not be the first that is trained.
    some = Experiment("some", "?", ("toys",), Measuring(None), asked, backbones=2)
    found = steps(store, both, [some], Selection(("a-2",)), "paper")
    assert list(dict.fromkeys(step.backbone for step in found)) == ["a-2", "a-0"]
    missing = Cohort("toys", "", ("a",), (7, 0, 2))
    assert {step.backbone for step in steps(store, [missing], [some], Selection(("a-2",)), "paper")} == {"a-2"}


def test_an_experiment_is_left_out_where_maps_of_chosen_backbones_are_missing(store: Store) -> None:
    """One of the maps that it uses is enough; those that every backbone gets are not asked for."""
    keys = {}
    for seed in (1, 2):
        with store.write(BACKBONE, {"recipe": {"name": "a"}, "seed": seed}) as draft:
            pass
        keys[seed] = draft.artefact.key
    cohort = Cohort("toys", "", ("a",), (1, 2), ("p-one",), prefix="p-", chosen_maps=(("p-x", "p-y"), ("p-z",)))

    def asked(*uses: str) -> list[str]:
        made = Experiment("e", "?", ("toys",), Measuring(None), lambda role, profile: [{}], uses)
        return [step.backbone for step in steps(store, [cohort], [made], Selection(("a-1",)), "quick")]

    assert (asked(), asked("one"), asked("one", "y")) == (["a-1", "a-2"], ["a-1", "a-2"], [])
    for name, seed in (("p-x", 2), ("p-z", 1)):
        with store.write(MAP, {"recipe": {"name": name, "data": {"task": "t"}}, "fit": 1}, {"backbone": keys[seed]}):
            pass
    assert (asked("one", "x", "y"), asked("z"), asked("y")) == (["a-2"], ["a-1"], [])


# ---- records of released weights -------------------------------------------------------------------------------------


def test_what_was_measured_is_written_and_then_read(store: Store) -> None:
    walked, steered = Measuring(trajectories.measure), Measuring(targets.measure)
    asked = todo(experiment("native", walked, NATIVE), experiment("steered", steered, STEERED, uses=("stay", "one")))
    told: list[str] = []
    made = list(carry_out(asked, open_zoo(), store, CPU, told.append))
    assert told == ["1/2 native on tiny-0", "2/2 steered on tiny-0"]
    assert [record.experiment for record in made] == ["native", "steered"]
    assert made[0].predictions["tiny-test"]["native"].shape == (5, 432)
    assert made[0].predictions["tiny-test"]["layers"].shape == (4, 4, 12)
    for record in made:
        assert set(record.cost) == {"seconds", "device", "forwards", "plain"}
        assert 0 < record.cost["forwards"] <= record.cost["plain"]
        assert record.cost["seconds"] > 0
        assert record.cost["device"] == "CPU, 1 threads"
    # Four calls in place of the two trained ones, nothing shared: the cost of each record is its own.
    assert made[0].cost["plain"] == 2 * 432
    # Two fits of two maps after two calls, read before the third and after it, and the third call alone.
    assert made[1].cost["plain"] == 432 * (4 * 2 + 5 * 3) / 2

    again = list(carry_out(asked, open_zoo(), store, CPU))
    assert (walked.done, steered.done) == (["tiny-0"], ["tiny-0"])  # nothing is measured a second time
    for first, second in zip(made, again, strict=True):
        assert same(first.predictions, second.predictions)
        assert (first.experiment, first.facts, first.cost) == (second.experiment, second.facts, second.cost)
    assert len(records(store)) == 2


def test_a_record_rests_on_the_maps_that_it_used(store: Store) -> None:
    def measure(trained: TrainedModel, **_: Any) -> Predictions:
        return {"tiny-test": {"none": torch.zeros(432, dtype=torch.uint8)}}

    for name, uses in {"none": (), "one": ("one",), "all": None}.items():
        list(carry_out(todo(experiment(name, measure, {}, uses=uses)), open_zoo(), store, CPU))
    inputs = {each.manifest.config["experiment"]: set(each.manifest.inputs) for each in store.every(RECORD)}
    assert inputs == {
        "none": {"backbone"},
        "one": {"backbone", "one-1", "one-2"},
        "all": {"backbone", "one-1", "one-2", "stay-1", "stay-2"},
    }
    keys = {artefact.key for kind in (BACKBONE, MAP) for artefact in open_zoo().every(kind)}
    assert all(key in keys for each in store.every(RECORD) for key in each.manifest.inputs.values())


def test_a_long_record_is_measured_in_pieces_and_loses_one_at_most(store: Store) -> None:
    def cut(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"part": part} for part in range(settings["parts"])]

    def join(found: Sequence[Predictions]) -> Predictions:
        return {"tiny-test": {"all": torch.cat([each["tiny-test"]["part"] for each in found])}}

    done: list[Any] = []
    breaks_on = 2

    def measure(trained: TrainedModel, **settings: Any) -> Predictions:
        if settings.get("part") == breaks_on:
            raise BrokenError
        done.append(settings)
        return {"tiny-test": {"part": torch.tensor([settings.get("part", -1)])}}

    long = replace(experiment("long", measure, {"parts": 3}), pieces=Pieces(cut, join), raw=True)
    told: list[str] = []
    with pytest.raises(BrokenError):
        list(carry_out(todo(long), open_zoo(), store, CPU, told.append))
    assert told == ["1/1 long on tiny-0", *(f"long on tiny-0: piece {number} of 3" for number in (1, 2, 3))]
    assert (len(store.every(PIECE)), records(store)) == (2, [])

    breaks_on = -1
    (made,) = carry_out(todo(long), open_zoo(), store, CPU)
    assert done == [{"part": 0}, {"part": 1}, {"part": 2}]  # none of them twice
    assert made.predictions["tiny-test"]["all"].tolist() == [0, 1, 2]
    assert made.cost["seconds"] > 0
    (again,) = carry_out(todo(long), open_zoo(), store, CPU)
    assert (len(done), again.predictions["tiny-test"]["all"].tolist()) == (3, [0, 1, 2])
    assert (len(records(store)), export(store, Store(store.root / "other"))) == (1, 1)  # pieces are no records

    short = replace(experiment("short", measure, {"parts": 1}), pieces=Pieces(cut, join), raw=True)
    list(carry_out(todo(short), open_zoo(), store, CPU))
    assert (done[-1], len(store.every(PIECE))) == ({"parts": 1}, 3)  # nothing is cut into one


def test_other_settings_are_another_record(store: Store) -> None:
    walked = Measuring(trajectories.measure)
    for loops in (2, 3, 2):
        list(carry_out(todo(experiment("native", walked, NATIVE | {"loops": loops})), open_zoo(), store, CPU))
    assert len(walked.done) == 2
    assert sorted(record.settings["loops"] for record in records(store)) == [2, 3]


def test_what_breaks_leaves_nothing_and_is_gone_on_with(store: Store) -> None:
    walked, steered = Measuring(trajectories.measure), Measuring(targets.measure, breaks_on="tiny-0")
    asked = todo(experiment("native", walked, NATIVE), experiment("steered", steered, STEERED, uses=None))
    with pytest.raises(BrokenError):
        list(carry_out(asked, open_zoo(), store, CPU))
    assert kept(store) == {"native"}
    assert store.gc().removed == ()
    steered.breaks_on = ""
    assert [record.experiment for record in carry_out(asked, open_zoo(), store, CPU)] == ["native", "steered"]
    assert (walked.done, steered.done) == (["tiny-0"], ["tiny-0"])
    assert kept(store) == {"native", "steered"}


def test_a_damaged_record_is_told_and_not_used(store: Store) -> None:
    asked = todo(experiment("native", Measuring(trajectories.measure), NATIVE))
    list(carry_out(asked, open_zoo(), store, CPU))
    path = store.every(RECORD)[0].folder / "tiny-test.safetensors.xz"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"tiny-test\.safetensors\.xz: expected SHA-256"):
        list(carry_out(asked, open_zoo(), store, CPU))


def test_a_target_without_maps_is_refused(store: Store) -> None:
    asked = todo(experiment("steered", targets.measure, STEERED | {"targets": ("two",)}))
    with pytest.raises(InputError, match="tiny-0 has no maps 'two'; there are"):
        list(carry_out(asked, open_zoo(), store, CPU))
    assert store.list() == ()


def test_records_are_exported_as_they_are(store: Store, tmp_path: Path) -> None:
    results = Store(tmp_path / "results")
    with pytest.raises(InputError, match="has no records to export"):
        export(store, results)
    asked = todo(experiment("native", trajectories.measure, NATIVE, NATIVE | {"layered": 0}))
    list(carry_out(asked, open_zoo(), store, CPU))
    with store.write(BACKBONE, {"recipe": {"name": "elsewhere"}, "seed": 0}):
        pass
    noted = {"history": [{"loss": 0.5, "update": 100}]}
    with store.write(BACKBONE, {"recipe": {"name": "toy"}, "seed": 3}) as backbone:
        backbone.json(RESULT, noted)
    with store.write(MAP, {"recipe": {"name": "one"}, "fit": 2}, {BACKBONE: backbone.artefact.key}) as fit:
        fit.json(RESULT, noted)
    for _ in range(2):  # a second time changes nothing
        assert export(store, results) == 2
        assert [each.manifest for each in results.every(RECORD)] == [each.manifest for each in store.every(RECORD)]
        assert results.every(BACKBONE) == ()
        assert [(each.name, each.kind, each.key, each.result) for each in histories(results)] == [
            ("toy-3", BACKBONE, backbone.artefact.key, noted), ("one-2@toy-3", MAP, fit.artefact.key, noted),
        ]  # fmt: skip
        assert histories(results)[0].manifest["config"] == {"recipe": {"name": "toy"}, "seed": 3}
    for here, there in zip(store.every(RECORD), results.every(RECORD), strict=True):
        assert same(load(here).predictions, load(there).predictions)


# ---- from nothing ----------------------------------------------------------------------------------------------------

RINGS, STARTS = all_starts(population("rings").graphs)
ONES, BOTH = [0, 1, 2, 3], [0, 1, 2, 4]
"""Steps from the start after loops 0 to 3: increments to loops 2 and 3 of 1 and 1, or of 1 and 2."""


def walks(by_seed: Mapping[int, list[int]]) -> Measuring:
    """Native trajectories in which each seed walks as planted."""

    def measure(trained: TrainedModel, **_: Any) -> Predictions:
        nodes: list[Tensor] = [advance(RINGS, STARTS, taken) for taken in by_seed[int(trained.name[-1])]]
        return {"rings": {"native": torch.stack(nodes).to(torch.uint8)}}

    return Measuring(measure)


MORE = ("toy-more-one", "toy-more-two")
"""Maps of chosen backbones that take turns, so that they can only be fitted together."""


@dataclass
class Toys:
    """A cohort of toys under the name of the mechanism cohort, its experiments, and what was done in which order."""

    cohort: Cohort
    native: Measuring
    steered: Measuring
    store: Store
    progress: list[str] = field(default_factory=list)

    def watch(self, progress: Progress) -> None:
        self.progress.append(progress.job)

    def campaign(self, experiments: Iterable[str] = ("steered",)) -> list[Record]:
        mine = {"steered": self.experiment, "again": self.again, TRAJECTORIES: EXPERIMENTS[TRAJECTORIES]}
        self.progress.clear()
        return from_nothing(
            self.cohort, [mine[name] for name in experiments], self.store, Settings(CPU, watch=self.watch)
        )

    @property
    def experiment(self) -> Experiment:
        """On mechanism backbones only; settings name the role."""

        return Experiment("steered", "?", ("mechanism",), self.steered, self.settings, ("one",))

    @property
    def again(self) -> Experiment:
        """The same with maps that only chosen backbones get."""
        return replace(self.experiment, name="again", uses=("one", "more-two"))

    @staticmethod
    def settings(role: Role, profile: str) -> list[dict[str, Any]]:
        assert profile == "paper"
        return [] if role == "other" else [{"where": "tiny-test", "targets": ("one",)}]

    def names(self, kind: str) -> list[str]:
        return sorted(name_of(artefact) for artefact in self.store.every(kind))


@pytest.fixture
def toys(store: Store, monkeypatch: pytest.MonkeyPatch) -> Toys:
    """Seeds 0 and 1, more with 2 and 3; of these 1, 2 and 3 walk in ones and twos."""
    whole = toy_walk()
    whole = replace(whole, model=replace(whole.model, loops=3))

    def backbone_recipe(name: str) -> BackboneRecipe:
        assert name == "toy"
        return whole

    def map_recipe(name: str) -> MapRecipe:
        made = toy_map(name.rpartition("-")[2])
        if "-more-" not in name:
            return made
        assert isinstance(made.data, WalkFit)
        data = LastingFit(**{**asdict(made.data), "calls": 2, "scored": 2, "letters": (1, 2)})
        return replace(made, name=name, data=data)

    cohort = Cohort(
        "mechanism", "toys", ("toy",), (0, 1), ("toy-one", "toy-two"), (1,), "toy-", more_seeds=(2, 3),
        chosen_maps=(MORE, ("toy-unused-one",)),
    )  # fmt: skip
    native = walks({0: ONES, 1: BOTH, 2: BOTH, 3: BOTH})
    monkeypatch.setattr(campaign, "backbone_recipe", backbone_recipe)
    monkeypatch.setattr(campaign, "map_recipe", map_recipe)
    monkeypatch.setitem(COHORTS, "mechanism", cohort)
    made = Experiment(TRAJECTORIES, "?", ("mechanism",), native, graph_walk._trajectories)
    monkeypatch.setitem(EXPERIMENTS, TRAJECTORIES, made)
    return Toys(cohort, native, Measuring(targets.measure), store)


def test_train_choose_fit_measure(toys: Toys) -> None:
    """One of two seeds qualifies, so that more are trained before the first map is fitted."""
    made = toys.campaign()
    assert toys.names(BACKBONE) == ["toy-0", "toy-1", "toy-2", "toy-3"]
    assert toys.names(MAP) == sorted(f"toy-{target}-1@toy-{seed}" for target in ("one", "two") for seed in range(4))
    assert toys.native.done == ["toy-0", "toy-1", "toy-2", "toy-3"]
    assert toys.steered.done == ["toy-1", "toy-2", "toy-3"]  # the main backbone is toy-1
    assert [(record.experiment, record.facts.name) for record in made] == [
        *((TRAJECTORIES, f"toy-{seed}") for seed in range(4)), *(("steered", f"toy-{seed}") for seed in (1, 2, 3)),
    ]  # fmt: skip
    assert made[-1].facts.fits == {"one": 1, "two": 1}
    jobs = list(dict.fromkeys(toys.progress))
    assert jobs == ["toy", *(f"toy-one+toy-two@toy-{seed}" for seed in range(4))]
    assert "toy" not in toys.progress[toys.progress.index(jobs[1]) :]

    again = toys.campaign((TRAJECTORIES, "steered"))  # everything is there, and in the order of roles
    assert toys.progress == []
    assert (len(toys.native.done), len(toys.steered.done)) == (4, 3)
    assert [(record.experiment, record.facts.name) for record in again] == [
        (TRAJECTORIES, "toy-1"), ("steered", "toy-1"), (TRAJECTORIES, "toy-2"), ("steered", "toy-2"),
        (TRAJECTORIES, "toy-3"), ("steered", "toy-3"), (TRAJECTORIES, "toy-0"),
    ]  # fmt: skip


def test_chosen_backbones_alone_get_more_maps_and_only_for_experiments_that_use_them(toys: Toys) -> None:
    toys.campaign()
    few = toys.names(MAP)
    before = {each.key for each in toys.store.every(RECORD)}
    assert not [name for name in few if "more" in name]

    made = toys.campaign(("steered", "again"))
    more = sorted(f"{name}-1@toy-{seed}" for name in MORE for seed in (1, 2, 3))
    assert toys.names(MAP) == sorted([*few, *more])
    assert list(dict.fromkeys(toys.progress)) == [f"{'+'.join(MORE)}@toy-{seed}" for seed in (1, 2, 3)]
    assert [(each.experiment, each.facts.name) for each in made if each.experiment == "again"] == [
        ("again", f"toy-{seed}") for seed in (1, 2, 3)
    ]
    # What was measured before is found again, though there are more maps now.
    assert before < {each.key for each in toys.store.every(RECORD)}
    assert toys.native.done == ["toy-0", "toy-1", "toy-2", "toy-3"]
    assert toys.steered.done == ["toy-1", "toy-2", "toy-3"] * 2
    inputs = [each.manifest for each in toys.store.every(RECORD) if each.manifest.config["experiment"] == "again"]
    assert {tuple(sorted(each.inputs)) for each in inputs} == {("backbone", "more-two-1", "one-1")}


def test_killed_between_the_maps_of_chosen_backbones(toys: Toys) -> None:
    def stop(progress: Progress) -> None:
        if progress.job == f"{'+'.join(MORE)}@toy-2":
            raise BrokenError

    with pytest.raises(BrokenError):
        from_nothing(toys.cohort, [toys.again], toys.store, Settings(CPU, watch=stop))
    assert [name for name in toys.names(MAP) if "more" in name] == sorted(f"{name}-1@toy-1" for name in MORE)
    there = {each.key: each.manifest.created for each in toys.store.every(MAP)}
    toys.campaign(("again",))
    after = {each.key: each.manifest.created for each in toys.store.every(MAP)}
    assert there.items() < after.items()
    assert list(dict.fromkeys(toys.progress)) == [f"{'+'.join(MORE)}@toy-{seed}" for seed in (2, 3)]
    assert toys.steered.done == ["toy-1", "toy-2", "toy-3"]


def test_more_seeds_are_not_trained_without_need(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    enough = replace(toys.cohort, seeds=(1, 2, 3), more_seeds=(0,), maps=("toy-one",))
    monkeypatch.setitem(COHORTS, "mechanism", enough)
    toys.cohort = enough
    toys.campaign()
    assert toys.names(BACKBONE) == ["toy-1", "toy-2", "toy-3"]
    assert toys.names(MAP) == [f"toy-one-1@toy-{seed}" for seed in (1, 2, 3)]
    assert toys.steered.done == ["toy-1", "toy-2", "toy-3"]


def test_a_cohort_that_stays_too_small_is_measured_as_it_is(toys: Toys) -> None:
    toys.native.what = walks({0: ONES, 1: BOTH, 2: ONES, 3: ONES}).what
    toys.campaign()
    assert toys.steered.done == ["toy-1"]
    assert toys.names(BACKBONE) == ["toy-0", "toy-1", "toy-2", "toy-3"]


def test_an_interrupted_campaign_goes_on_where_it_stopped(toys: Toys) -> None:
    toys.native.breaks_on = "toy-1"
    with pytest.raises(BrokenError):
        toys.campaign()
    assert (toys.names(BACKBONE), toys.names(MAP)) == (["toy-0", "toy-1"], [])  # before the rule there are no maps
    assert [record.facts.name for record in records(toys.store)] == ["toy-0"]

    toys.native.breaks_on, toys.steered.breaks_on = "", "toy-2"
    with pytest.raises(BrokenError):
        toys.campaign()
    trained = {
        artefact.key: artefact.manifest.created for kind in (BACKBONE, MAP) for artefact in toys.store.every(kind)
    }
    assert len(trained) == 4 + 8
    assert kept(toys.store) == {TRAJECTORIES, "steered"}

    toys.steered.breaks_on = ""
    made = toys.campaign()
    assert len(made) == 4 + 3
    assert toys.progress == []
    assert toys.native.done == ["toy-0", "toy-1", "toy-2", "toy-3"]
    assert toys.steered.done == ["toy-1", "toy-2", "toy-3"]
    after = {artefact.key: artefact.manifest.created for kind in (BACKBONE, MAP) for artefact in toys.store.every(kind)}
    assert after == trained


def test_a_backbone_that_leads_is_measured_further(toys: Toys) -> None:
    """Chosen by what was measured on all of the cohort, and not before all are there."""
    other = replace(toys.cohort, name="others", more_seeds=(), maps=())
    measured, asked = Measuring(trajectories.measure), []

    def lead(found: Mapping[str, Predictions]) -> str:
        asked.append(sorted(found))
        return "toy-1"

    def settings(role: Role, profile: str) -> list[dict[str, Any]]:
        return [NATIVE | {"loops": 4 if role == "main" else 3}]

    whole = Experiment("whole", "?", ("others",), measured, settings, lead=lead)
    made = from_nothing(other, [whole], toys.store, Settings(CPU))
    assert asked == [["toy-0", "toy-1"]]
    assert [(record.facts.name, record.settings["loops"]) for record in made] == [
        ("toy-0", 3), ("toy-1", 3), ("toy-1", 4)
    ]  # fmt: skip
    from_nothing(other, [replace(whole, cohorts=("elsewhere",))], toys.store, Settings(CPU))
    assert len(asked) == 1


def test_a_cohort_without_the_rule_is_measured_whole(toys: Toys) -> None:
    """In another cohort nobody is chosen, and nobody's native walk is asked for."""
    other = replace(toys.cohort, name="others", more_seeds=(), maps=("toy-one",))
    measured = Measuring(targets.measure)
    whole = Experiment("whole", "?", ("others",), measured, lambda role, profile: [STEERED | {"targets": ("one",)}])
    made = from_nothing(other, [whole], toys.store, Settings(CPU))
    assert [(record.experiment, record.facts.name) for record in made] == [("whole", "toy-0"), ("whole", "toy-1")]
    assert measured.done == ["toy-0", "toy-1"]
    assert toys.native.done == []
