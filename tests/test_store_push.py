"""What is pushed to another place is a store there: whole artefacts or none, and the same push goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from loopscope.errors import DamagedError, InputError
from loopscope.store.files import StoreError
from loopscope.store.pushing import Pushed, push
from loopscope.store.store import Store
from tests.commands import loopscope

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two finished artefacts, and the checkpoint of something unfinished."""
    made = Store(tmp_path / "store")
    for kind, number in (("backbone", 1), ("map", 2), ("checkpoint", 3)):
        with made.write(kind, {"number": number}) as draft:
            draft.json("a.json", number)
            draft.bytes("b.bin", bytes(number))
    return made


@pytest.fixture
def bucket() -> Iterator[Any]:
    """An object store without folders, in memory."""
    place = fsspec.filesystem("memory")
    yield place
    place.store.clear()


def test_a_folder_with_what_was_pushed_is_a_store(store: Store, tmp_path: Path, capsys: Printed) -> None:
    asked = ("store", "push", f"file://{tmp_path / 'there'}", "--store", str(store.root), "--json")
    code, out, error = loopscope(capsys, *asked)
    assert (code, error) == (0, "")
    assert json.loads(out) == {"url": asked[2], "copied": 2, "there": 0, "size": 7}
    there = Store(tmp_path / "there")
    assert [(each.kind, each.state) for each in there.verify()] == [("backbone", "ok"), ("map", "ok")]
    assert {each.key for each in there.list()} == {each.key for each in store.list() if each.kind != "checkpoint"}
    _, out, _ = loopscope(capsys, *asked[:-1])
    assert "0 artefacts copied, 0 bytes; 2 were there" in out


def test_an_interrupted_push_shows_nothing_half_and_goes_on(
    store: Store, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumbling(path: str, data: bytes, **how: Any) -> None:
        if path.endswith("b.bin"):
            raise ConnectionError("the line is cut")
        whole(path, data, **how)

    whole = bucket.pipe_file
    monkeypatch.setattr(type(bucket), "pipe_file", lambda self, *given, **how: stumbling(*given, **how))
    with pytest.raises(StoreError, match=r"cannot write to /b/backbone/.*/b\.bin: ConnectionError: the line is cut"):
        push(store, "memory://b", ("checkpoint",))
    assert [path.rpartition("/")[2] for path in bucket.find("/b")] == ["a.json"]
    monkeypatch.undo()
    assert push(store, "memory://b", ("checkpoint",)) == Pushed(2, 0, 7)
    assert sorted(path.rpartition("/")[2] for path in bucket.find("/b")) == 2 * ["a.json"] + 2 * ["b.bin"] + 2 * [
        "manifest.json"
    ]


def test_what_is_not_whole_is_not_pushed(store: Store, bucket: Any) -> None:
    (artefact,) = store.every("backbone")
    (artefact.folder / "b.bin").write_bytes(b"?")
    with pytest.raises(DamagedError, match=r"b\.bin: expected SHA-256"):
        push(store, "memory://b")
    assert not bucket.find("/b/map")
    assert not [path for path in bucket.find("/b") if path.endswith("manifest.json")]


def test_a_place_that_nobody_knows_is_refused(store: Store) -> None:
    with pytest.raises(InputError, match=r"nothing can be written to 'nowhere://b': Protocol not known: nowhere"):
        push(store, "nowhere://b")
