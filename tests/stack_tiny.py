"""Small looped stacks of every family, each with what sets its family apart."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from loopscope.models.stack_families import FAMILIES
from loopscope.models.stacks import LoopedStack, stack_from_config
from tests.tiny import VOCABULARY

SIZES = {
    "vocab_size": VOCABULARY, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    # Heads wider than hidden_size / heads, as in Qwen3's small models; two query heads to a key head.
    "qwen3": {**SIZES, "model_type": "qwen3", "hidden_size": 16, "num_key_value_heads": 2, "head_dim": 8,
              "rope_theta": 1e4, "tie_word_embeddings": False},
    # One key head for all, tied embeddings, biases, and rotary frequencies that are scaled once for all lengths.
    "llama": {**SIZES, "model_type": "llama", "hidden_size": 16, "num_key_value_heads": 1, "tie_word_embeddings": True,
              "attention_bias": True, "eos_token_id": [2, 5],
              "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e2, "factor": 4.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8}},
}  # fmt: skip

THREE = SIZES | {"num_hidden_layers": 3, "hidden_size": 16}
FAMILY_CONFIGS: dict[str, dict[str, Any]] = CONFIGS | {
    # A window narrower than the input in every layer; heads that are wider than their share.
    "mistral": {**THREE, "model_type": "mistral", "num_key_value_heads": 2, "head_dim": 6, "sliding_window": 3},
    # Biases on q, k and v alone; tied.
    "qwen2": {**THREE, "model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True},
    # Norms behind the branches, q and k normed over all heads, three query heads to a key head.
    "olmo2": {**THREE, "model_type": "olmo2", "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 24,
              "attention_bias": True, "rope_theta": 5e5, "eos_token_id": 3},
    # Bounds that bite, a window in every other layer, a scale of its own, tied and scaled embeddings.
    "gemma2": {**THREE, "model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 6, "sliding_window": 3,
               "query_pre_attn_scalar": 3, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.5},
    # Learned positions, a scale that goes down with the layer, an MLP of a free size, tied.
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 3, "n_head": 4,
             "n_positions": 16, "n_inner": 20, "scale_attn_by_inverse_layer_idx": True, "bos_token_id": 7,
             "eos_token_id": 7},
    # Branches side by side, half of every head turned.
    "gpt_neox": {**{key: value for key, value in THREE.items() if key != "rms_norm_eps"}, "model_type": "gpt_neox",
                 "hidden_size": 32, "rotary_pct": 0.5, "rotary_emb_base": 1000, "use_parallel_residual": True},
}  # fmt: skip


def tiny_stack(kind: str, boundary: Any = "none", loops: int = 3, loop: str | None = None) -> LoopedStack:
    """A stack with all weights large enough to count."""
    stack = stack_from_config(FAMILY_CONFIGS[kind], loops=loops, boundary=boundary).eval()
    draw(stack)
    if loop is not None:
        stack.choose_loop(loop)
    return stack


def draw(model: nn.Module) -> None:
    """Weights large enough to count, norms near one; the same for the same names."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.4
            parameter.copy_(noise + (1.0 if "norm" in name or "ln_" in name else 0.0))


def original(kind: str, stack: LoopedStack | None = None, **changes: Any) -> Any:
    """Transformers' own model of a family, with random weights or those of a stack; attention without kernels."""
    config = FAMILY_CONFIGS[kind] | changes
    made = getattr(transformers, FAMILIES[kind].model)
    described = made.config_class.from_dict({key: value for key, value in config.items() if key != "model_type"})
    described._attn_implementation = "eager"
    model = made(described).eval()
    if stack is None:
        draw(model)
    else:
        weights: dict[str, Tensor] = stack.state_dict()
        missing, unknown = model.load_state_dict(weights, strict=False)
        assert (set(missing) - {"lm_head.weight"}, unknown) == (set(), [])
        if not missing:
            return model
        model.tie_weights()
    return model
