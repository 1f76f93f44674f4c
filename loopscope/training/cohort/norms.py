"""Residual and LayerNorm as one Triton kernel a direction, and the two norms at the border of two calls as one.

Bound by memory, so the stream is touched once: what a sublayer added is added here, just before it is normalised.
Where F ends with a norm, the next call begins with another of the same rows; `close` does both at once.
"""

# Triton's language is untyped, and triton is there only where a GPU is.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from loopscope.training.cohort.collect import collect


@triton.jit
def _statistics(x, STATS, at, live, D: tl.constexpr):
    """(x without its mean, 1 / its standard deviation); both statistics are kept."""
    mean = tl.sum(x, 1) / D
    x = x - mean[:, None]
    rstd = tl.rsqrt(tl.sum(x * x, 1) / D + 1e-5)
    tl.store(STATS + at * 2, mean, mask=live)
    tl.store(STATS + at * 2 + 1, rstd, mask=live)
    return x, rstd[:, None]


@triton.jit
def _forward(
    X, Y, BIAS, GAIN0, SHIFT0, GAIN, SHIFT, SUM, OUT, N, STATS0, STATS, stride, M, D: tl.constexpr, R: tl.constexpr
):
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
    if SUM is not None:
        tl.store(SUM + at, x, mask=live)
    if GAIN0 is not None:
        unit, rstd = _statistics(x, STATS0, seed * M + row, row < M, D)
        x = unit * rstd * tl.load(GAIN0 + own + col)[None, :] + tl.load(SHIFT0 + own + col)[None, :]
        tl.store(OUT + at, x, mask=live)
    unit, rstd = _statistics(x, STATS, seed * M + row, row < M, D)
    n = unit * rstd * tl.load(GAIN + own + col)[None, :] + tl.load(SHIFT + own + col)[None, :]
    tl.store(N + at, n.to(N.dtype.element_ty), mask=live)


@triton.jit
def _through(d, unit, gain, rstd, D: tl.constexpr):
    """The gradient before a norm from the one after it."""
    g = d * gain
    return rstd * (g - tl.sum(g, 1)[:, None] / D - unit * (tl.sum(g * unit, 1)[:, None] / D))


