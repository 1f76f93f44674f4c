"""Faults that are done to a small campaign on real engines (`tests/faults.py`): each ends as if undisturbed."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loopscope.jobs.job import Graph
from tests import faults
from tests.campaign_toys import contents, small_graph, undisturbed_in
from tests.campaigns_elsewhere import Campaign, slurm
from tests.faults import Fault
from tests.ray_cluster import running

ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (make check-slow does)")

UPDATES = 150
"""Enough for a fault midway, few enough to be quick."""


def graph() -> Graph:
    """A backbone and its map."""
    jobs = small_graph(UPDATES).jobs
    return Graph(jobs[:2])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return undisturbed_in(tmp_path_factory.mktemp("undisturbed"), graph())


def done_to(fault: Fault, on: str, expected: dict[str, Any]) -> Campaign:
    """A campaign on an engine with this fault; what it has made is what is expected."""
    with faults.place() as folder:
        campaign = Campaign(graph(), folder, on)
        fault(campaign)
        assert contents(campaign.store) == expected
        return campaign


def test_a_fault_that_does_not_end_well_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(campaign: Campaign) -> float:
        raise AssertionError("other contents")

    monkeypatch.setattr(faults, "undisturbed_in", lambda folder, graph: {})
    monkeypatch.setattr(Campaign, "run", lambda *_, **__: 0)
    monkeypatch.setattr(faults, "EVERYWHERE", {"worker SIGKILL": broken, "calm": lambda campaign: 0.0})
    assert faults.main(["local:2"]) == 1
    assert "| worker SIGKILL | local | FAILED other contents | | |" in capsys.readouterr().out
    assert faults.main(["local:2", "--only=calm"]) == 0


@pytest.mark.slow
def test_a_worker_killed_inside_a_write(undisturbed: dict[str, Any]) -> None:
    campaign = done_to(faults.killed_in_a_write, "local:2", undisturbed)
    assert campaign.told("lost")


@pytest.mark.slow
def test_the_same_command_twice_at_once(undisturbed: dict[str, Any]) -> None:
    done_to(faults.submitted_twice, "local:1", undisturbed)


@pytest.mark.slow
def test_a_full_disk_then_room_and_the_same_command_again(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("the user may not mount a file system")
    subprocess.run(["umount", str(tmp_path)], check=True)
    done_to(faults.disk_full, "local:1", undisturbed)


@ray
@pytest.mark.slow
def test_the_head_node_of_ray_killed_then_cluster_and_command_started_again(
    undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")  # a minute by itself
    with running() as cluster:
        done_to(faults.ray_head_killed(cluster), f"ray:{cluster.address}", undisturbed)


@slurm
@pytest.mark.slow
def test_the_controller_of_slurm_restarted(undisturbed: dict[str, Any]) -> None:
    campaign = done_to(faults.controller_restarted, "slurm:tests", undisturbed)
    assert campaign.told("lost") == []


@slurm
@pytest.mark.slow
def test_the_same_command_twice_at_once_on_slurm(undisturbed: dict[str, Any]) -> None:
    """The second finds the jobs of the first by name."""
    done_to(faults.submitted_twice, "slurm:tests", undisturbed)
