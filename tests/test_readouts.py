"""What every loop would say: equal to the public code, and written whole or not at all."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from loopscope.errors import InputError, NotFiniteError
from loopscope.execute.executor import run
from loopscope.measure.readouts import read_loops, write_readouts
from loopscope.store import tensors as module
from loopscope.store.files import StoreError
from loopscope.store.tensors import write_tensors
from tests.ouro_tiny import golden, tiny_ouro
from tests.stack_tiny import tiny_stack
from tests.tiny import ROWS, tiny_tokens


def test_logits_and_gates_of_every_loop_equal_the_public_code() -> None:
    found = read_loops(tiny_ouro(), golden()["input_ids"])
    torch.testing.assert_close(found.logits, golden()["logits_by_loop"], rtol=0, atol=1e-5)
    torch.testing.assert_close(found.gates, golden()["gate_logits_by_loop"], rtol=0, atol=1e-5)
    last = read_loops(tiny_ouro(), golden()["input_ids"], loops=2, last=True)
    torch.testing.assert_close(last.logits, found.logits[:2, :, -1:], rtol=0, atol=1e-6)
    mask = golden()["padded.attention_mask"].bool()
    padded = read_loops(tiny_ouro(), golden()["input_ids"], mask=mask)
    expected = golden()["padded.logits_by_loop"]
    torch.testing.assert_close(padded.logits[:, mask], expected[:, mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize("boundary", ["none", "norm"])
def test_a_stack_is_read_as_the_executor_reads_it(boundary: Any) -> None:
    stack, tokens = tiny_stack("llama", boundary), tiny_tokens(2)
    found = read_loops(stack, tokens)
    trace = run(stack, tokens, "F3", read="calls", rows=range(ROWS))["F3"]
    assert found.gates is None
    for loop in (1, 2, 3):
        torch.testing.assert_close(found.logits[loop - 1], trace.logits_at[f"h{loop}"], rtol=1e-5, atol=2e-5)


def test_the_likeliest_tokens_come_first() -> None:
    found = read_loops(tiny_ouro(), golden()["input_ids"])
    ids, shares = found.top(3)
    last = golden()["logits_by_loop"][:, :, -1].softmax(-1)
    assert torch.equal(ids[..., 0], last.argmax(-1))
    torch.testing.assert_close(shares, last.gather(-1, ids), rtol=0, atol=1e-5)
    assert (shares[..., :-1] >= shares[..., 1:]).all()
    everything, all_shares = found.top(1000)
    assert everything.shape[-1] == 96
    torch.testing.assert_close(all_shares.sum(-1), torch.ones(4, 3))


def test_a_file_holds_what_was_read(tmp_path: Path) -> None:
    file = tmp_path / "out.safetensors"
    for model in (tiny_ouro(), tiny_ouro(torch.bfloat16)):
        found = read_loops(model, golden()["input_ids"])
        write_readouts(file, found, force=True)  # the second replaces the first
        stored = load_file(file)
        assert stored["logits_by_loop"].shape == (4, 3, 13, 96)
        assert stored["logits_by_loop"].dtype == torch.float32
        assert torch.equal(stored["logits_by_loop"], found.logits)
        assert torch.equal(stored["gate_logits_by_loop"], found.gates)
        assert torch.equal(stored["tokens"], golden()["input_ids"])
        assert stored["mask"].all()
    assert [path.name for path in tmp_path.iterdir()] == ["out.safetensors"]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_loops(tiny_ouro(), golden()["input_ids"])
    assert "there is no folder" in refused(InputError, write_readouts, tmp_path / "none" / "out", found)
    file = tmp_path / "out.safetensors"
    write_tensors(file, {"before": torch.zeros(2)})
    before = [("out.safetensors", file.read_bytes())]

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # as a full disk
    try:
        assert "cannot write" in refused(StoreError, write_readouts, file, found, True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == before

    def interrupted(tensors: object, path: Path, about: object) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_readouts(file, found, force=True)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == before


def test_states_that_overflow_are_told(refused: Callable[..., str]) -> None:
    model = tiny_ouro()
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 1e38
        model.lm_head.weight[0, 1] = 3e38
        model.model.norm.weight[1] = 1e3
    said = refused(NotFiniteError, read_loops, model, golden()["input_ids"])
    assert said.startswith("the numbers of 'F4' are not finite from the logits after loop 1 on, in float32; ")
    said = refused(InputError, lambda: read_loops(model, golden()["input_ids"], loops=0))
    assert said.startswith("loops must be at least 1, not 0")
