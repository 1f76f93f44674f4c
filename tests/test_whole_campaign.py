"""The whole campaign at toy size gives the same on every engine, hash by hash: every experiment of every study."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from loopscope.store.store import Store
from loopscope.studies.registry import EXPERIMENTS, LANGUAGE
from tests.campaigns_elsewhere import slurm
from tests.jobs_here import Here
from tests.ray_cluster import running
from tests.whole_campaign import done_on, experiments_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process makes: records of every experiment that there is."""
    folder = tmp_path_factory.mktemp("one-process")
    found = done_on(Here(), folder)
    assert experiments_in(Store(folder / "store")) == {*EXPERIMENTS, *LANGUAGE}
    return found


def test_on_two_processes(expected: dict[str, Any], tmp_path: Path) -> None:
    assert done_on("local:2", tmp_path) == expected


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (make check-slow does)")
def test_on_ray(expected: dict[str, Any], tmp_path: Path) -> None:
    with running() as cluster:
        assert done_on(f"ray:{cluster.address}", tmp_path) == expected


@slurm
def test_on_slurm(expected: dict[str, Any], tmp_path: Path) -> None:
    assert done_on("slurm:tests", tmp_path) == expected
