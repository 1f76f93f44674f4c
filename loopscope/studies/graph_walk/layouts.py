"""What records of graph walks keep: names, types, shapes and bounds of their tensors, by what a record says of itself.

They follow from settings, fits and the model's loops, nodes and heads, by the functions that measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import torch
from torch import Tensor

from loopscope.bounds import shown
from loopscope.studies.graph_walk import (
    composition,
    continuation,
    crossing,
    independent,
    lasting,
    learning,
    matched,
    switching,
    targets,
    trajectories,
)
from loopscope.studies.records import Record
from loopscope.studies.schema import (
    FEW,
    Kept,
    Layout,
    MisfitError,
    asked,
    fits_of,
    graphs_of,
    int32,
    number,
    numbered,
    only,
    whole,
    wholes,
    word,
)
from loopscope.studies.trained import instances
from loopscope.tasks.populations import Rule


def _nodes(names: Iterable[str], instances: int, nodes: int) -> dict[str, Kept]:
    return {name: Kept((instances,), high=nodes - 1) for name in names}


def _words(settings: Mapping[str, object], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    found = settings.get(name, default)
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found) or not found:
        raise MisfitError(f"words as {name}", shown(found))
    return tuple(found)


def _graphs(record: Record, where: str) -> int:
    """How many graphs of a population were measured, by the settings."""
    some = record.settings.get("graphs")
    return graphs_of(where, record.facts.nodes, None if some is None else whole(record.settings, "graphs", 1, 10**6))


def of_trajectories(record: Record) -> Layout:
    """Answers after every loop, and inside calls where these were looked at."""
    facts, settings = record.facts, record.settings
    only(settings, ("rings", "loops", "layered"), "settings")
    rings, loops = word(settings, "rings", "rings"), whole(settings, "loops", 1, FEW, trajectories.LOOPS)
    layered, graphs = whole(settings, "layered", 0, FEW, trajectories.LAYERED), graphs_of(rings, facts.nodes)
    if facts.loops > loops:
        raise MisfitError(f"a model of up to {loops} loops, as were read", str(facts.loops))
    found = {trajectories.NATIVE: Kept((loops + 1, graphs * facts.nodes), high=facts.nodes - 1)}
    if layered:
        inside = (loops, None, min(layered, graphs) * facts.nodes)
        found[trajectories.LAYERS] = Kept(inside, high=facts.nodes - 1)
        measured = record.predictions.get(rings, {}).get(trajectories.LAYERS)
        if measured is not None and measured.dim() == 3 and measured.shape[1] % 2:
            raise MisfitError("two sublayers of every layer", str(measured.shape[1]))
    return {rings: found}


def of_targets(record: Record) -> Layout:
    """Answers without a map, with each fit, and read before F."""
    facts, settings = record.facts, record.settings
    only(settings, ("where", "targets"), "settings")
    where, names = word(settings, "where", targets.WHERE), [targets.UNSTEERED]
    for target in _words(settings, "targets", ("one", "two")):
        for name in numbered(target, fits_of(facts.fits, target)):
            names += [name, name + targets.BEFORE]
    return {where: _nodes(names, graphs_of(where, facts.nodes) * facts.nodes, facts.nodes)}


def of_two_calls(record: Record) -> Layout:
    """Answers of all pairs of maps."""
    facts = record.facts
    only(record.settings, ("where",), "settings")
    where, fits = word(record.settings, "where", composition.ORIGINAL), fits_of(facts.fits, "one", "two")
    names = composition.names_of(composition.TWO_CALLS, (), fits)
    return {where: _nodes(names, graphs_of(where, facts.nodes) * facts.nodes, facts.nodes)}


def of_eight_calls(record: Record) -> Layout:
    """Answers of all strings of maps."""
    facts = record.facts
    only(record.settings, ("where", "graphs"), "settings")
    where, fits = word(record.settings, "where", composition.INDEPENDENT), fits_of(facts.fits, "one", "two")
    names = composition.names_of(*composition.strings_of_eight(), fits)
    return {where: _nodes(names, _graphs(record, where) * facts.nodes, facts.nodes)}


def of_crossing(record: Record) -> Layout:
    """Answers of every patch, on the pairs that choose heads and on those that test them."""
    facts, settings = record.facts, record.settings
    only(settings, ("discovery", "confirmation", "graphs"), "settings")
    places = word(settings, "discovery", crossing.DISCOVERY), word(settings, "confirmation", crossing.CONFIRMATION)
    if len({*places}) < 2:
        raise MisfitError("two populations, to choose and to test", places[0])
    fits_of(facts.fits, "one")
    found = {}
    for where, choose_only in zip(places, (True, False), strict=True):
        asked(lambda where=where: crossing.pairs(where, facts.depth, torch.device("cpu"), 1), "a population of pairs")  # type: ignore[misc]
        names = [] if choose_only else ["unsteered"]
        for name in numbered("one", facts.fits["one"]):
            names += [f"{name}/{each}" for each in crossing.names_of(facts.heads, choose_only)]
        found[where] = _nodes(names, _graphs(record, where) * facts.nodes, facts.nodes)
    return found


def of_switching(record: Record) -> Layout:
    """Answers of every switch between two maps."""
    facts, settings = record.facts, record.settings
    only(settings, ("where", "targets", "graphs"), "settings")
    where, pair = word(settings, "where", switching.WHERE), _words(settings, "targets", ("one", "two"))
    if len(pair) != 2 or not {*pair} <= {*switching.HOPS}:
        raise MisfitError(f"two targets among {', '.join(switching.HOPS)}", shown(pair))
    if 2**facts.heads > sum(map(len, record.predictions.values())):  # there is a run for every choice of heads
        raise MisfitError("runs for every choice of heads", f"fewer than of {facts.heads}")
    narrow, wide = switching.programs(1, facts.heads, (pair[0], pair[1]), fits_of(facts.fits, *pair))
    every = graphs_of(where, facts.nodes) * facts.nodes
    return {where: _nodes(narrow, every, facts.nodes) | _nodes(wide, _graphs(record, where) * facts.nodes, facts.nodes)}


def of_matched(record: Record) -> Layout:
    """Answers of the backbone and of each fit; the curves of the fits."""
    facts = record.facts
    only(record.settings, ("where",), "settings")
    only(record.notes, ("curves",), "notes")
    for curve in asked(lambda: learning.noted(record.notes), "the curves of fits"):
        _check_curve(curve)
    where, names = word(record.settings, "where", matched.WHERE), [matched.ENDPOINT, matched.UNSTEERED]
    for target in (target for target in matched.HOPS if facts.fits.get(target)):
        for name in numbered(target, facts.fits[target]):
            names += [name, name + matched.BEFORE]
    return {where: _nodes(names, graphs_of(where, facts.nodes) * facts.nodes, facts.nodes)}


def _check_curve(curve: learning.Curve) -> None:
    values = vars(curve)
    word(values, "backbone")
    word(values, "target")
    for name in ("fit", "kept"):
        whole(values, name, 0, 10**9)
    if not isinstance(curve.scores, list) or len(curve.scores) != len(wholes(values, "updates", 0, 10**9)):
        raise MisfitError("a score for every check", shown(curve.scores))
    for score in curve.scores:
        number({"score": score}, "score")


@cache
def _counted(where: str, depth: int, rule: Rule, graphs: int) -> Tensor:
    """How many instances of each of the first graphs count, int64 [graphs]."""
    at = instances(where, depth, torch.device("cpu"), rule)
    return at.kept.view(at.many, -1).sum(-1)[:graphs]


def of_independent(record: Record) -> Layout:
    """Right answers by graph, counted over strings and fits."""
    facts = record.facts
    only(record.settings, ("where", "graphs", "first"), "settings")
    where = word(record.settings, "where", composition.INDEPENDENT)
    first, fits = whole(record.settings, "first", 0, 10**6, 0), fits_of(facts.fits, "one", "two")
    some = record.settings.get("graphs")
    end = graphs_of(where, facts.nodes, None if some is None else first + _graphs(record, where))
    if first >= end:
        raise MisfitError(f"a first graph below {end}, as {where} has them", str(first))
    most, graphs = _counted(where, facts.depth, "five", end)[first:], end - first
    runs = [len(strings) * fits for strings in composition.long_strings().values()]
    by_kind = dict(zip(independent.KINDS, runs, strict=True))
    names = {kind: by_kind[kind] for kind in independent.KINDS}
    names |= {f"{independent.MIXED}, {each}": by_kind[independent.MIXED] for each in independent.CONTROLS}
    found = {
        name: Kept((composition.CALLS, graphs), torch.int16, high=most * each) for name, each in names.items()
    } | {
        name: Kept((len(composition.PAIRS), graphs), torch.int16, high=most * runs[0])
        for name in (independent.TWO, independent.ALONE)
    }  # fmt: skip
    return {where: found | {independent.RUNS: Kept((len(runs),), torch.int16, same=torch.tensor(runs))}}


def of_lasting(record: Record, families: Mapping[str, tuple[str, str]] = lasting.FAMILIES) -> Layout:
    """Right answers by call, and what states do in the long run, of these families of maps."""
    facts, settings = record.facts, record.settings
    only(settings, ("where", "calls", "graphs", "strings"), "settings")
    where, calls = word(settings, "where", composition.INDEPENDENT), whole(settings, "calls", 1, FEW, lasting.CALLS)
    mixed = asked(lambda: lasting.mixed_strings(whole(settings, "strings", 1, FEW, 32), calls), "strings")
    graphs = _graphs(record, where)
    if graphs < 2:
        raise MisfitError("two graphs or more", str(graphs))
    most, marks = _counted(where, facts.depth, "five", graphs), len([mark for mark in lasting.MARKS if mark <= calls])
    found = {lasting.STRINGS: Kept(tuple(mixed.shape), low=1, high=2, same=mixed)}
    for family, (one, two) in families.items():
        for kind, used in zip(lasting.KINDS, ((one,), (two,), (one, two)), strict=True):
            fits = min(facts.fits.get(target, 0) for target in used)
            if not fits:
                continue
            times = len(mixed) if kind == "mixed" else 1
            name = f"{family} {kind}"
            for counted in ("right", "so far"):
                found[f"{name} {counted}"] = Kept((fits, calls), torch.int32, high=int(most.sum()) * times)
                found[f"{name} {counted} by graph"] = Kept((marks, graphs), torch.int16, high=most * times * fits)
            found[f"{name} limits"] = Kept((fits, 1 + calls, 3), torch.float32, overflow=True)
            _check_lengths(record.predictions.get(where, {}).get(f"{name} limits"), f"{name} limits")
            if kind != "mixed":
                found[f"{name} spectrum"] = Kept((fits, None, 2), torch.float32)
    if len(found) == 1:
        raise MisfitError(f"fits of the maps of {', '.join(families)}", shown(dict(facts.fits)))
    return {where: found}


def _check_lengths(limits: Tensor | None, name: str) -> None:
    """Lengths are told as shares of those before the first map, so these must be some."""
    if limits is not None and limits.dim() == 3 and limits.shape[1]:
        first = limits[:, 0, :2]
        if not bool((first.isfinite() & (first > 0)).all()):
            raise MisfitError(f"lengths above 0 before the first map in {name!r}", shown(first.flatten()[:4].tolist()))


def of_continuation(record: Record) -> Layout:
    """Right answers by cycle length and loop, with controls."""
    facts = record.facts
    only(record.settings, ("graphs",), "settings")
    maps = numbered(continuation.TARGET, fits_of(facts.fits, continuation.TARGET))
    layout: dict[str, dict[str, Kept]] = {}
    places = (continuation.BROAD, continuation.BROAD_LOOPS), (continuation.WITHHELD, continuation.STRICT_LOOPS)
    for where, loops in places:
        some = _graphs(record, where)
        at = continuation.asked_of(where, loops, None if some == graphs_of(where, facts.nodes) else some)
        sizes = at.sizes
        counts = Kept((facts.nodes, loops), torch.int32, high=sizes[:, None])
        found = {name: counts for name in (continuation.NATIVE, *maps)}
        found[continuation.INSTANCES] = int32(sizes.tolist())
        if where == continuation.WITHHELD:
            by_graph = Kept((loops, some), high=at.by_graph(at.counted(facts.depth)))
            strict = [name + continuation.STRICT for name in (continuation.NATIVE, *maps)]
            found |= {name: by_graph for name in (*strict, *(name + continuation.MOVED for name in maps))}
            found |= {name + continuation.ALONE: Kept((loops,), high=facts.nodes - 1) for name in maps}
        layout[where] = found
    return layout
