"""Attention of graph walks that share their beginnings, as Triton kernels.

A program takes one head of one example, or of one variant (a beginning alone), and finds its rows where
`ops.Beginnings` says they lie.  What a row asks is computed by one program, its owner: an example owns its rows from
the tenth on, a variant its last three rows, and those before them if no variant before it has the same.  Keys and
values of shared rows are read by many programs; each writes its part of their gradients to a place of its own, and
these parts are summed by products with one-hot matrices: no atomics, the same bits every time.
"""

# Triton's language is untyped, and triton is there only where a GPU is.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from loopscope.training.cohort.attention import MOST_TOKENS, dot, patterns
from loopscope.training.cohort.ops import BEGUN

_BEGUN = tl.constexpr(BEGUN)


@triton.jit
def _program(
    VARIANT, batch, own, others, T, M,
    K: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr, EXAMPLES: tl.constexpr,
):  # fmt: skip
    """What the first program id stands for: (its number, its T rows, their places, which exist, which it owns).

    Numbers count the B examples, then the V variants, of each seed; places count the rows of all seeds.
    """
    variants = others * (others + 1)
    row, col = tl.arange(0, BLOCK), tl.arange(0, COLS)
    if EXAMPLES:
        count, before, mine = batch, 0, row >= _BEGUN
    else:
        count, before, mine = variants, batch, row >= 6
    seed, each = tl.program_id(0).to(tl.int64) // count, tl.program_id(0) % count
    number = seed * (batch + variants) + before + each
    variant = tl.load(VARIANT + number)
    group = tl.where(row < 3, 0, tl.where(row < 6, variant // others, others + variant))
    place = tl.where(row < _BEGUN, batch * own + 3 * group + row, each * own + row - _BEGUN)
    if not EXAMPLES:
        mine = mine | ((row >= 3) & (each % others == 0)) | (each == 0)
    live = (row < T)[:, None] & (col < K)[None, :]
    return number, row, seed * M + place, live, mine[:, None] & live


@triton.jit
def _shared_forward(
    QKV, VARIANT, Z, scale, batch, own, others, T, M,
    D: tl.constexpr, K: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, EXAMPLES: tl.constexpr,
):  # fmt: skip
    _, _, place, live, mine = _program(VARIANT, batch, own, others, T, M, K, BLOCK, COLS, EXAMPLES)
    col = tl.program_id(1) * K + tl.arange(0, COLS)
    at = place[:, None] * 3 * D + col[None, :]
    q = tl.load(QKV + at, mask=mine, other=0.0)
    k, v = tl.load(QKV + at + D, mask=live, other=0.0), tl.load(QKV + at + 2 * D, mask=live, other=0.0)
    z = dot(patterns(q, k, T, BLOCK, scale).to(q.dtype), v)
    tl.store(Z + place[:, None] * D + col[None, :], z.to(q.dtype), mask=mine)


@triton.jit
def _shared_backward(
    QKV, VARIANT, DZ, DQKV, PART, scale, batch, own, others, T, M,
    D: tl.constexpr, K: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, EXAMPLES: tl.constexpr,
):  # fmt: skip
    number, row, place, live, mine = _program(VARIANT, batch, own, others, T, M, K, BLOCK, COLS, EXAMPLES)
    col = tl.program_id(1) * K + tl.arange(0, COLS)
    at = place[:, None] * 3 * D + col[None, :]
    q = tl.load(QKV + at, mask=mine, other=0.0)
    k, v = tl.load(QKV + at + D, mask=live, other=0.0), tl.load(QKV + at + 2 * D, mask=live, other=0.0)
    dz = tl.load(DZ + place[:, None] * D + col[None, :], mask=mine, other=0.0)  # zero: other owners see to those rows
    p = patterns(q, k, T, BLOCK, scale)
    dv = dot(tl.trans(p.to(q.dtype)), dz)
    dp = dot(dz, tl.trans(v))
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
    dk = dot(tl.trans(ds), q)
    tl.store(DQKV + at, dot(ds, k).to(q.dtype), mask=mine)
    if EXAMPLES:
        tl.store(DQKV + at + D, dk.to(q.dtype), mask=mine)
        tl.store(DQKV + at + 2 * D, dv.to(q.dtype), mask=mine)
    begun = live & (row < _BEGUN)[:, None]
    part = (number * _BEGUN + row)[:, None] * 2 * D + col[None, :]
    tl.store(PART + part, dk.to(q.dtype), mask=begun)
    tl.store(PART + part + D, dv.to(q.dtype), mask=begun)


@triton.jit
def _sum_parts(
    PART, VARIANT, OUT, programs, batch, own, others, M, offset,
    WIDE: tl.constexpr, OUT_WIDE: tl.constexpr, GROUPS: tl.constexpr, COLS: tl.constexpr, STEPS: tl.constexpr,
    R: tl.constexpr,
):  # fmt: skip
    """The parts of three shared rows, all of one level: rows 0-2, or 3-5 of each f(0), or 6-8 of each variant."""
    level, seed = tl.program_id(1), tl.program_id(2).to(tl.int64)
    variants = others * (others + 1)
    col, group = tl.program_id(0) * COLS + tl.arange(0, COLS), tl.arange(0, GROUPS)
    size = tl.where(level == 0, variants, tl.where(level == 1, others, 1))  # of variants that have such rows in common
    total = tl.zeros((GROUPS, COLS), tl.float32)
    for step in range(STEPS):
        number = step * R + tl.arange(0, R)
        live = (number < programs)[:, None] & (col < 3 * WIDE)[None, :]
        at = ((seed * (batch + variants) + number) * _BEGUN + 3 * level)[:, None] * WIDE + col[None, :]
        part = tl.load(PART + at, mask=live, other=0.0)
        variant = tl.load(VARIANT + seed * (batch + variants) + number, mask=number < programs, other=0)
        total += dot((group[:, None] == (variant // size)[None, :]).to(part.dtype), part)
    before = tl.where(level == 0, 0, tl.where(level == 1, 1, others + 2))
    place = batch * own + 3 * (before + group)[:, None] + (col // WIDE)[None, :]
    live = (group < variants // size)[:, None] & (col < 3 * WIDE)[None, :]
    at = (seed * M + place) * OUT_WIDE + offset + (col % WIDE)[None, :]
    tl.store(OUT + at, total.to(OUT.dtype.element_ty), mask=live)


def _summed(part, begun, out, programs, offset):
    """Sums of the parts [S, B + V, 9, 2 D] of so many programs, to the shared rows of `out` from column `offset` on."""
    seeds, wide = len(part), part.shape[-1]
    groups, cols, at_once = max(16, triton.next_power_of_2(begun.variants)), 64, 64
    _sum_parts[(triton.cdiv(3 * wide, cols), 3, seeds)](
        part, begun.variant, out, programs, begun.batch, begun.own, begun.nodes - 1, begun.rows, offset,
        wide, out.shape[-1], groups, cols, triton.cdiv(programs, at_once), at_once, num_warps=8,
    )  # fmt: skip


def _checked(begun, rows):
    """The same with its variants as the kernels read them."""
    assert begun.tokens <= MOST_TOKENS, f"the kernel holds at most {MOST_TOKENS} tokens, not {begun.tokens}"
    assert rows == begun.rows, f"{rows} rows, where {begun.batch} examples with shared beginnings have {begun.rows}"
    return begun._replace(variant=begun.variant.contiguous())


def _sizes(begun, tokens, width, heads):
    """(scale, sizes that change, sizes the compiler sees), as the kernels take them, for runs of so many tokens."""
    each = width // heads
    cols, block = (max(16, triton.next_power_of_2(size)) for size in (each, tokens))
    return (each**-0.5, begun.batch, begun.own, begun.nodes - 1, tokens, begun.rows, width, each, cols, block)


class _SharedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, variant, begun, heads):
        seeds, rows, wide = qkv.shape
        qkv, ctx.begun = qkv.contiguous(), begun
        z = qkv.new_empty(seeds, rows, wide // 3)
        # Examples and variants apart: a variant's nine rows need a far smaller block.
        ctx.launches = [
            ((seeds * count, heads), (*_sizes(begun, tokens, wide // 3, heads), examples))
            for count, tokens, examples in ((begun.batch, begun.tokens, True), (begun.variants, BEGUN, False))
        ]
        for grid, sizes in ctx.launches:
            _shared_forward[grid](qkv, variant, z, *sizes, num_warps=_warps(sizes))
        ctx.save_for_backward(qkv, variant)
        return z

    @staticmethod
    def backward(ctx, dz):
        qkv, variant = ctx.saved_tensors
        dz, dqkv, width = dz.contiguous(), torch.empty_like(qkv), dz.shape[-1]
        part = qkv.new_empty(*variant.shape, BEGUN, 2 * width)
        for grid, sizes in ctx.launches:
            _shared_backward[grid](qkv, variant, dz, dqkv, part, *sizes, num_warps=_warps(sizes))
        _summed(part, ctx.begun, dqkv, variant.shape[1], width)
        return dqkv, None, None, None


def _warps(sizes):
    *_, cols, block, _ = sizes
    return 4 if block * cols > 1024 else 2  # a small block is done sooner by few warps


def shared_attention(qkv, begun, heads):
    """Causal attention inside each example and each variant (at most 64 tokens), as in `ops.py`.

    On a GPU, products of fp32 factors are tf32 (10 bits of mantissa), summed in fp32; so are the sums over parts.
    """
    begun = _checked(begun, qkv.shape[1])
    return _SharedAttention.apply(qkv, begun.variant, begun, heads)


@triton.jit
def _answer_parts(
    Q, KV, VARIANT, scale, batch, own, others, T, M,
    D: tl.constexpr, K: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one example, asked by its last row: (q, k, v, pattern; places in q and kv; the program's rows)."""
    number, row, place, live, mine = _program(VARIANT, batch, own, others, T, M, K, BLOCK, COLS, True)
    col = tl.arange(0, COLS)
    q_at = tl.program_id(0).to(tl.int64) * D + tl.program_id(1) * K + col
    at = place[:, None] * 2 * D + tl.program_id(1) * K + col[None, :]
    q = tl.load(Q + q_at, mask=col < K, other=0.0).to(tl.float32)[None, :]
    k = tl.load(KV + at, mask=live, other=0.0).to(tl.float32)
    v = tl.load(KV + at + D, mask=live, other=0.0).to(tl.float32)
    s = tl.where(row < T, tl.sum(q * k, 1) * scale, -1e30)
    p = tl.exp(s - tl.max(s, 0))
    return q, k, v, p / tl.sum(p, 0), q_at, at, number, row, live, mine


@triton.jit
def _answer_forward(
    Q, KV, VARIANT, Z, scale, batch, own, others, T, M,
    D: tl.constexpr, K: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _, _, v, p, q_at, _, _, _, _, _ = _answer_parts(
        Q, KV, VARIANT, scale, batch, own, others, T, M, D, K, COLS, BLOCK
    )  # fmt: skip
    z = tl.sum(p[:, None] * v, 0)
    tl.store(Z + q_at, z.to(Z.dtype.element_ty), mask=tl.arange(0, COLS) < K)


@triton.jit
def _answer_backward(
    Q, KV, VARIANT, DZ, DQ, DKV, PART, scale, batch, own, others, T, M,
    D: tl.constexpr, K: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    q, k, v, p, q_at, at, number, row, live, mine = _answer_parts(
        Q, KV, VARIANT, scale, batch, own, others, T, M, D, K, COLS, BLOCK
    )  # fmt: skip
    col = tl.arange(0, COLS)
    dz = tl.load(DZ + q_at, mask=col < K, other=0.0).to(tl.float32)[None, :]
    dp = tl.sum(dz * v, 1)
    ds = p * (dp - tl.sum(p * dp, 0)) * scale
    tl.store(DQ + q_at, tl.sum(ds[:, None] * k, 0).to(DQ.dtype.element_ty), mask=col < K)
    dk, dv = (ds[:, None] * q).to(DKV.dtype.element_ty), (p[:, None] * dz).to(DKV.dtype.element_ty)
    tl.store(DKV + at, dk, mask=mine)
    tl.store(DKV + at + D, dv, mask=mine)
    begun = live & (row < _BEGUN)[:, None]
    part = (number * _BEGUN + row)[:, None] * 2 * D + tl.program_id(1) * K + col[None, :]
    tl.store(PART + part, dk, mask=begun)
    tl.store(PART + part + D, dv, mask=begun)


class _SharedAnswerAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, variant, begun, heads):
        q, kv, ctx.begun = q.contiguous(), kv.contiguous(), begun
        z = torch.empty_like(q)
        ctx.sizes = _sizes(begun, begun.tokens, q.shape[-1], heads)
        ctx.grid = (len(q) * begun.batch, heads)
        _answer_forward[ctx.grid](q, kv, variant, z, *ctx.sizes, num_warps=2)
        ctx.save_for_backward(q, kv, variant)
        return z

    @staticmethod
    def backward(ctx, dz):
        q, kv, variant = ctx.saved_tensors
        dq, dkv = torch.empty_like(q), torch.empty_like(kv)
        part = kv.new_empty(*variant.shape, BEGUN, kv.shape[-1])  # that of variants stays unused: they ask nothing here
        _answer_backward[ctx.grid](q, kv, variant, dz.contiguous(), dq, dkv, part, *ctx.sizes, num_warps=2)
        _summed(part, ctx.begun, dkv, ctx.begun.batch, 0)
        return dq, dkv, None, None, None


def shared_answer_attention(q, kv, begun, heads):
    """Attention of one row an example, q [S, B, d], over its own and its shared rows of kv [S, M, 2 d]."""
    begun = _checked(begun, kv.shape[1])
    return _SharedAnswerAttention.apply(q, kv, begun.variant, begun, heads)
