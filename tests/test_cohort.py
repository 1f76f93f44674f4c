"""Stacked members against each member alone: the transformers, the maps, and the array that holds their parameters."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.model import LoopedTransformer, ModelConfig, graph_walk_config, parity_config, relations_config
from loopscope.studies.recipes import map_recipe
from loopscope.threads import fixed_threads
from loopscope.training.cohort.cohort import Cohort, products, stacked
from loopscope.training.cohort.objective import Maps, new_map
from loopscope.training.cohort.ops import embed
from loopscope.training.cohort.stack import ALIGNED, Stack
from tests.gradients import check_gradient

MEMBERS, BATCH, LENGTH = 3, 4, 5
CONFIGS = {
    "graph walk": replace(graph_walk_config(5, 3), width=16, mlp=32),
    "parity": replace(parity_config(), width=16, heads=4, mlp=32),
    "relations": replace(relations_config(), width=16, heads=4, mlp=32),
    "tied, erf, no bias": ModelConfig(9, 4, 2, width=12, heads=3, mlp=20, readout="tied", first_class=3),
    "one layer, tanh, norm in the loop": ModelConfig(
        7, 3, 2, 1, 8, 2, 16, LENGTH, attention_bias=True, gelu="tanh", norm_in_loop=True, readout="linear"
    ),
}
every_config = pytest.mark.parametrize("name", CONFIGS)


def members(config: ModelConfig) -> list[LoopedTransformer]:
    """Models in which every parameter counts: nothing is left at a start of zeros or ones."""
    models = [LoopedTransformer(config) for _ in range(MEMBERS)]
    for model in models:
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    return models


def cohort_of(models: list[LoopedTransformer]) -> tuple[Stack, Cohort]:
    stack = stacked(models, torch.device("cpu"))
    return stack, Cohort(models[0].config, stack.weights, sinks=stack.sinks)


def some_tokens(config: ModelConfig) -> Tensor:
    return torch.randint(0, config.vocabulary, (MEMBERS, BATCH, LENGTH))


def test_two_threads_sum_the_gradient_of_an_embedding_in_one_order() -> None:
    """On so many rows that they share the work: a table's gradient has the same bits each time."""
    tokens, given = torch.randint(0, 5, (1, 8192)), torch.randn(1, 8192, 64)
    found = []
    with fixed_threads(2):
        for _ in range(8):
            table = torch.zeros(1, 5, 64, requires_grad=True)
            embed(table, tokens).backward(given)
            assert table.grad is not None
            found.append(table.grad)
    assert all(torch.equal(found[0], each) for each in found)
    torch.testing.assert_close(found[0][0, 3], given[0, tokens[0] == 3].sum(0), rtol=0, atol=1e-3)


# ---- the transformers ------------------------------------------------------------------------------------------------


@every_config
def test_logits_and_gradients_are_each_models_own(name: str) -> None:
    config = CONFIGS[name]
    models = members(config)
    stack, cohort = cohort_of(models)
    tokens, targets = some_tokens(config), torch.randint(0, config.classes, (MEMBERS, BATCH))
    logits = cohort.answer_logits(tokens, loops=3)
    losses = nnf.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(MEMBERS, BATCH).mean(1)
    gradients = stack.gradients(losses.sum())
    for index, model in enumerate(models):
        own = model(tokens[index], 3)[:, -1]
        torch.testing.assert_close(logits[index], own, rtol=1e-4, atol=1e-5)
        check_gradient(model, nnf.cross_entropy(own, targets[index]), stack.member(index, gradients))


