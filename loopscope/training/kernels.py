"""The operations of `ops.py` for a GPU: Triton kernels with their gradients, for fp32 and 16-bit products.

Why own kernels: LayerNorm, residual and GELU are bound by memory, so each should touch the stream once.  Products go to
cuBLAS.  Gradients of weights are added to their sinks as they come (see `ops.Weight`).  Sums over rows (gradients of
gains, shifts and biases) are formed in two fixed stages, never by atomics, so that a run can be repeated bit for bit.
What a frozen weight or an unused output does not need is not computed: switches that the compiler sees leave it out.
"""

# Triton's language is untyped, and triton is there only where a GPU is.
# mypy: ignore-errors

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from loopscope.training.attention import answer_attention as answer_attention
from loopscope.training.attention import attention as attention
from loopscope.training.collect import collect, collect_product
from loopscope.training.shared import shared_answer_attention as shared_answer_attention
from loopscope.training.shared import shared_attention as shared_attention


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
    """x W'; keeps and computes only what the wanted gradients need."""

    @staticmethod
    def forward(ctx, x, low, sink):
        ctx.sink = sink
        ctx.save_for_backward(None if sink is None else x, low if ctx.needs_input_grad[0] else None)
        return torch.bmm(x, low.transpose(1, 2))

    @staticmethod
    def backward(ctx, dy):
        x, low = ctx.saved_tensors
        if x is not None:
            collect_product(ctx.sink, dy.transpose(1, 2), x)
        return None if low is None else torch.bmm(dy, low), None, None


def linear(x, W):
    """x W'; `W.low` is in the dtype of x."""
    return _Linear.apply(x, W.low, W.sink)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, bias, sink):
        ctx.sink, ctx.y_dtype = sink, None if y is None else y.dtype
        total = x if y is None else x + y
        return (total if bias is None else total + bias[:, None]).to(x.dtype)

    @staticmethod
    def backward(ctx, dh):
        if ctx.sink is not None:
            collect(dh[:, :, None], [ctx.sink])
        return dh, dh.to(ctx.y_dtype) if ctx.needs_input_grad[1] else None, None, None


def add(x, y, bias):
    """x + y + bias, in the dtype of x.  Made for a few rows: it touches the stream more than once."""
    if y is None and bias is None:
        return x
    return _Add.apply(x, y, None if bias is None else bias.value, None if bias is None else bias.sink)


class _LastRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n, last):
        ctx.last, ctx.shape = last, x.shape
        return *(part[:, last].contiguous() for part in (x, n)), n.view_as(n)

    @staticmethod
    def backward(ctx, dx, dn, dn_all):
        whole = dx.new_zeros(ctx.shape)
        whole[:, ctx.last] = dx
        dn_all[:, ctx.last] += dn  # fresh from the product that used all rows; no one else has it
        return whole, dn_all, None


def last_rows(x, n, last):
    """(x at the examples' last rows, n there, n everywhere); the third is for one product alone."""
    return _LastRows.apply(x, n, last)


@triton.jit
def _move(FROM, TO, MINE, T, from_rows, to_rows, D: tl.constexpr, BLOCK: tl.constexpr):
    example, seed = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if tl.load(MINE + seed * tl.num_programs(0) + example):
        row, col = tl.arange(0, BLOCK), tl.arange(0, D)
        at = (example * T + row)[:, None] * D + col[None, :]
        live = (row < T)[:, None]
        tl.store(TO + seed * to_rows * D + at, tl.load(FROM + seed * from_rows * D + at, mask=live), mask=live)


def _moved(source, target, mine, tokens):
    """Rows of the examples that are `mine`, from one array [S, rows, d] to the same places in another."""
    seeds, examples = mine.shape
    block = triton.next_power_of_2(tokens)
    _move[(examples, seeds)](
        source, target, mine, tokens, source.shape[1], target.shape[1], source.shape[2], block, num_warps=4
    )  # fmt: skip
    return target


