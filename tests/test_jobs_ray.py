"""Jobs on a real Ray cluster, a head and two nodes in one machine: what comes out, and what faults do to it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import InputError
from loopscope.jobs.job import Graph
from loopscope.store.store import Store
from tests.campaign_toys import check_two_nodes, contents, small_graph, toy_graph, undisturbed_in
from tests.campaigns_elsewhere import Campaign, Event, kill_driver, once, until_lost
from tests.ray_cluster import NODES, Cluster, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (make check-slow does)"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running() as made:
        yield made


def test_every_task_with_a_killed_worker_is_as_undisturbed(cluster: Cluster, tmp_path: Path) -> None:
    graph = toy_graph(updates=400)
    campaign = Campaign(graph, tmp_path, f"ray:{cluster.address}")
    assert campaign.run(until_lost) == 0
    assert len(campaign.told("lost")) >= 1
    assert contents(campaign.store) == undisturbed_in(tmp_path, graph)


def test_a_killed_node_and_a_killed_driver(cluster: Cluster, tmp_path: Path) -> None:
    """The driver is killed in its first job; the same command goes on, and loses a node."""
    campaign = Campaign(small_graph(), tmp_path, f"ray:{cluster.address}")
    assert campaign.run(once("on", kill_driver)) < 0

    def kill_node(event: Event, _: Any) -> None:
        cluster.tell("kill")
        cluster.tell("add")

    assert campaign.run(once("on", kill_node)) == 0
    assert contents(campaign.store) == undisturbed_in(tmp_path, small_graph())


def test_a_job_whose_nodes_have_all_died_waits_for_another(cluster: Cluster, tmp_path: Path) -> None:
    """Only at its first try is a job refused that no node has room for."""
    campaign = Campaign(Graph(small_graph(updates=400).jobs[:1]), tmp_path, f"ray:{cluster.address}")
    killed: list[str] = []

    def harm(event: Event, _: Any) -> None:
        if event["what"] == "on" and event["done"] and not killed:
            killed.append(event["place"])
            for _node in range(NODES):
                cluster.tell("kill")
        if event["what"] == "lost":
            time.sleep(20)  # by then the job was asked for again, and Ray knows which nodes are dead
            for _node in range(NODES):
                cluster.tell("add")

    assert campaign.run(harm, 0.5) == 0
    assert campaign.told("lost") == ["train toy"]
    assert contents(campaign.store) == undisturbed_in(tmp_path, Graph(small_graph(updates=400).jobs[:1]))


def test_what_no_node_has_room_for_is_refused_and_so_is_a_cluster_that_is_not_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    large = small_graph().jobs[0]
    large = type(large)(large.name, large.what, large.settings, needs=type(large.needs)(gpus=2.0))
    campaign = Campaign(Graph((large,)), tmp_path, f"ray:{cluster.address}")
    assert campaign.run() == 1
    assert "1 node(s) with 1 CPUs and 2 GPUs each are needed; 0 of this Ray cluster's" in campaign.events[-1]["text"]
    from loopscope.jobs.driver import run

    with pytest.raises(InputError, match=r"no Ray cluster at '127\.0\.0\.1:9'"):
        run(small_graph(), Store(tmp_path / "none"), "ray:127.0.0.1:9")


def test_two_nodes_train_one_language_model(cluster: Cluster, tmp_path: Path) -> None:
    check_two_nodes(Campaign(small_graph(), tmp_path, f"ray:{cluster.address}"), tmp_path)
