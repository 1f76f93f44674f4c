"""The operations of `ops.py` for bf16 on a GPU: Triton kernels with their gradients.

Why own kernels: for 35 tokens, library attention spends most of its time on layout copies; LayerNorm, residual and GELU
are bound by memory, so each should touch the stream once.  Products go to cuBLAS.  Sums over rows (gradients of gains,
shifts and biases) are formed in two fixed stages, never by atomics, so that a run can be repeated bit for bit.
"""

# Triton's language is untyped, and triton is there only where a GPU is.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

MOST_TOKENS = 64


class _Embed(torch.autograd.Function):
    """Rows of a table; the gradient is a product with the one-hot tokens, so that it is the same every time."""

    @staticmethod
    def forward(ctx, table, tokens):
        ctx.save_for_backward(tokens)
        ctx.rows = table.shape[1]
        seeds = torch.arange(len(table), device=table.device)[:, None]
        return table[seeds, tokens]

    @staticmethod
    def backward(ctx, dx):
        (tokens,) = ctx.saved_tensors
        one_hot = torch.nn.functional.one_hot(tokens, ctx.rows).to(torch.bfloat16)
        return torch.bmm(one_hot.transpose(1, 2), dx.to(torch.bfloat16), out_dtype=torch.float32), None


def embed(table, tokens):
    """Rows of each seed's table: [S, V, d], [S, M] -> [S, M, d]."""
    return _Embed.apply(table, tokens)


class _Linear(torch.autograd.Function):
    """x W' with weight gradients in fp32."""

    @staticmethod
    def forward(ctx, x, W, low):
        ctx.save_for_backward(x, low)
        return torch.bmm(x, low.transpose(1, 2))

    @staticmethod
    def backward(ctx, dy):
        x, low = ctx.saved_tensors
        dx = torch.bmm(dy, low) if ctx.needs_input_grad[0] else None
        return dx, torch.bmm(dy.transpose(1, 2), x, out_dtype=torch.float32), None


def linear(x, W, low):
    """x W' for bf16 x; `low` is W in bf16, made once per update."""
    return _Linear.apply(x, W, low)


