"""Huginn and the retrofits: `model_type` `huginn_raven`, one config for three kinds of layers.

    e = prelude(scale * embedding(tokens))                     the input, once
    h_t = core(W [h_{t-1} ; e])                                a call
    logits_t = head(norm(coda(leave(h_t))))                    a reading, after any call

| kind of layer | x after attention | q and k | rotation | `leave` |
|---|---|---|---|---|
| "huginn": four norms | N2(x + A(N1 x)); then N4(x + M(N3 x)) | a bias each, before the rotation | in pairs | norm |
| "llama": two norms | x + A(N1 x); then x + M(N2 x) | as they are | by halves | as it is |
| "olmo": two norms, q_norm | x + N1(A x); then x + N2(M x) | normed over all heads | by halves | as it is |

A config does not tell the three apart: the tensors beside it do (`told_by_weights`).  A Huginn's norm acts on the sum,
so a vector that is added to `attn_out` or `mlp_out` is normed with the stream; an OLMo-like layer's acts on the branch,
and `attn_out` is what it gives.  Keys shared by several query heads are repeated, so that heads are query heads.

What is mapped.  Every part of every layer, in the prelude, the core and the coda; W as `enter`; a Huginn's norm
between loop and coda as `leave`.  A state is what the core gives, before that norm.  Each reading runs the coda anew.
The start is a truncated normal draw by seed and position; `zeros` and a given state are there as for every model.

What is not mapped.  Noise on the state, exits of single rows, caches that share slots between loops, and other starts
(`initial_state_mode`) are refused or not there.  The released configs of retrofits carry the special tokens of Huginn,
which are other words in their vocabularies: these are no ends of a text here.

What certifies it: states, latents, logits and greedy tokens of the public code on small random models, Huginn's and
the Llama-like retrofits' (tests/golden), to 1e-5 of a state's size and 5e-5 (logits) in fp32; and transformers' own
Llama and OLMo-2, which a retrofit is that looks only at e and runs once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor, nn

from loopscope import bounds
from loopscope.bounds import real, shown, whole
from loopscope.errors import InputError, nearest
from loopscope.models.configs import base_of, check_keys, check_shared, ends_of, eps_of, rotary
from loopscope.models.cored import (
    Cored,
    CoredConfig,
    Scaling,
    angles_at,
    check_boundary,
    check_fixed,
    core_sizes,
    flag,
    head_of,
    join_heads,
    layer_names,
    rotate_pairs,
    split_heads,
)
from loopscope.models.ouro import RMSNorm, in_halves, rotate
from loopscope.models.passes import Boundary, RotaryAngles

Kind = Literal["huginn", "llama", "olmo"]

KIND = "layers_told_by_weights"
"""The setting that `told_by_weights` adds to a config."""

HUGINN_TOKENS = frozenset({65504, 65505, 65508, 65509})
"""Special tokens of Huginn, which configs of retrofits carry on by mistake."""

_FIXED = {
    "bias": False, "nonlin_name": "SiLU", "mlp_class_name": "GatedMLP", "norm_class_name": "RMSNorm_llama",
    "block_class_name": "SandwichBlock", "injection_type": "linear", "state_init": "like-init",
    "initial_state_mode": "random", "test_time_noise": 0, "attention_bias": False,
}  # fmt: skip
"""Settings that every released model has alike; the block's class is called so for all kinds of layers."""

_KEYS = {
    *_FIXED, *(key for key, _, _ in CoredConfig.KEYS.values()), "n_heads", "norm_eps", "rope_base", "qk_bias",
    "tie_embeddings", "init_values", KIND,
}  # fmt: skip
_WITHOUT_EFFECT = {
    "n_layers", "padding_multiple", "architecture_class_name", "init_strategy", "init_orthogonal", "sampling_scheme",
    "mean_backprop_depth", "activation_checkpoint_impl", "test_time_noise_type", "effective_expected_depth",
    "lockstep_n", "lockstep_k",
}  # fmt: skip
"""Keys about training, or worked out from others."""


