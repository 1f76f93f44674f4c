"""A small looped Qwen3 and a small looped Llama."""

from __future__ import annotations

from typing import Any

import torch

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


def tiny_stack(kind: str, boundary: Any = "none", loops: int = 3) -> LoopedStack:
    """A stack with all weights large enough to count."""
    stack = stack_from_config(CONFIGS[kind], loops=loops, boundary=boundary).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.4
            parameter.copy_(noise + (1.0 if "norm" in name else 0.0))
    return stack
