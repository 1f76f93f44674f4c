"""The store: keys, round trips, deterministic bytes, refusals, removing, adopting, listing and cleaning."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

import loopscope
from loopscope.errors import DamagedError, InputError, LoopscopeError, NewerError
from loopscope.store.files import StoreError
from loopscope.store.manifest import MANIFEST, artefact_key, manifest_text, parse_tensors
from loopscope.store.store import Store
from tests.stores import put


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def everything_under(folder: Path) -> set[str]:
    """Relative paths of all files, without the lock of a kind, which stays."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


# Keys -----------------------------------------------------------------------------------------------------------------


def test_key_is_the_sha256_of_canonical_json() -> None:
    text = '{"config":{"name":"é","rank":8},"inputs":{"backbone":"' + "a" * 64 + '"},"kind":"map","schema":1}'
    key = artefact_key("map", {"rank": 8, "name": "é"}, {"backbone": "a" * 64})
    assert key == hashlib.sha256(text.encode()).hexdigest()


def test_key_ignores_order_and_tuples() -> None:
    assert artefact_key("map", {"a": (1, (2, 3)), "b": None}) == artefact_key("map", {"b": None, "a": [1, [2, 3]]})


def test_key_tells_everything_else_apart() -> None:
    one, two = "1" * 64, "2" * 64
    configs = [{}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"a": [1]}, {"a": None}, {"b": 1}, {"a": {"a": 1}}]
    keys = [artefact_key("map", config) for config in configs]
    keys += [artefact_key("backbone", {}), artefact_key("map", {}, {"backbone": one})]
    keys += [artefact_key("map", {}, {"backbone": two}), artefact_key("map", {}, {"donor": one})]
    assert len(set(keys)) == len(keys)


def test_an_input_is_an_artefact_or_its_key(store: Store) -> None:
    backbone = put(store, {"loops": 6}, kind="backbone")
    assert artefact_key("map", {}, {"backbone": backbone}) == artefact_key("map", {}, {"backbone": backbone.key})
    with store.write("map", {}, {"backbone": backbone}) as draft:
        pass
    assert draft.artefact.manifest.inputs == {"backbone": backbone.key}


