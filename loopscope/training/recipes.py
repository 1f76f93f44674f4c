"""Recipes: everything that decides what a training run computes, as values.

A recipe is a frozen dataclass that goes, as JSON, into the manifest of whatever it makes; with the seed it decides the
artefact's key.  The functions below return the paper's recipes.  `deviations` names each point in which a recipe
differs from the reference protocol, and why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from loopscope.errors import InputError, nearest
from loopscope.model import ModelConfig, graph_walk_config, parity_config, relations_config

Precision = Literal["bf16", "tf32", "fp16"]


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

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; what is only for the reader is left out."""
        return _plain(self)


Recipe = BackboneRecipe | MapRecipe


def _plain(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in asdict(recipe).items() if name not in ("about", "made_for", "deviations")}


OWN_STREAM = "batches come from our counter-based streams; the reference drew them on its GPU, which cannot be repeated"
TF32 = "products in TF32 on a GPU (fp32 in the reference); checkpoints are scored, and maps used, in fp32"
SCALED = (
    "products in fp16 with scaled losses on a GPU, as precise as TF32 (fp32 in the reference); checkpoints are scored "
    "in fp32"
)
FP16 = "states before the first J from fp16 products on a GPU, as precise as TF32 (fp32 in the reference)"


def _walk_stage(updates: int = 20_000) -> tuple[Stage, ...]:
    schedule = Schedule(3e-4, warmup=500, hold=1, decay=19_500)
    return (Stage("train", updates, Optimiser(schedule, betas=(0.9, 0.95), decay=0.3), check_every=1_000),)


# ---- backbones -------------------------------------------------------------------------------------------------------


def d8l6() -> BackboneRecipe:
    """Six loops, requests of one to eight steps: the backbone of the mechanism experiments."""
    return BackboneRecipe(
        "d8l6", "ten-node graph walk, requests of 1-8 steps, six loops", graph_walk_config(10, 6), GraphData(), "final",
        512, _walk_stage(), stream="graph-walk", init=6 * 1009, deviations=(OWN_STREAM,),
    )  # fmt: skip


def d8l8() -> BackboneRecipe:
    """Eight loops, requests of one to eight steps."""
    return replace(
        d8l6(), name="d8l8", about="ten-node graph walk, requests of 1-8 steps, eight loops",
        model=graph_walk_config(10, 8), init=8 * 1009,
    )  # fmt: skip


def matched_final() -> BackboneRecipe:
    """Eight loops, always eight steps, loss after the last loop alone."""
    data = GraphData(depths="fixed", held_out="matched", selection="matched-selection")
    return replace(
        d8l8(), name="matched-final", about="matched supervision: eight steps, loss after loop 8 alone", data=data,
        stream="matched", init=0, keep="last",
    )  # fmt: skip


def matched_stepwise() -> BackboneRecipe:
    """As `matched_final`, from the same start and the same batches, with a loss after every loop."""
    return replace(
        matched_final(), name="matched-stepwise", about="matched supervision: a loss after every loop", loss="stepwise"
    )


def n8_d8l8() -> BackboneRecipe:
    """Eight nodes, eight loops, always eight steps."""
    data = GraphData(nodes=8, depths="fixed", held_out="eight", selection="eight-selection")
    return replace(
        d8l8(), name="n8-d8l8", about="eight-node graph walk, eight steps, eight loops", data=data,
        model=graph_walk_config(8, 8), stream="eight", init=0, keep="last",
        deviations=(OWN_STREAM, "lock seeds of our own: the reference does not give its own"),
    )  # fmt: skip


def parity() -> BackboneRecipe:
    """Parity of up to twenty bits, as many loops as bits."""
    schedule = Schedule(1e-4, hold=10_502, decay=89_501)
    stage = Stage("train", 100_001, Optimiser(schedule, decay=0.01), check_every=1_000)
    return BackboneRecipe(
        "parity", "parity of 1-20 bits, n loops for n bits, growing lengths", parity_config(), ParityData(),
        "own-length", 64, (stage,), stream="parity", precision="fp16", deviations=(OWN_STREAM, SCALED,
        "checkpoints are scored from update 1,000 on (10,000 in the reference), where none can be the best"),
    )  # fmt: skip


