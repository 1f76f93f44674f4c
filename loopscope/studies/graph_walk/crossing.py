"""Crossing: what do patterns and outputs carry from one run into another?

The receiver walks f_2 and is at c = f_2^depth(s); the giver walks f_1 and is at w = c + 3 (mod N); a third run,
shifted, walks f_2 and is at w.  All take J_one before the extra call.  What a patched receiver can answer: B = f_2(c),
its own; D = f_1(w), the giver's; E = f_2(w), the giver's place looked up in the receiver's graph.  The labels must
differ, and a pair counts only where both clean runs are right, after J before F (at c and at w) and after F.

Three questions are asked of the same receivers: which of B, D, E a head's pattern or output from the giver leads to;
whether patterns alone carry what J does, from the steered run into the unsteered one and back; and which head's clean
output repairs a run whose queries come from the shifted one.  The head is chosen on other pairs, before.

Answers are kept as `unsteered` and, with each fit of J_one, `one-1/steered`, `one-1/pattern 0`, ... (the runs of
`mechanism.crossing_runs`), `one-1/before F`, and the giver's `one-1/giver` and `one-1/giver before F`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from loopscope.errors import InputError
from loopscope.program import F, J, Program, Run
from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.studies.graph_walk.counting import share, shares_by_fit
from loopscope.studies.graph_walk.mechanism import ANSWER, WHOLE, crossing_runs, exchange
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, Walks, first_graphs, instances
from loopscope.tasks.graph_walk import (
    GraphWalk,
    all_starts,
    crossed_current,
    crossed_labels,
    distinct,
    start_for,
    walk,
)
from loopscope.tasks.populations import population

DISCOVERY, CONFIRMATION = "discovery-2608-receiver", "pairs-2404-receiver"
LABELS = ("B", "D", "E")
CPU = torch.device("cpu")

FITS = "each fit's share is taken first, then their mean; graphs are resampled."
RESTORED = "Broken: share of instances whose clean and shifted runs are right; all others: share of those broken."

PAPER_ELIGIBLE = (3966 / 5120, 3963 / 5120)
PAPER_RESTORED = {"selected": 0.601, "comparison": 0.009, "all": 1.0}
"""Published for one backbone on the default confirmation pairs: which share counts with fits 1 and 2, what is repaired.
Shares of B, D, E and of steering patterns are published as means of three backbones only."""


# ---- pairs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Aligned inputs: instance i of the giver and of the shifted run go with instance i of the receiver.

    `shifted` says which instance of the receivers walks the same graph and is at w; `labels` are B, D, E as columns.
    """

    receiver: Walks
    giver_tokens: Int[Tensor, "n tokens"]
    other: Int[Tensor, " n"]
    shifted: Int[Tensor, " n"]
    labels: Int[Tensor, "n 3"]

    @property
    def distinct(self) -> Bool[Tensor, " n"]:
        """Pairs whose labels differ."""
        return distinct(self.labels)


def pairs(where: str, depth: int, device: torch.device, graphs: int | None = None) -> Pairs:
    """The pairs of a population that receives with the one that gives to it, all or those of the first graphs.

    InputError where none gives to it, or where it has fewer graphs.
    """
    chosen = population(where)
    if chosen.giver is None:
        raise InputError(f"population {where!r} has no giver: it does not consist of pairs")
    receiver = first_graphs(instances(where, depth, device), graphs)
    given = all_starts(population(chosen.giver).graphs)[0][: len(receiver.starts)].to(device)
    other = crossed_current(receiver.current, chosen.nodes)
    return Pairs(
        receiver=receiver,
        giver_tokens=GraphWalk(chosen.nodes).tokens(given, start_for(given, other, depth), depth),
        other=other,
        shifted=receiver.clusters.to(device) * chosen.nodes + start_for(receiver.graphs, other, depth),
        labels=crossed_labels(receiver.graphs, given, receiver.current),
    )


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure_all(
    trained: TrainedModel, discovery: str = DISCOVERY, confirmation: str = CONFIRMATION, graphs: int | None = None
) -> Predictions:
    """Every run with every fit on the confirmation pairs; on the discovery pairs, those that choose the head.

    `graphs`: on the first so many pairs of graphs only.
    """
    return {
        discovery: measure(trained, pairs(discovery, trained.depth, trained.device, graphs), choose_only=True),
        confirmation: measure(trained, pairs(confirmation, trained.depth, trained.device, graphs)),
    }


