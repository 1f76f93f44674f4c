"""`loopscope lm`: a model fetched and read from the command line; one line and nothing left behind where it fails."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopscope.models import smollm2
from tests.commands import loopscope
from tests.gguf_tiny import put_wheel, tiny_gguf
from tests.model_folders import ouro_folder, stack_folder, tiny_tokenizer
from tests.ouro_tiny import golden

IDS = json.dumps(golden()["input_ids"].tolist())


@pytest.fixture
def ouro(tmp_path: Path) -> str:
    return str(ouro_folder(tmp_path / "ouro"))


def test_logits_of_every_loop_equal_the_public_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ouro: str
) -> None:
    file = tmp_path / "out.safetensors"
    code, out, err = loopscope(capsys, "lm", "readouts", ouro, "--ids", IDS, "--out", str(file), "--json")
    assert (code, err) == (0, "")
    found = load_file(file)["logits_by_loop"]
    torch.testing.assert_close(found, golden()["logits_by_loop"], rtol=0, atol=1e-5)
    report = json.loads(out)
    assert (report["model_type"], report["loops"], report["boundary"]) == ("ouro", 4, "norm")
    assert report["out"] == str(file)
    best = [[row["top"][0]["id"] for row in example["loops"]] for example in report["examples"]]
    assert torch.equal(torch.tensor(best).T, golden()["logits_by_loop"][:, :, -1].argmax(-1))
    gates = [[row["gate"] for row in example["loops"]] for example in report["examples"]]
    torch.testing.assert_close(
        torch.tensor(gates).T, golden()["gate_logits_by_loop"][:, :, -1].sigmoid(), rtol=0, atol=1e-5
    )
    code, out, _ = loopscope(
        capsys, "lm", "readouts", ouro, "--ids", IDS, "--loops", "2", "--out", str(file), "--force"
    )
    assert code == 0
    assert "exit gate" in out
    torch.testing.assert_close(load_file(file)["logits_by_loop"], golden()["logits_by_loop"][:2], rtol=0, atol=1e-5)


def test_readouts_and_sweeps_are_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path, ouro: str) -> None:
    picture, drawing = tmp_path / "read.svg", tmp_path / "sweep.png"
    code, out, err = loopscope(capsys, "lm", "readouts", ouro, "--text", "ab a 12", "--plot", str(picture))
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"picture of the first text: {picture}"
    assert picture.read_text().startswith("<?xml")
    texts = "--text", "ab a 12", "--from", "ab a 34"
    code, out, err = loopscope(capsys, "lm", "sweep", ouro, "z", *texts, "--each-head", "--plot", str(drawing))
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"written: {drawing}"
    assert drawing.read_bytes().startswith(b"\x89PNG")
    for name, said in (("x.gif", "pictures are .png, .svg or .pdf files, not x.gif"), ("read.svg", "exists already")):
        code, out, err = loopscope(capsys, "lm", "readouts", ouro, "--text", "a", "--plot", str(tmp_path / name))
        assert (code, out) == (2, "")
        assert said in err
        assert not (tmp_path / "x.gif").exists()


def test_texts_of_several_lengths_are_read_as_each_alone(capsys: pytest.CaptureFixture[str], ouro: str) -> None:
    def read(*arguments: str) -> list[dict[str, object]]:
        code, out, err = loopscope(capsys, "lm", "readouts", ouro, *arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)["examples"]

    together = read("--text", "ab a 12", "--text", "b")
    for text, found in zip(("ab a 12", "b"), together, strict=True):
        assert found["tokens"] == tiny_tokenizer().encode(text).ids
        (alone,) = read("--text", text)
        assert [[t["token"] for t in row["top"]] for row in found["loops"]] == [  # type: ignore[attr-defined, index]
            [t["token"] for t in row["top"]]
            for row in alone["loops"]  # type: ignore[attr-defined, index]
        ]
    (chat,) = read("--text", "ab", "--chat")
    rendered = AutoTokenizer.from_pretrained(ouro).apply_chat_template(
        [{"role": "user", "content": "ab"}], add_generation_prompt=True, return_dict=False
    )
    assert chat["tokens"] == rendered
    code, out, _ = loopscope(capsys, "lm", "readouts", ouro, "--text", "ab", "--top", "2")
    assert code == 0
    assert "likeliest next tokens" in out


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_stack_is_read_without_a_tokenizer(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    folder, file = stack_folder(tmp_path / kind, kind), tmp_path / "out"
    asked = ["lm", "readouts", str(folder), "--ids", "[[1, 5, 3], [4]]", "--out", str(file), "--force"]
    code, out, err = loopscope(capsys, *asked, "--loops", "1")
    assert (code, err) == (0, "")
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([[1, 5, 3]])).logits
    torch.testing.assert_close(load_file(file)["logits_by_loop"][0, :1], expected, rtol=0, atol=2e-5)
    assert load_file(file)["mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    code, out, _ = loopscope(capsys, *asked, "--json")
    assert (code, json.loads(out)["loops"], json.loads(out)["boundary"]) == (0, 4, "none")
    plain = load_file(file)["logits_by_loop"]
    assert loopscope(capsys, *asked, "--boundary", "norm")[0] == 0
    normed = load_file(file)["logits_by_loop"]
    torch.testing.assert_close(plain[0], normed[0], rtol=0, atol=2e-5)
    assert (plain[1] - normed[1]).abs().max() > 0.1


def test_logits_in_bf16_are_near_those_in_fp32(capsys: pytest.CaptureFixture[str], tmp_path: Path, ouro: str) -> None:
    file = tmp_path / "out"
    for dtype, far in (("fp32", 1e-5), ("bf16", 0.2)):
        asked = ("--ids", IDS, "--out", str(file), "--force", "--dtype", dtype, "--json")
        code, out, err = loopscope(capsys, "lm", "readouts", ouro, *asked)
        assert (code, err, json.loads(out)["dtype"]) == (0, "", dtype)
        apart = (load_file(file)["logits_by_loop"] - golden()["logits_by_loop"]).abs().max()
        assert apart < far
    assert apart > 1e-4


def test_mistakes_get_one_line_and_leave_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ouro: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stack_folder(tmp_path / "llama", "llama")
    cases: list[tuple[list[str], str]] = [
        ([], "give either --text or --ids"),
        (["--text", "a", "--ids", "[[1]]"], "give either --text or --ids"),
        (["--ids", "[[1]]", "--chat"], "give --text"),
        (["--ids", "[[1, 96]]"], "token 96 is outside 0..95 (nearest: 95)"),
        (["--ids", "[[1, -1]]"], "-1 is no token"),
        (["--ids", "[[1, 1e3]]"], "1000.0 is no token"),
        (["--ids", "[[true]]"], "true is no token"),
        (["--ids", f"[[{10**30}]]"], "is no token"),
        (["--ids", "[1, 2]"], "takes a list of lists of tokens"),
        (["--ids", "7"], "takes a list of lists of tokens"),
        (["--ids", "[[1"], "takes a list of lists of tokens"),
        (["--ids", "[" * 100_000], "takes a list of lists of tokens"),
        (["--ids", "[]"], "every prompt needs at least one token"),
        (["--ids", "[[1], []]"], "every prompt needs at least one token"),
        (["--text", ""], "every prompt needs at least one token"),
        (["--ids", json.dumps([[1] * 257])], "257 tokens given, but the model has 256 positions"),
        (["--ids", "[[1]]", "--loops", "0"], "loops must be at least 1, not 0 (nearest: 1)"),
        (["--ids", "[[1]]", "--loops", "-3"], "loops must be at least 1, not -3"),
        (["--ids", "[[1]]", "--loops", "two"], "--loops"),
        (["--ids", "[[1]]", "--top", "0"], "--top must be at least 1"),
        (["--ids", "[[1]]", "--boundary", "nrom"], "no boundary 'nrom'; there are none, norm (nearest: norm)"),
        (["--ids", "[[1]]", "--boundary", "none"], "Ouro ends every loop with its norm"),
        (["--ids", "[[1]]", "--device", "tpu"], "no device 'tpu'"),
        (["--ids", "[[1]]", "--dtype", "fp16"], "no precision 'fp16'; there are fp32, bf16"),
        (["--ids", "[[1]]", "--out", "none/out"], "there is no folder"),
        (["--ids", "[[1]]", "--out", "."], "as a folder, which is never replaced"),
        (["--ids", "[[1]]", "--out", "ouro/model.safetensors"], "is no file that Loopscope wrote"),
        (["--ids", "[[1]]", "--out", "ouro/model.safetensors", "--force"], "is no file that Loopscope wrote"),
        (["--ids", "[[1]]", "--out", "ouro/new.safetensors"], "among the model's own files"),
        (["--ids", "[[96]]", "--out", "out"], "token 96"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for arguments, message in cases:
        code, out, err = loopscope(capsys, "lm", "readouts", ouro, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert message in err
    for folder, message in (("none", "there is no such folder"), (".", "it has no config.json")):
        code, out, err = loopscope(capsys, "lm", "readouts", folder, "--text", "a")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    code, _, err = loopscope(capsys, "lm", "readouts", "llama", "--text", "a")
    assert (code, err) == (2, "loopscope: llama has no tokenizer.json, so it can be given tokens, but no text\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_damaged_folders_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path, ouro: str) -> None:
    file = tmp_path / "out"
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        victim = Path(ouro) / name
        whole = victim.read_bytes()
        victim.write_bytes(whole[:-20])
        code, out, err = loopscope(capsys, "lm", "readouts", ouro, "--text", "ab", "--out", str(file))
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert f"{victim}: expected " in err
        victim.write_bytes(whole)
    assert not file.exists()


def test_a_model_is_fetched_and_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a shelf instead of the network, with a tiny model in the place of SmolLM2's."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    (tmp_path / "shelf").mkdir()
    folder = tmp_path / "models" / "smol"
    code, _, err = loopscope(capsys, "lm", "get", "smollm2-135m", "--out", str(folder))
    assert (code, err.count("\n")) == (1, 1)
    assert "pip cannot fetch" in err
    assert not folder.parent.exists()
    tiny = tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    put_wheel(tmp_path / "shelf", licence=b"free", model=tiny)
    code, _, err = loopscope(capsys, "lm", "get", "smollm2-135m", "--out", str(folder))
    assert (code, err.count("\n")) == (3, 1)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(tiny).hexdigest())
    code, out, err = loopscope(capsys, "lm", "get", "smollm2-135m", "--out", str(folder), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["folder"] == str(folder)
    code, out, _ = loopscope(capsys, "lm", "readouts", str(folder), "--text", "ab 12", "--json")
    (example,) = json.loads(out)["examples"]
    assert (code, len(example["tokens"]), len(example["loops"])) == (0, 4, 4)
    code, _, err = loopscope(capsys, "lm", "get", "smollm2-135m", "--out", str(folder))
    assert (code, err) == (2, f"loopscope: {folder} exists already, as a folder; give a folder that does not\n")
    code, _, err = loopscope(capsys, "lm", "get", "smollm", "--out", str(tmp_path / "x"))
    assert (code, "(nearest: smollm2-135m)" in err) == (2, True)
    assert loopscope(capsys, "lm", "get", "smollm2-135m")[0] == 2


def test_without_the_extra_one_line_says_what_to_install(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ouro: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ouro needs it for text only; Qwen3 and Llama, and fetching, need it always."""
    llama, new = stack_folder(tmp_path / "llama", "llama"), tmp_path / "new"
    for name in ("transformers", "tokenizers", "gguf"):
        monkeypatch.setitem(sys.modules, name, None)
    cases = [
        (["readouts", ouro, "--text", "a"], "reading text needs the package tokenizers"),
        (["readouts", str(llama), "--ids", "[[1]]"], "a looped pretrained model needs the package transformers"),
        (["get", "smollm2-135m", "--out", str(new)], "reading a GGUF file needs the package gguf"),
    ]
    for arguments, said in cases:
        code, out, err = loopscope(capsys, "lm", *arguments)
        assert (code, out) == (2, "")
        assert err.endswith(f"{said}: pip install 'loopscope[lm]'\n")
        assert err.count("\n") == 1
    assert not new.exists()
    code, out, _ = loopscope(capsys, "lm", "readouts", ouro, "--ids", "[[1, 2]]", "--json")
    assert code == 0
    assert json.loads(out)["examples"][0]["loops"][0]["top"][0]["token"] is None
