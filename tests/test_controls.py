"""Controls for maps of one more call: other blocks after J, J on some rows, smaller ranks, graphs with all starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf

from loopscope.errors import InputError
from loopscope.maps import AffineMap
from loopscope.model import LoopedTransformer, ModelConfig
from loopscope.store.artefacts import BACKBONE, MAP
from loopscope.store.store import Store
from loopscope.store.zoo import find, open_zoo
from loopscope.studies.graph_walk.scores import score_walks
from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.tasks.graph_walk import GraphWalk, all_starts, start_for, walk
from loopscope.tasks.populations import population
from loopscope.training.cohort.cohort import Cohort, State, frozen
from loopscope.training.cohort.controls import ControlFits, acted_on, block_of, permuted, steered_logits
from loopscope.training.cohort.hops import BUDGETS, CONTROLS, HOPS, OTHER
from loopscope.training.cohort.jobs import Settings, fit, train
from loopscope.training.cohort.layout import AllStarts, Runs
from loopscope.training.cohort.objective import new_map
from loopscope.training.recipe import ControlFit, MapRecipe, WalkFit
from tests.gradients import check_step, shaken_maps, shaken_models
from tests.tiny import tiny_map
from tests.toys import CPU, graphs_and_starts, toy_map, toy_walk, update_of

TASK = GraphWalk(6)
ROWS = {"all": set(range(23)), "answer": {22}, "edges": set(range(1, 19)), "query": {19, 20, 21}}


def backbone() -> LoopedTransformer:
    return shaken_models(toy_walk(), [0], far=0.5)[0]


def other_task(width: int = 16, classes: int = 9) -> LoopedTransformer:
    """As relation chains have it: biases in attention, a tied readout, other heads, classes after a first token."""
    config = ModelConfig(
        vocabulary=12, classes=classes, loops=3, width=width, heads=2, mlp=8, attention_bias=True, readout="tied",
        first_class=1, init="torch",
    )  # fmt: skip
    torch.manual_seed(4)
    model = LoopedTransformer(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval().requires_grad_(False)


def control(block: str = "trained", rows: Any = "all", starts: Any = "one") -> MapRecipe:
    data = ControlFit(
        1, base=2, request=2, held_out="tiny", selection="tiny-selection", block=block, rows=rows, starts=starts
    )  # fmt: skip
    return toy_map(data=data, batch=12 if starts == "all" else 8)


def expected(
    model: LoopedTransformer, step: AffineMap, recipe: MapRecipe, hops: int, graphs: Sequence[Sequence[int]],
    starts: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Logits and right answers, by the plain model."""
    data, graph, start = recipe.data, torch.tensor(graphs), torch.tensor(starts)
    assert isinstance(data, ControlFit)
    block = block_of(data.block, model, other_task())
    h = model.embed(TASK.tokens(graph, start, 2))
    for _ in range(model.config.loops):
        h = model.call(h)
    mapped = torch.stack([step(h[:, row]) if row in ROWS[data.rows] else h[:, row] for row in range(23)], 1)
    after = model.read(mapped) if block is None else block.read(block.call(mapped))
    return after[:, -1, :6], walk(graph, start, 2 + hops)[:, -1]


@pytest.mark.parametrize(
    ("block", "rows", "starts"),
    [
        *product(("trained", "permuted", "none", "elsewhere-0"), ["all"], ("one", "all")),
        *product(["trained"], ("answer", "edges", "query"), ("one", "all")),
    ],
)
def test_a_control_is_fitted_by_its_definition(block: str, rows: str, starts: str) -> None:
    recipe, model = control(block, rows, starts), backbone()
    members = [(-1, 1), (0, 1), (3, 1), (3, 5)]
    objective = ControlFits(recipe, model, members, CPU, other_task())
    maps = shaken_maps(recipe, objective.stack, 16)
    for update in (1, 2):
        step = objective.step(0, None, update_of(update))
        losses = []
        for index, (hops, _) in enumerate(members):
            graphs, first, _ = graphs_and_starts(step.drawn[index], recipe.batch, 6)
            if starts == "all":
                assert first == [*range(6)] * 2
                assert graphs[:6] == [graphs[0]] * 6
                assert graphs[6:] == [graphs[6]] * 6
                assert graphs[0] != graphs[6]
            losses.append(nnf.cross_entropy(*expected(model, maps[index], recipe, hops, graphs, first)))
        check_step(objective, step, maps, losses)
        assert torch.equal(step.drawn[0], step.drawn[2])  # hops of a fit share their batches
    rows_of, first_of = all_starts(population("tiny-selection").graphs)
    for index, (hops, _) in enumerate(members[:2]):
        logits, asked = expected(model, maps[index], recipe, hops, rows_of.tolist(), first_of.tolist())
        assert objective.scores(0)[index][0] == pytest.approx(float((logits.argmax(-1) == asked).double().mean()))


