"""Ouro, a looped language model: the whole stack of layers is F, called four times in training.

    h_0 = embedding(tokens)                                    the input enters once, unscaled
    x  += N2(Attn(N1(x)));  x += N4(MLP(N3(x)))                a layer: RMSNorm before and after each branch
    h_t = norm(layers(h_{t-1}))                                the final norm closes every loop
    logits_t = head(h_t);   gate_t = w h_t + b                 both read the closed state

What is mapped.  Heads, rows and components are those of every looped model here: q and k after rotary positions, z
before the output projection, attn_out and mlp_out after the norm on the branch, which is what enters the residual
stream.  A map J between two calls sees the closed state.  With grouped keys, a key or value head stands under every
query head that uses it, and a patch at one query head changes it for that head alone.

What is not mapped.  The exit gate is read (`gate_logits`, `exit_probabilities`), but nothing exits early and the gate
cannot be patched: every call is computed, and the reader picks one.  There is no loss over exits.  Tied embeddings,
sliding windows, attention biases and scaled rotary positions, which no released Ouro has, are refused.

What certifies it: states, gates, logits, padded logits and greedy tokens of the public modelling code on a small random
model (tests/golden), to 1e-5 in fp32.  Attributes are named as in the released files, so that a state dict is a file's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor, nn

from loopscope import bounds
from loopscope.bounds import shown, whole
from loopscope.errors import InputError
from loopscope.models.adapter import Sized
from loopscope.models.configs import base_of, check_keys, check_shared, ends_of, eps_of, rotary, sizes
from loopscope.models.passes import Boundary, RotaryAngles

_SIZES = {
    "vocabulary": ("vocab_size", bounds.VOCABULARY),
    "width": ("hidden_size", bounds.WIDTH),
    "mlp": ("intermediate_size", bounds.WIDTH),
    "layers": ("num_hidden_layers", bounds.LAYERS),
    "heads": ("num_attention_heads", bounds.LAYERS),
    "kv_heads": ("num_key_value_heads", bounds.LAYERS),
    "positions": ("max_position_embeddings", bounds.POSITIONS),
    "loops": ("total_ut_steps", bounds.LOOPS),
}
_FIXED = {
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_scaling": None,
    "use_sliding_window": False,
    "early_exit_threshold": 1.0,  # the last loop; below it, the gate would choose
    "early_exit_step": None,
}


@dataclass(frozen=True)
class OuroConfig:
    """Sizes and constants of an Ouro model; `from_dict` reads them from a released `config.json`."""

    vocabulary: int
    width: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    positions: int
    loops: int
    eps: float = 1e-6
    base: float = 1e6  # of the rotary positions
    ends: tuple[int, ...] = ()  # tokens that end a text

    def __post_init__(self) -> None:
        for name, (key, most) in _SIZES.items():
            whole(key, getattr(self, name), 1, most)
        if self.width % (2 * self.heads):  # rotary positions pair the entries of a head
            raise InputError(f"hidden_size {self.width} does not give {self.heads} heads of an even size")
        if self.heads % self.kv_heads:
            raise InputError(f"num_attention_heads {self.heads} is no multiple of num_key_value_heads {self.kv_heads}")
        eps_of(self.eps)
        base_of(self.base)

    @property
    def head_size(self) -> int:
        """Size k of a head: its share of the width."""
        return self.width // self.heads

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OuroConfig:
        """Read the keys of a released config; InputError for one that is missing, of a wrong type, or not supported."""
        check_keys(values, {"total_ut_steps", "early_exit_threshold", "early_exit_step"})
        found: dict[str, Any] = {**sizes(values), "total_ut_steps": values.get("total_ut_steps")}
        for key, only in _FIXED.items():
            if values.get(key, only) != only:
                raise InputError(f"{key} {shown(values[key])} is not supported: every released Ouro has {only!r}")
        check_shared(values, found["num_hidden_layers"])
        size = found["hidden_size"] // found["num_attention_heads"]
        if values.get("head_dim") not in (None, size):
            found_size = shown(values["head_dim"])
            raise InputError(f"head_dim {found_size} is not supported: hidden_size / num_attention_heads = {size}")
        return cls(
            **{name: found[key] for name, (key, _) in _SIZES.items()},
            eps=eps_of(values.get("rms_norm_eps")),
            base=rotary(values, None, ("default",))["rope_theta"],
            ends=ends_of(values.get("eos_token_id"), values["vocab_size"]),
        )


class RMSNorm(nn.Module):
    """x / rms(x) in fp32 or better, back in x's type, times a weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """The normed rows."""
        if x.dtype == self.weight.dtype:  # one operation on a GPU
            return nnf.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


