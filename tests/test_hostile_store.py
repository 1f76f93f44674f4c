"""A store that somebody else made: links, names, sizes, types, strays, pipes; one line, nothing outside touched."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.errors import DamagedError, InputError, LoopscopeError, NewerError
from loopscope.store.artefacts import name_of
from loopscope.store.compression import EXPANDED, compress, expand
from loopscope.store.contents import Artefact
from loopscope.store.files import StoreError, append, locked, new_file, new_folder, read, sha256_of, write_synced
from loopscope.store.manifest import HEADER_LIMIT, JSON_LIMIT, MANIFEST, MANIFEST_LIMIT, manifest_text, parse_tensors
from loopscope.store.store import Store
from loopscope.training import checkpoints
from loopscope.training.cohort import jobs
from loopscope.training.job import refuse_unreadable
from tests.commands import loopscope
from tests.stopping import StoppedError, settings_of, stop_after
from tests.stores import put
from tests.toys import toy_walk

Refused = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that is none of the store's business, with a file in it."""
    folder = tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    (folder / "precious").write_bytes(b"precious")
    return folder


def untouched(outside: Path) -> bool:
    return sorted(os.listdir(outside)) == ["inner", "precious"] and (outside / "precious").read_bytes() == b"precious"


# Links ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["write", "gc", "gc damaged", "remove", "find", "list", "verify", "every", "train"])
def test_a_kind_that_is_a_link_is_refused(store: Store, outside: Path, refused: Refused, act: str) -> None:
    kept = put(store, {"i": 0})
    (store.root / "map").rename(outside.parent / "moved")
    (outside.parent / "moved" / ".draft-0").mkdir()
    for kind in ("map", "checkpoint"):
        (store.root / kind).symlink_to("../moved")
    acts: dict[str, Callable[[], object]] = {
        "write": lambda: put(store, {"i": 1}), "gc": store.gc, "gc damaged": lambda: store.gc(damaged=True),
        "remove": lambda: store.remove("map", kept.key), "find": lambda: store.find("map", {"i": 0}),
        "list": store.list, "verify": store.verify, "every": lambda: store.every("map"),
        "train": lambda: jobs.train(toy_walk(updates=2), [0], store, settings_of()),
    }  # fmt: skip
    link = store.root / ("map" if act == "write" else "checkpoint")
    before = sorted(os.listdir(outside.parent / "moved"))
    assert refused(DamagedError, acts[act]) == (
        f"{link}: expected a folder of artefacts, found a link to '../moved', which is not followed"
    )
    assert sorted(os.listdir(outside.parent / "moved")) == before


@pytest.mark.parametrize("name", [".lock", ".draft-0", ".draft-0/writer.lock"])
def test_gc_follows_no_link(store: Store, outside: Path, refused: Refused, name: str) -> None:
    put(store, {})
    link = store.root / "map" / name
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside if name == ".draft-0" else outside / "made")
    assert refused(DamagedError, store.gc).startswith(f"{link}: expected a ")
    assert untouched(outside)
    if name == ".lock":
        assert str(link) in refused(DamagedError, put, store, {"i": 2})
        assert untouched(outside)


def test_gc_removes_a_draft_and_not_what_its_links_lead_to(store: Store, outside: Path) -> None:
    put(store, {})
    draft = store.root / "map" / ".draft-0"
    (draft / "artefact").mkdir(parents=True)
    (draft / "artefact" / "folder").symlink_to(outside)
    (draft / "damaged").symlink_to(outside)
    (store.root / "map" / ".draft-file").touch()  # no writer leaves a file
    assert [each.path for each in store.gc().removed] == [str(draft)]
    assert untouched(outside)


def test_an_artefact_that_is_a_link_is_damage_and_is_replaced(store: Store, tmp_path: Path) -> None:
    artefact = put(store, {})
    artefact.folder.rename(tmp_path / "elsewhere")
    artefact.folder.symlink_to(tmp_path / "elsewhere")
    (status,) = store.verify()
    assert status.state == "damaged"
    assert status.reason.startswith(f"{artefact.folder}: expected a folder, found a link to ")
    with pytest.raises(DamagedError, match="found a link to"):
        store.find("map", {})
    assert put(store, {}).bytes("data.bin") == b"content"
    assert not artefact.folder.is_symlink()
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["data.bin", MANIFEST]
    shutil.rmtree(artefact.folder)
    artefact.folder.symlink_to(tmp_path / "elsewhere")
    assert len(store.gc(damaged=True).removed) == 1
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["data.bin", MANIFEST]


