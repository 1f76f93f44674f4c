"""How backbones and maps of graph walks are trained: the paper's recipes, ours beyond it, small ones for tests."""

from __future__ import annotations

from dataclasses import replace

from loopscope.model import ModelConfig, graph_walk_config
from loopscope.studies.numerics import OWN_STREAM, SCALED, TF32
from loopscope.training.cohort.hops import BUDGETS, CONTROLS, HOPS, Budget, Control
from loopscope.training.recipe import (
    BackboneRecipe,
    ControlFit,
    GraphData,
    LastingFit,
    MapRecipe,
    Optimiser,
    Recipe,
    Schedule,
    Stage,
    WalkFit,
)

BRIEF = (
    "600 updates of 12 graphs with all ten starts at 1e-3, falling to 0 (8,000 updates of 128 graphs with one start at "
    "1e-4 in the reference)"
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
        512, _walk_stage(), stream="graph-walk", init=6 * 1009, numerics=(OWN_STREAM,),
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
        numerics=(OWN_STREAM, "lock seeds of our own: the reference does not give its own"),
    )  # fmt: skip


# ---- maps ------------------------------------------------------------------------------------------------------------


def _map_stage(updates: int = 8_000, check_every: int = 400) -> tuple[Stage, ...]:
    return (Stage("fit", updates, Optimiser(Schedule(1e-4)), check_every),)


def _one_call(name: str, hops: int, about: str) -> MapRecipe:
    return MapRecipe(
        name, about, "d8l6", WalkFit(hops), 128, _map_stage(), stream="walk-maps", numerics=(OWN_STREAM, TF32, FP16)
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


def hops(control: Control, k: int, budget: Budget = "full") -> MapRecipe:
    """One more call leads to f^(8+k)(s), by the protocol of `one` and `two`, under a control.

    The brief budget is for a CPU: fewer updates at a higher rate that falls, and graphs that come with all their
    starts, so that what these have in common is computed once.  It is the same for every k and every control.
    """
    made = replace(
        _one_call(control.target(k, budget), k, f"f^{8 + k}(s) after one more call; {control.about}"), rank=control.rank
    )
    if budget == "brief":
        stage = Stage("fit", 600, Optimiser(Schedule(1e-3, decay=600)), check_every=300)
        data = ControlFit(k, block=control.block, rows=control.rows, starts="all")
        return replace(
            made, data=data, batch=120, stages=(stage,), precision="bf16", deviations=(BRIEF,),
            numerics=(OWN_STREAM, "products in bf16 (fp32 in the reference); scored in fp32"),
        )  # fmt: skip
    if (control.block, control.rows) == ("trained", "all"):
        return made
    return replace(made, data=ControlFit(k, block=control.block, rows=control.rows))


def _matched(name: str, hops: int, updates: int = 8_000) -> MapRecipe:
    data = WalkFit(
        hops, held_out="matched", selection="matched-selection", pool="matched-maps", rule="three"
    )  # fmt: skip
    return replace(
        _one_call(f"matched-{name}", hops, f"`{name}` under matched supervision: states of 2,048 graphs, kept"),
        made_for="matched-final", data=data, stages=_map_stage(updates), stream="matched-maps", std=0.02, init=1000,
        numerics=(OWN_STREAM, "products in TF32 on a GPU (bf16 autocast in the reference); scored in fp32"),
        deviations=() if updates == 8_000 else ("four times the updates of the protocol",),
    )  # fmt: skip


def continue16() -> MapRecipe:
    """Every call walks one step, from the first on, for sixteen calls."""
    data = WalkFit(
        1, calls=16, prefix=0, base=0, held_out="eight", selection="eight-selection", score="loss"
    )  # fmt: skip
    return MapRecipe(
        "continue16", "a step at every call, trained through 16 steered calls from h0", "n8-d8l8", data, 128,
        _map_stage(), stream="continue-maps", precision="fp16",
        numerics=(OWN_STREAM, SCALED, "one start of A per fit; the reference draws one per backbone and fit"),
    )  # fmt: skip


def _lasting(family: str, name: str, about: str, data: LastingFit) -> MapRecipe:
    stage = Stage("rollout", 8_000, Optimiser(Schedule(1e-3, decay=8_000)), check_every=400)
    ours = "beyond the published protocol, which fits maps for one more call"
    precise = "products in TF32 on a GPU; states before the first J, and scores of checkpoints, from fp16 products"
    return replace(
        _one_call(f"{family}-{name}", data.hops, f"`{name}`, trained {about}"), data=data, stages=(stage,),
        stream="lasting-maps", deviations=(ours,), numerics=(OWN_STREAM, precise),
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


def pool_longer(name: str, hops: int) -> MapRecipe:
    """As `pool`, with states that live twice as long, 128 calls, and a score of checkpoints that sees 64 calls."""
    made = pool(name, hops)
    assert isinstance(made.data, LastingFit)
    data = replace(made.data, fresh=(128, 8), scored=64)
    about = f"`{name}`, trained as `pool`, on states led through up to 128 calls, scored over 64"
    return replace(made, name=f"pool-longer-{name}", about=about, data=data)


def strings(name: str, hops: int) -> MapRecipe:
    """As `rollout`, for `strings-one` and `strings-two` together: every state passes through both, in random order."""
    data = LastingFit(hops, calls=8, letters=(1, 2))
    return _lasting("strings", name, "through random strings of itself and its partner", data)


# ---- to understand what came out -------------------------------------------------------------------------------------


def longer(made: MapRecipe, times: int, name: str) -> MapRecipe:
    """The same fit with so many times the updates, under another name."""
    stages = tuple(replace(stage, updates=times * stage.updates) for stage in made.stages)
    more = f"{times} times the updates of the protocol"
    return replace(
        made, name=name, about=f"{made.about}; {more}", stages=stages, deviations=(*made.deviations, more)
    )  # fmt: skip


def continue16_exact() -> MapRecipe:
    """As `continue16`, with products in fp32, as the reference has them."""
    made = continue16()
    return replace(
        made, name="continue16-fp32", about=f"{made.about}; products in fp32", precision="fp32",
        numerics=tuple(each for each in made.numerics if each != SCALED),
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


RECIPES: tuple[Recipe, ...] = (
    d8l6(), d8l8(), matched_final(), matched_stepwise(), n8_d8l8(),
    stay(), one(), two(), _matched("stay", 0), _matched("one", 1), _matched("two", 2),
    _matched("one-long", 1, 32_000), _matched("two-long", 2, 32_000),
    *(made(name, hops) for made in (rollout, pool, strings) for name, hops in (("one", 1), ("two", 2))),
    continue16(),
    longer(two(), 4, "two-long"), longer(continue16(), 2, "continue16-twice"),
    longer(continue16(), 4, "continue16-long"), continue16_exact(),
    *(pool_longer(name, hops) for name, hops in (("one", 1), ("two", 2))),
    *(hops(control, k, budget) for budget in BUDGETS for control in CONTROLS for k in HOPS),
    tiny(), _tiny_map("stay", 0), _tiny_map("one", 1),
)  # fmt: skip
