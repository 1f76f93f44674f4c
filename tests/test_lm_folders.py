"""Released folders: loaded as they are, or refused in one line with what was expected and found."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from loopscope.errors import DamagedError, InputError
from loopscope.models.folders import ADAPTERS, load, outline, weights_sha256
from loopscope.models.stacks import LoopedStack, stack_from_config
from tests.model_folders import stack_folder
from tests.ouro_tiny import CONFIG, golden, weights, write_folder
from tests.stack_tiny import CONFIGS
from tests.tiny import tiny_tokens


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_gives_the_model_of_the_public_code(tmp_path: Path, shards: int) -> None:
    folder = write_folder(tmp_path / "ouro", weights(), shards=shards)
    model = load(folder)
    assert not model.training
    assert not any(p.is_meta for p in model.parameters())
    with torch.no_grad():
        logits = model(golden()["input_ids"])
    torch.testing.assert_close(logits, golden()["logits_by_loop"][3], rtol=0, atol=1e-5)
    found = model.state_dict()
    assert found.keys() == weights().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights().items())


def test_the_type_is_that_of_the_files_unless_chosen(tmp_path: Path, refused: Callable[..., str]) -> None:
    half = {name: tensor.bfloat16() for name, tensor in weights().items()}
    folder = write_folder(tmp_path / "half", half)
    assert {p.dtype for p in load(folder).parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load(folder, dtype=torch.float32).parameters()} == {torch.float32}
    mixed = write_folder(tmp_path / "mixed", half | {"model.norm.weight": weights()["model.norm.weight"]})
    assert "several types, bfloat16 and float32; choose one with dtype" in refused(InputError, load, mixed)
    assert {p.dtype for p in load(mixed, dtype=torch.float32).parameters()} == {torch.float32}


def test_a_loaded_model_does_not_hang_on_its_file(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "ouro", weights())
    model = load(folder)
    (folder / "model.safetensors").write_bytes(b"")
    assert torch.equal(model.lm_head.weight, weights()["lm_head.weight"])


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    config = CONFIG | {"auto_map": {"AutoModelForCausalLM": "modeling_ouro.OuroForCausalLM"}}
    folder = write_folder(tmp_path / "ouro", weights(), config)
    (folder / "modeling_ouro.py").write_text("raise SystemExit('run')", encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    load(folder)


@pytest.mark.parametrize(("kind", "copied"), [("qwen3", False), ("llama", False), ("qwen3", True), ("llama", True)])
def test_a_folder_of_transformers_gives_a_looped_stack(tmp_path: Path, kind: str, copied: bool) -> None:
    """Also where a file holds a tied head a second time."""
    folder = tmp_path / "stack"
    if kind == "qwen3" and copied:  # tied, which the small one is not
        plain = stack_from_config(CONFIGS[kind] | {"tie_word_embeddings": True})
        write_folder(folder, {**plain.state_dict(), "lm_head.weight": plain.model.embed_tokens.weight.detach().clone()})
        (folder / "config.json").write_text(json.dumps(CONFIGS[kind] | {"tie_word_embeddings": True}), encoding="utf-8")
    else:
        stack_folder(folder, kind, copied)
    model, tokens = load(folder), tiny_tokens(2)
    assert isinstance(model, LoopedStack)
    assert not model.training
    assert (model.loops, model.boundary) == (4, "none")
    assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
        torch.testing.assert_close(model(tokens, loops=1), expected, rtol=0, atol=2e-5)
    half = load(folder, loops=2, boundary="norm", dtype=torch.bfloat16)
    assert (half.loops, half.boundary) == (2, "norm")
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert half.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_tied_head_that_is_another_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = stack_folder(tmp_path / "llama", "llama", copied=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][3, 4] += 1
    save_file(tensors, folder / "model.safetensors")
    assert "lm_head.weight is not model.embed_tokens.weight, though" in refused(InputError, load, folder)


def test_loops_and_boundary_that_do_not_fit_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = write_folder(tmp_path / "ouro", weights())
    assert load(folder, loops=6, boundary="norm").loops == 6
    assert refused(InputError, lambda: load(folder, loops=0)) == "loops must be at least 1, not 0 (nearest: 1)"
    assert "Ouro ends every loop with its norm" in refused(InputError, lambda: load(folder, boundary="none"))


# Folders that are not what was asked for: exit code 2 -----------------------------------------------------------------


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert refused(InputError, load, tmp_path / "none").endswith("is no checkpoint: there is no such folder")
    assert refused(InputError, load, tmp_path).endswith("is no checkpoint: it has no config.json")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    found = refused(InputError, load, tmp_path)
    assert found.endswith("has no weights: neither model.safetensors nor model.safetensors.index.json")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "model.pth"])
def test_a_pickle_is_refused_unopened(tmp_path: Path, refused: Callable[..., str], name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / name).write_bytes(b"cposix\nsystem\n(S'touch ran'\ntR.")
    found = refused(InputError, load, tmp_path)
    assert f"has only pickled weights, {name}, which are never opened unasked; loopscope lm convert {tmp_path}" in found
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["config.json", name])


def test_an_unknown_architecture_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    for kind, near in (("lama", "llama"), ("our", "ouro")):
        folder = write_folder(tmp_path / f"{kind}", weights(), CONFIG | {"model_type": kind})
        found = refused(InputError, load, folder)
        there = ", ".join(ADAPTERS)
        assert found.endswith(f"config.json: model_type '{kind}' is unknown; there are: {there} (nearest: {near})")


def test_a_setting_that_does_not_fit_names_the_file(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = write_folder(tmp_path / "ouro", weights(), CONFIG | {"num_attention_heads": 5})
    found = refused(InputError, load, folder)
    assert found == f"{folder}/config.json: hidden_size 48 does not give 5 heads of an even size"


@pytest.mark.parametrize("shards", [1, 2])
def test_missing_and_extra_tensors_are_refused(tmp_path: Path, refused: Callable[..., str], shards: int) -> None:
    tensors = weights()
    less = {name: tensor for name, tensor in tensors.items() if name != "model.layers.1.mlp.up_proj.weight"}
    found = refused(InputError, load, write_folder(tmp_path / "less", less, shards=shards))
    assert "lacks model.layers.1.mlp.up_proj.weight: expected 38 tensors, found 37" in found
    more = tensors | {"model.layers.3.mlp.up_proj.weight": torch.zeros(112, 48)}
    found = refused(InputError, load, write_folder(tmp_path / "more", more, shards=shards))
    assert "has model.layers.3.mlp.up_proj.weight, which the model has not: expected 38 tensors, found 39" in found


def test_a_shape_that_disagrees_with_the_config_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = write_folder(tmp_path / "ouro", weights(), CONFIG | {"vocab_size": 97})
    found = refused(InputError, load, folder)
    assert "has shape [96, 48], but config.json says [97, 48]" in found


def test_weights_that_are_no_floating_point_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    tensors: dict[str, Tensor] = weights() | {"model.norm.weight": torch.ones(48, dtype=torch.int8)}
    found = refused(InputError, load, write_folder(tmp_path / "ouro", tensors))
    assert "model.norm.weight is of type int8, not of a floating point type" in found


# Damaged files: exit code 3 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]", b""])
def test_a_damaged_config_is_refused(tmp_path: Path, refused: Callable[..., str], content: bytes) -> None:
    folder = write_folder(tmp_path / "ouro", weights())
    (folder / "config.json").write_bytes(content)
    assert refused(DamagedError, load, folder).startswith(f"{folder}/config.json: expected ")


@pytest.mark.parametrize("file", ["config.json", "loopscope.json", "model.safetensors.index.json"])
def test_a_name_that_stands_twice_in_json_is_refused(tmp_path: Path, refused: Callable[..., str], file: str) -> None:
    folder = write_folder(tmp_path / "ouro", weights(), shards=2)
    told = {"loops": 2, "boundary": "norm"} if file == "loopscope.json" else json.loads((folder / file).read_bytes())
    (folder / file).write_text(json.dumps(told), encoding="utf-8")
    assert load(folder).width  # once, it is fine
    name, value = next(reversed(told.items()))
    again = f", {json.dumps(name)}: {json.dumps(value)}}}"
    (folder / file).write_text(json.dumps(told)[:-1] + again, encoding="utf-8")
    assert refused(DamagedError, load, folder) == f"{folder / file}: expected JSON, found {name!r} twice"


@pytest.mark.parametrize("keep", [0, 7, 200, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, refused: Callable[..., str], keep: int) -> None:
    folder = write_folder(tmp_path / "ouro", weights(), shards=2)
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert refused(DamagedError, load, folder).startswith(f"{file}: expected a safetensors file, found ")


def test_a_file_of_another_kind_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = write_folder(tmp_path / "ouro", weights())
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    (folder / "model.safetensors").write_bytes(pointer)
    assert "expected a safetensors file" in refused(DamagedError, load, folder)


def test_what_cannot_be_weights_is_refused_before_it_is_mapped(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = write_folder(tmp_path / "ouro", weights())
    file = folder / "model.safetensors"
    with file.open("r+b") as content:
        content.truncate(2**36)  # sparse: takes no disk, but would take address space
        content.write(bytes(8))
    assert "with a header of 0" in refused(DamagedError, load, folder)
    file.unlink()
    os.mkfifo(file)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    refused(InputError, load, folder)
    placed = {name: "part.safetensors" for name in weights()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}), encoding="utf-8")
    file.unlink()
    os.mkfifo(folder / "part.safetensors")
    assert "expected a file, found something else" in refused(DamagedError, load, folder)


def test_a_tensor_named_twice_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = write_folder(tmp_path / "ouro", weights())
    file = folder / "model.safetensors"
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    again = json.dumps({"lm_head.weight": header["lm_head.weight"]})[1:]
    text = (json.dumps(header)[:-1] + ", " + again).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    assert refused(DamagedError, load, folder).endswith("expected every tensor once, found lm_head.weight twice")


def test_an_index_that_lies_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = write_folder(tmp_path / "ouro", weights(), shards=2)
    index = folder / "model.safetensors.index.json"
    true = json.loads(index.read_text(encoding="utf-8"))
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

    def with_map(weight_map: object) -> str:
        index.write_text(json.dumps(true | {"weight_map": weight_map}), encoding="utf-8")
        return refused(DamagedError, load, folder)

    placed = true["weight_map"]
    assert "which model.safetensors.index.json places there, found no such tensor" in with_map(placed | {"x": one})
    fewer = {name: file for name, file in placed.items() if name != "lm_head.weight"}
    assert "found lm_head.weight as well" in with_map(fewer)
    assert "expected names of files beside it, found '../x'" in with_map(placed | {"lm_head.weight": "../x"})
    for odd in ("a\0b", "x" * 5000, "", ".", 7, "\x1b[2J", "\ud800", f"{folder}/{one}"):
        assert "expected names of files beside it, found" in with_map(placed | {"lm_head.weight": odd})
    assert "expected a weight_map, found None" in with_map(None)
    index.write_text(json.dumps(true), encoding="utf-8")
    (folder / two).unlink()
    assert refused(DamagedError, load, folder) == f"{folder}/{two}: expected a file, found none"


def test_weights_with_nan_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    spoilt = weights()["model.norm.weight"].clone()
    spoilt[3] = torch.nan
    found = refused(DamagedError, load, write_folder(tmp_path / "ouro", weights() | {"model.norm.weight": spoilt}))
    assert found.endswith("expected finite numbers in model.norm.weight, found NaN or infinity")


def test_weights_are_told_apart_by_their_bytes(tmp_path: Path) -> None:
    alone, shards = write_folder(tmp_path / "one", weights()), write_folder(tmp_path / "three", weights(), shards=3)
    assert weights_sha256(alone) == hashlib.sha256((alone / "model.safetensors").read_bytes()).hexdigest()
    before = weights_sha256(shards)
    assert len({weights_sha256(alone), before}) == 2
    file = next(shards.glob("*-00002-*.safetensors"))
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    assert len({before, weights_sha256(shards)}) == 2


def test_an_outline_has_names_and_shapes_but_no_weights(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "ouro", weights())
    (folder / "loopscope.json").write_text('{"loops": 2, "boundary": "norm"}', encoding="utf-8")
    model = outline(folder)
    assert all(each.is_meta for each in model.parameters())
    assert {name: each.shape for name, each in model.named_parameters()} == {n: t.shape for n, t in weights().items()}
    assert (model.loops, outline(folder, loops=7).loops, load(folder).loops) == (2, 7, 2)