@pytest.mark.parametrize("name", ["data.bin", MANIFEST])
def test_a_file_that_is_a_link_is_damage_though_its_content_fits(store: Store, tmp_path: Path, name: str) -> None:
    artefact = put(store, {})
    shutil.move(artefact.folder / name, tmp_path / name)
    (artefact.folder / name).symlink_to(tmp_path / name)
    (status,) = store.verify()
    assert (status.state, status.reason) == (
        "damaged",
        f"{artefact.folder / name}: expected a file, found a link to {str(tmp_path / name)!r}, which is not followed",
    )


def test_the_root_may_be_a_link(store: Store, tmp_path: Path) -> None:
    put(store, {})
    (tmp_path / "link").symlink_to(store.root)
    linked = Store(tmp_path / "link")
    put(linked, {"i": 1})
    assert [each.state for each in linked.verify()] == ["ok", "ok"]


@pytest.mark.parametrize("what", ["file", "folder", "dangling", "job lock"])
def test_metrics_and_locks_of_jobs_are_never_written_through_a_link(
    store: Store, outside: Path, refused: Refused, what: str
) -> None:
    recipe, metrics = toy_walk(updates=2), store.root / "metrics"
    store.root.mkdir()
    link = metrics / "toy-0.jsonl"
    if what == "folder":
        link = metrics
    elif what == "job lock":
        with pytest.raises(StoppedError):
            jobs.train(recipe, [0], store, settings_of(save_every=0.0, watch=stop_after(1)))
        (link,) = (store.root / "checkpoint").glob(".job-*.lock")
        link.unlink()
    else:
        metrics.mkdir()
    link.symlink_to(outside if what == "folder" else outside / ("precious" if what == "file" else "made"))
    said = refused(DamagedError, jobs.train, recipe, [0], store, settings_of(metrics=metrics))
    assert said.startswith(f"{link}: expected ")
    assert "a link to" in said
    assert untouched(outside)


def test_metrics_let_go_of_an_old_file_rather_than_empty_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "kept").write_text("an earlier run\n")
    os.link(tmp_path / "kept", tmp_path / "metrics" / "toy-0.jsonl")
    jobs.train(toy_walk(updates=2), [0], store, settings_of(metrics=tmp_path / "metrics"))
    assert (tmp_path / "kept").read_text() == "an earlier run\n"
    assert "an earlier run" not in (tmp_path / "metrics" / "toy-0.jsonl").read_text()


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../outside/made", "a/b", "/etc/made", "x\ny", "\x1b[2J", "n" * 300])
def test_a_recipe_whose_name_is_no_file_name_is_refused(
    store: Store, outside: Path, refused: Refused, name: str
) -> None:
    from dataclasses import replace

    recipe = replace(toy_walk(updates=2), name=name)
    said = refused(InputError, jobs.train, recipe, [0], store, settings_of(metrics=store.root / "metrics"))
    assert said.startswith("file name ")
    assert said.isprintable()
    assert untouched(outside)
    assert not store.root.exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "x\ny", "\x1b[2J"])
def test_an_artefact_whose_name_is_no_file_name_goes_by_its_key(store: Store, name: str) -> None:
    artefact = put(store, {"recipe": {"name": name}, "seed": 3}, kind="backbone")
    assert name_of(artefact) == artefact.key[:8]


# Sizes ----------------------------------------------------------------------------------------------------------------


