"""Training: objectives against plain loops, the trainer against torch's own optimiser, jobs and what they store."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.artefacts import load_backbone, load_fit, name_of
from loopscope.errors import InputError
from loopscope.maps import AffineMap
from loopscope.model import LoopedTransformer
from loopscope.store import Artefact, Store
from loopscope.tasks import relations as relation_task
from loopscope.tasks.populations import population
from loopscope.training import jobs, parity, walks
from loopscope.training.cohort import Precision
from loopscope.training.jobs import Finished, MembersFailedError, Progress, Settings, initial_model
from loopscope.training.objective import Objective, Step, new_map
from loopscope.training.parity import ParityBackbones, ParityFits
from loopscope.training.recipes import (
    BackboneRecipe,
    GraphData,
    MapRecipe,
    Optimiser,
    ParityData,
    ParityFit,
    RelationFit,
    Schedule,
    Stage,
    WalkFit,
    backbone_recipe,
    map_recipe,
)
from loopscope.training.relations import RelationBackbones, RelationFits
from loopscope.training.stack import Stack
from loopscope.training.streams import absorb
from loopscope.training.trainer import Failure, Selected, Trainer
from loopscope.training.walks import WalkBackbones, WalkFits
from tests.test_cohort import check_gradient

CPU = torch.device("cpu")

# ---- recipes of toy size ---------------------------------------------------------------------------------------------


def stage_of(updates: int, check_every: int, name: str = "train", **optimiser: Any) -> Stage:
    settings = {"schedule": Schedule(3e-3, warmup=3, decay=updates), "decay": 0.1, **optimiser}
    return Stage(name, updates, Optimiser(**settings), check_every)


def toy_walk(updates: int = 6, check_every: int = 3, **changes: Any) -> BackboneRecipe:
    """A six-node graph walk on a model of width 16 that trains in a blink."""
    tiny = backbone_recipe("tiny")
    model = replace(tiny.model, width=16, mlp=32)
    return replace(
        tiny, name="toy", model=model, batch=8, stages=(stage_of(updates, check_every),), **changes
    )  # fmt: skip


def toy_map(name: str = "one", updates: int = 6, check_every: int = 3, **changes: Any) -> MapRecipe:
    """`tiny-one` or the like, of rank 3."""
    tiny, stages = map_recipe("tiny-one"), (stage_of(updates, check_every, "fit"),)
    assert isinstance(tiny.data, WalkFit)
    data = replace(tiny.data, hops={"one": 1, "two": 2}[name])
    settings = {"name": f"toy-{name}", "data": data, "rank": 3, "batch": 8, "stages": stages}
    return replace(tiny, **{**settings, **changes})


def toy_parity(updates: int = 6, check_every: int = 3, longest: int = 4) -> BackboneRecipe:
    made = backbone_recipe("parity")
    model = replace(made.model, width=16, heads=4, mlp=32)
    return replace(
        made, name="toy-parity", model=model, data=ParityData(longest, every=2), batch=8,
        stages=(stage_of(updates, check_every),),
    )  # fmt: skip


def toy_relations(updates: int = 6, check_every: int = 3) -> BackboneRecipe:
    made = backbone_recipe("relations")
    model = replace(made.model, width=16, heads=4, mlp=32)
    return replace(made, name="toy-relations", model=model, batch=8, stages=(stage_of(updates, check_every),))


def toy_relation_map(updates: int = 4, check_every: int = 2) -> MapRecipe:
    made = map_recipe("relations-curriculum")
    stages = tuple(stage_of(updates, check_every, f"length {n}") for n in (4, 6))
    return replace(made, name="toy-chain", data=RelationFit((4, 6), queries=16), batch=8, stages=stages)


# ---- oracles: one example after the other, one model after the other -------------------------------------------------


def shaken_models(recipe: BackboneRecipe, seeds: Sequence[int], far: float = 0.2) -> list[LoopedTransformer]:
    """The models seeds start from, moved so far that every parameter counts."""
    models = [initial_model(recipe, seed) for seed in seeds]
    for model in models:
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=far)
    return models


def shaken_maps(recipe: MapRecipe, stack: Stack, width: int) -> list[AffineMap]:
    """Move the maps of a stack away from the identity, and give each as the module it is."""
    with torch.no_grad():
        stack.flat.add_(torch.randn_like(stack.flat), alpha=0.2)
    maps = [new_map(recipe, width, 0) for _ in range(len(stack))]
    for index, step in enumerate(maps):
        step.load_state_dict(stack.member(index))
    return maps


def check_step(objective: Objective, step: Step, own: Sequence[torch.nn.Module], losses: Sequence[Tensor]) -> None:
    """Losses and gradients of a step are those of each member's own module."""
    torch.testing.assert_close(step.losses, torch.stack(list(losses)), rtol=1e-5, atol=1e-6)
    gradients = objective.stack.gradients(step.losses.sum())
    for index, module in enumerate(own):
        check_gradient(module, losses[index], objective.stack.member(index, gradients))


def walk_tokens(graph: list[int], start: int, depth: int) -> list[int]:
    """BOS, (EDGE, j, f(j)) for every node, QUERY, start, DEPTH, ANSWER; ids as the protocol numbers them."""
    n = len(graph)
    edges = [token for source, target in enumerate(graph) for token in (n, source, target)]
    return [n + 3, *edges, n + 1, start, n + 3 + depth, n + 2]


def walked(graph: list[int], start: int, steps: int) -> int:
    for _ in range(steps):
        start = graph[start]
    return start


