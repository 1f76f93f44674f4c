"""What a recipe is: everything that decides what a training run computes, as values.

A recipe is a frozen dataclass that goes, as JSON, into the manifest of whatever it makes; with the seed it decides the
artefact's key.  `deviations` names each point in which it differs from the reference protocol, and why; `numerics` what
leaves the protocol as it is: precision of products, rounding, random streams.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from loopscope.model import ModelConfig

Precision = Literal["bf16", "tf32", "fp16", "fp32"]


@dataclass(frozen=True)
class Schedule:
    """Learning rate by update: linear warm-up to `peak`, some updates at the peak, then a decay, if any.

    Update `warmup` is the first at the peak; `decay` updates after the hold the rate is `floor * peak`.
    """

    peak: float
    warmup: int = 0
    hold: int = 0
    decay: int = 0
    shape: Literal["cosine", "linear"] = "cosine"
    floor: float = 0.0

    def rate(self, update: int) -> float:
        """The rate of this update, counted from 1."""
        if update <= self.warmup:
            return self.peak * update / self.warmup
        gone = update - self.warmup - self.hold
        if self.decay == 0 or gone <= 0:
            return self.peak
        part = min(gone / self.decay, 1.0)
        left = 0.5 * (1 + math.cos(math.pi * part)) if self.shape == "cosine" else 1 - part
        return self.peak * (self.floor + (1 - self.floor) * left)


@dataclass(frozen=True)
class Optimiser:
    """AdamW with decoupled decay on every parameter, after clipping each member's gradient to norm `clip`."""

    schedule: Schedule
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float = 0.0
    clip: float = 1.0
    slow: tuple[str, float] | None = None  # (parameter, factor on its rate)


@dataclass(frozen=True)
class Stage:
    """A run of updates with one optimiser, which starts afresh.

    Members are scored every `check_every` updates (0: never) and at the end; a stage ends early once every member's
    score reaches `stop_at`.
    """

    name: str
    updates: int
    optimiser: Optimiser
    check_every: int
    stop_at: float | None = None


@dataclass(frozen=True)
class GraphData:
    """Graph walks for a backbone: uniform permutations and starts, requests 1..depth or always `depth`."""

    nodes: int = 10
    depth: int = 8
    depths: Literal["uniform", "fixed"] = "uniform"
    held_out: str = "main"  # the study whose populations are never drawn
    selection: str = "selection"  # the population that scores checkpoints, at `depth`
    task: Literal["graph-walk"] = "graph-walk"


