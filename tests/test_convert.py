"""Pickled checkpoints to safetensors: the same tensors, everything told, and nothing run, whatever the pickle says."""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import pickle
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import loopscope as package
from loopscope.errors import DamagedError, InputError
from loopscope.models.convert import SHARDS, convert
from loopscope.models.folders import load
from tests.commands import loopscope
from tests.hub_cache import COMMIT, NAME, put_snapshot
from tests.model_folders import ouro_folder, stack_folder
from tests.ouro_tiny import weights

STATE = {"a.weight": torch.arange(6.0).view(2, 3), "b.weight": torch.ones(2, dtype=torch.bfloat16)}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The small Ouro as others release theirs: pickled, with a tokenizer, code and a trainer's pickle."""
    folder = ouro_folder(tmp_path / "release")
    (folder / "model.safetensors").unlink()
    torch.save(weights(), folder / "pytorch_model.bin")
    (folder / "training_args.bin").write_bytes(b"never opened")
    (folder / "modeling_ouro.py").write_text("raise SystemExit('run')", encoding="utf-8")
    return folder


def put(file: Path, content: object) -> Path:
    file.parent.mkdir(exist_ok=True)
    torch.save(content, file)
    return file


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    pairs = [(found[name], tensor) for name, tensor in wanted.items()]
    return found.keys() == wanted.keys() and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def test_a_pickled_release_becomes_the_model(release: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    out, content = tmp_path / "out", (release / "pytorch_model.bin").read_bytes()
    assert "loopscope lm convert" in refused(InputError, load, release)
    made = convert(release, out)
    assert same(load(out).state_dict(), weights())
    assert sorted(file.name for file in out.iterdir()) == [
        *("SHA256SUMS", "config.json", "model.safetensors", "source.json", "tokenizer.json", "tokenizer_config.json"),
    ]
    assert [(each.name, each.bytes) for each in made.sources] == [("pytorch_model.bin", len(content))]
    assert made.sources[0].sha256 == hashlib.sha256(content).hexdigest()
    assert made.sha256 == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    assert made.bytes == (out / "model.safetensors").stat().st_size
    assert made.dtypes == {"float32": len(weights())}
    assert made.tensors["lm_head.weight"] == ("float32", (96, 48))
    assert (made.taken, made.left, made.prefix, made.shared) == ((), (), "", {})
    assert (release / "pytorch_model.bin").read_bytes() == content


def test_the_command_tells_what_it_did(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tied = {"_orig_mod.x": STATE["a.weight"], "_orig_mod.y": STATE["a.weight"], "_orig_mod.z": STATE["b.weight"]}
    file = put(tmp_path / "step_100", {"model": tied, "optimizer": {"state": {}}, "step": 100})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    code, out, err = loopscope(capsys, "lm", "convert", str(file), "--out", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    for said in (
        f"read step_100: {file.stat().st_size:,} bytes, SHA-256 {digest}",
        "taken: model; left out: optimizer, step",
        "cut off from every name: _orig_mod.",
        "written under each name, as they shared memory: y is x",
        "names: x, y, z",
        "copied: nothing",
        "there was no config.json beside it",
    ):
        assert said in out
    assert "3 tensors (2 float32, 1 bfloat16)" in " ".join(out.split())
    a, b = STATE.values()
    assert same(load_file(tmp_path / "out" / "model.safetensors"), {"x": a, "y": a, "z": b})
    notes = json.loads((tmp_path / "out" / "source.json").read_text(encoding="utf-8"))
    assert notes == {
        "files": [{"name": "step_100", "bytes": file.stat().st_size, "sha256": digest}],
        "taken": "model", "prefix": "_orig_mod.", "shared": {"y": "x"},
    }  # fmt: skip
    code, out, err = loopscope(capsys, "lm", "convert", str(file), "--out", str(tmp_path / "again"), "--json")
    assert code == 0
    report = json.loads(out)
    assert report["tensors"][0] == {"name": "x", "dtype": "float32", "shape": [2, 3]}
    assert (report["dtypes"], report["sources"][0]["sha256"]) == ({"float32": 2, "bfloat16": 1}, digest)


@pytest.mark.parametrize(
    ("content", "taken", "prefix"),
    [
        (STATE, (), ""),
        (OrderedDict(STATE), (), ""),
        ({"state_dict": STATE, "hyper_parameters": {"lr": 1.0}}, ("state_dict",), ""),
        ({"model_state_dict": {f"module.{n}": t for n, t in STATE.items()}}, ("model_state_dict",), "module."),
        ({f"module._orig_mod.{n}": t for n, t in STATE.items()}, (), "module._orig_mod."),
        ({"model": {"state_dict": STATE}}, ("model", "state_dict"), ""),
        ({name: torch.nn.Parameter(tensor) for name, tensor in STATE.items()}, (), ""),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_forms_of_states(tmp_path: Path, content: object, taken: tuple[str, ...], prefix: str, zipped: bool) -> None:
    torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    made = convert(tmp_path / "model.pt", tmp_path / "out")
    assert (made.taken, made.prefix) == (taken, prefix)
    assert same(load_file(tmp_path / "out" / "model.safetensors"), STATE)


def test_a_prefix_is_cut_off_where_every_name_has_it(tmp_path: Path) -> None:
    mixed = {"module.a": STATE["a.weight"], "b": STATE["b.weight"]}
    assert convert(put(tmp_path / "mixed.pt", mixed), tmp_path / "out").prefix == ""
    assert same(load_file(tmp_path / "out" / "model.safetensors"), mixed)


def test_tensors_that_share_memory_are_written_one_by_one(tmp_path: Path) -> None:
    """Tied ones, views of one tensor, and parts of a large one."""
    whole = torch.arange(12.0).view(3, 4)
    state = {"whole": whole, "same": whole, "row": whole[1], "turned": whole.T, "part": torch.arange(1000.0)[3:5]}
    made = convert(put(tmp_path / "model.pt", state), tmp_path / "out")
    assert made.shared == {"same": "whole", "row": "whole", "turned": "whole"}
    assert same(load_file(tmp_path / "out" / "model.safetensors"), state)
    assert made.bytes < 1000


def test_a_tied_head_is_loaded(tmp_path: Path) -> None:
    folder = stack_folder(tmp_path / "llama", "llama")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    put(folder / "pytorch_model.bin", state | {"lm_head.weight": state["model.embed_tokens.weight"]})
    made = convert(folder, tmp_path / "out")
    assert made.shared == {"lm_head.weight": "model.embed_tokens.weight"}
    assert same(dict(load(tmp_path / "out").state_dict()), state)


def shards(folder: Path, **changes: str) -> Path:
    names = sorted(weights())
    files = {name: f"pytorch_model-0000{1 + at % 2}-of-00002.bin" for at, name in enumerate(names)}
    for file in set(files.values()):
        put(folder / file, {name: weights()[name] for name in names if files[name] == file})
    (folder / SHARDS).write_text(json.dumps({"weight_map": files | changes}), encoding="utf-8")
    return folder


def test_shards_with_an_index(release: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    (release / "pytorch_model.bin").unlink()
    made = convert(shards(release), tmp_path / "out")
    assert [each.name for each in made.sources] == [f"pytorch_model-0000{at}-of-00002.bin" for at in (1, 2)]
    assert same(load(tmp_path / "out").state_dict(), weights())
    assert SHARDS not in made.copied
    for changes, error, said in (
        ({"more": "pytorch_model-00001-of-00002.bin"}, DamagedError, "places there, found no more"),
        ({"lm_head.weight": "pytorch_model-00003-of-00002.bin"}, DamagedError, "places there, found lm_head.weight as"),
        ({"lm_head.weight": "../release/config.json"}, DamagedError, "names of files beside it"),
    ):
        assert said in refused(error, convert, shards(release, **changes), tmp_path / "no")
    (shards(release) / "pytorch_model-00002-of-00002.bin").unlink()
    assert "expected a file, found none" in refused(DamagedError, convert, release, tmp_path / "no")
    (release / SHARDS).write_text("{}", encoding="utf-8")
    assert "expected a weight_map" in refused(DamagedError, convert, release, tmp_path / "no")
    assert not (tmp_path / "no").exists()


class Booby:
    """Runs a command when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("form", ["zip", "old", "bare", "nested"])
def test_what_a_pickle_would_run_is_not_run(tmp_path: Path, form: str, refused: Callable[..., str]) -> None:
    file, booby = tmp_path / "model.pt", Booby(tmp_path / "ran")
    if form == "bare":
        file.write_bytes(pickle.dumps(booby, protocol=2))
    else:
        content = {"model": STATE, "args": booby} if form == "nested" else {**STATE, "c": booby}
        torch.save(content, file, _use_new_zipfile_serialization=form != "old")
    said = refused(InputError, convert, file, tmp_path / "out")
    assert said == (
        f"{file} holds more than tensors, numbers and texts, and nothing else is loaded: it asks for posix.system"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt"]


def test_a_class_of_the_standard_library_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    file = put(tmp_path / "model.pt", {"model": STATE, "args": argparse.Namespace(width=8)})
    assert refused(InputError, convert, file, tmp_path / "out").endswith("it asks for argparse.Namespace")


def recursive() -> dict[str, Any]:
    content: dict[str, Any] = {}
    content["model"] = content
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "it has nothing"),
        ({"step": 3, "optimizer": {}}, "it has step, optimizer"),
        ({"model": STATE, "state_dict": STATE}, "it has model, state_dict"),
        (recursive(), "it has model"),
        ([STATE["a.weight"]], "it holds a list"),
        (STATE["a.weight"], "it holds a Tensor"),
        ({**STATE, "step": 3}, "'step' is a int, not a tensor with a name"),
        ({**STATE, 7: STATE["a.weight"]}, "7 is a Tensor, not a tensor with a name"),
        ({"a": torch.eye(2).to_sparse()}, "a is Tensor of float32, no dense tensor"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, "a is Tensor of complex64, no dense tensor"),
        ({"a": torch.ones(2, device="meta")}, "a is Tensor of float32, no dense tensor"),
    ],
)
def test_what_is_no_state_is_refused(tmp_path: Path, content: object, said: str, refused: Callable[..., str]) -> None:
    file = put(tmp_path / "model.pt", content)
    found = refused(InputError, convert, file, tmp_path / "out")
    assert found.startswith(f"{file}: ")
    assert said in found
    assert not (tmp_path / "out").exists()


def test_a_tensor_larger_than_its_file_is_damage(tmp_path: Path, refused: Callable[..., str]) -> None:
    """One number that says it is a petabyte."""
    file = put(tmp_path / "model.pt", {"a": torch.ones(1).expand(10**15)})
    assert "shape [1000000000000000] of float32" in refused(DamagedError, convert, file, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk", b"\x80\x02."])
def test_what_is_no_checkpoint_is_damage(tmp_path: Path, content: bytes, refused: Callable[..., str]) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises((DamagedError, InputError)) as caught:
        convert(tmp_path / "model.pt", tmp_path / "out")
    assert str(caught.value).startswith(str(tmp_path / "model.pt"))
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_every_cut_is_damage(tmp_path: Path) -> None:
    whole = put(tmp_path / "model.pt", STATE).read_bytes()
    for length in range(0, len(whole) - 1, 97):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        with pytest.raises((DamagedError, InputError)):
            convert(tmp_path / "cut.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_requests_that_do_not_fit_write_nothing(
    capsys: pytest.CaptureFixture[str], release: Path, tmp_path: Path
) -> None:
    (taken := tmp_path / "taken").mkdir()
    (several := tmp_path / "several").mkdir()
    put(several / "a.pt", STATE), put(several / "b.pth", STATE)
    ready, empty = ouro_folder(tmp_path / "ready"), tmp_path / "empty"
    empty.mkdir()
    os.mkfifo(tmp_path / "fifo.pt")
    before = sorted(tmp_path.rglob("*"))
    for source, out, code, said in (
        (release, taken, 2, "exists already, as a folder; give a folder that does not"),
        (release, tmp_path / "none" / "out", 2, "there is no folder"),
        (tmp_path / "none", tmp_path / "out", 2, "there is no such file or folder"),
        (several, tmp_path / "out", 2, "several pickled files, a.pt, b.pth; give the one with the weights"),
        (empty, tmp_path / "out", 2, "has no pickled weights"),
        (ready, tmp_path / "out", 2, "as safetensors already; there is nothing to convert"),
        (ready / "model.safetensors", tmp_path / "out", 2, "is safetensors already; there is nothing to convert"),
        (tmp_path / "fifo.pt", tmp_path / "out", 3, "expected a file, found something else"),
    ):
        found, out_, err = loopscope(capsys, "lm", "convert", str(source), "--out", str(out))
        assert (found, out_, err.count("\n")) == (code, "", 1), err
        assert said in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_snapshot_of_the_hub_is_converted_and_named(
    release: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    snapshot = put_snapshot(tmp_path / "cache", release)
    convert(snapshot, tmp_path / "out")
    assert same(load(tmp_path / "out").state_dict(), weights())
    notes = json.loads((tmp_path / "out" / "source.json").read_text(encoding="utf-8"))
    assert notes["hub"] == {"name": NAME, "commit": COMMIT}
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to(release / "tokenizer.json")
    assert "which is not followed" in refused(DamagedError, convert, snapshot, tmp_path / "no")


def test_the_folder_is_checked_by_its_sums(release: Path, tmp_path: Path) -> None:
    convert(release, tmp_path / "out")
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "out", check=True)


# ---- nothing else opens a pickle -------------------------------------------------------------------------------------

ROOT = Path(str(package.__file__)).parent
OPENS = "models/convert.py"
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def openers(text: str) -> set[str]:
    """What in a text could open a pickle: modules that do, `torch.load`, and NumPy's permission."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names} & MODULES
            case ast.ImportFrom(module=module, names=names):
                found |= {str(module)} & MODULES
                found |= {"torch.load" for each in names if module == "torch" and each.name == "load"}
            case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
                found.add("torch.load")
            case ast.keyword(arg="weights_only" | "allow_pickle" as name):
                found.add(name)
    return found


def test_one_file_opens_pickles_and_no_other() -> None:
    found = {str(file.relative_to(ROOT)): openers(file.read_text(encoding="utf-8")) for file in ROOT.rglob("*.py")}
    assert found.pop(OPENS) == {"pickle", "torch.load", "weights_only"}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from pickle import loads", "from torch import load", "x = torch.load(f)", "f(allow_pickle=1)"],
)
def test_every_way_to_open_one_is_seen(text: str) -> None:
    assert openers(text)