def graphs_and_starts(row: Tensor, batch: int, nodes: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Graphs, starts and whatever comes after them, from the integers a step was made from."""
    graphs, starts, rest = row.split([batch * nodes, batch, len(row) - batch * (nodes + 1)])
    return graphs.view(batch, nodes).tolist(), starts.tolist(), rest.tolist()


def ends(graphs: list[list[int]], starts: list[int], steps: Sequence[int]) -> Tensor:
    return torch.tensor([walked(g, s, n) for g, s, n in zip(graphs, starts, steps, strict=True)])


def update_of(number: int) -> Tensor:
    return torch.tensor(number)


# ---- graph walks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depths", ["uniform", "fixed"])
@pytest.mark.parametrize("loss", ["final", "stepwise"])
def test_losses_of_graph_walks(loss: str, depths: str) -> None:
    recipe = toy_walk(loss=loss, data=GraphData(6, 4, depths, "tiny", "tiny-selection"))
    recipe = replace(recipe, model=replace(recipe.model, loops=4))
    seeds = [3, 8]
    models = shaken_models(recipe, seeds)
    objective = WalkBackbones(recipe, models, seeds, CPU)
    assert isinstance(objective, Objective)
    for update in (1, 2, 50):
        step = objective.step(0, objective.shape(0, update), update_of(update))
        losses = []
        for index, model in enumerate(models):
            graphs, starts, asked = graphs_and_starts(step.drawn[index], 8, 6)
            assert set(asked) <= {1, 2, 3, 4} if depths == "uniform" else asked == [4] * 8
            rows = zip(graphs, starts, asked, strict=True)
            tokens = torch.tensor([walk_tokens(graph, start, depth) for graph, start, depth in rows])
            if loss == "final":
                losses.append(nnf.cross_entropy(model(tokens, 4)[:, -1], ends(graphs, starts, asked)))
                continue
            each = [nnf.cross_entropy(model(tokens, t)[:, -1], ends(graphs, starts, [t] * 8)) for t in (1, 2, 3, 4)]
            losses.append(each[3] + (each[0] + each[1] + each[2]) / 3)
        check_step(objective, step, models, losses)


def test_batches_of_graph_walks_are_the_seeds_own_and_never_held_out() -> None:
    recipe, seeds = toy_walk(), [3, 8]
    objective = WalkBackbones(recipe, [initial_model(recipe, seed) for seed in seeds], seeds, CPU)
    held_out = {row for name in ("tiny-selection", "tiny-test") for row in population(name).rows}
    seen = set()
    for update in range(1, 20):
        drawn = objective.step(0, None, update_of(update)).drawn
        for index, seed in enumerate(seeds):
            alone = WalkBackbones(recipe, [initial_model(recipe, seed)], [seed], CPU)
            assert torch.equal(alone.step(0, None, update_of(update)).drawn[0], drawn[index])
            graphs, starts, depths = graphs_and_starts(drawn[index], 8, 6)
            assert not held_out & set(map(tuple, graphs))
            assert all(sorted(graph) == list(range(6)) for graph in graphs)
            assert set(starts) <= set(range(6))
            assert set(depths) <= {1, 2}
            seen.add(tuple(drawn[index].tolist()))
    assert len(seen) == 2 * 19


def test_scores_of_graph_walks() -> None:
    recipe, seeds = toy_walk(), [3, 8]
    models = shaken_models(recipe, seeds, far=1.0)
    rows = [(list(graph), start) for graph in population("tiny-selection").rows for start in range(6)]
    tokens = torch.tensor([walk_tokens(graph, start, 2) for graph, start in rows])
    answers = torch.tensor([walked(graph, start, 2) for graph, start in rows])
    wanted = [(float((model(tokens, 2)[:, -1].argmax(-1) == answers).double().mean()),) for model in models]
    assert WalkBackbones(recipe, models, seeds, CPU).scores(0) == wanted
    assert wanted[0] != wanted[1]


MAPS = {
    "one more call": WalkFit(1, base=2, request=2, held_out="tiny", selection="tiny-selection"),
    "five from the start": WalkFit(
        1, calls=5, prefix=0, base=0, request=2, held_out="tiny", selection="tiny-selection", score="loss"
    ),
    "after three calls, two at a time": WalkFit(
        2, calls=2, prefix=3, base=1, request=1, held_out="tiny", selection="tiny-selection", rule="three"
    ),
    "from a pool": WalkFit(1, base=2, request=2, held_out="tiny", selection="tiny-selection", pool="tiny-test"),
}


def steered_walk(
    model: LoopedTransformer, step: AffineMap, data: WalkFit, hops: int, graphs: list[list[int]], starts: list[int]
) -> list[tuple[Tensor, Tensor]]:
    """Logits and answers after each steered call."""
    h = model.embed(torch.tensor([walk_tokens(g, s, data.request) for g, s in zip(graphs, starts, strict=True)]))
    for _ in range(model.config.loops if data.prefix is None else data.prefix):
        h = model.call(h)
    outcome = []
    for call in range(1, data.calls + 1):
        h = model.call(step(h))
        answers = ends(graphs, starts, [data.base + hops * call] * len(starts))
        outcome.append((model.read(h[:, -1]), answers))
    return outcome


@pytest.mark.parametrize("kind", MAPS)
def test_losses_and_scores_of_maps_for_graph_walks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "SCORED_AT_ONCE", 100)  # several pieces, the last one smaller
    data = MAPS[kind]
    recipe = toy_map(data=data)
    (model,) = shaken_models(toy_walk(), [0])
    members = [(0, 1), (1, 1), (2, 1), (2, 5)]
    objective = WalkFits(recipe, model, members, CPU)
    maps = shaken_maps(recipe, objective.stack, 16)
    pool = [(list(graph), start) for graph in population("tiny-test").rows for start in range(6)]
    drawn = []
    for update in (1, 7):
        step = objective.step(0, objective.shape(0, update), update_of(update))
        losses = []
        for index, (hops, _) in enumerate(members):
            if data.pool is None:
                graphs, starts, _ = graphs_and_starts(step.drawn[index], 8, 6)
            else:
                picked = [pool[row] for row in step.drawn[index].tolist()]
                graphs, starts = [graph for graph, _ in picked], [start for _, start in picked]
            told = steered_walk(model, maps[index], data, hops, graphs, starts)
            losses.append(sum(nnf.cross_entropy(logits, answers) for logits, answers in told) / data.calls)
        check_step(objective, step, maps, losses)
        # One fit's batches serve all its targets; another fit has its own.
        assert torch.equal(step.drawn[0], step.drawn[1])
        assert torch.equal(step.drawn[0], step.drawn[2])
        assert not torch.equal(step.drawn[2], step.drawn[3])
        drawn.append(step.drawn)
    assert not torch.equal(*drawn)

    selection = [(list(graph), start) for graph in population("tiny-selection").rows for start in range(6)]
    if data.rule == "three":
        selection = [
            (graph, start) for graph, start in selection if len({walked(graph, start, 8 + k) for k in (0, 1, 2)}) == 3
        ]
        assert 0 < len(selection) < 432
    for (hops, _), own, score in zip(members, maps, objective.scores(0), strict=True):
        with torch.no_grad():
            told = steered_walk(model, own, data, hops, [g for g, _ in selection], [s for _, s in selection])
        if data.score == "loss":
            wanted = -sum(float(nnf.cross_entropy(logits, answers)) for logits, answers in told) / data.calls
        else:
            wanted = sum(float((logits.argmax(-1) == a).double().mean()) for logits, a in told) / data.calls
        assert score == (pytest.approx(wanted, rel=1e-5),)


def test_a_frozen_backbone_stays_as_it_is() -> None:
    (model,) = shaken_models(toy_walk(), [0])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    objective = WalkFits(toy_map(), model, [(1, 1), (2, 1)], CPU)
    Trainer(objective, "best").run(lambda *_: None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# ---- parity ----------------------------------------------------------------------------------------------------------


def parity_rows(strings: list[list[int]], longest: int) -> tuple[Tensor, list[list[int]]]:
    """Tokens of the strings, and what is asked from the separator on: the parity bit, then the padding."""
    tokens = torch.tensor([bits + [2] + [3] * (longest + 1 - len(bits)) for bits in strings])
    return tokens, [[sum(bits) % 2] + [3] * (longest + 1 - len(bits)) for bits in strings]


def parity_losses(models: Sequence[LoopedTransformer], drawn: Tensor, longest: int) -> list[Tensor]:
    """Each string is read after as many calls as it has bits; the loss is a mean over the tokens of all strings."""
    losses = []
    for model, row in zip(models, drawn, strict=True):
        lengths, bits = row[:8].tolist(), row[8:].view(8, longest).tolist()
        tokens, asked = parity_rows([string[:n] for string, n in zip(bits, lengths, strict=True)], longest)
        told = []
        for index, n in enumerate(lengths):
            logits = model(tokens[index : index + 1], n)[0, n:]
            told.append(nnf.cross_entropy(logits, torch.tensor(asked[index]), reduction="none"))
        losses.append(torch.cat(told).mean())
    return losses


def test_losses_of_parity() -> None:
    recipe, seeds = toy_parity(), [1, 2]
    models = shaken_models(recipe, seeds)
    objective = ParityBackbones(recipe, models, seeds, CPU)
    shapes = {update: objective.shape(0, update) for update in (1, 2, 3, 5, 7, 90)}
    assert [longest for longest, _ in shapes.values()] == [1, 1, 2, 3, 4, 4]
    lengths = set()
    for update, shape in shapes.items():
        step = objective.step(0, shape, update_of(update))
        check_step(objective, step, models, parity_losses(models, step.drawn, shape[0]))
        lengths |= {(shape[0], n) for n in step.drawn[:, :8].flatten().tolist()}
    assert {n for longest, n in lengths if longest == 4} == {1, 2, 3, 4}


def test_strings_that_are_done_early_change_nothing() -> None:
    recipe, seeds = toy_parity(longest=12), [1, 2]
    models = shaken_models(recipe, seeds, far=0.1)
    objective = ParityBackbones(recipe, models, seeds, CPU)
    shapes = {update: objective.shape(0, update) for update in range(23, 600)}
    told = Counter(shapes.values())
    assert set(told) == {(12, True), (12, False)}  # enough updates to meet one whose strings do not run out in time
    assert told[12, False] < 0.05 * len(shapes)
    late = next(update for update, shape in shapes.items() if not shape[1])
    for update in (late, 23, 24):
        step = objective.step(0, shapes[update], update_of(update))
        check_step(objective, step, models, parity_losses(models, step.drawn, 12))
    whole = objective.step(0, (12, False), update_of(23))
    step = objective.step(0, shapes[23], update_of(23))
    assert shapes[23] == (12, True)
    assert torch.equal(step.drawn, whole.drawn)
    torch.testing.assert_close(step.losses, whole.losses, rtol=1e-6, atol=1e-6)


def test_scores_of_parity() -> None:
    recipe, seeds = toy_parity(), [1, 2]
    models = shaken_models(recipe, seeds)
    scores = ParityBackbones(recipe, models, seeds, CPU).scores(0)
    for seed, model, score in zip(seeds, models, scores, strict=True):
        draw = torch.Generator().manual_seed(900_001 + seed)
        strings = torch.randint(2, (1024, 4), generator=draw).tolist()
        tokens, asked = parity_rows(strings, 4)
        logits, answers = model(tokens, 4)[:, 4:].detach(), torch.tensor(asked)
        exact = float((logits.argmax(-1) == answers).all(1).double().mean())
        loss = float(nnf.cross_entropy(logits.flatten(0, 1), answers.flatten()))
        assert score == (exact, pytest.approx(-loss, rel=1e-5))
    assert all(len(score) == 2 for score in scores)


def test_losses_and_scores_of_maps_for_parity() -> None:
    recipe = toy_map(data=ParityFit(((3, 4, 3, 8), (3, 5, 4, 6))), stages=(stage_of(7, 0, "fit"),))
    (model,) = shaken_models(toy_parity(), [1])
    objective = ParityFits(recipe, model, [(0, 1), (0, 2)], CPU)
    maps = shaken_maps(recipe, objective.stack, 16)
    shapes = [objective.shape(0, update) for update in range(1, 8)]
    assert shapes == [(3, 8), (4, 8), (3, 8), (3, 6), (4, 6), (5, 6), (3, 6)]

    def steered(step: AffineMap, strings: list[list[int]]) -> tuple[Tensor, Tensor]:
        tokens, asked = parity_rows(strings, len(strings[0]))
        h = model.call(model.embed(tokens))
        for _ in range(len(strings[0]) - 1):
            h = model.call(step(h))
        return model.read(h)[:, -2:], torch.tensor(asked)

    for update in (1, 2, 6, 7):
        length, rows = shapes[update - 1]
        step = objective.step(0, (length, rows), update_of(update))
        losses = []
        for index, own in enumerate(maps):
            logits, answers = steered(own, step.drawn[index].view(rows, length).tolist())
            losses.append(nnf.cross_entropy(logits.flatten(0, 1), answers.flatten()))
        check_step(objective, step, maps, losses)
        assert not torch.equal(step.drawn[0], step.drawn[1])

    draw = torch.Generator().manual_seed(parity.CHECK_SEED + 1009 * 5)
    strings = torch.randint(2, (256, 5), generator=draw).tolist()
    for own, score in zip(maps, objective.scores(0), strict=True):
        with torch.no_grad():
            logits, answers = steered(own, strings)
        loss = float(nnf.cross_entropy(logits.flatten(0, 1), answers.flatten()))
        exact = float((logits.argmax(-1) == answers).all(1).double().mean())
        assert score == (exact, pytest.approx(-loss, rel=1e-5))


# ---- relations -------------------------------------------------------------------------------------------------------

WORLD = relation_task.world().tolist()


def chains(drawn: Tensor, length: int) -> tuple[Tensor, list[list[int]]]:
    """Tokens BOS, start, relations of each query, and the entities it passes."""
    starts, followed = drawn[:8].tolist(), drawn[8:].view(8, length).tolist()
    paths = []
    for entity, relations in zip(starts, followed, strict=True):
        passed = []
        for relation in relations:
            entity = WORLD[relation][entity]
            passed.append(entity)
        paths.append(passed)
    tokens = [[0, 1 + s, *(65 + r for r in row)] for s, row in zip(starts, followed, strict=True)]
    return torch.tensor(tokens), paths


def at_step(paths: list[list[int]], step: int) -> Tensor:
    """e_step of every path."""
    return torch.tensor([path[step - 1] for path in paths])


def test_losses_and_scores_of_relations() -> None:
    recipe, seeds = toy_relations(), [4, 5]
    models = shaken_models(recipe, seeds)
    objective = RelationBackbones(recipe, models, seeds, CPU)
    assert [objective.shape(0, update) for update in range(1, 8)] == [1, 2, 3, 1, 2, 3, 1]
    for update in (1, 2, 3, 6):
        length = objective.shape(0, update)
        step = objective.step(0, length, update_of(update))
        losses = []
        for index, model in enumerate(models):
            tokens, paths = chains(step.drawn[index], length)
            told = [
                nnf.cross_entropy(model(tokens, t)[:, t + 1], at_step(paths, t)) for t in range(1, length + 1)
            ]  # fmt: skip
            losses.append(sum(told) / length)
        check_step(objective, step, models, losses)

    for model, score in zip(models, objective.scores(0), strict=True):
        wanted = []
        for length in (1, 2, 3):
            queries = relation_task.compositions("selection", length)
            answers = relation_task.path(relation_task.world(), *queries)[:, -1]
            guess = model(relation_task.tokens(*queries), length)[:, -1].argmax(-1)
            wanted.append(float((guess == answers).double().mean()))
        assert score == pytest.approx((sum(wanted) / 3, *wanted))


def test_losses_and_scores_of_maps_for_relations() -> None:
    recipe = toy_relation_map()
    (model,) = shaken_models(toy_relations(), [4])
    objective = RelationFits(recipe, model, [(0, 1)], CPU)
    (step_map,) = shaken_maps(recipe, objective.stack, 16)

    def steered(tokens: Tensor) -> list[Tensor]:
        h, told = model.call(model.embed(tokens)), []
        for call in range(2, tokens.shape[1] - 1):
            h = model.call(step_map(h))
            told.append(model.read(h[:, call + 1]))
        return told

    drawn = []
    for stage, length in ((0, 4), (1, 6), (1, 4)):
        step = objective.step(stage, length, update_of(3))
        drawn.append(step.drawn[0].tolist())
        tokens, paths = chains(step.drawn[0], length)
        told = [nnf.cross_entropy(logits, at_step(paths, t)) for t, logits in enumerate(steered(tokens), 2)]
        assert len(told) == length - 1
        check_step(objective, step, [step_map], [sum(told) / len(told)])
    assert drawn[0] != drawn[2], "stages must not see each other's queries"

    for stage, length in ((0, 4), (1, 6)):
        queries = relation_task.evaluation(length, 16, 990_000)
        answers = relation_task.path(relation_task.world(), *queries)[:, -1]
        guess = steered(relation_task.tokens(*queries))[-1].argmax(-1)
        assert objective.scores(stage) == [(float((guess == answers).double().mean()),)]


# ---- the trainer -----------------------------------------------------------------------------------------------------


class Bowls:
    """Members that roll down bowls of their own; scores follow a script, and one member can be made to break."""

    precision: Precision = "tf32"

    def __init__(self, stages: Sequence[Stage], members: int = 3, script: Sequence[Sequence[float]] = ()) -> None:
        start = torch.linspace(-1, 1, 7)
        self.stack = Stack([{"w": start[:5] + k, "D": start[5:] * (k + 1)} for k in range(members)])
        self.stages, self.script, self.asked = stages, list(script), 0
        self.breaks: dict[int, tuple[int, str]] = {}  # member -> (update, how)

    def shape(self, stage: int, update: int) -> int:
        return update % 2

    def step(self, stage: int, shape: int, update: Tensor) -> Step:
        assert shape == int(update) % 2
        w, D = self.stack.weights["w"], self.stack.weights["D"]
        members = torch.arange(1, len(w) + 1)
        losses = members.sqrt() * ((w - (update * members[:, None]).sin()).square().sum(1) + D.pow(4).sum(1))
        for member, (at, how) in self.breaks.items():
            if update >= at:
                still = (w[member] - w[member].detach()).square().sum().sqrt()  # it is 0, but its slope is not finite
                bad = still if how == "gradient" else torch.tensor(float(how))
                losses = losses.index_add(0, torch.tensor([member]), bad[None])
        return Step(losses, (update * 10 + members)[:, None])

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        self.asked += 1
        return [(score,) for score in self.script[self.asked - 1]] if self.script else [(0.0,)] * len(self.stack)


def finished(objective: Objective, keep: str = "best", window: int = 100) -> Trainer:
    trainer = Trainer(objective, keep)
    trainer.run(lambda *_: None, window)
    return trainer


def bowl_stages(*updates: int, check_every: int = 0, **optimiser: Any) -> tuple[Stage, ...]:
    settings = {"schedule": Schedule(0.1, warmup=3, decay=40, floor=0.1), "clip": 4.0, **optimiser}
    return tuple(stage_of(n, check_every, f"stage {i}", **settings) for i, n in enumerate(updates))


def plain_bowls(stages: Sequence[Stage], member: int, members: int = 3) -> list[Tensor]:
    """One member alone, by torch's own AdamW, anew for every stage: its parameters after each update."""
    start = Bowls(stages, members).stack.member(member)
    bowl = Bowls(stages, members)
    w, D = (torch.nn.Parameter(start[name]) for name in ("w", "D"))
    told = []
    for number, stage in enumerate(stages):
        adamw = stage.optimiser
        groups = [{"params": [w], "factor": 1.0}, {"params": [D], "factor": adamw.slow[1] if adamw.slow else 1.0}]
        torch_adamw = torch.optim.AdamW(groups, betas=adamw.betas, eps=adamw.eps, weight_decay=adamw.decay)
        for update in range(1, stage.updates + 1):
            for group in torch_adamw.param_groups:
                group["lr"] = adamw.schedule.rate(update) * group["factor"]
            torch_adamw.zero_grad()
            bowl.stack.weights = {name: p[None].expand(members, -1) for name, p in (("w", w), ("D", D))}
            bowl.step(number, update % 2, update_of(update)).losses[member].backward()
            torch.nn.utils.clip_grad_norm_([w, D], adamw.clip)
            torch_adamw.step()
            told.append(torch.cat([w.detach(), D.detach()]))
    return told


def parameters(stack: Stack, member: int) -> Tensor:
    """One member's parameters, one after the other."""
    return torch.cat([tensor.flatten() for tensor in stack.member(member).values()])


@pytest.mark.parametrize("slow", [None, ("D", 0.1)])
def test_every_update_is_torchs_adamw_anew_in_every_stage(slow: tuple[str, float] | None) -> None:
    stages = bowl_stages(12, 9, slow=slow)
    found: list[list[Tensor]] = []
    trainer = Trainer(Bowls(stages), "last")
    trainer.run(lambda trainer, _: found.append([parameters(trainer.stack, member) for member in range(3)]), window=1)
    assert len(found) == 21
    assert trainer.done
    for member in range(3):
        own = torch.stack(plain_bowls(stages, member))
        torch.testing.assert_close(torch.stack([each[member] for each in found]), own, rtol=1e-5, atol=1e-6)
    norms = [[row["norm"] for row in trainer.history if row["member"] == member] for member in range(3)]
    # The members are clipped each by its own norm: in some updates one is and another is not.
    assert any(min(several) < 4.0 < max(several) for several in zip(*norms, strict=True))


def test_training_a_transformer_is_the_plain_loop() -> None:
    recipe, seeds = toy_walk(updates=20, check_every=0), [3, 8]
    recipe = replace(recipe, stages=(stage_of(20, 0, clip=1.2),))
    trainer = finished(WalkBackbones(recipe, [initial_model(recipe, seed) for seed in seeds], seeds, CPU))
    optimiser = recipe.stages[0].optimiser
    clipped: list[list[bool]] = [[], []]
    for index, seed in enumerate(seeds):
        model = initial_model(recipe, seed)
        adamw = torch.optim.AdamW(
            model.parameters(), betas=optimiser.betas, eps=optimiser.eps, weight_decay=optimiser.decay
        )
        objective = WalkBackbones(recipe, [model], [seed], CPU)
        digest = torch.zeros(1, dtype=torch.int64)
        for update in range(1, 21):
            drawn = objective.step(0, None, update_of(update)).drawn
            graphs, starts, depths = graphs_and_starts(drawn[0], 8, 6)
            rows = zip(graphs, starts, depths, strict=True)
            tokens = torch.tensor([walk_tokens(graph, start, depth) for graph, start, depth in rows])
            adamw.param_groups[0]["lr"] = optimiser.schedule.rate(update)
            adamw.zero_grad()
            nnf.cross_entropy(model(tokens)[:, -1], ends(graphs, starts, depths)).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optimiser.clip)
            clipped[index].append(bool(norm > optimiser.clip))
            adamw.step()
            digest = absorb(digest, drawn)
        wanted = torch.cat([tensor.flatten() for tensor in model.state_dict().values()])
        torch.testing.assert_close(parameters(trainer.stack, index), wanted, rtol=1e-4, atol=2e-5)
        assert trainer.state["data"][index] == digest[0]
    assert any(one != other for one, other in zip(*clipped, strict=True))


