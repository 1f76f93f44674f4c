"""The store under kill -9, damage, a full disk, missing permission, odd paths, many writers: real processes, no mocks.

A child that imports torch takes seconds to start, so one helper process (this file run as a script) imports everything
once and forks a child per job.  Each child can print "ready", be killed, or return a value as one line of JSON.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.errors import DamagedError, NewerError
from loopscope.store.files import StoreError
from loopscope.store.manifest import MANIFEST, artefact_key, manifest_text
from loopscope.store.store import Artefact, Store
from tests.nursery import (
    Nursery,
    content,
    die_before,
    drafts,
    gate_at,
    outcome_of,
    public_folder,
    say,
    serve,
    write_one,
)

__all__ = ["public_folder"]  # the fixture

# What the children do -------------------------------------------------------------------------------------------------


def churn(root: str) -> None:
    """Write artefact after artefact until killed."""
    say("ready")
    for i in range(10_000):
        write_one(Store(root), {"i": i})


def die_at(event: int, action: str, root: str) -> int:
    """Do `action`, but SIGKILL this process just before its `event`-th file operation; else give their number."""
    store = Store(root)
    count = die_before(event)
    if action == "write":
        write_one(store, {"i": 0})
    else:
        store.gc(damaged=True)
    return count()


def write_when_told(root: str, gate: str, text: str) -> list[str]:
    """Hold a complete draft until the FIFO `gate` gives a byte, then commit."""
    with Store(root).write("map", {"shared": True}) as draft:
        draft.bytes("data.bin", text.encode())
        say("ready")
        with open(gate, "rb", buffering=0) as tickets:
            tickets.read(1)
    draft.artefact.verify()
    return [draft.artefact.key, draft.artefact.bytes("data.bin").decode()]


def write_many(root: str, start: int, n: int) -> int:
    return len({write_one(Store(root), {"i": 2 * (start + i)}).key for i in range(n)})


def collect_until_told(root: str, gate: str) -> int:
    """gc in a loop until `gate` exists."""
    rounds = 0
    say("ready")
    while not Path(gate).exists():
        assert Store(root).gc(damaged=True).removed == ()
        rounds += 1
    return rounds


def write_with_limit(root: str, limit: int, i: int) -> dict[str, Any]:
    """Write under a file-size limit, then again without it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails with EFBIG instead of killing the process
    store, hard = Store(root), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    outcome = outcome_of(lambda: write_one(store, {"i": i}))
    during = [each.state for each in store.verify()], sorted(os.listdir(store.root / "checkpoint"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    check_content(write_one(store, {"i": i}))
    return {"outcome": outcome, "during": during, "after": [each.state for each in store.verify()]}


def without_rights(root: str) -> dict[str, Any]:
    """Use a store as somebody who may not write to it."""
    if os.getuid() == 0:  # permission bits do not stop root
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    store = Store(root)
    return {
        "write": outcome_of(lambda: write_one(store, {"i": 4})),
        "new kind": outcome_of(lambda: store.write("map", {}).__enter__()),
        "gc": outcome_of(store.gc),
        "read": outcome_of(lambda: store.find("checkpoint", {"i": 0}).verify()),
        "secret": outcome_of(lambda: store.find("checkpoint", {"i": 2}).bytes("note.txt")),
        "verify": [[each.key, each.state, each.reason] for each in store.verify()],
    }


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery.running(__file__) as nursery:
        yield nursery


def check_content(artefact: Artefact) -> None:
    weights, note = content(artefact.manifest.config)
    assert torch.equal(artefact.tensors("model.safetensors")["weights"], weights)
    assert artefact.json("metrics.json") == artefact.manifest.config
    assert artefact.bytes("note.txt") == note


# Kill -9 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [4, pytest.param(24, marks=pytest.mark.slow)])
def test_killed_at_random_moments(nursery: Nursery, tmp_path: Path, attempts: int) -> None:
    delays, left = random.Random(20), 0
    for attempt in range(attempts):
        store = Store(tmp_path / str(attempt))
        pid = nursery.start(churn, str(store.root))
        nursery.hear("ready", pid)
        time.sleep(delays.uniform(0.0, 0.06))
        os.kill(pid, signal.SIGKILL)
        assert nursery.exit_status(pid) == -signal.SIGKILL

        listed, leftovers = store.list(), drafts(store)
        left += len(leftovers)
        assert all(each.state == "ok" for each in store.verify())
        # The child wrote 0, 1, 2, ...: what it finished is there, without a gap, and nothing else.
        assert {each.key for each in listed} == {artefact_key("checkpoint", {"i": i}) for i in range(len(listed))}
        assert store.find("checkpoint", {"i": len(listed)}) is None
        again = write_one(store, {"i": len(listed)})
        check_content(again)

        report = store.gc()
        assert [each.path for each in report.removed] == [str(path) for path in leftovers]
        assert (report.live, drafts(store)) == (0, [])
        assert len(store.verify()) == len(listed) + 1
    assert left >= 5 or attempts < 24, "hardly any kill met a write"


# Of a series, every 9th kill; all of them are slow.
KILLS = pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])