def test_j_without_f_is_read_at_once() -> None:
    model, step = backbone(), tiny_map(1)
    cohort, h = Cohort(model.config, frozen(model, CPU)), torch.randn(5, 23, 16)
    found = steered_logits(h, Runs(23), step, "all", cohort, None)
    torch.testing.assert_close(found, model.read(step(h)[:, 22]))
    assert not torch.allclose(found, model.read(h[:, 22]), atol=0.1)
    assert block_of("none", model, None) is None


def test_permuted_weights_keep_the_values_of_every_tensor_and_nothing_else_of_f() -> None:
    model = backbone()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = permuted(model).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])  # the backbone itself is left alone
        assert torch.equal(made[name].flatten().sort().values, tensor.flatten().sort().values)
        assert torch.equal(made[name], tensor) is not name.startswith("layers.")
    again, others = permuted(model).state_dict(), permuted(model, seed=1).state_dict()
    assert all(torch.equal(again[name], made[name]) for name in made)
    assert not torch.equal(others["layers.0.up.weight"], made["layers.0.up.weight"])


@pytest.mark.parametrize("starts", ["one", "all"])
@pytest.mark.parametrize("rows", ["answer", "edges", "query"])
def test_rows_that_j_does_not_act_on_enter_the_block_bit_by_bit(rows: str, starts: str) -> None:
    assert set(acted_on(rows, TASK).nonzero().flatten().tolist()) == ROWS[rows]
    recipe = control(rows=rows, starts=starts)
    objective = ControlFits(recipe, backbone(), [(1, 1)], CPU)
    shaken_maps(recipe, objective.stack, 16)
    h, _ = objective._states(*all_starts(population("tiny-test").graphs[:2]), objective.exact)
    mapped = objective._mapped(h[None])[0]
    for place, row in enumerate(objective.layout(12).row_of):
        assert torch.equal(mapped[:, place], h[:, place]) is (row not in ROWS[rows])


def test_blocks_that_cannot_stand_in() -> None:
    model = backbone()
    assert block_of("elsewhere-0", model, other_task()) is not None
    for wrong in (None, other_task(width=8), other_task(classes=5)):
        with pytest.raises(InputError, match="elsewhere-0"):
            block_of("elsewhere-0", model, wrong)
    with pytest.raises(InputError, match="nearest: 6"):
        ControlFits(replace(control(starts="all"), batch=8), model, [(1, 1)], CPU)


@pytest.mark.parametrize("kind", ["walk", "other"])
def test_graphs_with_all_their_starts_are_computed_as_if_alone(kind: str) -> None:
    model = backbone() if kind == "walk" else other_task()
    graphs, starts = all_starts(population("tiny-test").graphs[:3])
    cohort, layout = Cohort(model.config, frozen(model, CPU)), AllStarts(TASK, 3)
    h = torch.randn(18, 23, 16)
    h = torch.cat([h[::6, :19].repeat_interleave(6, 0), h[:, 19:]], 1)
    pieces = torch.cat([h[::6, :19], h[:, 19:].reshape(3, -1, 16)], 1)[None]
    assert torch.equal(layout.pieces(layout.pack(pieces)), pieces)
    found = layout.pieces(cohort.settle(cohort.call(State(layout.pack(pieces)), layout)))[0]
    whole = model.call(h)
    for row in range(23):
        each = found[:, torch.tensor(layout.row_of) == row].flatten(0, 1)
        torch.testing.assert_close(each, whole[::6, row] if row < 19 else whole[:, row], rtol=1e-4, atol=1e-5)
    last = cohort.read_row(cohort.call(State(layout.pack(pieces)), layout, last_row=True), 1, 0)[0]
    torch.testing.assert_close(last, model.read(whole[:, -1]), rtol=1e-4, atol=1e-4)
    if kind == "walk":
        tokens = TASK.tokens(graphs, starts, 2)
        begun = cohort.embed(tokens[None], layout).x
        runs = cohort.embed(tokens[None], Runs(23)).x.view(18, 23, 16)
        assert torch.equal(layout.pieces(begun)[0, :, 19:].reshape(18, 4, 16), runs[:, 19:])
        assert torch.equal(layout.pieces(begun)[0, :, :19], runs[::6, :19])