def bomb(size: int) -> bytes:
    """An xz file that expands to `size` zeros."""
    made = lzma.LZMACompressor(preset=0)
    piece = bytes(1 << 24)
    return b"".join(made.compress(piece) for _ in range(size // len(piece))) + made.flush()


@pytest.mark.parametrize("most", [1 << 24, pytest.param(EXPANDED, marks=pytest.mark.slow)])
def test_a_small_file_that_expands_far_is_damage(
    most: int, store: Store, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopscope.store.compression.EXPANDED", most)
    data = bomb(most + (1 << 24))
    assert len(data) < 100_000
    with store.write("record", {}) as draft:
        draft.bytes("x.safetensors.xz", data)
    limit = f"expected an xz file of at most {most:,} bytes, found more, from {len(data):,}"
    said = refused(DamagedError, draft.artefact.tensors, "x.safetensors")
    assert said == f"{draft.artefact.folder / 'x.safetensors.xz'}: {limit}"


def test_an_xz_file_is_one_whole_stream_of_bounded_memory(tmp_path: Path, refused: Refused) -> None:
    whole = compress(b"content" * 1000, "x")
    assert expand(whole, tmp_path) == b"content" * 1000
    assert "the beginning of one" in refused(DamagedError, expand, whole[:-5], tmp_path)
    assert "4 bytes behind it" in refused(DamagedError, expand, whole + b"more", tmp_path)
    assert "found" in refused(DamagedError, expand, b"", tmp_path)
    assert "an xz file" in refused(DamagedError, expand, lzma.compress(b"x", format=lzma.FORMAT_ALONE), tmp_path)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    assert "emory" in refused(DamagedError, expand, lzma.compress(b"x", filters=filters), tmp_path)


def test_what_would_not_be_read_again_is_not_written(store: Store, refused: Refused, monkeypatch) -> None:
    from loopscope.store import compression, contents, manifest

    monkeypatch.setattr(compression, "EXPANDED", 1000)
    monkeypatch.setattr(contents, "JSON_LIMIT", 5000)
    monkeypatch.setattr(contents, "HEADER_LIMIT", 1000)
    monkeypatch.setattr(manifest, "MANIFEST_LIMIT", 3000)
    many = {f"{i}": torch.zeros(1) for i in range(100)}
    with store.write("record", {}) as draft:
        assert "is not expanded again" in refused(InputError, draft.json, "a.json.xz", [0] * 2400)
        assert "bytes of JSON" in refused(InputError, draft.json, "b.json", [0] * 6000)
        assert "too many for one file" in refused(InputError, draft.tensors, "c.safetensors", many)
        draft.json("d.json", [0] * 2400)
    assert draft.artefact.json("d.json") == [0] * 2400
    assert "a manifest of " in refused(InputError, put, store, {"long": "x" * 4000})
    assert len(store.verify()) == 1


def test_absurd_sizes_are_refused_before_they_are_parsed(store: Store, refused: Refused) -> None:
    artefact = put(store, {})
    os.truncate(artefact.folder / MANIFEST, MANIFEST_LIMIT + 1)  # a hole, no disk
    said = refused(DamagedError, store.find, "map", {})
    assert (
        said == f"{artefact.folder / MANIFEST}: expected at most {MANIFEST_LIMIT:,} bytes, found {MANIFEST_LIMIT + 1:,}"
    )
    length = HEADER_LIMIT + 8
    header = struct.pack("<Q", length) + b"{}" + b" " * (length - 2)
    assert "a header of 16,777,224 bytes" in refused(DamagedError, parse_tensors, header, "x")
    with store.write("map", {"i": 1}) as draft:
        draft.bytes("x.json.xz", lzma.compress(b"[" + b" " * JSON_LIMIT + b"]", preset=0))
    assert "expected JSON, found 67,108,866 bytes" in refused(DamagedError, draft.artefact.json, "x.json")


# Types ----------------------------------------------------------------------------------------------------------------


def reseal(artefact: Artefact, **changes: Any) -> Path:
    path = artefact.folder / MANIFEST
    body = json.loads(path.read_bytes())
    del body["digest"]
    path.write_bytes(manifest_text({**body, **changes}))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"data.bin": {"sha256": "0" * 63, "size": 7}}},
        {"files": {"data.bin": {"sha256": "G" * 64, "size": 7}}},
        {"files": {"data.bin": {"sha256": None, "size": 7}}},
        {"files": {"data.bin": {"sha256": "0" * 64, "size": -1}}},
        {"files": {"data.bin": {"sha256": "0" * 64, "size": 7.0}}},
        {"files": {"data.bin": {"sha256": "0" * 64, "size": "7"}}},
        {"files": {"data.bin": {"sha256": "0" * 64, "size": True}}},
        {"files": {"data.bin": {"sha256": "0" * 64, "size": 7, "more": 1}}},
        {"device": 7},
        {"created": None},
        {"versions": ["torch"]},
        {"versions": {"torch": 2}},
        {"schema": True},
        {"schema": 1.5},
        {"schema": -1},
    ],
)
def test_fields_of_a_manifest_are_what_they_should_be(store: Store, changes: dict[str, Any]) -> None:
    path = reseal(put(store, {}), **changes)
    (status,) = store.verify()
    assert status.state == "damaged"
    assert status.reason.startswith(f"{path}: expected ")


