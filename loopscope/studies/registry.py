"""The suite: which experiments there are, which cohorts of backbones they are done on, and with what settings.

Values only.  `campaign` carries them out, `claims` judges what came out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from loopscope.errors import InputError, nearest
from loopscope.maps import AffineMap
from loopscope.store.store import Store
from loopscope.studies.graph_walk import (
    composition,
    continuation,
    crossing,
    independent,
    lasting,
    learning,
    matched,
    selecting,
    switching,
    targets,
    trajectories,
)
from loopscope.studies.parity import counts as parity_counts
from loopscope.studies.parity import exact as parity_exact
from loopscope.studies.parity import lengths as parity_lengths
from loopscope.studies.recipes import map_recipe
from loopscope.studies.records import AnyTable, Facts, Predictions, Record
from loopscope.studies.relations import chains
from loopscope.studies.subject import Subject

Role = Literal["main", "mechanism", "other"]
Profile = Literal["quick", "paper"]
PROFILES: tuple[Profile, ...] = ("quick", "paper")

TRAJECTORIES, TARGETS, TWO_CALLS, EIGHT_CALLS, INDEPENDENT, CROSSING, SWITCHING, MATCHED = (
    "trajectories", "targets", "two-calls", "eight-calls", "independent", "crossing", "switching", "matched"
)  # fmt: skip
LASTING, CONTINUATION, PARITY, PARITY_EXACT, CHAINS = "lasting", "continuation", "parity", "parity-fp32", "chains"
SELECTING = "selecting"


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
    task: str = "graph-walk"
    more_seeds: tuple[int, ...] = ()
    """Trained, too, where the rule finds fewer than `MECHANISM` backbones among `seeds`."""
    chosen_maps: tuple[tuple[str, ...], ...] = ()
    """Maps that only the backbones chosen by the rule get, and only for experiments that use them.  Those of one group
    are fitted side by side."""

    @property
    def backbones(self) -> list[str]:
        """The names of its backbones, without `more_seeds`."""
        return [f"{recipe}-{seed}" for seed in self.seeds for recipe in self.recipes]

    @property
    def every(self) -> list[str]:
        """The same with `more_seeds`."""
        return [f"{recipe}-{seed}" for seed in (*self.seeds, *self.more_seeds) for recipe in self.recipes]

    def chosen_for(self, experiment: Experiment) -> list[tuple[str, ...]]:
        """The groups of `chosen_maps` that an experiment names among those it uses."""
        used = [self.prefix + target for target in experiment.uses or ()]
        return [group for group in self.chosen_maps if not set(group).isdisjoint(used)]


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
            chosen_maps=tuple(maps for family, maps in lasting.FAMILIES.items() if family != lasting.PUBLISHED),
        ),
        Cohort(
            "matched",
            "five pairs that differ in their loss alone: after loop 8, or after every loop",
            ("matched-final", "matched-stepwise"),
            tuple(range(5)),
            ("matched-stay", "matched-one", "matched-two"),
            prefix="matched-",
        ),
        Cohort(
            "matched-long",
            "the first of these pairs, its maps fitted once more with 32,000 updates: is the gap one of time?",
            ("matched-final", "matched-stepwise"),
            (0,),
            ("matched-one-long", "matched-two-long"),
            fits=(1,),
            prefix="matched-",
        ),
        Cohort("walkers", "requests of 1-8 steps, eight loops: how do they walk?", ("d8l8",), tuple(range(12))),
        Cohort(
            "eight",
            "eight nodes, eight steps, eight loops; J before every call, trained through sixteen",
            ("n8-d8l8",),
            tuple(range(100, 112)),
            ("continue16",),
        ),
        Cohort(
            "parity",
            "parity of 1-20 bits, n loops for n bits; J before calls 2..n, trained on 20-40 bits",
            ("parity",),
            tuple(range(3)),
            ("parity-staged",),
            fits=(1,),
            task="parity",
        ),
        Cohort(
            "relations",
            "relation chains of 1-3 steps; J trained on chains of 4-16",
            ("relations",),
            (0,),
            ("relations-curriculum",),
            fits=(1, 2, 3),
            task="relations",
        ),
    )
}


class Pieces(NamedTuple):
    """How a long measurement is cut into pieces: the settings of each, and one result from theirs."""

    cut: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    join: Callable[[Sequence[Predictions]], Predictions]


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
    tables: Callable[[Predictions, Facts, bool], Sequence[AnyTable]] | None = None
    """What follows from one record; the last argument asks for the published numbers.  None: it takes several."""
    notes: Callable[[Store, str, str], dict[str, Any]] | None = None
    """What else to keep of a backbone's weights, given their store, its name and the prefix of its maps' recipes."""
    raw: bool = False
    """Whether it keeps counts rather than the node answered by every instance."""
    pieces: Pieces | None = None
    """None: a record is measured in one go."""
    lead: Callable[[Mapping[str, Predictions]], str] | None = None
    """The backbone that counts as the main one, by what was measured on all; None: the mechanism's rule decides."""
    apart: bool = False
    """Whether its maps are fitted by commands of their own: then it is done on backbones that have some."""
    backbones: int | None = None
    """On so many backbones of a cohort, see `Selection.first`; None: on all for which there are settings."""

    def on(self, cohort: Cohort, chosen: Selection) -> list[str]:
        """The backbones of a cohort that it is done on, as far as they are trained, in the order of seeds."""
        if self.backbones is None:
            return cohort.every
        first = chosen.first(self.backbones, cohort.every)
        return [name for name in cohort.every if name in first]


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