@dataclass(frozen=True)
class ParityData:
    """Bit strings of length 1..m, m growing by one every `every` updates up to `longest`."""

    longest: int = 20
    every: int = 500
    task: Literal["parity"] = "parity"

    def reached(self, update: int) -> int:
        """The greatest length drawn in this update."""
        return min(1 + (update - 1) // self.every, self.longest)


@dataclass(frozen=True)
class RelationData:
    """Relation chains; lengths 1, 2, ..., `longest` take turns."""

    longest: int = 3
    task: Literal["relations"] = "relations"


@dataclass(frozen=True)
class BackboneRecipe:
    """How a backbone is trained.

    `loss`: "final" (after the last call), "stepwise" (that, and the mean over the calls before, each against its own
    step), "own-length" (each row after as many calls as it has bits), "aligned" (call t against step t).
    The model starts from torch's generator at `seed + init`; data come from the counter-based stream `stream`.
    `keep`: the earliest best checkpoint on the selection population, or the last.
    """

    name: str
    about: str
    model: ModelConfig
    data: GraphData | ParityData | RelationData
    loss: Literal["final", "stepwise", "own-length", "aligned"]
    batch: int
    stages: tuple[Stage, ...]
    stream: str
    keep: Literal["best", "last"] = "best"
    init: int = 0
    precision: Precision = "bf16"
    deviations: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; what is only for the reader is left out."""
        return _plain(self)


@dataclass(frozen=True)
class WalkFit:
    """A map for graph walks: (J F) `calls` times after `prefix` calls, call t against f^(base + hops t).

    `prefix=None`: as many calls as the backbone was trained with.  `pool`: draw from the states of this population,
    kept in memory, instead of from fresh graphs.  `rule`: the label rule of the selection score; `score` what it is.
    """

    hops: int
    calls: int = 1
    prefix: int | None = None
    base: int = 8
    request: int = 8  # the depth token
    held_out: str = "main"
    selection: str = "selection"
    pool: str | None = None
    rule: Literal["all", "three"] = "all"
    score: Literal["accuracy", "loss"] = "accuracy"
    task: Literal["graph-walk"] = "graph-walk"


@dataclass(frozen=True)
class LastingFit(WalkFit):
    """A map that is to work again and again: as `WalkFit`, with states that live on, or maps that take turns.

    - `fresh`: for each stage, the places of a batch that begin anew after every update, in turns; the states of all
      others live on, as long as what they answer is right.  Empty: every update starts from new states.
    - `letters`: the hops of the maps that take turns in random strings, one recipe for each; they are fitted together,
      and every state passes through all of them.  Empty: a map follows itself.
    - `scored`: the steered calls of the selection score, which is their mean; over `calls` alone every map that does
      what it was trained for would score 1.

    Each update advances its states by `calls` steered calls, and gradients reach back through these.
    """

    fresh: tuple[int, ...] = ()
    letters: tuple[int, ...] = ()
    scored: int = 32


@dataclass(frozen=True)
class ControlFit(WalkFit):
    """A map for one more call under a control: as `WalkFit`, with another block after J, or J on some rows alone.

    - `block`: what follows J.  "trained": the backbone's own F.  "permuted": F with the entries of every tensor of its
      layers permuted.  "none": nothing, J(h) itself is read.  Otherwise the name of a backbone of another task, whose F
      and readout take over (see `training.controls`).
    - `rows`: the rows that J acts on; all others enter the block as they are.  "edges" are EDGE, j, f(j) of every
      arrow, "query" is QUERY, the start and DEPTH.
    - `starts`: "one" start a graph, or "all" of them, so that a batch has fewer graphs and what the starts of a graph
      have in common is computed once.
    """

    block: str = "trained"
    rows: Literal["all", "answer", "edges", "query"] = "all"
    starts: Literal["one", "all"] = "one"


@dataclass(frozen=True)
class ParityFit:
    """A map for parity, before calls 2..n, read after call n = the length.

    `lengths`: (first, last, updates, batch) of each part; lengths take turns.
    """

    lengths: tuple[tuple[int, int, int, int], ...]
    task: Literal["parity"] = "parity"


@dataclass(frozen=True)
class RelationFit:
    """A map for relation chains, F (J F)^(n-1), call t against step t for t >= 2.

    Stage i trains at length `lengths[i]`, mixed with shorter ones down to `shortest` with probability `replay`.
    """

    lengths: tuple[int, ...]
    shortest: int = 4
    replay: float = 0.5
    queries: int = 64  # of a check at the stage's length
    task: Literal["relations"] = "relations"


@dataclass(frozen=True)
class MapRecipe:
    """How a map is fitted to a frozen backbone.

    The map starts from a generator seeded `fit + init` (one draw for every backbone and target); data come from stream
    `stream` of the fit's number.  Recipes that differ in `data.hops` alone are fitted side by side.
    `keep`: as for backbones, or the last with its "trail", stored beside it: the map with which the last stage began,
    and that of each of its checks.
    """

    name: str
    about: str
    made_for: str  # the backbone recipe of the protocol; any backbone of the same task and size will do
    data: WalkFit | ParityFit | RelationFit
    batch: int
    stages: tuple[Stage, ...]
    stream: str
    family: str = "diagonal-low-rank"
    rank: int | None = 48
    std: float | None = None
    init: int = 0
    keep: Literal["best", "last", "trail"] = "best"
    precision: Precision = "tf32"
    deviations: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; what is only for the reader is left out."""
        return _plain(self)


Recipe = BackboneRecipe | MapRecipe

FOR_READERS = ("about", "made_for", "deviations", "numerics")
"""What decides nothing that is computed, and so no key."""


def _plain(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in asdict(recipe).items() if name not in FOR_READERS}