def measure(trained: TrainedModel, at: Pairs, choose_only: bool = False) -> dict[str, UInt8[Tensor, " n"]]:
    """The node answered in every pair by every run, or only by those that a head is chosen by."""
    maps = trained.named("one")
    budget = F**trained.loops
    programs: dict[str, Program] = {}
    for name in maps:
        mine = crossing_runs(trained.loops, trained.model.heads, name)
        unsteered, steered, before = mine.pop("unsteered"), mine["steered"], budget | J(name)
        if choose_only:
            mine = {each: made for each, made in mine.items() if each == "steered" or each.startswith("pattern ")}
        else:
            programs["unsteered"] = unsteered
        # The giver's own answers, read beside the receiver's: its calls are needed anyway and are run only once.
        mine["before F"] = before
        mine["giver"] = exchange(steered, Run(steered, "giver"), WHOLE, rows=ANSWER)
        mine["giver before F"] = exchange(before, Run(budget, "giver"), WHOLE, rows=ANSWER)
        programs |= {f"{name}/{each}": made for each, made in mine.items()}
    others = {"giver": at.giver_tokens, "shifted": at.receiver.tokens[at.shifted]}
    return trained.answers(at.receiver.tokens, programs, maps=maps, others=others)


def names_of(heads: int, choose_only: bool = False) -> list[str]:
    """What a record calls the answers of one fit, after its name and a slash."""
    runs = [each for each in crossing_runs(1, heads) if each != "unsteered"]
    if choose_only:
        runs = [each for each in runs if each == "steered" or each.startswith("pattern ")]
    return [*runs, "before F", "giver", "giver before F"]


# ---- analysis --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """What was answered on one population of pairs, beside what could be; the first axis of all results is the fit."""

    found: Mapping[str, UInt8[Tensor, " n"]]
    fits: int
    at: Pairs

    @classmethod
    def of(cls, predictions: Predictions, facts: ModelFacts, where: str) -> Answers:
        """Those of one population, or of the first pairs of it that were measured."""
        found = predictions[where]
        measured = len(next(iter(found.values()))) // facts.nodes
        return cls(found, facts.fits["one"], pairs(where, facts.depth, CPU, measured))

    def given(self, name: str) -> UInt8[Tensor, "fits n"]:
        """The answers of one run."""
        return torch.stack([self.found[f"one-{fit}/{name}"] for fit in range(1, 1 + self.fits)])

    @cached_property
    def conditions(self) -> dict[str, Bool[Tensor, "fits n"]]:
        """What a pair must fulfil to count, one condition after the other."""
        own, (_, D, _) = self.at.receiver.current, self.at.labels.T
        return {
            "labels distinct": self.at.distinct.expand(self.fits, -1),
            "receiver at c before F": self.given("before F") == own,
            "receiver right after F": self.steered_right,
            "giver at w before F": self.given("giver before F") == self.at.other,
            "giver right after F": self.given("giver") == D,
        }

    @cached_property
    def eligible(self) -> Bool[Tensor, "fits n"]:
        """Pairs with distinct labels whose clean runs are right, before F and after it."""
        return torch.stack(list(self.conditions.values())).all(0)

    @property
    def steered_right(self) -> Bool[Tensor, "fits n"]:
        """Where the clean steered run walks one step."""
        return self.given("steered") == self.at.labels[:, 0]

    @cached_property
    def clean(self) -> Bool[Tensor, "fits n"]:
        """Instances whose clean run is right, before F and after it, and so is the shifted run."""
        right = (self.given("before F") == self.at.receiver.current) & self.steered_right
        return right & right[:, self.at.shifted]

    @cached_property
    def broken(self) -> Bool[Tensor, "fits n"]:
        """Clean instances that are answered wrongly with queries of the shifted run: those that can be restored."""
        return self.clean & (self.given("broken") != self.at.labels[:, 0])

    @property
    def three(self) -> Bool[Tensor, " n"]:
        """Receivers with u, f(u), f^2(u) distinct, on which steering patterns are judged."""
        return distinct(walk(self.at.receiver.graphs, self.at.receiver.current, 2))

    def gives(self, name: str, label: str) -> Bool[Tensor, "fits n"]:
        """Where a run answers B, D or E."""
        return self.given(name) == self.at.labels[:, LABELS.index(label)]

    def share(
        self,
        id: str,
        label: str,
        hits: Bool[Tensor, "fits n"],
        counted: Bool[Tensor, "fits n"],
        at: At,
        published: float | None = None,
    ) -> Quantity:
        """How often something is so over the instances that count in each fit."""
        return share(id, label, hits, self.at.receiver, at, counted=counted, published=published)

    def shares(
        self,
        id: str,
        label: str,
        hits: Bool[Tensor, "fits n"],
        counted: Bool[Tensor, "fits n"],
        at: At,
        published: float | None = None,
    ) -> list[Quantity]:
        """The same, and then for every fit by itself: `id.fit`."""
        known = () if published is None else (published,)
        return shares_by_fit(id, label, hits, self.at.receiver, at, counted=counted, published=known)


