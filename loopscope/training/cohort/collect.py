"""Where gradients of shared weights go: sums and products added to their sinks, in a fixed order."""

# Triton's language is untyped, and triton is there only where a GPU is.
# mypy: ignore-errors

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl


def _beside(side, *tensors):
    return nullcontext() if side is None else side.take(*tensors)


def collect_product(sink, a, b):
    """sink += a b for each seed, in fp32 whatever the dtype of a and b."""
    with _beside(sink.side, a, b):
        if a.dtype == torch.float32 or not a.is_cuda:
            sink.total.baddbmm_(a.float(), b.float())
        else:
            torch.baddbmm(sink.total, a, b, out_dtype=torch.float32, out=sink.total)


@triton.jit
def _collect(
    PART,
    SINK0,
    SINK1,
    SINK2,
    SINK3,
    SINK4,
    stride,
    N,
    KINDS: tl.constexpr,
    D: tl.constexpr,
    STEPS: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seed, kind = tl.program_id(1).to(tl.int64), tl.program_id(2)
    total = tl.zeros((R, BLOCK), tl.float32)
    for step in range(STEPS):
        row = step * R + tl.arange(0, R)
        at = ((seed * N + row) * KINDS + kind)[:, None] * D + col[None, :]
        live = (row < N)[:, None] & (col < D)[None, :]
        total += tl.load(PART + at, mask=live, other=0.0).to(tl.float32)
    own = seed * stride + col
    more = tl.sum(total, 0)
    # Two conditions each: the compiler decides the first, the program the second.
    if SINK0 is not None:  # noqa: SIM102
        if kind == 0:
            tl.store(SINK0 + own, tl.load(SINK0 + own, mask=col < D) + more, mask=col < D)
    if SINK1 is not None:  # noqa: SIM102
        if kind == 1:
            tl.store(SINK1 + own, tl.load(SINK1 + own, mask=col < D) + more, mask=col < D)
    if SINK2 is not None:  # noqa: SIM102
        if kind == 2:
            tl.store(SINK2 + own, tl.load(SINK2 + own, mask=col < D) + more, mask=col < D)
    if SINK3 is not None:  # noqa: SIM102
        if kind == 3:
            tl.store(SINK3 + own, tl.load(SINK3 + own, mask=col < D) + more, mask=col < D)
    if SINK4 is not None:  # noqa: SIM102
        if kind == 4:
            tl.store(SINK4 + own, tl.load(SINK4 + own, mask=col < D) + more, mask=col < D)


def collect(part, sinks):
    """sinks[k] += sum of part [S, N, K, D] over N, for up to five sinks of [S, D], of which some may be None."""
    seeds, rows, kinds, width = part.shape
    side = next(sink.side for sink in sinks if sink is not None)
    totals = [None if sink is None else sink.total for sink in (*sinks, *(None,) * 5)[:5]]
    strides = {total.stride(0) for total in totals if total is not None}
    assert len(strides) == 1, f"sinks must lie equally far apart, not {sorted(strides)}"
    grid = (triton.cdiv(width, 32), seeds, kinds)
    with _beside(side, part):
        steps = triton.next_power_of_2(triton.cdiv(rows, 64))  # so that few variants are compiled
        _collect[grid](part.contiguous(), *totals, strides.pop(), rows, kinds, width, steps, 64, 32, num_warps=4)