@KILLS
@pytest.mark.parametrize("before", ["nothing", "damaged"])
def test_killed_before_every_file_operation_of_a_write(
    nursery: Nursery, tmp_path: Path, before: str, every: int
) -> None:
    outcomes, template = set(), Store(tmp_path / "template")
    other = write_one(template, {"i": 2})
    if before == "damaged":
        (write_one(template, {"i": 0}).folder / "note.txt").write_bytes(b"!")
    for event in range(1, 200, every):
        store = Store(shutil.copytree(template.root, tmp_path / str(event)))
        pid = nursery.start(die_at, event, "write", str(store.root))
        status = nursery.exit_status(pid)
        states = {each.key: each.state for each in store.verify()}
        assert states.pop(other.key) == "ok"
        outcomes.add("".join(states.values()) or "absent")
        assert len(drafts(store)) <= 1
        check_content(write_one(store, {"i": 0}))
        assert store.gc().live == 0
        assert drafts(store) == []
        assert [each.state for each in store.verify()] == ["ok", "ok"]
        if status == 0:
            assert nursery.hear("result", pid) < event
            break
        assert status == -signal.SIGKILL
    assert event > 20
    possible = {"absent", "ok"} | ({"damaged"} if before == "damaged" else set())
    assert outcomes == possible if every == 1 else outcomes <= possible


@KILLS
def test_killed_before_every_file_operation_of_a_gc(nursery: Nursery, tmp_path: Path, every: int) -> None:
    template = Store(tmp_path / "template")
    whole, bad = write_one(template, {"i": 0}), write_one(template, {"i": 2})
    (bad.folder / "note.txt").write_bytes(b"!")
    (template.root / "checkpoint" / ".draft-0" / "artefact").mkdir(parents=True)
    (template.root / "checkpoint" / ".draft-0" / "artefact" / "model.safetensors").write_bytes(bytes(100))
    for event in range(1, 200, every):
        store = Store(shutil.copytree(template.root, tmp_path / str(event)))
        pid = nursery.start(die_at, event, "gc", str(store.root))
        status = nursery.exit_status(pid)
        # The damaged artefact is there as it was, or gone; never half removed.
        if folder_of(store, 2).exists():
            assert sorted(os.listdir(folder_of(store, 2))) == sorted([*bad.manifest.files, MANIFEST])
        store.gc(damaged=True)
        assert [(each.key, each.state) for each in store.verify()] == [(whole.key, "ok")]
        assert drafts(store) == []
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert event > 20


def test_the_draft_of_a_living_process_stays_and_that_of_a_killed_one_goes(nursery: Nursery, tmp_path: Path) -> None:
    store, gate = Store(tmp_path / "store"), str(tmp_path / "gate")
    with gate_at(tmp_path / "gate") as let_pass:
        living, doomed = (nursery.start(write_when_told, str(store.root), gate, text) for text in ("living", "doomed"))
        for pid in (living, doomed):
            nursery.hear("ready", pid)
        assert (store.gc().live, store.list()) == (2, ())
        os.kill(doomed, signal.SIGKILL)
        assert nursery.exit_status(doomed) == -signal.SIGKILL
        dry, report = store.gc(dry_run=True), store.gc()
        assert (dry.live, len(dry.removed), dry.freed) == (report.live, len(report.removed), report.freed) == (1, 1, 6)
        let_pass(1)
        assert nursery.result(living)[1] == "living"
    assert store.open("map", store.list()[0].key).bytes("data.bin") == b"living"
    assert store.gc().removed == ()


