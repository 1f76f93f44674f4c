"""The recipes against the numbers of the reference protocol, written here as literals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch

from loopscope.errors import InputError
from loopscope.model import LoopedTransformer, ModelConfig
from loopscope.store.manifest import artefact_key
from loopscope.studies.costs import training_flops
from loopscope.studies.recipes import RECIPES, backbone_recipe, map_recipe, recipe
from loopscope.tasks.populations import HELD_OUT, population
from loopscope.training.cohort import parity, relations
from loopscope.training.cohort.jobs import initial_model
from loopscope.training.cohort.objective import new_map
from loopscope.training.recipe import (
    BackboneRecipe,
    GraphData,
    LastingFit,
    ParityData,
    ParityFit,
    RelationData,
    RelationFit,
    Schedule,
    WalkFit,
)

WALKS = ["d8l6", "d8l8", "matched-final", "matched-stepwise", "n8-d8l8"]
ONE_CALL = ["stay", "one", "two"]
MATCHED = ["matched-stay", "matched-one", "matched-two"]
PAPER = [*WALKS, "parity", "relations", *ONE_CALL, *MATCHED, "continue16", "parity-staged", "relations-curriculum"]
HOPS = {"stay": 0, "one": 1, "two": 2}


def rates(name: str, *updates: int, stage: int = 0) -> list[float]:
    schedule = recipe(name).stages[stage].optimiser.schedule
    return [schedule.rate(update) for update in updates]


# ---- backbones -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WALKS)
def test_graph_walks(name: str) -> None:
    walk = backbone_recipe(name)
    (stage,) = walk.stages
    optimiser = stage.optimiser
    assert (stage.updates, walk.batch, stage.check_every, stage.stop_at) == (20_000, 512, 1_000, None)
    assert (optimiser.betas, optimiser.eps, optimiser.decay) == ((0.9, 0.95), 1e-8, 0.3)
    assert (optimiser.clip, optimiser.slow, walk.precision) == (1.0, None, "bf16")
    assert rates(name, 1, 250, 500, 501) == pytest.approx([6e-7, 1.5e-4, 3e-4, 3e-4], rel=1e-12)
    assert rates(name, 1_000) == pytest.approx([2.995155e-4], abs=0.5e-10)
    assert rates(name, 501 + 9_750) == pytest.approx([1.5e-4], rel=1e-12)
    assert rates(name, 20_000) == pytest.approx([1.947e-12], abs=0.5e-15)


@pytest.mark.parametrize(
    ("name", "nodes", "loops", "loss", "keep", "depths", "study", "selection", "init"),
    [
        ("d8l6", 10, 6, "final", "best", "uniform", "main", "selection", 6054),
        ("d8l8", 10, 8, "final", "best", "uniform", "main", "selection", 8072),
        ("matched-final", 10, 8, "final", "last", "fixed", "matched", "matched-selection", 0),
        ("matched-stepwise", 10, 8, "stepwise", "last", "fixed", "matched", "matched-selection", 0),
        ("n8-d8l8", 8, 8, "final", "last", "fixed", "eight", "eight-selection", 0),
    ],
)
def test_what_graph_walks_differ_in(
    name: str, nodes: int, loops: int, loss: str, keep: str, depths: str, study: str, selection: str, init: int
) -> None:
    walk = backbone_recipe(name)
    assert isinstance(walk.data, GraphData)
    assert (walk.loss, walk.keep, walk.init) == (loss, keep, init)
    assert (walk.data.nodes, walk.data.depth, walk.data.depths) == (nodes, 8, depths)
    assert (walk.data.held_out, walk.data.selection) == (study, selection)
    assert selection in HELD_OUT[study]
    assert walk.model == ModelConfig(
        vocabulary=nodes + 12, classes=nodes, loops=loops, layers=2, width=256, heads=4, mlp=1024,
        positions=3 * nodes + 5, read_in="embedding", attention_bias=False, gelu="erf", norm_in_loop=False,
        readout="untied", first_class=0, init="graph",
    )  # fmt: skip


def test_what_is_withheld_and_what_selects() -> None:
    sizes = {study: sum(len(population(name).rows) for name in HELD_OUT[study]) for study in HELD_OUT}
    assert (sizes["main"], sizes["matched"], sizes["eight"]) == (25_720, 1_024, 1_024)
    graphs = [len(population(name).rows) for name in ("selection", "matched-selection", "eight-selection")]
    assert graphs == [128, 512, 512]
    assert int(population("matched-selection").mask("three").sum()) == 4_094
    assert len(population("matched-maps").rows) == 2_048


def test_the_two_regimes_of_matched_supervision_differ_in_the_loss_alone() -> None:
    final, stepwise = backbone_recipe("matched-final"), backbone_recipe("matched-stepwise")
    changed = [each.name for each in fields(final) if getattr(final, each.name) != getattr(stepwise, each.name)]
    assert changed == ["name", "about", "loss"]


def test_parity() -> None:
    bits = backbone_recipe("parity")
    (stage,) = bits.stages
    optimiser = stage.optimiser
    assert bits.data == ParityData(longest=20, every=500)
    assert (stage.updates, bits.batch, stage.check_every, bits.loss) == (100_001, 64, 1_000, "own-length")
    assert (optimiser.betas, optimiser.eps, optimiser.decay, optimiser.clip) == ((0.9, 0.999), 1e-8, 0.01, 1.0)
    assert (bits.keep, bits.init, optimiser.slow) == ("best", 0, None)
    assert rates("parity", 1, 10_500, 10_502) == [1e-4] * 3
    assert rates("parity", 55_000) == pytest.approx([5.04e-5], abs=0.5e-7)
    assert rates("parity", 96_000) == pytest.approx([4.9e-7], abs=0.5e-8)
    assert rates("parity", 99_000) == pytest.approx([3.1e-8], abs=0.5e-9)
    assert rates("parity", 100_001) == pytest.approx([1e-13], abs=0.5e-13)
    reached = [bits.data.reached(update) for update in (1, 500, 501, 1_000, 1_001, 9_500, 9_501, 100_001)]
    assert reached == [1, 1, 2, 2, 3, 19, 20, 20]
    assert bits.model == ModelConfig(
        vocabulary=6, classes=6, loops=20, layers=1, width=256, heads=64, mlp=1024, positions=0, read_in="one-hot",
        attention_bias=True, gelu="tanh", norm_in_loop=True, readout="linear", first_class=0, init="gpt2",
    )  # fmt: skip
    assert (parity.CHECK_SEED, parity.CHECKED) == (900_001, 4 * 256)


def test_relations() -> None:
    chains = backbone_recipe("relations")
    (stage,) = chains.stages
    optimiser = stage.optimiser
    assert chains.data == RelationData(longest=3)
    assert (stage.updates, chains.batch, stage.check_every, chains.loss) == (80_000, 512, 2_000, "aligned")
    assert (optimiser.betas, optimiser.eps, optimiser.decay, optimiser.clip) == ((0.9, 0.95), 1e-8, 0.0, 1.0)
    assert (chains.keep, chains.precision, chains.init) == ("best", "bf16", 0)
    assert rates("relations", 1, 1_000, 2_000, 2_001, 62_000) == pytest.approx([1.5e-7, 1.5e-4, *[3e-4] * 3])
    assert rates("relations", 62_001) == pytest.approx([3e-4 * 17_999 / 18_000])
    assert rates("relations", 71_000, 80_000) == pytest.approx([1.5e-4, 0.0])
    assert chains.model == ModelConfig(
        vocabulary=81, classes=64, loops=3, layers=2, width=256, heads=8, mlp=1024, positions=0, read_in="embedding",
        attention_bias=True, gelu="erf", norm_in_loop=False, readout="tied", first_class=1, init="torch",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("d8l6", 1_598_208), ("d8l8", 1_598_208), ("matched-final", 1_598_208), ("n8-d8l8", 1_595_648),
        ("parity", 793_606), ("relations", 1_600_768),
    ],
)  # fmt: skip
def test_the_model_a_seed_starts_from(name: str, parameters: int) -> None:
    walk = backbone_recipe(name)
    before = torch.get_rng_state()
    model = initial_model(walk, 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    torch.manual_seed(3 + {"d8l6": 6054, "d8l8": 8072}.get(name, 0))
    for expected, found in zip(LoopedTransformer(walk.model).parameters(), model.parameters(), strict=True):
        assert torch.equal(expected, found)


# ---- maps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ONE_CALL, *MATCHED, "continue16"])
def test_maps_of_the_graph_walk(name: str) -> None:
    fit = map_recipe(name)
    (stage,) = fit.stages
    optimiser = stage.optimiser
    assert (stage.updates, fit.batch, stage.check_every, fit.keep) == (8_000, 128, 400, "best")
    assert (optimiser.betas, optimiser.eps, optimiser.decay, optimiser.clip) == ((0.9, 0.999), 1e-8, 0.0, 1.0)
    assert rates(name, 1, 400, 8_000) == [1e-4] * 3
    assert (fit.family, fit.rank, optimiser.slow) == ("diagonal-low-rank", 48, None)
    start = new_map(fit, 256, 1)
    assert sum(parameter.numel() for parameter in start.parameters()) == 25_088
    assert float(start.A.detach().std()) == pytest.approx(0.02 if name in MATCHED else 0.0625, rel=0.02)


@pytest.mark.parametrize("target", HOPS)
def test_one_more_call(target: str) -> None:
    data = WalkFit(
        HOPS[target], calls=1, prefix=None, base=8, request=8, held_out="main", selection="selection", pool=None,
        rule="all", score="accuracy",
    )  # fmt: skip
    assert map_recipe(target).data == data
    assert map_recipe(target).init == 0
    matched = map_recipe(f"matched-{target}")
    assert matched.data == replace(
        data, held_out="matched", selection="matched-selection", pool="matched-maps", rule="three"
    )
    assert matched.init == 1000


def test_continuation_from_the_first_call_on() -> None:
    fit = map_recipe("continue16")
    assert fit.data == WalkFit(
        1, calls=16, prefix=0, base=0, request=8, held_out="eight", selection="eight-selection", rule="all",
        score="loss",
    )  # fmt: skip


def test_the_stages_of_a_parity_map() -> None:
    fit = map_recipe("parity-staged")
    (stage,) = fit.stages  # one AdamW over all parts
    optimiser = stage.optimiser
    assert isinstance(fit.data, ParityFit)
    assert fit.data.lengths == ((20, 24, 256, 64), (20, 32, 512, 48), (20, 40, 1_024, 32))
    assert (stage.updates, fit.keep, fit.family, fit.rank) == (1_792, "last", "diagonal-low-rank", 48)
    assert (optimiser.betas, optimiser.eps, optimiser.decay, optimiser.clip) == ((0.9, 0.999), 1e-8, 0.0, 1.0)
    assert (optimiser.slow, fit.init + 1) == (("D", 0.1), 211_001)
    assert rates("parity-staged", 1, 256, 768) == pytest.approx([2e-5 / 1024, 5e-6, 1.5e-5], rel=1e-12)
    assert rates("parity-staged", 1_024, 1_024 + 384, 1_792) == pytest.approx([2e-5, 1.1e-5, 2e-6], rel=1e-12)
    assert float(new_map(fit, 256, 1).A.detach().std()) == pytest.approx(0.0625, rel=0.02)


def examples_per_length(fits: parity.ParityFits, updates: int) -> Counter[int]:
    told: Counter[int] = Counter()
    for update in range(1, updates + 1):
        length, batch = fits.shape(0, update)
        told[length] += batch
    return told


def test_examples_of_each_length_in_a_parity_map() -> None:
    fit, model = map_recipe("parity-staged"), replace(backbone_recipe("parity").model, width=8, heads=2, mlp=8)
    fits = parity.ParityFits(replace(fit, rank=1), LoopedTransformer(model), [(0, 1)], torch.device("cpu"))
    expected = {20: 6_816, **dict.fromkeys(range(21, 25), 6_752), **dict.fromkeys(range(25, 33), 3_440)}
    expected |= {**dict.fromkeys(range(33, 36), 1_568), **dict.fromkeys(range(36, 41), 1_536)}
    assert examples_per_length(fits, 1_792) == expected
    assert sum(expected.values()) == 73_728
    # Lengths take turns, from the shortest again in every part.
    assert [fits.shape(0, update) for update in (1, 2, 5, 6, 256)] == [(20, 64), (21, 64), (24, 64), (20, 64), (20, 64)]
    assert [fits.shape(0, update) for update in (257, 258, 768, 769, 789, 790, 1_792)] == [
        (20, 48), (21, 48), (24, 48), (20, 32), (40, 32), (20, 32), (35, 32)
    ]  # fmt: skip


def test_the_curriculum_of_a_relation_map() -> None:
    fit = map_recipe("relations-curriculum")
    *grow, rest = fit.stages
    assert isinstance(fit.data, RelationFit)
    assert fit.data == RelationFit((4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 16), 4, 0.5, 64)
    assert (fit.family, fit.rank, fit.batch, fit.keep) == ("dense", None, 128, "trail")
    assert len(grow) == 13
    for stage in grow:
        assert (stage.updates, stage.check_every, stage.stop_at) == (3_000, 250, 1.0)
        assert stage.optimiser.schedule == Schedule(1e-4)
    for stage in fit.stages:
        optimiser = stage.optimiser
        assert (optimiser.betas, optimiser.eps, optimiser.decay, optimiser.clip) == ((0.9, 0.95), 1e-8, 0.0, 1.0)
    assert len({stage.name for stage in fit.stages}) == 14  # the names tell the streams of the stages apart
    assert (rest.updates, rest.stop_at) == (10_000, None)
    found = rates("relations-curriculum", 1, 250, 500, 9_000, 9_500, 10_000, stage=13)
    assert found == pytest.approx([6e-8, 1.5e-5, 3e-5, 3e-5, 1.5e-5, 0.0])
    assert relations.CHECK_SEED == 990_000
    assert sum(parameter.numel() for parameter in new_map(fit, 256, 1).parameters()) == 65_792


def test_lengths_of_a_relation_map() -> None:
    fit, model = map_recipe("relations-curriculum"), replace(backbone_recipe("relations").model, width=8, mlp=8)
    fits = relations.RelationFits(fit, LoopedTransformer(model), [(0, 1)], torch.device("cpu"))
    assert {fits.shape(0, update) for update in range(1, 200)} == {4}
    for stage, longest in ((1, 5), (13, 16)):
        drawn = Counter(fits.shape(stage, update) for update in range(1, 1_001))
        choices = longest - 3
        assert sorted(drawn) == list(range(4, longest + 1))
        # Half of the updates, and one of `choices` of the other half, are at the stage's own length: 5 standard errors.
        chance = 0.5 + 0.5 / choices
        assert abs(drawn[longest] - 1_000 * chance) < 5 * (1_000 * chance * (1 - chance)) ** 0.5
        chance = 0.5 / choices
        for length in range(4, longest):
            assert abs(drawn[length] - 1_000 * chance) < 5 * (1_000 * chance * (1 - chance)) ** 0.5


# ---- recipes as values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_what_goes_into_a_manifest_comes_back(name: str) -> None:
    made = recipe(name)
    plain = made.to_dict()
    assert set(plain) == {each.name for each in fields(made)} - {"about", "made_for", "deviations", "numerics"}
    again = json.loads(json.dumps(plain))
    assert artefact_key("x", {"recipe": again}) == artefact_key("x", {"recipe": plain})
    schedules = [Schedule(**stage["optimiser"]["schedule"]) for stage in again["stages"]]
    assert schedules == [stage.optimiser.schedule for stage in made.stages]
    assert again["data"]["task"] == made.data.task
    if isinstance(made, BackboneRecipe):
        assert ModelConfig.from_dict(again["model"]) == made.model


def test_the_settings_decide_the_key_and_the_words_do_not() -> None:
    def key(made: BackboneRecipe) -> str:
        return artefact_key("backbone", {"recipe": made.to_dict(), "seed": 0})

    keys = {artefact_key("x", {"recipe": made.to_dict()}) for made in RECIPES.values()}
    assert len(keys) == len(RECIPES) > len(PAPER)
    made = backbone_recipe("d8l6")
    assert key(replace(made, about="other words", deviations=("other",), numerics=())) == key(made)
    (stage,) = made.stages
    optimiser = stage.optimiser
    others = [
        replace(made, name="other"), replace(made, batch=511), replace(made, loss="stepwise"),
        replace(made, stream="other"), replace(made, keep="last"), replace(made, init=1),
        replace(made, precision="tf32"), replace(made, model=replace(made.model, loops=7)),
        replace(made, data=replace(made.data, depth=7)),
        *(replace(made, stages=(changed,)) for changed in (
            replace(stage, updates=1), replace(stage, check_every=0), replace(stage, stop_at=1.0),
            replace(stage, optimiser=replace(optimiser, decay=0.2)),
            replace(stage, optimiser=replace(optimiser, slow=("norm.weight", 0.5))),
            replace(stage, optimiser=replace(optimiser, schedule=replace(optimiser.schedule, peak=1e-3))),
        )),
    ]  # fmt: skip
    assert len({key(made), *map(key, others)}) == len(others) + 1


@pytest.mark.parametrize("name", PAPER)
def test_deviations_from_the_reference_are_named(name: str) -> None:
    made = recipe(name)
    assert made.deviations == ()  # of the paper's recipes: what differs leaves the protocol as it is
    told = " ".join(made.numerics)
    assert "counter-based streams" in told
    lower = {"tf32": "products in TF32", "fp16": "products in fp16"}  # bf16 is the reference's own
    assert [each for each, word in lower.items() if word in told] == [each for each in lower if each == made.precision]
    assert all(each and each == each.strip() and "\n" not in each for each in made.numerics)
    special = {"n8-d8l8": "lock seeds", "continue16": "one start of A", "relations-curriculum": "exactly half"}
    assert [each for each, word in special.items() if word in told] == [each for each in special if each == name]


@pytest.mark.parametrize(
    ("name", "of", "updates"), [("two-long", "two", 32_000), ("continue16-twice", "continue16", 16_000),
                                ("continue16-long", "continue16", 32_000)],
)  # fmt: skip
def test_longer_fits_differ_in_their_updates_alone(name: str, of: str, updates: int) -> None:
    long, short = map_recipe(name), map_recipe(of)
    assert [stage.updates for stage in long.stages] == [updates]
    assert replace(long, name=of, about=short.about, stages=short.stages, deviations=()) == short
    assert long.deviations == (f"{updates // 8_000} times the updates of the protocol",)


def test_fits_that_see_longer_and_more_exact_ones() -> None:
    exact, pool = map_recipe("continue16-fp32"), map_recipe("pool-longer-one")
    short, lasting = map_recipe("continue16"), map_recipe("pool-one")
    assert exact.precision == "fp32"
    assert (
        replace(exact, name=short.name, about=short.about, precision=short.precision, numerics=short.numerics) == short
    )
    assert isinstance(pool.data, LastingFit)
    assert (pool.data.scored, pool.data.fresh) == (64, (128, 8))
    assert replace(pool, name=lasting.name, about=lasting.about, data=lasting.data) == lasting


def test_names_are_found_and_mistakes_told(refused: Callable[..., str]) -> None:
    assert all(recipe(name).name == name for name in RECIPES)
    assert "no recipe 'd8l7'" in refused(InputError, recipe, "d8l7")
    assert refused(InputError, recipe, "d8l-8").endswith("(nearest: d8l8)")
    assert "'one' fits maps" in refused(InputError, backbone_recipe, "one")
    assert "'d8l6' trains backbones" in refused(InputError, map_recipe, "d8l6")


def test_a_schedule_of_every_kind() -> None:
    updates = range(1, 13)
    assert [Schedule(2.0).rate(update) for update in updates] == [2.0] * 12
    linear = Schedule(4.0, warmup=4, hold=2, decay=4, shape="linear", floor=0.25)
    assert [linear.rate(update) for update in updates] == [1, 2, 3, 4, 4, 4, 3.25, 2.5, 1.75, 1, 1, 1]
    cosine = Schedule(1.0, decay=2)
    assert [cosine.rate(update) for update in (1, 2, 3)] == pytest.approx([0.5, 0.0, 0.0])


# ---- costs -----------------------------------------------------------------------------------------------------------

ROW = 2 * 256 * (3 * 256 + 256 + 1024 + 1024)
"""One row through one layer of width 256: q, k, v, output, up, down; a multiplication and an addition each."""


def test_costs_of_backbones() -> None:
    assert ROW == 1_572_864
    # Forward and twice that backward; 20,000 batches of 512 x 35 rows, six loops of two layers.
    assert training_flops(recipe("d8l6")) == 3 * 20_000 * 512 * 35 * 6 * 2 * ROW == 20_293_720_473_600_000
    assert training_flops(recipe("d8l8")) == 3 * 20_000 * 512 * 35 * 8 * 2 * ROW
    assert training_flops(recipe("n8-d8l8")) == 3 * 20_000 * 512 * 29 * 8 * 2 * ROW
    # 500 updates each of m loops on m + 2 tokens for m = 1..19, then 90,501 with m = 20.
    rows = 500 * sum(m * (m + 2) for m in range(1, 20)) + 90_501 * 20 * 22
    assert training_flops(recipe("parity")) == 3 * 64 * rows * ROW
    assert training_flops(recipe("relations")) == pytest.approx(3 * 512 * 80_000 / 3 * (3 + 8 + 15) * 2 * ROW)


def test_costs_of_maps() -> None:
    # Six calls to h6 forward alone, then one forward and back to its input.
    assert training_flops(recipe("one")) == 8_000 * 128 * 35 * (6 + 2) * 2 * ROW
    assert training_flops(recipe("matched-one")) == 8_000 * 128 * 35 * 2 * 2 * ROW  # h8 is kept
    assert training_flops(recipe("continue16")) == 8_000 * 128 * 29 * 16 * 2 * 2 * ROW
    counted = {20: 6_816, **dict.fromkeys(range(21, 25), 6_752), **dict.fromkeys(range(25, 33), 3_440)}
    counted |= {**dict.fromkeys(range(33, 36), 1_568), **dict.fromkeys(range(36, 41), 1_536)}
    rows = sum(count * (n + 2) * (1 + 2 * (n - 1)) for n, count in counted.items())
    assert training_flops(recipe("parity-staged")) == rows * ROW


def test_costs_of_the_tiny_recipes() -> None:
    row = 2 * 64 * (3 * 64 + 64 + 128 + 128)
    backbone, fit = recipe("tiny").stages[0].updates, recipe("tiny-one").stages[0].updates
    assert training_flops(recipe("tiny")) == 3 * backbone * 64 * 23 * 2 * 2 * row
    assert training_flops(recipe("tiny-one")) == fit * 64 * 23 * (2 + 2) * 2 * row