def own_child() -> dict:
    config: dict = {}
    config["child"] = config
    return config


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"optim": {"lr": float("nan")}}, "config.optim.lr is nan"),
        ({"a": [0.0, float("inf")]}, r"config.a\[1\] is inf"),
        ({"a": {1: 2}}, "config.a has the key 1"),
        ({"a": {1, 2}}, "config.a is a set"),
        ({"a": torch.float32}, "config.a is a dtype"),
        ({"a": torch.tensor(1.0)}, "config.a is a Tensor"),
        ({"a": Path("x")}, "config.a is a PosixPath"),
        ({"a": b"x"}, "config.a is a bytes"),
        ({"a": 1j}, "config.a is a complex"),
        ({"a": "\ud800"}, "config cannot be written as JSON"),
        ({"a": 10**5000}, "config cannot be written as JSON"),
        (own_child(), "config cannot be written as JSON"),
        ([("a", 1)], "config is a list"),
    ],
)
def test_a_config_that_cannot_come_back_is_refused_before_anything_is_written(store: Store, config, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught, store.write("map", config):
        pass
    assert "\n" not in str(caught.value)
    assert not store.root.exists()


@pytest.mark.parametrize("kind", ["", "Map", "../map", ".map", "a/b", "a b", "x" * 65, "-map", None])
def test_bad_kinds_are_refused(store: Store, kind) -> None:
    with pytest.raises(InputError, match="kind"), store.write(kind, {}):
        pass
    with pytest.raises(InputError, match="kind"):
        store.find(kind, {})
    with pytest.raises(InputError, match="kind"):
        store.open(kind, "0" * 64) if kind is not None else artefact_key(kind, {})
    assert not store.root.exists()


@pytest.mark.parametrize("bad", ["abc", "A" * 64, "g" * 64, "", 7, None])
def test_bad_inputs_are_refused(store: Store, bad) -> None:
    with pytest.raises(InputError, match="input 'backbone'"), store.write("map", {}, {"backbone": bad}):
        pass
    assert not store.root.exists()


# Writing and reading --------------------------------------------------------------------------------------------------


def assorted_tensors() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    base = torch.randn(4, 6, generator=draw)
    return {
        "bf16": base.to(torch.bfloat16),
        "bool": base > 0,
        "double": base.double(),
        "empty": torch.zeros(0, 3),
        "expanded": torch.ones(1, 3).expand(5, 3),
        "ints": torch.arange(5),
        "nonfinite": torch.tensor([float("nan"), float("inf"), -0.0]),
        "parameter": torch.nn.Parameter(base.clone()),
        "scalar": torch.tensor(2.5),
        "shared": base,
        "tied": base,
        "transposed": base.t(),
        "view": base[1:],
    }


def test_everything_comes_back(store: Store) -> None:
    tensors = assorted_tensors()
    value = {"loss": [0.1, float("nan")], "été": None, "nested": {"t": (1, 2)}}
    with store.write("map", {"rank": 8, "loops": (4, 6)}) as draft:
        draft.tensors("map.safetensors", tensors)
        draft.json("metrics.json", value)
        draft.bytes("rows.jsonl", b'{"a":1}\n')
        draft.bytes("nothing", b"")
    for artefact in (
        draft.artefact,
        store.find("map", {"loops": [4, 6], "rank": 8}),
        Store(store.root).open("map", draft.artefact.key),
    ):
        back = artefact.tensors("map.safetensors")
        assert back.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert back[name].dtype == tensor.dtype
            assert back[name].shape == tensor.shape
            assert torch.equal(back[name].nan_to_num(7.0), tensor.detach().nan_to_num(7.0)), name
        assert list(artefact.tensors("map.safetensors", only=["tied", "bool"])) == ["tied", "bool"]
        metrics = artefact.json("metrics.json")
        assert metrics["loss"][1] != metrics["loss"][1]
        assert metrics["nested"] == {"t": [1, 2]}
        assert metrics["été"] is None
        assert artefact.bytes("rows.jsonl") == b'{"a":1}\n'
        assert artefact.bytes("nothing") == b""


def test_the_manifest_says_where_it_comes_from(store: Store) -> None:
    config = {"rank": 8}
    with store.write("map", config, {"backbone": "b" * 64}, device=torch.device("cpu")) as draft:
        config["rank"] = 9  # too late: the key was taken at the start
        draft.bytes("data.bin", b"abc")
    manifest = draft.artefact.manifest
    assert (manifest.schema, manifest.kind, manifest.config) == (1, "map", {"rank": 8})
    assert manifest.key == artefact_key("map", {"rank": 8}, {"backbone": "b" * 64}) == draft.artefact.folder.name
    assert asdict(manifest.files["data.bin"]) == {"sha256": hashlib.sha256(b"abc").hexdigest(), "size": 3}
    assert manifest.versions.keys() == {"loopscope", "numpy", "python", "safetensors", "torch"}
    assert manifest.versions["loopscope"] == loopscope.__version__
    assert manifest.versions["torch"] == torch.__version__
    assert manifest.device.startswith("cpu ")
    assert manifest.created.endswith("+00:00")
    assert store.open("map", manifest.key).manifest == manifest


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    digests = set()
    for i, names in enumerate([sorted(assorted_tensors()), sorted(assorted_tensors(), reverse=True)]):
        tensors = assorted_tensors()
        with Store(tmp_path / str(i)).write("map", {}) as draft:
            draft.tensors("map.safetensors", {name: tensors[name] for name in names})
            draft.json("metrics.json", {name: len(name) for name in names})
        digests.add(tuple(sorted((name, file.sha256) for name, file in draft.artefact.manifest.files.items())))
    assert len(digests) == 1


def test_files_and_folders_are_synced_before_the_rename_that_shows_them(store: Store, monkeypatch) -> None:
    put(store, {"first": True})
    log: list[tuple[str, int]] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda handle: (log.append(("sync", os.fstat(handle).st_ino)), fsync(handle)))
    monkeypatch.setattr(os, "rename", lambda old, new: (log.append(("rename", os.stat(old).st_ino)), rename(old, new)))
    with store.write("map", {}) as draft:
        draft.bytes("a", b"a")
        draft.bytes("b", b"b")
    folder = draft.artefact.folder
    a, b, manifest, whole, kind = (os.stat(folder / name).st_ino for name in ("a", "b", MANIFEST, ".", ".."))
    expected = [("sync", a), ("sync", b), ("sync", manifest), ("sync", whole), ("rename", whole), ("sync", kind)]
    assert log == expected


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt(), FileNotFoundError(2, "theirs", "f")])
def test_an_exception_in_the_block_leaves_nothing_and_passes_unchanged(store: Store, error: BaseException) -> None:
    drafts = []

    def fail_half_way() -> None:
        with store.write("map", {}) as draft:
            drafts.append(draft)
            draft.bytes("data.bin", b"x" * 1000)
            raise error

    with pytest.raises(type(error)) as caught:
        fail_half_way()
    assert caught.value is error
    assert everything_under(store.root) == set()
    assert store.find("map", {}) is None
    assert not hasattr(drafts[0], "artefact")


