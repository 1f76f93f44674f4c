"""The looped transformer.  Read this file first.

A looped transformer applies one block F again and again:

    h_0 = embed(tokens)          the input enters once
    h_t = F(h_{t-1})             one use of F is a call; call t is loop t, counted from 1
    logits = read(h_t)           the same readout serves after every call

F is a short stack of layers, each `x += Attn(x); x += MLP(x)` on its normalised input.  The weights know nothing of t.
One class covers the paper's three small backbones by configuration: graph walk, parity, relation composition.

Letters: B batch, T tokens (a token position is a row), d width, H heads, k = d / H.
alpha is an attention pattern [B, H, T, T], V the values, z a head's output before the output projection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from loopscope import bounds
from loopscope.bounds import whole
from loopscope.errors import InputError, nearest
from loopscope.protocol import in_a_line

_MOST = {
    "vocabulary": bounds.VOCABULARY, "classes": bounds.VOCABULARY, "loops": bounds.LOOPS, "layers": bounds.LAYERS,
    "width": bounds.WIDTH, "heads": bounds.LAYERS, "mlp": bounds.WIDTH, "positions": bounds.VOCABULARY,
    "first_class": bounds.VOCABULARY,
}  # fmt: skip


@dataclass(frozen=True)
class ModelConfig:
    """Everything that distinguishes one looped transformer from another.

    `readout` is "untied" (norm, then a matrix of its own), "tied" (norm, then the embedding) or "linear" (affine, no
    norm).  The answer classes are rows `first_class` to `first_class + classes - 1` of that matrix.
    """

    vocabulary: int
    classes: int
    loops: int  # calls of F in training; any number may be run
    layers: int = 2
    width: int = 256
    heads: int = 4
    mlp: int = 1024
    positions: int = 0  # rows of the learned position table; 0: no position signal
    read_in: Literal["embedding", "one-hot"] = "embedding"
    attention_bias: bool = False
    gelu: Literal["erf", "tanh"] = "erf"
    norm_in_loop: bool = False  # F ends with a LayerNorm
    readout: Literal["untied", "tied", "linear"] = "untied"
    first_class: int = 0
    init: Literal["graph", "gpt2", "torch"] = "graph"

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            whole(name, getattr(self, name), 0 if name in ("positions", "first_class") else 1, most)
        if self.width % self.heads:
            divisors = [h for h in range(1, math.isqrt(self.width) + 1) if self.width % h == 0]
            near = min(divisors + [self.width // h for h in divisors], key=lambda h: abs(h - self.heads))
            raise InputError(f"{self.heads} heads do not divide width {self.width} (nearest: {near} heads)")
        if self.first_class + self.classes > self.vocabulary:
            last = self.first_class + self.classes - 1
            raise InputError(
                f"classes {self.first_class}..{last} exceed the vocabulary, which is 0..{self.vocabulary - 1}"
            )
        if self.readout == "tied" and self.read_in != "embedding":
            raise InputError(
                f"a tied readout needs an embedding, not a {self.read_in} read-in (nearest: linear readout)"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Read a config from JSON.  Raises InputError on an unknown or missing key, or a value of the wrong type."""
        kinds = get_type_hints(cls)
        for key, value in values.items():
            if key not in kinds:
                raise InputError(f"unknown model setting {key!r}{nearest(key, kinds)}")
            if get_origin(kinds[key]) is Literal:
                choices = get_args(kinds[key])
                if value not in choices:
                    there = ", ".join(choices)
                    raise InputError(f"{key} cannot be {value!r}; there are {there}{nearest(str(value), choices)}")
            elif type(value) is not kinds[key]:  # not isinstance: JSON's true is no number
                raise InputError(f"{key} must be of type {kinds[key].__name__}, not {value!r}")
        for field in fields(cls):
            if field.default is MISSING and field.name not in values:
                raise InputError(f"model setting {field.name!r} is missing")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON-able values; `from_dict` inverts it."""
        return asdict(self)


def graph_walk_config(nodes: int = 10, loops: int = 6) -> ModelConfig:
    """The graph-walk backbone: tokens BOS, (EDGE, j, f(j)) for every node j, QUERY, start, DEPTH, ANSWER."""
    return ModelConfig(vocabulary=nodes + 12, classes=nodes, loops=loops, positions=3 * nodes + 5)


def parity_config() -> ModelConfig:
    """The parity backbone: one layer of 64 four-dimensional heads, biases everywhere, LayerNorm inside the loop."""
    return ModelConfig(
        vocabulary=6, classes=6, loops=20, layers=1, heads=64, read_in="one-hot", attention_bias=True, gelu="tanh",
        norm_in_loop=True, readout="linear", init="gpt2",
    )  # fmt: skip


def relations_config() -> ModelConfig:
    """The relation-composition backbone: BOS, 64 entities, 16 relations; read out against the entity embeddings."""
    return ModelConfig(
        vocabulary=81, classes=64, loops=3, heads=8, attention_bias=True, readout="tied", first_class=1, init="torch"
    )


def attention_pattern(
    q: Float[Tensor, "*B H R k"],
    k: Float[Tensor, "*B H S k"],
    scale: float,
    visible: Bool[Tensor, "*M R S"] | None,
    softcap: float | None = None,
) -> Float[Tensor, "*B H R S"]:
    """alpha = softmax(scale * q k'), with invisible keys at exactly zero.  `visible=None`: every key may be seen.

    With a `softcap`, scores s are bent to cap * tanh(s / cap) first.
    """
    scores = q @ k.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(-1)


def causal(rows: Int[Tensor, " R"], keys: Int[Tensor, " S"]) -> Bool[Tensor, "R S"]:
    """Which key rows each query row may see: its own and those before it."""
    return keys <= rows[:, None]


class Layer(nn.Module):
    """One pre-norm transformer layer, cut into the pieces that can be read and replaced.

    `project`, `attention_pattern`, `attn_out` and the MLP's members act on any rows; only attention mixes rows.
    `forward` is the same computation with fused attention over all rows.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, bias = config.width, config.attention_bias
        self.heads, self.gelu = (
            config.heads,
            "none" if config.gelu == "erf" else "tanh",
        )  # torch calls the exact form "none"
        self.scale = (d // config.heads) ** -0.5
        self.norm1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=bias)
        self.out = nn.Linear(d, d, bias=bias)
        self.norm2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, config.mlp)
        self.down = nn.Linear(config.mlp, d)

    def project(
        self, x: Float[Tensor, "*B R d"], rows: Int[Tensor, " R"], parts: str = "qkv"
    ) -> tuple[Float[Tensor, "*B H R k"], ...]:
        """The named projections of these rows, split into heads.  `parts` is "q", "kv" or "qkv".

        `rows` are the positions of x's rows; a model with rotary positions needs them, this one does not.
        """
        d = x.shape[-1]
        first, last = "qkv".index(parts[0]) * d, ("qkv".index(parts[-1]) + 1) * d
        bias = None if self.qkv.bias is None else self.qkv.bias[first:last]
        y = nnf.linear(self.norm1(x), self.qkv.weight[first:last], bias)
        heads = y.unflatten(-1, (len(parts), self.heads, -1))  # ... R part H k
        return tuple(part.transpose(-2, -3) for part in heads.unbind(-3))

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream, from the heads' outputs."""
        return self.out(z.transpose(-2, -3).flatten(-2))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return nnf.gelu(self.up(self.norm2(x)), approximate=self.gelu)

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream, of its hidden units."""
        return self.down(hidden)

    def mlp_out(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream; x is the stream after attention."""
        return self.mlp_from(self.mlp_hidden(x))

    def forward(self, x: Float[Tensor, "B T d"], fused: bool = True) -> Float[Tensor, "B T d"]:
        """The whole layer on all rows.  `fused=False` forms alpha explicitly; both agree to float tolerance."""
        rows = torch.arange(x.shape[-2], device=x.device)
        q, k, v = self.project(x, rows)
        if fused:
            z = nnf.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        else:
            z = attention_pattern(q, k, self.scale, causal(rows, rows)) @ v
        x = x + self.attn_out(z)
        return x + self.mlp_out(x)


