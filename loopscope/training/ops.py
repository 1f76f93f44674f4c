"""The few operations a stacked layer is made of, in plain PyTorch: the definition, and what a CPU runs.

Tensors carry a leading axis of seeds: activations [S, M, d] with M = examples x tokens rows, weights [S, out, in].  The
stream x and all weights are fp32; what a product reads and writes may be fp32 or bf16.  `kernels.py` offers the same
operations under the same names for a GPU; the tests hold both together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor


def embed(table: Float[Tensor, "S V d"], tokens: Int[Tensor, "S M"]) -> Float[Tensor, "S M d"]:
    """Rows of each seed's table."""
    seeds = torch.arange(len(table), device=table.device)[:, None]
    return table[seeds, tokens]


def linear(x: Float[Tensor, "S M i"], W: Float[Tensor, "S o i"], low: Float[Tensor, "S o i"]) -> Float[Tensor, "S M o"]:
    """x W', seed by seed, in the dtype of x.  `low`, W in that dtype, is for the kernels; here it is not needed."""
    return torch.bmm(x, W.to(x.dtype).transpose(1, 2))


def add_norm(
    x: Float[Tensor, "S M d"],
    y: Float[Tensor, "S M d"] | None,
    bias: Float[Tensor, "S d"] | None,
    gain: Float[Tensor, "S d"],
    shift: Float[Tensor, "S d"],
    low: torch.dtype,
) -> tuple[Float[Tensor, "S M d"], Float[Tensor, "S M d"]]:
    """The residual stream after adding y and bias, and its LayerNorm in dtype `low`: (x + y + bias, norm of that)."""
    if y is not None:
        x = x + y
    if bias is not None:
        x = x + bias[:, None]
    return x, norm(x, gain, shift).to(low)


def norm(x: Float[Tensor, "S M d"], gain: Float[Tensor, "S d"], shift: Float[Tensor, "S d"]) -> Float[Tensor, "S M d"]:
    """LayerNorm over the last axis, with each seed's own gain and shift."""
    return nnf.layer_norm(x, x.shape[-1:]) * gain[:, None] + shift[:, None]


def gelu(x: Float[Tensor, "S M f"], bias: Float[Tensor, "S f"], form: str) -> Float[Tensor, "S M f"]:
    """GELU(x + bias) in the dtype of x; `form` is torch's name, "none" (erf) or "tanh"."""
    return nnf.gelu(x + bias[:, None], approximate=form).to(x.dtype)


def attention(
    qkv: Float[Tensor, "S M three_d"], bias: Float[Tensor, "S three_d"] | None, tokens: int, heads: int
) -> Float[Tensor, "S M d"]:
    """Causal attention inside each run of `tokens` rows, from q, k, v side by side; heads' outputs side by side.

    The bias of q, k, v is added in fp32 and the sum rounded to the dtype of qkv.
    """
    if bias is not None:
        qkv = (qkv + bias[:, None]).to(qkv.dtype)
    seeds, rows, wide = qkv.shape
    parts = qkv.view(-1, tokens, 3, heads, wide // (3 * heads)).permute(2, 0, 3, 1, 4)
    z = nnf.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
    return z.transpose(1, 2).reshape(seeds, rows, wide // 3)


@torch.no_grad()
def adamw(
    flat: Float[Tensor, "S P"],
    grad: Float[Tensor, "S P"],
    m: Float[Tensor, "S P"],
    v: Float[Tensor, "S P"],
    rate: Float[Tensor, " S"] | Float[Tensor, ""],
    scale: Float[Tensor, " S"],
    ok: Bool[Tensor, " S"],
    correction1: Float[Tensor, ""],
    correction2: Float[Tensor, ""],
    factor: Float[Tensor, " P"] | None,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """One AdamW update of parameters `flat` and moments m, v, in place; the gradient is `grad` times each seed's scale.

    The learning rate is `rate`, times `factor` where given; it scales the decoupled weight decay too.  The corrections
    are 1 - beta^t at update t.  A seed that is not ok keeps everything as it was, whatever its gradient is.
    """
    step = rate.reshape(-1, 1) if factor is None else rate.reshape(-1, 1) * factor
    g = grad * scale[:, None]
    new_m = betas[0] * m + (1 - betas[0]) * g
    new_v = betas[1] * v + (1 - betas[1]) * g * g
    new = flat * (1 - step * decay) - step * (new_m / correction1) / ((new_v / correction2).sqrt() + eps)
    for old, fresh in ((flat, new), (m, new_m), (v, new_v)):
        old.copy_(torch.where(ok[:, None], fresh, old))