def test_a_block_of_another_task_is_an_input_of_the_map_and_controls_are_not_scored(tmp_path: Path) -> None:
    tiny, zoo = backbone_recipe("tiny"), open_zoo()
    recipe = replace(tiny, stages=(replace(tiny.stages[0], updates=2, check_every=2),), batch=4)
    store, settings = Store(tmp_path), Settings(CPU)
    (trained,) = train(recipe, [0], store, settings)
    walker = store.open(BACKBONE, trained.key)
    for block in ("tiny-0", "none", "trained"):
        (done,) = fit([replace(control(block), name=block)], walker, [1], store, settings)
        inputs = {BACKBONE: walker.key} | ({"block": find(zoo, block, BACKBONE).key} if block == "tiny-0" else {})
        assert dict(store.open(MAP, done.key).manifest.inputs) == inputs
    assert [each.name for each in score_walks(store, CPU)] == ["tiny-0", "trained-1@tiny-0"]


# ---- recipes ---------------------------------------------------------------------------------------------------------


def test_hops_by_the_published_protocol() -> None:
    one = map_recipe("one")
    for k, name in zip(HOPS, ("minus1", "0", "1", "2", "3", "4"), strict=True):
        made = map_recipe(f"hops-{name}")
        assert replace(made, name="one", about=one.about, data=one.data) == one
        assert made.data == WalkFit(k)
        permuted = map_recipe(f"hops-{name}-permuted")
        assert permuted.data == ControlFit(k, block="permuted")
        assert replace(permuted, name=made.name, about=made.about, data=made.data) == made


def test_what_controls_change() -> None:
    assert [each.name for each in CONTROLS[:4]] == ["trained", "permuted", "other", "none"]
    for budget, each in product(BUDGETS, CONTROLS):
        made = map_recipe(each.target(2, budget))
        data = made.data
        assert isinstance(data, WalkFit)
        assert (data.hops, data.selection, data.rule) == (2, "selection", "all")
        assert made.rank == {"rank-1": 1, "rank-4": 4, "rank-16": 16}.get(each.name, 48)
        assert new_map(made, 256, 1).settings()["rank"] == made.rank
        rows, block = getattr(data, "rows", "all"), getattr(data, "block", "trained")
        assert rows == (each.name if each.name in ("answer", "edges", "query") else "all")
        assert block == {"permuted": "permuted", "other": OTHER, "none": "none"}.get(each.name, "trained")
        (stage,) = made.stages
        if budget == "brief":  # the same for every control
            assert isinstance(data, ControlFit)
            assert (made.batch, stage.updates, data.starts, made.precision) == (120, 600, "all", "bf16")
            assert [stage.optimiser.schedule.rate(update) for update in (1, 600)] == pytest.approx([1e-3, 0], abs=1e-8)
        else:
            assert (made.batch, stage.updates, getattr(data, "starts", "one")) == (128, 8_000, "one")
            assert stage.optimiser.schedule.rate(8_000) == 1e-4


def test_backwards_is_a_hop() -> None:
    graphs, starts = all_starts(population("tiny-test").graphs)
    path = walk(graphs, starts, 3)
    assert torch.equal(start_for(graphs, path[:, 3], 1), path[:, 2])