# Many writers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["nothing", "damaged"])
@pytest.mark.parametrize("writers", [2, 4])
def test_writers_of_one_key_all_succeed_with_one_artefact(
    nursery: Nursery, tmp_path: Path, writers: int, before: str
) -> None:
    store, gate = Store(tmp_path / "store"), tmp_path / "gate"
    if before == "damaged":
        with store.write("map", {"shared": True}) as draft:
            draft.bytes("data.bin", b"damaged")
        (draft.artefact.folder / "data.bin").write_bytes(b"DAMAGED")
    with gate_at(gate) as let_pass:
        pids = [nursery.start(write_when_told, str(store.root), str(gate), f"writer {i}") for i in range(writers)]
        for pid in pids:
            nursery.hear("ready", pid)
        let_pass(writers)  # all are inside their with block: now they commit at once
        results = [nursery.result(pid) for pid in pids]
    assert len({tuple(result) for result in results}) == 1, "all must see the same winner"
    assert results[0][1].startswith("writer ")
    assert [(each.key, each.state) for each in store.verify()] == [(results[0][0], "ok")]
    assert store.open("map", results[0][0]).bytes("data.bin").decode() == results[0][1]
    assert drafts(store) == []


def test_gc_disturbs_no_writer(nursery: Nursery, tmp_path: Path) -> None:
    store, gate = Store(tmp_path / "store"), tmp_path / "gate"
    write_one(store, {"i": 1})
    collector = nursery.start(collect_until_told, str(store.root), str(gate))
    nursery.hear("ready", collector)
    writers = [nursery.start(write_many, str(store.root), start, 30) for start in (0, 15)]
    assert [nursery.result(pid) for pid in writers] == [30, 30]
    gate.touch()
    assert nursery.result(collector) > 1
    assert [each.state for each in store.verify()] == ["ok"] * 46
    assert drafts(store) == []


# Damage ---------------------------------------------------------------------------------------------------------------

FILES = ("model.safetensors", "metrics.json", "note.txt", MANIFEST)


def read_all(store: Store, config: dict[str, int]) -> None:
    check_content(store.open("checkpoint", artefact_key("checkpoint", config)))


def assert_damaged(store: Store, path: Path) -> str:
    """Reading names the file; verify reports exactly this artefact; the other one is untouched.  Gives the message."""
    with pytest.raises(DamagedError, match=r": expected .*, found ") as caught:
        read_all(store, {"i": 0})
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert caught.value.exit_code == 3
    states = {each.key: (each.state, each.reason) for each in store.verify()}
    assert states == {
        artefact_key("checkpoint", {"i": 0}): ("damaged", message),
        artefact_key("checkpoint", {"i": 2}): ("ok", ""),
    }
    return message


@pytest.fixture
def pair(tmp_path: Path) -> Store:
    """A store with two small artefacts."""
    store = Store(tmp_path / "store")
    for i in (0, 2):
        write_one(store, {"i": i})
        read_all(store, {"i": i})
    return store


def folder_of(store: Store, i: int = 0) -> Path:
    return store.root / "checkpoint" / artefact_key("checkpoint", {"i": i})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", ["none", "half", "all but one byte", "one byte more"])
