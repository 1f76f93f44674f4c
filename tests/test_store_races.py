"""One store, several processes at once: whoever reads, writes, removes or cleans up gets no error that is not true.

Children are forked by a helper process, as in `test_store_crash.py`; those of a test work until a gate exists, so that
all of them overlap.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopscope.store.files import new_folder, remove_dead_drafts, write_synced
from loopscope.store.store import Store
from loopscope.tasks.populations import held_out
from loopscope.training.cohort import jobs
from tests.nursery import Nursery, die_before, drafts, outcome_of, public_folder, say, serve, write_one
from tests.stopping import BACKBONES, settings_of, told

__all__ = ["public_folder"]  # a fixture

SECONDS = 1.0
"""How long children that run until told are let run."""

# What the children do -------------------------------------------------------------------------------------------------


def repeated(gate: str, act: Callable[[int], object]) -> int:
    """Act again and again until `gate` exists; how often."""
    say("ready")
    rounds = 0
    while not Path(gate).exists():
        act(rounds)
        rounds += 1
    return rounds


def come_and_go(root: str, gate: str, start: int) -> int:
    """Write small artefacts and remove them again, as training does with its checkpoints."""
    store = Store(root)

    def act(round: int) -> None:
        made = write_one(store, {"i": 2 * (start + round % 3)})
        store.remove("checkpoint", made.key)

    return repeated(gate, act)


def spoil_and_rewrite(root: str, gate: str) -> int:
    """Damage an artefact of one's own, have it collected, and write it again."""
    store = Store(root)

    def act(_: int) -> None:
        made = write_one(store, {"i": 2000})
        (made.folder / "note.txt").write_bytes(b"!")
        store.gc(damaged=True)

    return repeated(gate, act)


def look(root: str, gate: str) -> int:
    """Read in every way there is; nothing that comes and goes is ever damaged, only that of config 2000 may be."""
    store = Store(root)

    def act(_: int) -> None:
        for status in (*store.list(), *store.verify()):
            assert status.state == "ok" or "note.txt" in status.reason, status
        found, errors = store.readable("checkpoint")
        assert all("note.txt" in str(error) for error in errors), errors
        assert len(found) >= 1
        for i in range(3):
            store.find("checkpoint", {"i": 2 * i})

    return repeated(gate, act)


def collect(root: str, gate: str) -> int:
    store = Store(root)
    return repeated(gate, lambda _: store.gc())


def train_same(root: str) -> list[Any]:
    """Train as everybody else does; another one at work on the job is waited for."""
    while True:
        outcome = outcome_of(lambda: jobs.train(BACKBONES["short"], [0, 2], Store(root), settings_of(save_every=0.0)))
        if outcome[1] != 2:
            return outcome
        assert "another process is at work on this job in" in outcome[2]
        time.sleep(0.02)


def train_others(root: str, seed: int) -> list[Any]:
    return outcome_of(lambda: jobs.train(BACKBONES["short"], [seed], Store(root), settings_of(save_every=0.0)))


def folder_after_folder(parent: str, gate: str, name: str) -> int:
    """Make folders beside those of others."""

    def act(round: int) -> None:
        with new_folder(Path(parent) / f"{name}-{round}") as draft:
            write_synced(draft / "x", b"x")

    return repeated(gate, act)


def folder_to_be_killed(out: str) -> None:
    with new_folder(Path(out)) as draft:
        write_synced(draft / "x", b"x")
        say("ready")
        time.sleep(60)


def dying_folder(out: str, event: int) -> int:
    """Make a folder, but SIGKILL this process just before its `event`-th file operation; else give their number."""
    count = die_before(event)
    with new_folder(Path(out)) as draft:
        write_synced(draft / "x", b"x")
    return count()