def relations() -> BackboneRecipe:
    """Chains of one to three relations, one loop for each."""
    schedule = Schedule(3e-4, warmup=2_000, hold=60_000, decay=18_000, shape="linear")
    stage = Stage("train", 80_000, Optimiser(schedule, betas=(0.9, 0.95)), check_every=2_000)
    return BackboneRecipe(
        "relations", "relation chains of 1-3 steps, one loop for each", relations_config(), RelationData(), "aligned",
        512, (stage,), stream="relations", deviations=(OWN_STREAM,),
    )  # fmt: skip


# ---- maps ------------------------------------------------------------------------------------------------------------


def _map_stage(updates: int = 8_000, check_every: int = 400) -> tuple[Stage, ...]:
    return (Stage("fit", updates, Optimiser(Schedule(1e-4)), check_every),)


def _one_call(name: str, hops: int, about: str) -> MapRecipe:
    return MapRecipe(
        name, about, "d8l6", WalkFit(hops), 128, _map_stage(), stream="walk-maps", deviations=(OWN_STREAM, TF32, FP16)
    )  # fmt: skip


def stay() -> MapRecipe:
    """The next call leaves the answer where it is."""
    return _one_call("stay", 0, "one more call holds f^8(s)")


def one() -> MapRecipe:
    """The next call walks one step."""
    return _one_call("one", 1, "one more call walks one step, to f^9(s)")


def two() -> MapRecipe:
    """The next call walks two steps."""
    return _one_call("two", 2, "one more call walks two steps, to f^10(s)")


def _matched(name: str, hops: int, updates: int = 8_000) -> MapRecipe:
    data = WalkFit(
        hops, held_out="matched", selection="matched-selection", pool="matched-maps", rule="three"
    )  # fmt: skip
    return replace(
        _one_call(f"matched-{name}", hops, f"`{name}` under matched supervision: states of 2,048 graphs, kept"),
        made_for="matched-final", data=data, stages=_map_stage(updates), stream="matched-maps", std=0.02, init=1000,
        deviations=(OWN_STREAM, "products in TF32 on a GPU (bf16 autocast in the reference); scored in fp32")
        + (() if updates == 8_000 else ("four times the updates of the protocol",)),
    )  # fmt: skip


def continue16() -> MapRecipe:
    """Every call walks one step, from the first on, for sixteen calls."""
    data = WalkFit(
        1, calls=16, prefix=0, base=0, held_out="eight", selection="eight-selection", score="loss"
    )  # fmt: skip
    return MapRecipe(
        "continue16", "a step at every call, trained through 16 steered calls from h0", "n8-d8l8", data, 128,
        _map_stage(), stream="continue-maps", precision="fp16",
        deviations=(OWN_STREAM, SCALED, "one start of A per fit; the reference draws one per backbone and fit"),
    )  # fmt: skip


def _lasting(family: str, name: str, about: str, data: LastingFit) -> MapRecipe:
    stage = Stage("rollout", 8_000, Optimiser(Schedule(1e-3, decay=8_000)), check_every=400)
    ours = "beyond the published protocol, which fits maps for one more call"
    precise = "products in TF32 on a GPU; states before the first J, and scores of checkpoints, from fp16 products"
    return replace(
        _one_call(f"{family}-{name}", data.hops, f"`{name}`, trained {about}"), data=data, stages=(stage,),
        stream="lasting-maps", deviations=(OWN_STREAM, precise, ours),
    )  # fmt: skip


def rollout(name: str, hops: int) -> MapRecipe:
    """As `one` or `two`, trained through eight of its own calls."""
    return _lasting("rollout", name, "through eight of its own calls", LastingFit(hops, calls=8))


def pool(name: str, hops: int) -> MapRecipe:
    """As `rollout`, then as long again on states that live for eight updates, which are 64 calls."""
    data = LastingFit(hops, calls=8, fresh=(128, 16))
    made = _lasting("pool", name, "through eight of its own calls, then on states it has led through up to 64", data)
    stage = Stage("pool", 8_000, Optimiser(Schedule(3e-4, warmup=100, decay=7_900)), check_every=400)
    return replace(made, stages=(*made.stages, stage))


def strings(name: str, hops: int) -> MapRecipe:
    """As `rollout`, for `strings-one` and `strings-two` together: every state passes through both, in random order."""
    data = LastingFit(hops, calls=8, letters=(1, 2))
    return _lasting("strings", name, "through random strings of itself and its partner", data)