@triton.jit
def _add_norm_forward(
    X, Y, BIAS, GAIN, SHIFT, OUT, N, STATS, M, D: tl.constexpr, HAS_BIAS: tl.constexpr, R: tl.constexpr
):
    seed = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * R + tl.arange(0, R)
    col = tl.arange(0, D)
    at = (seed * M + row)[:, None] * D + col[None, :]
    live = (row < M)[:, None]
    x = tl.load(X + at, mask=live, other=0.0) + tl.load(Y + at, mask=live, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(BIAS + seed * D + col)[None, :]
    tl.store(OUT + at, x, mask=live)
    mean = tl.sum(x, 1) / D
    x = x - mean[:, None]
    rstd = tl.rsqrt(tl.sum(x * x, 1) / D + 1e-5)
    tl.store(STATS + (seed * M + row) * 2, mean, mask=row < M)
    tl.store(STATS + (seed * M + row) * 2 + 1, rstd, mask=row < M)
    n = x * rstd[:, None] * tl.load(GAIN + seed * D + col)[None, :] + tl.load(SHIFT + seed * D + col)[None, :]
    tl.store(N + at, n.to(N.dtype.element_ty), mask=live)


@triton.jit
def _add_norm_backward(
    OUT, STATS, GAIN, DOUT, DN, DX, DY, PART, M, D: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr
):
    seed = tl.program_id(1).to(tl.int64)
    col = tl.arange(0, D)
    gain = tl.load(GAIN + seed * D + col)[None, :]
    dgain = tl.zeros((R, D), tl.float32)  # summed over rows once, at the end: a sum across warps is slow
    dshift = tl.zeros((R, D), tl.float32)
    dbias = tl.zeros((R, D), tl.float32)
    for step in range(STEPS):
        row = (tl.program_id(0) * STEPS + step) * R + tl.arange(0, R)
        at = (seed * M + row)[:, None] * D + col[None, :]
        live = (row < M)[:, None]
        mean = tl.load(STATS + (seed * M + row) * 2, mask=row < M, other=0.0)[:, None]
        rstd = tl.load(STATS + (seed * M + row) * 2 + 1, mask=row < M, other=0.0)[:, None]
        unit = (tl.load(OUT + at, mask=live, other=0.0) - mean) * rstd
        dn = tl.load(DN + at, mask=live, other=0.0).to(tl.float32)
        dgain += dn * unit
        dshift += dn
        g = dn * gain
        dx = rstd * (g - tl.sum(g, 1)[:, None] / D - unit * (tl.sum(g * unit, 1)[:, None] / D))
        dx += tl.load(DOUT + at, mask=live, other=0.0)
        dbias += tl.where(live, dx, 0.0)
        tl.store(DX + at, dx, mask=live)
        tl.store(DY + at, dx.to(DY.dtype.element_ty), mask=live)
    place = PART + (seed * tl.num_programs(0) + tl.program_id(0)) * 3 * D + col
    tl.store(place, tl.sum(dgain, 0))
    tl.store(place + D, tl.sum(dshift, 0))
    tl.store(place + 2 * D, tl.sum(dbias, 0))


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, bias, gain, shift):
        seeds, rows, width = x.shape
        out, n = torch.empty_like(x), torch.empty_like(y)
        stats = x.new_empty(seeds, rows, 2)
        grid = (triton.cdiv(rows, 8), seeds)
        low = gain if bias is None else bias.contiguous()
        _add_norm_forward[grid](
            x,
            y,
            low,
            gain.contiguous(),
            shift.contiguous(),
            out,
            n,
            stats,
            rows,
            width,
            bias is not None,
            8,
            num_warps=4,
        )
        ctx.save_for_backward(out, stats, gain.contiguous())
        ctx.has_bias = bias is not None
        return out, n

    @staticmethod
    def backward(ctx, dout, dn):
        out, stats, gain = ctx.saved_tensors
        seeds, rows, width = out.shape
        dx, dy = torch.empty_like(out), torch.empty_like(dn)
        per, steps = 8, 8
        programs = triton.cdiv(rows, per * steps)
        part = out.new_empty(seeds, programs, 3, width)
        _add_norm_backward[(programs, seeds)](
            out, stats, gain, dout.contiguous(), dn.contiguous(), dx, dy, part, rows, width, per, steps, num_warps=2
        )
        dgain, dshift, dbias = part.sum(1).unbind(1)
        return dx, dy, dbias if ctx.has_bias else None, dgain, dshift


def add_norm(x, y, bias, gain, shift):
    """(x + y + bias, its LayerNorm in bf16): fp32 stream x, bf16 y."""
    return _AddNorm.apply(x, y, bias, gain, shift)


@triton.jit
def _erf_parts(x):
    """(erf(x / sqrt 2), exp(-x^2 / 2)) by Abramowitz and Stegun 7.1.26: off by less than 2e-7, one exp for both."""
    u = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * u)
    bell = tl.exp(-u * u)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    size = 1.0 - tail * bell
    return tl.where(x < 0, -size, size), bell


@triton.jit
def _gelu_forward(X, BIAS, H, M, F: tl.constexpr, BF: tl.constexpr, R: tl.constexpr):
    seed = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * R + tl.arange(0, R)
    col = tl.program_id(1) * BF + tl.arange(0, BF)
    at = (seed * M + row)[:, None] * F + col[None, :]
    live = (row < M)[:, None]
    x = tl.load(X + at, mask=live, other=0.0).to(tl.float32) + tl.load(BIAS + seed * F + col)[None, :]
    erf, _ = _erf_parts(x)
    h = 0.5 * x * (1 + erf)
    tl.store(H + at, h.to(H.dtype.element_ty), mask=live)