@dataclass(frozen=True, kw_only=True)
class RavenConfig(CoredConfig):
    """Sizes and constants of such a model; `from_dict` reads them from a released `config.json`."""

    kind: Kind
    embed_scale: float
    qk_bias: bool = False
    scaling: Scaling

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.qk_bias and self.kind != "huginn":
            raise InputError("qk_bias with two norms a layer is not supported: no released model has it")
        if self.qk_bias and self.kv_heads != self.heads:
            raise InputError(f"qk_bias with {self.kv_heads} key heads for {self.heads} heads is not supported")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RavenConfig:
        """Read the keys of a released config, with what `told_by_weights` added.

        Without that, layers are taken for Huginn's where there is a bias on q and k or no `rope_theta`, else for a
        Llama's: enough for an outline, and the names of the weights tell if it was wrong.  InputError for a key that is
        missing, of a wrong type, or not supported.
        """
        check_keys(values, _KEYS | _WITHOUT_EFFECT)
        check_fixed(values, _FIXED)
        qk_bias = flag(values, "qk_bias", True)
        kind = values.get(KIND, "huginn" if qk_bias or values.get("rope_theta") is None else "llama")
        if kind not in get_args(Kind):
            raise InputError(f"there are no layers {shown(kind)}{nearest(str(kind), get_args(Kind))}")
        found: dict[str, Any] = {**core_sizes(values, "n_heads")}
        for key, name in (("hidden_size", "width"), ("num_attention_heads", "heads")):
            if values.get(key, found[name]) != found[name]:
                raise InputError(f"{key} is {shown(values[key])}, but {CoredConfig.KEYS[name][0]} is {found[name]}")
        check_shared(values, found["prelude"] + found["core"] + found["coda"])
        if kind == "huginn":
            if values.get("rope_scaling") is not None or values.get("rope_parameters") is not None:
                raise InputError("rope_scaling is not supported with four norms a layer: Huginn has none")
            scaling: dict[str, Any] = {"rope_type": "default", "rope_theta": base_of(values.get("rope_base"))}
        else:
            scaling = rotary(values, None, ("default", "llama3"))
            if scaling["rope_type"] == "llama3":
                for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
                    if key not in scaling:
                        raise InputError(f"rotary scaling 'llama3' needs {key}, which is missing")
            if values.get("max_position_embeddings") is not None:
                most = values["max_position_embeddings"]
                found["positions"] = whole("max_position_embeddings", most, 1, bounds.POSITIONS)
        scale, spread = _start_of(values, found["width"], kind)
        ends = values.get("eos_token_id")
        if kind != "huginn":
            several = ends if isinstance(ends, list) else [ends]
            ends = [end for end in several if not (end is None or (type(end) is int and end in HUGINN_TOKENS))]
        made = cls(
            **found,
            eps=eps_of(values.get("norm_eps")),
            base=scaling["rope_theta"],
            tied=flag(values, "tie_embeddings", flag(values, "tie_word_embeddings", True)),
            spread=spread * scale,
            kind=kind,
            embed_scale=scale,
            qk_bias=qk_bias,
            scaling=scaling,
        )
        return replace(made, ends=ends_of(ends, made.vocabulary))


def _start_of(values: Mapping[str, Any], width: int, kind: Kind) -> tuple[float, float]:
    """The scale of the embedding, and the standard deviation of the start before that scale."""
    said = values.get("init_values") or {}
    if not isinstance(said, Mapping):
        raise InputError(f"init_values must be a group of settings, not {shown(said)}")
    std, scale = said.get("std"), said.get("embed_scale")
    if kind == "huginn":  # whose values follow from its width
        std = math.sqrt(2 / (5 * width)) if std is None else std
        scale = math.sqrt(width) if scale is None else scale
    return real("init_values.embed_scale", scale, 0, 1e6), real("init_values.std", std, 0, 1e6)


