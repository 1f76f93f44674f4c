"""Target selection: from one and the same h6, does the map before the next call decide which node is answered?

The extra call is run without a map, and with each; its answer is u (stay), f(u) (one hop), f^2(u) (two hops) or another
node.  Read before F, the mapped state shows whether J itself had moved the answer.  As a control the mapped state is
moved to the next graph: a state holds all that its run knows, so its answers are then those of another graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from loopscope.program import F, J
from loopscope.stats import cluster_bootstrap, cluster_bootstraps, tally
from loopscope.studies.records import Facts, Predictions, Row, Table
from loopscope.studies.subject import Subject, Walks, instances, walks

WHERE = "confirmation"
UNSTEERED, BEFORE, MOVED = "unsteered", " before F", " moved"
ANSWERS = ("u", "f(u)", "f^2(u)", "other")
"""What can be answered from h6, in the order of hops."""

SEED = 2026092317
NOTE = "Share of instances with u, f(u), f^2(u) distinct; mean of the fits; graphs resampled."

PAPER = {(UNSTEERED, "f(u)"): 0.482, ("one", "f(u)"): 0.996, ("two", "f^2(u)"): 0.982}
"""What is published for the confirmation graphs, by condition and answer."""


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(subject: Subject, where: str = WHERE, targets: tuple[str, ...] = ("one", "two")) -> Predictions:
    """The node answered in every instance, by condition: `unsteered`, `one-1`, `one-1 before F`, ...

    InputError where the subject has no maps for one of the targets.
    """
    maps = subject.named(*targets)
    start = F**subject.loops
    programs = {UNSTEERED: start | F}
    for name in maps:
        programs |= {name: start | J(name) | F, name + BEFORE: start | J(name)}
    return {where: subject.answers(walks(where, subject).tokens, programs, maps=maps)}


# ---- analysis --------------------------------------------------------------------------------------------------------


def tables(predictions: Predictions, facts: Facts, paper: bool = False) -> list[Table]:
    """For each condition, how often it gives each of `ANSWERS`.

    Conditions are `unsteered`, a target such as `one`, `one before F` and `one moved`.  `paper`: with the published
    numbers beside, for the backbone that stands for the published one.
    """
    result = []
    for where, found in predictions.items():
        at = _walks(where, facts)
        published = PAPER if paper and where == WHERE else {}
        for condition, fits in conditions(found, facts).items():
            known = {answer: value for (which, answer), value in published.items() if which == condition}
            result.append(Table(f"Answers, {condition} ({where})", distribution(fits, at, paper=known), NOTE))
    return result


def claim_one(predictions: Predictions, facts: Facts, where: str = WHERE) -> tuple[Row, Row]:
    """How often J_one gives f(u), and how much more often than the unsteered call does (paired)."""
    at = _walks(where, facts)
    right = {name: fits == at.ahead(1) for name, fits in conditions(predictions[where], facts).items()}
    gain = share("J_one minus unsteered", right["one"], at, minus=right[UNSTEERED])
    return share("J_one gives f(u)", right["one"], at, paper=PAPER["one", "f(u)"]), gain


def claim_two(predictions: Predictions, facts: Facts, where: str = WHERE) -> Row:
    """How often J_two gives f^2(u)."""
    at = _walks(where, facts)
    right = conditions(predictions[where], facts)["two"] == at.ahead(2)
    return share("J_two gives f^2(u)", right, at, paper=PAPER["two", "f^2(u)"])


def controls(predictions: Predictions, facts: Facts, target: str, where: str = WHERE) -> list[Row]:
    """How often a map gives its target where it should not: read before F, and on the state of another graph."""
    at, found = _walks(where, facts), conditions(predictions[where], facts)
    node = at.ahead({"one": 1, "two": 2}[target])
    named = {"read before F": target + BEFORE, "state of another graph": target + MOVED}
    return [share(name, found[each] == node, at) for name, each in named.items()]


def conditions(found: Mapping[str, UInt8[Tensor, " n"]], facts: Facts) -> dict[str, UInt8[Tensor, "fits n"]]:
    """The answers of all fits by condition; moved states answer for the graph after theirs."""
    result = {UNSTEERED: found[UNSTEERED][None]}
    for target in (target for target in facts.fits if f"{target}-1" in found):
        names = [f"{target}-{fit}" for fit in range(1, 1 + facts.fits[target])]
        after = torch.stack([found[name] for name in names])
        before = torch.stack([found[name + BEFORE] for name in names])
        result |= {target: after, target + BEFORE: before, target + MOVED: after.roll(facts.nodes, -1)}
    return result


def distribution(
    answers: UInt8[Tensor, "fits n"],
    at: Walks,
    *,
    base: int = 0,
    label: str = "",
    paper: Mapping[str, float] | None = None,
) -> list[Row]:
    """How often the answer is each of `ANSWERS`, or, after `base` hops (two at most), that many further on.

    Rows are named by `label` and the answer.
    """
    nodes = (*ANSWERS[:-1], "f^3(u)", "f^4(u)")[base : base + 3]
    hits = {node: answers == at.ahead(base + steps) for steps, node in enumerate(nodes)}
    hits[ANSWERS[-1]] = ~torch.stack(list(hits.values())).any(0)
    counted = tally(np.stack(list(hits.values())), at.clusters, at.kept)
    known, n = paper or {}, int(at.kept.sum())
    return [
        Row(label + answer, estimate, n, known.get(answer))
        for answer, estimate in zip(hits, cluster_bootstraps(counted, seed=SEED), strict=True)
    ]


def share(
    name: str,
    hits: Bool[Tensor, "*fits n"],
    at: Walks,
    *,
    minus: Bool[Tensor, "*others n"] | None = None,
    paper: float | None = None,
) -> Row:
    """How often something is so among the instances that count, or how much more often than `minus` (paired).

    Leading axes (strings, fits) are averaged first, graphs are resampled.
    """
    a, *b = (tally(np.asarray(each), at.clusters, at.kept) for each in (hits, minus) if each is not None)
    return Row(name, cluster_bootstrap(a, *b, seed=SEED), int(at.kept.sum()), paper)


def _walks(where: str, facts: Facts) -> Walks:
    return instances(where, facts.depth, torch.device("cpu"), "three")
