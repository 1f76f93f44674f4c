"""Does J select, or does it create?  Maps for k hops, with blocks in F's place that never learned to walk.

The paper infers that J selects among computations that the backbone has learned.  If so, J_k should work for those k
that the backbone's own loops show, and not for others; and it should not work where F has not learned to walk.  So J is
fitted for k = -1, 0, ..., 4 hops, each from the same h_L with one more call, with the backbone's F and with three
controls: F's weights permuted, the block and readout of another task, no block at all.  On the main backbone it is also
restricted to some rows and to smaller ranks (`training.cohort.hops` lists all, `training.controls` defines them).

Counted are instances whose nodes f^7(s), ..., f^12(s) are all distinct, so that every answer fits one k at most.  Which
k are native is decided by the native walk alone (`native`).  k = 0 stands apart: u is in h_L before J comes.

A record holds counts: for every map, the right answers of each graph, and what was answered over all.  One of maps by
the full budget also holds how its own backbone walks: the same seed trained again, in other company, has other weights
and may walk otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from jaxtyping import Int
from torch import Tensor

from loopscope.errors import InputError
from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.stats import Tally, cluster_bootstrap_later
from loopscope.store.artefacts import load_backbone
from loopscope.studies.graph_walk.trajectories import increments, modes, positions, read_native
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, Walks, instances
from loopscope.tasks.graph_walk import GraphWalk, distinct, start_for, walk
from loopscope.training.cohort.cohort import Cohort, frozen
from loopscope.training.cohort.controls import block_of, other_task, steered_logits
from loopscope.training.cohort.hops import BUDGETS, CONTROLS, HOPS, Budget, Control
from loopscope.training.cohort.layout import AllStarts

WHERE, RINGS = "confirmation", "rings"
POSITIONS = "positions"
AT_ONCE = 64
"""Graphs that are run at a time, each with all of its starts."""

SEED = 2026111801
MOST_RANDOM = 0.20
"""What J may reach with permuted weights, for every k."""

PREDICATE = (
    "over backbones, accuracy of J_k is higher for k among the native increments than for others, interval of the "
    "difference above 0 (resampling backbones, and graphs within); with random F at most 20 % (for every k, mean over "
    "backbones)"
)
"""Of `select.native`; written down before any such map was fitted.

