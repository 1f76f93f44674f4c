"""A store that cannot be shared is refused in one line, before anything is begun."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import InputError
from loopscope.jobs import probe
from loopscope.jobs.driver import run
from loopscope.jobs.engine import Ended, Ticket
from loopscope.jobs.probe import check
from loopscope.store.store import Store
from tests.campaign_toys import small_graph
from tests.jobs_here import Here


class Away(Here):
    """Workers that may be on other machines; `changed` is what they see of the store instead."""

    elsewhere = True

    def __init__(self, changed: Callable[[Path], Path] = lambda root: root) -> None:
        super().__init__()
        self.changed = changed

    def start(self, ticket: Ticket, ended: Ended) -> None:
        super().start(Ticket(ticket.job, self.changed(ticket.root), ticket.save_every), ended)


def test_a_store_that_is_shared(tmp_path: Path) -> None:
    found = check(Away(), Store(tmp_path / "s"))
    assert found.same_machine
    assert (found.worker_saw, found.driver_saw) < (1.0, 1.0)
    assert [*(tmp_path / "s").rglob("*")] == [tmp_path / "s" / ".jobs"]


def test_a_worker_that_sees_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    monkeypatch.setattr(probe, "PATIENCE", 0.2)
    engine = Away(lambda root: tmp_path / "mine")
    said = refused(InputError, check, engine, Store(tmp_path / "s"))
    assert "does not see" in said
    assert "so the store is not on its file system" in said
    engine = Away(lambda root: tmp_path / "mine")
    assert "cannot be shared" in refused(InputError, run, small_graph(), Store(tmp_path / "s"), engine)
    assert engine.tried == ["probe"]  # and nothing else was begun


def test_locks_that_are_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    @contextmanager
    def given(path: Path, wait: bool = True) -> Any:
        yield True  # as a mount whose locks stay on its host

    monkeypatch.setattr(probe, "locked", given)
    said = refused(InputError, check, Away(), Store(tmp_path / "s"))
    assert "got a lock that another process holds, so locks are not shared there" in said
    assert "NFS without nolock" in said


def test_a_store_is_probed_once_for_an_engine(tmp_path: Path) -> None:
    graph = small_graph(6)
    for tried in (["probe", "train toy"], []):
        engine = Away()
        run(type(graph)(graph.jobs[:1]), Store(tmp_path / "s"), engine)
        assert engine.tried == tried
