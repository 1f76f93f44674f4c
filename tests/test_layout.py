"""Shared beginnings against plain runs of tokens: rows, logits and gradients must be the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from loopscope.model import LoopedTransformer, ModelConfig, graph_walk_config
from loopscope.studies.graph_walk.recipes import tiny
from loopscope.tasks.graph_walk import GraphWalk
from loopscope.training.cohort import ops
from loopscope.training.cohort.cohort import Cohort
from loopscope.training.cohort.layout import Layout, Runs, SharedBeginnings, layout_of
from loopscope.training.cohort.objective import Step
from loopscope.training.cohort.ops import BEGUN, Weight, shared_rows
from loopscope.training.cohort.walks import WalkBackbones
from loopscope.training.recipe import BackboneRecipe

SEEDS, CALLS = 3, 3
sizes = pytest.mark.parametrize(("nodes", "batch"), [(3, 2), (4, 30), (5, 6), (10, 7)])


def some_graphs(nodes: int, batch: int, seeds: int = SEEDS) -> Tensor:
    """Permutations; those of the first seed all begin alike, so that most variants are missing and one is repeated."""
    graphs = torch.stack([torch.randperm(nodes) for _ in range(seeds * batch)]).view(seeds, batch, nodes)
    begins = graphs[0, 0, :2].clone()
    for graph in graphs[0]:
        rest = [node for node in graph.tolist() if node not in begins.tolist()]
        graph.copy_(torch.tensor([*begins.tolist(), *rest]))
    return graphs


def some_tokens(task: GraphWalk, graphs: Tensor) -> Tensor:
    flat = graphs.flatten(0, 1)
    starts, depths = torch.randint(0, task.nodes, (len(flat),)), torch.randint(1, 9, (len(flat),))
    return task.tokens(flat, starts, depths).unflatten(0, graphs.shape[:2])


def double_cohort(config: ModelConfig) -> Cohort:
    """Models in fp64 in which every parameter counts."""
    models = [LoopedTransformer(config) for _ in range(SEEDS)]
    weights = {
        name: torch.stack([model.state_dict()[name] for model in models]).double() for name in models[0].state_dict()
    }
    cohort = Cohort(config, {name: (w + 0.3 * torch.randn_like(w)).requires_grad_() for name, w in weights.items()})
    cohort.low = torch.float64
    return cohort


def logits_of(cohort: Cohort, tokens: Tensor, layout: Layout | None, loss: str) -> Tensor:
    """After the last call, or after every call, at the last row; as a step of training reads them."""
    if loss == "final":
        return cohort.answer_logits(tokens, CALLS, layout)
    state, rows, found = cohort.embed(tokens, layout), layout or tokens.shape[-1], []
    for call in range(1, CALLS + 1):
        state = cohort.call(state, rows, last_row=call == CALLS)
        found.append(
            cohort.read_row(state, 1, 0) if call == CALLS else cohort.read_row(state, rows, tokens.shape[-1] - 1)
        )
    return torch.stack(found)


@sizes
@pytest.mark.parametrize("loss", ["final", "stepwise"])
def test_logits_and_gradients_are_those_of_plain_runs(nodes: int, batch: int, loss: str) -> None:
    task, graphs = GraphWalk(nodes), some_graphs(nodes, batch)
    cohort = double_cohort(replace(graph_walk_config(nodes, CALLS), width=8, heads=2, mlp=16))
    tokens, weights = some_tokens(task, graphs), {name: w.value for name, w in cohort.weights.items()}
    outcomes = []
    for layout in (None, SharedBeginnings(task, graphs)):
        logits = logits_of(cohort, tokens, layout, loss)
        combination = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        outcomes.append((logits, torch.autograd.grad((logits * combination).sum(), list(weights.values()))))
    (want, true), (got, ours) = outcomes
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    for name, gradient, own in zip(weights, true, ours, strict=True):
        size = float(gradient.abs().max())
        assert size > 0, f"{name} does not count"
        torch.testing.assert_close(own, gradient, rtol=0, atol=1e-11 * size, msg=f"gradient of {name}")


@sizes
def test_every_row_is_that_of_plain_runs(nodes: int, batch: int) -> None:
    task, graphs = GraphWalk(nodes), some_graphs(nodes, batch)
    cohort = double_cohort(replace(graph_walk_config(nodes, CALLS), width=8, heads=2, mlp=16))
    tokens, layout = some_tokens(task, graphs), SharedBeginnings(task, graphs)
    plain, shared = cohort.embed(tokens), cohort.embed(tokens, layout)
    for _ in range(CALLS):
        want = cohort.settle(plain).unflatten(1, (batch, task.length))
        h = cohort.settle(shared)
        first = torch.stack([rows[at] for rows, at in zip(h, layout.begun.places()[:, :batch], strict=True)])
        torch.testing.assert_close(first, want[:, :, :BEGUN], rtol=1e-10, atol=1e-10)
        for row in range(BEGUN, task.length):
            torch.testing.assert_close(h[:, layout.at(row)], want[:, :, row], rtol=1e-10, atol=1e-10)
        plain, shared = cohort.call(plain, task.length), cohort.call(shared, layout)


@pytest.mark.parametrize("nodes", [3, 4, 10])
def test_the_tokens_of_shared_rows(nodes: int) -> None:
    """Each row once, and for every example those of its own beginning, whatever that is."""
    task = GraphWalk(nodes)
    pairs = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    rest = [[n for n in range(nodes) if n not in pair] for pair in pairs.tolist()]
    graphs = torch.cat([pairs, torch.tensor(rest)], 1)[None]
    tokens, layout = some_tokens(task, graphs), SharedBeginnings(task, graphs)
    begun, table = layout.begun, torch.arange(task.vocabulary).float().view(1, -1, 1)
    rows = layout.embed(ops, table, None, tokens)[0, :, 0].long()
    assert torch.equal(begun.variant[0, : len(pairs)], begun.variant[0, len(pairs) :])
    assert torch.equal(rows[begun.places()[:, : len(pairs)]], tokens[:, :, :BEGUN])
    assert torch.equal(begun.places().unique(), torch.arange(begun.batch * begun.own, len(rows)))
    shared = rows[begun.batch * begun.own :].tolist()
    assert shared[:3] == [task.BOS, task.EDGE, 0]
    assert shared[3 : 3 + 3 * nodes] == [token for a in range(nodes) for token in (a, task.EDGE, 1)]
    assert shared[3 + 3 * nodes :] == [token for _, b in pairs.tolist() for token in (b, task.EDGE, 2)]


def test_how_many_rows_there_are() -> None:
    task, graphs = GraphWalk(10), some_graphs(10, 512, 1)
    layout = SharedBeginnings(task, graphs)
    assert shared_rows(10) == 303
    assert layout.begun.rows == 512 * (35 - 9) + 303 == 13_615
    assert round(100 * layout.begun.rows / (512 * 35)) == 76
    rows = layout.embed(ops, torch.randn(1, task.vocabulary, 2), torch.randn(1, 35, 2), some_tokens(task, graphs))
    assert rows.shape == (1, 13_615, 2)


def test_what_a_shared_layout_refuses() -> None:
    with pytest.raises(AssertionError, match="a walk on 2 nodes"):
        SharedBeginnings(GraphWalk(2), some_graphs(2, 3))
    layout = SharedBeginnings(GraphWalk(4), some_graphs(4, 3))
    with pytest.raises(AssertionError, match="row 8 is shared"):
        layout.at(8)
    with pytest.raises(AssertionError, match="takes no bias"):
        layout.attention(ops, torch.zeros(SEEDS, layout.begun.rows, 24), Weight(torch.zeros(SEEDS, 24)), 2)


def test_a_number_stands_for_runs() -> None:
    shared = SharedBeginnings(GraphWalk(4), some_graphs(4, 3))
    assert layout_of(5) == Runs(5)
    assert layout_of(shared) is shared


# ---- in training -----------------------------------------------------------------------------------------------------


class PlainWalks(WalkBackbones):
    """Training as it is where sharing does not pay."""

    def layout(self, graphs: Tensor) -> Layout:
        return Runs(self.task.length)


def walks(recipe: BackboneRecipe, kind: type[WalkBackbones]) -> WalkBackbones:
    torch.manual_seed(0)
    seeds = [3, 8]
    return kind(recipe, [LoopedTransformer(recipe.model) for _ in seeds], seeds, torch.device("cpu"))


@pytest.mark.parametrize("loss", ["final", "stepwise"])
def test_a_step_of_training_is_that_of_plain_runs(loss: str) -> None:
    recipe = replace(tiny(), loss=loss)

    def stepped(kind: type[WalkBackbones]) -> tuple[Step, Tensor]:
        objective = walks(recipe, kind)
        step = objective.step(0, None, torch.tensor(7))
        return step, objective.stack.gradients(step.losses.sum())

    (shared, ours), (again, same), (plain, true) = (
        stepped(kind) for kind in (WalkBackbones, WalkBackbones, PlainWalks)
    )
    assert torch.equal(shared.drawn, plain.drawn)
    torch.testing.assert_close(shared.losses, plain.losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(ours, true, rtol=0, atol=1e-6 * float(true.norm()))
    assert torch.equal(again.losses, shared.losses)
    assert torch.equal(ours, same)


def test_beginnings_are_shared_where_it_pays() -> None:
    """Six nodes have 111 shared rows: worth it from 13 examples on."""
    for batch, kind in ((12, Runs), (13, SharedBeginnings)):
        objective = walks(replace(tiny(), batch=batch), WalkBackbones)
        assert isinstance(objective.layout(objective.stream.graphs(torch.tensor(1))), kind)