def test_a_dead_draft_is_removed_with_none_of_its_files_open(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS keeps a removed file that is open under another name, so that its folder is never empty."""
    put(store, {})
    drafts = [store.root / "map" / ".draft-0", store.root / f".draft-loopscope-{'0' * 16}"]
    for draft in drafts:
        draft.mkdir()
        (draft / "writer.lock").touch()
    removed = []

    def as_on_nfs(path: Path, ignore_errors: bool = False) -> None:
        for handle in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{handle}")
            except OSError:  # the handle of the listing itself
                continue
            assert not target.startswith(str(path)), target
        removed.append(path)
        remove(path, ignore_errors=ignore_errors)

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", as_on_nfs)
    assert len(store.gc().removed) == len(removed) == 2
    assert not any(draft.exists() for draft in drafts)


def test_the_second_writer_of_a_key_gets_the_first_artefact(store: Store) -> None:
    with store.write("map", {}) as slow:
        slow.bytes("data.bin", b"slow")
        first = put(store, {}, data=b"fast")
    assert slow.artefact.bytes("data.bin") == b"fast"
    assert slow.artefact.manifest == first.manifest
    assert [each.state for each in store.verify()] == ["ok"]
    assert everything_under(store.root) == {f"map/{first.key}/data.bin", f"map/{first.key}/{MANIFEST}"}


@pytest.mark.parametrize("harm", ["bit", "missing", "no manifest", "empty folder", "a file", "a dangling link"])
def test_a_damaged_artefact_is_replaced_by_writing_it_again(store: Store, harm: str) -> None:
    artefact = put(store, {})
    if harm == "bit":
        (artefact.folder / "data.bin").write_bytes(b"Content")
    elif harm == "missing":
        (artefact.folder / "data.bin").unlink()
    elif harm == "no manifest":
        (artefact.folder / MANIFEST).unlink()
    else:
        shutil.rmtree(artefact.folder)
        {"empty folder": artefact.folder.mkdir, "a file": artefact.folder.touch}.get(
            harm, lambda: artefact.folder.symlink_to("nowhere")
        )()
    assert [each.state for each in store.verify()] == ["damaged"]
    again = put(store, {}, data=b"again")
    assert again.bytes("data.bin") == store.find("map", {}).bytes("data.bin") == b"again"
    assert [each.state for each in store.verify()] == ["ok"]
    assert len(everything_under(store.root)) == 2


BAD_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "/etc/x",
    "a/b",
    "a\\b",
    "x\0y",
    "x\ny",
    "\ud800",
    "é" * 128,
    MANIFEST,
    "Manifest.JSON",
    3,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_file_names_are_refused(store: Store, name) -> None:
    with pytest.raises(InputError, match="file name") as caught, store.write("map", {}) as draft:
        draft.bytes(name, b"x")
    assert "\n" not in str(caught.value)
    assert everything_under(store.root) == set()


@pytest.mark.parametrize(
    "name", ["a b.txt", "été.json", "-x", "x" * 255, "é" * 127, ".hidden", "a..b", "表.safetensors"]
)
def test_odd_but_plain_file_names_work(store: Store, name: str) -> None:
    with store.write("map", {}) as draft:
        draft.bytes(name, b"x")
    assert store.find("map", {}).bytes(name) == b"x"


def test_a_file_is_written_once_and_with_its_suffix(store: Store) -> None:
    with store.write("map", {}) as draft:
        draft.json("a.json", 1)
        with pytest.raises(InputError, match=r"a\.json is already written"):
            draft.json("a.json", 2)
        with pytest.raises(InputError, match="already written"):
            draft.bytes("A.json", b"3")
        with pytest.raises(InputError, match=r"does not end in \.json"):
            draft.json("a.txt", 1)
        with pytest.raises(InputError, match=r"does not end in \.safetensors"):
            draft.tensors("a.pt", {})
        with pytest.raises(InputError, match="has the key 1"):
            draft.json("b.json", {1: 2})
    assert list(draft.artefact.manifest.files) == ["a.json"]
    with pytest.raises(StoreError, match="cannot write"):
        draft.json("late.json", 1)


def test_compressed_tensors_come_back_and_damage_is_told(store: Store) -> None:
    answers = {"a": torch.zeros(4096, dtype=torch.uint8), "b": torch.arange(5)}
    with store.write("record", {}) as draft:
        draft.tensors("x.safetensors.xz", answers)
        draft.bytes("y.safetensors.xz", b"not compressed")
        with pytest.raises(InputError, match=r"does not end in \.safetensors"):
            draft.tensors("x.xz", answers)
    back = draft.artefact.tensors("x.safetensors.xz")
    assert back.keys() == answers.keys()
    assert all(torch.equal(back[name], answers[name]) for name in answers)
    assert draft.manifest.files["x.safetensors.xz"].size < 512
    with pytest.raises(DamagedError, match=r"y\.safetensors\.xz: expected an xz file"):
        draft.artefact.tensors("y.safetensors.xz")


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": 3},
        {1: torch.ones(1)},
        {"__metadata__": torch.ones(1)},
        {"a": torch.ones(1, device="meta")},
        {"a": torch.eye(2).to_sparse()},
        {"a": torch.ones(1, dtype=torch.complex128)},
    ],
)
def test_what_safetensors_cannot_hold_is_refused_in_one_line(store: Store, tensors) -> None:
    with (
        pytest.raises(InputError, match=r"map\.safetensors: these tensors do not fit") as caught,
        store.write("map", {}) as draft,
    ):
        draft.tensors("map.safetensors", tensors)
    assert "\n" not in str(caught.value)
    assert store.list() == ()


def test_asking_for_what_is_not_there_names_the_nearest(store: Store) -> None:
    with store.write("map", {}) as draft:
        draft.tensors("map.safetensors", {"gate": torch.ones(1), "bias": torch.ones(1)})
        draft.json("metrics.json", {})
    artefact = draft.artefact
    with pytest.raises(InputError, match=r"no tensor 'gates' \(nearest: gate\)"):
        artefact.tensors("map.safetensors", only=["bias", "gates"])
    with pytest.raises(InputError, match=r"no file 'metric.json'; it has .* \(nearest: metrics.json\)"):
        artefact.json("metric.json")
    with pytest.raises(InputError, match=r"does not end in \.safetensors"):
        artefact.tensors("metrics.json")
    with pytest.raises(InputError, match=r"no file '\.\./\.\./x'"):
        artefact.bytes("../../x")
    with pytest.raises(InputError, match=r"no file 'manifest\.json'"):
        artefact.bytes(MANIFEST)


# Keys and prefixes ----------------------------------------------------------------------------------------------------


def test_open_by_prefix(store: Store) -> None:
    artefact = put(store, {})
    for length in (4, 5, 12, 63, 64):
        assert store.open("map", artefact.key[:length]).key == artefact.key
    for bad in ("", artefact.key[:3], artefact.key[:8].upper() + "G", artefact.key + "0", "../" + artefact.key):
        with pytest.raises(InputError, match="4 to 64 of the digits"):
            store.open("map", bad)


def test_an_ambiguous_prefix_lists_its_candidates(store: Store) -> None:
    seen: dict[str, int] = {}
    for i in range(5000):  # two of 65,536 prefixes meet long before
        prefix = artefact_key("map", {"i": i})[:4]
        if prefix in seen:
            break
        seen[prefix] = i
    twins = [put(store, {"i": seen[prefix]}), put(store, {"i": i})]
    with pytest.raises(InputError, match="ambiguous") as caught:
        store.open("map", prefix)
    assert all(twin.key in str(caught.value) for twin in twins)
    longer = next(n for n in range(5, 64) if twins[0].key[:n] != twins[1].key[:n])
    assert store.open("map", twins[1].key[:longer]).key == twins[1].key


def test_not_found_names_what_is_there(store: Store) -> None:
    with pytest.raises(InputError, match="no artefact of kind 'map'; it has nothing"):
        store.open("map", "0000")
    keys = [put(store, {"i": i}).key for i in range(6)]
    with pytest.raises(InputError, match=r"no artefact of kind 'maps'; it has map \(nearest: map\)"):
        store.open("maps", "0000")
    absent = next(f"{i:04x}" for i in range(65536) if not any(key.startswith(f"{i:04x}") for key in keys))
    with pytest.raises(InputError, match=f"no map '{absent}' among 6 .nearest: ") as caught:
        store.open("map", absent)
    assert sum(key in str(caught.value) for key in keys) == 3
    typo = keys[2][:40] + ("0" if keys[2][40] != "0" else "1")
    with pytest.raises(InputError, match=f"nearest: {keys[2]}"):
        store.open("map", typo)


# Hostile content ------------------------------------------------------------------------------------------------------


class Bomb:
    """Unpickling this touches a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def safetensors_file(header: bytes, payload: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + payload


def test_a_pickle_is_refused_unopened(store: Store, tmp_path: Path) -> None:
    with store.write("map", {}) as draft:
        draft.bytes("map.safetensors", pickle.dumps(Bomb(tmp_path / "touched")))
    with pytest.raises(DamagedError, match=r"map\.safetensors: expected a safetensors file, found "):
        draft.artefact.tensors("map.safetensors")
    assert not (tmp_path / "touched").exists()


def test_a_tensor_named_twice_is_refused(tmp_path: Path) -> None:
    entry = b'{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    once = b'{"a":' + entry % (0, 4) + b',"b":' + entry % (4, 8) + b"}"
    assert parse_tensors(safetensors_file(once, bytes(8)), "x").keys() == {"a", "b"}
    for second in (b'"a"', b'"\\u0061"'):
        twice = once.replace(b'"b"', second)
        with pytest.raises(DamagedError, match=r"x\.safetensors: expected a safetensors file, found 'a' twice"):
            parse_tensors(safetensors_file(twice, bytes(8)), tmp_path / "x.safetensors")


GOOD = save({"weight": torch.arange(8.0)})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:7],
        GOOD[:40],
        GOOD[:-1],
        GOOD + b"\0",
        struct.pack("<Q", 2**40) + GOOD[8:],
        struct.pack("<Q", 2**64 - 1) + GOOD[8:],
        struct.pack("<Q", 0) + GOOD[8:],
        GOOD.replace(b"F32", b"F99"),
        GOOD.replace(b"weight", b"weigh\xff"),
        GOOD.replace(b"[0,32]", b"[0,99]"),
        safetensors_file(b"[" * 200_000, b""),
        safetensors_file(b"[]", b""),
        b"PK\x03\x04" + bytes(100),
        b"not tensors at all",
    ],
)
def test_what_is_not_safetensors_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(DamagedError, match="x: expected a safetensors file, found ") as caught:
        parse_tensors(data, "x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 200_000, b"1" * 5000])
def test_unparsable_json_is_damage(store: Store, data: bytes) -> None:
    with store.write("map", {}) as draft:
        draft.bytes("x.json", data)
    with pytest.raises(DamagedError, match=r"x\.json: expected JSON"):
        draft.artefact.json("x.json")


# All of a kind, removing, adopting ------------------------------------------------------------------------------------


def test_every_raises_and_readable_gives_what_can_be_read_with_the_errors(store: Store) -> None:
    whole, flipped, short, newer = (put(store, {"i": i}) for i in range(4))
    put(store, {"i": 0}, kind="backbone")
    (flipped.folder / "data.bin").write_bytes(b"Content")
    (short.folder / "data.bin").write_bytes(b"conten")
    body = json.loads((newer.folder / MANIFEST).read_bytes())
    del body["digest"]
    (newer.folder / MANIFEST).write_bytes(manifest_text({**body, "schema": 2}))
    found, errors = store.readable("map")
    # As in `list`, hashes are left to the reader.
    assert [artefact.key for artefact in found] == sorted([whole.key, flipped.key])
    assert {artefact.key: artefact for artefact in found}[whole.key] == whole
    assert sorted(map(type, errors), key=str) == [DamagedError, NewerError]
    assert sorted(error.exit_code for error in errors) == [3, 3]
    with pytest.raises(LoopscopeError) as caught:
        store.every("map")
    assert str(caught.value) == str(errors[0])
    assert not hasattr(store, "all")
    assert store.every("backbone") == store.readable("backbone")[0]
    assert store.every("maps") == store.every("../map") == ()
    assert store.readable("maps") == ((), ())


@pytest.mark.parametrize("state", ["whole", "bit", "no manifest", "a file", "a dangling link"])
def test_remove_takes_out_one_artefact_in_any_state(store: Store, state: str) -> None:
    kept, gone = put(store, {"i": 0}), put(store, {"i": 1})
    if state == "bit":
        (gone.folder / "data.bin").write_bytes(b"Content")
    elif state == "no manifest":
        (gone.folder / MANIFEST).unlink()
    elif state != "whole":
        shutil.rmtree(gone.folder)
        gone.folder.touch() if state == "a file" else gone.folder.symlink_to(kept.folder)
    assert store.remove("map", gone.key) is True
    assert store.remove("map", gone.key) is False
    assert store.find("map", {"i": 1}) is None
    assert [(each.key, each.state) for each in store.verify()] == [(kept.key, "ok")]
    assert everything_under(store.root) == {f"map/{kept.key}/data.bin", f"map/{kept.key}/{MANIFEST}"}
    assert put(store, {"i": 1}).key == gone.key


def test_remove_needs_a_whole_key_and_makes_nothing(store: Store) -> None:
    assert store.remove("map", "0" * 64) is False
    assert store.remove("../map", "0" * 64) is False
    assert not store.root.exists()
    artefact = put(store, {})
    for bad in ("", artefact.key[:63], artefact.key.upper(), f"../map/{artefact.key}", ".lock", 7, None):
        with pytest.raises(InputError, match="give all 64 hexadecimal digits") as caught:
            store.remove("map", bad)
        assert "\n" not in str(caught.value)
    assert store.remove("backbone", artefact.key) is False
    assert [each.state for each in store.verify()] == ["ok"]


def test_who_has_a_removed_artefact_open_is_told(store: Store) -> None:
    artefact = put(store, {})
    store.remove("map", artefact.key)
    with pytest.raises(DamagedError, match=r"data\.bin: expected a file, found none"):
        artefact.bytes("data.bin")


def test_of_many_that_remove_one_artefact_one_does(store: Store) -> None:
    for _ in range(5):
        artefact = put(store, {})
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(store.remove, ["map"] * 4, [artefact.key] * 4))
        assert sorted(done) == [False, False, False, True]
    assert everything_under(store.root) == set()


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_adopted_artefact_is_the_same_in_every_byte(store: Store, tmp_path: Path, monkeypatch) -> None:
    with store.write("map", {"rank": 8}, {"backbone": "b" * 64}) as draft:
        draft.json("z.json", [1])
        draft.tensors("a.safetensors", {"A": torch.ones(3)})
    original, other = draft.artefact, Store(tmp_path / "other")
    monkeypatch.setattr(loopscope, "__version__", "9.9.9")  # nothing of here and now may come in
    copy = other.adopt(original)
    assert copy.folder == other.root / "map" / original.key
    assert copy.manifest == original.manifest
    assert bytes_of(copy.folder) == bytes_of(original.folder)
    assert other.find("map", {"rank": 8}, {"backbone": "b" * 64}) == copy
    assert [each.state for each in other.verify()] == ["ok"]
    shutil.rmtree(store.root)
    copy.verify()


