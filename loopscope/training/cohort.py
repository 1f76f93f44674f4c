"""Several looped transformers of one shape, trained side by side.

The parameters of all seeds are one array [seeds, parameters]; each weight is a view of it with a leading axis of
seeds.  The mathematics is that of `model.py`, written for that axis; a test holds them together.  On a GPU the products
are bf16 and the other operations are the kernels of `kernels.py`; on a CPU everything is plain fp32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.model import LoopedTransformer, ModelConfig
from loopscope.training import ops as plain


class Cohort:
    """Stacked parameters `flat` [seeds, parameters], the same by name as `weights`, and the run over all seeds."""

    def __init__(
        self, config: ModelConfig, models: list[LoopedTransformer], device: torch.device | str = "cpu"
    ) -> None:
        self.config, self.seeds = config, len(models)
        states = [model.state_dict() for model in models]
        self.shapes = {name: tuple(tensor.shape) for name, tensor in states[0].items()}
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        flat = torch.stack([torch.cat([t.flatten() for t in state.values()]) for state in states])
        self.flat = flat.to(device=device, dtype=torch.float32)
        self.weights = {
            name: piece.view(self.seeds, *shape).detach().requires_grad_()
            for (name, shape), piece in zip(self.shapes.items(), self.flat.split(sizes, 1), strict=True)
        }
        self.ops: Any = plain
        self.low = torch.float32
        if self.flat.is_cuda:
            from loopscope.training import kernels

            self.ops, self.low = kernels, torch.bfloat16

    def state_dict(self, index: int) -> dict[str, Tensor]:
        """The weights of one seed, as `LoopedTransformer.load_state_dict` takes them."""
        return {name: weight[index].detach().clone() for name, weight in self.weights.items()}

    def gradients(self, loss: Float[Tensor, ""]) -> Float[Tensor, "S parameters"]:
        """Gradients of a loss that is a sum over seeds, in the layout of `flat`."""
        grads = torch.autograd.grad(loss, list(self.weights.values()))
        return torch.cat([grad.flatten(1) for grad in grads], 1)

    def answer_logits(self, tokens: Int[Tensor, "S B T"], loops: int) -> Float[Tensor, "S B classes"]:
        """Logits at the last row after `loops` calls; the last layer is run for that row alone.

        For models without biases in attention and with an untied readout (the graph walk).
        """
        w, (seeds, batch, length) = self.weights, tokens.shape
        low = {name: weight.detach().to(self.low) for name, weight in w.items() if weight.dim() == 3}
        x = self.ops.embed(w["embedding.weight"], tokens.flatten(1)).view(seeds, batch, length, -1)
        x = (x + w["positions"][:, None, :length]).flatten(1, 2)
        y, bias = torch.zeros_like(x, dtype=self.low), None
        for call in range(loops):
            for layer in range(self.config.layers):
                last = call == loops - 1 and layer == self.config.layers - 1
                x, y = self._layer(w, low, layer, x, y, bias, length, last)
                bias = w[f"layers.{layer}.down.bias"]
        h = x + y + bias[:, None]  # type: ignore[index]
        n = plain.norm(h, w["norm.weight"], w["norm.bias"])
        first = self.config.first_class
        return torch.bmm(n, w["readout.weight"][:, first : first + self.config.classes].transpose(1, 2))

    def _layer(
        self, w: Mapping[str, Tensor], low: Mapping[str, Tensor], layer: int, x: Tensor, y: Tensor, bias: Tensor | None,
        length: int, answer_only: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """(the stream after attention, what the MLP adds but for its bias); `answer_only`: for the last row alone."""
        name, ops = f"layers.{layer}.", self.ops
        width, heads = self.config.width, self.config.heads
        qkv, qkv_low = w[name + "qkv.weight"], low[name + "qkv.weight"]
        x, n = ops.add_norm(x, y, bias, w[name + "norm1.weight"], w[name + "norm1.bias"])
        if answer_only:
            kv = ops.linear(n, qkv[:, width:], qkv_low[:, width:])
            x, n = (t.unflatten(1, (-1, length))[:, :, -1].contiguous() for t in (x, n))
            q = ops.linear(n, qkv[:, :width], qkv_low[:, :width])
            k, v = kv.view(-1, length, 2, heads, width // heads).permute(2, 0, 3, 1, 4)
            z = nnf.softmax(
                q.view(-1, heads, 1, width // heads) @ k.transpose(-1, -2) * (width // heads) ** -0.5, -1
            ) @ v  # fmt: skip
            z = z.view(q.shape)
        else:
            z = ops.attention(ops.linear(n, qkv, qkv_low), length, heads)
        a = ops.linear(z, w[name + "out.weight"], low[name + "out.weight"])
        x, n = ops.add_norm(x, a, None, w[name + "norm2.weight"], w[name + "norm2.bias"])
        up = ops.linear(n, w[name + "up.weight"], low[name + "up.weight"])
        h = ops.gelu(up, w[name + "up.bias"], "none" if self.config.gelu == "erf" else "tanh")
        return x, ops.linear(h, w[name + "down.weight"], low[name + "down.weight"])
