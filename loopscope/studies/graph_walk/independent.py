"""Composition on independent graphs, on several backbones: how much of it is a matter of the backbone?

The paper repeats its strings of two and eight calls on graphs that nothing else was measured on, with five backbones.
The main one keeps every answer (`composition`); the others keep what the comparison takes: right answers by graph, of
all strings and fits of a kind together.  Every graph has the same instances in every string and fit, so shares and
their intervals are those that single answers would give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Int16
from torch import Tensor

from loopscope.errors import InputError
from loopscope.quantity import Quantity, QuantityTable
from loopscope.stats import Estimate, Tally, cluster_bootstraps
from loopscope.studies.graph_walk import composition
from loopscope.studies.graph_walk.composition import (
    CALLS,
    EVERY,
    FIRST,
    INDEPENDENT,
    NONE,
    PAIRS,
    READ_BEFORE,
    WITHOUT,
    Answers,
    first_alone,
    long_strings,
    spelled,
)
from loopscope.studies.graph_walk.counting import SEED
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, Walks, first_graphs, instances
from loopscope.tasks.populations import population

BACKBONES = 5
"""So many in all: those that are taken apart, then the first others in the order of seeds."""

AT_ONCE = 32
"""Graphs of a piece."""

TWO, ALONE, RUNS = "two calls", "two calls, first map alone", "runs"
KINDS = tuple(long_strings())
MIXED = "mixed"
CONTROLS = (WITHOUT, FIRST, NONE, READ_BEFORE)
"""Conditions of the mixed strings that are counted besides all maps."""

LAST = f"{MIXED}, call {CALLS}"
COLUMNS = (*(spelled(pair) for pair in PAIRS), LAST)
"""What the paper prints for each backbone."""

PAPER: Mapping[int, tuple[float, ...]] = {
    6: (0.9364, 0.6504, 0.7513, 0.6803, 0.1009),
    3: (0.2276, 0.1211, 0.4696, 0.9783, 0.1098),
    4: (0.8315, 0.4181, 0.5657, 0.2879, 0.0905),
    5: (0.1769, 0.0668, 0.2989, 0.8461, 0.1064),
    7: (0.1980, 0.0915, 0.2661, 0.9172, 0.1157),
}
"""The published backbones by seed, in the published order, with `COLUMNS`."""


def measure(trained: TrainedModel, where: str = INDEPENDENT, graphs: int | None = None, first: int = 0) -> Predictions:
    """`counts` of the strings of eight calls and of all pairs, on so many graphs of a population (None: all).

    They begin with graph number `first`.
    """
    found = composition.measure_long(trained, where, graphs, first)
    return {where: counts(Answers.of(found, ModelFacts.of(trained), where, first))}


def pieces(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings of `measure` for `AT_ONCE` graphs each, which together measure what these do; see `whole`."""
    first, graphs = settings.get("first", 0), settings.get("graphs")
    end = len(population(settings.get("where", INDEPENDENT)).rows) if graphs is None else first + graphs
    return [{**settings, "first": at, "graphs": min(AT_ONCE, end - at)} for at in range(first, end, AT_ONCE)]


def whole(found: Sequence[Predictions]) -> Predictions:
    """What was measured in pieces, as one: their graphs side by side; `runs` are those of each."""
    return {
        where: {
            name: each if name == RUNS else torch.cat([piece[where][name] for piece in found], -1)
            for name, each in counted.items()
        }
        for where, counted in found[0].items()
    }


def counts(answers: Answers) -> dict[str, Tensor]:
    """Right answers by graph, of all strings and fits together, among the instances that count; int16.

    - `one`, `two`, `mixed` [calls, graphs] with all maps, and `mixed, ` with each of `CONTROLS`;
    - `two calls` [pairs, graphs], and the same without their second maps;
    - `runs` [3]: how many strings times fits there are of one, two and mixed; a pair has as many as one.
    """
    found = {kind: _by_call(answers, kind, EVERY) for kind in KINDS}
    found |= {f"{MIXED}, {control}": _by_call(answers, MIXED, control) for control in CONTROLS}
    found[TWO] = torch.stack([_by_graph(answers, answers.right(pair)) for pair in PAIRS])
    found[ALONE] = torch.stack([_by_graph(answers, answers.right(pair, pair[0] + "0")) for pair in PAIRS])
    found[RUNS] = torch.tensor([len(strings) * answers.fits for strings in long_strings().values()]).short()
    return found