@pytest.mark.parametrize("kind", ["walk", "parity", "relations"])
def test_a_seed_trained_beside_others_is_the_seed_trained_alone(kind: str) -> None:
    recipe = {"walk": toy_walk, "parity": toy_parity, "relations": toy_relations}[kind](updates=9, check_every=0)
    build = {"walk": WalkBackbones, "parity": ParityBackbones, "relations": RelationBackbones}[kind]
    seeds = [5, 0, 9]
    together = finished(build(recipe, [initial_model(recipe, seed) for seed in seeds], seeds, CPU))
    for index, seed in enumerate(seeds):
        alone = finished(build(recipe, [initial_model(recipe, seed)], [seed], CPU))
        assert alone.state["data"][0] == together.state["data"][index]
        torch.testing.assert_close(alone.stack.flat[0], together.stack.flat[index], rtol=1e-3, atol=2e-5)
    assert len(set(together.state["data"].tolist())) == 3


def test_the_size_of_the_windows_changes_no_bit() -> None:
    stages = bowl_stages(11, 7, check_every=5)
    long, short = (finished(Bowls(stages), window=window) for window in (100, 2))
    for name, tensor in long.state.items():
        assert torch.equal(tensor, short.state[name])


def test_scaled_losses_change_no_bit_where_nothing_is_rounded_away() -> None:
    class Scaled(Bowls):
        precision: Precision = "fp16"

    stages = bowl_stages(11, check_every=5)
    scaled, plain = finished(Scaled(stages)), finished(Bowls(stages))
    assert torch.equal(scaled.stack.flat, plain.stack.flat)
    assert scaled.history == plain.history