def told_by_weights(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A config with what only the names of the tensors beside it tell: which kind of layers there are.

    InputError where layers differ, or where the config speaks of a bias on q and k otherwise than the tensors.
    """
    layers = layer_names(names)
    kinds: dict[str, str] = {}
    for (stage, number), parts in layers.items():
        has = {part.rsplit(".", 1)[0] for part in parts}
        kind = "huginn" if {"norm_3", "norm_4"} & has else "olmo" if "attn.q_norm" in has else "llama"
        kinds.setdefault(kind, f"{stage}.{number}")
    if len(kinds) > 1:
        said = " and ".join(f"transformer.{where} of {kind}'s kind" for kind, where in kinds.items())
        raise InputError(f"all layers must be of one kind, but the weights have {said}")
    biased = any("attn.qk_bias" in parts for parts in layers.values())
    if layers and values.get("qk_bias", biased) is not biased:
        there = "" if biased else "no "
        raise InputError(f"qk_bias is {shown(values['qk_bias'])}, but the weights have {there}attn.qk_bias")
    return {**values, "qk_bias": biased, **({KIND: min(kinds)} if kinds else {})}


class _Attention(nn.Module):
    """The projections of attention and what is added to or done with q and k, under their released names."""

    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        self.size, self.heads = config.head_size, config.heads
        full, shared = config.heads * config.head_size, config.kv_heads * config.head_size
        self.parts = {"q": (0, full), "k": (full, shared), "v": (full + shared, shared)}
        self.Wqkv = nn.Linear(config.width, full + 2 * shared, bias=False)
        self.proj = nn.Linear(full, config.width, bias=False)
        self.qk_bias: Tensor | None = None
        if config.qk_bias:
            self.qk_bias = nn.Parameter(torch.zeros(2, 1, config.heads, config.head_size))
        self.norms: dict[str, str] = {}
        if config.kind == "olmo":
            self.q_norm, self.k_norm = RMSNorm(full, config.eps), RMSNorm(shared, config.eps)
            self.norms = {"q": "q_norm", "k": "k_norm"}

    def heads_of(self, y: Float[Tensor, "*B R d"], part: str) -> Float[Tensor, "*B G R k"]:
        """q, k or v of normed rows, before the rotation; k and v may have fewer heads."""
        first, count = self.parts[part]
        found = nnf.linear(y, self.Wqkv.weight.narrow(0, first, count))
        if part in self.norms:
            found = getattr(self, self.norms[part])(found)
        found = split_heads(found, self.size)
        if part != "v" and self.qk_bias is not None:
            found = found + self.qk_bias["qk".index(part)].transpose(0, 1)
        return found


class _Mlp(nn.Module):
    """SwiGLU, both of its first matrices in one."""

    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.width, 2 * config.mlp, bias=False)
        self.proj = nn.Linear(config.mlp, config.width, bias=False)

    def hidden(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B m"]:
        """Its units."""
        gate, up = self.fc(x).chunk(2, -1)
        return nnf.silu(gate) * up


class RavenLayer(nn.Module):
    """What layers of all kinds share; here those of a Llama-like retrofit."""

    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        self.scale = config.head_size**-0.5
        self.scaling = config.scaling
        self.attn, self.mlp = _Attention(config), _Mlp(config)
        self.norm_1, self.norm_2 = RMSNorm(config.width, config.eps), RMSNorm(config.width, config.eps)

    def project(
        self, x: Float[Tensor, "*B R d"], rows: Int[Tensor, "*P R"] | RotaryAngles, parts: str = "qkv"
    ) -> tuple[Float[Tensor, "*B H R k"], ...]:
        """The named projections of these rows, split into heads, q and k turned by their positions.

        `rows` are the positions, [R] for all examples or [B, R] for each, or the model's `rotary_angles` of them.
        """
        size = self.attn.size
        angles = rows if isinstance(rows, RotaryAngles) else angles_at(rows, size, self.scaling, x.dtype)
        y, found = self.seen(x), []
        for part in parts:
            heads = self.attn.heads_of(y, part)
            heads = heads if part == "v" else self.turn(heads, angles)
            shared = self.attn.heads // heads.shape[-3]  # query heads to one key head
            found.append(heads if shared == 1 else heads.repeat_interleave(shared, -3))
        return tuple(found)

    def turn(self, heads: Float[Tensor, "*B H R k"], angles: RotaryAngles) -> Float[Tensor, "*B H R k"]:
        """Queries or keys turned by their positions."""
        return rotate(heads, in_halves(*angles, heads.dtype))

    def seen(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """What attention reads of the stream."""
        return self.norm_1(x)

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention gives to `join`, from the heads' outputs."""
        return self.attn.proj(join_heads(z))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self.mlp.hidden(self.norm_2(x))

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP gives to `join`, of its hidden units."""
        return self.mlp.proj(hidden)

    def mlp_out(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R d"]:
        """What the MLP gives to `join`; x is the stream after attention."""
        return self.mlp_from(self.mlp_hidden(x))


class OlmoLayer(RavenLayer):
    """A layer of an OLMo-like retrofit: it reads the stream as it is, and norms what it adds."""

    def seen(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """The stream as it is."""
        return x

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds, normed."""
        return self.norm_1(self.attn.proj(join_heads(z)))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self.mlp.hidden(x)

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds of its hidden units, normed."""
        return self.norm_2(self.mlp.proj(hidden))


class HuginnLayer(RavenLayer):
    """A layer of Huginn: a norm before each branch, and one of the sum behind it."""

    def __init__(self, config: RavenConfig) -> None:
        super().__init__(config)
        self.norm_3, self.norm_4 = RMSNorm(config.width, config.eps), RMSNorm(config.width, config.eps)

    def turn(self, heads: Float[Tensor, "*B H R k"], angles: RotaryAngles) -> Float[Tensor, "*B H R k"]:
        """Queries or keys turned by their positions, neighbouring entries together."""
        return rotate_pairs(heads, angles)

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self.mlp.hidden(self.norm_3(x))

    def join(self, x: Float[Tensor, "*B R d"], out: Float[Tensor, "*B R d"], which: str) -> Float[Tensor, "*B R d"]:
        """The norm of the sum."""
        return self.norm_2(x + out) if which == "attn" else self.norm_4(x + out)


LAYERS: Mapping[Kind, type[RavenLayer]] = {"huginn": HuginnLayer, "llama": RavenLayer, "olmo": OlmoLayer}


class _Trunk(nn.Module):
    """Everything but the head, under the released prefix `transformer.`"""

    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        made = LAYERS[config.kind]
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.prelude = nn.ModuleList(made(config) for _ in range(config.prelude))
        self.adapter = nn.Linear(2 * config.width, config.width, bias=False)
        self.core_block = nn.ModuleList(made(config) for _ in range(config.core))
        self.coda = nn.ModuleList(made(config) for _ in range(config.coda))
        self.ln_f = RMSNorm(config.width, config.eps)


class Raven(Cored):
    """A Huginn or a retrofit; a `LanguageModel`.

    A fresh one has PyTorch's initial weights; `folders.load` gives a released one.
    """

    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        self.config: RavenConfig = config
        self.transformer, self.lm_head = _Trunk(config), head_of(config)

    @property
    def scaling(self) -> Scaling:
        """The rotary positions, with what slows long waves down."""
        return self.config.scaling

    @property
    def tables(self) -> dict[str, tuple[int, ...]]:
        """The rotary positions that a Huginn's file also holds."""
        if self.config.kind != "huginn":
            return {}
        return {"freqs_cis": (1, self.positions, 1, self.head_size // 2, 2)}

    def embedded(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """What the prelude sees of tokens that were checked."""
        return super().embedded(tokens) * self.config.embed_scale

    def enter(self, h: Float[Tensor, "*B d"], e: Float[Tensor, "*B d"], call: int) -> Float[Tensor, "*B d"]:
        """What the core sees: W of state and input, side by side."""
        return cast("Tensor", self.transformer.adapter(torch.cat([h, e], -1)))

    def leave(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """What the coda sees: a Huginn's state normed, a retrofit's as it is."""
        return self.transformer.ln_f(h) if self.config.kind == "huginn" else h


def raven_from_config(config: Mapping[str, Any], loops: int | None = None, boundary: Boundary | None = None) -> Raven:
    """The model of a released `config.json` with PyTorch's initial weights; `loops`: by default the config's own.

    InputError for a setting that is not supported, and for a boundary that such a model has not.
    """
    check_boundary("a model with a coda", boundary)
    settings = RavenConfig.from_dict(config)
    return Raven(settings if loops is None else replace(settings, loops=loops))