def _by_call(answers: Answers, kind: str, condition: str) -> Int16[Tensor, "calls graphs"]:
    strings = long_strings()[kind]
    return torch.stack(
        [
            _by_graph(answers, answers.stacked(condition, [string[:call] for string in strings]))
            for call in range(1, 1 + CALLS)
        ]
    )


def _by_graph(answers: Answers, hits: Bool[Tensor, "*runs n"]) -> Int16[Tensor, " graphs"]:
    """Counts of all fits; what needs no map was run once and counts for every fit."""
    right = (hits & answers.at.kept).flatten(0, -2)
    if hits.shape[-2] < answers.fits:
        right = right.repeat(answers.fits, 1)
    return right.sum(0).view(answers.at.many, -1).sum(-1).short()


# ---- analysis --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """What one backbone's record holds, and the instances that it is about."""

    found: Mapping[str, Int16[Tensor, " ..."]]
    at: Walks
    where: str

    @classmethod
    def of(cls, predictions: Predictions, facts: ModelFacts, where: str = INDEPENDENT) -> Counted:
        """From `counts`, or from the answers of a backbone that keeps them; InputError for other graphs."""
        found = predictions.get(where)
        if found is None:
            raise InputError(f"{facts.name} was not measured on {where!r}; there are {', '.join(predictions)}")
        if TWO not in found:
            answers = Answers.of(predictions, facts, where)
            return cls(counts(answers), answers.at, where)
        at = instances(where, facts.depth, torch.device("cpu"), "five")
        return cls(found, first_graphs(at, found[TWO].shape[-1]), where)

    @property
    def n(self) -> int:
        """Instances that count."""
        return int(self.at.kept.sum())

    def long(self, kind: str, condition: str = EVERY) -> list[Quantity]:
        """Accuracy at calls 1 to 8 of a kind of strings: `compose.long`."""
        part = kind if condition == EVERY else f"{kind}, {condition}"
        return [
            Quantity(
                "compose.long", f"call {call}", share, self.n, None,
                {"kind": kind, "condition": condition, "call": call, "where": self.where},
            )
            for call, share in enumerate(self._shares(part, KINDS.index(kind)), 1)
        ]  # fmt: skip

    def two(self, second: bool = True) -> list[Quantity]:
        """Accuracy of the pairs: `compose.two`, or without the second map, `compose.first_alone`."""
        id, name = ("compose.two", spelled) if second else ("compose.first_alone", first_alone)
        return [
            Quantity(id, name(pair), share, self.n, None, {"string": pair, "where": self.where})
            for pair, share in zip(PAIRS, self._shares(TWO if second else ALONE, 0), strict=True)
        ]

    def _shares(self, part: str, kind: int) -> list[Estimate]:
        """Of one part, entry by entry; it has as many runs as strings of this kind."""
        right, eligible = self.found[part].double().numpy(), self.eligible * int(self.found[RUNS][kind])
        return cluster_bootstraps(Tally(right, np.broadcast_to(eligible, right.shape)), seed=SEED)

    @property
    def eligible(self) -> Int[np.ndarray, " graphs"]:
        """Instances of each graph that count."""
        return self.at.kept.view(self.at.many, -1).sum(-1).numpy()


def headline(counted: Counted) -> dict[str, Quantity]:
    """The paper's `COLUMNS` of one backbone."""
    return dict(zip(COLUMNS, (*counted.two(), counted.long(MIXED)[-1]), strict=True))


def tables(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> list[QuantityTable]:
    """The pairs, and every call of each kind and control; the published backbones are others, so none stands beside."""
    result = []
    for where in predictions:
        counted = Counted.of(predictions, facts, where)
        pairs = [*counted.two(), *counted.two(second=False)]
        result.append(QuantityTable("compose.two", f"Two calls ({where})", pairs, composition.NOTE))
        for kind, condition in (*((kind, EVERY) for kind in KINDS), *((MIXED, control) for control in CONTROLS)):
            part = kind if condition == EVERY else f"{kind}, {condition}"
            title = f"Eight calls, {part} ({where})"
            result.append(QuantityTable("compose.long", title, counted.long(kind, condition), composition.NOTE))
    return result