def test_truncated(pair: Store, name: str, keep: str) -> None:
    path = folder_of(pair) / name
    size = path.stat().st_size
    kept = {"none": 0, "half": size // 2, "all but one byte": size - 1, "one byte more": size + 1}[keep]
    os.truncate(path, kept)
    message = assert_damaged(pair, path)
    if name != MANIFEST:
        assert message == f"{path}: expected {size} bytes, found {kept}"
    check_content(write_one(pair, {"i": 0}))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("instead", ["nothing", "a folder", "a fifo", "a dangling link"])
def test_missing(pair: Store, name: str, instead: str) -> None:
    path = folder_of(pair) / name
    path.unlink()
    {"a folder": path.mkdir, "a fifo": lambda: os.mkfifo(path), "a dangling link": lambda: path.symlink_to("no")}.get(
        instead, lambda: None
    )()
    assert_damaged(pair, path)
    check_content(write_one(pair, {"i": 0}))


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_noticed(pair: Store, name: str) -> None:
    path = folder_of(pair) / name
    data = path.read_bytes()
    places = list(range(8 * len(data)))
    for place in places if len(places) < 300 else random.Random(name).sample(places, 300):
        harmed = bytearray(data)
        harmed[place // 8] ^= 1 << place % 8
        path.write_bytes(harmed)
        with pytest.raises(DamagedError, match=r": expected .*, found ") as caught:
            read_all(pair, {"i": 0})
        assert str(caught.value).startswith(f"{path}: ")
    path.write_bytes(data)
    read_all(pair, {"i": 0})


def edit_manifest(store: Store, seal: bool = True, **changes: object) -> Path:
    """Change fields of the manifest; sealed with a digest that fits, so that only the meaning is wrong."""
    path = folder_of(store) / MANIFEST
    body = json.loads(path.read_bytes())
    digest = body.pop("digest")
    body = {name: value for name, value in {**body, **changes}.items() if value is not None}
    text = manifest_text(body)
    path.write_bytes(text if seal else text.replace(json.loads(text)["digest"].encode(), digest.encode()))
    return path


@pytest.mark.parametrize("seal", [True, False])
def test_wrong_hash_in_the_manifest(pair: Store, seal: bool) -> None:
    files = json.loads((folder_of(pair) / MANIFEST).read_bytes())["files"]
    right = files["note.txt"]["sha256"]
    files["note.txt"]["sha256"] = "0" * 64
    manifest = edit_manifest(pair, seal, files=files)
    if seal:
        message = assert_damaged(pair, folder_of(pair) / "note.txt")
        assert message.endswith(f"expected SHA-256 {'0' * 64}, found {right}")
    else:
        assert_damaged(pair, manifest)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "map"},
        {"kind": "../checkpoint"},
        {"key": "0" * 64},
        {"config": {"i": 1}},
        {"config": [1]},
        {"inputs": {"backbone": "1" * 64}},
        {"inputs": {"backbone": "1"}},
        {"inputs": None},
        {"files": None},
        {"files": ["note.txt"]},
        {"files": {"note.txt": "abc"}},
        {"files": {"note.txt": {"size": 1}}},
        {"files": {"../note.txt": {"size": 1, "sha256": "0" * 64}}},
        {"files": {"/etc/hostname": {"size": 1, "sha256": "0" * 64}}},
        {"schema": 0},
        {"schema": "1"},
        {"schema": None},
        {"surprise": 1},
    ],
)
def test_a_manifest_that_does_not_belong(pair: Store, changes: dict[str, object]) -> None:
    assert_damaged(pair, edit_manifest(pair, **changes))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "[" * 200_000, '{"digest": 1, "schema": NaN}', "\x80PK\x03\x04"]
)
def test_a_manifest_that_is_none(pair: Store, text: str) -> None:
    path = folder_of(pair) / MANIFEST
    path.write_text(text, encoding="latin-1")
    assert_damaged(pair, path)


def test_a_manifest_of_another_artefact(pair: Store) -> None:
    path = folder_of(pair) / MANIFEST
    path.write_bytes((folder_of(pair, 2) / MANIFEST).read_bytes())
    assert_damaged(pair, path)


def test_a_newer_schema_is_neither_read_nor_removed(pair: Store) -> None:
    path = edit_manifest(pair, schema=7, something="new")
    for ask in (lambda: pair.find("checkpoint", {"i": 0}), lambda: read_all(pair, {"i": 0})):
        with pytest.raises(NewerError) as caught:
            ask()
        assert caught.value.exit_code == 3
        assert str(caught.value) == f"{path} was written by a newer schema 7; this version reads up to 1"
    assert sorted(each.state for each in pair.verify()) == ["ok", "unreadable"]
    assert pair.gc(damaged=True).removed == ()
    assert path.exists()


