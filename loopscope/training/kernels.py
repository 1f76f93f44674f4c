"""The operations of `ops.py` for a GPU: Triton kernels with their gradients, for bf16 and fp32.

Why own kernels: for 35 tokens, library attention spends most of its time on layout copies; LayerNorm, residual and GELU
are bound by memory, so each should touch the stream once.  Products go to cuBLAS.  Sums over rows (gradients of gains,
shifts and biases) are formed in two fixed stages, never by atomics, so that a run can be repeated bit for bit.  What a
frozen weight or an unused output does not need is not computed: switches that the compiler sees leave it out.
"""

# Triton's language is untyped, and triton is there only where a GPU is.
# mypy: ignore-errors

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from loopscope.training.ops import norm as norm  # used for a few rows only: the plain one serves

MOST_TOKENS = 64


def _product(a, b):
    """a b for each seed, in fp32 from either dtype.  Only on a GPU can bf16 factors give an fp32 product."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


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
        one_hot = (tokens[..., None] == torch.arange(ctx.rows, device=tokens.device)).to(dx.dtype)
        # The result is small and the sum long: cut into pieces, it keeps the whole GPU busy.
        pieces = math.gcd(tokens.shape[1], 32)
        one_hot, dx = (t.unflatten(1, (pieces, -1)).flatten(0, 1) for t in (one_hot, dx))
        return torch.bmm(one_hot.transpose(1, 2), dx).unflatten(0, (-1, pieces)).sum(1), None


def embed(table, tokens):
    """Rows of each seed's table: [S, V, d], [S, M] -> [S, M, d]."""
    return _Embed.apply(table, tokens)


class _Linear(torch.autograd.Function):
    """x W' with weight gradients in fp32; keeps and computes only what the wanted gradients need."""

    @staticmethod
    def forward(ctx, x, W, low):
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, low if ctx.needs_input_grad[0] else None)
        return torch.bmm(x, low.transpose(1, 2))

    @staticmethod
    def backward(ctx, dy):
        x, low = ctx.saved_tensors
        dx = None if low is None else torch.bmm(dy, low)
        return dx, None if x is None else _product(dy.transpose(1, 2), x), None


def linear(x, W, low):
    """x W'; `low` is W in the dtype of x, made once per update (for fp32, W itself)."""
    return _Linear.apply(x, W, low)


