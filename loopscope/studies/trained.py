"""What experiments are done on: a trained backbone with the maps fitted to it; the walks that it is asked about."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from loopscope.bounds import taken
from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.execute.traces import Result
from loopscope.maps import AffineMap
from loopscope.model import LoopedTransformer
from loopscope.program import Program
from loopscope.store.artefacts import (
    BACKBONE,
    MAP,
    RESULT,
    TRAIL,
    load_backbone,
    load_fit,
    load_trail,
    name_of,
    recipe_of,
)
from loopscope.store.files import damaged
from loopscope.store.store import Store
from loopscope.store.zoo import find
from loopscope.tasks.graph_walk import GraphWalk, advance, all_starts
from loopscope.tasks.populations import Rule, population


@dataclass
class Meter:
    """What runs have cost, in (example, row, layer) triples: those computed, and those of every program run alone."""

    rows: int = 0
    plain_rows: int = 0


@dataclass(frozen=True)
class TrainedModel:
    """A backbone on one device and its maps: `maps["one"]` lists the fits of J_one, in order.

    `depth` is the request that all experiments on graph walks make, the deepest one of training; 0 for other tasks.
    `keys` are those of the maps, in the same order, `trails` the maps that each fit passed through, by update, where
    they were kept; `meter` counts what `run` costs.
    """

    name: str
    key: str
    model: LoopedTransformer
    maps: Mapping[str, list[AffineMap]]
    depth: int
    device: torch.device
    keys: Mapping[str, list[str]] = field(default_factory=dict)
    trails: Mapping[str, list[Mapping[int, AffineMap]]] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)

    @property
    def loops(self) -> int:
        """The trained number of calls."""
        return self.model.config.loops

    def named(self, *targets: str) -> dict[str, AffineMap]:
        """The maps of these targets as programs call them: one-1, one-2, ...; InputError for a target without maps."""
        for target in targets:
            if target not in self.maps:
                there = ", ".join(self.maps) or "none"
                raise InputError(f"{self.name} has no maps {target!r}; there are {there}")
        return {f"{target}-{i}": step for target in targets for i, step in enumerate(self.maps[target], 1)}

    def run(self, tokens: Int[Tensor, "n tokens"], programs: Iterable[Program], **settings: Any) -> Result:
        """`execute.run` on this backbone, with its cost added to the meter."""
        asked = list(programs)
        found = run(self.model, tokens, asked, **settings)
        self.meter.rows += found.work.rows
        self.meter.plain_rows += tokens.numel() * len(self.model.layers) * sum(each.calls for each in asked)
        return found

    def answers(
        self, tokens: Int[Tensor, "n tokens"], programs: Mapping[str, Program], **settings: Any
    ) -> dict[str, UInt8[Tensor, " n"]]:
        """The class read out at the end of every program, by its name, on the CPU."""
        found = self.run(tokens, programs.values(), **settings)
        return {name: found[each].predictions[:, 0].to(torch.uint8).cpu() for name, each in programs.items()}

    def forwards(self, rows: int) -> float:
        """Rows as forward-equivalents: plain runs of the trained calls on one instance."""
        length = GraphWalk(self.model.config.classes).length
        return rows / (length * len(self.model.layers) * self.loops)


def load_trained(
    store: Store,
    asked: str,
    device: torch.device,
    prefix: str = "",
    task: str = "graph-walk",
    only: Collection[str] | None = None,
) -> TrainedModel:
    """The backbone of this name or key and all its maps, by what their recipes are called without `prefix`.

    `only` are the keys of the maps that count, where not all do.  InputError for a backbone of another task.
    """
    backbone = find(store, asked, BACKBONE)
    config = recipe_of(backbone)
    if config["data"]["task"] != task:
        raise InputError(f"{name_of(backbone)} is no {task} backbone: its task is {config['data']['task']}")
    mine = [
        fit
        for fit in store.every(MAP)
        if fit.manifest.inputs.get(BACKBONE) == backbone.key and (only is None or fit.key in only)
    ]
    targets = {fit.key: recipe_of(fit)["name"].removeprefix(prefix) for fit in mine}
    mine.sort(key=lambda fit: fit.manifest.config["fit"])
    maps: dict[str, list[AffineMap]] = {}
    keys: dict[str, list[str]] = {}
    trails: dict[str, list[Mapping[int, AffineMap]]] = {}
    for fit in mine:
        target = targets[fit.key]
        keys.setdefault(target, []).append(fit.key)
        maps.setdefault(target, []).append(load_fit(fit).to(device).requires_grad_(False))
        if store.find(TRAIL, dict(fit.manifest.config), dict(fit.manifest.inputs)) is not None:
            passed = load_trail(store, fit)
            trails.setdefault(target, []).append({at: step.to(device) for at, step in passed.items()})
    model = load_backbone(backbone).to(device)
    return TrainedModel(
        name_of(backbone), backbone.key, model, maps, config["data"].get("depth", 0), device, keys, trails
    )


def digest_of(store: Store, inputs: Mapping[str, str]) -> str:
    """The SHA-256 of the selected weights of a record's backbone, which another training of its seed would not have.

    DamagedError where its result does not say it.
    """
    artefact = store.open(BACKBONE, inputs[BACKBONE])
    match artefact.json(RESULT):
        case {"digests": {"selected": str(selected)}}:
            return selected
    raise damaged(artefact.folder / RESULT, "the digest of the selected weights", "something else")


@dataclass(frozen=True)
class Walks:
    """All starts of a population's graphs, at one request: tokens, the current node u = f^depth(s), what counts."""

    graphs: Int[Tensor, "instances nodes"]
    starts: Int[Tensor, " instances"]
    tokens: Int[Tensor, "instances tokens"]
    current: Int[Tensor, " instances"]
    kept: Bool[Tensor, " instances"]
    clusters: Int[Tensor, " instances"]

    @property
    def many(self) -> int:
        """How many graphs there are: every node of a graph is a start."""
        return len(self.graphs) // self.graphs.shape[1]

    def ahead(self, steps: int) -> Int[Tensor, " instances"]:
        """f^steps(u)."""
        return advance(self.graphs, self.current, steps)


