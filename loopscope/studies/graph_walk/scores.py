"""How good trained backbones and maps are at what they were trained for, on graphs they never saw.

A backbone is asked for its deepest request after its trained number of calls; a map for its own target after its
steered calls.  Units of resampling are graphs: the starts of one graph succeed or fail together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import torch

from loopscope.execute.executor import run
from loopscope.maps import AffineMap
from loopscope.model import LoopedTransformer
from loopscope.program import F, J, Program
from loopscope.stats import cluster_bootstrap, tally
from loopscope.store.artefacts import BACKBONE, MAP, load_backbone, load_fit, name_of, recipe_of
from loopscope.store.store import Artefact, Store
from loopscope.studies.trained import instances
from loopscope.tasks.graph_walk import advance

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
    """The scores of every graph-walk backbone of a store and of its maps, controls left out, one after the other."""
    fits = store.every(MAP)
    for backbone in store.every(BACKBONE):
        if recipe_of(backbone)["data"]["task"] != "graph-walk":
            continue
        data = recipe_of(backbone, "held_out", "depth")["data"]
        model = load_backbone(backbone).to(device)
        rings, tested = TESTED_ON[data["held_out"]]
        native = _Asked(backbone, F**model.config.loops, data["depth"], data["depth"])
        yield from _scores(model, [native], {}, rings, device)
        own = [fit for fit in fits if fit.manifest.inputs.get(BACKBONE) == backbone.key and not _is_control(fit)]
        maps = {_map_name(fit): load_fit(fit).to(device) for fit in own}
        yield from _scores(model, [_asked(fit, model.config.loops) for fit in own], maps, tested, device)


@dataclass(frozen=True)
class _Asked:
    """What is asked of an artefact: `program` must end `steps` steps after the start when told to walk `request`."""

    artefact: Artefact
    program: Program
    request: int
    steps: int


def _is_control(fit: Artefact) -> bool:
    """Whether a map was fitted before another block than F, or acts on some rows only: no program says that."""
    data = recipe_of(fit)["data"]
    return (data.get("block", "trained"), data.get("rows", "all")) != ("trained", "all")


def _map_name(fit: Artefact) -> str:
    return f"{recipe_of(fit)['name']}-{fit.manifest.config['fit']}"


def _asked(fit: Artefact, loops: int) -> _Asked:
    """(J F) after the calls that come before it."""
    data = recipe_of(fit, "prefix", "calls", "request", "base", "hops")["data"]
    prefix = loops if data["prefix"] is None else data["prefix"]
    once = J(_map_name(fit)) | F
    steered = reduce(lambda program, _: program | once, range(data["calls"] - 1), once)
    program = F**prefix | steered if prefix else steered
    return _Asked(fit, program, data["request"], data["base"] + data["hops"] * data["calls"])


def _scores(
    model: LoopedTransformer, asked: list[_Asked], maps: dict[str, AffineMap], where: str, device: torch.device
) -> Iterator[Score]:
    """Those of one backbone on one population; runs with the same request share their common calls."""
    for request in sorted({each.request for each in asked}):
        same = [each for each in asked if each.request == request]
        at = instances(where, request, device)
        found = run(model, at.tokens, [each.program for each in same], maps=maps)
        for each in same:
            right = found[each.program].predictions[:, 0] == advance(at.graphs, at.starts, each.steps)
            estimate = cluster_bootstrap(tally(right.cpu(), at.clusters, at.kept.cpu()), draws=DRAWS, seed=SEED)
            yield Score(
                name_of(each.artefact), each.artefact.key, str(each.program), f"f^{each.steps}(s)", where,
                estimate.value, estimate.low, estimate.high, int(at.kept.sum()), estimate.n,
            )  # fmt: skip
