"""Attention of a few tokens as one Triton kernel a direction.

Why: for 35 tokens, library attention spends most of its time on layout copies.  Here a program takes one head of one
example (or several small ones, which lie side by side) straight from the product's layout, holds its whole pattern,
and writes straight to the next product's.
"""

# Triton's language is untyped, and triton is there only where a GPU is.
# mypy: ignore-errors

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from loopscope.training.cohort.collect import collect

MOST_TOKENS = 64


@triton.jit
def dot(a, b):
    """A product of blocks, summed in fp32."""
    return tl.dot(a, b, input_precision="tf32")  # for fp32 factors; 16-bit factors are taken as they are


@triton.jit
def _biased(x, BIAS, real):
    return (x.to(tl.float32) + tl.load(BIAS, mask=real, other=0.0)[None, :]).to(x.dtype)


@triton.jit
def _load(
    QKV, BIAS, stride, examples, T,
    D: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """WIDE columns of one example: (q, k, v with their bias; places in qkv; places in z; which of them exist)."""
    example, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, col = tl.arange(0, BLOCK), tl.arange(0, COLS)
    live = (row < T)[:, None]
    if WIDE < COLS:
        live = live & (col < WIDE)[None, :]
    at = example * T * 3 * D + group * WIDE + row[:, None] * 3 * D + col[None, :]
    q, k = tl.load(QKV + at, mask=live, other=0.0), tl.load(QKV + at + D, mask=live, other=0.0)
    v = tl.load(QKV + at + 2 * D, mask=live, other=0.0)
    if BIAS is not None:
        own, real = BIAS + example // examples * stride + group * WIDE + col, col < WIDE
        q, k, v = _biased(q, own, real), _biased(k, own + D, real), _biased(v, own + 2 * D, real)
    return q, k, v, at, example * T * D + group * WIDE + row[:, None] * D + col[None, :], live


@triton.jit
def _only(x, head, K: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    """The columns of one head; the others are zero, so that products of whole blocks leave them out."""
    if K < WIDE:
        x = tl.where((tl.arange(0, COLS) // K == head)[None, :], x, 0.0).to(x.dtype)
    return x


@triton.jit
def patterns(q, k, T, BLOCK: tl.constexpr, scale):
    """Causal patterns of one head over T tokens."""
    row = tl.arange(0, BLOCK)
    s = dot(q, tl.trans(k)) * scale
    s = tl.where((row[None, :] <= row[:, None]) & (row[None, :] < T), s, -1e30)
    p = tl.exp(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit
def _attention_forward(
    QKV, BIAS, Z, scale, stride, examples, T,
    D: tl.constexpr, K: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    q, k, v, _, at, live = _load(QKV, BIAS, stride, examples, T, D, WIDE, BLOCK, COLS)
    z = tl.zeros((BLOCK, COLS), tl.float32)
    for head in tl.static_range(WIDE // K):
        p = patterns(_only(q, head, K, COLS, WIDE), k, T, BLOCK, scale)
        z += dot(p.to(q.dtype), _only(v, head, K, COLS, WIDE))
    tl.store(Z + at, z.to(q.dtype), mask=live)


@triton.jit
def _attention_backward(
    QKV, BIAS, DZ, DQKV, scale, stride, examples, T,
    D: tl.constexpr, K: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    q, k, v, at, z_at, live = _load(QKV, BIAS, stride, examples, T, D, WIDE, BLOCK, COLS)
    dz = tl.load(DZ + z_at, mask=live, other=0.0)
    dq = tl.zeros((BLOCK, COLS), tl.float32)
    dk = tl.zeros((BLOCK, COLS), tl.float32)
    dv = tl.zeros((BLOCK, COLS), tl.float32)
    for head in tl.static_range(WIDE // K):
        own_q, own_dz = _only(q, head, K, COLS, WIDE), _only(dz, head, K, COLS, WIDE)
        p = patterns(own_q, k, T, BLOCK, scale)
        dv += dot(tl.trans(p.to(q.dtype)), own_dz)
        dp = dot(own_dz, tl.trans(v))
        ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
        dq += dot(ds, _only(k, head, K, COLS, WIDE))
        dk += dot(tl.trans(ds), own_q)
    tl.store(DQKV + at, dq.to(q.dtype), mask=live)
    tl.store(DQKV + at + D, dk.to(q.dtype), mask=live)
    tl.store(DQKV + at + 2 * D, dv.to(q.dtype), mask=live)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, bias, tokens, heads, sink):
        seeds, rows, wide = qkv.shape
        qkv = qkv.contiguous()
        width, each = wide // 3, wide // (3 * heads)
        z = qkv.new_empty(seeds, rows, width)
        # A product of blocks needs at least 16 x 16: a program takes as many small heads as make 16 columns.
        together = math.gcd(heads, max(1, 16 // each))
        block, cols = (max(16, triton.next_power_of_2(size)) for size in (tokens, each * together))
        ctx.sink, ctx.warps = sink, 4 if block * cols > 1024 else 2  # a small block is done sooner by few warps
        stride = 0 if bias is None else bias.stride(0)
        ctx.shape = (each**-0.5, stride, rows // tokens, tokens, width, each, each * together, block, cols)
        ctx.grid = (seeds * rows // tokens, heads // together)
        _attention_forward[ctx.grid](qkv, bias, z, *ctx.shape, num_warps=ctx.warps)
        ctx.save_for_backward(qkv, bias)
        return z

    @staticmethod
    def backward(ctx, dz):
        qkv, bias = ctx.saved_tensors
        dqkv = torch.empty_like(qkv)
        _attention_backward[ctx.grid](qkv, bias, dz.contiguous(), dqkv, *ctx.shape, num_warps=ctx.warps)
        if ctx.sink is not None:
            collect(dqkv[:, :, None], [ctx.sink])
        return dqkv, None, None, None, None


def attention(qkv, bias, tokens, heads):
    """Causal attention inside each run of `tokens` rows (at most 64), straight from and to the products' layout.

    On a GPU, products of fp32 factors are tf32 (10 bits of mantissa), summed in fp32.
    """
    assert tokens <= MOST_TOKENS, f"the kernel holds at most {MOST_TOKENS} tokens, not {tokens}"
    assert qkv.shape[1] % tokens == 0, f"{qkv.shape[1]} rows are no whole number of runs of {tokens} tokens"
    value, sink = (None, None) if bias is None else (bias.value, bias.sink)
    return _Attention.apply(qkv, value, tokens, heads, sink)


@triton.jit
def _answer_parts(Q, KV, scale, T, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr):
    """One head of one example, asked by its last row: (q, k, v, pattern; places in q and kv; which of them exist)."""
    example, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, col = tl.arange(0, BLOCK), tl.arange(0, COLS)
    live = (row < T)[:, None] & (col < K)[None, :]
    q_at = example * D + head * K + col
    at = example * T * 2 * D + head * K + row[:, None] * 2 * D + col[None, :]
    q = tl.load(Q + q_at, mask=col < K, other=0.0).to(tl.float32)[None, :]
    k = tl.load(KV + at, mask=live, other=0.0).to(tl.float32)
    v = tl.load(KV + at + D, mask=live, other=0.0).to(tl.float32)
    s = tl.where(row < T, tl.sum(q * k, 1) * scale, -1e30)
    p = tl.exp(s - tl.max(s, 0))
    return q, k, v, p / tl.sum(p, 0), q_at, at, live


@triton.jit
def _answer_forward(Q, KV, Z, scale, T, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr):
    _, _, v, p, q_at, _, _ = _answer_parts(Q, KV, scale, T, D, K, BLOCK, COLS)
    z = tl.sum(p[:, None] * v, 0)
    tl.store(Z + q_at, z.to(Z.dtype.element_ty), mask=tl.arange(0, COLS) < K)


@triton.jit
def _answer_backward(
    Q, KV, DZ, DQ, DKV, scale, T, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    q, k, v, p, q_at, at, live = _answer_parts(Q, KV, scale, T, D, K, BLOCK, COLS)
    real = tl.arange(0, COLS) < K
    dz = tl.load(DZ + q_at, mask=real, other=0.0).to(tl.float32)[None, :]
    dp = tl.sum(dz * v, 1)
    ds = p * (dp - tl.sum(p * dp, 0)) * scale
    tl.store(DQ + q_at, tl.sum(ds[:, None] * k, 0).to(DQ.dtype.element_ty), mask=real)
    tl.store(DKV + at, (ds[:, None] * q).to(DKV.dtype.element_ty), mask=live)
    tl.store(DKV + at + D, (p[:, None] * dz).to(DKV.dtype.element_ty), mask=live)


class _AnswerAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, tokens, heads):
        seeds, examples, width = q.shape
        q, kv, each = q.contiguous(), kv.contiguous(), width // heads
        z = torch.empty_like(q)
        ctx.shape = (each**-0.5, tokens, width, each, triton.next_power_of_2(tokens), triton.next_power_of_2(each))
        ctx.grid = (seeds * examples, heads)
        _answer_forward[ctx.grid](q, kv, z, *ctx.shape, num_warps=2)
        ctx.save_for_backward(q, kv)
        return z

    @staticmethod
    def backward(ctx, dz):
        q, kv = ctx.saved_tensors
        dq, dkv = torch.empty_like(q), torch.empty_like(kv)
        _answer_backward[ctx.grid](q, kv, dz.contiguous(), dq, dkv, *ctx.shape, num_warps=2)
        return dq, dkv, None, None


def answer_attention(q, kv, tokens, heads):
    """Attention of one row an example, q [S, B, d], over its `tokens` rows of kv [S, B tokens, 2 d]."""
    return _AnswerAttention.apply(q, kv, tokens, heads)
