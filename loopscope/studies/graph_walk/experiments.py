"""The experiments on graph walks, and the cohorts of backbones they are done on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loopscope.quantity import QuantityTable
from loopscope.studies.experiment import Cohort, Experiment, Pieces, Profile, everywhere
from loopscope.studies.graph_walk import (
    composition,
    continuation,
    continuation_curves,
    crossing,
    independent,
    lasting,
    layouts,
    learning,
    matched,
    matched_tables,
    switching,
    targets,
    trajectories,
)
from loopscope.studies.graph_walk.selection import select
from loopscope.studies.records import Predictions, Record, apart
from loopscope.studies.selection import Role, Selection
from loopscope.studies.trained import TrainedModel

TRAJECTORIES, TARGETS, TWO_CALLS, EIGHT_CALLS, INDEPENDENT, CROSSING, SWITCHING, MATCHED = (
    "trajectories", "targets", "two-calls", "eight-calls", "independent", "crossing", "switching", "matched"
)  # fmt: skip
LASTING, CONTINUATION = "lasting", "continuation"

DECIDING = TRAJECTORIES
"""The experiment whose records choose the mechanism backbones, by `selection`."""

COHORTS: tuple[Cohort, ...] = (
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
)  # fmt: skip

QUICK_LASTING = {"graphs": 4, "strings": 1}
"""Of 512 graphs and 32 mixed strings: 64 calls of every family are many."""

QUICK_CONTINUED = 32
"""Graphs of eight-node continuation in the quick profile, of 8,192 and 512."""

QUICK_GRAPHS = 64
"""Graphs of the eight-call strings in the quick profile, of 512."""

QUICK_COUNTED = 16
"""Graphs of the same strings on other backbones in the quick profile, of 512."""

QUICK_PARTS = 8
"""Graphs of the costly switches (those outside ANSWER's row of layer 2) in the quick profile, of 512."""


def _trajectories(role: Role, profile: Profile) -> list[dict[str, Any]]:
    layered = 256 if profile == "paper" else 64 if role == "main" else 0
    return [{"layered": layered}]


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
    where = switching.WHERE if role == "main" else switching.OTHERS
    return [{"where": where} if profile == "paper" else {"where": where, "graphs": QUICK_PARTS}]


def _lasting(role: Role, profile: Profile) -> list[dict[str, Any]]:
    if profile == "quick":
        return [dict(QUICK_LASTING)] if role == "main" else []
    return [] if role == "other" else [{}]


def _continuation(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [{}] if profile == "paper" else [{"graphs": QUICK_CONTINUED}]


def _measure_continuation(trained: TrainedModel, graphs: int | None = None) -> Predictions:
    """Both populations, or the first graphs of each."""
    return {
        **continuation.measure_broad(trained, graphs=graphs), **continuation.measure_strict(trained, graphs=graphs)
    }  # fmt: skip


def _matched_together(records: Mapping[str, Record]) -> list[QuantityTable]:
    return matched_tables.tables(*apart(records))


def _continued_together(records: Mapping[str, Record]) -> list[QuantityTable]:
    found: list[QuantityTable] = []
    for where in (continuation.BROAD, continuation.WITHHELD):
        there = {name: record for name, record in records.items() if where in record.predictions}
        found += continuation_curves.tables(*apart(there), where) if there else []
    return found


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        TRAJECTORIES, "What does each loop read out when nothing is done to it?", ("mechanism", "walkers"),
        trajectories.measure, _trajectories, (),
        lambda found, facts, paper: trajectories.tables(found, facts),
        layout=layouts.of_trajectories,
    ),
    Experiment(
        TARGETS, "From one and the same h6, does the map decide which node is answered?", ("mechanism",),
        targets.measure, _mechanism_only, ("one", "two"), targets.tables,
        layout=layouts.of_targets,
    ),
    Experiment(
        TWO_CALLS, "Can one map follow another, and does their order matter?", ("mechanism",),
        composition.measure_two, _mechanism_only, ("one", "two"), composition.tables_two,
        layout=layouts.of_two_calls,
    ),
    Experiment(
        EIGHT_CALLS, "For how many calls do maps keep control?", ("mechanism",),
        composition.measure_long, _eight_calls, ("one", "two"), composition.tables_long,
        layout=layouts.of_eight_calls,
    ),
    Experiment(
        INDEPENDENT, "How much of composition is a matter of the backbone?", ("mechanism",),
        independent.measure, _independent, ("one", "two"), independent.tables, raw=True,
        backbones=independent.BACKBONES, pieces=Pieces(independent.pieces, independent.whole),
        layout=layouts.of_independent,
    ),
    Experiment(
        CROSSING, "What do attention patterns and head outputs carry from one run into another?", ("mechanism",),
        crossing.measure_all, _crossing, ("one",), crossing.tables,
        layout=layouts.of_crossing,
    ),
    Experiment(
        SWITCHING, "Which part of a call must be exchanged for the other map's target?", ("mechanism",),
        switching.measure, _switching, ("one", "two"), switching.tables,
        layout=layouts.of_switching,
    ),
    Experiment(
        MATCHED, "Does supervision decide what the same map can reach?", ("matched", "matched-long"),
        matched.measure, everywhere, None, together=_matched_together, notes=learning.notes,
        layout=layouts.of_matched,
    ),
    Experiment(
        LASTING, "Can maps be made to keep control for many calls, and what ends it?", ("mechanism",),
        lasting.measure, _lasting,
        tuple(target for maps in lasting.FAMILIES.values() for target in maps),
        lasting.tables, raw=True,
        layout=layouts.of_lasting,
    ),
    Experiment(
        CONTINUATION, "How far do maps that were trained through sixteen calls lead?", ("eight",),
        _measure_continuation, _continuation, ("continue16",), together=_continued_together, raw=True,
        layout=layouts.of_continuation,
    ),
)  # fmt: skip


def selection(records: Iterable[Record], cohort: Cohort = COHORTS[0]) -> Selection:
    """The mechanism backbones of a cohort by its records of native trajectories."""
    known = {record.facts.name: record for record in records if record.experiment == TRAJECTORIES}
    names = cohort.every
    walks = {name: trajectories.walk_of(known[name].predictions, known[name].facts) for name in names if name in known}
    return select(walks, complete=len(walks) == len(names))
