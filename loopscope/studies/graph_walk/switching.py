"""Target switching: what must a run take from another for the other's target?

Runs that differ in their map alone (J_one, J_two, or none: `raw`) share their input and h6, and differ in the extra
call.  The receiver takes one part of that call from the giver, on every row: if the part carries the choice, the
receiver answers the giver's target.  Every part stands beside the pattern, in layer 1, in layer 2 and in both.

Three comparisons are equal by construction and show that the patches do what they say: queries with keys are the
pattern; outputs of all heads are the attention output; and the state that enters a layer, being all that the rest of
the run depends on, makes the receiver's answer the giver's.  In layer 2 of the last call only ANSWER's row is read
afterwards, so that a pattern on every row does no more than on that row.

Answers are kept as `raw`, `one-1`, ... for the clean runs and as `two-1->one-1/pattern, layer 2` for the patched ones:
the giver, the receiver, what was taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import torch
from jaxtyping import UInt8
from torch import Tensor

from loopscope.program import Program
from loopscope.quantity import Quantity, QuantityTable
from loopscope.studies.graph_walk.counting import distribution, node, share, shares_by_fit
from loopscope.studies.graph_walk.mechanism import ANSWER, LAYER, exchange, extra_call
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, Walks, first_graphs, instances, walks

WHERE, OTHERS = "switching-2501", "switching-2608"
"""Of the main backbone and of others."""

RAW = "raw"
HOPS = {RAW: 0, "stay": 0, "one": 1, "two": 2, "two-long": 2}
"""Steps from u that each run's target is away; a run without a map was trained to answer u."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "pattern": ("pattern",),
    "queries": ("q",),
    "keys": ("k",),
    "queries+keys": ("q", "k"),
    "values": ("v",),
    "head outputs": ("z",),
    "attention output": ("attn_out",),
    "MLP output": ("mlp_out",),
    "entering state": ("resid",),
}
LAYERS: Mapping[str, tuple[int, ...]] = {"layer 2": (2,), "layer 1": (1,), "layers 1+2": (1, 2)}
PATTERN, AT_ANSWER = "pattern, layer 2", "pattern, layer 2, ANSWER row"
NEED_EVERY_ROW = frozenset({"k", "v", "resid"})
"""Parts of layer 2 that ANSWER's row depends on at other rows, too."""

PAPER = {("two", "one"): (0.4540, 0.4497, 0.4582), ("one", "two"): (0.6092, 0.5967, 0.6217)}
"""Published for one backbone, layer 2's pattern from the first run into the second: mean, fit 1, fit 2."""

SCOPE = (
    "Parts are taken on all rows, of all heads unless some are named; instances with u, f(u), f^2(u) distinct count; "
    "mean of the fits; graphs resampled."
)


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(
    trained: TrainedModel, where: str = WHERE, targets: Sequence[str] = ("one", "two"), graphs: int | None = None
) -> Predictions:
    """The node answered in every instance by every clean run and every patched one, with every fit of both maps.

    Fit i of one map goes with fit i of the other.  Runs that have to compute every row of a layer again (all in layer
    1; keys, values and the entering state in layer 2) cost as much as a call each; `graphs` restricts them to the first
    graphs, and how many these were can be seen from the length of their answers.
    """
    at = walks(where, trained)
    maps = trained.named(*targets)
    narrow, wide = programs(trained.loops, trained.model.heads, targets, min(len(trained.maps[t]) for t in targets))
    answers: dict[str, Tensor] = {}
    for asked, instances_of in ((narrow, at), (wide, first_graphs(at, graphs))):
        answers |= trained.answers(instances_of.tokens, asked, maps=maps)
    return {where: answers}


def programs(
    loops: int, heads: int, targets: Sequence[str], fits: int
) -> tuple[dict[str, Program], dict[str, Program]]:
    """All runs by name: those that need only ANSWER's row of layer 2 again, and those that need more."""
    narrow: dict[str, Program] = {RAW: extra_call(loops)}
    wide: dict[str, Program] = {}
    for fit in range(1, 1 + fits):
        runs = {RAW: narrow[RAW]} | {name: extra_call(loops, name) for name in (f"{t}-{fit}" for t in targets)}
        narrow |= runs
        for giver, receiver in permutations(runs, 2):
            arrow = f"{giver}->{receiver}/"
            for what, components in PARTS.items():
                for place, layers in LAYERS.items():
                    made = exchange(runs[receiver], runs[giver], components, layers)
                    all_rows = layers != (LAYER,) or not NEED_EVERY_ROW.isdisjoint(components)
                    (wide if all_rows else narrow)[f"{arrow}{what}, {place}"] = made
            if RAW not in (giver, receiver):
                narrow[arrow + AT_ANSWER] = exchange(runs[receiver], runs[giver], ("pattern",), rows=ANSWER)
                for chosen in subsets(heads):
                    made = exchange(runs[receiver], runs[giver], ("pattern",), heads=chosen)
                    narrow[arrow + of_heads(chosen)] = made
    return narrow, wide


def subsets(heads: int) -> list[tuple[int, ...]]:
    """Every choice of one head or more, the small ones first: 15 of four heads."""
    return [chosen for size in range(1, 1 + heads) for chosen in combinations(range(heads), size)]


def of_heads(chosen: tuple[int, ...]) -> str:
    """What a patch of these heads' patterns is called."""
    return f"{PATTERN}, heads {' '.join(map(str, chosen))}"


