"""Models from nothing: what their folders hold, that every command takes them, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from loopscope.errors import InputError
from loopscope.models.folders import load
from loopscope.models.text import load_tokenizer
from loopscope.training.lm.new_model import Like, Shape, write_new
from tests.commands import loopscope
from tests.tuning_tiny import tuning_folder

SIZES: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuning_folder(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("like", ["llama", "ouro"])
def test_a_new_folder_is_a_released_one_with_random_weights(tmp_path: Path, released: Path, like: Like) -> None:
    count = write_new(tmp_path / "new", Shape(like, **SIZES, loops=3), released, seed=5)
    model = load(tmp_path / "new")
    assert (model.loops, model.boundary, len(model.layers), model.width, model.heads) == (3, "norm", 2, 32, 4)
    assert (model.ends, model.positions) == ((2,), 8192)
    assert count == sum(each.numel() for each in model.parameters())
    tokenizer = load_tokenizer(tmp_path / "new")
    assert model.vocabulary == tokenizer.parts.get_vocab_size()
    assert tokenizer.template == load_tokenizer(released).template
    for name, each in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            assert torch.equal(each, torch.full_like(each, float("norm" in name)))
        elif each.numel() > 500:  # of 1 / sqrt(32)
            assert float(each.detach().std()) == pytest.approx(32**-0.5, rel=0.1)
    assert {file.name for file in (tmp_path / "new").iterdir()} == {
        "SHA256SUMS", "config.json", "loopscope.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    tokens = torch.tensor([[5, 9, 2]])
    if like == "llama":
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
        with torch.no_grad():
            torch.testing.assert_close(model(tokens, loops=1), plain(tokens).logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize("like", ["llama", "ouro"])
def test_weights_are_a_function_of_the_seed(tmp_path: Path, released: Path, like: Like) -> None:
    before = torch.random.get_rng_state()
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_new(tmp_path / name, Shape(like, **SIZES), released, seed=seed)
    assert torch.equal(torch.random.get_rng_state(), before)
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())
    assert any(not torch.equal(tensor, c[name]) for name, tensor in a.items())


def test_special_tokens_without_a_config_are_the_tokenizers(tmp_path: Path, released: Path) -> None:
    (tmp_path / "words").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "words" / name).write_bytes((released / name).read_bytes())
    write_new(tmp_path / "new", Shape("llama", **SIZES), tmp_path / "words")
    config = json.loads((tmp_path / "new" / "config.json").read_text(encoding="utf-8"))
    assert (config["eos_token_id"], config["bos_token_id"]) == (2, None)


def test_what_cannot_be_made(
    tmp_path: Path, released: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(seed: int = 0, out: str = "new", **changes: Any) -> None:
        write_new(tmp_path / out, Shape(**{"like": "llama", **SIZES, **changes}), released, seed)

    assert "layers must be at least 1, not 0" in refused(InputError, lambda: made(layers=0))
    assert "(nearest: 32)" in refused(InputError, lambda: made(width=33))
    assert "there is no boundary 'none'" in refused(InputError, lambda: made(like="ouro", boundary="none"))
    assert "a seed is from 0" in refused(InputError, lambda: made(seed=-1))
    monkeypatch.setattr("loopscope.training.lm.new_model.free_memory", lambda device: 1000)
    assert "weights take 0.0 GiB" in refused(InputError, made)
    assert not list(tmp_path.iterdir())


def test_new_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["lm", "new", "--tokenizer", str(released), "--layers", "1", "--width", "16", "--heads", "2", "--out"]
    code, out, _ = loopscope(capsys, *asked, "new", "--boundary", "none", "--loops", "2")
    assert (code, load(tmp_path / "new").boundary, load(tmp_path / "new").loops) == (0, "none", 2)
    assert "boundary none" in out
    code, out, _ = loopscope(capsys, *asked, "other", "--like", "ouro", "--json")
    assert (code, json.loads(out)["like"]) == (0, "ouro")
    mistakes = {
        ("new",): "exists already",
        ("no/x",): "there is no folder",
        ("x", "--like", "lama"): "(nearest: llama)",
        ("x", "--boundary", "nrom"): "(nearest: norm)",
        ("x", "--heads", "3"): "3 heads of an even size",
        ("x", "--tokenizer", "no"): "no is no language model: there is no such folder",
        ("x", "--tokenizer", "."): "has no tokenizer.json",
    }
    for arguments, said in mistakes.items():
        code, out, err = loopscope(capsys, *asked, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), (arguments, err)
        assert said in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "other"]


def test_all_that_is_made_on_the_way_lies_in_the_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that of a killed run nothing is left that the next one, or whoever removes drafts, does not know."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "models").mkdir()

    def killed(*_: object) -> None:
        (draft,) = (tmp_path / "models").iterdir()
        assert draft.name.startswith(".draft-")
        assert not list((tmp_path / "temporary").iterdir())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("loopscope.training.lm.new_model._drawn", killed)
        with pytest.raises(KeyboardInterrupt):
            write_new(tmp_path / "models" / "new", Shape("llama", **SIZES), None, words="letters")
    assert not list((tmp_path / "models").iterdir())
    write_new(tmp_path / "models" / "new", Shape("llama", **SIZES), None, words="letters")
    assert [each.name for each in (tmp_path / "models").iterdir()] == ["new"]
    assert all(each.is_file() for each in (tmp_path / "models" / "new").iterdir())