def choose_head(discovery: Answers, heads: int) -> tuple[int, list[float]]:
    """The head whose pattern patch gives E most often, averaged over fits, and all heads' scores; ties to the smaller.

    A fit without eligible pairs counts as -1 for every head.
    """
    scores = []
    for head in range(heads):
        each = [
            float(hits[counted].double().mean()) if bool(counted.any()) else -1.0
            for hits, counted in zip(discovery.gives(f"pattern {head}", "E"), discovery.eligible, strict=True)
        ]
        scores.append(sum(each) / len(each))
    return scores.index(max(scores)), scores


def head_of(predictions: Predictions, facts: ModelFacts) -> int:
    """The head chosen on the discovery pairs."""
    return choose_head(Answers.of(predictions, facts, _roles(predictions)[0]), facts.heads)[0]


def tables(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> list[QuantityTable]:
    """The choice of the head; the pairs that count; pattern and output patches; steering patterns; restoration.

    Which head is tested follows from the discovery pairs alone.  `paper`: with the published numbers beside, for the
    backbone that stands for the published one.
    """
    chosen_on, tested_on = _roles(predictions)
    discovery, confirmation = (Answers.of(predictions, facts, where) for where in (chosen_on, tested_on))
    head, scores = choose_head(discovery, facts.heads)
    published = paper and tested_on == CONFIRMATION
    choice = [
        discovery.share(
            "crossing.choice", f"head {each}, pattern -> E", discovery.gives(f"pattern {each}", "E"),
            discovery.eligible, {"head": each},
        )
        for each in range(facts.heads)
    ]  # fmt: skip
    about = f"Over the pairs that count; {FITS}  Chosen: head {head} ({scores[head]:.2%})."
    tested = [
        eligibility(confirmation, published),
        patches(confirmation, head, facts.heads),
        steering(confirmation, head, facts.heads),
        restoration(confirmation, head, facts.heads, published),
    ]
    return [
        QuantityTable("crossing.choice", f"Choice of the head ({chosen_on})", choice, about),
        *(replace(table, title=f"{table.title} ({tested_on})") for table in tested),
    ]


def _roles(predictions: Predictions) -> tuple[str, str]:
    """Which population chose the head, and which was tested: only the latter has runs without a map."""
    tested = [where for where, found in predictions.items() if "unsteered" in found]
    others = [where for where in predictions if where not in tested]
    if len(tested) != 1 or len(others) != 1:
        there = ", ".join(predictions) or "nothing"
        raise InputError(f"crossing needs one population of discovery pairs and one of confirmation pairs, not {there}")
    return others[0], tested[0]


def eligibility(answers: Answers, paper: bool = False) -> QuantityTable:
    """For every fit, the share of all pairs that is left after each condition: `crossing.pairs`."""
    everyone = torch.ones(1, len(answers.at.other), dtype=torch.bool)
    rows, chains = [], []
    for fit in range(1, 1 + answers.fits):
        left, counts = everyone, [everyone.shape[1]]
        for name, fulfilled in answers.conditions.items():
            left = left & fulfilled[fit - 1]
            counts.append(int(left.sum()))
            at: At = {"condition": name, "fit": fit}
            rows.append(answers.share("crossing.pairs", f"{name}, fit {fit}", left, everyone, at))
        if paper and fit <= len(PAPER_ELIGIBLE):
            rows[-1] = replace(rows[-1], published=PAPER_ELIGIBLE[fit - 1])
        chains.append(f"fit {fit}: " + " -> ".join(f"{count:,}" for count in counts))
    note = f"Share of all pairs left, condition by condition.  {'; '.join(chains)}."
    return QuantityTable("crossing.pairs", "Pairs that count", rows, note)


def patches(answers: Answers, head: int, heads: int) -> QuantityTable:
    """Where patterns and outputs of the giver lead: with the chosen head, also fit by fit, then with every head."""
    rows = []
    labels_alone = answers.at.distinct.expand(answers.fits, -1)
    for what, expected in (("pattern", "E"), ("output", "D")):
        at = {"part": what, "answer": expected}
        called, hits = f"{what} -> {expected}", answers.gives(f"{what} {head}", expected)
        rows += answers.shares("crossing.patch", called, hits, answers.eligible, at)
        rows += [
            answers.share(
                "crossing.patch", f"{what} -> {label}", answers.gives(f"{what} {head}", label), answers.eligible,
                {"part": what, "answer": label},
            )
            for label in LABELS
            if label != expected
        ]  # fmt: skip
        rows.append(answers.share("crossing.patch.labels", f"{called}, no filter but labels", hits, labels_alone, at))
    rows += [
        answers.share(
            "crossing.patch.head", f"head {each}, {what} -> {label}", answers.gives(f"{what} {each}", label),
            answers.eligible, {"part": what, "answer": label, "head": each},
        )
        for each in range(heads)
        for what in ("pattern", "output")
        for label in LABELS
    ]  # fmt: skip
    about = f"Over the pairs that count; {FITS}  Rows without a head are those of the chosen one, head {head}."
    return QuantityTable("crossing.patches", "Pattern and output patches between graphs", rows, about)


def steering(answers: Answers, head: int, heads: int) -> QuantityTable:
    """How often f(u) is answered when patterns move from the steered run into the unsteered one (J->0) and back."""
    id, walks = "crossing.steering", replace(answers.at.receiver, kept=answers.three)
    B = answers.at.labels[:, 0]
    counted = answers.three.expand(answers.fits, -1)
    unsteered, steered = answers.found["unsteered"][None] == B, answers.steered_right
    rows = [share(id, "unsteered", unsteered, walks, {"run": "unsteered"})]
    rows += answers.shares(id, "steered", steered, counted, {"run": "steered"})
    for name, base, clean in (("J->0", "unsteered", unsteered), ("0->J", "steered", steered)):
        patched = answers.gives(f"{name} all", "B")
        rows += answers.shares(id, name, patched, counted, {"run": name})
        rows.append(share(f"{id}.gain", f"{name} minus {base}", patched, walks, {"run": name}, minus=clean))
        for each in range(heads):
            hits = answers.gives(f"{name} {each}", "B")
            rows.append(share(f"{id}.head", f"{name}, head {each} alone", hits, walks, {"run": name, "head": each}))
    about = (
        "Answers f(u) over receivers with u, f(u), f^2(u) distinct; patterns of the second layer at ANSWER, all heads "
        f"unless one is named; the head chosen for patches is {head}; {FITS}"
    )
    return QuantityTable("crossing.steering", "Steering patterns", rows, about)


def restoration(answers: Answers, head: int, heads: int, paper: bool = False) -> QuantityTable:
    """What queries of the shifted run break, and which clean head outputs repair it; all heads must repair all of it.

    The comparison head is the one after the chosen, the first after the last.
    """
    id, to_w = "crossing.restored", answers.given("broken") == answers.at.labels[:, 2]
    rows = [
        answers.share("crossing.broken", "broken", answers.broken, answers.clean, {}),
        answers.share("crossing.broken.shifted", "broken answers f(w)", to_w, answers.broken, {}),
    ]
    for name, which in {"selected": head, "comparison": (head + 1) % heads, "all": "all"}.items():
        hits, known = answers.gives(f"restored {which}", "B"), PAPER_RESTORED[name] if paper else None
        rows += answers.shares(id, f"restored, {name}", hits, answers.broken, {"heads": name}, known)
    for each in range(heads):
        hits = answers.gives(f"restored {each}", "B")
        rows.append(answers.share(f"{id}.head", f"restored, head {each}", hits, answers.broken, {"head": each}))
    counts = " / ".join(f"{int(each.sum()):,}" for each in answers.broken)
    about = (
        f"Broken with each fit: {counts}.  Selected: head {head}; comparison: head {(head + 1) % heads}.  {RESTORED}"
    )
    return QuantityTable("crossing.restoration", "Restoration", rows, about)
