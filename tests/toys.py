"""Training at toy size: recipes done in the blink of an eye, and walks worked out one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.training.cohort.objective import Objective
from loopscope.training.cohort.trainer import Trainer
from loopscope.training.recipe import (
    BackboneRecipe,
    MapRecipe,
    Optimiser,
    ParityData,
    RelationFit,
    Schedule,
    Stage,
    WalkFit,
)

CPU = torch.device("cpu")

# ---- recipes of toy size ---------------------------------------------------------------------------------------------


def stage_of(updates: int, check_every: int, name: str = "train", **optimiser: Any) -> Stage:
    settings = {"schedule": Schedule(3e-3, warmup=3, decay=updates), "decay": 0.1, **optimiser}
    return Stage(name, updates, Optimiser(**settings), check_every)


def toy_walk(updates: int = 6, check_every: int = 3, **changes: Any) -> BackboneRecipe:
    """A six-node graph walk on a model of width 16 that trains in a blink."""
    tiny = backbone_recipe("tiny")
    model = replace(tiny.model, width=16, mlp=32)
    return replace(
        tiny, name="toy", model=model, batch=8, stages=(stage_of(updates, check_every),), **changes
    )  # fmt: skip


def toy_map(name: str = "one", updates: int = 6, check_every: int = 3, **changes: Any) -> MapRecipe:
    """`tiny-one` or the like, of rank 3."""
    tiny, stages = map_recipe("tiny-one"), (stage_of(updates, check_every, "fit"),)
    assert isinstance(tiny.data, WalkFit)
    data = replace(tiny.data, hops={"one": 1, "two": 2}[name])
    settings = {"name": f"toy-{name}", "data": data, "rank": 3, "batch": 8, "stages": stages}
    return replace(tiny, **{**settings, **changes})


def toy_parity(updates: int = 6, check_every: int = 3, longest: int = 4) -> BackboneRecipe:
    made = backbone_recipe("parity")
    model = replace(made.model, width=16, heads=4, mlp=32)
    return replace(
        made, name="toy-parity", model=model, data=ParityData(longest, every=2), batch=8,
        stages=(stage_of(updates, check_every),),
    )  # fmt: skip


def toy_relations(updates: int = 6, check_every: int = 3) -> BackboneRecipe:
    made = backbone_recipe("relations")
    model = replace(made.model, width=16, heads=4, mlp=32)
    return replace(made, name="toy-relations", model=model, batch=8, stages=(stage_of(updates, check_every),))


def toy_relation_map(updates: int = 4, check_every: int = 2) -> MapRecipe:
    made = map_recipe("relations-curriculum")
    stages = tuple(stage_of(updates, check_every, f"length {n}") for n in (4, 6))
    return replace(made, name="toy-chain", data=RelationFit((4, 6), queries=16), batch=8, stages=stages)


# ---- walks, and a run to the end -------------------------------------------------------------------------------------


def walk_tokens(graph: list[int], start: int, depth: int) -> list[int]:
    """BOS, (EDGE, j, f(j)) for every node, QUERY, start, DEPTH, ANSWER; ids as the protocol numbers them."""
    n = len(graph)
    edges = [token for source, target in enumerate(graph) for token in (n, source, target)]
    return [n + 3, *edges, n + 1, start, n + 3 + depth, n + 2]


def walked(graph: list[int], start: int, steps: int) -> int:
    for _ in range(steps):
        start = graph[start]
    return start


def graphs_and_starts(row: Tensor, batch: int, nodes: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Graphs, starts and whatever comes after them, from the integers a step was made from."""
    graphs, starts, rest = row.split([batch * nodes, batch, len(row) - batch * (nodes + 1)])
    return graphs.view(batch, nodes).tolist(), starts.tolist(), rest.tolist()


def ends(graphs: list[list[int]], starts: list[int], steps: Sequence[int]) -> Tensor:
    return torch.tensor([walked(g, s, n) for g, s, n in zip(graphs, starts, steps, strict=True)])


def update_of(number: int) -> Tensor:
    return torch.tensor(number)


def finished(objective: Objective, keep: str = "best", window: int = 100) -> Trainer:
    trainer = Trainer(objective, keep)
    trainer.run(lambda *_: None, window)
    return trainer