def test_a_newer_schema_is_exit_code_3_everywhere(store: Store, capsys: pytest.CaptureFixture[str], refused) -> None:
    put(store, {"i": 1})
    path = reseal(put(store, {}), schema=2)
    says = f"{path} was written by a newer schema 2; this version reads up to 1"
    for command in ("list", "verify"):
        code, out, err = loopscope(capsys, "store", command, "--store", str(store.root), "--json")
        assert (code, err) == (3, "loopscope: 1 of 2 artefacts cannot be read\n")
        assert says in [row["reason"] for row in json.loads(out)["artefacts"]]
    asks: list[Callable[[], object]] = [
        lambda: store.every("map"), lambda: store.find("map", {}), lambda: put(store, {}),
        lambda: refuse_unreadable(store),
    ]  # fmt: skip
    for ask in asks:
        assert refused(NewerError, ask) == says
    assert store.gc(damaged=True).removed == ()


# Strays ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_verify_reports_what_the_manifest_does_not_list(store: Store, outside: Path, what: str) -> None:
    artefact = put(store, {})
    added = artefact.folder / "added"
    added.mkdir() if what == "folder" else added.touch() if what == "file" else added.symlink_to(outside)
    (status,) = store.verify()
    assert (status.state, status.reason) == (
        "damaged",
        f"{artefact.folder}: expected only what its manifest lists, found also 'added'",
    )
    # What was promised is there, so it can be used; and writing it again loses nobody's file.
    assert store.find("map", {}) == put(store, {}) == artefact
    assert os.path.lexists(added)
    assert len(store.gc(damaged=True, dry_run=True).removed) == len(store.gc(damaged=True).removed) == 1
    assert store.list() == ()
    assert untouched(outside)