def test_adopt_keeps_a_whole_artefact_and_replaces_a_damaged_one(store: Store, tmp_path: Path) -> None:
    original, other = put(store, {}, data=b"theirs"), Store(tmp_path / "other")
    own = put(other, {}, data=b"ours")
    assert other.adopt(original) == own
    assert other.find("map", {}).bytes("data.bin") == b"ours"
    (own.folder / "data.bin").write_bytes(b"OURS")
    assert other.adopt(original).bytes("data.bin") == b"theirs"
    assert other.adopt(other.find("map", {})).bytes("data.bin") == b"theirs"  # its own: nothing to do
    assert everything_under(other.root) == {f"map/{own.key}/data.bin", f"map/{own.key}/{MANIFEST}"}


@pytest.mark.parametrize("harm", ["bit", "missing", "removed"])
def test_a_damaged_artefact_is_not_adopted(store: Store, tmp_path: Path, harm: str) -> None:
    original, other = put(store, {}), Store(tmp_path / "other")
    if harm == "bit":
        (original.folder / "data.bin").write_bytes(b"Content")
    elif harm == "missing":
        (original.folder / "data.bin").unlink()
    else:
        store.remove("map", original.key)
    with pytest.raises(DamagedError, match=f"^{original.folder / 'data.bin'}: expected"):
        other.adopt(original)
    assert everything_under(other.root) == set()


