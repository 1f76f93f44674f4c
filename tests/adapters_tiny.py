"""One small model of every family of adapters, with weights that count: as a model, and as a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from loopscope.models.adapter import Adapter
from loopscope.models.folders import ADAPTERS
from tests import trm_tiny
from tests.cored_tiny import config_of, golden_model
from tests.ouro_tiny import CONFIG, tiny_ouro, write_folder
from tests.stack_tiny import FAMILY_CONFIGS, draw, tiny_stack

NANBEIGE: dict[str, Any] = {
    "model_type": "nanbeige", "vocab_size": 11, "hidden_size": 12, "intermediate_size": 20, "head_dim": 8,
    "kv_channels": 8, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 2, "num_loops": 2,
    "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 70000000, "tie_word_embeddings": False,
    "loop_loss_weights": [], "skip_loop_final_norm": False,
}  # fmt: skip
HRM_TEXT: dict[str, Any] = {
    "model_type": "hrm_text", "vocab_size": 29, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_layers_per_stack": 2, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8,
    "max_position_embeddings": 32, "H_cycles": 2, "L_cycles": 2, "rms_norm_eps": 1e-6, "embedding_scale": 1.0,
    "prefix_lm": True, "tie_word_embeddings": False,
}  # fmt: skip


def _drawn(config: Mapping[str, Any]) -> Adapter:
    model = ADAPTERS[config["model_type"]](config, None, None)
    draw(model)
    return model.eval()


CONFIGS: dict[str, dict[str, Any]] = {
    "ouro": CONFIG,
    **{name: config_of(name) for name in ("huginn", "raven_llama", "parcae")},
    "trm": trm_tiny.CONFIG,
    "hrm": trm_tiny.HRM_CONFIG,
    "hrm_text": HRM_TEXT,
    "nanbeige": NANBEIGE,
    **FAMILY_CONFIGS,
}
MODELS: dict[str, Callable[[], Adapter]] = {
    "ouro": tiny_ouro,
    **{name: partial(golden_model, name) for name in ("huginn", "raven_llama", "parcae")},
    "trm": trm_tiny.tiny_trm,
    "hrm": partial(trm_tiny.drawn, trm_tiny.HRM_CONFIG),
    "hrm_text": partial(_drawn, HRM_TEXT),
    "nanbeige": partial(_drawn, NANBEIGE),
    **{kind: partial(tiny_stack, kind) for kind in FAMILY_CONFIGS},
}
"""What builds the model of a family; the last ones are stacks over transformers' layers."""

PUZZLES = ("trm", "hrm")
"""Families whose rows see later ones, behind rows of puzzles."""


def model_folder(folder: Path, family: str) -> Path:
    """The model as released."""
    tensors = {name: each.detach().contiguous() for name, each in MODELS[family]().state_dict().items()}
    return write_folder(folder, tensors, CONFIGS[family])