@triton.jit
def _add_norm_forward(X, Y, BIAS, GAIN, SHIFT, OUT, N, STATS, M, D: tl.constexpr, R: tl.constexpr):
    seed = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * R + tl.arange(0, R)
    col = tl.arange(0, D)
    at = (seed * M + row)[:, None] * D + col[None, :]
    live = (row < M)[:, None]
    x = tl.load(X + at, mask=live, other=0.0)
    if Y is not None:
        x += tl.load(Y + at, mask=live, other=0.0).to(tl.float32)
    if BIAS is not None:
        x += tl.load(BIAS + seed * D + col)[None, :]
    if OUT is not None:
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
        if DOUT is not None:
            dx += tl.load(DOUT + at, mask=live, other=0.0)
        dbias += tl.where(live, dx, 0.0)
        tl.store(DX + at, dx, mask=live)
        if DY is not None:
            tl.store(DY + at, dx.to(DY.dtype.element_ty), mask=live)
    if PART is not None:  # else the three sums are not used, and the compiler drops them
        place = PART + (seed * tl.num_programs(0) + tl.program_id(0)) * 3 * D + col
        tl.store(place, tl.sum(dgain, 0))
        tl.store(place + D, tl.sum(dshift, 0))
        tl.store(place + 2 * D, tl.sum(dbias, 0))


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, bias, gain, shift, low):
        seeds, rows, width = x.shape
        x, y, bias, gain, shift = (None if t is None else t.contiguous() for t in (x, y, bias, gain, shift))
        out = None if y is None and bias is None else torch.empty_like(x)
        n, stats = torch.empty_like(x, dtype=low), x.new_empty(seeds, rows, 2)
        grid = (triton.cdiv(rows, 8), seeds)
        _add_norm_forward[grid](x, y, bias, gain, shift, out, n, stats, rows, width, 8, num_warps=4)
        out = x if out is None else out  # nothing was added: the stream goes on as it is
        ctx.save_for_backward(out, stats, gain)
        ctx.y_dtype = None if y is None else y.dtype
        ctx.set_materialize_grads(False)
        return out, n

    @staticmethod
    def backward(ctx, dout, dn):
        _, needs_y, needs_bias, needs_gain, needs_shift, _ = ctx.needs_input_grad
        if dn is None:  # the norm was not used: what is left is a plain sum
            if dout is None:
                return (None,) * 6
            dy, dbias = dout.to(ctx.y_dtype) if needs_y else None, dout.sum(1) if needs_bias else None
            return dout, dy, dbias, None, None, None
        out, stats, gain = ctx.saved_tensors
        seeds, rows, width = out.shape
        per, steps = 8, 8
        grid = (triton.cdiv(rows, per * steps), seeds)
        dx = torch.empty_like(out)
        lower = needs_y and ctx.y_dtype != dx.dtype  # else dx serves y as well
        dy = torch.empty_like(out, dtype=ctx.y_dtype) if lower else None
        sums = needs_bias or needs_gain or needs_shift
        part = out.new_empty(seeds, grid[0], 3, width) if sums else None
        dout, dn = None if dout is None else dout.contiguous(), dn.contiguous()
        _add_norm_backward[grid](out, stats, gain, dout, dn, dx, dy, part, rows, width, per, steps, num_warps=2)
        dgain, dshift, dbias = part.sum(1).unbind(1) if sums else (None, None, None)
        return dx, dy if lower or not needs_y else dx, dbias if needs_bias else None, dgain, dshift, None


def add_norm(x, y, bias, gain, shift, low):
    """(x + y + bias, its LayerNorm in dtype `low`): fp32 stream x, y in either dtype; y and bias may be None."""
    width = x.shape[-1]
    assert width & (width - 1) == 0, f"the kernel normalises widths that are a power of two, not {width}"
    return _AddNorm.apply(x, y, bias, gain, shift, low)


@triton.jit
def _gate(x, TANH: tl.constexpr):
    """(gate, its derivative): GELU(x) = x gate(x), for both forms."""
    if TANH:  # (1 + tanh u) / 2 = sigmoid(2 u)
        gate = tl.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
        slope = gate * (1 - gate) * (1.5957691216057308 * (1 + 3 * 0.044715 * x * x))
    else:  # erf by Abramowitz and Stegun 7.1.26: off by less than 2e-7, and one exp serves it and its derivative
        u = tl.abs(x) * 0.7071067811865476
        t = 1.0 / (1.0 + 0.3275911 * u)
        bell = tl.exp(-u * u)
        tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        size = 1.0 - tail * bell
        gate, slope = 0.5 * (1 + tl.where(x < 0, -size, size)), 0.3989422804014327 * bell
    return gate, slope


@triton.jit
def _gelu_forward(X, BIAS, H, M, F: tl.constexpr, TANH: tl.constexpr, BF: tl.constexpr, R: tl.constexpr):
    seed = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * R + tl.arange(0, R)
    col = tl.program_id(1) * BF + tl.arange(0, BF)
    at = (seed * M + row)[:, None] * F + col[None, :]
    live = (row < M)[:, None]
    x = tl.load(X + at, mask=live, other=0.0).to(tl.float32) + tl.load(BIAS + seed * F + col)[None, :]
    gate, _ = _gate(x, TANH)
    tl.store(H + at, (x * gate).to(H.dtype.element_ty), mask=live)


