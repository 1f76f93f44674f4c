"""The executor against the plain run on the device that is there: a GPU natively, a CPU elsewhere."""

from __future__ import annotations

import pytest
import torch

from loopscope.address import grid
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.execute.sweeping import sweep
from loopscope.maps import DiagonalLowRank
from loopscope.models.decoding import generate
from loopscope.models.stacks import stack_from_config
from loopscope.pieces import pieces_of
from loopscope.program import F, J, Program, Run
from tests.kinds import KINDS, VOCABULARY

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10}
DTYPES = list(TOLERANCE) if DEVICE.type == "cuda" else [torch.float32]  # other tests have both on a CPU
LLAMA = {
    "model_type": "llama", "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip


def tokens_of(seed: int, examples: int, length: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(0, vocabulary, (examples, length), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_patched_runs_are_plain_runs(kind: str, dtype: torch.dtype) -> None:
    model = KINDS[kind](dtype).to(DEVICE)
    usual = Program.parse(model.usual)
    maps = {"one": DiagonalLowRank(pieces_of(model).state_width, 2, seed=1).to(DEVICE, dtype)}
    inputs = {"main": tokens_of(1, 3, 6), "other": tokens_of(2, 3, 6)}
    programs = [usual, usual | J("one") | usual.steps[-1]]
    for component, heads, rows in (
        ("z", [1], (-1,)),
        ("pattern", [0], (-2,)),
        ("resid", None, (2, 3)),
        ("v", [0], None),
    ):
        for loop in (1, usual.calls):
            (place,) = grid(component, loops=[loop], layers=[1], heads=heads, rows=rows)
            programs.append(usual.patch(place, Run(usual, "other")))
    found = run(model, inputs["main"], programs, maps=maps, others={"other": inputs["other"]}, rows=(-1, 2))
    for program in programs:
        plain = plain_run(model, inputs, program, maps=maps).read(program.points[-1])[:, [-1, 2]]
        assert (found[program].logits - plain).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("stack", [None, 3])
def test_a_sweep_of_a_language_model_is_its_plain_runs(stack: int | None) -> None:
    torch.manual_seed(0)
    model = stack_from_config(LLAMA, 2).to(DEVICE).eval()
    inputs = {"main": tokens_of(1, 2, 9, 50), "other": tokens_of(2, 2, 9, 50)}
    cells = grid("pattern", loops=(1, 2), layers=(1, 2, 3), heads=range(4), rows=(-1,))
    found = sweep(
        model, inputs["main"], F**2, cells, Run(F**2, "other"), others={"other": inputs["other"]}, stack=stack
    )
    for cell, logits in zip(found.addresses, found.logits, strict=True):
        plain = plain_run(model, inputs, (F**2).patch(cell, Run(F**2, "other"))).read("h2")[:, [-1]]
        assert (logits - plain).abs().max() < TOLERANCE[torch.float32]


def test_decoding_with_a_cache_is_decoding_without() -> None:
    torch.manual_seed(0)
    model = stack_from_config(LLAMA, 2).to(DEVICE).eval()
    prompts = tokens_of(3, 2, 5, 50)
    cached, whole = (generate(model, prompts, F**2, new=4, stop=(), cached=each).tokens for each in (True, False))
    assert all(map(torch.equal, cached, whole))