- Random F is F with permuted weights.
- Backbones: `DECIDING`, each with all k of `HOPS` by the full budget, with F as trained and permuted.
- Native increments are those of `native`.  A backbone for which all k are native, or none, has no difference.
"""

DECIDING = (*(f"d8l6-{seed}" for seed in range(3, 14)), "d8l8-1")
"""The backbones whose maps decide."""

TARGETS = tuple(control.target(k, budget) for budget, control, k in product(BUDGETS, CONTROLS, HOPS))
"""Every map that this experiment uses, where there is one."""

TOLD: Mapping[Budget, str] = {"full": "8,000 updates", "brief": "reduced budget of 600 updates"}
NOTE = "Share of instances with f^7(s), ..., f^12(s) distinct that answer f^(8+k)(s); mean of fits; graphs resampled."


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(trained: TrainedModel, where: str = WHERE, rings: str = RINGS) -> Predictions:
    """Counts for every map of `TARGETS` that the model has, those of each budget apart (see `place`).

    - `TARGET right`: uint8 [fits, graphs], instances that count and answer f^(8+k)(s).
    - `TARGET answers`: int32 [fits, 7], over all that count: answers f^7(s), ..., f^12(s), and other nodes.
    - With maps by the full budget, of `rings`, `positions`: int32 [L + 2, nodes], how often each position on the path
      is read natively after loop 0, ..., L + 1.

    InputError for a model without any of these maps.
    """
    there = {
        control.target(k, budget): (control, budget, k)
        for budget, control, k in product(BUDGETS, CONTROLS, HOPS)
        if control.target(k, budget) in trained.maps
    }
    if not there:
        raise InputError(f"{trained.name} has no map for some number of hops, such as {TARGETS[0]} or {TARGETS[-1]}")
    at = counted_walks(where, trained.depth, trained.device)
    graphs, labels = at.clusters.to(at.kept.device)[at.kept], torch.stack([ahead(at, k) for k in HOPS])[:, at.kept]
    found: Predictions = {}
    for name, nodes in _answers(trained, at, {name: control for name, (control, _, _) in there.items()}).items():
        _, budget, k = there[name]
        which = nodes[:, None, at.kept] == labels  # fits, hops, instances
        right = [graphs[hit].bincount(minlength=at.many) for hit in which[:, HOPS.index(k)]]
        answers = which.sum(-1)
        kept = found.setdefault(place(where, budget), {})
        kept[f"{name} right"] = torch.stack(right).to(torch.uint8).cpu()
        kept[f"{name} answers"] = torch.cat([answers, (len(graphs) - answers.sum(1))[:, None]], 1).int().cpu()
    if where in found:
        read = read_native(trained.model, trained.device, rings, trained.loops + 1, trained.depth)
        counts = [each[each >= 0].bincount(minlength=trained.model.config.classes) for each in positions(read, rings)]
        found[rings] = {POSITIONS: torch.stack(counts).int()}
    return found


@torch.no_grad()
def _answers(trained: TrainedModel, at: Walks, asked: Mapping[str, Control]) -> dict[str, Int[Tensor, "fits n"]]:
    """The nodes that the maps of every target answer under its control, for all starts of all graphs.

    The starts of a graph share what they have in common, and all maps share h_L.
    """
    model, task = trained.model, GraphWalk(trained.model.config.classes)
    backbone = Cohort(model.config, frozen(model, trained.device))
    blocks = {kind: _block(kind, trained) for kind in dict.fromkeys(control.block for control in asked.values())}
    found: dict[str, list[Tensor]] = {name: [] for name in asked}
    for part in at.tokens.split(AT_ONCE * task.nodes):
        layout = AllStarts(task, len(part) // task.nodes)
        state = backbone.embed(part[None], layout)
        for _ in range(trained.loops):
            state = backbone.call(state, layout)
        h = layout.pieces(backbone.settle(state))[0]
        for name, control in asked.items():
            block = blocks[control.block]
            logits = [steered_logits(h, layout, step, control.rows, backbone, block) for step in trained.maps[name]]
            found[name].append(torch.stack(logits).argmax(-1))
    return {name: torch.cat(pieces, 1) for name, pieces in found.items()}


def _block(kind: str, trained: TrainedModel) -> Cohort | None:
    """What follows J, ready to run; None for nothing."""
    artefact = other_task(kind)
    model = block_of(kind, trained.model, None if artefact is None else load_backbone(artefact))
    return None if model is None else Cohort(model.config, frozen(model, trained.device))


def place(where: str, budget: Budget) -> str:
    """Under which name a record keeps what was counted on a population with maps of a budget."""
    return where if budget == "full" else f"{where}-{budget}"


def counted_walks(where: str, depth: int, device: torch.device) -> Walks:
    """All starts of a population; those count whose nodes f^7(s), ..., f^12(s) are distinct."""
    at = instances(where, depth, device, "all")
    return replace(at, kept=distinct(walk(at.graphs, ahead(at, HOPS[0]), HOPS[-1] - HOPS[0])))


def returns(where: str, depth: int) -> dict[int, float]:
    """For every k, the share of instances that count in which f^(8+k)(s) is s: what answering the start would give.

    Cycles are of six to ten nodes there, so that eight steps and k may lead around one.
    """
    at = counted_walks(where, depth, torch.device("cpu"))
    return {k: float((ahead(at, k) == at.starts)[at.kept].double().mean()) for k in HOPS}


def ahead(at: Walks, k: int) -> Int[Tensor, " instances"]:
    """f^k(u), also for negative k."""
    return at.ahead(k) if k >= 0 else start_for(at.graphs, at.current, -k)


# ---- analysis --------------------------------------------------------------------------------------------------------


def native(increments: Sequence[int | None], loops: int, nodes: int) -> tuple[int, ...]:
    """The hops that a backbone's own loops show: increments of the position read most often, to loops 1, 2, ...

    Those to loops 2, ..., L, as in the choice of mechanism backbones, and that to loop L + 1, which is the call that J
    comes before.  An increment is taken around the ring, so that N - 1 is -1.
    """
    shown = {step for step in increments[1 : loops + 1] if step is not None}
    return tuple(k for k in HOPS if k % nodes in shown)


def native_in(predictions: Predictions, facts: ModelFacts) -> tuple[int, ...] | None:
    """Those of the very backbone that a record is of; None where it does not hold its walk."""
    if RINGS not in predictions:
        return None
    counts = predictions[RINGS][POSITIONS].double()
    walked = modes(counts / counts.sum(1, keepdim=True))
    return native(increments(walked, facts.nodes), facts.loops, facts.nodes)


@dataclass(frozen=True)
class Counted:
    """What a record counted with maps of one budget on one population."""

    found: Mapping[str, Tensor]
    budget: Budget
    eligible: Int[Tensor, " graphs"]

    @classmethod
    def of(cls, predictions: Predictions, facts: ModelFacts, budget: Budget, where: str = WHERE) -> Counted | None:
        """None where there was no map of this budget."""
        found = predictions.get(place(where, budget))
        if found is None:
            return None
        at = counted_walks(where, facts.depth, torch.device("cpu"))
        return cls(found, budget, at.kept.view(at.many, -1).sum(1))

    @property
    def n(self) -> int:
        """How many instances count."""
        return int(self.eligible.sum())

    def hops(self, control: Control) -> list[int]:
        """The k that have maps under a control."""
        return [k for k in HOPS if f"{control.target(k, self.budget)} right" in self.found]

    def tally(self, control: Control, ks: Iterable[int]) -> Tally:
        """Right answers by graph, of several k together: their ratio is the mean of the shares, as all count alike."""
        right = torch.cat([self.found[f"{control.target(k, self.budget)} right"] for k in ks]).double()
        return Tally(right.sum(0).numpy(), (self.eligible * len(right)).numpy())

    def row(self, control: Control, k: int) -> Quantity:
        """The share of right answers of J_k: `selecting.accuracy`."""
        at: At = {"control": control.name, "budget": self.budget, "k": k}
        share = cluster_bootstrap_later(self.tally(control, [k]), seed=SEED)
        return Quantity("selecting.accuracy", f"k = {k}", share, self.n, None, at)

    def answers(self, control: Control, k: int) -> list[float]:
        """How often J_k answers each of f^7(s), ..., f^12(s) and another node; mean of fits."""
        counts = self.found[f"{control.target(k, self.budget)} answers"].double()
        shares: list[float] = (counts / counts.sum(1, keepdim=True)).mean(0).tolist()
        return shares


def tables(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> list[QuantityTable]:
    """For every control, the share of right answers by k; budgets apart."""
    made = []
    for budget in BUDGETS:
        counted = Counted.of(predictions, facts, budget)
        if counted is not None:
            shown = {control: counted.hops(control) for control in CONTROLS}
            for control, ks in shown.items():
                if ks:
                    title = f"Right answers by k, {control.about} ({TOLD[budget]})"
                    rows = [counted.row(control, k) for k in ks]
                    made.append(QuantityTable("selecting.accuracy", title, rows, NOTE))
    return made