@every_config
def test_every_call_and_row_is_each_models_own(name: str) -> None:
    config = CONFIGS[name]
    models = members(config)
    _, cohort = cohort_of(models)
    tokens = some_tokens(config)
    state = cohort.embed(tokens)
    own = [model.embed(tokens[index]) for index, model in enumerate(models)]
    for _ in range(3):
        for index, model in enumerate(models):
            found = cohort.settle(state)[index].view(BATCH, LENGTH, -1)
            torch.testing.assert_close(found, own[index], rtol=1e-4, atol=1e-5)
            for row in range(LENGTH):
                logits = cohort.read_row(state, LENGTH, row)[index]
                torch.testing.assert_close(logits, model.read(own[index][:, row]), rtol=1e-4, atol=1e-4)
        state = cohort.call(state, LENGTH)
        own = [model.call(h) for model, h in zip(models, own, strict=True)]


@every_config
def test_the_last_row_alone_is_that_of_the_full_call(name: str) -> None:
    config = CONFIGS[name]
    stack, cohort = cohort_of(members(config))
    tokens, weight = some_tokens(config), torch.randn(MEMBERS, BATCH, config.classes)
    outcome = []
    for last_row in (False, True):
        state = cohort.call(cohort.call(cohort.embed(tokens), LENGTH), LENGTH, last_row=last_row)
        assert cohort.settle(state).shape == (MEMBERS, BATCH * (1 if last_row else LENGTH), config.width)
        logits = cohort.read_row(state, 1, 0) if last_row else cohort.read_row(state, LENGTH, LENGTH - 1)
        outcome.append((logits, stack.gradients((logits * weight).sum()).clone()))
    (full, full_gradient), (short, short_gradient) = outcome
    torch.testing.assert_close(short, full, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(short_gradient, full_gradient, rtol=1e-3, atol=1e-5 * float(full_gradient.norm()))


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32"])
def test_on_a_cpu_every_precision_is_fp32(precision: str) -> None:
    config = CONFIGS["graph walk"]
    stack, exact = cohort_of(members(config))
    other = Cohort(config, stack.weights, precision)
    tokens = some_tokens(config)
    assert torch.equal(exact.answer_logits(tokens, 2), other.answer_logits(tokens, 2))


def test_a_members_answer_depends_on_nobody_else() -> None:
    config = CONFIGS["relations"]
    models, tokens = members(config), some_tokens(CONFIGS["relations"])
    logits = cohort_of(models)[1].answer_logits(tokens, 2)
    models[1] = members(config)[0]
    tokens[1] = some_tokens(config)[1]
    changed = cohort_of(models)[1].answer_logits(tokens, 2)
    assert torch.equal(changed[[0, 2]], logits[[0, 2]])
    assert not torch.equal(changed[1], logits[1])


def test_tf32_is_allowed_inside_the_block_only() -> None:
    allowed = [torch.backends.cuda.matmul.allow_tf32]
    with suppress(KeyError), products("tf32"):
        allowed.append(torch.backends.cuda.matmul.allow_tf32)
        with products("bf16"):
            allowed.append(torch.backends.cuda.matmul.allow_tf32)
        allowed.append(torch.backends.cuda.matmul.allow_tf32)
        raise KeyError
    allowed.append(torch.backends.cuda.matmul.allow_tf32)
    assert allowed == [allowed[0], True, False, True, allowed[0]]


# ---- the maps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one", "matched-two", "parity-staged", "relations-curriculum"])
def test_stacked_maps_are_each_maps_own(name: str) -> None:
    recipe = map_recipe(name)
    recipe = recipe if recipe.rank is None else replace(recipe, rank=3)
    fits, width = [1, 2, 7], 10
    maps, h = Maps(recipe, width, fits, torch.device("cpu")), torch.randn(len(fits), 6, width)
    torch.testing.assert_close(maps(h), h, rtol=0, atol=0)  # every map starts as the identity
    with torch.no_grad():
        maps.stack.flat.add_(torch.randn_like(maps.stack.flat), alpha=0.3)
    weight = torch.randn_like(h)
    moved = maps(h)
    gradients = maps.stack.gradients((moved * weight).sum())
    for index in range(len(fits)):
        own = new_map(recipe, width, 0)
        own.load_state_dict(maps.stack.member(index))
        wanted = own(h[index])
        torch.testing.assert_close(moved[index], wanted, rtol=1e-5, atol=1e-5)
        check_gradient(own, (wanted * weight[index]).sum(), maps.stack.member(index, gradients))


def test_a_map_starts_from_the_draw_of_its_fit() -> None:
    matched, staged = map_recipe("matched-one"), map_recipe("parity-staged")
    draw = torch.Generator().manual_seed(1000 + 2)
    assert torch.equal(new_map(matched, 64, 2).A, 0.02 * torch.randn(64, 48, generator=draw))
    draw = torch.Generator().manual_seed(211_001)
    torch.testing.assert_close(new_map(staged, 64, 1).A, torch.randn(64, 48, generator=draw) / 8, rtol=1e-6, atol=0)
    # One draw for all targets and backbones of a fit, another for every fit.
    for name in ("stay", "two"):
        assert torch.equal(new_map(map_recipe(name), 64, 1).A, new_map(map_recipe("one"), 64, 1).A)
    assert not torch.equal(new_map(map_recipe("one"), 64, 2).A, new_map(map_recipe("one"), 64, 1).A)


# ---- the array -------------------------------------------------------------------------------------------------------


def test_a_stack_is_one_array_whose_views_are_the_weights() -> None:
    config = CONFIGS["graph walk"]
    models = members(config)
    stack, _ = cohort_of(models)
    assert len(stack) == len(stack.flat) == MEMBERS
    assert stack.shapes == {name: tuple(tensor.shape) for name, tensor in models[0].state_dict().items()}
    with torch.no_grad():
        stack.flat.mul_(2)
    for index, model in enumerate(models):
        again = LoopedTransformer(config)
        again.load_state_dict(stack.member(index))
        for name, parameter in model.named_parameters():
            assert torch.equal(again.get_parameter(name), 2 * parameter)
            assert torch.equal(stack.weights[name][index], 2 * parameter)
            assert stack.weights[name].untyped_storage().data_ptr() == stack.flat.untyped_storage().data_ptr()


def test_every_weight_is_aligned_and_what_lies_between_is_zero() -> None:
    stack, _ = cohort_of(members(CONFIGS["tied, erf, no bias"]))
    for weight in stack.weights.values():
        assert weight.storage_offset() % ALIGNED == 0
    used = sum(math.prod(shape) for shape in stack.shapes.values())
    assert used < stack.flat.shape[1]
    total = sum(float(weight.detach().double().sum()) for weight in stack.weights.values())
    assert float(stack.flat.double().sum()) == pytest.approx(total)
    with torch.no_grad():
        for weight in stack.weights.values():
            weight.fill_(1.0)
    assert int(stack.flat.sum()) == MEMBERS * used


def test_a_member_taken_out_is_a_copy() -> None:
    stack = Stack([{"a": torch.zeros(2, 3), "b": torch.ones(4)}, {"a": torch.ones(2, 3), "b": torch.zeros(4)}])
    first, other = stack.member(0), stack.member(1, stack.flat + torch.tensor([[5.0], [7.0]]))
    with torch.no_grad():
        stack.flat.fill_(9.0)
    assert torch.equal(first["a"], torch.zeros(2, 3))
    assert torch.equal(first["b"], torch.ones(4))
    assert torch.equal(other["a"], torch.full((2, 3), 8.0))
    assert torch.equal(other["b"], torch.full((4,), 7.0))
    assert not first["a"].requires_grad


def test_a_factor_for_one_tensor() -> None:
    stack = Stack([{"a": torch.zeros(2, 2), "D": torch.ones(3), "b": torch.ones(1)}] * 2)
    factor = stack.per_parameter("D", 0.5)
    assert factor.shape == stack.flat.shape[1:]
    by_name = stack.member(1, factor.expand_as(stack.flat))
    assert [by_name[name].unique().tolist() for name in ("a", "D", "b")] == [[1.0], [0.5], [1.0]]
    assert torch.equal(stack.member(1)["D"], torch.ones(3))