class LoopedTransformer(nn.Module):
    """embed -> F -> F -> ... -> read, one shared F."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.embedding = nn.Embedding(config.vocabulary, d) if config.read_in == "embedding" else None
        self.read_in = nn.Linear(config.vocabulary, d) if config.read_in == "one-hot" else None
        self.positions = nn.Parameter(torch.empty(config.positions, d)) if config.positions else None
        # A ModuleList holds layers, but cannot tell a type checker so.
        self.layers = cast("Sequence[Layer]", nn.ModuleList(Layer(config) for _ in range(config.layers)))
        # The same norm sits inside the loop (parity) or in front of the readout (graph walk, relations).
        self.norm = nn.LayerNorm(d)
        untied = config.readout != "tied"
        self.readout = nn.Linear(d, config.vocabulary, bias=config.readout == "linear") if untied else None
        _INIT[config.init](self)

    def __repr__(self) -> str:
        return in_a_line(self)

    @property
    def loops(self) -> int:
        """Calls of F in training, and so of a run by default; any number may be run."""
        return self.config.loops

    @property
    def width(self) -> int:
        """Width d of the state."""
        return self.config.width

    @property
    def heads(self) -> int:
        """Attention heads per layer."""
        return self.config.heads

    @property
    def head_size(self) -> int:
        """Size k of a head: its share of the width."""
        return self.config.width // self.config.heads

    def embed(self, tokens: Tensor) -> Float[Tensor, "B T d"]:
        """h_0 of tokens [B, T], integers.

        Raises InputError on another shape or type, a token outside the vocabulary, or more tokens than positions.
        """
        if tokens.dim() != 2 or tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
            raise InputError(f"tokens must be whole numbers [batch, tokens], not {tokens.dtype} {list(tokens.shape)}")
        low, high = (int(v) for v in torch.aminmax(tokens)) if tokens.numel() else (0, 0)
        if low < 0 or high >= self.config.vocabulary:
            asked, near = (low, 0) if low < 0 else (high, self.config.vocabulary - 1)
            raise InputError(f"token {asked} is outside 0..{self.config.vocabulary - 1} (nearest: {near})")
        if self.positions is not None and tokens.shape[1] > len(self.positions):
            raise InputError(f"{tokens.shape[1]} tokens given, but the model has {len(self.positions)} positions")
        if self.embedding is not None:
            h = self.embedding(tokens.long())
        else:
            assert self.read_in is not None
            h = self.read_in(nnf.one_hot(tokens.long(), self.config.vocabulary).to(self.read_in.weight.dtype))
        return h if self.positions is None else h + self.positions[: tokens.shape[1]]

    def call(self, h: Float[Tensor, "B T d"], fused: bool = True) -> Float[Tensor, "B T d"]:
        """One call of F: h_{t-1} -> h_t."""
        for layer in self.layers:
            h = layer(h, fused)
        return self.close(h)

    def close(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """What F does after its last layer, row by row: a LayerNorm (parity) or nothing."""
        return self.norm(h) if self.config.norm_in_loop else h

    def read(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B classes"]:
        """Logits over the answer classes, row by row."""
        classes = slice(self.config.first_class, self.config.first_class + self.config.classes)
        if self.readout is None:
            assert self.embedding is not None
            return nnf.linear(self.norm(h), self.embedding.weight[classes])
        if self.config.readout == "linear":
            return nnf.linear(h, self.readout.weight[classes], self.readout.bias[classes])
        return nnf.linear(self.norm(h), self.readout.weight[classes])

    def forward(self, tokens: Tensor, loops: int | None = None) -> Float[Tensor, "B T classes"]:
        """Logits at every row of tokens [B, T] after `loops` calls (default: the trained number)."""
        calls = self.config.loops if loops is None else loops
        if not 0 <= calls <= bounds.LOOPS:
            near = "0, which reads the embedding" if calls < 0 else bounds.LOOPS
            raise InputError(f"cannot run {bounds.shown(calls)} loops (nearest: {near})")
        h = self.embed(tokens)
        for _ in range(calls):
            h = self.call(h)
        return self.read(h)


def _init_graph(model: LoopedTransformer) -> None:
    """Token, position and readout tables N(0, 0.02); every other map keeps PyTorch's default."""
    for table in (model.embedding, model.readout):
        if table is not None:
            nn.init.normal_(table.weight, std=0.02)
    if model.positions is not None:
        nn.init.normal_(model.positions, std=0.02)


def _init_gpt2(model: LoopedTransformer) -> None:
    """Every matrix N(0, 0.02), those that write to the residual stream scaled down by sqrt(2 layers); biases zero."""
    into_stream = {id(m) for layer in model.layers for m in (layer.out, layer.down)}
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            scale = (2 * model.config.layers) ** -0.5 if id(module) in into_stream else 1.0
            nn.init.normal_(module.weight, std=0.02 * scale)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if model.positions is not None:
        nn.init.normal_(model.positions, std=0.02)


def _init_torch(model: LoopedTransformer) -> None:
    """As nn.Embedding and nn.MultiheadAttention: N(0, 1) tables, Xavier for q, k, v together, zero attention biases."""
    for layer in model.layers:
        nn.init.xavier_uniform_(layer.qkv.weight)
        for linear in (layer.qkv, layer.out):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
    if model.positions is not None:
        nn.init.normal_(model.positions)


_INIT = {"graph": _init_graph, "gpt2": _init_gpt2, "torch": _init_torch}