def _independent(role: Role, profile: Profile) -> list[dict[str, Any]]:
    """Not on the main backbone, of which `eight-calls` keeps the answers."""
    if role == "main":
        return []
    return [{}] if profile == "paper" else [{"graphs": QUICK_COUNTED}]


def _crossing(role: Role, profile: Profile) -> list[dict[str, Any]]:
    confirmation = crossing.CONFIRMATION if role == "main" else "pairs-2608-receiver"
    return [{"confirmation": confirmation}] if role != "other" or profile == "paper" else []


def _switching(role: Role, profile: Profile) -> list[dict[str, Any]]:
    if role == "other":
        return []
    where = switching.WHERE if role == "main" else "switching-2608"
    return [{"where": where} if profile == "paper" else {"where": where, "graphs": QUICK_PARTS}]


def _lasting(role: Role, profile: Profile) -> list[dict[str, Any]]:
    if profile == "quick":
        return [dict(QUICK_LASTING)] if role == "main" else []
    return [] if role == "other" else [{}]


def _continuation(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [{}] if profile == "paper" else [{"graphs": QUICK_CONTINUED}]


def _parity(role: Role, profile: Profile) -> list[dict[str, Any]]:
    if profile == "quick":
        return [dict(parity_counts.QUICK)]
    near = {"products": "fp16", "check": PARITY_CHECK}
    return [near if role == "main" else near | {"far": None}]


def _paper_only(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [{}] if profile == "paper" else []


def _chains(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [{}] if profile == "paper" else [{"queries": QUICK_QUERIES, "cut": True}]


def _measure_continuation(subject: Subject, graphs: int | None = None) -> Predictions:
    """Both populations, or the first graphs of each."""
    return {
        **continuation.measure_broad(subject, graphs=graphs), **continuation.measure_strict(subject, graphs=graphs)
    }  # fmt: skip


def _measure_parity(subject: Subject, **grid: Any) -> Predictions:
    """Without J and, where there is one, with it."""
    return parity_counts.measure(subject.model, _staged(subject), int(subject.name.rpartition("-")[2]), **grid)


def _measure_parity_exact(subject: Subject, **strings: Any) -> Predictions:
    """The same, in fp32 and string by string."""
    return parity_exact.measure(subject.model, _staged(subject), **strings)


def _staged(subject: Subject) -> AffineMap | None:
    return next(iter(subject.maps.get("parity-staged", [])), None)


def _measure_chains(subject: Subject, **queries: Any) -> Predictions:
    """With every map that a fit passed through in its last stage, or, where these were not kept, with the fit alone."""
    recipe = map_recipe(chains.FIT)
    last = recipe.stages[-1].updates
    fits = subject.trails.get(recipe.name) or [{last: step} for step in subject.maps.get(recipe.name, [])]
    return chains.measure(subject.model, fits, **queries)


PARITY_CHECK = [100, 500, 100]
"""Lengths of parity that are run with products in fp32, too, where all are run in fp16."""

QUICK_LASTING = {"graphs": 4, "strings": 1}
"""Of 512 graphs and 32 mixed strings: 64 calls of every family are many."""

QUICK_CONTINUED = 32
"""Graphs of eight-node continuation in the quick profile, of 8,192 and 512."""

QUICK_QUERIES = 64
"""Queries of relation chains in the quick profile, of 1,024."""

QUICK_GRAPHS = 64
"""Graphs of the eight-call strings in the quick profile, of 512."""

QUICK_COUNTED = 16
"""Graphs of the same strings on other backbones in the quick profile, of 512."""

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
            INDEPENDENT, "How much of composition is a matter of the backbone?", ("mechanism",),
            independent.measure, _independent, ("one", "two"), independent.tables, raw=True,
            backbones=independent.BACKBONES,
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
            MATCHED, "Does supervision decide what the same map can reach?", ("matched", "matched-long"),
            matched.measure, _everywhere, None, notes=learning.notes,
        ),
        Experiment(
            LASTING, "Can maps be made to keep control for many calls, and what ends it?", ("mechanism",),
            lasting.measure, _lasting, tuple(target for maps in lasting.FAMILIES.values() for target in maps),
            lasting.tables, raw=True,
        ),
        Experiment(
            CONTINUATION, "How far do maps that were trained through sixteen calls lead?", ("eight",),
            _measure_continuation, _continuation, ("continue16",), raw=True,
        ),
        Experiment(
            PARITY, "Does J improve parity beyond the trained lengths, or its timing?", ("parity",),
            _measure_parity, _parity, ("parity-staged",), raw=True,
            pieces=Pieces(parity_counts.pieces, parity_counts.whole), lead=parity_lengths.gains_most,
        ),
        Experiment(
            PARITY_EXACT, "Beyond 500 bits, do products in fp32 say what products in fp16 say?", ("parity",),
            _measure_parity_exact, _paper_only, ("parity-staged",), raw=True,
            pieces=Pieces(parity_exact.pieces, parity_exact.whole),
        ),
        Experiment(
            CHAINS, "Does J let chains of relations grow beyond the trained length?", ("relations",),
            _measure_chains, _chains, ("relations-curriculum",), raw=True,
        ),
        Experiment(
            SELECTING, "Does J select what the backbone has learned, or does it create?", ("mechanism", "walkers"),
            selecting.measure, _everywhere, selecting.TARGETS, selecting.tables, raw=True, apart=True,
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

    def first(self, count: int, names: Iterable[str]) -> list[str]:
        """So many backbones: the chosen ones, then the first others in the order given, trained here or not."""
        return [*self.names, *(name for name in names if name not in self.names)][:count]


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
    names = cohort.every
    walks = {name: trajectories.walk_of(known[name].predictions, known[name].facts) for name in names if name in known}
    return select(walks, complete=len(walks) == len(names))