def kill_before_every_operation(action: str, folder: Path) -> list[int]:
    """Do `action` on copies of `folder / action`, killed before its 1st, 2nd, ... file operation; exit codes.

    The copies are `folder / f"{action}-1"` and so on; the last is that of the child which came to its end.
    """
    statuses: list[int] = []
    (artefact,) = Store(folder / "source").every("map")
    for event in range(1, 200):
        store = Store(shutil.copytree(folder / action, folder / f"{action}-{event}"))
        if (child := os.fork()) == 0:
            try:
                die_before(event)
                store.remove("map", artefact.key) if action == "remove" else store.adopt(artefact)
                os._exit(0)
            finally:
                os._exit(1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if statuses[-1] != -signal.SIGKILL:
            break
    return statuses


def die_before(event: int) -> None:
    """From now on count this process's file operations; SIGKILL it just before the `event`-th."""
    left = event

    def count_and_die(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if name == "open" or name.startswith(("os.", "fcntl.", "shutil.")):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_and_die)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    """The stores that killed processes left, and how those ended, by action.

    One process that has imported everything forks them: this one may have threads, with which it must not fork.
    """
    folder = tmp_path_factory.mktemp("killed")
    put(Store(folder / "source"), {"i": 0}, data=b"theirs")
    for action in ("remove", "adopt", "adopt-over-damage"):
        put(Store(folder / action), {"i": 1})
    put(Store(folder / "remove"), {"i": 0})
    (put(Store(folder / "adopt-over-damage"), {"i": 0}).folder / "data.bin").write_bytes(b"Content")
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, __file__, folder], env=alone, stdout=subprocess.PIPE, check=True)
    return folder, json.loads(run.stdout)


