"""Target selection: from one and the same h6, does the map before the next call decide which node is answered?

The extra call is run without a map, and with each; its answer is u (stay), f(u) (one hop), f^2(u) (two hops) or another
node.  Read before F, the mapped state shows whether J itself had moved the answer.  As a control the mapped state is
moved to the next graph: a state holds all that its run knows, so its answers are then those of another graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import UInt8
from torch import Tensor

from loopscope.program import F, J
from loopscope.quantity import Quantity, QuantityTable
from loopscope.studies.graph_walk.counting import distribution, share
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, Walks, instances, walks

WHERE = "confirmation"
UNSTEERED, BEFORE = "unsteered", " before F"
AFTER_F, BEFORE_F, MOVED = "after F", "before F", "moved"
"""What is read: the call's answer; the mapped state before the call; the answer for the state of another graph."""

NOTE = "Share of instances with u, f(u), f^2(u) distinct; mean of the fits; graphs resampled."

PAPER = {UNSTEERED: {"f(u)": 0.482}, "one": {"f(u)": 0.996}, "two": {"f^2(u)": 0.982}}
"""What is published for the confirmation graphs after F, by map and answer."""


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(trained: TrainedModel, where: str = WHERE, targets: tuple[str, ...] = ("one", "two")) -> Predictions:
    """The node answered in every instance, by condition: `unsteered`, `one-1`, `one-1 before F`, ...

    InputError where the model has no maps for one of the targets.
    """
    maps = trained.named(*targets)
    start = F**trained.loops
    programs = {UNSTEERED: start | F}
    for name in maps:
        programs |= {name: start | J(name) | F, name + BEFORE: start | J(name)}
    return {where: trained.answers(walks(where, trained).tokens, programs, maps=maps)}


# ---- analysis --------------------------------------------------------------------------------------------------------


def tables(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> list[QuantityTable]:
    """For each condition, how often u, f(u), f^2(u) or another node is answered: `targets.answer`.

    `paper`: with the published numbers beside, for the backbone that stands for the published one.
    """
    result = []
    for where, found in predictions.items():
        walks = _walks(where, facts)
        for (steered, read), fits in conditions(found, facts).items():
            known = PAPER.get(steered) if paper and where == WHERE and read == AFTER_F else None
            at = {"map": steered, "read": read, "where": where}
            rows = distribution("targets.answer", fits, walks, range(3), at, published=known)
            called = steered if read == AFTER_F else f"{steered} {read}"
            result.append(QuantityTable("targets.answers", f"Answers, {called} ({where})", rows, NOTE))
    return result


def gain(predictions: Predictions, facts: ModelFacts, where: str = WHERE) -> Quantity:
    """How much more often J_one gives f(u) than the unsteered call does (paired)."""
    walks, found = _walks(where, facts), conditions(predictions[where], facts)
    steered, unsteered = (found[which, AFTER_F] == walks.ahead(1) for which in ("one", UNSTEERED))
    return share("targets.gain", "J_one minus unsteered", steered, walks, {"where": where}, minus=unsteered)


def conditions(
    found: Mapping[str, UInt8[Tensor, " n"]], facts: ModelFacts
) -> dict[tuple[str, str], UInt8[Tensor, "fits n"]]:
    """The answers of all fits by map and by what is read; moved states answer for the graph after theirs."""
    result = {(UNSTEERED, AFTER_F): found[UNSTEERED][None]}
    for target in (target for target in facts.fits if f"{target}-1" in found):
        names = [f"{target}-{fit}" for fit in range(1, 1 + facts.fits[target])]
        after = torch.stack([found[name] for name in names])
        before = torch.stack([found[name + BEFORE] for name in names])
        moved = after.roll(facts.nodes, -1)
        result |= {(target, AFTER_F): after, (target, BEFORE_F): before, (target, MOVED): moved}
    return result


def _walks(where: str, facts: ModelFacts) -> Walks:
    return instances(where, facts.depth, torch.device("cpu"), "three")
