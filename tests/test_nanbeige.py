"""Nanbeige4.2: Llama's layers called twice, a norm behind each pass; each setting that would change that is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.models.folders import build
from loopscope.models.nanbeige import nanbeige_from_config
from loopscope.program import F
from tests.stack_tiny import draw, original
from tests.tiny import VOCABULARY, tiny_tokens

SMALL: dict[str, Any] = {
    "model_type": "nanbeige", "vocab_size": VOCABULARY, "hidden_size": 12, "intermediate_size": 20, "head_dim": 8,
    "kv_channels": 8, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 2, "num_loops": 2,
    "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 70000000, "tie_word_embeddings": False,
    "loop_loss_weights": [], "skip_loop_final_norm": False,
}  # fmt: skip
RELEASED = SMALL | {
    "architectures": ["NanbeigeForCausalLM"], "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
    "intermediate_size": 10752, "kv_channels": 128, "max_position_embeddings": 262144, "num_attention_heads": 48,
    "num_hidden_layers": 22, "num_key_value_heads": 8, "torch_dtype": "bfloat16", "vocab_size": 166144,
    "initializer_range": 0.02, "auto_map": {"AutoModelForCausalLM": "modeling_nanbeige.NanbeigeForCausalLM"},
}  # fmt: skip


def test_the_released_config_gives_a_model_of_the_released_size() -> None:
    model = build(RELEASED)
    assert sum(each.numel() for each in model.parameters()) == 4_169_800_704
    assert (model.loops, model.boundary, model.heads, model.head_size, model.width) == (2, "norm", 48, 128, 3072)
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    assert shapes["model.layers.21.self_attn.q_proj.weight"] == (6144, 3072)
    assert shapes["lm_head.weight"] == (166144, 3072)


def test_a_pass_is_llama_with_its_norm_and_the_second_starts_behind_it() -> None:
    model, tokens = nanbeige_from_config(SMALL), tiny_tokens(3)
    draw(model.eval())
    plain = {key: SMALL[key] for key in SMALL if key not in ("num_loops", "kv_channels", "model_type")}
    llama = original("llama", model, **plain, attention_bias=False, rope_parameters=None, eos_token_id=None)
    with torch.no_grad():
        once = llama.model(input_ids=tokens, use_cache=False).last_hidden_state
        twice = llama.model(inputs_embeds=once, use_cache=False).last_hidden_state
        expected = [llama.lm_head(each) for each in (once, twice)]
    found = plain_run(model, {"main": tokens}, F**2)
    for loop, logits in enumerate(expected, start=1):
        torch.testing.assert_close(found.read(f"h{loop}"), logits, rtol=0, atol=5e-5)
    torch.testing.assert_close(found.states["h1"], once, rtol=0, atol=1e-5)


def test_other_counts_of_loops_may_be_run(refused: Callable[..., str]) -> None:
    assert build(SMALL, loops=5).loops == 5
    assert "there is no boundary 'none' (nearest: norm)" in refused(InputError, lambda: build(SMALL, boundary="none"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("loop_loss_weights", [0.5]),
        ("skip_loop_final_norm", True),
        ("enable_double_loop_split", True),
        ("loop_middle_layers", 3),
        ("loop_share_kv", True),
        ("enable_hyper_connection", True),
        ("enable_mhc", True),
        ("enable_h_res_identity", True),
        ("enable_depth_attention", True),
        ("insert_ngram_layer_idx", [1]),
        ("ngram_insert_all_layers", True),
        ("emb_neighbor_num", 2),
        ("qk_layernorm", True),
        ("kv_channels", 4),
        ("tie_word_embeddings", True),
        ("num_loops", None),
        ("head_dim", None),
        ("rope_theta", None),
    ],
)
def test_settings_of_no_released_model_are_refused_by_name(key: str, value: Any, refused: Callable[..., str]) -> None:
    said = refused(InputError, build, SMALL | {key: value})
    assert said.startswith(f"config.json: {key} ")
    off = SMALL | {key: False if isinstance(value, bool) else None}
    if key not in ("num_loops", "head_dim", "rope_theta"):
        build(off)
