"""What every experiment keeps: the populations and tensors of its record, given what the record says of itself.

The names, types, shapes and bounds follow from the settings, the number of fits and the model's loops, nodes and heads,
by the functions that measured them.  A record that says one thing and holds another is refused where it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import torch
from torch import Tensor

from loopscope.bounds import shown
from loopscope.store.artefacts import BACKBONE
from loopscope.store.manifest import artefact_key
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
from loopscope.studies.recipes import RECIPES
from loopscope.studies.records import Facts, LayoutOf, Record
from loopscope.studies.registry import (
    CHAINS,
    CONTINUATION,
    CROSSING,
    EIGHT_CALLS,
    EXPERIMENTS,
    INDEPENDENT,
    LASTING,
    MATCHED,
    PARITY,
    PARITY_EXACT,
    SELECTING,
    SWITCHING,
    TARGETS,
    TRAJECTORIES,
    TWO_CALLS,
)
from loopscope.studies.relations import chains
from loopscope.studies.schema import (
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
    truth,
    whole,
    wholes,
    word,
)
from loopscope.studies.subject import instances
from loopscope.tasks.populations import Rule
from loopscope.training.cohort.hops import BUDGETS, HOPS
from loopscope.training.cohort.hops import CONTROLS as HOP_CONTROLS
from loopscope.training.recipe import BackboneRecipe

FEW = 4096
"""Bound of counts in settings: more was never asked for, and would be computed with before it is compared."""


# ---- answers, node by node -------------------------------------------------------------------------------------------


def _nodes(names: Iterable[str], instances: int, nodes: int) -> dict[str, Kept]:
    return {name: Kept((instances,), high=nodes - 1) for name in names}


def _trajectories(record: Record) -> Layout:
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


def _targets(record: Record) -> Layout:
    facts, settings = record.facts, record.settings
    only(settings, ("where", "targets"), "settings")
    where, names = word(settings, "where", targets.WHERE), [targets.UNSTEERED]
    for target in _words(settings, "targets", ("one", "two")):
        for name in numbered(target, fits_of(facts.fits, target)):
            names += [name, name + targets.BEFORE]
    return {where: _nodes(names, graphs_of(where, facts.nodes) * facts.nodes, facts.nodes)}


def _words(settings: Mapping[str, object], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    found = settings.get(name, default)
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found) or not found:
        raise MisfitError(f"words as {name}", shown(found))
    return tuple(found)


def _graphs(record: Record, where: str) -> int:
    """How many graphs of a population were measured, by the settings."""
    some = record.settings.get("graphs")
    return graphs_of(where, record.facts.nodes, None if some is None else whole(record.settings, "graphs", 1, 10**6))


def _two_calls(record: Record) -> Layout:
    facts = record.facts
    only(record.settings, ("where",), "settings")
    where, fits = word(record.settings, "where", composition.ORIGINAL), fits_of(facts.fits, "one", "two")
    names = composition.names_of(composition.TWO_CALLS, (), fits)
    return {where: _nodes(names, graphs_of(where, facts.nodes) * facts.nodes, facts.nodes)}


def _eight_calls(record: Record) -> Layout:
    facts = record.facts
    only(record.settings, ("where", "graphs"), "settings")
    where, fits = word(record.settings, "where", composition.INDEPENDENT), fits_of(facts.fits, "one", "two")
    names = composition.names_of(*composition.strings_of_eight(), fits)
    return {where: _nodes(names, _graphs(record, where) * facts.nodes, facts.nodes)}


def _crossing(record: Record) -> Layout:
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


def _switching(record: Record) -> Layout:
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


def _matched(record: Record) -> Layout:
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
    told = vars(curve)
    word(told, "backbone")
    word(told, "target")
    for name in ("fit", "kept"):
        whole(told, name, 0, 10**9)
    if not isinstance(curve.scores, list) or len(curve.scores) != len(wholes(told, "updates", 0, 10**9)):
        raise MisfitError("a score for every check", shown(curve.scores))
    for score in curve.scores:
        number({"score": score}, "score")


# ---- counts ----------------------------------------------------------------------------------------------------------


@cache
def _counted(where: str, depth: int, rule: Rule, graphs: int) -> Tensor:
    """How many instances of each of the first graphs count, int64 [graphs]."""
    at = instances(where, depth, torch.device("cpu"), rule)
    return at.kept.view(at.many, -1).sum(-1)[:graphs]


def _independent(record: Record) -> Layout:
    facts = record.facts
    only(record.settings, ("where", "graphs"), "settings")
    where = word(record.settings, "where", composition.INDEPENDENT)
    graphs, fits = _graphs(record, where), fits_of(facts.fits, "one", "two")
    most = _counted(where, facts.depth, "five", graphs)
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
    return {where: found | {"runs": Kept((len(runs),), torch.int16, same=torch.tensor(runs))}}


def _lasting(record: Record) -> Layout:
    facts, settings = record.facts, record.settings
    only(settings, ("where", "calls", "graphs", "strings"), "settings")
    where, calls = word(settings, "where", composition.INDEPENDENT), whole(settings, "calls", 1, FEW, lasting.CALLS)
    mixed = asked(lambda: lasting.mixed_strings(whole(settings, "strings", 1, FEW, 32), calls), "strings")
    graphs = _graphs(record, where)
    if graphs < 2:
        raise MisfitError("two graphs or more", str(graphs))
    most, marks = _counted(where, facts.depth, "five", graphs), len([mark for mark in lasting.MARKS if mark <= calls])
    found = {lasting.STRINGS: Kept(tuple(mixed.shape), low=1, high=2, same=mixed)}
    for family, (one, two) in lasting.FAMILIES.items():
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
        raise MisfitError(f"fits of the maps of {', '.join(lasting.FAMILIES)}", shown(dict(facts.fits)))
    return {where: found}


def _check_lengths(limits: Tensor | None, name: str) -> None:
    """Lengths are told as shares of those before the first map, so these must be some."""
    if limits is not None and limits.dim() == 3 and limits.shape[1]:
        first = limits[:, 0, :2]
        if not bool((first.isfinite() & (first > 0)).all()):
            raise MisfitError(f"lengths above 0 before the first map in {name!r}", shown(first.flatten()[:4].tolist()))


def _continuation(record: Record) -> Layout:
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


def _parity(record: Record) -> Layout:
    settings = record.settings
    plan = asked(lambda: parity_counts.Plan(**settings), "settings of parity")
    for name in ("strings", "far_strings", "heat_strings"):
        whole(vars(plan), name, 1, FEW)
    whole(vars(plan), "heat", 0, FEW)
    if plan.products not in parity_counts.PRODUCTS:
        raise MisfitError(f"products in {', '.join(parity_counts.PRODUCTS)}", shown(plan.products))
    ways = 1 + bool(record.facts.fits.get("parity-staged"))
    layout = {}
    for name in ("near", "far", "check"):
        if (grid := getattr(plan, name)) is not None and (not isinstance(grid, list | tuple) or max(grid[1:2]) > FEW):
            raise MisfitError(f"{name} as first, last, step up to {FEW}", shown(grid))
    for part, lengths, strings, _ in asked(lambda: plan.bands, "lengths of parity"):
        halves = [strings // 2, strings - strings // 2]
        offsets = 2 * parity_counts.REACH + 1
        loop = torch.tensor(lengths)[:, None] + torch.arange(offsets) - parity_counts.REACH
        most = torch.where(loop >= 1, torch.tensor(halves)[:, None, None], -1)
        layout[part] = {
            "lengths": int32(lengths), "strings": int32(halves),
            "right": Kept((ways, 2, len(lengths), offsets), torch.int32, low=-1, high=most),
        }  # fmt: skip
    if plan.heat:
        layout[parity_counts.HEAT] = {
            "lengths": int32(range(1, plan.heat + 1)), "strings": int32([plan.heat_strings]),
            "right": Kept((ways, plan.heat, plan.heat), torch.int32, high=plan.heat_strings),
        }  # fmt: skip
    return layout


def _parity_exact(record: Record) -> Layout:
    only(record.settings, ("strings",), "settings")
    strings = record.settings.get("strings", parity_exact.STRINGS)
    layout = {}
    for length, first, end in asked(lambda: parity_exact.strings_of(strings), "strings of parity"):
        whole({"bits": length}, "bits", parity_counts.REACH + 1, FEW)
        ways = 1 + bool(record.facts.fits.get("parity-staged"))
        shape = (ways, 2 * parity_counts.REACH + 1, whole({"strings": end - first}, "strings", 1, FEW))
        layout[str(length)] = {parity_exact.RIGHT: Kept(shape, high=1), parity_exact.FIRST: int32([first])}
    return layout


def _chains(record: Record) -> Layout:
    settings = record.settings
    only(settings, ("lengths", "queries", "cut"), "settings")
    lengths = wholes(settings, "lengths", 1, FEW) if "lengths" in settings else chains.LENGTHS
    queries = whole(settings, "queries", 8, chains.QUERIES, chains.QUERIES)
    where = chains.CUT if truth(settings, "cut", False) else chains.OWN
    if queries % 8:
        raise MisfitError("a multiple of 8 queries", str(queries))
    updates = record.predictions.get(where, {}).get(chains.WHEN, torch.zeros(1))
    found = {
        chains.WHICH: int32(lengths),
        chains.WHEN: Kept((None,), torch.int32, high=10**9),
        chains.NATIVE: Kept((len(lengths), queries // 8), high=255),
    }
    if updates.dim() != 1 or not bool((updates.diff() > 0).all()) or not bool((updates > 0).any()):
        raise MisfitError("growing updates, one of them after 0", shown(updates.flatten()[:8].tolist()))
    for fit in range(1, 1 + fits_of(record.facts.fits, chains.FIT)):
        found[f"fit {fit}"] = Kept((len(updates), len(lengths), queries // 8), high=255)
    return {where: found}


def _selecting(record: Record) -> Layout:
    facts = record.facts
    only(record.settings, ("where",), "settings")
    where = word(record.settings, "where", selecting.WHERE)
    graphs, layout = graphs_of(where, facts.nodes), dict[str, dict[str, Kept]]()
    at = selecting.counted_walks(where, facts.depth, torch.device("cpu"))
    most = at.kept.view(graphs, -1).sum(-1)
    for budget in BUDGETS:
        for target in (control.target(k, budget) for control in HOP_CONTROLS for k in HOPS):
            if fits := facts.fits.get(target, 0):
                found = layout.setdefault(selecting.place(where, budget), {})
                found[f"{target} right"] = Kept((fits, graphs), high=most)
                found[f"{target} answers"] = Kept((fits, len(HOPS) + 1), torch.int32, high=int(most.sum()))
    if not layout:
        raise MisfitError("a fit for some number of hops", shown(dict(facts.fits)))
    return layout


# ---- all -------------------------------------------------------------------------------------------------------------

_OF: Mapping[str, LayoutOf] = {
    TRAJECTORIES: _trajectories, TARGETS: _targets, TWO_CALLS: _two_calls, EIGHT_CALLS: _eight_calls,
    INDEPENDENT: _independent, CROSSING: _crossing, SWITCHING: _switching, MATCHED: _matched, LASTING: _lasting,
    CONTINUATION: _continuation, PARITY: _parity, PARITY_EXACT: _parity_exact, CHAINS: _chains, SELECTING: _selecting,
}  # fmt: skip


def _of(name: str) -> LayoutOf:
    def layout(record: Record) -> Layout:
        if record.raw != EXPERIMENTS[name].raw:
            raise MisfitError("counts" if EXPERIMENTS[name].raw else "answers, two to a byte", f"raw: {record.raw}")
        if name != MATCHED:
            only(record.notes, (), "notes")
        _check_recipe(record.facts)
        return _OF[name](record)

    return layout


LAYOUTS: Mapping[str, LayoutOf] = {name: _of(name) for name in EXPERIMENTS}
"""By experiment on backbones."""


def _check_recipe(facts: Facts) -> None:
    """A key is that of recipe and seed: where the recipe is known by it, so are the model's numbers."""
    name, _, seed = facts.name.rpartition("-")
    found = _trained(name, int(seed)) if seed.isdecimal() and len(seed) < 9 else None
    if found is not None and found[0] == facts.key:
        for what, expected in found[1].items():
            if (there := getattr(facts, what)) != expected:
                raise MisfitError(f"{expected} {what}, as its recipe has them", str(there))


@cache
def _trained(name: str, seed: int) -> tuple[str, dict[str, int]] | None:
    """The key of a backbone of this recipe, and what records say of it; None for a recipe that there is not."""
    recipe = RECIPES.get(name)
    if not isinstance(recipe, BackboneRecipe):
        return None
    model, plain = recipe.model, recipe.to_dict()
    numbers = {"loops": model.loops, "nodes": model.classes, "heads": model.heads}
    numbers["depth"] = plain["data"].get("depth", 0)
    return artefact_key(BACKBONE, {"recipe": plain, "seed": seed}), numbers
