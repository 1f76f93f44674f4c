"""Keys of a `config.json`: mapped, left out, or refused; none makes transformers load or run anything."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from loopscope.errors import InputError
from loopscope.models.folders import build
from loopscope.models.ouro import OuroConfig
from loopscope.models.stack_settings import stack_settings
from loopscope.models.stacks import LoopedStack, stack_from_config
from tests.ouro_tiny import CONFIG
from tests.stack_tiny import CONFIGS

# As released, key by key.
COMMON: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
    "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip
RELEASED: dict[str, dict[str, Any]] = {
    "smollm2-135m": COMMON | {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 576,
        "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
        "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_interleaved": False, "rope_scaling": None,
        "rope_theta": 100000, "tie_word_embeddings": True, "vocab_size": 49152, "transformers_version": "4.42.3",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    },
    "qwen3-8b": COMMON | {
        "architectures": ["Qwen3ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
        "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36,
        "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "tie_word_embeddings": False, "transformers_version": "4.51.0", "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "llama-3.2-1b": COMMON | {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "tie_word_embeddings": True, "transformers_version": "4.45.0.dev0", "vocab_size": 128256,
    },
    "llama-7b": {
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
        "initializer_range": 0.02, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
        "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16", "vocab_size": 32000,
        "_name_or_path": "meta-llama/Llama-2-7b-hf", "pad_token_id": 0,
    },
    "ouro-1.4b": COMMON | CONFIG | {
        "head_dim": 128, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "vocab_size": 49152,
        "num_attention_heads": 16, "num_key_value_heads": 16, "layer_types": ["full_attention"] * 24,
        "max_window_layers": 28, "rope_scaling": None, "sliding_window": None, "use_sliding_window": False,
        "bos_token_id": 1, "eos_token_id": 2, "early_exit_threshold": 1.0, "transformers_version": "4.55.0",
        "auto_map": {"AutoConfig": "configuration_ouro.OuroConfig", "AutoModelForCausalLM": "modeling_ouro.X"},
    },
}  # fmt: skip


COUNTS = {"smollm2-135m": 134_515_008, "llama-3.2-1b": 1_235_814_400, "ouro-1.4b": 1_434_652_673}
"""Weights of models as their makers count them."""


@pytest.mark.parametrize("name", RELEASED)
def test_released_configs_are_taken(name: str) -> None:
    model = build(RELEASED[name])
    assert all(parameter.is_meta for parameter in model.parameters())
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == COUNTS.get(name, count)


def test_newer_files_say_the_same_otherwise() -> None:
    old = RELEASED["llama-3.2-1b"]
    new = {key: value for key, value in old.items() if not key.startswith("rope")}
    new["rope_parameters"] = old["rope_scaling"] | {"rope_theta": 500000.0}
    assert stack_settings(old) == stack_settings(new)
    frequencies = [build(each).model.rotary_emb.inv_freq for each in (old, new)]
    assert torch.equal(*frequencies)
    assert stack_settings(RELEASED["llama-7b"])["rope_parameters"]["rope_theta"] == 1e4  # which says nothing


HOSTILE = [
    ("_attn_implementation", "evil/kernel"),
    ("_attn_implementation", "evil/kernel@main:attention"),
    ("attn_implementation", "paged|kernels-community/flash-attn"),
    ("_attn_implementation_internal", {"": "evil/kernel"}),
    ("quantization_config", {"quant_method": "awq", "bits": 4}),
    ("compression_config", {"format": "dense"}),
    ("per_layer_config", {"0": {"hidden_size": 8}}),
    ("text_config", {"model_type": "llama"}),
    ("pruned_heads", {"0": [1]}),
    ("rope_interleaved", True),
    ("logit_softcap", 30.0),
    ("embedding_multiplier", 12),
    ("attention_multiplier", 1),
    ("no_rope_layers", [1, 0]),
    ("_experts_implementation", "evil/kernel"),
    ("is_decoder", True),
    ("partial_rotary_factor", 0.5),
    ("pretraining_tp", 2),
    ("sliding_window", -1),
    ("layer_types", ["full_attention", "chunked_attention"]),
    ("hidden_act", "xielu"),
    ("attention_bias", 1),
    ("attention_dropout", float("nan")),
    ("tie_word_embeddings", "yes"),
    ("head_dim", 3),
    ("head_dim", 0),
    ("head_dim", "8"),
    ("pad_token_id", 8),
    ("eos_token_id", "2"),
    ("initializer_range", float("inf")),
    ("rope_scaling", {"rope_type": "linear"}),
    ("rope_scaling", {"rope_type": "evil", "rope_theta": 1e4}),
    ("rope_scaling", {"rope_type": ["linear"], "factor": 2.0}),
    ("rope_scaling", {"rope_type": "linear", "type": "yarn", "factor": 2.0}),
    ("rope_scaling", {"rope_type": "linear", "factor": 2.0, "more": 1}),
    ("rope_scaling", {"full_attention": {"rope_theta": 1e4}}),
    ("rope_scaling", [1]),
    ("rope_parameters", {"rope_theta": 5e5}),
    ("vocab_size", 10**30),
    ("num_hidden_layers", 10**9),
    ("hidden_size", 2**40),
    ("max_position_embeddings", 2**70),
    ("num_attention_heads", -4),
    ("model_type", ["llama"]),
    ("model_type", None),
]


@pytest.mark.parametrize(("key", "value"), HOSTILE)
@pytest.mark.parametrize("kind", ["qwen3", "llama", "ouro"])
def test_settings_that_would_change_what_is_computed_are_refused(
    kind: str, key: str, value: Any, refused: Callable[..., str]
) -> None:
    plain = CONFIG if kind == "ouro" else CONFIGS["qwen3"] | {"model_type": kind}
    if key == "pad_token_id" and kind == "ouro":
        return  # nothing is made of it there
    before = set(sys.modules)
    said = refused(InputError, build, plain | {key: value})
    assert len(said) < 700
    assert not {name for name in set(sys.modules) - before if "kernels" in name or "evil" in name}


def test_what_changes_nothing_is_left_out() -> None:
    further = {
        "_attn_implementation": "flash_attention_2", "attn_implementation": None, "torch_dtype": "float16",
        "auto_map": {"AutoConfig": "evil.Config"}, "quantization_config": None, "temperature": 0.7, "new_thing": None,
        "other_thing": False, "more_things": [], "resid_pdrop": 0.0, "max_window_layers": 28, "sliding_window": 4096,
        "use_cache": False, "architectures": ["Evil"],
    }  # fmt: skip
    settings = stack_settings(CONFIGS["qwen3"] | further)
    assert settings == stack_settings(CONFIGS["qwen3"])
    assert not set(settings) & set(further)
    stack = stack_from_config(CONFIGS["qwen3"] | further)
    assert stack.config._attn_implementation == "sdpa"
    assert not hasattr(stack.config, "auto_map")
    OuroConfig.from_dict(CONFIG | further)


def test_a_key_that_nobody_knows_is_named(refused: Callable[..., str]) -> None:
    said = refused(InputError, stack_from_config, CONFIGS["llama"] | {"rms_norm_epsilon": 1e-3})
    assert said.startswith("'rms_norm_epsilon' is a setting that is not known here, so that 0.001 may change what is")
    assert said.endswith("take it out if it does not (nearest: rms_norm_eps)")


def test_a_gate_that_would_choose_a_loop_is_refused(refused: Callable[..., str]) -> None:
    said = refused(InputError, OuroConfig.from_dict, CONFIG | {"early_exit_threshold": 0.5})
    assert "early_exit_threshold 0.5 is not supported" in said


def test_a_model_of_transformers_is_taken_with_all_that_its_config_says() -> None:
    import transformers

    config = transformers.Qwen3Config(**{k: v for k, v in CONFIGS["qwen3"].items() if k != "model_type"})
    LoopedStack(transformers.Qwen3ForCausalLM(config))
