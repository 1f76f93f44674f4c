"""Composition on independent graphs, on several backbones: how much of it is a matter of the backbone?

The paper repeats its strings of two and eight calls on graphs that nothing else was measured on, with five backbones.
The main one keeps every answer (`composition`); the others keep what the comparison takes: right answers by graph, of
all strings and fits of a kind together.  Every graph has the same instances in every string and fit, so shares and
their intervals are those that single answers would give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, Int16
from torch import Tensor

from loopscope.errors import InputError
from loopscope.stats import Tally, cluster_bootstraps
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
    long_strings,
    spelled,
)
from loopscope.studies.graph_walk.targets import SEED
from loopscope.studies.records import Facts, Predictions, Row, Table
from loopscope.studies.subject import Subject, Walks, first_graphs, instances

BACKBONES = 5
"""So many in all: those that are taken apart, then the first others in the order of seeds."""

TWO, ALONE = "two calls", "two calls, first map alone"
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


def measure(subject: Subject, where: str = INDEPENDENT, graphs: int | None = None) -> Predictions:
    """`counts` of the strings of eight calls and of all pairs, on the first graphs (None: all) of a population."""
    found = composition.measure_long(subject, where, graphs)
    return {where: counts(Answers.of(found, Facts.of(subject), where))}


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
    found["runs"] = torch.tensor([len(strings) * answers.fits for strings in long_strings().values()]).short()
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

    @classmethod
    def of(cls, predictions: Predictions, facts: Facts, where: str = INDEPENDENT) -> Counted:
        """From `counts`, or from the answers of a backbone that keeps them; InputError for other graphs."""
        found = predictions.get(where)
        if found is None:
            raise InputError(f"{facts.name} was not measured on {where!r}; there are {', '.join(predictions)}")
        if TWO not in found:
            answers = Answers.of(predictions, facts, where)
            return cls(counts(answers), answers.at)
        return cls(
            found, first_graphs(instances(where, facts.depth, torch.device("cpu"), "five"), found[TWO].shape[-1])
        )

    @property
    def n(self) -> int:
        """Instances that count."""
        return int(self.at.kept.sum())

    def rows(self, part: str, names: list[str]) -> list[Row]:
        """The shares of one part, entry by entry."""
        kind = next((number for number, kind in enumerate(KINDS) if part.startswith(kind)), 0)
        runs = int(self.found["runs"][0 if part in (TWO, ALONE) else kind])
        right = self.found[part].double().numpy()
        eligible = self.eligible * runs
        tallied = Tally(right, np.broadcast_to(eligible, right.shape))
        shares = cluster_bootstraps(tallied, seed=SEED)
        return [Row(name, share, self.n) for name, share in zip(names, shares, strict=True)]

    @property
    def eligible(self) -> Int[np.ndarray, " graphs"]:
        """Instances of each graph that count."""
        return self.at.kept.view(self.at.many, -1).sum(-1).numpy()


def headline(counted: Counted) -> dict[str, Row]:
    """The paper's `COLUMNS` of one backbone."""
    rows = counted.rows(TWO, [spelled(pair) for pair in PAIRS])
    last = counted.rows(MIXED, [f"{MIXED}, call {call}" for call in range(1, 1 + CALLS)])[-1]
    return {row.name: row for row in (*rows, last)}


def tables(predictions: Predictions, facts: Facts, paper: bool = False) -> list[Table]:
    """The pairs, and every call of each kind and control; the published backbones are others, so none stands beside."""
    result = []
    for where in predictions:
        counted = Counted.of(predictions, facts, where)
        pairs = counted.rows(TWO, [spelled(pair) for pair in PAIRS])
        pairs += counted.rows(ALONE, [f"{spelled(pair[0] + '0')}, asked for {spelled(pair)}" for pair in PAIRS])
        result.append(Table(f"Two calls ({where})", pairs, composition.NOTE))
        for part in (*KINDS, *(f"{MIXED}, {control}" for control in CONTROLS)):
            names = [f"call {call}" for call in range(1, 1 + CALLS)]
            result.append(Table(f"Eight calls, {part} ({where})", counted.rows(part, names), composition.NOTE))
    return result
