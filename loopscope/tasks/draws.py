"""How the graphs of every population are drawn: one function per study, each a pure function of the seeds below."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import numpy as np
import torch

from loopscope.tasks.graph_walk import SHIFT

Graph = tuple[int, ...]
Graphs = tuple[Graph, ...]

LOCK_SEED = 20260923
PAIRS_2403, PAIRS_2404, SWITCHING_2501 = 2026092403, 2026092404, 2026092501
INDEPENDENT_3001, SELECTED_2608 = 2026093001, 2026092608
MATCHED_SEEDS = {"matched-selection": 2026092611, "matched-test": 2026092612, "matched-maps": 2026092613}
EIGHT_BROAD_SEED = 2026092402
EIGHT_LOCK_SEED = 40320
"""Our own choice, 8!: the seeds of the reference study's eight-node locks are not on record."""
TINY_SEED = 720


@cache
def locks() -> Mapping[str, Graphs]:
    """The five locks, from one stream of permutations; a graph that was drawn before is skipped.

    The order of the entries is the order of the draws.
    """
    generator = torch.Generator().manual_seed(LOCK_SEED)
    drawn: set[Graph] = set()

    def lock(size: int, make: Callable[[Graph], Graph] = tuple) -> Graphs:
        graphs: list[Graph] = []
        while len(graphs) < size:
            graph = make(tuple(torch.randperm(10, generator=generator).tolist()))
            if graph not in drawn:
                drawn.add(graph)
                graphs.append(graph)
        return tuple(graphs)

    return {
        "selection": lock(128),
        "discovery": lock(32),
        "confirmation": lock(512),
        "rings": lock(512, _ring_through),
        "smoke": lock(4),
    }


def _ring_through(order: Graph) -> Graph:
    """The single cycle that visits the nodes in this order."""
    follows = dict(zip(order, order[1:] + order[:1], strict=True))
    return tuple(follows[node] for node in range(len(order)))


def _swap(graph: Graph, i: int, j: int) -> Graph:
    """The graph with the arrows out of nodes i and j exchanged."""
    row = list(graph)
    row[i], row[j] = row[j], row[i]
    return tuple(row)


@cache
def pools() -> Mapping[str, Graphs]:
    """The swaps, and those of them that the first experiments did not use, both sorted."""
    drawn = locks()
    origins = drawn["discovery"] + drawn["confirmation"] + drawn["smoke"]
    swaps = {_swap(graph, i, j) for graph in origins for i, j in itertools.combinations(range(10), 2)}
    swaps.difference_update(*drawn.values())
    reserve = swaps.difference(*map(_first_battery, origins))
    return {"swaps": tuple(sorted(swaps)), "reserve": tuple(sorted(reserve))}


def _first_battery(graph: Graph) -> Iterable[Graph]:
    """The swaps of `graph` that the first set of patching experiments used as giving graphs."""
    for node in range(10):
        yield _swap(graph, node, (node + 1) % 10)
    for current in range(10):
        other = (current + SHIFT) % 10
        answer = graph[other]
        partner = (answer + 1) % 10
        yield _swap(graph, answer, partner if partner != other else (answer + 2) % 10)


def _shuffled(pool: Iterable[Graph], seed: int) -> Graphs:
    """The sorted pool in the order of a seeded shuffle: slices of it are cohorts."""
    graphs = sorted(pool)
    random.Random(seed).shuffle(graphs)
    return tuple(graphs)


@cache
def cohorts() -> Mapping[str, Graphs]:
    """The cohorts that the experiments on the main ten-node backbones are made on."""
    pool = pools()
    first = _shuffled(pool["reserve"], PAIRS_2403)[:1024]
    unused = set(pool["reserve"]).difference(first)
    pairs = _shuffled(unused, PAIRS_2404)[:1024]
    switching = _shuffled(unused.difference(pairs), SWITCHING_2501)[:514]
    independent = _shuffled(set(pool["swaps"]).difference(first, pairs, switching), INDEPENDENT_3001)[:512]
    selected = _shuffled(pool["swaps"], SELECTED_2608)
    return {
        "pairs-2403-receiver": first[:512],
        "pairs-2403-giver": first[512:],
        "reserve-after-2403": tuple(sorted(unused)),
        "pairs-2404-receiver": pairs[:512],
        "pairs-2404-giver": pairs[512:],
        "smoke-2501": switching[:2],
        "switching-2501": switching[2:],
        "independent-3001": independent,
        "discovery-2608-receiver": selected[:32],
        "discovery-2608-giver": selected[32:64],
        "pairs-2608-receiver": selected[64:576],
        "pairs-2608-giver": selected[576:1088],
        "switching-2608": selected[1088:1600],
        "smoke-2608": selected[1600:1602],
    }


@cache
def matched() -> Mapping[str, Graphs]:
    """The three disjoint pools of the matched-supervision study: from twice as many draws, the first that are new."""
    sizes = {"matched-selection": 512, "matched-test": 512, "matched-maps": 2048}
    taken: set[Graph] = set()
    pools: dict[str, Graphs] = {}
    for name, size in sizes.items():
        generator = torch.Generator().manual_seed(MATCHED_SEEDS[name])
        drawn = map(tuple, torch.rand(2 * size, 10, generator=generator).argsort(dim=1).tolist())
        pools[name] = tuple(graph for graph in dict.fromkeys(drawn) if graph not in taken)[:size]
        taken.update(pools[name])
    return pools


@cache
def eight() -> Mapping[str, Graphs]:
    """The eight-node pools: a broad sample of all 40,320 graphs, and two locks."""
    universe = tuple(itertools.permutations(range(8)))
    broad = np.random.default_rng(EIGHT_BROAD_SEED).choice(len(universe), 8192, replace=False)
    locks = _shuffled(universe, EIGHT_LOCK_SEED)
    return {
        "eight-selection": locks[:512],
        "eight-test": locks[512:1024],
        "eight-broad": tuple(universe[index] for index in broad),
    }


@cache
def tiny() -> Mapping[str, Graphs]:
    """Six-node graphs for tests and tutorials: 72 of the 720 choose checkpoints, another 72 are for testing."""
    shuffled = _shuffled(itertools.permutations(range(6)), TINY_SEED)
    return {"tiny-selection": shuffled[:72], "tiny-test": shuffled[72:144]}