def walks(where: str, trained: TrainedModel, rule: Rule | None = None) -> Walks:
    """The instances of a population as the model is asked about them."""
    return instances(where, trained.depth, trained.device, rule)


def instances(where: str, depth: int, device: torch.device, rule: Rule | None = None) -> Walks:
    """All starts of a population at a request; `rule` is the population's own unless another is named.

    Those on the CPU, on which many records are counted, are kept: nobody may change them.
    """
    return _on_cpu(where, depth, rule) if device.type == "cpu" else _instances(where, depth, device, rule)


@lru_cache(maxsize=4)
def _on_cpu(where: str, depth: int, rule: Rule | None) -> Walks:
    return _instances(where, depth, torch.device("cpu"), rule)


def _instances(where: str, depth: int, device: torch.device, rule: Rule | None) -> Walks:
    chosen = population(where)
    graphs, starts = (part.to(device) for part in all_starts(chosen.graphs))
    clusters = torch.arange(len(chosen.rows)).repeat_interleave(chosen.nodes)
    tokens = GraphWalk(chosen.nodes).tokens(graphs, starts, depth)
    kept = chosen.mask(rule).to(device)
    return Walks(graphs, starts, tokens, advance(graphs, starts, depth), kept, clusters)


def first_graphs(at: Walks, graphs: int | None) -> Walks:
    """All starts of the first graphs (None: of all); InputError for more graphs than there are, or none."""
    if graphs is None:
        return at
    instances = taken(graphs, at.many, "graphs") * at.graphs.shape[1]
    return Walks(*(getattr(at, part.name)[:instances] for part in fields(at)))


def some_graphs(at: Walks, first: int, graphs: int | None) -> Walks:
    """All starts of so many graphs from number `first` on (None: of all that follow); InputError as `first_graphs`."""
    left_out = taken(first, at.many - 1, "graphs to leave out", 0) * at.graphs.shape[1]
    return first_graphs(Walks(*(getattr(at, part.name)[left_out:] for part in fields(at))), graphs)
