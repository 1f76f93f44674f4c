"""Maps that keep control: strands of steered states against plain loops over single states, and pools that resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.errors import InputError
from loopscope.maps import AffineMap
from loopscope.model import LoopedTransformer
from loopscope.store.store import Store
from loopscope.studies.recipes import map_recipe
from loopscope.tasks.populations import population
from loopscope.training.cohort import jobs, lasting, walks
from loopscope.training.cohort.lasting import LastingFits, Walkers, strands_of
from loopscope.training.cohort.objective import Carrying
from loopscope.training.cohort.trainer import Trainer
from loopscope.training.cohort.walks import WalkFits
from loopscope.training.recipe import LastingFit, MapRecipe, WalkFit
from tests.gradients import check_gradient, check_step, shaken_maps, shaken_models
from tests.stopping import StoppedError, checkpoints, digests, settings_of, stop_after, store
from tests.toys import CPU, finished, graphs_and_starts, toy_map, toy_walk, update_of, walk_tokens, walked

__all__ = ["store"]  # the fixture

BATCH, FRESH, NODES = 8, 2, 6
WHERE = {"base": 2, "request": 2, "held_out": "tiny", "selection": "tiny-selection"}


def toy_fit(hops: int = 1, updates: int = 6, check_every: int = 3, name: str = "toy", **data: object) -> MapRecipe:
    settings = {"calls": 3, "scored": 2, **WHERE, **data}
    return replace(toy_map(updates=updates, check_every=check_every), name=name, data=LastingFit(hops, **settings))


def drawn_letters(row: Tensor, fresh: int, calls: int) -> tuple[list[list[int]], list[int], Tensor]:
    """Graphs, starts and letters [calls, batch], from the integers that a step was made from."""
    graphs, starts, rest = graphs_and_starts(row, fresh, NODES)
    return graphs, starts, torch.tensor(rest).view(calls, -1)


@dataclass
class Walker:
    """One state on its way, by itself."""

    h: Tensor
    graph: list[int]
    node: int

    def call(self, model: LoopedTransformer, step: AffineMap, hops: int) -> Tensor:
        """One steered call; its logits."""
        self.h = model.call(step(self.h))
        self.node = walked(self.graph, self.node, hops)
        return model.read(self.h[:, -1])


def begun(model: LoopedTransformer, graph: list[int], start: int) -> Walker:
    """A state after the calls without a map."""
    with torch.no_grad():
        h = model.embed(torch.tensor([walk_tokens(graph, start, 2)]))
        for _ in range(model.config.loops):
            h = model.call(h)
    return Walker(h, graph, walked(graph, start, 2))


def loss_of(logits: Tensor, walker: Walker) -> Tensor:
    return nnf.cross_entropy(logits, torch.tensor([walker.node]))


# ---- strands ---------------------------------------------------------------------------------------------------------


def test_strands() -> None:
    members = [(1, 5), (1, 7), (2, 5), (2, 7)]
    assert strands_of((), members) == [[0], [1], [2], [3]]
    assert strands_of((1, 2), members) == [[0, 2], [1, 3]]
    assert strands_of((2, 1), members) == [[2, 0], [3, 1]]
    with pytest.raises(InputError, match=r"maps of 1, 2 hops .* fitted together: fit 7 lacks the one of 2"):
        strands_of((1, 2), members[:3])


def test_without_letters_and_pool_it_is_a_fit_through_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (walks, lasting):
        monkeypatch.setattr(module, "SCORED_AT_ONCE", 100)  # several pieces, the last one smaller
    (model,) = shaken_models(toy_walk(), [0])
    members = [(1, 1), (2, 1), (2, 5)]
    for score in ("accuracy", "loss"):
        recipe = toy_fit(scored=3, score=score, rule="three")
        plain = replace(recipe, data=WalkFit(1, calls=3, score=score, rule="three", **WHERE))
        torch.manual_seed(1)
        mine = LastingFits(recipe, model, members, CPU)
        shaken_maps(recipe, mine.stack, 16)
        other = WalkFits(plain, model, members, CPU)
        other.stack.flat.copy_(mine.stack.flat)
        (other.stream,) = mine.streams
        assert mine.carried == {}
        for update in (1, 4):
            found, wanted = (each.step(0, None, update_of(update)) for each in (mine, other))
            assert torch.equal(found.drawn, wanted.drawn)
            torch.testing.assert_close(found.losses, wanted.losses)
            gradients = [each.stack.gradients(step.losses.sum()) for each, step in ((mine, found), (other, wanted))]
            torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(torch.tensor(mine.scores(0)), torch.tensor(other.scores(0)))


# ---- a pool ----------------------------------------------------------------------------------------------------------


def pools_of(objective: LastingFits) -> list[list[Walker]]:
    """The states an objective carries, one by one."""
    assert isinstance(objective, Carrying)
    states, graphs, nodes = (objective.carried[f"pool.{part}"] for part in ("states", "graphs", "nodes"))
    return [
        [Walker(h[None].clone(), g, u) for h, g, u in zip(*strand, strict=True)]
        for strand in zip(states, graphs.tolist(), nodes.tolist(), strict=True)
    ]


def steered(
    pool: list[Walker], model: LoopedTransformer, step: AffineMap, hops: int, calls: int
) -> tuple[Tensor, list[bool]]:
    """The mean loss of all states over their calls, and which of them were always right."""
    losses, on_track = [], []
    for walker in pool:
        right = True
        for _ in range(calls):
            logits = walker.call(model, step, hops)
            losses.append(loss_of(logits, walker))
            right &= int(logits.argmax()) == walker.node
        walker.h = walker.h.detach()
        on_track.append(right)
    return torch.stack(losses).mean(), on_track


def check_pool(objective: LastingFits, wanted: Sequence[Sequence[Walker]]) -> None:
    for strand, own in zip(pools_of(objective), wanted, strict=True):
        assert [(each.graph, each.node) for each in strand] == [(each.graph, each.node) for each in own]
        torch.testing.assert_close(
            torch.cat([e.h for e in strand]), torch.cat([e.h for e in own]), rtol=1e-4, atol=1e-4
        )


def test_a_pool_begins_with_new_states_of_its_fit() -> None:
    (model,) = shaken_models(toy_walk(), [0])
    objective = LastingFits(toy_fit(fresh=(FRESH,)), model, [(1, 1), (2, 1), (1, 5)], CPU)
    held_out = {row for name in ("tiny-selection", "tiny-test") for row in population(name).rows}
    pools = pools_of(objective)
    for pool in pools:
        assert not held_out & {tuple(each.graph) for each in pool}
        for each in pool:
            start = next(s for s in range(NODES) if walked(each.graph, s, 2) == each.node)
            torch.testing.assert_close(each.h, begun(model, each.graph, start).h, rtol=1e-4, atol=1e-5)
    told = [[(each.graph, each.node) for each in pool] for pool in pools]
    assert told[0] == told[1] != told[2]
    assert len({tuple(graph) for graph, _ in told[0]}) == BATCH


@pytest.mark.parametrize("calls", [1, 2])
def test_states_live_on_while_they_are_right_until_their_turn(calls: int) -> None:
    (model,) = shaken_models(toy_walk(), [0], far=0.5)
    recipe, members = toy_fit(fresh=(FRESH,), calls=calls), [(1, 1), (2, 1), (2, 5)]
    objective = LastingFits(recipe, model, members, CPU)
    maps = shaken_maps(recipe, objective.stack, 16)
    own = pools_of(objective)
    fates: set[tuple[bool, bool]] = set()
    for update in range(1, 8):
        step = objective.step(0, objective.shape(0, update), update_of(update))
        losses = []
        for index, (hops, _) in enumerate(members):
            loss, on_track = steered(own[index], model, maps[index], hops, calls)
            losses.append(loss)
            graphs, starts, rest = graphs_and_starts(step.drawn[index], FRESH, NODES)
            assert rest == []
            new = [begun(model, graph, start) for graph, start in zip(graphs, starts, strict=True)]
            for place, right in enumerate(on_track):
                turn = place // FRESH == update % (BATCH // FRESH)
                fates.add((right, turn))
                if turn or not right:
                    fresh = new[place % FRESH]
                    own[index][place] = Walker(fresh.h, fresh.graph, fresh.node)
        check_step(objective, step, maps, losses)
        check_pool(objective, own)
        assert torch.equal(step.drawn[0], step.drawn[1])
        assert not torch.equal(step.drawn[1], step.drawn[2])
    assert len(fates) == 4  # right and wrong states, each on its turn and not


class AlwaysRight(LastingFits):
    """Every answer counts as right."""

    def _call(self, *args: object) -> tuple[Walkers, Tensor]:
        at, logits = super()._call(*args)
        return at, logits + 1e3 * nnf.one_hot(at.nodes, NODES)


def test_states_that_grow_without_bound_begin_anew() -> None:
    (model,) = shaken_models(toy_walk(), [0])
    objective = AlwaysRight(toy_fit(fresh=(1,), calls=2), model, [(1, 1), (2, 1)], CPU)
    with torch.no_grad():
        objective.stack.weights["D"][0] = 30.0
    largest = []
    for update in range(1, 9):
        assert objective.step(0, None, update_of(update)).losses.isfinite().all()
        largest.append(objective.carried["pool.states"].abs().amax((1, 2, 3)))
    grown, other = torch.stack(largest).amax(0).tolist()
    assert 1e3 < grown < lasting.LARGEST
    assert other < 100


def test_a_pool_whose_states_are_always_right_ages_to_the_full() -> None:
    (model,) = shaken_models(toy_walk(), [0])
    objective = AlwaysRight(toy_fit(fresh=(FRESH,), calls=2), model, [(1, 1)], CPU)
    ages = [0] * BATCH
    for update in range(1, 20):
        (before,) = pools_of(objective)
        objective.step(0, None, update_of(update))
        (after,) = pools_of(objective)
        for place in range(BATCH):
            if place // FRESH == update % (BATCH // FRESH):
                ages[place] = 0
                continue
            ages[place] += 2
            assert after[place].graph == before[place].graph
            assert after[place].node == walked(before[place].graph, before[place].node, 2)
        assert update < 4 or sorted(set(ages)) == [0, 2, 4, 6]


# ---- strings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [(), (FRESH,)])
def test_strings_pass_through_both_maps(fresh: tuple[int, ...]) -> None:
    (model,) = shaken_models(toy_walk(), [0])
    recipe, members = toy_fit(fresh=fresh, letters=(1, 2)), [(1, 1), (1, 5), (2, 1), (2, 5)]
    objective = LastingFits(recipe, model, members, CPU)
    maps = shaken_maps(recipe, objective.stack, 16)
    pools = pools_of(objective) if fresh else None
    step = objective.step(0, None, update_of(3))
    seen, new = [], FRESH if fresh else BATCH
    gradients = objective.stack.gradients(step.losses.sum())
    for number, pair in enumerate(([0, 2], [1, 3])):
        assert torch.equal(step.drawn[pair[0]], step.drawn[pair[1]])
        graphs, starts, letters = drawn_letters(step.drawn[pair[0]], new, 3)
        strand = pools[number] if pools else [begun(model, *each) for each in zip(graphs, starts, strict=True)]
        losses = [torch.zeros(()), torch.zeros(())]
        for place, walker in enumerate(strand):
            for letter in letters[:, place].tolist():
                logits = walker.call(model, maps[pair[letter]], letter + 1)
                losses[letter] = losses[letter] + loss_of(logits, walker) * 2 / (3 * BATCH)
        for member, loss in zip(pair, losses, strict=True):
            torch.testing.assert_close(step.losses[member], loss, rtol=1e-4, atol=1e-5)
        # A map is also told of what its partner meets after it.
        both = torch.nn.ModuleList(maps[member] for member in pair)
        found = {
            f"{i}.{name}": part
            for i, m in enumerate(pair)
            for name, part in objective.stack.member(m, gradients).items()
        }
        check_gradient(both, losses[0] + losses[1], found)
        seen.append(letters)
    assert not torch.equal(*seen)
    assert all(set(letters.flatten().tolist()) == {0, 1} for letters in seen)
    assert not torch.equal(seen[0][0], seen[0][1])
    _, _, later = drawn_letters(objective.step(0, None, update_of(4)).drawn[0], new, 3)
    assert not torch.equal(later, seen[0])


def test_partners_share_a_score_and_so_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "SCORED_AT_ONCE", 200)
    (model,) = shaken_models(toy_walk(), [0])
    recipe, members = toy_fit(letters=(1, 2), updates=4, scored=3), [(1, 1), (1, 5), (2, 1), (2, 5)]
    objective = LastingFits(recipe, model, members, CPU)
    maps = shaken_maps(recipe, objective.stack, 16)
    scores = objective.scores(0)
    assert scores[0] == scores[2] != scores[1] == scores[3]
    walkers = [(list(graph), start) for graph in population("tiny-selection").rows for start in range(NODES)]
    letters = torch.stack([objective._letters(objective.scored_keys, torch.tensor(432 * t), 432) for t in range(3)])
    for number, pair in enumerate(([0, 2], [1, 3])):
        hits = []
        with torch.no_grad():
            for place, (graph, start) in enumerate(walkers[:40]):
                walker = begun(model, graph, start)
                for letter in letters[:, number, place].tolist():
                    logits = walker.call(model, maps[pair[letter]], letter + 1)
                    hits.append(int(logits.argmax()) == walker.node)
        objective.kept = torch.arange(432) < 40
        assert objective.scores(0)[pair[0]] == pytest.approx((sum(hits) / len(hits),))
    trainer = finished(LastingFits(recipe, model, members, CPU))
    assert trainer.selected[0] == trainer.selected[2]
    assert trainer.selected[1] == trainer.selected[3]


# ---- training, saving, going on --------------------------------------------------------------------------------------

KINDS = {
    "rollout": {},
    "rollout, then pool": {"fresh": (BATCH, FRESH)},
    "pool": {"fresh": (FRESH,)},
    "pool of strings": {"fresh": (FRESH,), "letters": (1, 2)},
    "strings": {"letters": (1, 2)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_fit_goes_on_bit_by_bit(kind: str, store: Store, tmp_path_factory: pytest.TempPathFactory) -> None:
    recipes = [toy_fit(hops, 6, 2, f"toy-{hops}", scored=1, **KINDS[kind]) for hops in (1, 2)]
    if "then" in kind:  # stopped in the second stage, after one window of it
        recipes = [
            replace(each, stages=(replace(each.stages[0], name="first", updates=2), each.stages[0])) for each in recipes
        ]
    (backbone,) = jobs.train(toy_walk(updates=4), [0], store, settings_of())
    found = store.open("backbone", backbone.key)
    other = Store(tmp_path_factory.mktemp("other"))
    jobs.train(toy_walk(updates=4), [0], other, settings_of())
    whole = jobs.fit(recipes, other.open("backbone", backbone.key), [1, 5], other, settings_of())
    with pytest.raises(StoppedError):
        jobs.fit(recipes, found, [1, 5], store, settings_of(save_every=0.0, watch=stop_after(2)))
    assert ((1, 2) if "then" in kind else (0, 4)) in checkpoints(store)
    saved = store.every("checkpoint")[0].tensors("state.safetensors")
    assert ("pool.states" in saved) == ("fresh" in KINDS[kind])
    again = jobs.fit(recipes, found, [1, 5], store, settings_of())
    assert digests(again) == digests(whole)
    assert checkpoints(store) == []


def test_trying_an_update_out_leaves_the_pool_as_it_was_and_where_it_was() -> None:
    (model,) = shaken_models(toy_walk(), [0])
    recipe = toy_fit(fresh=(FRESH,))
    objective = LastingFits(recipe, model, [(1, 1)], CPU)
    trainer = Trainer(objective, "best")
    before = {name: tensor.clone() for name, tensor in trainer.state.items()}
    places = {name: tensor.data_ptr() for name, tensor in objective.carried.items()}
    with trainer._unchanged():
        trainer._update(recipe.stages[0], None)
        assert not torch.equal(trainer.state["pool.states"], before["pool.states"])
    for name, tensor in before.items():
        assert torch.equal(trainer.state[name], tensor)
    trainer.run(lambda *_: None)
    assert {name: tensor.data_ptr() for name, tensor in objective.carried.items()} == places


def test_a_fit_beside_others_is_the_fit_alone() -> None:
    (model,) = shaken_models(toy_walk(), [0])
    recipe, members = toy_fit(fresh=(FRESH,)), [(1, 1), (2, 1), (1, 5)]
    together = finished(LastingFits(recipe, model, members, CPU))
    for index, member in enumerate(members):
        alone = finished(LastingFits(recipe, model, [member], CPU))
        assert alone.state["data"][0] == together.state["data"][index]
        torch.testing.assert_close(alone.stack.flat[0], together.stack.flat[index], rtol=1e-3, atol=1e-4)


def test_mistakes(store: Store) -> None:
    (model,) = shaken_models(toy_walk(), [0])
    with pytest.raises(InputError, match=r"3 fresh states do not divide a batch of 8 \(nearest: 2\)"):
        LastingFits(toy_fit(fresh=(3,)), model, [(1, 1)], CPU)
    (backbone,) = jobs.train(toy_walk(updates=4), [0], store, settings_of())
    with pytest.raises(InputError, match="fit 1 lacks the one of 2"):
        jobs.fit([toy_fit(letters=(1, 2))], store.open("backbone", backbone.key), [1], store, settings_of())
    assert not store.every("map")


def test_a_pool_after_a_rollout_has_a_stage_of_its_own() -> None:
    """With a turn for every place all states are new; then they begin to live on."""
    (model,) = shaken_models(toy_walk(), [0])
    recipe = toy_fit(fresh=(BATCH, FRESH), calls=1)
    recipe = replace(recipe, stages=(*recipe.stages, replace(recipe.stages[0], name="later")))
    objective = AlwaysRight(recipe, model, [(1, 1)], CPU)
    for update in (1, 2):
        drawn = objective.step(0, None, update_of(update)).drawn[0]
        graphs, starts, _ = graphs_and_starts(drawn, BATCH, NODES)
        (pool,) = pools_of(objective)
        assert [(each.graph, each.node) for each in pool] == [
            (graph, walked(graph, start, 2)) for graph, start in zip(graphs, starts, strict=True)
        ]
    later = objective.step(1, None, update_of(1)).drawn[0]
    (after,) = pools_of(objective)
    new, _, _ = graphs_and_starts(later, FRESH, NODES)
    assert [each.graph for each in after] == [*graphs[:FRESH], *new, *graphs[2 * FRESH :]]
    assert new != graphs[:FRESH]


def test_the_recipes() -> None:
    published = map_recipe("one")
    for name, hops in (("one", 1), ("two", 2)):
        for family in ("rollout", "pool", "strings"):
            made = map_recipe(f"{family}-{name}")
            first, *more = made.stages
            assert isinstance(made.data, LastingFit)
            assert (made.data.hops, made.data.calls, made.data.base, made.data.prefix) == (hops, 8, 8, None)
            assert (made.family, made.rank, made.batch, first.updates) == (published.family, 48, 128, 8_000)
            assert [first.optimiser.schedule.rate(update) for update in (1, 4_000, 8_000)] == pytest.approx(
                [1e-3, 5e-4, 0.0], rel=1e-3, abs=1e-9
            )
            assert (made.data.letters, made.data.fresh, len(more)) == {
                "rollout": ((), (), 0), "pool": ((), (128, 16), 1), "strings": ((1, 2), (), 0)
            }[family]  # fmt: skip
    assert 8 * 128 // 16 == 64  # the most calls that a state of the pool is led through
