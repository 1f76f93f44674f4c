"""Matched supervision: does a loss at every loop change which transitions a map can select?

Backbones come in pairs that differ in their loss alone: `matched-final-3` is taught after its last loop, and
`matched-stepwise-3` (same start, same batches) after every loop.  From h_L each is called once more: without a map, and
with a map fitted to stay at u, to walk one step or two.

The targets wrap around the cycle of the start s.  On a cycle whose length divides 10, f^10(s) is s itself, so copying s
scores on "two" without walking anywhere.  Hence the split by cycle length and the copy baselines; and hence the readout
before F, which tells what J read out of the state from what the call of F then did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from loopscope.errors import InputError, nearest
from loopscope.program import F, J
from loopscope.studies.records import ModelFacts, Predictions, check_measured
from loopscope.studies.trained import TrainedModel, Walks, instances, walks
from loopscope.tasks.graph_walk import cycle_lengths

FINAL, STEPWISE = "matched-final", "matched-stepwise"
WHERE = "matched-test"

HOPS = {"stay": 0, "one": 1, "two": 2, "one-long": 1, "two-long": 2}
"""Steps from u that each target asks for; a `long` map is fitted to the same target with more updates."""

ANSWERS = ("stay", "one", "two", "other")
ENDPOINT, UNSTEERED, BEFORE, LONG = "endpoint", "unsteered", " before F", "-long"

# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(trained: TrainedModel, where: str = WHERE) -> Predictions:
    """The node answered in every instance, by condition.

    `endpoint` is read after the trained calls, `unsteered` after one more, `two-1` after J and one more call,
    `two-1 before F` after J alone.  Every fit of every target of `HOPS` that the model has maps for.
    """
    maps = trained.named(*(target for target in HOPS if target in trained.maps))
    budget = F**trained.loops
    programs = {ENDPOINT: budget, UNSTEERED: budget | F}
    for name in maps:
        programs |= {name: budget | J(name) | F, name + BEFORE: budget | J(name)}
    return {where: trained.answers(walks(where, trained).tokens, programs, maps=maps)}


# ---- what was measured, put in order ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backbone:
    """One backbone's answers by condition (`endpoint`, `unsteered`, `two`, `two before F`), a row for each fit."""

    name: str
    given: Mapping[str, UInt8[Tensor, "fits n"]]

    @property
    def regime(self) -> str:
        """Its recipe, which says how it was supervised."""
        return self.name.rpartition("-")[0]

    @property
    def seed(self) -> str:
        """The number of its seed, by which backbones are paired."""
        return self.name.rpartition("-")[2]


@dataclass(frozen=True)
class Study:
    """All backbones on one population, and what they are judged by: `nodes` are u, f(u), f^2(u)."""

    at: Walks
    nodes: Int[Tensor, "3 n"]
    lengths: Int[Tensor, " n"]
    backbones: Sequence[Backbone]

    @property
    def regimes(self) -> dict[str, list[Backbone]]:
        """Backbones by recipe, in the order given; one that is alone goes by its own name."""
        found: dict[str, list[Backbone]] = {}
        for each in self.backbones:
            found.setdefault(each.regime, []).append(each)
        return {name if len(members) > 1 else members[0].name: members for name, members in found.items()}

    @property
    def singles(self) -> dict[str, list[Backbone]]:
        """Every backbone by itself."""
        return {each.name: [each] for each in self.backbones}

    def hits(self, given: Int[Tensor, "fits n"] | UInt8[Tensor, "fits n"], answer: str) -> Bool[Tensor, "fits n"]:
        """Where the answers given are of this kind."""
        matches = given.long() == self.nodes[:, None]
        return ~matches.any(0) if answer == "other" else matches[ANSWERS.index(answer)]

    def right(self, each: Backbone, condition: str) -> Bool[Tensor, "fits n"]:
        """Where a map led to its own target."""
        return self.hits(each.given[condition], target_of(condition.removesuffix(BEFORE)))


def study_of(found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str) -> Study:
    """InputError without backbones, for one without facts or with another request, and for answers that do not fit."""
    if not found:
        raise InputError("matched supervision needs the predictions of at least one backbone, not of none")
    check_measured(found, facts, where)
    depths = sorted({facts[name].depth for name in found})
    if len(depths) > 1:
        raise InputError(f"backbones with requests of {' and '.join(map(str, depths))} steps cannot be compared")
    at = instances(where, depths[0], torch.device("cpu"), rule="three")
    backbones = [Backbone(name, _given(found[name][where], facts[name], len(at.starts))) for name in found]
    nodes = torch.stack([at.ahead(steps) for steps in range(3)])
    return Study(at, nodes, cycle_lengths(at.graphs).gather(1, at.starts[:, None])[:, 0], backbones)


def _given(predictions: Mapping[str, Tensor], facts: ModelFacts, instances: int) -> dict[str, Tensor]:
    """The answers with the fits of a target as rows of one tensor."""
    names = {ENDPOINT: [ENDPOINT], UNSTEERED: [UNSTEERED]}
    for target in (target for target in HOPS if target in facts.fits):
        fits = [f"{target}-{fit}" for fit in range(1, 1 + facts.fits[target])]
        names |= {target: fits, target + BEFORE: [fit + BEFORE for fit in fits]}
    for name in (name for fits in names.values() for name in fits):
        if name not in predictions:
            raise InputError(f"{facts.name} has no answers for {name!r}{nearest(name, predictions)}")
        if predictions[name].shape != (instances,):
            shape = list(predictions[name].shape)
            raise InputError(f"{facts.name} has answers of shape {shape} for {name!r}, not one for each of {instances}")
    return {condition: torch.stack([predictions[fit] for fit in fits]) for condition, fits in names.items()}


def target_of(condition: str) -> str:
    """The answer that a map is fitted to give."""
    return ANSWERS[HOPS[condition]]


def targets_of(members: Iterable[Backbone]) -> list[str]:
    """Targets that all of these backbones have maps for."""
    return [target for target in HOPS if all(target in each.given for each in members)]


def called(condition: str) -> str:
    """A condition as tables call it."""
    return {ENDPOINT: "last trained loop", UNSTEERED: "no map"}.get(condition, f"J_{condition}")
