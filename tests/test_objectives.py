"""What training minimises, task by task, against plain loops over single examples and models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.maps import AffineMap
from loopscope.model import LoopedTransformer
from loopscope.tasks import relations as relation_task
from loopscope.tasks.populations import population
from loopscope.training.cohort import parity, walks
from loopscope.training.cohort.jobs import initial_model
from loopscope.training.cohort.objective import Objective
from loopscope.training.cohort.parity import ParityBackbones, ParityFits
from loopscope.training.cohort.relations import RelationBackbones, RelationFits
from loopscope.training.cohort.trainer import Trainer
from loopscope.training.cohort.walks import WalkBackbones, WalkFits
from loopscope.training.recipe import GraphData, ParityFit, WalkFit
from tests.gradients import check_step, shaken_maps, shaken_models
from tests.toys import (
    CPU,
    ends,
    graphs_and_starts,
    stage_of,
    toy_map,
    toy_parity,
    toy_relation_map,
    toy_relations,
    toy_walk,
    update_of,
    walk_tokens,
    walked,
)

# ---- oracles: one example after the other, one model after the other -------------------------------------------------


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
