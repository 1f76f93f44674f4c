"""The suite: which experiments there are, which cohorts of backbones they are done on, and with what settings.

Values only.  `campaign` carries them out, `claims` judges what came out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loopscope.errors import InputError, nearest
from loopscope.experiments import composition, crossing, learning, matched, switching, targets, trajectories
from loopscope.experiments.records import Facts, Predictions, Record, Table
from loopscope.store import Store

Role = Literal["main", "mechanism", "other"]
Profile = Literal["quick", "paper"]
PROFILES: tuple[Profile, ...] = ("quick", "paper")

TRAJECTORIES, TARGETS, TWO_CALLS, EIGHT_CALLS, CROSSING, SWITCHING, MATCHED = (
    "trajectories", "targets", "two-calls", "eight-calls", "crossing", "switching", "matched"
)  # fmt: skip


@dataclass(frozen=True)
class Cohort:
    """Backbones that are trained and judged together: every recipe with every seed, every map with every fit."""

    name: str
    about: str
    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    maps: tuple[str, ...] = ()
    fits: tuple[int, ...] = (1, 2)
    prefix: str = ""
    more_seeds: tuple[int, ...] = ()
    """Trained, too, where the rule finds fewer than `MECHANISM` backbones among `seeds`."""

    @property
    def backbones(self) -> list[str]:
        """The names of its backbones, without `more_seeds`."""
        return [f"{recipe}-{seed}" for seed in self.seeds for recipe in self.recipes]


MECHANISM = 3
"""Backbones on which the mechanism is tested: the first that qualify, in the order of seeds."""

COHORTS: Mapping[str, Cohort] = {
    cohort.name: cohort
    for cohort in (
        Cohort(
            "mechanism",
            "requests of 1-8 steps, six loops; the first three that walk in ones and twos are taken apart",
            ("d8l6",),
            tuple(range(3, 14)),
            ("one", "two"),
            more_seeds=tuple(range(14, 20)),
        ),
        Cohort(
            "matched",
            "five pairs that differ in their loss alone: after loop 8, or after every loop",
            ("matched-final", "matched-stepwise"),
            tuple(range(5)),
            ("matched-stay", "matched-one", "matched-two"),
            prefix="matched-",
        ),
        Cohort("walkers", "requests of 1-8 steps, eight loops: how do they walk?", ("d8l8",), tuple(range(12))),
    )
}


@dataclass(frozen=True)
class Experiment:
    """One kind of record.

    `settings` gives, for a backbone's role and a profile, the arguments of `measure` besides the subject: one mapping
    for each record, none where the experiment is not done on such a backbone.
    """

    name: str
    question: str
    cohorts: tuple[str, ...]
    measure: Callable[..., Predictions]
    settings: Callable[[Role, Profile], list[dict[str, Any]]]
    uses: tuple[str, ...] | None = ()
    """The targets whose maps it uses; None: all that there are."""
    tables: Callable[[Predictions, Facts, bool], list[Table]] | None = None
    """What follows from one record; the last argument asks for the published numbers.  None: it takes several."""
    notes: Callable[[Store, str, str], dict[str, Any]] | None = None
    """What else to keep of a backbone's weights, given their store, its name and the prefix of its maps' recipes."""


def _trajectories(role: Role, profile: Profile) -> list[dict[str, Any]]:
    layered = 256 if profile == "paper" else 64 if role == "main" else 0
    return [{"layered": layered}]


def _everywhere(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [{}]


def _mechanism_only(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [{}] if role != "other" or profile == "paper" else []


def _eight_calls(role: Role, profile: Profile) -> list[dict[str, Any]]:
    if role != "main":
        return []
    if profile == "quick":
        return [{"where": composition.INDEPENDENT, "graphs": QUICK_GRAPHS}]
    return [{"where": composition.INDEPENDENT}, {"where": composition.ORIGINAL}]


def _crossing(role: Role, profile: Profile) -> list[dict[str, Any]]:
    confirmation = crossing.CONFIRMATION if role == "main" else "pairs-2608-receiver"
    return [{"confirmation": confirmation}] if role != "other" or profile == "paper" else []


def _switching(role: Role, profile: Profile) -> list[dict[str, Any]]:
    if role == "other":
        return []
    where = switching.WHERE if role == "main" else "switching-2608"
    return [{"where": where} if profile == "paper" else {"where": where, "graphs": QUICK_PARTS}]


QUICK_GRAPHS = 64
"""Graphs of the eight-call strings in the quick profile, of 512."""

QUICK_PARTS = 8
"""Graphs of the costly switches (those outside ANSWER's row of layer 2) in the quick profile, of 512."""

EXPERIMENTS: Mapping[str, Experiment] = {
    each.name: each
    for each in (
        Experiment(
            TRAJECTORIES, "What does each loop read out when nothing is done to it?", ("mechanism", "walkers"),
            trajectories.measure, _trajectories, (), lambda found, facts, paper: trajectories.tables(found, facts),
        ),
        Experiment(
            TARGETS, "From one and the same h6, does the map decide which node is answered?", ("mechanism",),
            targets.measure, _mechanism_only, ("one", "two"), targets.tables,
        ),
        Experiment(
            TWO_CALLS, "Can one map follow another, and does their order matter?", ("mechanism",),
            composition.measure_two, _mechanism_only, ("one", "two"), composition.tables_two,
        ),
        Experiment(
            EIGHT_CALLS, "For how many calls do maps keep control?", ("mechanism",),
            composition.measure_long, _eight_calls, ("one", "two"), composition.tables_long,
        ),
        Experiment(
            CROSSING, "What do attention patterns and head outputs carry from one run into another?", ("mechanism",),
            crossing.measure_all, _crossing, ("one",), crossing.tables,
        ),
        Experiment(
            SWITCHING, "Which part of a call must be exchanged for the other map's target?", ("mechanism",),
            switching.measure, _switching, ("one", "two"), switching.tables,
        ),
        Experiment(
            MATCHED, "Does supervision decide what the same map can reach?", ("matched",),
            matched.measure, _everywhere, None, notes=learning.notes,
        ),
    )
}  # fmt: skip


def chosen(names: Iterable[str]) -> list[Experiment]:
    """The experiments of these names, all of them for none; InputError for an unknown one."""
    asked = list(dict.fromkeys(names)) or list(EXPERIMENTS)
    for name in asked:
        if name not in EXPERIMENTS:
            raise InputError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}{nearest(name, EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in EXPERIMENTS if name in asked]


@dataclass(frozen=True)
class Selection:
    """The mechanism backbones by the rule, the main one first; `threes` says that increments of 3 had to be allowed."""

    names: tuple[str, ...]
    threes: bool = False

    def role(self, name: str) -> Role:
        """What a backbone is to the mechanism experiments."""
        if name not in self.names:
            return "other"
        return "main" if name == self.names[0] else "mechanism"


def select(walks: Mapping[str, trajectories.Trajectory], complete: bool = True) -> Selection:
    """Choose the mechanism backbones among native trajectories, given in the order of seeds, before any map is fitted.

    One qualifies if its increments to loops 2..L contain 1 and 2 and nothing else but 0.  The first three are taken.
    If there are fewer although the cohort is complete, with its additional seeds, those are taken that qualify when 3
    is allowed, too.
    """
    strict = [name for name, walk in walks.items() if walk.walks_one_and_two]
    if len(strict) >= MECHANISM or not complete:
        return Selection(tuple(strict[:MECHANISM]))
    loose = [name for name, walk in walks.items() if walk.walks_within({0, 1, 2, 3})]
    return Selection(tuple(loose[:MECHANISM]), threes=loose != strict)


def selection(records: Iterable[Record]) -> Selection:
    """The same from records: those of native trajectories of the mechanism cohort."""
    cohort = COHORTS["mechanism"]
    known = {record.facts.name: record for record in records if record.experiment == TRAJECTORIES}
    names = [f"{recipe}-{seed}" for recipe in cohort.recipes for seed in (*cohort.seeds, *cohort.more_seeds)]
    walks = {name: trajectories.walk_of(known[name].predictions, known[name].facts) for name in names if name in known}
    return select(walks, complete=len(walks) == len(names))
