"""Attention of many tokens and narrow heads as one Triton kernel, forward only: for evaluations of long strings.

Why: library attention pads heads of width four to 32 columns and more.  Here as many heads as make 16 columns share
their loads, and a product with the other heads' columns set to zero gives one head's scores.  Keys pass by in blocks;
the largest score so far is carried along, so that nothing of the size of a pattern is ever held.
"""

# Triton's language is untyped, and triton is there only where a GPU is.
# mypy: ignore-errors

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from loopscope.training.cohort.attention import MOST_TOKENS, dot
from loopscope.training.cohort.attention import attention as attention_of_few

BLOCK = 64
"""Queries of a program, and keys of a step."""


@triton.jit
def _rows(at, real, WIDE: tl.constexpr, COLS: tl.constexpr):
    """Whole rows; where there are fewer columns than a product needs, the others are zero."""
    return tl.load(at, mask=real, other=0.0) if WIDE < COLS else tl.load(at)


@triton.jit
def _take(q, k, v, most, total, z, seen, scale):
    """One block of keys: the new (largest score, sum of weights, weighted sum of values) of every query."""
    s = dot(q, tl.trans(k))
    if seen is not None:
        s = tl.where(seen, s, -1e30)
    new = tl.maximum(most, tl.max(s, 1))
    p = tl.exp2(s * scale - (new * scale)[:, None])
    less = tl.exp2((most - new) * scale)
    return new, total * less + tl.sum(p, 1), z * less[:, None] + dot(p.to(v.dtype), v)


@triton.jit
def _one_head(
    q, own_k, own_v, before, real, block, scale,
    D: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """What the queries of a block get: from the keys before the block, all of which they see, and from their own."""
    near = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    z = tl.zeros((BLOCK, COLS), tl.float32)
    for first in range(0, block * BLOCK, BLOCK):
        at = before + (first + near)[:, None] * 3 * D
        k, v = _rows(at + D, real, WIDE, COLS), _rows(at + 2 * D, real, WIDE, COLS)
        most, total, z = _take(q, k, v, most, total, z, None, scale)
    most, total, z = _take(q, own_k, own_v, most, total, z, near[None, :] <= near[:, None], scale)
    return z / total[:, None]


@triton.jit
def _forward(
    QKV, BIAS, Z, scale, stride, examples, T, blocks,
    D: tl.constexpr, K: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    block, rest = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    group, example = rest % (D // WIDE), (rest // (D // WIDE)).to(tl.int64)
    row, col = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, COLS)
    real = (col < WIDE)[None, :]
    live = (row < T)[:, None] & real
    first = QKV + example * T * 3 * D + group * WIDE + col[None, :]
    at = first + row[:, None] * 3 * D
    q, k = tl.load(at, mask=live, other=0.0), tl.load(at + D, mask=live, other=0.0)
    v = tl.load(at + 2 * D, mask=live, other=0.0)
    shift = tl.zeros((COLS,), tl.float32)
    if BIAS is not None:  # that of k adds the same to all scores of a query, which a softmax forgets
        own = BIAS + example // examples * stride + group * WIDE + col
        q = (q.to(tl.float32) + tl.load(own, mask=col < WIDE, other=0.0)[None, :]).to(q.dtype)
        shift = tl.load(own + 2 * D, mask=col < WIDE, other=0.0)  # weights sum to one, so v's can be added at the end
    out = tl.zeros((BLOCK, COLS), tl.float32)
    for head in tl.static_range(WIDE // K):
        mine = (col // K == head)[None, :]
        one = tl.where(mine, q, 0.0).to(q.dtype)
        out = tl.where(mine, _one_head(one, k, v, first, real, block, scale, D, WIDE, BLOCK, COLS), out)
    place = Z + (example * T + row)[:, None] * D + group * WIDE + col[None, :]
    tl.store(place, (out + shift[None, :]).to(q.dtype), mask=live)


def attention(qkv, bias, tokens, heads):
    """Causal attention inside each run of `tokens` rows, straight from and to the products' layout.

    On a GPU, products of fp32 factors are tf32 (10 bits of mantissa), summed in fp32.  More than 64 tokens have no
    gradient: training needs none of them.
    """
    if tokens <= MOST_TOKENS:
        return attention_of_few(qkv, bias, tokens, heads)
    assert not (torch.is_grad_enabled() and qkv.requires_grad), f"attention of {tokens} tokens has no gradient"
    seeds, rows, wide = qkv.shape
    assert rows % tokens == 0, f"{rows} rows are no whole number of runs of {tokens} tokens"
    qkv, width, each = qkv.contiguous(), wide // 3, wide // (3 * heads)
    z = qkv.new_empty(seeds, rows, width)
    # A product of blocks needs at least 16 columns: a program takes as many small heads as make them.
    together = math.gcd(heads, max(1, 16 // each))
    cols, blocks = max(16, triton.next_power_of_2(each * together)), triton.cdiv(tokens, BLOCK)
    value, stride = (None, 0) if bias is None else (bias.value, bias.value.stride(0))
    _forward[(blocks * (heads // together) * (seeds * rows // tokens),)](
        qkv, value, z, each**-0.5 * math.log2(math.e), stride, rows // tokens, tokens, blocks,
        width, each, each * together, BLOCK, cols, num_warps=4,
    )  # fmt: skip
    return z