@pytest.mark.parametrize("action", ["remove", "adopt", "adopt-over-damage"])
def test_killed_before_every_file_operation(killed: tuple[Path, dict[str, list[int]]], action: str) -> None:
    folder, statuses = killed[0], killed[1][action]
    assert statuses == [-signal.SIGKILL] * (len(statuses) - 1) + [0]
    assert len(statuses) > 15
    (original,) = Store(folder / "source").every("map")
    other, seen = artefact_key("map", {"i": 1}), []
    for event in range(1, len(statuses) + 1):
        store = Store(folder / f"{action}-{event}")
        states = {each.key: each.state for each in store.verify()}
        assert states.pop(other) == "ok"
        seen.append(states.pop(original.key, "absent"))
        assert states == {}
        assert len(list(store.root.glob("map/.draft-*"))) <= 1
        # Whatever was left, the same step is done again, and what dead processes left can be cleaned up.
        if action == "remove":
            assert store.remove("map", original.key) is (seen[-1] == "ok")
        else:
            assert bytes_of(store.adopt(original).folder) == bytes_of(original.folder)
        store.gc()
        there = {"map/" + key for key in ((other,) if action == "remove" else (other, original.key))}
        assert everything_under(store.root) == {f"{path}/{name}" for path in there for name in ("data.bin", MANIFEST)}
    expected = {
        "remove": ["ok", "absent"],
        "adopt": ["absent", "ok"],
        "adopt-over-damage": ["damaged", "absent", "ok"],
    }[action]
    assert list(dict.fromkeys(seen)) == expected
    assert seen == sorted(seen, key=expected.index)  # it never goes back


