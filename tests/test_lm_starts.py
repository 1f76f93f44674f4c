"""Readouts from other starts, and of models with rows of puzzles in front."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.measure.readouts import read_loops
from loopscope.program import Program, Seed, Zeros
from tests.commands import loopscope
from tests.kinds import KINDS, VOCABULARY
from tests.model_folders import ouro_folder
from tests.ouro_tiny import golden, tiny_ouro
from tests.tiny import tiny_tokens


def test_a_start_may_be_given_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, file, out = (
        str(ouro_folder(tmp_path / "ouro")),
        tmp_path / "start.safetensors",
        tmp_path / "out.safetensors",
    )
    ids = golden()["input_ids"]
    save_file({"state": tiny_ouro().embed(ids).detach()}, file)
    asked = ["lm", "readouts", folder, "--ids", str(ids.tolist()), "--loops", "3", "--out", str(out)]
    code, _, err = loopscope(capsys, *asked, "--start", str(file))
    assert (code, err) == (0, "")
    torch.testing.assert_close(load_file(out)["logits_by_loop"], golden()["logits_by_loop"][:3], rtol=0, atol=1e-5)
    out.unlink()
    other = tmp_path / "other.safetensors"
    save_file({"state": torch.zeros(3, 12, 48)}, other)
    save_file({"states": torch.zeros(3, 13, 48)}, tmp_path / "named.safetensors")
    (tmp_path / "text.safetensors").write_text("none")
    wrong = {
        ("--start", "zeros"): "forgets its input",
        ("--start", "seed:3"): "this model starts from its input (leave out seed:3)",
        ("--start", "seed:-1"): "--start seed:K takes a whole number from 0, not '-1'",
        ("--start", "zero"): "--start takes zeros, seed:K or a safetensors file; there is no file 'zero'",
        ("--start", str(other)): "must be [3, 13, 48], not torch.float32 [3, 12, 48]",
        ("--start", str(tmp_path / "named.safetensors")): "must hold one tensor 'state', not states",
        ("--start", str(tmp_path / "text.safetensors")): "cannot read a state from",
        ("--start", str(tmp_path)): "cannot read a state from",
        ("--puzzles", "[0, 1, 2]"): "no rows for puzzles",
        ("--puzzles", "0"): '--puzzles takes a list of whole numbers, such as "[0, 2]"',
    }
    for options, says in wrong.items():
        code, said, err = loopscope(capsys, *asked, *options)
        assert (code, said) == (2, ""), options
        assert says in err, (options, err)
        assert len(err.splitlines()) == 1, err
        assert not out.exists()


@pytest.mark.parametrize("start", [None, Seed(2), Zeros()])
def test_loops_are_read_through_the_coda_from_any_start(start: Any) -> None:
    model, tokens = KINDS["everything"](), tiny_tokens(2)
    found = read_loops(model, tokens, loops=2, start=start)
    plain = plain_run(model, {"main": tokens}, Program(Program.parse("F2").steps, start))
    for loop in (1, 2):
        torch.testing.assert_close(found.logits[loop - 1], plain.read(f"h{loop}").float())
    state = plain.states["h0"]
    torch.testing.assert_close(read_loops(model, tokens, loops=2, state=state).logits, found.logits)
    last = read_loops(model, tokens, loops=2, start=start, last=True)
    torch.testing.assert_close(last.logits, found.logits[:, :, -1:])


class Puzzled(type(KINDS["full mask"]())):  # type: ignore[misc]
    """Two rows of a puzzle stand in front; their ids are behind those of tokens."""

    lead = 2

    def embed(self, tokens: Tensor) -> Tensor:
        return super().embed(tokens % VOCABULARY) * (1 + tokens[..., None] // VOCABULARY)

    def with_puzzles(self, tokens: Tensor, puzzles: Any) -> Tensor:
        front = VOCABULARY + 2 * torch.as_tensor(puzzles)[:, None] + torch.arange(2)
        return torch.cat([front, tokens], 1)


def test_rows_of_puzzles_are_in_front_and_not_read(refused: Callable[..., str]) -> None:
    torch.manual_seed(0)
    model, tokens = Puzzled().double(), tiny_tokens(2)
    mask = torch.arange(7) >= torch.tensor([[0], [2]])
    found = read_loops(model, tokens, mask=mask, puzzles=[3, 1])
    assert found.logits.shape == (3, 2, 7, VOCABULARY)
    assert torch.equal(found.mask, mask)
    for number, puzzle in enumerate((3, 1)):
        text = model.with_puzzles(tokens[number, mask[number]][None], [puzzle])
        plain = plain_run(model, {"main": text}, Program.parse("F3"))
        for loop in (1, 2, 3):
            expected = plain.read(f"h{loop}")[0, 2:].float()
            torch.testing.assert_close(found.logits[loop - 1, number, mask[number]], expected)
    assert "2 texts need as many puzzles, not 1" in refused(InputError, lambda: read_loops(model, tokens, puzzles=[1]))
