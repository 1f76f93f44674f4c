"""Records of the graph walk with planted answers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from loopscope.store.store import Store
from loopscope.studies.evidence import split
from loopscope.studies.graph_walk import composition, crossing, targets
from loopscope.studies.records import ModelFacts, Predictions, Record, records, save
from loopscope.studies.trained import Walks, instances
from loopscope.tasks.graph_walk import all_starts, walk
from loopscope.tasks.populations import population
from tests.planted.composition import planted as composed
from tests.planted.crossing import planted as exchanged

CPU = torch.device("cpu")

MAIN, SECOND, THIRD, OTHER = "d8l6-5", "d8l6-8", "d8l6-10", "d8l6-3"

COST = {"seconds": 2.5, "device": "CPU, 1 threads", "forwards": 100.0, "plain": 250.0}

PAIRS_OF_GRAPHS, EIGHT, LAYERED = 32, 8, 4
"""How many graphs were measured where it is not all of them."""


def record(experiment: str, name: str, predictions: Predictions, **settings: object) -> Record:
    recipe, _ = split(name)
    fits = {"d8l6": ("one", "two"), "d8l8": ()}.get(recipe, ("stay", "one", "two"))
    loops = 6 if recipe == "d8l6" else 8
    facts = ModelFacts(name, "f" * 64, loops, depth=8, nodes=10, heads=4, fits=dict.fromkeys(fits, 2))
    return Record(experiment, facts, predictions, settings, COST)


def native(name: str, *places: int, layered: int = 0) -> Record:
    """After loops 0, 1, ... these positions are read, 8 from then on; starts 0, 1, 2 are one step late at loop 2."""
    graphs, starts = all_starts(population("rings").graphs)
    read = torch.tensor([*places, *[8] * (17 - len(places))])[:, None].repeat(1, len(starts))
    read[2, starts < 3] -= 1
    nodes = walk(graphs, starts, 9).gather(1, read.T).T.to(torch.uint8)
    found = {"native": nodes}
    if layered:
        found["layers"] = nodes[1:, None, : 10 * layered].repeat(1, 4, 1)
    return record("trajectories", name, {"rings": found}, layered=layered)


def target(name: str) -> Record:
    """Every map gives its target; without one, every other instance stays and every other goes on by one."""
    at = instances(targets.WHERE, 8, CPU)
    found = {"unsteered": torch.where(torch.arange(len(at.starts)) % 2 == 0, at.current, at.ahead(1))}
    for hops, which in ((1, "one"), (2, "two")):
        for fit in (1, 2):
            found |= {f"{which}-{fit}": at.ahead(hops), f"{which}-{fit} before F": at.current}
    return record("targets", name, {targets.WHERE: {key: nodes.to(torch.uint8) for key, nodes in found.items()}})


def forgetful(string: str, fit: int, at: Walks) -> Tensor:
    """Right for three calls, then at u again; the second fit cannot do two-one."""
    lost = len(string) > 3 or (string, fit) == ("21", 2)
    return at.ahead(0 if lost else composition.hops(string))


def two_calls(name: str) -> Record:
    facts = record("two-calls", name, {}).facts
    ((where, found),) = composed(composition.ORIGINAL, facts, 512, forgetful).items()
    asked = {composition.name_of(string, fit) for string in composition.TWO_CALLS for fit in (1, 2)}
    return record("two-calls", name, {where: {key: found[key] for key in asked}})


def crossed(name: str) -> Record:
    """Head 2 does everything: its pattern gives E, its output D and the repair."""
    chosen, tested = (crossing.pairs(where, 8, CPU, PAIRS_OF_GRAPHS) for where in (crossing.DISCOVERY, CONFIRMED))
    every, kept = exchanged(chosen), crossing.names_of(4, choose_only=True)
    discovery = {name: nodes for name, nodes in every.items() if name.partition("/")[2] in kept}
    found = {crossing.DISCOVERY: discovery, CONFIRMED: exchanged(tested)}
    return record("crossing", name, found, confirmation=CONFIRMED)


CONFIRMED = crossing.CONFIRMATION


def written(store: Store, made: Iterable[Record]) -> list[Record]:
    """The records as they come back from a store."""
    for each in made:
        save(store, each, {"backbone": each.facts.key})
    return records(store)