@triton.jit
def _gelu_backward(
    X,
    BIAS,
    DH,
    DX,
    PART,
    M,
    F: tl.constexpr,
    TANH: tl.constexpr,
    BF: tl.constexpr,
    R: tl.constexpr,
    STEPS: tl.constexpr,
):
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
        gate, slope = _gate(x, TANH)
        dx = dh * (gate + x * slope)
        total += dx
        tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=live)
    if PART is not None:
        tl.store(PART + (seed * tl.num_programs(0) + tl.program_id(0)) * F + col, tl.sum(total, 0))


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, tanh):
        seeds, rows, wide = x.shape
        x, bias = x.contiguous(), bias.contiguous()
        h = torch.empty_like(x)
        ctx.tanh, ctx.block = tanh, math.gcd(wide, 256)  # columns per program: whole blocks, a power of two
        grid = (triton.cdiv(rows, 16), wide // ctx.block, seeds)
        _gelu_forward[grid](x, bias, h, rows, wide, tanh, ctx.block, 16, num_warps=4)
        ctx.save_for_backward(x, bias)
        return h

    @staticmethod
    def backward(ctx, dh):
        x, bias = ctx.saved_tensors
        seeds, rows, wide = x.shape
        dx = torch.empty_like(x)
        grid = (triton.cdiv(rows, 128), wide // ctx.block, seeds)
        part = bias.new_empty(seeds, grid[0], wide) if ctx.needs_input_grad[1] else None
        dh = dh.contiguous()
        _gelu_backward[grid](x, bias, dh, dx, part, rows, wide, ctx.tanh, ctx.block, 16, 8, num_warps=4)
        return dx, None if part is None else part.sum(1), None


def gelu(x, bias, form):
    """GELU(x + bias); `form` is torch's name, "none" (erf) or "tanh"."""
    assert form in ("none", "tanh"), f"GELU has the forms none and tanh, not {form}"
    return _Gelu.apply(x, bias, form == "tanh")


@triton.jit
def _dot(a, b):
    return tl.dot(a, b, input_precision="tf32")  # for fp32 factors; bf16 factors are taken as they are


@triton.jit
def _biased(x, BIAS, real):
    return (x.to(tl.float32) + tl.load(BIAS, mask=real, other=0.0)[None, :]).to(x.dtype)


@triton.jit
def _head(
    QKV, BIAS, examples, T: tl.constexpr, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr
):
    """One head of one example: (its q, k, v with their bias; places in qkv; places in z; which of them exist)."""
    example, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, col = tl.arange(0, BLOCK), tl.arange(0, COLS)
    live = (row < T)[:, None]
    if K < COLS:
        live = live & (col < K)[None, :]
    at = example * T * 3 * D + head * K + row[:, None] * 3 * D + col[None, :]
    q, k = tl.load(QKV + at, mask=live, other=0.0), tl.load(QKV + at + D, mask=live, other=0.0)
    v = tl.load(QKV + at + 2 * D, mask=live, other=0.0)
    if BIAS is not None:
        own = BIAS + example // examples * 3 * D + head * K + col
        q, k, v = _biased(q, own, col < K), _biased(k, own + D, col < K), _biased(v, own + 2 * D, col < K)
    return q, k, v, at, example * T * D + head * K + row[:, None] * D + col[None, :], live


@triton.jit
def _patterns(q, k, T: tl.constexpr, BLOCK: tl.constexpr, scale):
    row = tl.arange(0, BLOCK)
    s = _dot(q, tl.trans(k)) * scale
    s = tl.where((row[None, :] <= row[:, None]) & (row[None, :] < T), s, -1e30)
    p = tl.exp(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit
def _attention_forward(
    QKV, BIAS, Z, scale, examples,
    T: tl.constexpr, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    q, k, v, _, at, live = _head(QKV, BIAS, examples, T, D, K, BLOCK, COLS)
    z = _dot(_patterns(q, k, T, BLOCK, scale).to(q.dtype), v)
    tl.store(Z + at, z.to(q.dtype), mask=live)


@triton.jit
def _attention_backward(
    QKV, BIAS, DZ, DQKV, scale, examples,
    T: tl.constexpr, D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    q, k, v, at, z_at, live = _head(QKV, BIAS, examples, T, D, K, BLOCK, COLS)
    dz = tl.load(DZ + z_at, mask=live, other=0.0)
    p = _patterns(q, k, T, BLOCK, scale)
    dv = _dot(tl.trans(p.to(q.dtype)), dz)
    dp = _dot(dz, tl.trans(v))
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q.dtype)
    tl.store(DQKV + at, _dot(ds, k).to(q.dtype), mask=live)
    tl.store(DQKV + at + D, _dot(tl.trans(ds), q).to(q.dtype), mask=live)
    tl.store(DQKV + at + 2 * D, dv.to(q.dtype), mask=live)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, bias, tokens, heads):
        seeds, rows, wide = qkv.shape
        qkv, bias = qkv.contiguous(), None if bias is None else bias.contiguous()
        width, each = wide // 3, wide // (3 * heads)
        z = qkv.new_empty(seeds, rows, width)
        # A product of blocks needs at least 16 x 16.
        block, cols = (max(16, triton.next_power_of_2(size)) for size in (tokens, each))
        ctx.shape = (each**-0.5, rows // tokens, tokens, width, each, block, cols)
        ctx.grid = (seeds * rows // tokens, heads)
        _attention_forward[ctx.grid](qkv, bias, z, *ctx.shape, num_warps=4)
        ctx.save_for_backward(qkv, bias)
        return z

    @staticmethod
    def backward(ctx, dz):
        qkv, bias = ctx.saved_tensors
        dqkv = torch.empty_like(qkv)
        _attention_backward[ctx.grid](qkv, bias, dz.contiguous(), dqkv, *ctx.shape, num_warps=4)
        return dqkv, dqkv.sum(1, dtype=torch.float32) if ctx.needs_input_grad[1] else None, None, None


def attention(qkv, bias, tokens, heads):
    """Causal attention inside each run of `tokens` rows (at most 64), straight from and to the products' layout.

    On a GPU, products of fp32 factors are tf32 (10 bits of mantissa), summed in fp32.
    """
    assert tokens <= MOST_TOKENS, f"the kernel holds at most {MOST_TOKENS} tokens, not {tokens}"
    assert qkv.shape[1] % tokens == 0, f"{qkv.shape[1]} rows are no whole number of runs of {tokens} tokens"
    return _Attention.apply(qkv, bias, tokens, heads)


@triton.jit
def _adamw(
    FLAT, GRAD, FIRST, SECOND, RATE, SCALE, OK, CORRECTION1, CORRECTION2, FACTOR, P, rate_stride,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, DECAY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    seed = tl.program_id(1).to(tl.int64)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = seed * P + col
    live = (col < P) & tl.load(OK + seed)
    rate = tl.load(RATE + seed * rate_stride)
    if FACTOR is not None:
        rate = rate * tl.load(FACTOR + col, mask=live, other=0.0)
    g = tl.load(GRAD + at, mask=live, other=0.0) * tl.load(SCALE + seed)
    m = BETA1 * tl.load(FIRST + at, mask=live, other=0.0) + (1 - BETA1) * g
    v = BETA2 * tl.load(SECOND + at, mask=live, other=0.0) + (1 - BETA2) * g * g
    p = tl.load(FLAT + at, mask=live, other=0.0) * (1 - rate * DECAY)
    p -= rate * (m / tl.load(CORRECTION1)) / (tl.sqrt(v / tl.load(CORRECTION2)) + EPS)
    tl.store(FLAT + at, p, mask=live)
    tl.store(FIRST + at, m, mask=live)
    tl.store(SECOND + at, v, mask=live)


def adamw(flat, grad, m, v, rate, scale, ok, correction1, correction2, factor, betas, eps, decay):
    """One AdamW update in place, as in `ops.py`; all that changes from update to update is read on the device."""
    assert all(t.is_contiguous() for t in (flat, grad, m, v)), "flat, grad, m and v must be contiguous"
    (seeds, size), block = flat.shape, 1024
    _adamw[(triton.cdiv(size, block), seeds)](
        flat, grad, m, v, rate, scale, ok, correction1, correction2, factor, size, rate.expand(seeds).stride(0),
        *betas, eps, decay, block, num_warps=4,
    )  # fmt: skip
