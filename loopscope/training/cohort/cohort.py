"""Several looped transformers of one shape, run side by side.

The mathematics is that of `model.py`, written for weights with a leading axis of members; a test holds them together.
The residual stream is kept as (x, y, bias), to be added by the next LayerNorm, so that it is touched once per sublayer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.model import LoopedTransformer, ModelConfig
from loopscope.training.cohort import ops as plain
from loopscope.training.cohort.layout import Layout, layout_of
from loopscope.training.cohort.stack import SideStream, Sink, Stack

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class State(NamedTuple):
    """The state h = x + y + bias of every row, [S, M, d], as a layout arranges them; y and bias may be missing.

    `opened`: its norm as the next call will begin with, if that is known already.
    """

    x: Float[Tensor, "S M d"]
    y: Tensor | None = None
    bias: plain.Weight | None = None
    opened: Tensor | None = None


def stacked(models: Sequence[LoopedTransformer], device: torch.device, small: bool = False) -> Stack:
    """The models' weights as a stack, those that every call shares with sinks for the kernels of a GPU.

    `small`: single operations will not fill the GPU, so that gradients of weights get a stream of their own.
    """
    in_loop = ("layers.", "norm.") if models[0].config.norm_in_loop else ("layers.",)
    fast = device.type == "cuda"
    side = SideStream(device) if fast and small else None
    return Stack([model.state_dict() for model in models], device, lambda name: fast and name.startswith(in_loop), side)


def frozen(model: LoopedTransformer, device: torch.device) -> dict[str, Tensor]:
    """The weights of one model as a cohort of one that is not trained."""
    return {name: weight.detach().to(device)[None] for name, weight in model.state_dict().items()}


class Cohort:
    """The looped transformers whose stacked weights are given, ready for one forward pass.

    `precision` is that of the products: "fp32" is plain PyTorch on any device; the others use the kernels of
    `kernels.py` on a GPU and mean plain fp32 on a CPU.  Make a new one after the weights have changed.  To train, give
    the stack's `sinks` as well; without them the kernels take the weights as frozen.  How examples lie among the rows
    of a state is said by a layout; a number stands for runs of so many tokens.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        precision: Precision = "fp32",
        sinks: Mapping[str, Sink] | None = None,
    ) -> None:
        self.config = config
        self.ops: Any = plain
        self.low = torch.float32
        if weights["norm.weight"].is_cuda and precision != "fp32":
            from loopscope.training.cohort import kernels

            self.ops, self.low = kernels, DTYPES[precision]
        self.weights = {
            name: plain.Weight(w, self._lowered(name, w), (sinks or {}).get(name)) for name, w in weights.items()
        }

    def _lowered(self, name: str, weight: Tensor) -> Tensor | None:
        return weight.detach().to(self.low) if name.startswith("layers.") and weight.dim() == 3 else None

    def embed(self, tokens: Int[Tensor, "S B T"], layout: Layout | None = None) -> State:
        """h_0, in runs of T rows unless another layout is given."""
        w = self.weights
        if self.config.read_in == "one-hot":
            table = w["read_in.weight"].value.transpose(1, 2) + w["read_in.bias"].value[:, None]
        else:
            table = w["embedding.weight"].value
        positions = w["positions"].value if self.config.positions else None
        return State((layout or layout_of(tokens.shape[-1])).embed(self.ops, table, positions, tokens))

    def call(self, state: State, layout: Layout | int, last_row: bool = False, again: bool = False) -> State:
        """One call of F.

        `last_row`: compute the last token's row alone, which is all that is left when this is the last call and only
        the answer is read; the state then has one row an example.  `again`: another call follows at once, so that the
        norm that ends this one and the norm that begins that one can be done together.
        """
        for layer in range(self.config.layers):
            state = self._layer(layer, state, layout_of(layout), last_row and layer == self.config.layers - 1)
        if self.config.norm_in_loop:
            close = self.weights["norm.weight"], self.weights["norm.bias"]
            if again:
                first = self.weights["layers.0.norm1.weight"], self.weights["layers.0.norm1.bias"]
                h, opened = self.ops.add_norm(*state[:3], *first, self.low, close)
                return State(h, opened=opened)
            _, h = self.ops.add_norm(*state[:3], *close, torch.float32)
            state = State(h)
        return state

    def settle(self, state: State) -> Float[Tensor, "S M d"]:
        """The state h itself."""
        return self.ops.add(*state[:3])

    def read(self, h: Float[Tensor, "S R d"]) -> Float[Tensor, "S R classes"]:
        """Logits over the answer classes, row by row, in fp32."""
        config, w = self.config, {name: weight.value for name, weight in self.weights.items()}
        classes = slice(config.first_class, config.first_class + config.classes)
        if config.readout == "linear":
            return torch.bmm(h, w["readout.weight"][:, classes].transpose(1, 2)) + w["readout.bias"][:, None, classes]
        table = w["embedding.weight" if config.readout == "tied" else "readout.weight"]
        return torch.bmm(plain.norm(h, w["norm.weight"], w["norm.bias"]), table[:, classes].transpose(1, 2))

    def read_row(self, state: State, layout: Layout | int, row: int) -> Float[Tensor, "S B classes"]:
        """Logits at this row of each example."""
        at = layout_of(layout).at(row)
        y = None if state.y is None else state.y[:, at]
        return self.read(self.settle(State(state.x[:, at], y, state.bias)))

    def answer_logits(
        self, tokens: Int[Tensor, "S B T"], loops: int, layout: Layout | None = None
    ) -> Float[Tensor, "S B classes"]:
        """Logits at the last row after `loops` calls, in runs of T rows unless another layout is given."""
        state = self.embed(tokens, layout)
        for call in range(loops):
            state = self.call(state, layout or tokens.shape[-1], last_row=call == loops - 1)
        return self.read(self.settle(state))

    def _layer(self, layer: int, state: State, layout: Layout, last_row: bool) -> State:
        ops, heads, width = self.ops, self.config.heads, self.config.width
        w = {name.removeprefix(f"layers.{layer}."): weight for name, weight in self.weights.items()}
        qkv, bias = w["qkv.weight"], w.get("qkv.bias")
        x, n = state.x, state.opened
        if n is None:
            x, n = ops.add_norm(*state[:3], w["norm1.weight"], w["norm1.bias"], self.low)
        if last_row:
            x, n, everywhere = ops.last_rows(x, n, layout.at(layout.tokens - 1))
            q, kv = ops.linear(n, qkv.rows(slice(width))), ops.linear(everywhere, qkv.rows(slice(width, None)))
            if bias is not None:
                q, kv = ops.add(q, None, bias.rows(slice(width))), ops.add(kv, None, bias.rows(slice(width, None)))
            z = layout.answer_attention(ops, q, kv, heads)
        else:
            z = layout.attention(ops, ops.linear(n, qkv), bias, heads)
        a = ops.linear(z, w["out.weight"])
        x, n = ops.add_norm(x, a, w.get("out.bias"), w["norm2.weight"], w["norm2.bias"], self.low)
        h = ops.gelu(ops.linear(n, w["up.weight"]), w["up.bias"], "none" if self.config.gelu == "erf" else "tanh")
        return State(x, ops.linear(h, w["down.weight"]), w["down.bias"])


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Inside the block fp32 products may use TF32, if that is the precision asked for; the former setting returns."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
