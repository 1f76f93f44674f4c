"""What the `config.json` of a pretrained stack may say, family by family; the groups of keys are those of `configs`.

Only what `stack_settings` gives reaches transformers, so that a file can make it load, fetch or run nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loopscope import bounds
from loopscope.bounds import real, shown, whole
from loopscope.errors import InputError, nearest
from loopscope.models.configs import (
    ACTIVATIONS,
    MAPPED,
    THETA_UNSAID,
    check_keys,
    check_shared,
    ends_of,
    eps_of,
    rotary,
    sizes,
)

Values = Mapping[str, Any]

WINDOW_KEYS = ("sliding_window", "layer_types")


@dataclass(frozen=True)
class Decoder:
    """The settings of a family built like Llama: rotary positions, RMSNorms, a gated MLP.

    - `flags`: which true-or-false settings it has beside tied embeddings;
    - `head_size`: that of a config which says none; None for width / heads;
    - `uneven`: whether width / heads may leave a rest, as nothing is made of it;
    - `window`: rows that a layer with a window sees where a config says none; None for a family without windows;
    - `capped`: whether scores and logits may be bounded, and the scale of scores is a setting;
    - `silent`: whether a config that names no end and no padding is left to transformers' own defaults.
    """

    flags: tuple[str, ...] = ()
    head_size: int | None = None
    uneven: bool = False
    window: int | None = None
    capped: bool = False
    silent: bool = False
    further: frozenset[str] = field(default_factory=frozenset)

    def __call__(self, config: Values, changed: Values) -> dict[str, Any]:
        """The settings that transformers may see; `changed` are those that are not transformers' own."""
        check_keys(changed, {"mlp_bias", *self.further} if "mlp_bias" in self.flags else set(self.further))
        found: dict[str, Any] = sizes(config)
        heads, key_heads, layers = (
            found[key] for key in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers")
        )
        if heads % key_heads:
            raise InputError(f"num_attention_heads {heads} is no multiple of num_key_value_heads {key_heads}")
        check_shared(
            {key: value for key, value in config.items() if self.window is None or key not in WINDOW_KEYS}, layers
        )
        found |= {} if self.window is None else self._windows(config, layers)
        size = self.head_size or found["hidden_size"] // heads
        if "head_dim" in config and (config["head_dim"] is not None or self.head_size is not None):
            size = found["head_dim"] = whole("head_dim", config["head_dim"], 1, bounds.WIDTH)
        elif not self.uneven and found["hidden_size"] % heads:
            raise InputError(f"hidden_size {found['hidden_size']} is no multiple of num_attention_heads {heads}")
        if size % 2:
            raise InputError(f"rotary positions pair the entries of a head, so that its size must be even, not {size}")
        found["rope_parameters"] = rotary(config, THETA_UNSAID)
        if "rms_norm_eps" in config:
            found["rms_norm_eps"] = eps_of(config["rms_norm_eps"])
        found |= self._activation(config) | _tokens(config, found["vocab_size"], self.silent)
        if self.capped:
            if "query_pre_attn_scalar" in config:
                found["query_pre_attn_scalar"] = whole(
                    "query_pre_attn_scalar", config["query_pre_attn_scalar"], 1, bounds.WIDTH
                )
            for key in CAPS:
                if key in config:
                    found[key] = None if config[key] is None else real(key, config[key], 0, 1e6)
        for key in ("attention_bias", "mlp_bias", "tie_word_embeddings"):
            if key in (*self.flags, "tie_word_embeddings") and config.get(key) is not None:
                found[key] = config[key]
            elif key not in self.flags and config.get(key):
                raise InputError(f"{key} is not supported: a {config['model_type']} has no such biases")
        return found

    def _windows(self, config: Values, layers: int) -> dict[str, Any]:
        """Which layers have a window, and how wide it is."""
        said, kinds = config.get("sliding_window", self.window), config.get("layer_types")
        if said is not None:
            whole("sliding_window", said, 1, bounds.POSITIONS)
        if kinds is None:
            return {"sliding_window": said}
        there = ("full_attention", *(() if said is None else ("sliding_attention",)))
        if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in there for kind in kinds):
            raise InputError(f"layer_types must be a list of {layers} among {' and '.join(there)}, not {shown(kinds)}")
        if not self.capped and set(kinds) != {there[-1]}:
            raise InputError(f"layer_types {shown(kinds)} disagree with a sliding_window of {said} for all layers")
        return {"sliding_window": said, **({"layer_types": list(kinds)} if self.capped else {})}

    def _activation(self, config: Values) -> dict[str, Any]:
        key = "hidden_activation" if self.capped else "hidden_act"
        found = _activation(config, key)
        if self.capped and found and config.get("hidden_act", found[key]) not in (None, found[key]):
            said = shown(config["hidden_act"])
            raise InputError(f"hidden_act {said} is not hidden_activation {shown(found[key])}, which is what is used")
        return found


CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
"""What bounds scores, and logits; none for no bound."""

NEOX_DROPOUTS = {"hidden_dropout", "classifier_dropout"}
NEOX_KEYS = {"layer_norm_eps", "use_parallel_residual", "rotary_pct", "rotary_emb_base", "gradient_checkpointing"}

GPT2_SIZES = {
    "vocab_size": bounds.VOCABULARY,
    "n_embd": bounds.WIDTH,
    "n_layer": bounds.LAYERS,
    "n_head": bounds.LAYERS,
    "n_positions": bounds.VOCABULARY,  # a table, unlike rotary positions
}
GPT2_SHARED = {"vocab_size", "tie_word_embeddings", "eos_token_id", "pad_token_id", "initializer_range"}
GPT2_KEYS = {
    "n_ctx", "n_inner", "activation_function", "layer_norm_epsilon", "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "embd_pdrop", "resid_pdrop", "attn_pdrop",
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
}  # fmt: skip


def neox(config: Values, changed: Values) -> dict[str, Any]:
    """The settings of a GPT-NeoX, Pythia among them: part of a head is rotated, `rotary_pct` or `rope_parameters`."""
    check_keys(changed, NEOX_DROPOUTS | NEOX_KEYS)
    if config.get("num_key_value_heads") not in (None, config.get("num_attention_heads")):
        raise InputError("num_key_value_heads is not supported: in a gpt_neox every query head has keys of its own")
    found: dict[str, Any] = {key: value for key, value in sizes(config).items() if key != "num_key_value_heads"}
    heads = found["num_attention_heads"]
    if found["hidden_size"] % heads:
        raise InputError(f"hidden_size {found['hidden_size']} is no multiple of num_attention_heads {heads}")
    share, group = 0.25, config.get("rope_parameters") or config.get("rope_scaling") or {}
    inside = group.get("partial_rotary_factor") if isinstance(group, Mapping) else None
    shares = [each for each in (inside, config.get("rotary_pct"), config.get("partial_rotary_factor")) if each]
    if len(set(shares)) > 1:
        raise InputError(f"rotary_pct and partial_rotary_factor differ: {' and '.join(map(shown, shares))}")
    if shares:
        share = real("rotary_pct", shares[0], 0, 1)
    turned = int(found["hidden_size"] // heads * share)
    if turned < 2 or turned % 2:
        raise InputError(f"rotary positions pair entries, so that an even number of them must turn, not {turned}")
    plain = {key: value for key, value in config.items() if key != "partial_rotary_factor"}
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(plain.get(key), Mapping):
            plain[key] = {name: value for name, value in plain[key].items() if name != "partial_rotary_factor"}
    bases = [plain[key] for key in ("rotary_emb_base", "rope_theta") if plain.get(key) is not None]
    if len(bases) == 2 and bases[0] != bases[1]:
        raise InputError(f"rotary_emb_base {shown(bases[0])} and rope_theta {shown(bases[1])} differ")
    if bases:
        plain["rope_theta"] = bases[0]
    check_shared(plain, found["num_hidden_layers"])
    found["rope_parameters"] = rotary(plain, THETA_UNSAID) | {"partial_rotary_factor": share}
    found |= _norm_eps(config, "layer_norm_eps") | _activation(config, "hidden_act")
    found |= _flags(config, "use_parallel_residual", "attention_bias", "tie_word_embeddings")
    return found | _tokens(config, found["vocab_size"], silent=False)


def gpt2(config: Values, changed: Values) -> dict[str, Any]:
    """The settings of a GPT-2: learned positions, LayerNorms, a plain MLP."""
    check_keys(changed, set(GPT2_SIZES) | GPT2_KEYS)
    for key in sorted(MAPPED - GPT2_SHARED):
        if config.get(key) not in (None, False):
            raise InputError(f"{key} is no setting of a gpt2, whose sizes are {', '.join(GPT2_SIZES)}")
    found: dict[str, Any] = {key: whole(key, config.get(key), 1, most) for key, most in GPT2_SIZES.items()}
    if found["n_embd"] % found["n_head"]:
        raise InputError(f"n_embd {found['n_embd']} is no multiple of n_head {found['n_head']}")
    if config.get("n_inner") is not None:
        found["n_inner"] = whole("n_inner", config["n_inner"], 1, bounds.WIDTH)
    found |= _norm_eps(config, "layer_norm_epsilon") | _activation(config, "activation_function")
    found |= _flags(config, "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tie_word_embeddings")
    return found | _tokens(config, found["vocab_size"], silent=False)


def _norm_eps(config: Values, key: str) -> dict[str, Any]:
    return {} if config.get(key) is None else {key: real(key, config[key], 0, 1)}


def _activation(config: Values, key: str) -> dict[str, Any]:
    if key not in config:
        return {}
    if config[key] not in ACTIVATIONS:
        near = nearest(str(config[key])[:80], ACTIVATIONS)
        said = shown(config[key])
        raise InputError(f"{key} {said} is not supported; there are {', '.join(ACTIVATIONS)}{near}")
    return {key: config[key]}


def _flags(config: Values, *keys: str) -> dict[str, Any]:
    for key in keys:
        if config.get(key) is not None and not isinstance(config[key], bool):
            raise InputError(f"{key} must be true or false, not {shown(config[key])}")
    return {key: config[key] for key in keys if config.get(key) is not None}


def _tokens(config: Values, vocabulary: int, silent: bool) -> dict[str, Any]:
    """Tokens with a meaning, and the spread of new weights."""
    found: dict[str, Any] = {} if silent else {"eos_token_id": None, "pad_token_id": None, "bos_token_id": None}
    if "eos_token_id" in config:
        value = config["eos_token_id"]
        ends = ends_of(value, vocabulary)
        given = len(value) if isinstance(value, list | tuple) else 1
        found["eos_token_id"] = value if len(ends) == given else [*ends] or None  # transformers warns of the others
    if config.get("pad_token_id") is not None:
        found["pad_token_id"] = whole("pad_token_id", config["pad_token_id"], 0, vocabulary - 1)
    if config.get("initializer_range") is not None:
        spread = config["initializer_range"]
        found["initializer_range"] = 0.0 if spread == 0 else real("initializer_range", spread, 0, 1)
    return found


GEMMA2_KEYS = {"hidden_activation", "query_pre_attn_scalar", "cache_implementation", *CAPS}

READERS: dict[str, Callable[[Values, Values], dict[str, Any]]] = {
    "qwen3": Decoder(("attention_bias",), head_size=128, uneven=True, silent=True),
    "llama": Decoder(("attention_bias", "mlp_bias"), silent=True),
    "mistral": Decoder(window=4096),
    "qwen2": Decoder(),
    "olmo2": Decoder(("attention_bias",)),
    "gemma2": Decoder(("attention_bias",), head_size=256, window=4096, capped=True, further=frozenset(GEMMA2_KEYS)),
    "gpt2": gpt2,
    "gpt_neox": neox,
}
"""What reads the config of each family, by its `model_type`."""


def stack_settings(config: Values, known: Values | None = None) -> dict[str, Any]:
    """The settings of a pretrained stack that transformers may see, checked; every other key is left out or refused.

    `known` are settings that need not be looked at where a config has them as they are there: transformers' own.
    InputError for a model that cannot be looped.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in READERS:
        there = f"there are {', '.join(READERS)}{nearest(str(kind)[:80], READERS)}"
        raise InputError(f"model type {shown(kind)} cannot be looped; {there}")
    unsaid = {} if known is None else known
    return READERS[kind](
        config, {key: value for key, value in config.items() if key not in unsaid or value != unsaid[key]}
    )
