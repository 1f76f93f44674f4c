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

from loopscope.training.cohort.attention import answer_attention as answer_attention
from loopscope.training.cohort.collect import collect, collect_product
from loopscope.training.cohort.long_attention import attention as attention
from loopscope.training.cohort.norms import add_norm as add_norm
from loopscope.training.cohort.norms import steps_of, stride_of
from loopscope.training.cohort.shared import shared_answer_attention as shared_answer_attention
from loopscope.training.cohort.shared import shared_attention as shared_attention


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
        _gelu_forward[grid](x, bias, h, stride_of(bias), rows, wide, tanh, ctx.block, 16, num_warps=4)
        ctx.save_for_backward(x, bias)
        return h

    @staticmethod
    def backward(ctx, dh):
        x, bias = ctx.saved_tensors
        seeds, rows, wide = x.shape
        dx, dh = torch.empty_like(x), dh.contiguous()
        steps = steps_of(rows, seeds * wide // ctx.block, 16)
        grid = (triton.cdiv(rows, 16 * steps), wide // ctx.block, seeds)
        part = None if ctx.sink is None else bias.new_empty(seeds, grid[0], 1, wide)
        _gelu_backward[grid](
            x, bias, dh, dx, part, stride_of(bias), rows, wide, ctx.tanh, ctx.block, 16, steps, num_warps=4
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


@triton.jit
def _mix(
    X, OUT, N, P0: tl.constexpr, F0: tl.constexpr, P1: tl.constexpr, F1: tl.constexpr, P2: tl.constexpr,
    F2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < N, other=0)
    # A shift of int64 keeps the sign, so the bits that came in are masked out.
    x = (x ^ ((x >> P0) & ((1 << (64 - P0)) - 1))) * F0
    x = (x ^ ((x >> P1) & ((1 << (64 - P1)) - 1))) * F1
    x = (x ^ ((x >> P2) & ((1 << (64 - P2)) - 1))) * F2
    tl.store(OUT + at, x, mask=at < N)


def mix(x, rounds):
    """The three rounds of the hash of `streams.bits` on int64 numbers of any shape, in one pass instead of a dozen."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _mix[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), *(n for pair in rounds for n in pair), 1024, num_warps=4)
    return out
