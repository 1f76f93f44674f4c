"""How good trained backbones and maps are at what they were trained for, on graphs they never saw.

A backbone is asked for its deepest request after its trained number of calls; a map for its own target after its
steered calls.  Units of resampling are graphs: the starts of one graph succeed or fail together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from loopscope.artefacts import BACKBONE, MAP, load_backbone, load_fit, name_of
from loopscope.execute import run
from loopscope.program import F, J, Program
from loopscope.stats import cluster_bootstrap, tally
from loopscope.store import Artefact, Store
from loopscope.tasks.graph_walk import GraphWalk, all_starts, walk
from loopscope.tasks.populations import population

TESTED_ON = {
    "main": ("rings", "confirmation"),
    "matched": ("matched-test", "matched-test"),
    "eight": ("eight-test", "eight-test"),
    "tiny": ("tiny-test", "tiny-test"),
}
"""For each study, the populations that backbones and maps are tested on."""

SEED, DRAWS = 20260923, 2000


@dataclass(frozen=True)
class Score:
    """Accuracy on `n` instances of a population, with its 95 % interval over graphs."""

    name: str
    key: str
    program: str
    target: str
    population: str
    accuracy: float
    low: float
    high: float
    n: int
    graphs: int


def score_walks(store: Store, device: torch.device) -> Iterator[Score]:
    """The scores of every graph-walk backbone of a store and of its maps, one after the other."""
    fits = store.all(MAP)
    for backbone in store.all(BACKBONE):
        data = backbone.manifest.config["recipe"]["data"]
        if data["task"] != "graph-walk":
            continue
        model = load_backbone(backbone).to(device)
        rings, tested = TESTED_ON[data["held_out"]]
        task = GraphWalk(data["nodes"])
        yield _score(backbone, model, task, F**model.config.loops, None, rings, data["depth"], data["depth"], device)
        for fit in fits:
            if fit.manifest.inputs.get(BACKBONE) == backbone.key:
                asked = fit.manifest.config["recipe"]["data"]
                steps = asked["base"] + asked["hops"] * asked["calls"]
                program = _program(asked, model.config.loops)
                yield _score(fit, model, task, program, load_fit(fit), tested, asked["request"], steps, device)


def _program(asked: dict[str, Any], loops: int) -> Program:
    """(J F) after the calls that come before it."""
    prefix = loops if asked["prefix"] is None else asked["prefix"]
    steered = reduce(lambda program, _: program | J("map") | F, range(asked["calls"] - 1), J("map") | F)
    return F**prefix | steered if prefix else steered


def _score(
    artefact: Artefact, model: Any, task: GraphWalk, program: Program, step: Any, where: str, request: int, steps: int,
    device: torch.device,
) -> Score:  # fmt: skip
    chosen = population(where)
    graphs, starts = (part.to(device) for part in all_starts(chosen.graphs))
    maps = {} if step is None else {"map": step.to(device)}
    found = run(model, task.tokens(graphs, starts, request), program, maps=maps)[program].predictions[:, 0]
    right: Tensor = (found == walk(graphs, starts, steps)[:, -1]).cpu()
    clusters = torch.arange(len(chosen.rows)).repeat_interleave(task.nodes)
    kept = chosen.mask()
    estimate = cluster_bootstrap(tally(right, clusters, kept), draws=DRAWS, seed=SEED)
    target = f"f^{steps}(s)"
    return Score(
        name_of(artefact), artefact.key, str(program), target, where, estimate.value, estimate.low, estimate.high,
        int(kept.sum()), len(chosen.rows),
    )  # fmt: skip
