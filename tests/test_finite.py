"""Numbers that are not finite never end as plausible results, wherever they come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.errors import DamagedError, InputError, NotFiniteError
from loopscope.execute.executor import run
from loopscope.execute.sweeping import sweep
from loopscope.finite import Watch
from loopscope.maps import Dense
from loopscope.measure.readouts import read_loops
from loopscope.models.decoding import generate
from loopscope.models.folders import load
from loopscope.models.ouro import OuroConfig
from loopscope.models.passes import known_tokens, states
from loopscope.models.stacks import LoopedStack, stack_from_config
from loopscope.program import F
from tests.ouro_tiny import CONFIG, golden, tiny_ouro, weights, write_folder
from tests.stack_tiny import CONFIGS, tiny_stack
from tests.tiny import ROWS, tiny_model, tiny_tokens

NAN, INF = float("nan"), float("inf")
BAD = [NAN, INF, -INF, 0, -1e4, 1e300, 10**400, "1e4", True, [1e4], {}]


@pytest.mark.parametrize("base", BAD)
def test_a_rotary_base_that_turns_nothing_is_refused(base: Any, refused: Callable[..., str]) -> None:
    for kind in ("qwen3", "llama"):
        plain = {key: value for key, value in CONFIGS[kind].items() if not key.startswith("rope")}
        assert "rope_theta must be" in refused(InputError, stack_from_config, {**plain, "rope_theta": base})
        group = {"rope_type": "default", "rope_theta": base}
        assert "rope_theta must be" in refused(InputError, stack_from_config, {**plain, "rope_parameters": group})
    assert "rope_theta must be" in refused(InputError, OuroConfig.from_dict, CONFIG | {"rope_theta": base})
    without = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    assert "rope_theta" in refused(
        InputError, OuroConfig.from_dict, without | {"rope_parameters": {"rope_theta": base}}
    )


@pytest.mark.parametrize("value", [NAN, INF, -1.0, "4", True])
@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"])
def test_factors_of_rotary_scalings_are_checked(key: str, value: Any, refused: Callable[..., str]) -> None:
    group = CONFIGS["llama"]["rope_parameters"] | {key: value}
    assert f"{key} must be" in refused(InputError, stack_from_config, CONFIGS["llama"] | {"rope_parameters": group})


@pytest.mark.parametrize("eps", [NAN, INF, 0, -1e-6, 2.0])
def test_what_a_norm_adds_is_positive_and_small(eps: float, refused: Callable[..., str]) -> None:
    assert "rms_norm_eps" in refused(InputError, stack_from_config, CONFIGS["qwen3"] | {"rms_norm_eps": eps})
    assert "rms_norm_eps" in refused(InputError, OuroConfig.from_dict, CONFIG | {"rms_norm_eps": eps})


def test_frequencies_of_a_model_that_was_built_elsewhere_are_looked_at(refused: Callable[..., str]) -> None:
    """As a model of transformers whose frequencies somebody changed."""
    whole = tiny_stack("qwen3")
    backbone = torch.nn.Module()
    backbone.config, backbone.model, backbone.lm_head = whole.config, whole.model, whole.lm_head  # type: ignore[assignment]
    LoopedStack(backbone)
    whole.model.rotary_emb.inv_freq[1] = NAN
    assert "rotary frequencies are nan to nan" in refused(InputError, LoopedStack, backbone)
    whole.model.rotary_emb.inv_freq[1] = 0
    assert "rotary frequencies are 0 to 1" in refused(InputError, LoopedStack, backbone)


def test_attention_that_fused_kernels_lose_is_told(refused: Callable[..., str]) -> None:
    """Queries that are not numbers give rows of zeros, and so finite logits: the way there must be looked at."""
    stack, tokens = tiny_stack("qwen3"), tiny_tokens(2)
    run(stack, tokens, "F2")
    stack.model.rotary_emb.inv_freq.fill_(NAN)
    q, k, v = stack.layers[0].project(stack.embed(tokens), torch.arange(ROWS))
    assert q.isnan().any()
    assert torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).isfinite().any()
    for found in (
        refused(NotFiniteError, run, stack, tokens, "F2"),
        refused(NotFiniteError, lambda: generate(stack, tokens, "F2", new=2)),
        refused(NotFiniteError, lambda: read_loops(stack, tokens)),
        refused(NotFiniteError, torch.no_grad()(lambda: states(stack, tokens, F**2))),
    ):
        assert "not finite from loop 1 layer 1 on, in float32" in found


def overflowing() -> Any:
    """A model whose stream grows beyond the range in its second loop."""
    stack = tiny_stack("llama")
    with torch.no_grad():
        stack.model.layers[1].mlp.down_proj.weight *= 1e38
        stack.model.layers[1].post_attention_layernorm.weight *= 10
    return stack


def test_the_first_place_where_a_run_leaves_the_range_is_named(refused: Callable[..., str]) -> None:
    stack, tokens = overflowing(), tiny_tokens(2)
    found = refused(NotFiniteError, run, stack, tokens, ["F3", "F"])
    assert "the numbers of the run are not finite from" in found
    assert "weights or maps too large" in found
    assert refused(NotFiniteError, lambda: read_loops(stack, tokens)).startswith(
        "the numbers of 'F3' are not finite from loop 1 on"
    )
    half = refused(NotFiniteError, lambda: read_loops(overflowing().bfloat16(), tokens))
    assert "in bfloat16; float32 holds more" in half
    assert NotFiniteError.exit_code == 2


def test_patched_runs_and_kept_values_are_looked_at_too(refused: Callable[..., str]) -> None:
    model, tokens = tiny_model(), tiny_tokens(2)
    huge = {"x": torch.full((1,), 3e38)}
    found = refused(NotFiniteError, lambda: run(model, tokens, "F[layer[1].row[0].resid<-$x] F", given=huge))
    assert "not finite" in found
    refused(NotFiniteError, lambda: sweep(model, tokens, "F2", "loop[1].layer[1].row[-1].z", "$x", given=huge))
    with torch.no_grad():
        model.readout.weight[0] = 3e38  # type: ignore[union-attr]
    assert "h2 of F2" in refused(NotFiniteError, run, model, tokens, "F2")


def test_what_a_norm_would_hide_is_told(refused: Callable[..., str]) -> None:
    """Where squares overflow, a norm divides by infinity: the state after it is 0, which is finite."""
    model, tokens = tiny_ouro(), torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1e30)
    for ask in (
        lambda: run(model, tokens, "F2"),
        lambda: read_loops(model, tokens),
        lambda: states(model, tokens, F**2),
    ):
        with torch.no_grad():
            assert "not finite from" in refused(NotFiniteError, ask)


def test_decoding_names_no_token_where_the_logits_are_not_finite(refused: Callable[..., str]) -> None:
    model = tiny_ouro()
    with torch.no_grad():
        model.lm_head.weight.fill_(3e38)
    found = refused(NotFiniteError, lambda: generate(model, golden()["input_ids"], new=2))
    assert "the readout of h4" in found


def test_passes_that_must_not_wait_are_not_looked_at() -> None:
    """With gradients the trainer looks at its loss; inside `known_tokens` nothing may wait for a GPU."""
    stack, tokens = tiny_stack("qwen3"), tiny_tokens(2)
    stack.model.rotary_emb.inv_freq.fill_(NAN)
    states(stack, tokens, F**2)
    with known_tokens(), torch.no_grad():
        states(stack, tokens, F**2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_large_tensors_of_ordinary_numbers_are_finite(dtype: torch.dtype) -> None:
    watch = Watch()
    watch.see(torch.full((512, 512), 40.0, dtype=dtype), "many")  # whose sum fp16 does not hold
    watch.check("it", dtype)


# What is given -------------------------------------------------------------------------------------------------------

TOKENS = tiny_tokens(3)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_given_numbers_that_are_not_finite_are_refused_before_anything_runs(
    bad: float, refused: Callable[..., str]
) -> None:
    model, state, z = tiny_model(), torch.zeros(3, ROWS, 16), torch.zeros(3, 4, ROWS, 4)
    state[1, 2, 3] = z[0, 1, 2, 3] = bad
    assert refused(InputError, lambda: run(model, None, "h2 F", state=state)) == "state 'main' holds NaN or infinity"
    found = refused(InputError, lambda: run(model, TOKENS, "F[layer[1].z<-$z]", given={"z": z}))
    assert found == "tensor $z holds NaN or infinity"
    program = "h2 F[layer[1].z<-(h2 F)@other]"
    clean = torch.zeros(3, ROWS, 16)
    found = refused(InputError, lambda: run(model, None, program, state=clean, others={"other": state}))
    assert found == "state 'other' holds NaN or infinity"


def test_maps_are_looked_at_in_the_type_that_they_are_used_in(refused: Callable[..., str]) -> None:
    step = Dense(16).double()
    with torch.no_grad():
        step.W[0, 0] = 1e300
    maps = {"x": step.float()}
    assert "map 'x' holds NaN" in refused(InputError, lambda: run(tiny_model(), TOKENS, "F J:x F", maps=maps))


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        (TOKENS.to(torch.complex64), "is of type complex64; there are int64"),
        (TOKENS.bool(), "is of type bool"),
        (TOKENS.float().to(torch.float8_e4m3fn), "is of type float8_e4m3fn"),
        (TOKENS.to(torch.uint16), "is of type uint16"),
        (TOKENS.double(), "token input 'main' must be"),
        (TOKENS.to_sparse(), "must be an ordinary tensor with values"),
        (TOKENS.to("meta"), "must be an ordinary tensor with values"),
        (TOKENS[:0], "must be a [examples, rows] tensor"),
        (TOKENS[:, :0], "must be a [examples, rows] tensor"),
        (-TOKENS - 1, "(nearest: 0)"),
        (TOKENS + 2**62, "(nearest: 7)"),
        ([[1, 2.5]], "must hold at least one token for every example, as whole numbers"),
        ([1, 2], "must be a tensor [examples, T], or a list of tokens for every example"),
        ({"a": 1}, "must be a tensor [examples, T], or a list of tokens for every example"),
    ],
)
def test_odd_tokens_get_one_line(tokens: Any, says: str, refused: Callable[..., str]) -> None:
    assert says in refused(InputError, run, tiny_model(), tokens, "F")


def test_negative_tokens_are_no_rows_of_a_table_counted_from_its_end(refused: Callable[..., str]) -> None:
    from tests.own_model import OwnModel

    assert "token -1 of 'main' does not exist" in refused(InputError, run, OwnModel(), TOKENS * 0 - 1, "F")
    assert "the model does not take tokens 0..9" in refused(
        InputError, run, OwnModel(), TOKENS * 0 + 9 * (TOKENS > 2), "F"
    )


# Weights -------------------------------------------------------------------------------------------------------------


def folder_with(folder: Path, change: Callable[[Tensor], Tensor]) -> Path:
    """The small model with its last norm changed."""
    return write_folder(folder, weights() | {"model.norm.weight": change(weights()["model.norm.weight"])})


def test_weights_are_finite_after_they_are_cast(tmp_path: Path, refused: Callable[..., str]) -> None:
    large = {name: tensor.double() for name, tensor in weights().items()}
    large["model.norm.weight"][3] = 1e300
    write_folder(tmp_path / "large", large)
    assert load(tmp_path / "large").model.norm.weight[3] == 1e300
    said = refused(InputError, lambda: load(tmp_path / "large", dtype=torch.float32))
    assert said.endswith("model.norm.weight holds 1e+300 as float64, which float32 has not")
    folder_with(tmp_path / "half", lambda norm: norm * 1e6)
    refused(InputError, lambda: load(tmp_path / "half", dtype=torch.float16))
    load(tmp_path / "half", dtype=torch.bfloat16)
    folder_with(tmp_path / "nan", lambda norm: norm * NAN)
    refused(DamagedError, load, tmp_path / "nan")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool, torch.complex64])
def test_odd_types_of_weights_get_one_line(tmp_path: Path, dtype: torch.dtype, refused: Callable[..., str]) -> None:
    folder_with(tmp_path / "odd", lambda norm: norm.to(dtype))
    assert f"is of type {str(dtype).removeprefix('torch.')}, not" in refused(InputError, load, tmp_path / "odd")
