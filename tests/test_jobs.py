"""Jobs: what is trained, gone on with, looked up, stored and refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from loopscope.errors import DamagedError, InputError
from loopscope.maps import AffineMap
from loopscope.store.artefacts import load_backbone, load_fit, load_trail, name_of
from loopscope.store.store import Artefact, Store
from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.training.cohort import jobs
from loopscope.training.cohort.jobs import MembersFailedError, Progress, initial_model
from loopscope.training.cohort.relations import RelationFits
from loopscope.training.cohort.stack import Stack
from loopscope.training.cohort.walks import WalkBackbones, WalkFits
from loopscope.training.job import pick_device
from loopscope.training.recipe import MapRecipe, RelationFit
from tests.stopping import StoppedError, breaking, checkpoints, digest_of, settings_of, stop_after, store
from tests.toys import CPU, finished, stage_of, toy_map, toy_relation_map, toy_relations, toy_walk

__all__ = ["store"]  # the fixture

# ---- jobs ------------------------------------------------------------------------------------------------------------


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
        state = max(store.every("checkpoint"), key=lambda each: each.manifest.config["update"]).tensors(
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


def same_maps(a: Mapping[int, AffineMap], b: Mapping[int, AffineMap]) -> bool:
    each = [(a[update].state_dict(), b[update].state_dict()) for update in a]
    return [*a] == [*b] and all(torch.equal(one[name], two[name]) for one, two in each for name in one)


@pytest.mark.parametrize("windows", [2, 3, 5])
def test_the_trail_of_a_map_is_stored_beside_it_and_outlives_a_stop(store: Store, tmp_path: Path, windows: int) -> None:
    (base,) = jobs.train(toy_relations(updates=2, check_every=0), [0], store, settings_of())
    backbone, recipe = store.open("backbone", base.key), toy_relation_map(updates=6)
    with pytest.raises(StoppedError):
        jobs.fit([recipe], backbone, [3], store, settings_of(save_every=0.0, watch=stop_after(windows)))
    assert store.every("trail") == ()
    (done,) = jobs.fit([recipe], backbone, [3], store, settings_of())
    (whole,) = jobs.fit([recipe], backbone, [3], Store(tmp_path / "whole"), settings_of())
    assert whole == done
    fit = store.open("map", done.key)
    trail = load_trail(store, fit)
    assert [*trail] == [0, 2, 4, 6]
    assert same_maps({6: trail[6]}, {6: load_fit(fit)})
    assert same_maps(trail, load_trail(Store(tmp_path / "whole"), fit))
    # The first stage alone ends where the second begins.
    alone = replace(recipe, stages=recipe.stages[:1], data=RelationFit((4,), queries=16))
    trainer = finished(RelationFits(alone, load_backbone(backbone), [(0, 3)], CPU), "last")
    assert digest_of(dict(trail[0].state_dict())) == digest_of(trainer.stack.member(0))
    assert not same_maps({0: trail[0]}, {0: trail[2]})


def test_a_trail_that_is_not_there_or_not_one(store: Store) -> None:
    (base,) = jobs.train(toy_relations(updates=2, check_every=0), [0], store, settings_of())
    backbone = store.open("backbone", base.key)
    (last,) = jobs.fit([replace(toy_relation_map(), keep="last")], backbone, [1], store, settings_of())
    fit = store.open("map", last.key)
    with pytest.raises(InputError, match="has no trail of toy-chain-1@toy-relations-0, only the map itself"):
        load_trail(store, fit)
    with pytest.raises(InputError, match="is a backbone, not a map"):
        load_trail(store, backbone)
    same = {name: tensor[None] for name, tensor in load_fit(fit).state_dict().items()}
    first = torch.zeros(1, dtype=torch.int64)
    for wrong, told in (
        (same, "expected an update"),
        ({**same, "update": first, "b": same["b"][0]}, "expected an update and"),
        ({**same, "update": first, "b": same["b"] / 0}, "expected finite weights, found NaN or infinity in b"),
    ):
        with store.write("trail", fit.manifest.config, fit.manifest.inputs) as draft:
            draft.tensors("weights.safetensors", wrong)
        with pytest.raises(DamagedError, match=told):
            load_trail(store, fit)
        store.remove("trail", draft.artefact.key)


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
    assert store.every("backbone") == ()
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
    assert sorted(each.key for each in store.every("backbone")) == sorted([whole[0].key, whole[2].key])
    assert jobs.train(recipe, [5, 3], store, settings_of()) == [whole[2], whole[0]]

    # The last checkpoint has the parameters of update 4.
    (checkpoint,) = store.every("checkpoint")
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
    assert store.every("backbone") == ()
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
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert refused(InputError, pick_device, "tpu") == "no device 'tpu'; there are auto, cpu, cuda"


def test_a_run_that_is_asked_to_stop_keeps_what_it_has(tmp_path: Path) -> None:
    recipe = toy_walk(updates=12, check_every=0)  # a window of ten and one of two
    whole = jobs.train(recipe, [0, 1], Store(tmp_path / "whole"), settings_of())
    parts, asked = Store(tmp_path / "parts"), iter([True])
    with pytest.raises(KeyboardInterrupt):
        jobs.train(recipe, [0, 1], parts, settings_of(stop=lambda: next(asked)))
    assert len(parts.every("checkpoint")) == 1
    assert jobs.train(recipe, [0, 1], parts, settings_of()) == whole
