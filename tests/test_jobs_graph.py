"""Jobs as values: JSON and back, keys, graphs that are refused, plans, the graph of the paper's campaign."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import InputError
from loopscope.jobs.cohort import backbone_keys, map_keys
from loopscope.jobs.engines import parse
from loopscope.jobs.job import Graph, Job, Later, Needs, graph_of
from loopscope.jobs.plan import ahead, critical_path, simulate
from loopscope.jobs.task import SHORT, task_of
from loopscope.store.artefacts import BACKBONE, MAP, name_of
from loopscope.store.store import Store
from loopscope.store.zoo import open_zoo
from loopscope.studies.campaign import Campaign
from loopscope.studies.experiment import Experiment
from loopscope.studies.job_files import resolved
from loopscope.studies.measuring import WHAT, record_of
from loopscope.studies.recipes import RECIPES, backbone_recipe, map_recipe
from loopscope.studies.registry import COHORTS, chosen
from loopscope.studies.selection import Selection
from loopscope.studies.times import Times
from loopscope.training.recipe_values import recipe_from
from tests.campaign_toys import toy_graph

Refused = Callable[..., str]


def job(name: str, minutes: float = 1.0, *after: str) -> Job:
    return Job(name, "train", needs=Needs(minutes=minutes), after=after)


# ---- values ----------------------------------------------------------------------------------------------------------


def test_every_recipe_comes_back_from_json() -> None:
    for recipe in RECIPES.values():
        back = recipe_from(json.loads(json.dumps(recipe.to_dict())))
        assert type(back) is type(recipe)
        readers = {name: getattr(recipe, name) for name in ("about", "deviations", "numerics", "made_for")
                   if hasattr(recipe, name)}  # fmt: skip
        assert replace(back, **readers) == recipe


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": 64.0, "nothing": 1}, "no setting 'nothing'"),
        ({"stages": [{"name": "train"}]}, "lacks updates, optimiser, check_every"),
        ({"data": {"task": "graph-walk", "nodes": 6}}, "no data of task 'graph-walk' has the settings task, nodes"),
        ({"model": {"width": -1}}, "recipe 'tiny'"),
    ],
)
def test_a_recipe_that_is_none_is_refused(change: dict[str, Any], said: str, refused: Refused) -> None:
    assert said in refused(InputError, recipe_from, {**backbone_recipe("tiny").to_dict(), **change})


def test_a_graph_comes_back_from_json_and_a_key_is_of_what_decides() -> None:
    graph = toy_graph()
    assert graph_of(json.loads(json.dumps(graph.to_json()))) == graph
    one = graph.jobs[0]
    assert replace(one, name="x", after=("y",), needs=replace(one.needs, minutes=7.0, gpus=0.5)).key == one.key
    assert replace(one, needs=Needs(cpus=2)).key != one.key  # threads decide the last bits
    assert replace(one, settings={**one.settings, "seeds": [0]}).key != one.key
    assert len({each.key for each in graph}) == len(graph.jobs)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"job": []}, r"has no 'job'; there are jobs (nearest: jobs)"),
        ({"jobs": []}, "at least one job"),
        ({"jobs": [{"name": "a"}]}, "job 1: 'what' must be a text"),
        ({"jobs": [{"name": "a", "what": "train", "needs": {"gpu": 1}}]}, "has no 'gpu'; there are gpus"),
        ({"jobs": [{"name": "a", "what": "train", "needs": {"gpus": 1.5}}]}, "needs.gpus is 1.5"),
        ({"jobs": [{"name": "a", "what": "train", "inputs": {"backbone": "tiny"}}]}, "64 hexadecimal digits"),
        ({"jobs": [{"name": "a", "what": "train", "after": ["b"]}]}, "waits for 'b', which is not there"),
        ({"jobs": [{"name": n, "what": "train", "after": [m]} for n, m in ("ab", "ba")]}, "wait for each other: "),
        ({"jobs": [{"name": "a", "what": "train"}] * 2}, "two jobs are called 'a'"),
    ],
)
def test_a_file_of_jobs_that_is_none_is_refused(value: Any, said: str, refused: Refused) -> None:
    assert said in refused(InputError, graph_of, value)


def test_names_in_a_file_become_values_and_keys(refused: Refused) -> None:
    def fit(backbone: str) -> Job:
        settings = {"recipes": ["tiny-one"], "fits": [1]}
        given = {"name": "m", "what": "fit", "settings": settings, "inputs": {"backbone": backbone}}
        return graph_of(resolved({"jobs": [given]})).jobs[0]

    zoo = {name_of(each): each.key for each in open_zoo().every(BACKBONE)}
    assert fit("tiny-0").inputs == {BACKBONE: zoo["tiny-0"]}
    assert backbone_keys(backbone_recipe("tiny"), [0]) == {"tiny-0": zoo["tiny-0"]}
    assert recipe_from(fit("tiny-0").settings["recipes"][0]).to_dict() == map_recipe("tiny-one").to_dict()
    keys = map_keys([map_recipe("tiny-one")], zoo["tiny-0"], [1, 2])
    assert set(keys.values()) <= {each.key for each in open_zoo().every(MAP)}
    assert "a backbone is named by recipe and seed" in refused(InputError, fit, "tiny")
    assert "no recipe 'tinny'" in refused(InputError, fit, "tinny-0")


def test_a_file_can_name_tasks_and_nothing_else(refused: Refused) -> None:
    assert "(nearest: train)" in refused(InputError, task_of, "trian")
    assert "environ of os is none" in refused(InputError, task_of, "os:environ")
    assert "system of os is none" in refused(InputError, task_of, "os:system")
    assert "No module named" in refused(InputError, task_of, "no_such_module:X")
    assert task_of("train") is task_of(SHORT["train"])
    assert task_of(WHAT).found(toy_graph().jobs[-1], Store("/nowhere")) is None


@pytest.mark.parametrize("on", ["loca:2", "local", "local:0", "local:two", "ray:", "ray:here", "slurm:", "slurm:a b"])
def test_an_engine_that_is_none_is_refused(on: str, refused: Refused) -> None:
    refused(InputError, parse, on)


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_the_longest_chain_and_list_scheduling() -> None:
    graph = Graph((job("a", 3), job("b", 1), job("c", 4, "a"), job("d", 2, "b"), job("e", 1, "c", "d"), job("f", 5)))
    assert [each.name for each in critical_path(graph)] == ["a", "c", "e"]
    assert ahead(graph.jobs)["b"] == 4
    assert simulate(graph, 1).minutes == 16
    assert simulate(graph, 100).minutes == 8  # the chain
    two = simulate(graph, 2)
    assert two.minutes == 9  # a, f, then c beside b and d, then e
    assert two.busy == 16 / 18
    for name, (start, _) in two.spans.items():
        assert all(two.spans[before][1] <= start for each in graph if each.name == name for before in each.after)
    assert simulate(graph, 1, share=0.5).minutes == two.minutes
    assert simulate(graph, 1, start=1.0).minutes == 16 + 6


def test_what_comes_later_waits_in_a_plan_and_is_told_once() -> None:
    more = Graph((job("c"), job("a")), (Later(("c",), lambda: Graph(()), lambda: Graph((job("d"),))),))
    graph = Graph((job("a"), job("b")), (Later(("a", "b"), lambda: Graph(()), lambda: more),))
    assert {each.name: each.after for each in graph.expected()} == {
        "a": (), "b": (), "c": ("a", "b"), "d": ("c",)
    }  # fmt: skip


# ---- the paper's campaign --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    every: list[Experiment] = chosen([])
    expected = Selection(("d8l6-5", "d8l6-8", "d8l6-14"))
    return Campaign(list(COHORTS.values()), every, Store(Path("/nowhere")), Needs(gpus=0.5), Times(), expected)


def test_the_graph_of_the_paper(campaign: Campaign) -> None:
    graph = campaign.graph().expected()
    names = [each.name for each in graph]
    assert len(names) == len(set(names))
    twice = Counter(each.key for each in graph)
    again = [each.name for each in graph if twice[each.key] > 1 and "as the main one" not in each.name]
    assert len(again) == len(graph.jobs) - len(twice)  # what the main one has in common with the others
    trained = [seed for each in graph if each.what == "train" for seed in each.settings["seeds"]]
    wanted = {name for cohort in COHORTS.values() for name in cohort.every}
    assert len(trained) == len(wanted)  # every backbone once, whatever cohorts share it
    assert {each.needs.gpus for each in graph} == {0.5}
    made: dict[str, str] = {}
    before: dict[str, set[str]] = {}
    for each in graph:  # what a job uses is made by jobs that it waits for, if not at once
        before[each.name] = {*each.after}.union(*(before[name] for name in each.after))
        assert {made[key] for key in each.inputs.values()} <= before[each.name], each.name
        if each.what == "train":
            keys = backbone_keys(recipe_from(each.settings["recipe"]), each.settings["seeds"])  # type: ignore[arg-type]
        elif each.what == "fit":
            maps = [recipe_from(recipe) for recipe in each.settings["recipes"]]
            keys = map_keys(maps, each.inputs[BACKBONE], each.settings["fits"])  # type: ignore[arg-type]
        made |= {} if each.what == WHAT else dict.fromkeys(keys.values(), each.name)
    assert sum(record_of(each) is not None for each in graph) > 100


def test_the_rule_comes_before_the_first_map(campaign: Campaign) -> None:
    alone = replace(campaign, cohorts=[COHORTS["mechanism"]])
    graph = alone.graph()
    assert {each.what for each in graph} == {"train", WHAT}
    (later,) = graph.later
    assert len(later.after) == len(COHORTS["mechanism"].seeds)
    assert {each.name.split()[0] for each in graph if each.what == WHAT} == {"trajectories"}
    assert later.expected().jobs[0].settings["seeds"] == [*COHORTS["mechanism"].more_seeds]