class _HandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, out, mine, tokens):
        ctx.mark_dirty(out)
        ctx.tokens, ctx.shape = tokens, h.shape
        ctx.save_for_backward(mine)
        ctx.set_materialize_grads(False)
        return h.view_as(h), _moved(h.contiguous(), out, mine, tokens)

    @staticmethod
    def backward(ctx, dh, dout):
        (mine,) = ctx.saved_tensors
        # What comes after a row was handed in is not read, so its gradient is replaced, not added to.
        dh = dout.new_zeros(ctx.shape) if dh is None else dh.contiguous()
        return _moved(dout.contiguous(), dh, mine, ctx.tokens), dout, None, None


def hand_in(h, out, mine, tokens):
    """(h, out with the rows of those examples that are `mine` taken from h), `out` changed in place.

    Only for rows that are not read again later; h must go on to one operation alone, whose gradient is used up here.
    """
    return _HandIn.apply(h, out, mine.contiguous(), tokens)


@triton.jit
def _add_norm_forward(X, Y, BIAS, GAIN, SHIFT, OUT, N, STATS, stride, M, D: tl.constexpr, R: tl.constexpr):
    seed = tl.program_id(1).to(tl.int64)
    own = seed * stride
    row = tl.program_id(0) * R + tl.arange(0, R)
    col = tl.arange(0, D)
    at = (seed * M + row)[:, None] * D + col[None, :]
    live = (row < M)[:, None]
    x = tl.load(X + at, mask=live, other=0.0)
    if Y is not None:
        x += tl.load(Y + at, mask=live, other=0.0).to(tl.float32)
    if BIAS is not None:
        x += tl.load(BIAS + own + col)[None, :]
    if OUT is not None:
        tl.store(OUT + at, x, mask=live)
    mean = tl.sum(x, 1) / D
    x = x - mean[:, None]
    rstd = tl.rsqrt(tl.sum(x * x, 1) / D + 1e-5)
    tl.store(STATS + (seed * M + row) * 2, mean, mask=row < M)
    tl.store(STATS + (seed * M + row) * 2 + 1, rstd, mask=row < M)
    n = x * rstd[:, None] * tl.load(GAIN + own + col)[None, :] + tl.load(SHIFT + own + col)[None, :]
    tl.store(N + at, n.to(N.dtype.element_ty), mask=live)


@triton.jit
def _add_norm_backward(
    OUT, STATS, GAIN, DOUT, DN, DX, DY, PART, stride, M, D: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr
):
    seed = tl.program_id(1).to(tl.int64)
    col = tl.arange(0, D)
    gain = tl.load(GAIN + seed * stride + col)[None, :]
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


def _stride(*weights):
    """How far apart the seeds of these weights lie; as parts of one array they lie equally far apart."""
    strides = {weight.stride(0) for weight in weights if weight is not None}
    assert len(strides) == 1, f"weights of one operation must lie equally far apart, not {sorted(strides)}"
    assert all(weight is None or weight.stride(-1) == 1 for weight in weights)
    return strides.pop()