# A file system that refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("i", "limit", "stopped_at"),
    [(1, 0, "model.safetensors"), (1, 1 << 20, "model.safetensors"), (2, 80, "model.safetensors"), (2, 500, MANIFEST)],
)
def test_file_size_limit(nursery: Nursery, tmp_path: Path, i: int, limit: int, stopped_at: str) -> None:
    store = Store(tmp_path / "store")
    kept = write_one(store, {"i": 0})
    result = nursery.result(nursery.start(write_with_limit, str(store.root), limit, i))
    name, code, message = result["outcome"]
    assert (name, code) == ("StoreError", 1)
    assert message.startswith(f"cannot write {store.root}")
    assert message.endswith(f"/{stopped_at}: File too large")
    assert result["during"] == [["ok"], [".lock", kept.key]]
    assert result["after"] == ["ok", "ok"]


def test_no_space_left(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with store.write("map", {}) as draft:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", full)  # where a file system that allocates late says so
            with pytest.raises(StoreError, match=r"cannot write .*/data\.bin: No space left on device"):
                draft.bytes("data.bin", b"x")
        assert not os.listdir(draft.folder)
        draft.bytes("data.bin", b"x")  # the same call, when space is back
    assert draft.artefact.bytes("data.bin") == b"x"


def test_no_permission(nursery: Nursery, public_folder: Path) -> None:
    store = Store(public_folder / "store")
    readable, secret = write_one(store, {"i": 0}), write_one(store, {"i": 2})
    (store.root / "checkpoint" / ".draft-0").mkdir()
    for path in [store.root, *store.root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    (secret.folder / "note.txt").chmod(0)
    try:
        result = nursery.result(nursery.start(without_rights, str(store.root)))
    finally:
        for path in [store.root, *store.root.rglob("*")]:
            path.chmod(0o755)
    kind = store.root / "checkpoint"
    assert result["write"] == ["StoreError", 1, f"cannot write to {kind}: Permission denied"]
    assert result["new kind"] == ["StoreError", 1, f"cannot write to {store.root / 'map'}: Permission denied"]
    assert result["gc"] == ["StoreError", 1, f"cannot clean {kind}: Permission denied"]
    assert result["read"] == ["done", 0, ""]
    assert result["secret"] == ["StoreError", 1, f"cannot read {secret.folder / 'note.txt'}: Permission denied"]
    expected = [[readable.key, "ok", ""], [secret.key, "unreadable", result["secret"][2]]]
    assert result["verify"] == sorted(expected)


@pytest.mark.parametrize("root", ["file", "file/below", "/proc/loopscope", "/dev/null"])
def test_a_root_that_cannot_be_a_folder(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / root)
    with pytest.raises(StoreError, match=r"^cannot write to .*: (Not a directory|File exists|No such file)"):
        write_one(store, {"i": 0})
    assert (tmp_path / "file").read_text() == "in the way"


# Odd paths ------------------------------------------------------------------------------------------------------------

ODD = [
    "with space",
    "été 表 🌀",
    "-rf *",
    "[a]?{b}",
    "x" * 255,
    "/".join("deep" * 50 for _ in range(15)),
    "a'b\"c",
    "%s{0}",
]


@pytest.mark.parametrize("name", ODD)
def test_odd_paths(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name)
    check_content(write_one(store, {"i": 0}))
    (store.root / "checkpoint" / ".draft-0").mkdir()
    check_content(store.open("checkpoint", store.list()[0].key[:6]))
    assert [each.state for each in store.verify()] == ["ok"]
    assert len(store.gc().removed) == 1
    (folder_of(store) / "note.txt").write_bytes(b"!")
    assert len(store.gc(damaged=True).removed) == 1
    assert store.list() == ()


def test_a_symlinked_and_a_relative_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    relative, linked = Store("link"), Store(tmp_path / "link")
    artefact = write_one(relative, {"i": 0})
    monkeypatch.chdir("/")
    check_content(artefact)
    check_content(relative.find("checkpoint", {"i": 0}))
    check_content(linked.find("checkpoint", {"i": 0}))
    check_content(Store(tmp_path / "real").find("checkpoint", {"i": 0}))
    assert [asdict(each)["state"] for each in linked.verify()] == ["ok"]


if __name__ == "__main__":
    serve(globals())