@triton.jit
def _gelu_backward(X, BIAS, DH, DX, PART, M, F: tl.constexpr, BF: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr):
    seed = tl.program_id(2).to(tl.int64)
    col = tl.program_id(1) * BF + tl.arange(0, BF)
    bias = tl.load(BIAS + seed * F + col)[None, :]
    total = tl.zeros((R, BF), tl.float32)
    for step in range(STEPS):
        row = (tl.program_id(0) * STEPS + step) * R + tl.arange(0, R)
        at = (seed * M + row)[:, None] * F + col[None, :]
        live = (row < M)[:, None]
        x = tl.load(X + at, mask=live, other=0.0).to(tl.float32) + bias
        dh = tl.load(DH + at, mask=live, other=0.0).to(tl.float32)
        erf, bell = _erf_parts(x)
        dx = dh * (0.5 * (1 + erf) + x * 0.3989422804014327 * bell)
        total += dx
        tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=live)
    tl.store(PART + (seed * tl.num_programs(0) + tl.program_id(0)) * F + col, tl.sum(total, 0))


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        seeds, rows, wide = x.shape
        h, bias = torch.empty_like(x), bias.contiguous()
        _gelu_forward[(triton.cdiv(rows, 16), wide // 256, seeds)](x, bias, h, rows, wide, 256, 16, num_warps=4)
        ctx.save_for_backward(x, bias)
        return h

    @staticmethod
    def backward(ctx, dh):
        x, bias = ctx.saved_tensors
        seeds, rows, wide = x.shape
        dx = torch.empty_like(x)
        programs = triton.cdiv(rows, 128)
        part = bias.new_empty(seeds, programs, wide)
        _gelu_backward[(programs, wide // 256, seeds)](
            x, bias, dh.contiguous(), dx, part, rows, wide, 256, 16, 8, num_warps=4
        )
        return dx, part.sum(1)


def gelu(x, bias, form):
    """GELU(x + bias), exact form."""
    assert form == "none"
    return _Gelu.apply(x, bias)


@triton.jit
def _patterns(q, k, row, T: tl.constexpr, scale):
    s = tl.dot(q, tl.trans(k)) * scale
    s = tl.where((row[None, :] <= row[:, None]) & (row[None, :] < T), s, -1e30)
    p = tl.exp(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit
def _attention_forward(QKV, Z, T: tl.constexpr, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, scale):
    example, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, col = tl.arange(0, BLOCK), tl.arange(0, K)
    live = (row < T)[:, None]
    at = QKV + example * T * 3 * D + head * K + row[:, None] * 3 * D + col[None, :]
    q, k = tl.load(at, mask=live, other=0.0), tl.load(at + D, mask=live, other=0.0)
    v = tl.load(at + 2 * D, mask=live, other=0.0)
    z = tl.dot(_patterns(q, k, row, T, scale).to(q.dtype), v)
    tl.store(Z + example * T * D + head * K + row[:, None] * D + col[None, :], z.to(q.dtype), mask=live)


@triton.jit
def _attention_backward(QKV, DZ, DQKV, T: tl.constexpr, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, scale):
    example, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, col = tl.arange(0, BLOCK), tl.arange(0, K)
    live = (row < T)[:, None]
    at = example * T * 3 * D + head * K + row[:, None] * 3 * D + col[None, :]
    q, k = tl.load(QKV + at, mask=live, other=0.0), tl.load(QKV + at + D, mask=live, other=0.0)
    v = tl.load(QKV + at + 2 * D, mask=live, other=0.0)
    dz = tl.load(DZ + example * T * D + head * K + row[:, None] * D + col[None, :], mask=live, other=0.0)
    p = _patterns(q, k, row, T, scale)
    dv = tl.dot(tl.trans(p.to(q.dtype)), dz)
    dp = tl.dot(dz, tl.trans(v))
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
    tl.store(DQKV + at, tl.dot(ds, k).to(q.dtype), mask=live)
    tl.store(DQKV + at + D, tl.dot(tl.trans(ds), q).to(q.dtype), mask=live)
    tl.store(DQKV + at + 2 * D, dv.to(q.dtype), mask=live)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, tokens, heads):
        seeds, rows, wide = qkv.shape
        width = wide // 3
        z = qkv.new_empty(seeds, rows, width)
        block = max(16, triton.next_power_of_2(tokens))
        ctx.shape = (tokens, width, width // heads, block, (width // heads) ** -0.5)
        ctx.grid = (seeds * rows // tokens, heads)
        _attention_forward[ctx.grid](qkv, z, *ctx.shape, num_warps=4)
        ctx.save_for_backward(qkv)
        return z

    @staticmethod
    def backward(ctx, dz):
        (qkv,) = ctx.saved_tensors
        dqkv = torch.empty_like(qkv)
        _attention_backward[ctx.grid](qkv, dz.contiguous(), dqkv, *ctx.shape, num_warps=4)
        return dqkv, None, None


def attention(qkv, tokens, heads):
    """Causal attention inside each run of `tokens` rows (at most 64), straight from and to the products' layout."""
    assert tokens <= MOST_TOKENS
    return _Attention.apply(qkv, tokens, heads)