# Listing, verifying, cleaning -----------------------------------------------------------------------------------------


def test_an_absent_store_is_empty_and_stays_absent(store: Store) -> None:
    assert store.list() == store.verify() == store.gc().removed == ()
    assert store.find("map", {}) is None
    assert not store.root.exists()


def test_list_is_sorted_and_ignores_what_is_no_artefact(store: Store) -> None:
    for kind in ("map", "backbone"):
        for i in range(3):
            put(store, {"i": i}, kind=kind)
    (store.root / "readme").write_text("not a kind")
    (store.root / "map" / "notes").mkdir()
    (store.root / "Other Things").mkdir()
    listed = store.list()
    assert [(each.kind, each.key) for each in listed] == sorted((each.kind, each.key) for each in listed)
    assert [each.kind for each in listed] == ["backbone"] * 3 + ["map"] * 3
    assert {each.state for each in listed} == {"ok"}
    for each in listed:
        files = (store.root / each.kind / each.key).iterdir()
        assert each.size == sum(path.stat().st_size for path in files)
    assert json.loads(json.dumps([asdict(each) for each in listed]))[0]["kind"] == "backbone"


def test_verify_reports_every_artefact_and_list_is_quick(store: Store) -> None:
    good, flipped, short = (put(store, {"i": i}) for i in range(3))
    (flipped.folder / "data.bin").write_bytes(b"Content")
    (short.folder / "data.bin").write_bytes(b"conten")
    full = {each.key: each for each in store.verify()}
    assert {key: each.state for key, each in full.items()} == {
        good.key: "ok",
        flipped.key: "damaged",
        short.key: "damaged",
    }
    assert full[good.key].reason == ""
    assert full[short.key].reason == f"{short.folder / 'data.bin'}: expected 7 bytes, found 6"
    digests = [hashlib.sha256(data).hexdigest() for data in (b"content", b"Content")]
    assert (
        full[flipped.key].reason == f"{flipped.folder / 'data.bin'}: expected SHA-256 {digests[0]}, found {digests[1]}"
    )
    quick = {each.key: each.state for each in store.list()}
    assert quick == {good.key: "ok", flipped.key: "ok", short.key: "damaged"}