# ---- analysis --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """What was answered on a population, beside the walks that were asked about; the first axis is the fit."""

    found: Mapping[str, UInt8[Tensor, " n"]]
    fits: int
    at: Walks

    @classmethod
    def of(cls, predictions: Predictions, facts: ModelFacts, where: str) -> Answers:
        """Those of one population; only instances with u, f(u), f^2(u) distinct count."""
        found = predictions[where]
        everyone = instances(where, facts.depth, torch.device("cpu"), "three")
        at = first_graphs(everyone, len(found[RAW]) // facts.nodes)
        return cls(found, min(facts.fits[target] for target in _targets(found)), at)

    @property
    def runs(self) -> list[str]:
        """What ran: without a map and with each target's, in the order of their hops."""
        return [RAW, *_targets(self.found)]

    def walks(self, answers: UInt8[Tensor, "fits n"]) -> Walks:
        """The walks that these answers are about, which may be those of the first graphs."""
        return first_graphs(self.at, answers.shape[-1] // self.at.graphs.shape[1])

    def clean(self, name: str) -> UInt8[Tensor, "fits n"]:
        """The answers of an unpatched run."""
        return torch.stack([self.found[self._fit(name, fit)] for fit in range(1, 1 + self.fits)])

    def patched(self, giver: str, receiver: str, what: str) -> UInt8[Tensor, "fits n"]:
        """The answers of a receiver with something of a giver."""
        fits = range(1, 1 + self.fits)
        arrows = [f"{self._fit(giver, fit)}->{self._fit(receiver, fit)}" for fit in fits]
        return torch.stack([self.found[f"{arrow}/{what}"] for arrow in arrows])

    @staticmethod
    def _fit(name: str, fit: int) -> str:
        return name if name == RAW else f"{name}-{fit}"


def _targets(found: Mapping[str, UInt8[Tensor, " n"]]) -> list[str]:
    """The targets whose maps were used; their first fits' clean runs are always there."""
    names = [name.removesuffix("-1") for name in found if "/" not in name and name.endswith("-1")]
    return sorted(names, key=lambda name: HOPS[name])


def tables(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> list[QuantityTable]:
    """For each giver and receiver, the answers of the clean and of every patched run; then all subsets of heads.

    `paper`: with the published numbers beside, for the backbone that stands for the published one.
    """
    result = []
    for where in predictions:
        answers = Answers.of(predictions, facts, where)
        for giver, receiver in permutations(answers.runs, 2):
            known = PAPER.get((giver, receiver), ()) if paper and where == WHERE else ()
            result.append(_direction(answers, giver, receiver, where, known))
        for giver, receiver in permutations(answers.runs[1:], 2):
            result.append(_head_subsets(answers, giver, receiver, where, facts.heads))
    return result


def switched(
    answers: Answers, giver: str, receiver: str, paper: Sequence[float] = (), where: str = WHERE
) -> list[Quantity]:
    """How often layer 2's pattern gives the giver's target: mean of the fits, each fit, gain over the clean run.

    These are `switching.target`, `.fit` and `.gain`.  `paper` are published numbers for the mean and for each fit.
    """
    id, at = "switching.target", {"giver": giver, "receiver": receiver, "where": where}
    walks, target, name = answers.at, answers.at.ahead(HOPS[giver]), f"{PATTERN}: giver's target"
    hits = answers.patched(giver, receiver, PATTERN) == target
    rows = shares_by_fit(id, name, hits, walks, at, published=paper)
    clean = answers.clean(receiver) == target
    return [*rows, share(f"{id}.gain", f"{name}, minus clean", hits, walks, at, minus=clean)]


def _direction(answers: Answers, giver: str, receiver: str, where: str, paper: Sequence[float]) -> QuantityTable:
    rows, at = switched(answers, giver, receiver, paper, where), {"giver": giver, "receiver": receiver, "where": where}
    if RAW not in (giver, receiver):
        hits = answers.patched(giver, receiver, AT_ANSWER) == answers.at.ahead(HOPS[giver])
        rows.append(share("switching.target.row", f"{AT_ANSWER}: giver's target", hits, answers.at, at))
    clean = answers.clean(receiver)
    rows += distribution("switching.clean", clean, answers.at, range(3), at, label="clean: ")
    for place in LAYERS:
        for part in PARTS:
            given, label = answers.patched(giver, receiver, f"{part}, {place}"), f"{part}, {place}: "
            there = {"part": part, "layers": place} | at
            rows += distribution("switching.part", given, answers.walks(given), range(3), there, label=label)
    goals = f"The giver's target is {node(HOPS[giver])}, the receiver's own {node(HOPS[receiver])}"
    title = f"Target switching, {giver} -> {receiver} ({where})"
    return QuantityTable("switching.direction", title, rows, f"{goals}.  {SCOPE}")


def _head_subsets(answers: Answers, giver: str, receiver: str, where: str, heads: int) -> QuantityTable:
    """`switching.heads` at `heads`, such as "0 2", and `target`: the giver's or the receiver's own."""
    rows, at = [], {"giver": giver, "receiver": receiver, "where": where}
    for chosen in subsets(heads):
        given, those = answers.patched(giver, receiver, of_heads(chosen)), " ".join(map(str, chosen))
        for role, words, run_name in (("giver", "giver's target", giver), ("own", "own target", receiver)):
            hits, there = given == answers.at.ahead(HOPS[run_name]), {"heads": those, "target": role} | at
            rows.append(share("switching.heads", f"heads {those}: {words}", hits, answers.at, there))
    title = f"Patterns of some heads of layer 2, {giver} -> {receiver} ({where})"
    return QuantityTable("switching.heads", title, rows, SCOPE)
