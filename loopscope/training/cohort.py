"""Several looped transformers of one shape, run side by side.

The mathematics is that of `model.py`, written for weights with a leading axis of members; a test holds them together.
The residual stream is kept as (x, y, bias), to be added by the next LayerNorm, so that it is touched once per sublayer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.model import ModelConfig
from loopscope.training import ops as plain

Precision = Literal["fp32", "tf32", "bf16"]


class State(NamedTuple):
    """The state h = x + y + bias of every row, [S, M, d] with M = examples x tokens; y and bias may be missing."""

    x: Float[Tensor, "S M d"]
    y: Tensor | None = None
    bias: Tensor | None = None


class Cohort:
    """The looped transformers whose stacked weights are given, ready for one forward pass.

    `precision` is that of the products: "fp32" is plain PyTorch on any device; "tf32" and "bf16" use the kernels of
    `kernels.py` on a GPU and mean plain fp32 on a CPU.  Make a new one after the weights have changed.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], precision: Precision = "fp32") -> None:
        self.config, self.weights = config, weights
        self.ops: Any = plain
        self.low = torch.float32
        fast = weights["norm.weight"].is_cuda and precision != "fp32"
        if fast:
            from loopscope.training import kernels

            self.ops = kernels
            self.low = torch.bfloat16 if precision == "bf16" else torch.float32
        self.copies = {name: w.detach().to(self.low) for name, w in weights.items() if name.startswith("layers.")}

    def embed(self, tokens: Int[Tensor, "S B T"]) -> State:
        """h_0."""
        w, (seeds, batch, length) = self.weights, tokens.shape
        if self.config.read_in == "one-hot":
            table = w["read_in.weight"].transpose(1, 2) + w["read_in.bias"][:, None]
        else:
            table = w["embedding.weight"]
        x = self.ops.embed(table, tokens.flatten(1))
        if self.config.positions:
            x = (x.view(seeds, batch, length, -1) + w["positions"][:, None, :length]).flatten(1, 2)
        return State(x)

    def call(self, state: State, tokens: int, last_row: bool = False) -> State:
        """One call of F on rows of `tokens` tokens each.

        `last_row`: compute the last token's row alone, which is all that is left when this is the last call and only
        the answer is read; the state then has one row an example.
        """
        for layer in range(self.config.layers):
            state = self._layer(layer, state, tokens, last_row and layer == self.config.layers - 1)
        if self.config.norm_in_loop:
            _, h = self.ops.add_norm(*state, self.weights["norm.weight"], self.weights["norm.bias"], torch.float32)
            state = State(h)
        return state

    def settle(self, state: State) -> Float[Tensor, "S M d"]:
        """The state h itself."""
        h = state.x if state.y is None else state.x + state.y
        return h if state.bias is None else h + state.bias[:, None]

    def read(self, h: Float[Tensor, "S R d"]) -> Float[Tensor, "S R classes"]:
        """Logits over the answer classes, row by row, in fp32."""
        w, config = self.weights, self.config
        classes = slice(config.first_class, config.first_class + config.classes)
        if config.readout == "linear":
            return torch.bmm(h, w["readout.weight"][:, classes].transpose(1, 2)) + w["readout.bias"][:, None, classes]
        table = w["embedding.weight" if config.readout == "tied" else "readout.weight"]
        return torch.bmm(plain.norm(h, w["norm.weight"], w["norm.bias"]), table[:, classes].transpose(1, 2))

    def read_row(self, state: State, tokens: int, row: int) -> Float[Tensor, "S B classes"]:
        """Logits at this row of each example; `tokens` is how many rows an example has in the state."""
        y = None if state.y is None else state.y[:, row::tokens]
        return self.read(self.settle(State(state.x[:, row::tokens], y, state.bias)))

    def answer_logits(self, tokens: Int[Tensor, "S B T"], loops: int) -> Float[Tensor, "S B classes"]:
        """Logits at the last row after `loops` calls."""
        state, length = self.embed(tokens), tokens.shape[-1]
        for call in range(loops):
            state = self.call(state, length, last_row=call == loops - 1)
        return self.read(self.settle(state))

    def _layer(self, layer: int, state: State, tokens: int, last_row: bool) -> State:
        name, ops, w, low = f"layers.{layer}.", self.ops, self.weights, self.copies
        width, heads = self.config.width, self.config.heads
        qkv, qkv_low, qkv_bias = w[name + "qkv.weight"], low[name + "qkv.weight"], w.get(name + "qkv.bias")
        x, n = ops.add_norm(*state, w[name + "norm1.weight"], w[name + "norm1.bias"], self.low)
        if last_row:
            kv = ops.linear(n, qkv[:, width:], qkv_low[:, width:])
            x, n = (part[:, tokens - 1 :: tokens].contiguous() for part in (x, n))
            q = ops.linear(n, qkv[:, :width], qkv_low[:, :width])
            if qkv_bias is not None:
                q, kv = q + qkv_bias[:, None, :width].to(q.dtype), kv + qkv_bias[:, None, width:].to(q.dtype)
            k, v = kv.reshape(-1, tokens, 2, heads, width // heads).permute(2, 0, 3, 1, 4)
            scores = q.reshape(-1, heads, 1, width // heads) @ k.transpose(-1, -2) * (width // heads) ** -0.5
            z = (nnf.softmax(scores, -1) @ v).view(q.shape)
        else:
            z = ops.attention(ops.linear(n, qkv, qkv_low), qkv_bias, tokens, heads)
        a = ops.linear(z, w[name + "out.weight"], low[name + "out.weight"])
        x, n = ops.add_norm(
            x, a, w.get(name + "out.bias"), w[name + "norm2.weight"], w[name + "norm2.bias"], self.low
        )  # fmt: skip
        up = ops.linear(n, w[name + "up.weight"], low[name + "up.weight"])
        h = ops.gelu(up, w[name + "up.bias"], "none" if self.config.gelu == "erf" else "tanh")
        return State(x, ops.linear(h, w[name + "down.weight"], low[name + "down.weight"]), w[name + "down.bias"])


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Inside the block fp32 products may use TF32, if that is the precision asked for; the former setting returns."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