def test_the_digest_of_the_data_tells_every_batch() -> None:
    trainer = finished(Bowls(bowl_stages(4, 3)))
    digest = torch.zeros(3, dtype=torch.int64)
    for update in (1, 2, 3, 4, 1, 2, 3):
        digest = absorb(digest, torch.tensor([[update * 10 + member] for member in (1, 2, 3)]))
    assert torch.equal(trainer.state["data"], digest)


def after_each_check(objective: Bowls, keep: str, every: int) -> tuple[Trainer, dict[int, Tensor]]:
    """The finished trainer, and the parameters as they were at every check of its only stage."""
    seen: dict[int, Tensor] = {}
    trainer = Trainer(objective, keep)

    def look(trainer: Trainer, rows: list[dict[str, Any]]) -> None:
        if rows[0]["update"] % every == 0:
            seen[rows[0]["update"]] = trainer.stack.flat.clone()

    trainer.run(look, window=2)
    return trainer, seen


SCRIPT = [(0.2, 0.5, 0.9), (0.6, 0.5, 0.1), (0.6, 0.4, 0.3), (0.5, 0.6, 0.9)]


def test_the_earliest_of_the_best_is_kept() -> None:
    trainer, seen = after_each_check(Bowls(bowl_stages(12, check_every=3), script=SCRIPT), "best", 3)
    assert trainer.selected == [Selected(0, 6, (0.6,)), Selected(0, 12, (0.6,)), Selected(0, 3, (0.9,))]
    for member, update in enumerate((6, 12, 3)):
        assert torch.equal(trainer.state["kept"][member], seen[update][member])
    assert not torch.equal(trainer.state["kept"][0], trainer.stack.flat[0])


