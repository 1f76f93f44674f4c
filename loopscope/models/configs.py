"""What the `config.json` of a checkpoint may say, key by key.

Every key falls into one of four groups.  Some are mapped, and their values are checked.  Some do not touch what is
computed (names, types, how a text is generated, which attention kernel somebody used) and are left out.  Some would
change it and are not mapped: they may only stand there with the value that means nothing.  A key that nobody here
knows is refused unless it is empty or off, as it may be any of these.

The groups of keys are here, and what the values of each may be; which family has which is in `stack_settings`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from loopscope import bounds
from loopscope.bounds import real, shown, whole
from loopscope.errors import InputError, nearest

SIZES = {
    "vocab_size": bounds.VOCABULARY,
    "hidden_size": bounds.WIDTH,
    "intermediate_size": bounds.WIDTH,
    "num_hidden_layers": bounds.LAYERS,
    "num_attention_heads": bounds.LAYERS,
    "num_key_value_heads": bounds.LAYERS,
    "max_position_embeddings": bounds.POSITIONS,
}
"""Sizes that every language model has, and how large each may be."""

SIZE_NAMES = {"width": ("hidden_size", "n_embd"), "layers": ("num_hidden_layers", "n_layer")}
"""What families call the width of the state, and the number of layers."""

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")

ROTARY = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    },
}  # fmt: skip
"""Rotary scalings that are the same for every length, and their settings."""

CHANGING = ("dynamic", "longrope")
"""Rotary scalings whose frequencies depend on the length of the input."""

THETA, THETA_UNSAID = 1e12, 1e4
"""The largest rotary base, and that of a Qwen3 or Llama which says nothing."""

KERNELS = (None, False, True, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Ways to compute the same attention; none is used."""

KERNEL_KEYS = {"attn_implementation", "_attn_implementation", "_attn_implementation_internal"}

WITHOUT_EFFECT = {
    "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype", "model_type", "use_cache",
    "bos_token_id", "sep_token_id", "decoder_start_token_id", "_name_or_path", "name_or_path", "_commit_hash",
    "_attn_implementation_autoset", "output_attentions", "output_hidden_states", "return_dict",
    "return_dict_in_generate", "chunk_size_feed_forward", "id2label", "label2id", "num_labels", "problem_type",
    "tokenizer_class", "task_specific_params", "model_max_length", "is_llama_config", "transformers.js_config",
    "unsloth_fixed", "unsloth_version", "temperature", "top_p", "top_k", "do_sample", "max_length", "min_length",
    "max_new_tokens", "num_beams", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
}  # fmt: skip
"""Keys that change nothing of what is computed here."""

MAPPED = {
    *SIZES, "head_dim", "hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "attention_bias", "tie_word_embeddings", "eos_token_id", "pad_token_id", "initializer_range", "attention_dropout",
    "layer_types", "use_sliding_window", "sliding_window", "max_window_layers", "partial_rotary_factor",
    "pretraining_tp",
}  # fmt: skip
"""Keys that are looked at for every kind of model."""


def check_keys(config: Mapping[str, Any], further: set[str]) -> None:
    """InputError for a key that is neither mapped, of this kind of model (`further`), nor known to change nothing."""
    for key, value in config.items():
        if key in KERNEL_KEYS:
            if value not in KERNELS:
                there = ", ".join(name for name in KERNELS if isinstance(name, str))
                raise InputError(f"{key} {shown(value)} is none of {there}; no other kernel is loaded")
        elif key not in MAPPED and key not in further and key not in WITHOUT_EFFECT and not _off(key, value):
            raise InputError(
                f"{shown(key)} is a setting that is not known here, so that {shown(value)} may change what is computed;"
                f" take it out if it does not{nearest(key, MAPPED | further)}"
            )


def _off(key: str, value: object) -> bool:
    """Whether a setting is empty or switched off."""
    nothing: tuple[object, ...] = ("", [], {})
    return value is None or value is False or value in nothing or ("drop" in key and value == 0)


def sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of a config, each checked; without a number of key heads there are as many as query heads."""
    values = {**config}
    if values.get("num_key_value_heads") is None:
        values["num_key_value_heads"] = values.get("num_attention_heads")
    return {key: whole(key, values.get(key), 1, most) for key, most in SIZES.items()}


def size_of(config: Mapping[str, Any], name: str) -> Any:
    """What a config says of "width" or "layers", by whichever of the names that families have; None without one."""
    return next((config[key] for key in SIZE_NAMES[name] if key in config), None)


def check_shared(config: Mapping[str, Any], layers: int) -> None:
    """What no kind of model here has: windows, parts of a rotation, sliced products.  InputError where it is asked."""
    for key in ("use_sliding_window", "attention_bias", "tie_word_embeddings", "mlp_bias"):
        if config.get(key) not in (None, True, False) or type(config.get(key)) in (int, float):
            raise InputError(f"{key} must be true or false, not {shown(config[key])}")
    window, first = config.get("sliding_window"), config.get("max_window_layers")
    for key, value in (("sliding_window", window), ("max_window_layers", first)):
        if value is not None:
            whole(key, value, 0, bounds.POSITIONS)
    kinds = config.get("layer_types")
    windowed = config.get("use_sliding_window") and window is not None and (first is None or first < layers)
    others = [kind for kind in kinds if kind != "full_attention"] if isinstance(kinds, list) else []
    if others or windowed:
        said = f"layer type {shown(others[0])}" if others else f"use_sliding_window with a sliding_window of {window}"
        raise InputError(f"{said}: layers with a sliding window cannot be looped; every layer must have full attention")
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != layers):
        raise InputError(f"layer_types must be a list of {layers} kinds of layers, not {shown(kinds)}")
    for key, only in (("partial_rotary_factor", 1), ("pretraining_tp", 1)):
        value = config.get(key)
        if value is not None and (isinstance(value, bool) or value != only):
            raise InputError(f"{key} {shown(value)} is not supported: it must be {only}")
    for key in ("attention_dropout", "initializer_range"):
        if config.get(key) is not None and config[key] != 0:
            real(key, config[key], 0, 1)


def rotary(config: Mapping[str, Any], unsaid: float | None, there: Collection[str] = tuple(ROTARY)) -> dict[str, Any]:
    """The rotary positions of a config as one group: `rope_type`, `rope_theta` and what the type needs.

    Older files have `rope_theta` beside `rope_scaling`, newer ones all in `rope_parameters`.  `unsaid` is the
    base where none is given, `there` the types that the model may have.  InputError for values out of range, unknown
    ones, and two that differ.
    """
    groups = [config[key] for key in ("rope_parameters", "rope_scaling") if config.get(key) is not None]
    for group in groups:
        if not isinstance(group, Mapping) or not all(isinstance(key, str) for key in group):
            raise InputError(f"rope_parameters must be a group of settings, not {shown(group)}")
    said = [dict(group) for group in groups if group]
    if len(said) == 2 and said[0] != said[1]:
        raise InputError(f"rope_parameters {shown(said[0])} and rope_scaling {shown(said[1])} differ")
    group = said[0] if said else {}
    kinds = {group.pop(key) for key in ("rope_type", "type") if isinstance(group.get(key), str)} or {"default"}
    kind = min(kinds)
    if len(kinds) > 1:
        raise InputError(f"rope_type and type differ: {' and '.join(sorted(kinds))}")
    if kind in CHANGING:
        raise InputError(f"rotary scaling {kind!r} changes with the input's length, so rows cannot be run alone")
    if kind not in there:
        near = nearest(kind[:80], there)
        raise InputError(f"rotary scaling {shown(kind)} is not supported; there are {', '.join(there)}{near}")
    bases = [each["rope_theta"] for each in (group, config) if each.get("rope_theta") is not None]
    if len(bases) == 2 and bases[0] != bases[1]:
        raise InputError(f"rope_theta is {shown(bases[1])}, but among rope_parameters {shown(bases[0])}")
    group.pop("rope_theta", None)
    if group.pop("partial_rotary_factor", 1) not in (None, 1):
        raise InputError("a partial_rotary_factor among rope_parameters is not supported: it must be 1")
    found: dict[str, Any] = {"rope_type": kind, "rope_theta": base_of(bases[0] if bases else unsaid)}
    for key, value in group.items():
        if value is None:
            continue
        if key not in ROTARY[kind]:
            known = ", ".join(sorted(ROTARY[kind])) or "none"
            raise InputError(f"rotary scaling {kind!r} has no setting {shown(key)}; there are: {known}")
        if key == "original_max_position_embeddings":
            found[key] = whole(key, value, 1, bounds.POSITIONS)
        elif key == "truncate":
            if not isinstance(value, bool):
                raise InputError(f"truncate must be true or false, not {shown(value)}")
            found[key] = value
        else:
            found[key] = real(key, value, 0, 1e6)
    if kind == "llama3" and not found.get("low_freq_factor", 1.0) < found.get("high_freq_factor", 4.0):
        raise InputError("low_freq_factor must be below high_freq_factor")
    if kind != "default" and found.get("factor", 0.0) < 1:
        raise InputError(f"factor must be at least 1, not {shown(found.get('factor'))}")
    return found


def base_of(value: object) -> float:
    """A rotary base: frequencies go down from 1, and none of them may vanish."""
    base = real("rope_theta", value, 0, THETA)
    if base < 1:
        raise InputError(f"rope_theta must be at least 1, not {shown(value)}")
    return base


def eps_of(value: object) -> float:
    """What a norm adds to a variance."""
    return real("rms_norm_eps", value, 0, 1)


def ends_of(value: object, vocabulary: int) -> tuple[int, ...]:
    """The tokens that end a text, given as one, several or none.

    Those beyond the vocabulary, as defaults of other sizes are, end nothing, since no text has them.
    """
    several: list[Any] = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    if not all(type(end) is int and end >= 0 for end in several):
        raise InputError(f"eos_token_id must be a token or a list of tokens, not {shown(value)}")
    return tuple(end for end in several if end < vocabulary)