def parity_staged() -> MapRecipe:
    """J before calls 2..n of parity, trained on lengths 20-24, then 20-32, then 20-40."""
    schedule = Schedule(2e-5, warmup=1_024, decay=768, floor=0.1)
    stage = Stage("fit", 1_792, Optimiser(schedule, slow=("D", 0.1)), check_every=256)
    data = ParityFit(((20, 24, 256, 64), (20, 32, 512, 48), (20, 40, 1_024, 32)))
    return MapRecipe(
        "parity-staged", "J before calls 2..n of parity, lengths 20-24, 20-32, 20-40", "parity", data, 64, (stage,),
        stream="parity-maps", init=211_000, keep="last", deviations=(OWN_STREAM, TF32),
    )  # fmt: skip


def relations_curriculum() -> MapRecipe:
    """A dense J for relation chains, trained at length 4, 5, ..., 16, then on all of them."""
    optimiser = Optimiser(Schedule(1e-4), betas=(0.9, 0.95))
    grow = tuple(Stage(f"length {m}", 3_000, optimiser, check_every=250, stop_at=1.0) for m in range(4, 17))
    last = Schedule(3e-5, warmup=500, hold=8_500, decay=1_000, shape="linear")
    rest = Stage("all lengths", 10_000, Optimiser(last, betas=(0.9, 0.95)), check_every=500)
    half = "in the last stage each update takes any length with probability one half; the reference marks exactly half"
    return MapRecipe(
        "relations-curriculum", "a dense J for relation chains: lengths 4, 5, ..., 16, then all", "relations",
        RelationFit((*range(4, 17), 16)), 128, (*grow, rest), stream="relation-maps", family="dense", rank=None,
        keep="trail", deviations=(OWN_STREAM, TF32, half),
    )  # fmt: skip


# ---- for tests, tutorials and rehearsal ------------------------------------------------------------------------------


def tiny() -> BackboneRecipe:
    """Six nodes, one or two steps in two loops of a small model: about a minute on two CPU cores."""
    model = ModelConfig(
        vocabulary=18, classes=6, loops=2, layers=2, width=64, heads=2, mlp=128, positions=23, init="torch"
    )  # fmt: skip
    optimiser = Optimiser(Schedule(2e-3, warmup=50, hold=500, decay=450), betas=(0.9, 0.95), decay=0.01)
    return BackboneRecipe(
        "tiny", "six-node graph walk, requests of 1-2 steps, two loops: about a minute on a CPU", model,
        GraphData(6, 2, held_out="tiny", selection="tiny-selection"), "final", 64,
        (Stage("train", 1_000, optimiser, check_every=50),), stream="tiny",
    )  # fmt: skip


def _tiny_map(name: str, hops: int) -> MapRecipe:
    data = WalkFit(hops, base=2, request=2, held_out="tiny", selection="tiny-selection")
    optimiser = Optimiser(Schedule(1e-2, warmup=20, decay=480))
    return MapRecipe(
        f"tiny-{name}", f"`{name}` for the tiny backbone: f^{2 + hops}(s) after one more call", "tiny", data, 64,
        (Stage("fit", 500, optimiser, check_every=50),), stream="tiny-maps", rank=32,
    )  # fmt: skip


def _listed(*recipes: Recipe) -> Mapping[str, Recipe]:
    return {recipe.name: recipe for recipe in recipes}


RECIPES: Mapping[str, Recipe] = _listed(
    d8l6(), d8l8(), matched_final(), matched_stepwise(), n8_d8l8(), parity(), relations(),
    stay(), one(), two(), _matched("stay", 0), _matched("one", 1), _matched("two", 2),
    _matched("one-long", 1, 32_000), _matched("two-long", 2, 32_000),
    *(made(name, hops) for made in (rollout, pool, strings) for name, hops in (("one", 1), ("two", 2))),
    continue16(), parity_staged(), relations_curriculum(),
    tiny(), _tiny_map("stay", 0), _tiny_map("one", 1),
)  # fmt: skip
"""Every recipe by name."""


def recipe(name: str) -> Recipe:
    """The recipe with this name; InputError names the nearest when there is none."""
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}; there are {', '.join(RECIPES)}{nearest(name, RECIPES)}")
    return RECIPES[name]


def backbone_recipe(name: str) -> BackboneRecipe:
    """The backbone recipe with this name."""
    found = recipe(name)
    if not isinstance(found, BackboneRecipe):
        raise InputError(f"{name!r} fits maps; `loopscope fit {name} --backbone KEY` does that")
    return found


def map_recipe(name: str) -> MapRecipe:
    """The map recipe with this name."""
    found = recipe(name)
    if not isinstance(found, MapRecipe):
        raise InputError(f"{name!r} trains backbones; `loopscope train {name} --seeds 0` does that")
    return found