def test_gc_leaves_the_drafts_of_live_writers(store: Store) -> None:
    with store.write("map", {}) as draft:
        draft.bytes("data.bin", b"x")
        report = store.gc(damaged=True)
        assert (report.removed, report.freed, report.live) == ((), 0, 1)
        assert store.list() == ()
    assert draft.artefact.bytes("data.bin") == b"x"
    assert store.gc().live == 0


def test_gc_removes_drafts_nobody_holds(store: Store) -> None:
    kept = put(store, {})
    full = store.root / "map" / ".draft-0123-4567"
    (full / "artefact").mkdir(parents=True)
    (full / "writer.lock").touch()
    (full / "artefact" / "data.bin").write_bytes(bytes(1000))
    (store.root / "map" / ".draft-killed-before-its-lock").mkdir()
    assert [each.key for each in store.list()] == [kept.key]
    dry = store.gc(dry_run=True)
    assert full.exists()
    report = store.gc()
    assert (dry.removed, dry.freed, dry.dry_run) == (report.removed, report.freed, True)
    assert (len(report.removed), report.freed, report.live, report.dry_run) == (2, 1000, 0, False)
    assert str(full) in {each.path for each in report.removed}
    assert store.gc().removed == ()
    assert everything_under(store.root) == {f"map/{kept.key}/data.bin", f"map/{kept.key}/{MANIFEST}"}
    assert json.loads(json.dumps(asdict(report)))["freed"] == 1000


def test_gc_removes_damaged_artefacts_only_if_asked(store: Store) -> None:
    good, bad = put(store, {"i": 0}), put(store, {"i": 1})
    (bad.folder / "data.bin").write_bytes(b"Content")
    size = sum(path.stat().st_size for path in bad.folder.iterdir())
    assert store.gc().removed == ()
    dry = store.gc(damaged=True, dry_run=True)
    assert bad.folder.exists()
    report = store.gc(damaged=True)
    assert dry.removed == report.removed
    assert [(each.path, each.size) for each in report.removed] == [(str(bad.folder), size)]
    assert "expected SHA-256" in report.removed[0].reason
    assert [each.key for each in store.list()] == [good.key]
    assert store.find("map", {"i": 1}) is None
    assert len(everything_under(store.root)) == 2


if __name__ == "__main__":
    place = Path(sys.argv[1])
    actions = ("remove", "adopt", "adopt-over-damage")
    print(json.dumps({action: kill_before_every_operation(action, place) for action in actions}))


def test_adopted_files_may_be_stored_compressed_and_are_read_by_their_own_names(tmp_path: Path) -> None:
    source, other = Store(tmp_path / "source"), Store(tmp_path / "other")
    weights = {"w": torch.arange(4096, dtype=torch.bfloat16)}
    with source.write("backbone", {"seed": 1}) as draft:
        draft.tensors("weights.safetensors", weights)
        draft.json("result.json", {"score": [1.0]})
        draft.bytes("notes.txt", b"as it is")
    given = other.adopt(draft.artefact, compress=("weights.safetensors", "result.json", "not there"))
    assert given.key == draft.artefact.key
    assert set(given.manifest.files) == {"weights.safetensors.xz", "result.json.xz", "notes.txt"}
    assert replace(given.manifest, files={}) == replace(draft.artefact.manifest, files={})
    assert torch.equal(given.tensors("weights.safetensors")["w"], weights["w"])
    assert (given.json("result.json"), given.bytes("notes.txt")) == ({"score": [1.0]}, b"as it is")
    assert given.has("weights.safetensors")
    assert not given.has("other.json")
    assert (
        given.manifest.files["weights.safetensors.xz"].size < draft.artefact.manifest.files["weights.safetensors"].size
    )
    path = given.folder / "weights.safetensors.xz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DamagedError, match="SHA-256"):
        given.tensors("weights.safetensors")