def test_the_last_is_kept_if_the_recipe_says_so() -> None:
    trainer, _ = after_each_check(Bowls(bowl_stages(12, check_every=3), script=SCRIPT), "last", 3)
    assert trainer.selected == [Selected(0, 12, (score,)) for score in SCRIPT[-1]]
    assert torch.equal(trainer.state["kept"], trainer.stack.flat)


def test_scores_that_tie_are_told_apart_by_what_follows() -> None:
    class Tied(Bowls):
        def scores(self, stage: int) -> list[tuple[float, ...]]:
            self.asked += 1
            return [(1.0, -float(abs(self.asked - best))) for best in (2, 3, 4)]

    trainer = finished(Tied(bowl_stages(12, check_every=3)))
    assert [each and each.update for each in trainer.selected] == [6, 9, 12]


def test_members_are_scored_at_the_end_of_a_stage_too() -> None:
    objective = Bowls(bowl_stages(7, check_every=3))
    trainer = finished(objective)
    assert [row["update"] for row in trainer.history if row["member"] == 0 and "score" in row] == [3, 6, 7]
    never = Bowls(bowl_stages(7, check_every=0))
    assert [row["update"] for row in finished(never).history if "score" in row] == [7, 7, 7]
    assert (objective.asked, never.asked) == (3, 1)


