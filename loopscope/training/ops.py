"""The few operations a stacked layer is made of, in plain PyTorch: the definition, and what a CPU runs.

Tensors carry a leading axis of seeds: activations [S, M, d] with M = batch x tokens, weights [S, out, in].
`kernels.py` offers the same operations for bf16 on a GPU; the tests and the benchmark hold both together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor


def embed(table: Float[Tensor, "S V d"], tokens: Int[Tensor, "S M"]) -> Float[Tensor, "S M d"]:
    """Rows of each seed's table."""
    seeds = torch.arange(len(table), device=table.device)[:, None]
    return table[seeds, tokens]


def linear(x: Float[Tensor, "S M i"], W: Float[Tensor, "S o i"], low: Tensor | None = None) -> Float[Tensor, "S M o"]:
    """x W', seed by seed.  `low`, a copy of W in lower precision, is for the kernels; here it is not needed."""
    return torch.bmm(x, W.transpose(1, 2))


def add_norm(
    x: Float[Tensor, "S M d"],
    y: Float[Tensor, "S M d"],
    bias: Float[Tensor, "S d"] | None,
    gain: Float[Tensor, "S d"],
    shift: Float[Tensor, "S d"],
) -> tuple[Float[Tensor, "S M d"], Float[Tensor, "S M d"]]:
    """The residual stream after adding y (+ bias), and its LayerNorm: (x + y + bias, norm of that)."""
    x = x + y if bias is None else x + y + bias[:, None]
    return x, norm(x, gain, shift)


def norm(x: Float[Tensor, "S M d"], gain: Float[Tensor, "S d"], shift: Float[Tensor, "S d"]) -> Float[Tensor, "S M d"]:
    """LayerNorm over the last axis, with each seed's own gain and shift."""
    return nnf.layer_norm(x, x.shape[-1:]) * gain[:, None] + shift[:, None]


def gelu(x: Float[Tensor, "S M f"], bias: Float[Tensor, "S f"], form: str) -> Float[Tensor, "S M f"]:
    """GELU(x + bias); `form` is torch's name, "none" (erf) or "tanh"."""
    return nnf.gelu(x + bias[:, None], approximate=form)


def attention(qkv: Float[Tensor, "S M three_d"], tokens: int, heads: int) -> Float[Tensor, "S M d"]:
    """Causal attention inside each run of `tokens` rows, from q, k, v side by side; heads' outputs side by side."""
    seeds, rows, wide = qkv.shape
    parts = qkv.view(-1, tokens, 3, heads, wide // (3 * heads)).permute(2, 0, 3, 1, 4)
    z = nnf.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
    return z.transpose(1, 2).reshape(seeds, rows, wide // 3)
