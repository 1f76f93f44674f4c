"""Nanbeige4.2: a looped Llama, its whole stack applied twice, the final norm after each pass.

    h_0 = embedding(tokens)                 the input enters once
    h_t = norm(layers(h_{t-1}))             22 layers of Llama, heads wider than their share of the width
    logits_t = head(h_t)                    a head of its own, not tied

What is mapped.  The layers and key names are Llama's, so that the model is a `LoopedStack` of transformers' Llama with
boundary "norm" and `num_loops` calls.

What is not mapped.  Its config knows settings that no released model turns on and that change what is computed: extra
embeddings of neighbouring tokens, several streams, attention over depth, other loops.  Each of them is refused by name.

What certifies it: the stack of Llama layers, which transformers' own logits certify, called again behind its norm; the
count of weights of the released config.  No official output was at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopscope import bounds
from loopscope.bounds import shown, whole
from loopscope.errors import InputError
from loopscope.models.passes import Boundary
from loopscope.models.stacks import LoopedStack, stack_from_config

REFUSED = {
    "loop_loss_weights": "the logits of several loops would be weighed",
    "skip_loop_final_norm": "the final norm would not end every loop",
    "enable_double_loop_split": "some layers would be looped oftener than others",
    "loop_middle_layers": "some layers would be looped oftener than others",
    "loop_share_kv": "loops would share their keys and values",
    "enable_hyper_connection": "there would be several streams",
    "enable_mhc": "there would be several streams",
    "enable_h_res_identity": "there would be several streams",
    "enable_depth_attention": "layers would attend to earlier layers",
    "insert_ngram_layer_idx": "neighbouring tokens would be embedded together",
    "ngram_insert_all_layers": "neighbouring tokens would be embedded together",
    "emb_neighbor_num": "neighbouring tokens would be embedded together",
    "qk_layernorm": "queries and keys would be normed",
}
"""Settings that no released model has, and what each would change."""

KEYS = {"num_loops", "kv_channels", *REFUSED}


def nanbeige_from_config(
    config: Mapping[str, Any], loops: int | None = None, boundary: Boundary | None = None
) -> LoopedStack:
    """The model of a released `config.json` with fresh weights; `loops`: by default the config's `num_loops`.

    InputError for a setting that is not supported, and for a boundary that the model has not.
    """
    if boundary not in (None, "norm"):
        raise InputError(f"Nanbeige ends every loop with its norm; there is no boundary {boundary!r} (nearest: norm)")
    nothing: tuple[object, ...] = (None, False, [], "")
    for key, why in REFUSED.items():
        if config.get(key) not in nothing:
            raise InputError(f"{key} {shown(config[key])} is not supported: {why}")
    size = whole("head_dim", config.get("head_dim"), 1, bounds.WIDTH)
    if config.get("kv_channels") not in (None, size):
        raise InputError(f"kv_channels {shown(config['kv_channels'])} is not head_dim {size}")
    if config.get("tie_word_embeddings"):
        raise InputError("tie_word_embeddings is not supported: every released Nanbeige4.2 has a head of its own")
    if config.get("rope_theta") is None and config.get("rope_parameters") is None:
        raise InputError("rope_theta must be a number, not missing")
    own = whole("num_loops", config.get("num_loops"), 1, bounds.LOOPS)
    plain = {key: value for key, value in config.items() if key not in KEYS}
    known = {"model_type": "llama", "tie_word_embeddings": False}
    return stack_from_config(plain | known, own if loops is None else loops, "norm")