def test_a_stage_ends_when_every_member_is_good_enough() -> None:
    script = [(1.0, 0.2, 1.0), (0.9, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]
    first, second = bowl_stages(30, 4, check_every=4)
    objective = Bowls((replace(first, stop_at=1.0), replace(second, check_every=0)), script=script)
    trainer = finished(objective, keep="last")
    assert [(row["stage"], row["update"]) for row in trainer.history if row["member"] == 0] == [
        ("stage 0", 4), ("stage 0", 8), ("stage 0", 12), ("stage 1", 4)
    ]  # fmt: skip
    # From there on it is a run of a first stage of twelve updates, with the rates of one of thirty.
    for member in range(3):
        wanted = plain_bowls((replace(first, updates=12), second), member)[-1]
        torch.testing.assert_close(parameters(trainer.stack, member), wanted, rtol=1e-5, atol=1e-6)


def test_history_has_a_row_for_every_member_and_window() -> None:
    (stage,) = stages = bowl_stages(5, check_every=4)
    objective = Bowls(stages, members=2)
    told: list[list[dict[str, Any]]] = []
    trainer = Trainer(objective, "best")
    trainer.run(lambda _, rows: told.append(rows), window=3)
    assert [row["update"] for row in trainer.history] == [3, 3, 4, 4, 5, 5]
    assert [row["member"] for row in trainer.history] == [0, 1, 0, 1, 0, 1]
    assert trainer.history == [row for rows in told for row in rows]
    assert all(row["rate"] == stage.optimiser.schedule.rate(row["update"]) for row in trainer.history)
    assert [row.get("score") for row in trainer.history] == [None, None, [0.0], [0.0], [0.0], [0.0]]
    assert all(row["stage"] == "stage 0" for row in trainer.history)
    # The loss is the mean over the window, the norm that of its last update.
    each = Trainer(Bowls(stages, members=2), "best")
    each.run(lambda *_: None, window=1)
    for member in range(2):
        single = [row for row in each.history if row["member"] == member]
        window = next(row for row in trainer.history if row["member"] == member)
        assert window["loss"] == pytest.approx(sum(row["loss"] for row in single[:3]) / 3)
        assert window["norm"] == single[2]["norm"]
    assert json.loads(json.dumps(trainer.history)) == trainer.history
    assert trainer.seconds > 0


def test_a_trainer_goes_on_from_what_it_saved() -> None:
    stages = bowl_stages(9, 8, check_every=3)
    script = [(0.2, 0.5, 0.9), (0.6, 0.5, 0.1)] * 3
    whole = finished(Bowls(stages, script=script))
    saved: list[tuple[dict[str, Tensor], str]] = []

    def save(trainer: Trainer, rows: list[dict[str, Any]]) -> None:
        state = {name: tensor.clone() for name, tensor in trainer.state.items()}
        saved.append((state, json.dumps(trainer.progress())))

    Trainer(Bowls(stages, script=script), "best").run(save)
    assert len(saved) == 6
    for done, (state, progress) in enumerate(saved, 1):
        objective = Bowls(stages, script=script)
        objective.asked = done
        again = Trainer(objective, "best")
        again.restore(state, json.loads(progress))
        again.run(lambda *_: None)
        for name, tensor in whole.state.items():
            assert torch.equal(tensor, again.state[name]), name
        assert (again.history, again.selected, again.failures) == (whole.history, whole.selected, whole.failures)


# ---- what is not finite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
@pytest.mark.parametrize("at", [1, 5, 6])
def test_a_member_that_breaks_stops_and_the_others_do_not_notice(how: str, at: int) -> None:
    stages = bowl_stages(6, 4, check_every=2)
    script = [(0.1 * k, 0.2 * k, 0.3 * k) for k in range(1, 6)]
    healthy = finished(Bowls(stages, script=script))
    objective = Bowls(stages, script=script)
    objective.breaks = {1: (at, how)}
    trainer = finished(objective)

    failure = trainer.failures[1]
    assert failure is not None
    assert (failure.stage, failure.update) == (0, at)
    assert trainer.failures[::2] == [None, None]
    if how == "gradient":
        assert str(failure).startswith("the gradient is not finite (the loss is ")
    else:
        assert str(failure) == f"the loss is {how}"
    # What it had before that update is what it has.
    before = Bowls((replace(stages[0], updates=at - 1),), script=[script[0]] * 9) if at > 1 else Bowls(stages)
    short = finished(before) if at > 1 else Trainer(before, "best")
    for name in ("flat", "data"):
        assert torch.equal(trainer.state[name][1], short.state[name][1])
    assert all(row["update"] < at for row in trainer.history if row["member"] == 1)
    for name in ("flat", "kept", "data"):
        assert torch.equal(trainer.state[name][::2], healthy.state[name][::2])
    assert trainer.selected[::2] == healthy.selected[::2]
    assert [row for row in trainer.history if row["member"] != 1] == [
        row for row in healthy.history if row["member"] != 1
    ]


def test_a_member_that_breaks_in_a_later_stage_is_told_so() -> None:
    class Late(Bowls):
        def step(self, stage: int, shape: int, update: Tensor) -> Step:
            self.breaks = {2: (3, "nan")} if stage == 1 else {}
            return super().step(stage, shape, update)

    trainer = finished(Late(bowl_stages(4, 4)))
    failure = trainer.failures[2]
    assert failure is not None
    assert (failure.stage, failure.update) == (1, 3)
    assert trainer.done


def test_nothing_is_left_to_do_when_all_members_have_broken() -> None:
    objective = Bowls(bowl_stages(1_000, check_every=2))
    objective.breaks = {0: (3, "nan"), 1: (2, "inf"), 2: (5, "gradient")}
    trainer = finished(objective)
    assert [failure and failure.update for failure in trainer.failures] == [3, 2, 5]
    assert trainer.update == 6
    again = Trainer(Bowls(bowl_stages(1_000, check_every=2)), "best")
    again.restore(trainer.state, json.loads(json.dumps(trainer.progress())))
    assert again.done
    assert isinstance(again.failures[0], Failure)


# ---- jobs ------------------------------------------------------------------------------------------------------------


def digest_of(weights: dict[str, Tensor]) -> str:
    told = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        told.update(name.encode() + tensor.numpy().tobytes())
    return told.hexdigest()


def settings_of(**changes: Any) -> Settings:
    return Settings(CPU, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


class StoppedError(Exception):
    """Raised by whoever watches, to stop a run."""


def stop_after(windows: int) -> Callable[[Progress], None]:
    left = [windows]

    def watch(_: Progress) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise StoppedError

    return watch


def digests(done: list[Finished]) -> list[dict[str, str]]:
    return [dict(each.digests) for each in done]


def checkpoints(store: Store) -> list[tuple[int, int]]:
    """(stage, update) of the checkpoints in a store."""
    return sorted((each.manifest.config["stage"], each.manifest.config["update"]) for each in store.all("checkpoint"))


def test_what_a_trained_backbone_is_stored_as(store: Store, tmp_path: Path) -> None:
    recipe = toy_walk(updates=8, check_every=3, keep="last")
    told: list[Progress] = []
    done = jobs.train(recipe, [5, 2], store, settings_of(metrics=tmp_path / "metrics", watch=told.append))
    assert [(each.name, each.seed) for each in done] == [("toy-5", 5), ("toy-2", 2)]
    trainer = finished(WalkBackbones(recipe, [initial_model(recipe, seed) for seed in (5, 2)], [5, 2], CPU), "last")
    for index, each in enumerate(done):
        artefact = store.open("backbone", each.key)
        assert name_of(artefact) == each.name
        assert artefact.manifest.config == {"recipe": json.loads(json.dumps(recipe.to_dict())), "seed": each.seed}
        weights = trainer.stack.member(index)
        assert each.digests == {
            "start": digest_of(initial_model(recipe, each.seed).state_dict()),
            "final": digest_of(weights),
            "selected": digest_of(weights),
            "data": f"{int(trainer.state['data'][index]) % 2**64:016x}",
        }
        for name, tensor in load_backbone(artefact).state_dict().items():
            assert torch.equal(tensor, weights[name].bfloat16().float())
        result = artefact.json("result.json")
        assert result["digests"] == each.digests
        assert result["selected"] == {"stage": 0, "update": 8, "score": list(each.score)}
        assert result["side_by_side"] == 2
        own = [row for row in trainer.history if row["member"] == index]
        assert result["history"] == [{k: v for k, v in row.items() if k != "member"} for row in own]
        assert each.selected_update == 8
        lines = map(json.loads, (tmp_path / "metrics" / "toy-5-2.jsonl").read_text().splitlines())
        assert [line for line in lines if line["seed"] == each.seed] == [
            {"name": each.name, "seed": each.seed, **row} for row in result["history"]
        ]
    assert [(now.job, now.stage, now.done, now.total) for now in told] == [("toy", "train", n, 8) for n in (3, 6, 8)]
    assert all(len(now.losses) == len(now.scores) == 2 for now in told)
    assert told[-1].scores == [each.score[0] for each in done]
    assert checkpoints(store) == []
    assert {path.name for path in store.root.iterdir()} <= {"backbone", "checkpoint"}
    assert all(path.name.endswith(".lock") for path in (store.root / "checkpoint").iterdir())


def test_the_selected_checkpoint_is_what_is_stored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    script = iter([(0.5, 0.1), (0.5, 0.9), (0.4, 0.3)])

    class Scripted(WalkBackbones):
        def scores(self, stage: int) -> list[tuple[float, ...]]:
            return [(score,) for score in next(script)]

    monkeypatch.setitem(jobs.BACKBONES, "graph-walk", Scripted)
    recipe = toy_walk(updates=9, check_every=3)
    seen: list[list[str]] = []

    def watch(_: Progress) -> None:
        state = max(store.all("checkpoint"), key=lambda each: each.manifest.config["update"]).tensors(
            "state.safetensors"
        )
        stack = Stack([initial_model(recipe, seed).state_dict() for seed in (0, 1)])
        seen.append([digest_of(stack.member(index, state["flat"])) for index in (0, 1)])

    done = jobs.train(recipe, [0, 1], store, settings_of(save_every=0.0, watch=watch))
    assert [each.selected_update for each in done] == [3, 6]
    assert [each.score for each in done] == [(0.5,), (0.9,)]
    assert done[0].digests["selected"] == seen[0][0] != done[0].digests["final"]
    assert done[1].digests["selected"] == seen[1][1] != done[1].digests["final"]


def test_what_fitted_maps_are_stored_as(store: Store) -> None:
    (base,) = jobs.train(toy_walk(), [0], store, settings_of())
    backbone = store.open("backbone", base.key)
    recipes = [toy_map("one", keep="last"), toy_map("two", keep="last")]
    done = jobs.fit(recipes, backbone, [1, 4], store, settings_of())
    members = [(1, 1), (1, 4), (2, 1), (2, 4)]
    assert [each.name for each in done] == [
        "toy-one-1@toy-0", "toy-one-4@toy-0", "toy-two-1@toy-0", "toy-two-4@toy-0"
    ]  # fmt: skip
    trainer = finished(WalkFits(recipes[0], load_backbone(backbone), members, CPU), "last")
    for index, each in enumerate(done):
        artefact = store.open("map", each.key)
        assert name_of(artefact) == each.name
        assert artefact.manifest.inputs == {"backbone": backbone.key}
        assert artefact.manifest.config["fit"] == members[index][1]
        step = load_fit(artefact)
        assert (step.family, step.settings()) == ("diagonal-low-rank", {"width": 16, "rank": 3})
        for name, tensor in trainer.stack.member(index).items():
            assert torch.equal(step.state_dict()[name], tensor)
        assert each.digests["final"] == digest_of(trainer.stack.member(index))
    # A fit starts from one map and sees one stream of batches, whatever its target.
    assert done[0].digests["start"] == done[2].digests["start"] != done[1].digests["start"]
    assert done[0].digests["data"] == done[2].digests["data"] != done[1].digests["data"]
    assert done[0].digests["final"] != done[2].digests["final"]
    assert checkpoints(store) == []


def test_maps_of_relations_are_fitted_one_after_the_other(store: Store) -> None:
    (base,) = jobs.train(toy_relations(updates=2, check_every=0), [0], store, settings_of())
    backbone, recipe = store.open("backbone", base.key), toy_relation_map()
    done = jobs.fit([recipe], backbone, [1, 2], store, settings_of())
    for each, number in zip(done, (1, 2), strict=True):
        trainer = finished(RelationFits(recipe, load_backbone(backbone), [(0, number)], CPU), "last")
        assert each.digests["final"] == digest_of(trainer.stack.member(0))
        assert store.open("map", each.key).json("result.json")["selected"]["stage"] == 1
    assert done[0].digests["data"] != done[1].digests["data"]


def test_the_regimes_of_matched_supervision_are_paired(store: Store) -> None:
    pair = []
    for name in ("matched-final", "matched-stepwise"):
        made = backbone_recipe(name)
        model = replace(made.model, width=8, heads=2, mlp=8, layers=1)
        data = replace(made.data, selection="smoke")  # scoring is not what is tested
        stages = (replace(made.stages[0], updates=3, check_every=0),)
        made = replace(made, model=model, data=data, batch=4, stages=stages)
        pair.append(jobs.train(made, [0, 1], store, settings_of()))
    for final, stepwise in zip(*pair, strict=True):
        assert final.digests["start"] == stepwise.digests["start"]
        assert final.digests["data"] == stepwise.digests["data"]
        assert final.digests["final"] != stepwise.digests["final"]
        assert final.key != stepwise.key
    assert pair[0][0].digests["start"] != pair[0][1].digests["start"]
    assert pair[0][0].digests["data"] != pair[0][1].digests["data"]


def test_what_is_finished_is_only_looked_up(store: Store) -> None:
    recipe = toy_walk()
    first = jobs.train(recipe, [0, 1], store, settings_of())
    told: list[Progress] = []
    assert jobs.train(recipe, [1, 0], store, settings_of(watch=told.append)) == first[::-1]
    assert told == []
    more = jobs.train(recipe, [0, 2], store, settings_of(watch=told.append))
    assert more[0] == first[0]
    assert all(len(now.losses) == 1 for now in told)
    assert store.open("backbone", more[1].key).json("result.json")["side_by_side"] == 1


@pytest.mark.parametrize("windows", [1, 2, 3, 4])
def test_a_job_stopped_after_any_window_goes_on(store: Store, tmp_path: Path, windows: int) -> None:
    recipe = toy_walk(updates=9, check_every=2)
    whole = jobs.train(recipe, [0, 1], Store(tmp_path / "whole"), settings_of(metrics=tmp_path / "whole-metrics"))
    watching = settings_of(metrics=tmp_path / "metrics", save_every=0.0, watch=stop_after(windows))
    with pytest.raises(StoppedError):
        jobs.train(recipe, [0, 1], store, watching)
    assert checkpoints(store) == [(0, 2 * done) for done in range(max(1, windows - 1), windows + 1)]
    assert store.all("backbone") == ()
    told: list[Progress] = []
    again = jobs.train(recipe, [0, 1], store, settings_of(metrics=tmp_path / "metrics", watch=told.append))
    assert again == whole
    assert [now.done for now in told] == [2, 4, 6, 8, 9][windows:]
    assert checkpoints(store) == []
    folders = (tmp_path / "metrics", tmp_path / "whole-metrics")
    metrics = [[*map(json.loads, (folder / "toy-0-1.jsonl").read_text().splitlines())] for folder in folders]
    assert metrics[0] == metrics[1]


def test_a_part_of_a_begun_cohort_goes_on_with_the_cohort(store: Store, tmp_path: Path) -> None:
    recipe = toy_walk(updates=8, check_every=2)
    whole = jobs.train(recipe, [0, 1, 2], Store(tmp_path / "whole"), settings_of())
    with pytest.raises(StoppedError):
        jobs.train(recipe, [0, 1, 2], store, settings_of(save_every=0.0, watch=stop_after(2)))
    told: list[Progress] = []
    assert jobs.train(recipe, [1], store, settings_of(watch=told.append)) == [whole[1]]
    assert [now.done for now in told] == [6, 8]
    assert all(len(now.losses) == 3 for now in told)
    assert checkpoints(store) == []
    told.clear()
    assert jobs.train(recipe, [2, 0], store, settings_of(watch=told.append)) == [whole[2], whole[0]]
    assert told == []


def test_checkpoints_are_saved_when_it_is_time_and_the_last_two_are_kept(store: Store) -> None:
    recipe = toy_walk(updates=10, check_every=2)
    seen = []
    watching = settings_of(save_every=0.0, watch=lambda _: seen.append(checkpoints(store)))
    jobs.train(recipe, [0], store, watching)
    assert seen == [[(0, 2)], [(0, 2), (0, 4)], [(0, 4), (0, 6)], [(0, 6), (0, 8)], [(0, 6), (0, 8)]]
    seen.clear()
    jobs.train(recipe, [1], store, settings_of(save_every=3600.0, watch=lambda _: seen.append(checkpoints(store))))
    assert seen == [[]] * 5


def test_one_jobs_checkpoints_are_no_others(store: Store) -> None:
    recipe, other = toy_walk(updates=8, check_every=2), toy_walk(updates=8, check_every=2, stream="other")
    for made, seeds in ((recipe, [0]), (other, [0]), (recipe, [1])):
        with pytest.raises(StoppedError):
            jobs.train(made, seeds, store, settings_of(save_every=0.0, watch=stop_after(2)))
    told: list[Progress] = []
    jobs.train(recipe, [0], store, settings_of(watch=told.append))
    assert [now.done for now in told] == [6, 8]
    assert len(checkpoints(store)) == 4
    # Both 0 and 1 are asked for: 0 is ready, and 1 goes on as it was begun.
    assert [each.seed for each in jobs.train(recipe, [0, 1], store, settings_of())] == [0, 1]
    jobs.train(other, [0], store, settings_of())
    assert checkpoints(store) == []


# ---- jobs in which members break -------------------------------------------------------------------------------------


def breaking(bad: dict[int, int], how: float = math.nan) -> type[WalkBackbones]:
    """Graph walks in which the loss of some seeds is not finite from some update on."""

    class Breaking(WalkBackbones):
        def __init__(self, recipe: BackboneRecipe, models: Any, seeds: Sequence[int], device: torch.device) -> None:
            super().__init__(recipe, models, seeds, device)
            self.seeds = list(seeds)

        def step(self, stage: int, shape: None, update: Tensor) -> Step:
            step = super().step(stage, shape, update)
            hit = torch.tensor([update >= bad.get(seed, 10**6) for seed in self.seeds])
            return Step(torch.where(hit, how, step.losses), step.drawn)

    return Breaking


def test_a_seed_that_breaks_is_told_and_the_others_are_stored(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy_walk(updates=8, check_every=2)
    whole = jobs.train(recipe, [3, 4, 5], Store(tmp_path / "whole"), settings_of())
    monkeypatch.setitem(jobs.BACKBONES, "graph-walk", breaking({4: 5}))
    line = (
        "toy-4 stopped before update 5 of train (stream tiny/4): the loss is nan; "
        "its last good parameters are in the last checkpoint"
    )
    for _ in range(2):  # asking again says it again
        with pytest.raises(MembersFailedError) as caught:
            jobs.train(recipe, [3, 4, 5], store, settings_of())
        assert str(caught.value) == line
        assert caught.value.exit_code == 1
    assert sorted(each.key for each in store.all("backbone")) == sorted([whole[0].key, whole[2].key])
    assert jobs.train(recipe, [5, 3], store, settings_of()) == [whole[2], whole[0]]

    # The last checkpoint has the parameters of update 4.
    (checkpoint,) = store.all("checkpoint")
    trained = replace(recipe, stages=(replace(recipe.stages[0], updates=4),))
    short = WalkBackbones(trained, [initial_model(recipe, seed) for seed in (3, 4, 5)], [3, 4, 5], CPU)
    assert torch.equal(checkpoint.tensors("state.safetensors")["flat"][1], finished(short).stack.flat[1])
    failures = checkpoint.json("progress.json")["failures"]
    assert failures[0] is failures[2] is None
    assert (failures[1]["stage"], failures[1]["update"]) == (0, 5)


def test_a_job_ends_when_all_its_members_have_broken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jobs.BACKBONES, "graph-walk", breaking({0: 3, 1: 1}, math.inf))
    told: list[Progress] = []
    with pytest.raises(MembersFailedError) as caught:
        jobs.train(toy_walk(updates=1000, check_every=2), [0, 1], store, settings_of(watch=told.append))
    assert str(caught.value).startswith(
        "toy-0 stopped before update 3 of train (stream tiny/0): the loss is inf; "
        "toy-1 stopped before update 1 of train (stream tiny/1): the loss is inf; "
    )
    assert "\n" not in str(caught.value)
    assert [now.done for now in told] == [2, 4]
    assert store.all("backbone") == ()
    assert checkpoints(store) == [(0, 4)]


# ---- requests that do not fit ----------------------------------------------------------------------------------------


@pytest.fixture
def backbone(store: Store) -> Artefact:
    (done,) = jobs.train(toy_walk(updates=1, check_every=0), [0], store, settings_of())
    return store.open("backbone", done.key)


def test_maps_that_do_not_fit_are_refused(backbone: Artefact, store: Store, refused: Callable[..., str]) -> None:
    before = sorted(store.root.rglob("*"))

    def ask(*recipes: MapRecipe) -> str:
        return refused(InputError, jobs.fit, recipes, backbone, [1], store, settings_of())

    longer = replace(toy_map("two"), stages=(stage_of(7, 0),))
    assert ask(toy_map("one"), longer) == (
        "maps 'toy-one' and 'toy-two' cannot be fitted side by side; fit them in turn"
    )
    assert ask(map_recipe("parity-staged")) == ("map 'parity-staged' is for parity backbones; toy-0 is for graph-walk")
    assert ask(map_recipe("one")) == "map 'one' is for 10-node graphs; toy-0 walks 6"
    assert sorted(store.root.rglob("*")) == before


def test_devices(refused: Callable[..., str]) -> None:
    assert jobs.pick_device("cpu") == CPU
    assert jobs.pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert refused(InputError, jobs.pick_device, "tpu") == "no device 'tpu'; there are auto, cpu, cuda"