def angles_of(rows: Int[Tensor, "*P R"], size: int, base: float, dtype: torch.dtype) -> RotaryAngles:
    """The angles of rows in heads of a size, as `rotate` takes them: plane i has the frequency base^(-2i/size)."""
    kind = torch.promote_types(dtype, torch.float32)
    steps = torch.arange(0, size, 2, device=rows.device).to(kind) / size
    angle = (rows[..., None].to(kind) * (1.0 / base**steps)).unsqueeze(-3)  # alike for all heads
    return in_halves(angle.cos(), angle.sin(), dtype)


def in_halves(cos: Float[Tensor, "*P R half"], sin: Float[Tensor, "*P R half"], dtype: torch.dtype) -> RotaryAngles:
    """Angles as `rotate` takes them: once for every entry, with the sign that its partner comes with."""
    return RotaryAngles(torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype))


def rotate(x: Float[Tensor, "*B H R k"], rotary_angles: RotaryAngles) -> Float[Tensor, "*B H R k"]:
    """x turned by its position: entry i is paired with entry i + n/2, of the first n, as many as there are angles."""
    cos, sin = rotary_angles.cos.to(x.dtype), rotary_angles.sin.to(x.dtype)
    turning, still = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    turned = turning * cos + turning.roll(cos.shape[-1] // 2, -1) * sin
    return torch.cat([turned, still], -1) if still.shape[-1] else turned


class _Attention(nn.Module):
    """The four projections of attention, under their released names."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        kv = config.head_size * config.kv_heads
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, kv, bias=False)
        self.v_proj = nn.Linear(config.width, kv, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)


class _Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp, bias=False)
        self.down_proj = nn.Linear(config.mlp, config.width, bias=False)

    def hidden(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B m"]:
        """Its units."""
        return nnf.silu(self.gate_proj(x)) * self.up_proj(x)


class OuroLayer(nn.Module):
    """One layer of F; norms named `_2` sit on the output of a branch."""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.heads, self.base = config.heads, config.base
        self.size = config.head_size
        self.scale = self.size**-0.5
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(config)
        self.input_layernorm = RMSNorm(config.width, config.eps)
        self.input_layernorm_2 = RMSNorm(config.width, config.eps)
        self.post_attention_layernorm = RMSNorm(config.width, config.eps)
        self.post_attention_layernorm_2 = RMSNorm(config.width, config.eps)

    def project(
        self, x: Float[Tensor, "*B R d"], rows: Int[Tensor, "*P R"] | RotaryAngles, parts: str = "qkv"
    ) -> tuple[Float[Tensor, "*B H R k"], ...]:
        """The named projections of these rows, split into heads, q and k turned by their positions.

        `rows` are the positions, [R] for all examples or [B, R] for each, or the model's `rotary_angles` of them.
        """
        rotary_angles = rows if isinstance(rows, RotaryAngles) else angles_of(rows, self.size, self.base, x.dtype)
        x = self.input_layernorm(x)
        linears = {"q": self.self_attn.q_proj, "k": self.self_attn.k_proj, "v": self.self_attn.v_proj}
        found = []
        for part in parts:
            y = linears[part](x).unflatten(-1, (-1, self.size)).transpose(-2, -3)
            y = y if part == "v" else rotate(y, rotary_angles)
            shared = self.heads // y.shape[-3]  # query heads to one key head
            found.append(y if shared == 1 else y.repeat_interleave(shared, -3))
        return tuple(found)

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream, from the heads' outputs."""
        return self.input_layernorm_2(self.self_attn.o_proj(z.transpose(-2, -3).flatten(-2)))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self.mlp.hidden(self.post_attention_layernorm(x))

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream, of its hidden units."""
        return self.post_attention_layernorm_2(self.mlp.down_proj(hidden))

    def mlp_out(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream; x is the stream after attention."""
        return self.mlp_from(self.mlp_hidden(x))


class _Trunk(nn.Module):
    """Everything but the head, under the released prefix `model.`"""

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        # A ModuleList holds layers, but cannot tell a type checker so.
        self.layers = cast("Sequence[OuroLayer]", nn.ModuleList(OuroLayer(config) for _ in range(config.layers)))
        self.norm = RMSNorm(config.width, config.eps)
        self.early_exit_gate = nn.Linear(config.width, 1)


class Ouro(Sized):
    """embed -> F -> F -> ... -> read, one shared F that ends with a norm; a `LanguageModel`.

    A fresh one has PyTorch's initial weights; `folders.load` gives a released one.
    """

    def __init__(self, config: OuroConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Trunk(config)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)

    @property
    def layers(self) -> tuple[OuroLayer, ...]:
        """The layers of F, in order."""
        return tuple(self.model.layers)

    @property
    def boundary(self) -> Boundary:
        """What ends every call: the final norm."""
        return "norm"

    @property
    def unread(self) -> tuple[nn.Parameter, ...]:
        """The exit gate's parameters."""
        return tuple(self.model.early_exit_gate.parameters())

    def embedded(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """h_0 of tokens that were checked."""
        return self.model.embed_tokens(tokens)

    def rotary_angles(self, rows: Int[Tensor, "*P R"], h: Float[Tensor, "*B R d"]) -> RotaryAngles:
        """The rotary positions of rows, for all layers and loops."""
        return angles_of(rows, self.head_size, self.config.base, h.dtype)

    def close(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """The final norm, which ends every call."""
        return self.model.norm(h)

    def read(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B vocabulary"]:
        """Logits over the vocabulary, row by row, of closed states."""
        return self.lm_head(h)

    def gate_logits(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B"]:
        """The exit gate before its sigmoid, row by row, of closed states."""
        return self.model.early_exit_gate(h).squeeze(-1)

    def draw_weights(self, spread: float) -> None:
        """Every matrix N(0, spread), biases zero."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                part.weight.normal_(std=spread)
            if isinstance(part, nn.Linear) and part.bias is not None:
                part.bias.zero_()


def ouro_from_config(config: Mapping[str, Any], loops: int | None = None, boundary: Boundary | None = None) -> Ouro:
    """The model of a released `config.json` with PyTorch's initial weights; `loops`: by default the config's own.

    InputError for a setting that is not supported, and for a boundary that Ouro has not.
    """
    if boundary not in (None, "norm"):
        raise InputError(f"Ouro ends every loop with its norm; there is no boundary {boundary!r} (nearest: norm)")
    settings = OuroConfig.from_dict(config)
    return Ouro(settings if loops is None else replace(settings, loops=loops))


def exit_probabilities(gate_logits: Float[Tensor, " loops *B"]) -> Float[Tensor, " loops *B"]:
    """How likely the gate leaves after each loop, having stayed until then; the last loop takes the rest."""
    leave = gate_logits.sigmoid()
    leave = torch.cat([leave[:-1], torch.ones_like(leave[-1:])])
    stay = torch.cat([torch.ones_like(leave[:1]), (1 - leave[:-1]).cumprod(0)])
    return leave * stay
