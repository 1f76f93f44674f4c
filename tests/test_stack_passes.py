"""Passes, decoding, commands and training of every family of stacks, whole and with some layers looped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.models.decoding import generate, pad_left
from loopscope.models.folders import outline
from loopscope.models.steering import check_fitted, read_fitted
from loopscope.program import as_program
from loopscope.store.store import Store
from loopscope.training.lm.jobs import Settings, finetune, fit
from tests.commands import loopscope
from tests.stack_tiny import FAMILY_CONFIGS, original, tiny_stack
from tests.tiny import ROWS, tiny_tokens
from tests.tuning_tiny import small, sources, tuning_folder

FAMILIES = pytest.mark.parametrize("kind", list(FAMILY_CONFIGS))
LOOPS = pytest.mark.parametrize("loop", [None, "2"])


@FAMILIES
@LOOPS
def test_a_pass_is_the_plain_definition_and_padding_does_not_move_an_example(kind: str, loop: str | None) -> None:
    stack, tokens = tiny_stack(kind, loop=loop), tiny_tokens(3)
    padded = torch.cat([torch.full((3, 4), 7), tokens], 1)
    mask = torch.arange(ROWS + 4).expand(3, -1) >= 4
    with torch.no_grad():
        expected = plain_run(stack, {"main": tokens}, as_program("F2")).read("h2")
        torch.testing.assert_close(stack(tokens, 2), expected, rtol=0, atol=5e-5)
        torch.testing.assert_close(stack(padded, 2, mask=mask)[:, 4:], expected, rtol=0, atol=5e-5)


@FAMILIES
def test_one_loop_says_what_transformers_generates(kind: str) -> None:
    """Prompts of several lengths, padded on the left: the tokens of transformers' own greedy decoding."""
    whole = tiny_stack(kind)
    tokens, mask = pad_left([[1, 5, 3, 2], [4], [7, 0]])
    asked = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = original(kind, whole).generate(tokens, attention_mask=mask.long(), **asked)[:, 4:]
    for stack in (whole, tiny_stack(kind, loop="2")):
        assert torch.equal(generate(stack, tokens, "F", new=6, mask=mask, stop=()).tokens, expected)


@FAMILIES
def test_a_cache_holds_every_part(kind: str) -> None:
    stack = tiny_stack(kind, loop="2").double()
    tokens, mask = pad_left([[1, 5, 3, 2], [4], [7, 0]])
    found = generate(stack, tokens, "F3", new=8, mask=mask, stop=()).tokens
    assert torch.equal(found, generate(stack, tokens, "F3", new=8, mask=mask, stop=(), cached=False).tokens)


def test_the_commands_take_a_loop(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, file = str(tuning_folder(tmp_path / "llama")), str(tmp_path / "out")
    asked = ("lm", "readouts", folder, "--ids", "[[1, 5, 3]]", "--out", file, "--force", "--json")
    code, out, err = loopscope(capsys, *asked, "--loop", "2", "--loops", "1")
    assert (code, err, json.loads(out)["loop"]) == (0, "", "2")
    with torch.no_grad():
        whole_model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        expected = whole_model(torch.tensor([[1, 5, 3]])).logits
    torch.testing.assert_close(load_file(file)["logits_by_loop"][0], expected, rtol=0, atol=5e-5)
    assert loopscope(capsys, *asked, "--loop-layers", "1-2", "--loops", "3")[0] == 0
    whole = load_file(file)["logits_by_loop"]
    assert loopscope(capsys, *asked, "--loop-layers", "1", "--loops", "3")[0] == 0
    part = load_file(file)["logits_by_loop"]
    torch.testing.assert_close(part[0], whole[0], rtol=0, atol=5e-5)
    assert (part[2] - whole[2]).abs().max() > 0.01
    assert "loop" not in json.loads(loopscope(capsys, *asked)[1])
    texts = ("--text", "3 4", "--from", "4 3", "--program", "F2", "--json")
    code, out, err = loopscope(capsys, "lm", "sweep", folder, "resid", *texts, "--loop-layers", "2", "--loop", "2")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (code, found["loop"], [each["address"] for each in found["places"]]) == (0, "2", ["loop[2].layer[1].resid"])
    assert "--loop " not in loopscope(capsys, "lm", "readouts", "--help")[1]
    code, out, err = loopscope(capsys, *asked, "--loop", "1", "--loop-layers", "1")
    assert (code, out, err) == (2, "", "loopscope: --loop and --loop-layers are one option; give --loop-layers\n")
    code, out, err = loopscope(capsys, "lm", "readouts", folder, "--ids", "[[1]]", "--loop-layers", "2-7")
    assert (code, out) == (2, "")
    assert err.endswith("loop 2-7 does not exist: the model has 2 layers (nearest: 2)\n")


def test_training_keeps_which_layers_are_looped(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder, settings = tuning_folder(tmp_path / "llama"), Settings(torch.device("cpu"))
    recipe, of = small("smol-letter", "updates=2"), {"sources": sources()}
    plain = finetune(folder, recipe, tmp_path / "plain", Store(tmp_path / "store"), settings, **of)
    tuned = finetune(folder, recipe, tmp_path / "tuned", Store(tmp_path / "store"), settings, **of, loop="2")
    kept = json.loads((tuned.folder / "loopscope.json").read_text())
    assert (kept["loop"], outline(tuned.folder).loop) == ("2", "2")
    assert "loop" not in json.loads((plain.folder / "loopscope.json").read_text())
    step = small("letter-map", "updates=2", "boundary=none")
    done = fit(tuned.folder, step, Store(tmp_path / "store"), settings, **of)
    fitted = read_fitted(done.folder)
    assert fitted is not None
    assert fitted.loop == "2"
    assert check_fitted(done.folder, tuned.folder, "none", loop="2").text == "fitted to this model"
    said = refused(InputError, check_fitted, done.folder, tuned.folder, "none")
    assert "was fitted with layers 2 looped, but" in said
    assert "is run with all layers looped; --any-map" in said
    other = fit(tuned.folder, step, Store(tmp_path / "store"), settings, **of, loop="1-2")
    assert other.key != done.key
    assert read_fitted(other.folder).loop is None  # type: ignore[union-attr]