@triton.jit
def _backward(
    SUM, OUT, STATS0, STATS, GAIN0, GAIN, DOUT, DN, DX, DY, PART, stride, M,
    KINDS: tl.constexpr, D: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    seed = tl.program_id(1).to(tl.int64)
    col = tl.arange(0, D)
    gain = tl.load(GAIN + seed * stride + col)[None, :]
    dgain = tl.zeros((R, D), tl.float32)  # summed over rows once, at the end: a sum across warps is slow
    dshift = tl.zeros((R, D), tl.float32)
    dbias = tl.zeros((R, D), tl.float32)
    dgain0 = tl.zeros((R, D), tl.float32)
    dshift0 = tl.zeros((R, D), tl.float32)
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
        dx = _through(dn, unit, gain, rstd, D)
        if DOUT is not None:
            dx += tl.load(DOUT + at, mask=live, other=0.0)
        if GAIN0 is not None:
            mean0 = tl.load(STATS0 + (seed * M + row) * 2, mask=row < M, other=0.0)[:, None]
            rstd0 = tl.load(STATS0 + (seed * M + row) * 2 + 1, mask=row < M, other=0.0)[:, None]
            unit0 = (tl.load(SUM + at, mask=live, other=0.0) - mean0) * rstd0
            dgain0 += tl.where(live, dx * unit0, 0.0)
            dshift0 += tl.where(live, dx, 0.0)
            dx = _through(dx, unit0, tl.load(GAIN0 + seed * stride + col)[None, :], rstd0, D)
        dbias += tl.where(live, dx, 0.0)
        tl.store(DX + at, dx, mask=live)
        if DY is not None:
            tl.store(DY + at, dx.to(DY.dtype.element_ty), mask=live)
    if PART is not None:  # else the sums are not used, and the compiler drops them
        place = PART + (seed * tl.num_programs(0) + tl.program_id(0)) * KINDS * D + col
        tl.store(place, tl.sum(dgain, 0))
        tl.store(place + D, tl.sum(dshift, 0))
        tl.store(place + 2 * D, tl.sum(dbias, 0))
        if GAIN0 is not None:
            tl.store(place + 3 * D, tl.sum(dgain0, 0))
            tl.store(place + 4 * D, tl.sum(dshift0, 0))


def stride_of(*weights):
    """How far apart the seeds of these weights lie; as parts of one array they lie equally far apart."""
    strides = {weight.stride(0) for weight in weights if weight is not None}
    assert len(strides) == 1, f"weights of one operation must lie equally far apart, not {sorted(strides)}"
    assert all(weight is None or weight.stride(-1) == 1 for weight in weights)
    return strides.pop()


def steps_of(rows, seeds, per):
    """How many blocks of rows one program goes through: enough programs first, then few partial sums."""
    return max(1, min(8, triton.next_power_of_2(rows * seeds // (per * 1024) + 1) // 2))


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, bias, gain0, shift0, gain, shift, low, sinks):
        seeds, rows, width = x.shape
        x, y = (None if t is None else t.contiguous() for t in (x, y))
        total = x if y is None and bias is None else torch.empty_like(x)
        out = total if gain0 is None else torch.empty_like(x)
        n = torch.empty_like(x, dtype=low)
        stats0, stats = (None if g is None else x.new_empty(seeds, rows, 2) for g in (gain0, gain))
        ctx.stride = stride_of(bias, gain0, shift0, gain, shift)
        _forward[(triton.cdiv(rows, 8), seeds)](
            x, y, bias, gain0, shift0, gain, shift, None if total is x else total, out, n, stats0, stats, ctx.stride,
            rows, width, 8, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(total, out, stats0, stats, gain0, gain)
        ctx.y_dtype, ctx.sinks = None if y is None else y.dtype, sinks
        ctx.set_materialize_grads(False)
        return out, n

    @staticmethod
    def backward(ctx, dout, dn):
        needs_y, rest = ctx.needs_input_grad[1], (None,) * 7
        total, out, stats0, stats, gain0, gain = ctx.saved_tensors
        if dn is None:  # the norm was not used: what is left is a plain sum
            assert gain0 is None, "where two norms are one, the second must be used"
            if dout is None:
                return (None, None, *rest)
            if ctx.sinks[2] is not None:
                collect(dout.contiguous()[:, :, None], [ctx.sinks[2]])
            return (dout, dout.to(ctx.y_dtype) if needs_y else None, *rest)
        seeds, rows, width = out.shape
        per, steps = 8, steps_of(rows, seeds, 8)
        grid = (triton.cdiv(rows, per * steps), seeds)
        dx = torch.empty_like(out)
        # One array could serve x and y, but not where a second stream may read y's while x's is changed (`hand_in`).
        beside = any(sink is not None and sink.side is not None for sink in ctx.sinks)
        apart = needs_y and (beside or ctx.y_dtype != dx.dtype)
        dy = torch.empty_like(out, dtype=ctx.y_dtype) if apart else None
        sums, kinds = any(sink is not None for sink in ctx.sinks), 3 if gain0 is None else 5
        part = out.new_empty(seeds, grid[0], kinds, width) if sums else None
        dout, dn = None if dout is None else dout.contiguous(), dn.contiguous()
        _backward[grid](
            total, out, stats0, stats, gain0, gain, dout, dn, dx, dy, part, ctx.stride, rows, kinds, width, per, steps,
            num_warps=2,
        )  # fmt: skip
        if sums:
            collect(part, ctx.sinks[:kinds])
        return (dx, dy if apart or not needs_y else dx, *rest)


def add_norm(x, y, bias, gain, shift, low, close=None):
    """(h, its LayerNorm in dtype `low`): h = x + y + bias, or the norm `close` = (gain, shift) of that.

    fp32 stream x, y in either dtype; y and bias may be None.
    """
    width = x.shape[-1]
    assert width & (width - 1) == 0, f"the kernel normalises widths that are a power of two, not {width}"
    gain0, shift0 = close or (None, None)
    weights = (bias, gain0, shift0, gain, shift)
    sinks = tuple(None if weight is None else weight.sink for weight in (gain, shift, bias, gain0, shift0))
    return _AddNorm.apply(x, y, *(None if weight is None else weight.value for weight in weights), low, sinks)
