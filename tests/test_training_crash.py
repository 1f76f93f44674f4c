"""Training under kill -9, damaged checkpoints, a full disk, a second process: real processes, the same bits.

As in `test_store_crash.py`, one helper process (this module run as a script) imports everything once and forks a child
for each job.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.errors import InputError
from loopscope.model import LoopedTransformer
from loopscope.store.manifest import MANIFEST
from loopscope.store.store import Store
from loopscope.tasks.populations import held_out
from loopscope.training.cohort import jobs
from loopscope.training.cohort.jobs import Progress
from tests.nursery import Nursery, drafts, gate_at, outcome_of, say, serve
from tests.stopping import BACKBONES, EVERY, StoppedError, checkpoints, settings_of, stop_after, told
from tests.toys import toy_map

SEEDS = [0, 2]


FITS = [replace(toy_map(name, 16, EVERY), batch=4) for name in ("one", "two")]
FITS = [replace(made, data=replace(made.data, score="loss")) for made in FITS]

# What the children do -------------------------------------------------------------------------------------------------


def work(what: str, root: str, **settings: Any) -> list[Any]:
    """Train the backbones, or fit maps to the only backbone; a checkpoint after every window.  Gives all digests."""
    store, changed = Store(root), settings_of(**{"save_every": 0.0, **settings})
    if what == "map":
        (backbone,) = store.every("backbone")
        return told(jobs.fit(FITS, backbone, [1, 2], store, changed))
    seeds = SEEDS[:1] if what == "shortest" else SEEDS
    return told(jobs.train(BACKBONES[what], seeds, store, changed))


class Counted:
    """Counts what this process does and, once armed, kills it (SIGKILL) before the n-th thing from then on."""

    def __init__(self, kind: str) -> None:
        self.count, self.end = 0, 0
        if kind == "call":  # every call of a function, Python's or C's: a place between any two operations on tensors
            sys.setprofile(self.called)
        else:
            sys.addaudithook(self.audited)

    def arm(self, n: int) -> None:
        self.end = self.count + n

    def called(self, frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self.tick()

    def audited(self, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open" or name.startswith(("os.", "fcntl.", "shutil.")):
            self.tick()

    def tick(self) -> None:
        self.count += 1
        if self.count == self.end:
            os.kill(os.getpid(), signal.SIGKILL)


def work_and_die(what: str, root: str, kind: str, update: int = 0, n: int = 0) -> dict[str, Any]:
    """Work, but die before the n-th event of a kind after this update (n = 0: never); else give what came out.

    Besides, give how many events there were by the end of every window, and in all.
    """
    counted, after_windows = Counted(kind), []

    def watch(now: Progress) -> None:
        after_windows.append(counted.count)
        if n and now.done >= update and not counted.end:
            counted.arm(n)

    if n and update == 0:
        counted.arm(n)
    outcome = work(what, root, watch=watch)
    sys.setprofile(None)
    return {"outcome": outcome, "windows": after_windows, "all": counted.count}


def work_and_tell(root: str) -> list[Any]:
    """Train, and say so after every window."""
    return work("backbone", root, watch=lambda now: say("window", now.done))


def work_when_told(root: str, gate: str) -> list[Any]:
    """Train, but wait in the first window until the FIFO `gate` gives a byte."""
    waited = []

    def watch(_: Progress) -> None:
        if not waited:
            waited.append(True)
            say("ready")
            with open(gate, "rb", buffering=0) as tickets:
                tickets.read(1)

    return work("short", root, watch=watch)


def fill_disk(how: str, windows: int) -> Any:
    """After some windows no file can be written any more: by a limit, or on a disk that is full."""
    left = [windows]

    def watch(_: Progress) -> None:
        left[0] -= 1
        if left[0] == 0 and how == "limit":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails with EFBIG instead of killing the process
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        elif left[0] == 0:
            os.fsync = no_space_for_tensors  # only in this child

    return watch


def no_space_for_tensors(handle: int, sync: Callable[[int], None] = os.fsync) -> None:
    """A file system that allocates late, and has no space left for a draft's tensors when they are synced."""
    if os.readlink(f"/proc/self/fd/{handle}").endswith("state.safetensors"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    sync(handle)


def work_on_full_disk(root: str, how: str, windows: int) -> list[Any]:
    return outcome_of(lambda: work("backbone", root, watch=fill_disk(how, windows)))


def work_with_full_metrics(root: str, metrics: str) -> list[Any]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return outcome_of(lambda: work("short", root, metrics=Path(metrics)))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery.running("-m", "tests.test_training_crash") as nursery:
        yield nursery


class Whole:
    """What runs give that nobody interrupts, and how many calls and file operations they take; run when asked for."""

    def __init__(self, nursery: Nursery, one_backbone: Path, folder: Path) -> None:
        self.nursery, self.one_backbone, self.folder = nursery, one_backbone, folder
        self.found: dict[tuple[str, str], dict[str, Any]] = {}

    def __getitem__(self, asked: tuple[str, str]) -> dict[str, Any]:
        if asked not in self.found:
            what, kind = asked
            root = self.folder / f"{what}-{kind}"
            if what == "map":
                shutil.copytree(self.one_backbone, root)
            self.found[asked] = self.nursery.result(self.nursery.start(work_and_die, what, str(root), kind))
        return self.found[asked]


@pytest.fixture(scope="module")
def one_backbone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one backbone, to fit maps to."""
    store = Store(tmp_path_factory.mktemp("one") / "store")
    nursery.result(nursery.start(work, "short", str(store.root)))
    store.remove("backbone", store.every("backbone")[1].key)
    return store.root


@pytest.fixture(scope="module")
def whole(nursery: Nursery, one_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(nursery, one_backbone, tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["backbone", "short", "shortest", "map"])
def test_counting_changes_nothing(whole: Whole, what: str) -> None:
    assert whole[what, "call"]["outcome"] == whole[what, "file"]["outcome"]


# Kill -9 --------------------------------------------------------------------------------------------------------------


def killed_all_the_way(nursery: Nursery, store: Store, what: str, kind: str, whole: Whole) -> list[int]:
    """Kill the same work at a random moment of every window but the last, and then let it end.

    Gives how many drafts each kill left.
    """
    moments, run = random.Random(f"{what} {kind}"), whole[what, kind]
    ends, saved, left = run["windows"], 0, []
    for window in range(len(ends) - 1):
        if saved >= EVERY * window:  # this window is what it begins with: kill it on the way there, or in it
            moment = 0, moments.randint(1, ends[0])
        else:
            moment = EVERY * window, moments.randint(1, ends[window] - ends[window - 1])
        pid = nursery.start(work_and_die, what, str(store.root), kind, *moment)
        assert nursery.exit_status(pid) == -signal.SIGKILL
        assert all(each.state == "ok" for each in store.verify())
        before, saved = saved, max((update for _, update in checkpoints(store)), default=0)
        assert saved >= before, "a kill must not cost a checkpoint"
        left.append(len(drafts(store)))
    again = nursery.result(nursery.start(work_and_die, what, str(store.root), kind))
    assert again["outcome"] == run["outcome"]
    assert len(again["windows"]) == len(ends) - saved // EVERY < 4
    return left


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["call", "file"])
def test_backbones_killed_in_every_window(nursery: Nursery, tmp_path: Path, whole: Whole, kind: str) -> None:
    store = Store(tmp_path / "store")
    left = killed_all_the_way(nursery, store, "backbone", kind, whole)
    assert len(left) == 23
    assert sum(map(bool, left)) >= (5 if kind == "file" else 1), "hardly any kill met a write"
    assert checkpoints(store) == []
    assert drafts(store) == []
    # The selected weights are no trivial ones: neither the first that were scored nor the last.
    wanted = whole["backbone", kind]["outcome"]
    assert all(EVERY < selected < 48 for _, selected, _, _ in wanted)
    assert all(digests["final"] != digests["selected"] for _, _, _, digests in wanted)


@pytest.mark.parametrize("windows", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_backbones_killed_from_outside(nursery: Nursery, tmp_path: Path, whole: Whole, windows: int) -> None:
    store = Store(tmp_path / "store")
    for window in range(1, windows + 1):
        pid = nursery.start(work_and_tell, str(store.root))
        while nursery.hear("window", pid) < EVERY * window:
            pass
        os.kill(pid, signal.SIGKILL)  # wherever the work is when the signal comes
        status = nursery.exit_status(pid)
        nursery.heard = [line for line in nursery.heard if line[0] != pid]
        if status == 0:  # a machine so busy that the signal came after the end
            break
        assert status == -signal.SIGKILL
        assert all(each.state == "ok" for each in store.verify())
        assert checkpoints(store)[-1][1] >= EVERY * window
    assert nursery.result(nursery.start(work, "backbone", str(store.root))) == whole["backbone", "file"]["outcome"]
    assert checkpoints(store) == []


@pytest.mark.parametrize("kind", [pytest.param("call", marks=pytest.mark.slow), "file"])
def test_maps_killed_in_every_window(
    nursery: Nursery, tmp_path: Path, one_backbone: Path, whole: Whole, kind: str
) -> None:
    store = Store(shutil.copytree(one_backbone, tmp_path / "store"))
    assert len(killed_all_the_way(nursery, store, "map", kind, whole)) == 7
    assert checkpoints(store) == []
    assert len(store.every("map")) == 4


@pytest.mark.parametrize("every", [14, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_before_every_other_file_operation_after_the_last_window(
    nursery: Nursery, tmp_path: Path, whole: Whole, every: int
) -> None:
    run, left = whole["shortest", "file"], []
    for event in range(1, run["all"] - run["windows"][-1] + 1, every):
        store = Store(tmp_path / str(event))
        pid = nursery.start(work_and_die, "shortest", str(store.root), "file", EVERY * 2, event)
        assert nursery.exit_status(pid) == -signal.SIGKILL
        assert all(each.state == "ok" for each in store.verify())
        stored = bool(store.every("backbone"))
        again = nursery.result(nursery.start(work_and_die, "shortest", str(store.root), "file"))
        assert again["outcome"] == run["outcome"]
        assert len(again["windows"]) == (0 if stored else 1)
        left += checkpoints(store)
    assert left == [], "a finished job must leave no checkpoints, wherever it was killed"


# Damaged checkpoints --------------------------------------------------------------------------------------------------


def spoil(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped byte":
        data[len(data) // 2] ^= 0xFF
    elif how == "cut off":
        del data[len(data) // 2 :]
    path.write_bytes(data)


def stopped(store: Store, windows: int) -> list[Path]:
    """Stop the short job after some windows; the folders of its checkpoints, the latest first."""
    with pytest.raises(StoppedError):
        work("short", str(store.root), watch=stop_after(windows))
    found = sorted(store.every("checkpoint"), key=lambda each: each.manifest.config["update"])
    return [each.folder for each in found][::-1]


def resumed(store: Store) -> tuple[list[Any], list[int]]:
    """The outcome, and where the job was after every window."""
    seen: list[int] = []
    outcome = work("short", str(store.root), save_every=3600.0, watch=lambda now: seen.append(now.done))
    return outcome, seen


@pytest.mark.parametrize("how", ["flipped byte", "cut off"])
@pytest.mark.parametrize("name", ["state.safetensors", "progress.json", MANIFEST])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, whole: Whole, name: str, how: str) -> None:
    store = Store(tmp_path / "store")
    latest, before = stopped(store, 2)
    spoil(latest / name, how)
    with pytest.warns(UserWarning, match=f"a checkpoint is passed over: {latest / name}: expected") as told:
        outcome, seen = resumed(store)
    assert len(told) == 1
    assert outcome == whole["short", "file"]["outcome"]
    assert seen == [4, 6]
    assert not before.exists()
    store.gc(damaged=True)
    assert not latest.exists()


def test_without_a_whole_checkpoint_the_job_starts_anew(tmp_path: Path, whole: Whole) -> None:
    store = Store(tmp_path / "store")
    for folder in stopped(store, 2):
        spoil(folder / "state.safetensors", "flipped byte")
    with pytest.warns(UserWarning, match="a checkpoint is passed over: ") as told:
        outcome, seen = resumed(store)
    assert len(told) == 2
    assert outcome == whole["short", "file"]["outcome"]
    assert seen == [2, 4, 6]
    assert checkpoints(store) == []


# A second process -----------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused(nursery: Nursery, tmp_path: Path, whole: Whole) -> None:
    store = Store(tmp_path / "store")
    with gate_at(tmp_path / "gate") as let_pass:
        first = nursery.start(work_when_told, str(store.root), str(tmp_path / "gate"))
        nursery.hear("ready", first)
        for seeds in (SEEDS, SEEDS[1:]):  # a part of the cohort is the same job
            with pytest.raises(InputError) as caught:
                jobs.train(BACKBONES["short"], seeds, store, settings_of())
            assert str(caught.value) == (
                f"another process is at work on this job in {store.root}; wait for it or end it"
            )
        # Another job in the same store is none of its business.
        assert len(jobs.train(BACKBONES["short"], [7], store, settings_of())) == 1
        let_pass(1)
        assert nursery.result(first) == whole["short", "file"]["outcome"]
    assert work("short", str(store.root)) == whole["short", "file"]["outcome"]
    assert checkpoints(store) == []


def test_the_lock_of_a_killed_process_is_none(nursery: Nursery, tmp_path: Path, whole: Whole) -> None:
    store = Store(tmp_path / "store")
    with gate_at(tmp_path / "gate"):
        first = nursery.start(work_when_told, str(store.root), str(tmp_path / "gate"))
        nursery.hear("ready", first)
        os.kill(first, signal.SIGKILL)
        assert nursery.exit_status(first) == -signal.SIGKILL
    assert work("short", str(store.root)) == whole["short", "file"]["outcome"]


# A disk that is full --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "reason"), [("limit", "File too large"), ("device", "No space left on device")])
def test_a_full_disk_ends_the_run_with_one_line(
    nursery: Nursery, tmp_path: Path, whole: Whole, how: str, reason: str
) -> None:
    store = Store(tmp_path / "store")
    name, code, message = nursery.result(nursery.start(work_on_full_disk, str(store.root), how, 5))
    assert (name, code) == ("StoreError", 1)
    assert message.startswith(f"cannot write {store.root / 'checkpoint'}")
    assert message.endswith(f"state.safetensors: {reason}")
    assert "\n" not in message
    assert checkpoints(store) == [(0, 8), (0, 10)]
    assert [each.state for each in store.verify()] == ["ok", "ok"]
    assert drafts(store) == []
    # The same command, when there is space again.
    again = nursery.result(nursery.start(work_and_die, "backbone", str(store.root), "file"))
    assert again["outcome"] == whole["backbone", "file"]["outcome"]
    assert len(again["windows"]) == 24 - 5
    assert checkpoints(store) == []


def test_no_space_for_the_metrics(nursery: Nursery, tmp_path: Path, whole: Whole) -> None:
    store, metrics = Store(tmp_path / "store"), tmp_path / "metrics"
    metrics.mkdir()
    outcome = nursery.result(nursery.start(work_with_full_metrics, str(store.root), str(metrics)))
    assert outcome == ["StoreError", 1, f"cannot write {metrics / 'toy-0-2.jsonl'}: File too large"]
    assert work("short", str(store.root), metrics=metrics) == whole["short", "file"]["outcome"]
    assert len((metrics / "toy-0-2.jsonl").read_text().splitlines()) == 6


if __name__ == "__main__":
    # Children start with what takes long to make or to import, which loading a backbone does.
    held_out("tiny")
    with torch.device("meta"):
        LoopedTransformer(BACKBONES["short"].model)
    serve(globals())
