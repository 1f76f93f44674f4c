"""HRM-Text, a language model of two states: a stack L refines one several times, then a stack H the other once.

    z_H = scale * embedding(tokens);   z_L = a vector of the file      the input enters once
    z_L = N(L(z_L + z_H))                                              several times, then
    z_H = N(H(z_H + z_L))                                              once; that is one loop
    x += gate(N x) * Attn(N x);  x += MLP(N x)                         a layer; no norm N has a weight
    logits = head(z_H)

What is mapped.  A state holds z_L and z_H side by side, in the order of `stacks`.  A loop, as `loops`, `program` and
`readings` count it, is `L3 H` or the like, and by default there are `H_cycles`.  `z` is a head's output before its
gate, which is a function of what entered the layer; `attn_out` is after gate and projection.  The model was trained
with prefixes that see themselves in both directions: `model.with_prefix(rows)` is the same model, weights and all, with
such a beginning; without one, attention is causal.  transformers says the same by `token_type_ids` that are 1 there.

What is not mapped.  A prefix has one length for a batch, so that inputs with others are run apart.  Blocks elsewhere
than at the beginning, and rotary scalings, are refused.  `L_bp_cycles`, through which calls gradients go in training,
has no effect: here they go through all.  `num_layers_per_stack` is the depth of a stack; where a config has it,
`num_hidden_layers` counts something else and is not looked at.

What is in the files.  Released ones hold gate, q, k and v of a layer in one matrix (`attn.gqkv_proj`), and gate and up
of its MLP in another; transformers splits them when it loads.  A file whose names are those that it has in memory is
taken, too, and told by them (`told_by_weights`).  Biases, which no released model has, are there in such files only.

What certifies it: transformers' own model on random weights, with and without a prefix, states to 1e-5 and logits to
5e-5 in fp32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from loopscope import bounds
from loopscope.bounds import real, shown, whole
from loopscope.errors import InputError, nearest
from loopscope.model import causal
from loopscope.models.adapter import Sized
from loopscope.models.configs import THETA_UNSAID, check_keys, check_shared, ends_of, eps_of, rotary, sizes
from loopscope.models.ouro import angles_of, rotate
from loopscope.models.passes import Boundary, RotaryAngles
from loopscope.models.trm import unit
from loopscope.program import Call, Program, Start

_tanh: Callable[[Tensor], Tensor] = partial(nnf.gelu, approximate="tanh")
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": nnf.silu, "swish": nnf.silu, "gelu": nnf.gelu, "gelu_new": _tanh, "gelu_pytorch_tanh": _tanh,
    "relu": nnf.relu,
}  # fmt: skip
"""What an MLP may bend its gate by, under the names of configs."""

SPLIT = "weights_told_to_be_split"
"""The setting that `told_by_weights` adds to a config."""

_FURTHER = {
    "H_cycles", "L_cycles", "L_bp_cycles", "embedding_scale", "prefix_lm", "num_layers_per_stack", "mlp_bias", SPLIT,
}  # fmt: skip
_FOUR = ("gate", "q", "k", "v")
_HEAD_SIZE, _SPREAD, _EPS = 128, 0.02, 1e-6  # where a config says nothing


@dataclass(frozen=True)
class HrmTextConfig:
    """Sizes and constants of an HRM-Text; `from_dict` reads them from a released `config.json`."""

    vocabulary: int
    width: int
    mlp: int
    layers: int  # of each stack
    heads: int
    head_size: int
    positions: int
    h_cycles: int
    l_cycles: int  # calls of L in each
    scale: float  # of the embedding
    eps: float = 1e-6
    base: float = 1e4  # of the rotary positions
    activation: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
    split: bool = False  # whether every projection has a matrix of its own
    prefixes: bool = True
    ends: tuple[int, ...] = ()  # tokens that end a text

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HrmTextConfig:
        """Read the keys of a released config; InputError for one that is missing, of a wrong type, or not supported."""
        check_keys(values, _FURTHER)
        found = sizes(values)
        check_shared(values, found["num_hidden_layers"])
        if found["num_key_value_heads"] != found["num_attention_heads"]:
            raise InputError(f"num_key_value_heads {found['num_key_value_heads']}: every head has keys of its own")
        size = values.get("head_dim")
        size = whole("head_dim", _HEAD_SIZE if size is None else size, 1, bounds.WIDTH)
        if size % 2:
            raise InputError(f"rotary positions pair the entries of a head, so that its size must be even, not {size}")
        activation = values.get("hidden_act", "silu")
        if activation not in ACTIVATIONS:
            there = f"there are {', '.join(ACTIVATIONS)}{nearest(str(activation)[:80], ACTIVATIONS)}"
            raise InputError(f"hidden_act {shown(activation)} is not supported; {there}")
        if type(values.get("prefix_lm", True)) is not bool:
            raise InputError(f"prefix_lm must be true or false, not {shown(values['prefix_lm'])}")
        split, biased = bool(values.get(SPLIT)), [key for key in ("attention_bias", "mlp_bias") if values.get(key)]
        if biased and not split:
            raise InputError(f"{biased[0]} is not supported where projections share a matrix, as in released files")
        layers, scale = values.get("num_layers_per_stack"), values.get("embedding_scale")
        if scale is None:
            spread = values.get("initializer_range")
            scale = 1.0 / real("initializer_range", _SPREAD if spread is None else spread, 0, 1)
        return cls(
            found["vocab_size"],
            found["hidden_size"],
            found["intermediate_size"],
            whole("num_layers_per_stack", found["num_hidden_layers"] if layers is None else layers, 1, bounds.LAYERS),
            found["num_attention_heads"],
            size,
            found["max_position_embeddings"],
            whole("H_cycles", values.get("H_cycles", 2), 1, bounds.LOOPS),
            whole("L_cycles", values.get("L_cycles", 3), 1, bounds.LOOPS // 2),
            scale=real("embedding_scale", scale, 0, 1e6),
            eps=eps_of(values.get("rms_norm_eps", _EPS)),
            base=rotary(values, THETA_UNSAID, ("default",))["rope_theta"],
            activation=activation,
            attention_bias="attention_bias" in biased,
            mlp_bias="mlp_bias" in biased,
            split=split,
            tied=bool(values.get("tie_word_embeddings")),
            prefixes=values.get("prefix_lm", True),
            ends=ends_of(values.get("eos_token_id"), found["vocab_size"]),
        )


class _Decoder(nn.Module):
    """The weights of one layer, under the names of their file."""

    def __init__(self, config: HrmTextConfig) -> None:
        super().__init__()
        d, inside, bias = config.width, config.heads * config.head_size, config.attention_bias
        out, down = nn.Linear(inside, d, bias=bias), nn.Linear(config.mlp, d, bias=config.mlp_bias)
        self.bend, self.split = ACTIVATIONS[config.activation], config.split
        if config.split:
            four = {f"{part}_proj": nn.Linear(d, inside, bias=bias) for part in _FOUR}
            two = {f"{part}_proj": nn.Linear(d, config.mlp, bias=config.mlp_bias) for part in ("gate", "up")}
            self.self_attn = nn.ModuleDict({**four, "o_proj": out})
            self.mlp = nn.ModuleDict({**two, "down_proj": down})
        else:
            self.attn = nn.ModuleDict({"gqkv_proj": nn.Linear(d, 4 * inside, bias=False), "o_proj": out})
            both = nn.Linear(d, 2 * config.mlp, bias=False)
            self.mlp = nn.ModuleDict({"gate_up_proj": both, "down_proj": down})

    def inward(self, part: str, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B inside"]:
        """The projection "gate", "q", "k" or "v"."""
        if self.split:
            return self.self_attn[f"{part}_proj"](x)
        return nnf.linear(x, cast("Tensor", self.attn["gqkv_proj"].weight).chunk(4)[_FOUR.index(part)])

    def outward(self, z: Float[Tensor, "*B inside"]) -> Float[Tensor, "*B d"]:
        """What attention gives of its heads' outputs."""
        return (self.self_attn if self.split else self.attn)["o_proj"](z)

    def hidden(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B m"]:
        """The units of the gated MLP."""
        if self.split:
            gate, up = self.mlp["gate_proj"](x), self.mlp["up_proj"](x)
        else:
            gate, up = self.mlp["gate_up_proj"](x).chunk(2, -1)
        return self.bend(gate) * up


class _Stack(nn.Module):
    """The weights of one stack."""

    def __init__(self, config: HrmTextConfig) -> None:
        super().__init__()
        # A ModuleList holds layers, but cannot tell a type checker so.
        self.layers = cast("Sequence[_Decoder]", nn.ModuleList(_Decoder(config) for _ in range(config.layers)))


class HrmTextLayer:
    """One layer of a stack behind a prefix of so many rows, which may be none.

    It owns nothing: the weights stay where they are in the model.
    """

    def __init__(self, decoder: _Decoder, config: HrmTextConfig, prefix: int) -> None:
        self.decoder, self.prefix = decoder, prefix
        self.size, self.eps, self.base = config.head_size, config.eps, config.base
        self.scale = self.size**-0.5

    def project(
        self, x: Float[Tensor, "*B R d"], rows: Int[Tensor, "*P R"] | RotaryAngles, parts: str = "qkv"
    ) -> tuple[Float[Tensor, "*B H R k"], ...]:
        """The named projections of these rows, split into heads, q and k turned by their positions.

        `rows` are the positions, [R] for all examples or [B, R] for each, or the model's `rotary_angles` of them.
        """
        rotary_angles = rows if isinstance(rows, RotaryAngles) else angles_of(rows, self.size, self.base, x.dtype)
        y = unit(x, self.eps)
        heads = [self.decoder.inward(part, y).unflatten(-1, (-1, self.size)) for part in parts]
        found = zip(parts, (each.transpose(-2, -3) for each in heads), strict=True)
        return tuple(each if part == "v" else rotate(each, rotary_angles) for part, each in found)

    def attn_out(self, z: Float[Tensor, "*B H R k"], x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream: the heads' outputs, gated by what entered the layer."""
        gate = self.decoder.inward("gate", unit(x, self.eps)).sigmoid()
        return self.decoder.outward(gate * z.transpose(-2, -3).flatten(-2))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self.decoder.hidden(unit(x, self.eps))

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream, of its hidden units."""
        return self.decoder.mlp["down_proj"](hidden)

    def mlp_out(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream; x is the stream after attention."""
        return self.mlp_from(self.mlp_hidden(x))

    def mask(self, queries: Int[Tensor, " R"], keys: Int[Tensor, " S"]) -> Bool[Tensor, "R S"]:
        """A row sees those before it and, inside the prefix, those behind it as well."""
        return causal(queries, keys) | ((queries < self.prefix)[:, None] & (keys < self.prefix))


class _Trunk(nn.Module):
    """Everything but the head, under the released prefix `model.`"""

    def __init__(self, config: HrmTextConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.L_module = _Stack(config)
        self.H_module = _Stack(config)
        self.z_L_init = nn.Parameter(torch.zeros(config.width), requires_grad=False)


class HrmText(Sized):
    """Two states and two stacks of gated layers; a `LanguageModel`.

    A fresh one has PyTorch's initial weights; `folders.load` gives a released one.
    """

    def __init__(self, config: HrmTextConfig) -> None:
        super().__init__()
        self.config, self.prefix = config, 0
        self.model = _Trunk(config)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        self._stacks = self._behind(0)

    def _behind(self, prefix: int) -> Mapping[str, tuple[HrmTextLayer, ...]]:
        """The stacks as they are behind a prefix."""
        parts = {"L": self.model.L_module, "H": self.model.H_module}
        return {
            name: tuple(HrmTextLayer(each, self.config, prefix) for each in part.layers) for name, part in parts.items()
        }

    def with_prefix(self, rows: int) -> HrmText:
        """This model where the first `rows` rows of every input see each other; it shares all weights.

        InputError for a model that was made without prefixes (`prefix_lm`).
        """
        if not self.config.prefixes:
            raise InputError(
                "prefix_lm is false in this model's config: it is causal everywhere (leave out the prefix)"
            )
        view = copy.copy(self)
        view.prefix = whole("the rows of a prefix", rows, 0, self.positions)
        view._stacks = self._behind(rows)
        return view

    @property
    def stacks(self) -> Mapping[str, tuple[HrmTextLayer, ...]]:
        """L and H."""
        return self._stacks

    @property
    def layers(self) -> tuple[Any, ...]:  # whose attn_out takes x, too
        """The layers of H, in order."""
        return self._stacks["H"]

    @property
    def loops(self) -> int:
        """Calls of H in training; any number may be run."""
        return self.config.h_cycles

    @property
    def boundary(self) -> Boundary:
        """What ends every call: a norm without weight."""
        return "norm"

    @property
    def draws(self) -> bool:
        """Whether a start is drawn: it is the input and a fixed vector."""
        return False

    @property
    def injects(self) -> bool:
        """Whether calls look at the input again: they have it in z_H only."""
        return False

    @property
    def copies(self) -> dict[str, str]:
        """Tensors that a file may hold a second time, and which of the model's they are: a head that is tied."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.config.tied else {}

    def program(self, loops: int | None = None, start: Start = None) -> Program:
        """The program of so many loops (default: `self.loops`), each `L3 H` or the like."""
        once = self.config.l_cycles + 1
        count = whole("loops", self.loops if loops is None else loops, 1, bounds.MOST_CALLS // once)
        return Program((*[Call(stack="L")] * self.config.l_cycles, Call(stack="H")) * count, start)

    def readings(self, loops: int) -> tuple[str, ...]:
        """The points after each call of H."""
        return tuple(f"h{loop * (self.config.l_cycles + 1)}" for loop in range(1, loops + 1))

    def embedded(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """The scaled embedding of tokens that were checked."""
        return self.model.embed_tokens(tokens) * self.config.scale

    def start(self, e: Float[Tensor, "*B R d"], seed: int) -> Float[Tensor, "*B R s"]:
        """z_L, alike in every row, and z_H, the input."""
        return torch.cat([self.model.z_L_init.to(e.dtype).expand_as(e), e], -1)

    def enter(self, h: Float[Tensor, "*B s"], e: Tensor | None, call: int, stack: str) -> Float[Tensor, "*B d"]:
        """The sum of both states."""
        lower, higher = h.chunk(2, -1)
        return lower + higher

    def close(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """The norm that ends every call."""
        return unit(h, self.config.eps)

    def leave(self, h: Float[Tensor, "*B s"]) -> Float[Tensor, "*B d"]:
        """z_H, which the head reads."""
        return h.chunk(2, -1)[1]

    def read(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B vocabulary"]:
        """Logits over the vocabulary, row by row, of z_H."""
        return nnf.linear(h, self.model.embed_tokens.weight) if self.lm_head is None else self.lm_head(h)

    def rotary_angles(self, rows: Int[Tensor, "*P R"], h: Float[Tensor, "*B R s"]) -> RotaryAngles:
        """The rotary positions of rows, for all layers and calls."""
        return angles_of(rows, self.head_size, self.config.base, h.dtype)

    def draw_weights(self, spread: float) -> None:
        """Every matrix N(0, spread), biases zero."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                part.weight.normal_(std=spread)
            if isinstance(part, nn.Linear) and part.bias is not None:
                part.bias.zero_()


def told_by_weights(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The config with a setting that says how the tensors of these names are cut."""
    return {**config, SPLIT: any(name.endswith(".self_attn.q_proj.weight") for name in names)}


def hrm_text_from_config(
    config: Mapping[str, Any], loops: int | None = None, boundary: Boundary | None = None
) -> HrmText:
    """The model of a released `config.json` with PyTorch's initial weights; `loops`: by default its `H_cycles`.

    InputError for a setting that is not supported, and for a boundary that HRM-Text has not.
    """
    if boundary not in (None, "norm"):
        raise InputError(f"HRM-Text ends every call with its norm; there is no boundary {boundary!r} (nearest: norm)")
    settings = HrmTextConfig.from_dict(config)
    return HrmText(settings if loops is None else replace(settings, h_cycles=loops))