# Pipes, sockets, devices ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["pipe", "socket", "device"])
def odd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A name at which no regular file is."""
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path = Path("odd")
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        try:
            os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))  # /dev/zero never ends
        except OSError:
            pytest.skip("making a device needs root")
    return path


def test_nothing_waits_for_what_is_no_file(odd: Path, refused: Refused) -> None:
    for ask in (read, sha256_of):
        assert refused(DamagedError, ask, odd) == "odd: expected a file, found something else"
    for write in (write_synced, append):
        said = refused(StoreError, write, odd, b"x")
        assert said.startswith("cannot write odd: ")
    assert refused(DamagedError, new_file, odd) == "odd: expected a file, found something else"

    def hold() -> None:
        with locked(odd):
            pass

    with pytest.raises((DamagedError, OSError)):
        hold()
    assert odd.exists()


# Checkpoints ----------------------------------------------------------------------------------------------------------


def begun(store: Store) -> tuple[Any, Artefact]:
    """A job stopped after its first window, and its only checkpoint."""
    recipe = toy_walk(updates=4, check_every=2)
    with pytest.raises(StoppedError):
        jobs.train(recipe, [0], store, settings_of(save_every=0.0, watch=stop_after(1)))
    (made,) = store.every("checkpoint")
    return recipe, made


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"job": None, "stage": 0, "update": 0},
        {"job": {}, "stage": "0", "update": 0},
        {"job": {}, "stage": 0, "update": -1},
        {"stage": 0, "update": 0},
    ],
)
def test_a_checkpoint_that_is_none_is_told_and_passed_over(store: Store, config: dict[str, Any]) -> None:
    bad = put(store, config, kind="checkpoint")
    told: list[str] = []
    jobs.train(toy_walk(updates=2), [0], store, settings_of(log=told.append))
    assert len(told) == 1
    assert told[0].startswith(f"a checkpoint is passed over: {bad.folder / MANIFEST}: expected job, stage and update, ")
    assert "\n" not in told[0]


@pytest.mark.parametrize("members", [None, 3, [], ["0"], [None], [[0]], [0.5], [True], {"0": 0}])
def test_a_job_whose_members_are_none_is_nobodys(store: Store, members: Any) -> None:
    recipe, made = begun(store)
    config = {**made.manifest.config, "job": {**made.manifest.config["job"], "members": members}}
    store.remove("checkpoint", made.key)
    put(store, config, kind="checkpoint")
    assert [each.seed for each in jobs.train(recipe, [0], store, settings_of())] == [0]


def forged(store: Store, made: Artefact, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Artefact:
    """The checkpoint again with other content, sealed as if it had been written so."""
    state, progress = made.tensors(checkpoints.STATE), made.json(checkpoints.PROGRESS)
    change(state, progress)
    store.remove("checkpoint", made.key)
    with store.write("checkpoint", made.manifest.config) as draft:
        draft.tensors(checkpoints.STATE, state)
        draft.json(checkpoints.PROGRESS, progress)
    return draft.artefact


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state, _: state.pop("m"), "expected a tensor 'm', found none"),
        (lambda state, _: state.update(m=state["m"][:, :1]), "expected 'm' of torch.Size"),
        (lambda state, _: state.update(m=state["m"].double()), "expected 'm' of torch.float32, found torch.float64"),
        (lambda _, progress: progress.update(update=3), "expected the progress at update 2"),
        (lambda _, progress: progress.clear(), "expected the progress at update 2"),
    ],
)
def test_a_checkpoint_that_does_not_fit_leaves_the_trainer_as_it_was(
    store: Store, tmp_path: Path, change, says
) -> None:
    recipe, made = begun(store)
    forged(store, made, change)
    told: list[str] = []
    done = jobs.train(recipe, [0], store, settings_of(log=told.append))
    assert done == jobs.train(recipe, [0], Store(tmp_path / "whole"), settings_of())
    assert len(told) == 1
    assert says in told[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda progress: progress.update(stage=9),
        lambda progress: progress.update(stage="0"),
        lambda progress: progress.pop("history"),
        lambda progress: progress.update(history=[{"member": 7}]),
        lambda progress: progress.update(history=[7]),
        lambda progress: progress.update(selected=[]),
        lambda progress: progress.update(selected=[7]),
        lambda progress: progress.update(failures=[{"surprise": 1}]),
    ],
)
def test_progress_that_no_trainer_saved_is_one_line(store: Store, refused: Refused, change) -> None:
    recipe, made = begun(store)
    bad = forged(store, made, lambda _, progress: change(progress) and None)
    said = refused(DamagedError, jobs.train, recipe, [0], store, settings_of())
    assert said.startswith(f"{bad.folder}: expected a checkpoint of this job, found ")


# Drafts beside a folder -----------------------------------------------------------------------------------------------


def test_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "out") as draft:
        write_synced(draft / "x", b"x")
        assert os.listdir(tmp_path / "deep") == [draft.parent.name]
    assert os.listdir(tmp_path / "deep") == ["out"]
    assert os.listdir(tmp_path / "deep" / "out") == ["x"]
    with pytest.raises(LoopscopeError), new_folder(tmp_path / "other") as draft:
        raise InputError("no")
    assert os.listdir(tmp_path) == ["deep"]


def test_what_is_not_left_by_a_dead_writer_stays(tmp_path: Path, outside: Path) -> None:
    names = [".draft-mine", ".draft-loopscope-0123456789abcdef", ".draft-loopscope-00000000000000aa"]
    (tmp_path / names[0]).mkdir()
    (tmp_path / names[1]).mkdir()
    (tmp_path / names[1] / "notes.txt").touch()  # no writer makes that
    (tmp_path / names[2]).symlink_to(outside)
    with new_folder(tmp_path / "first"), new_folder(tmp_path / "second"):
        pass
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "first", "second", "outside"])
    assert untouched(outside)
