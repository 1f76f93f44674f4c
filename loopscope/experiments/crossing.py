"""The mechanism battery, measured: pairs of runs on two graphs, and what moving patterns and outputs between them does.

The receiver walks f_2 and is at c = f_2^depth(s); the giver walks f_1 and is at w = c + 3 (mod N); a third run,
shifted, walks f_2 and is at w.  All take J_one before the extra call.  What a patched receiver can answer: B = f_2(c),
its own; D = f_1(w), the giver's; E = f_2(w), the giver's place looked up in the receiver's graph.  The labels must
differ, and a pair counts only where both clean runs are right, after J before F (at c and at w) and after F.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute import run
from loopscope.experiments.mechanism import battery
from loopscope.experiments.subject import Subject, Walks, walks
from loopscope.program import F, J
from loopscope.tasks.graph_walk import GraphWalk, all_starts, crossed_current, crossed_labels, start_for, successor
from loopscope.tasks.populations import population

CLEAN = ("receiver", "giver", "shifted")


@dataclass(frozen=True)
class Pairs:
    """Aligned inputs: instance i of the giver and of the shifted run go with instance i of the receiver."""

    receiver: Walks
    tokens: Mapping[str, Int[Tensor, "n tokens"]]
    currents: Mapping[str, Int[Tensor, " n"]]
    targets: Mapping[str, Int[Tensor, " n"]]
    labels: Int[Tensor, "n 3"]
    distinct: Bool[Tensor, " n"]


def pairs(where: str, subject: Subject) -> Pairs:
    """The pairs of a population that receives with the one that gives to it; InputError where none does."""
    chosen = population(where)
    if chosen.giver is None:
        raise InputError(f"population {where!r} has no giver: it does not consist of pairs")
    receiver = walks(where, subject, rule="crossed")
    given, _ = (part.to(subject.device) for part in all_starts(population(chosen.giver).graphs))
    other = crossed_current(receiver.current, chosen.nodes)
    task = GraphWalk(chosen.nodes)
    graphs = {"receiver": receiver.graphs, "giver": given, "shifted": receiver.graphs}
    currents = {"receiver": receiver.current, "giver": other, "shifted": other}
    tokens = {
        name: task.tokens(graphs[name], start_for(graphs[name], currents[name], subject.depth), subject.depth)
        for name in CLEAN
    }
    targets = {name: successor(graphs[name], currents[name]) for name in CLEAN}
    labels = crossed_labels(receiver.graphs, given, receiver.current)
    return Pairs(receiver, tokens, currents, targets, labels, receiver.kept)


def measure(subject: Subject, at: Pairs, fit: int = 1) -> dict[str, UInt8[Tensor, " n"]]:
    """The node answered in every pair by every run of the battery with this fit of J_one and J_two.

    Beside the battery's names: `receiver before F`, `giver`, `giver before F`, `shifted`, `shifted before F`.
    """
    named = subject.named("one", "two")
    maps = {target: named[f"{target}-{fit}"] for target in ("one", "two")}
    before, after = F**subject.loops | J("one"), F**subject.loops | J("one") | F
    runs = battery(subject.loops, subject.model.heads)
    others = {name: at.tokens[name] for name in ("giver", "shifted")}
    found = run(subject.model, at.tokens["receiver"], [*runs.values(), before], maps=maps, others=others)
    outcome = {name: found[each].predictions[:, 0] for name, each in runs.items()}
    outcome["receiver before F"] = found[before].predictions[:, 0]
    for name, tokens in others.items():
        clean = run(subject.model, tokens, [before, after], maps=maps)
        outcome[name] = clean[after].predictions[:, 0]
        outcome[f"{name} before F"] = clean[before].predictions[:, 0]
    return {name: nodes.to(torch.uint8).cpu() for name, nodes in outcome.items()}


def eligible(found: Mapping[str, UInt8[Tensor, " n"]], at: Pairs) -> Bool[Tensor, " n"]:
    """Pairs with distinct labels whose clean runs are right, before F and after it."""
    return at.distinct.cpu() & _clean(found, at, "receiver") & _clean(found, at, "giver")


def broken(found: Mapping[str, UInt8[Tensor, " n"]], at: Pairs) -> Bool[Tensor, " n"]:
    """Instances on which restoration can be tested: both clean runs right, the answer wrong with foreign queries."""
    wrong = found["broken"].long() != at.targets["receiver"].cpu()
    return _clean(found, at, "receiver") & _clean(found, at, "shifted") & wrong


def _clean(found: Mapping[str, UInt8[Tensor, " n"]], at: Pairs, name: str) -> Bool[Tensor, " n"]:
    answer = found["one" if name == "receiver" else name]
    before = found[f"{name} before F"].long() == at.currents[name].cpu()
    return before & (answer.long() == at.targets[name].cpu())


def label_rates(
    found: Mapping[str, UInt8[Tensor, " n"]], at: Pairs, name: str, counted: Bool[Tensor, " n"]
) -> Float[Tensor, " 3"]:
    """How often a run answers B, D and E over the pairs that count; NaN where none does."""
    hits = found[name].long()[:, None] == at.labels.cpu()
    return hits[counted].double().mean(0)


def select_head(found: list[Mapping[str, UInt8[Tensor, " n"]]], at: Pairs, heads: int) -> tuple[int, list[float]]:
    """The head whose pattern patch gives E most often, averaged over fits; ties go to the smaller.

    A fit without eligible pairs counts as -1 for every head.
    """
    scores = []
    for head in range(heads):
        each = []
        for fit in found:
            counted = eligible(fit, at)
            each.append(float(label_rates(fit, at, f"pattern {head}", counted)[2]) if bool(counted.any()) else -1.0)
        scores.append(sum(each) / len(each))
    return scores.index(max(scores)), scores