def folder_as_another(out: str) -> list[Any]:
    """Make a folder as somebody who may not look into what others keep to themselves."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    def make() -> None:
        with new_folder(Path(out)) as draft:
            write_synced(draft / "x", b"x")

    return outcome_of(make)


def list_as_another(root: str) -> list[list[str]]:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    store = Store(root)
    return [[status.state, status.reason] for status in (*store.list(), *store.verify())]


# The tests ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery.running("-m", "tests.test_store_races") as nursery:
        yield nursery


def together(nursery: Nursery, gate: Path, *children: tuple[Any, ...]) -> list[int]:
    """Run the children until they have overlapped for a while; how often each acted."""
    pids = [nursery.start(child, *arguments) for child, *arguments in children]
    for pid in pids:
        nursery.hear("ready", pid)
    time.sleep(SECONDS)
    gate.touch()
    return [nursery.result(pid) for pid in pids]


@pytest.mark.slow
def test_readers_beside_writers_and_collectors(nursery: Nursery, tmp_path: Path) -> None:
    store, gate = Store(tmp_path / "store"), tmp_path / "gate"
    kept = write_one(store, {"i": 100})
    here = (str(store.root), str(gate))
    rounds = together(
        nursery, gate, (look, *here), (look, *here), (come_and_go, *here, 0), (come_and_go, *here, 0), (collect, *here),
        (spoil_and_rewrite, *here),
    )  # fmt: skip
    assert min(rounds) >= 2
    assert [status.key for status in store.verify() if status.state == "ok"] == [kept.key]
    assert drafts(store) == []


@pytest.mark.slow
def test_two_that_train_the_same_in_one_store(nursery: Nursery, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    pids = [nursery.start(train_same, root) for _ in range(3)]
    assert [nursery.result(pid) for pid in pids] == [["done", 0, ""]] * 3
    alone = told(jobs.train(BACKBONES["short"], [0, 2], Store(tmp_path / "alone"), settings_of()))
    assert told(jobs.train(BACKBONES["short"], [0, 2], Store(root), settings_of())) == alone
    assert {status.kind for status in Store(root).verify()} == {"backbone"}


@pytest.mark.slow
def test_two_that_train_others_beside_a_collector(nursery: Nursery, tmp_path: Path) -> None:
    root, gate = str(tmp_path / "store"), tmp_path / "gate"
    collector = nursery.start(collect, root, str(gate))
    nursery.hear("ready", collector)
    pids = [nursery.start(train_others, root, seed) for seed in (0, 1)]
    assert [nursery.result(pid) for pid in pids] == [["done", 0, ""]] * 2
    gate.touch()
    assert nursery.result(collector) >= 1
    assert [(status.kind, status.state) for status in Store(root).verify()] == [("backbone", "ok")] * 2


@pytest.mark.slow
def test_folders_made_side_by_side(nursery: Nursery, tmp_path: Path) -> None:
    parent, gate = tmp_path / "parent", tmp_path / "gate"
    parent.mkdir()
    rounds = together(
        nursery, gate, *((folder_after_folder, str(parent), str(gate), name) for name in ("one", "two", "three"))
    )
    assert min(rounds) >= 2
    assert len(os.listdir(parent)) == sum(rounds)
    assert all(os.listdir(parent / name) == ["x"] for name in os.listdir(parent))


def test_a_living_draft_stays_and_a_dead_one_goes_with_the_next_run_or_gc(nursery: Nursery, tmp_path: Path) -> None:
    pids = [nursery.start(folder_to_be_killed, str(tmp_path / name)) for name in ("living", "dead")]
    for pid in pids:
        nursery.hear("ready", pid)
    with new_folder(tmp_path / "other"):
        pass
    assert len(os.listdir(tmp_path)) == 3
    for pid, by in zip(pids, ("gc", "run"), strict=True):
        os.kill(pid, signal.SIGKILL)
        assert nursery.exit_status(pid) == -signal.SIGKILL
        if by == "gc":
            assert len(Store(tmp_path).gc(dry_run=True).removed) == 1
            assert [each.size for each in Store(tmp_path).gc().removed] == [1]
        else:
            with new_folder(tmp_path / "dead"):
                pass
    assert sorted(os.listdir(tmp_path)) == ["dead", "other"]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_folder_killed_before_every_file_operation(nursery: Nursery, tmp_path: Path, every: int) -> None:
    left = 0
    for event in range(1, 100, every):
        parent = tmp_path / str(event)
        parent.mkdir()
        pid = nursery.start(dying_folder, str(parent / "out"), event)
        status = nursery.exit_status(pid)
        names = os.listdir(parent)
        assert "out" not in names or os.listdir(parent / "out") == ["x"]
        left += any(name.startswith(".draft") for name in names)
        remove_dead_drafts(parent)
        assert set(os.listdir(parent)) <= {"out"}
        if status == 0:
            assert nursery.hear("result", pid) < event
            break
        assert status == -signal.SIGKILL
    assert event > 8
    assert left >= 5 or every > 1


def test_drafts_of_another_user_stay(nursery: Nursery, public_folder: Path) -> None:
    public_folder.chmod(0o777)
    secret = public_folder / ".draft-loopscope-0123456789abcdef"
    secret.mkdir(mode=0)
    assert nursery.result(nursery.start(folder_as_another, str(public_folder / "out"))) == ["done", 0, ""]
    assert sorted(os.listdir(public_folder)) == [secret.name, "out"]
    secret.chmod(0o700)


def test_what_another_may_not_look_at_is_unreadable_and_not_damaged(nursery: Nursery, public_folder: Path) -> None:
    store = Store(public_folder / "store")
    made = write_one(store, {"i": 0})
    made.folder.parent.chmod(0o744)  # names may be listed, what they stand for not looked at
    found = nursery.result(nursery.start(list_as_another, str(store.root)))
    assert found == [["unreadable", f"cannot look at {made.folder}: Permission denied"]] * 2
    made.folder.parent.chmod(0o755)
    made.folder.chmod(0o700)
    found = nursery.result(nursery.start(list_as_another, str(store.root)))
    assert [state for state, _ in found] == ["unreadable"] * 2
    assert all("Permission denied" in reason for _, reason in found)


if __name__ == "__main__":
    held_out("tiny")
    serve(globals())