def _steps(rows, seeds, per):
    """How many blocks of rows one program goes through: enough programs first, then few partial sums."""
    return max(1, min(8, triton.next_power_of_2(rows * seeds // (per * 1024) + 1) // 2))


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, bias, gain, shift, low, sinks):
        seeds, rows, width = x.shape
        x, y = (None if t is None else t.contiguous() for t in (x, y))
        out = None if y is None and bias is None else torch.empty_like(x)
        n, stats = torch.empty_like(x, dtype=low), x.new_empty(seeds, rows, 2)
        ctx.stride = _stride(bias, gain, shift)
        grid = (triton.cdiv(rows, 8), seeds)
        _add_norm_forward[grid](x, y, bias, gain, shift, out, n, stats, ctx.stride, rows, width, 8, num_warps=4)
        out = x if out is None else out  # nothing was added: the stream goes on as it is
        ctx.save_for_backward(out, stats, gain)
        ctx.y_dtype, ctx.sinks = None if y is None else y.dtype, sinks
        ctx.set_materialize_grads(False)
        return out, n

    @staticmethod
    def backward(ctx, dout, dn):
        needs_y, rest = ctx.needs_input_grad[1], (None,) * 5
        if dn is None:  # the norm was not used: what is left is a plain sum
            if dout is None:
                return (None, None, *rest)
            if ctx.sinks[2] is not None:
                collect(dout.contiguous()[:, :, None], [ctx.sinks[2]])
            return (dout, dout.to(ctx.y_dtype) if needs_y else None, *rest)
        out, stats, gain = ctx.saved_tensors
        seeds, rows, width = out.shape
        per, steps = 8, _steps(rows, seeds, 8)
        grid = (triton.cdiv(rows, per * steps), seeds)
        dx = torch.empty_like(out)
        lower = needs_y and ctx.y_dtype != dx.dtype  # else dx serves y as well
        dy = torch.empty_like(out, dtype=ctx.y_dtype) if lower else None
        sums = any(sink is not None for sink in ctx.sinks)
        part = out.new_empty(seeds, grid[0], 3, width) if sums else None
        dout, dn = None if dout is None else dout.contiguous(), dn.contiguous()
        _add_norm_backward[grid](
            out, stats, gain, dout, dn, dx, dy, part, ctx.stride, rows, width, per, steps, num_warps=2
        )  # fmt: skip
        if sums:
            collect(part, ctx.sinks)
        return (dx, dy if lower or not needs_y else dx, *rest)


def add_norm(x, y, bias, gain, shift, low):
    """(x + y + bias, its LayerNorm in dtype `low`): fp32 stream x, y in either dtype; y and bias may be None."""
    width = x.shape[-1]
    assert width & (width - 1) == 0, f"the kernel normalises widths that are a power of two, not {width}"
    sinks = (gain.sink, shift.sink, None if bias is None else bias.sink)
    return _AddNorm.apply(x, y, None if bias is None else bias.value, gain.value, shift.value, low, sinks)


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
def _gelu_forward(X, BIAS, H, stride, M, F: tl.constexpr, TANH: tl.constexpr, BF: tl.constexpr, R: tl.constexpr):
    seed = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * R + tl.arange(0, R)
    col = tl.program_id(1) * BF + tl.arange(0, BF)
    at = (seed * M + row)[:, None] * F + col[None, :]
    live = (row < M)[:, None]
    x = tl.load(X + at, mask=live, other=0.0).to(tl.float32) + tl.load(BIAS + seed * stride + col)[None, :]
    gate, _ = _gate(x, TANH)
    tl.store(H + at, (x * gate).to(H.dtype.element_ty), mask=live)


@triton.jit
def _gelu_backward(
    X,
    BIAS,
    DH,
    DX,
    PART,
    stride,
    M,
    F: tl.constexpr,
    TANH: tl.constexpr,
    BF: tl.constexpr,
    R: tl.constexpr,
    STEPS: tl.constexpr,
):
    seed = tl.program_id(2).to(tl.int64)
    col = tl.program_id(1) * BF + tl.arange(0, BF)
    bias = tl.load(BIAS + seed * stride + col)[None, :]
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
    def forward(ctx, x, bias, tanh, sink):
        seeds, rows, wide = x.shape
        x = x.contiguous()
        h = torch.empty_like(x)
        ctx.tanh, ctx.block, ctx.sink = tanh, math.gcd(wide, 256), sink  # columns per program: a power of two
        grid = (triton.cdiv(rows, 16), wide // ctx.block, seeds)
        _gelu_forward[grid](x, bias, h, _stride(bias), rows, wide, tanh, ctx.block, 16, num_warps=4)
        ctx.save_for_backward(x, bias)
        return h

    @staticmethod
    def backward(ctx, dh):
        x, bias = ctx.saved_tensors
        seeds, rows, wide = x.shape
        dx, dh = torch.empty_like(x), dh.contiguous()
        steps = _steps(rows, seeds * wide // ctx.block, 16)
        grid = (triton.cdiv(rows, 16 * steps), wide // ctx.block, seeds)
        part = None if ctx.sink is None else bias.new_empty(seeds, grid[0], 1, wide)
        _gelu_backward[grid](
            x, bias, dh, dx, part, _stride(bias), rows, wide, ctx.tanh, ctx.block, 16, steps, num_warps=4
        )  # fmt: skip
        if part is not None:
            collect(part, [ctx.sink])
        return dx, None, None, None


def gelu(x, bias, form):
    """GELU(x + bias); `form` is torch's name, "none" (erf) or "tanh"."""
    assert form in ("none", "tanh"), f"GELU has the forms none and tanh, not {form}"
    return _Gelu.apply(x, bias.value, form == "tanh", bias.sink)


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
