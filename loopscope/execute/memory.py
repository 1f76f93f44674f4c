"""How much is computed at a time, so that it fits the memory."""

from __future__ import annotations

import torch

from loopscope.execute.plan import Plan
from loopscope.protocol import LoopedModel

CPU_BUDGET = 256 * 2**20
"""Bytes of activations held at a time on a CPU.  Small: large blocks cost more in page faults than they save."""

NUMBER = 4
"""Bytes of a number in fp32, the widest that states usually have."""


def sizes_in_memory(
    plan: Plan, model: LoopedModel, device: torch.device, examples: int, chunk: int | None, stack: int | None
) -> tuple[int, int]:
    """(examples at a time, patched runs at a time) that stay inside the memory budget, where they are not given.

    Estimated: what is held for one example (base rows that patched runs need, captured components, states of patched
    runs), and what one layer takes on the way.
    """
    budget = CPU_BUDGET if device.type == "cpu" else torch.cuda.mem_get_info(device)[0] // 2
    width, length, heads = model.width, plan.sizes.rows, plan.sizes.heads
    inner = heads * model.head_size  # all heads of a query, key or value
    widest = max(width, inner, heads * length)
    row = NUMBER * (11 * width + 3 * inner + heads * length)  # one row inside a layer: MLP, q, k, v, scores
    held = max(len(base.inputs) for base in plan.base_runs) * length * row
    for base in plan.base_runs:
        for need in base.layers:
            needed = width * len(need.base_entering_needed) + 2 * inner * len(need.base_keys_needed)
            captured = widest * sum(map(len, need.captured.values()))
            held += NUMBER * len(base.inputs) * (needed + captured)
    states: dict[int, int] = {}  # by loop: two states of every patched run, before and after the call
    entering: list[int] = []
    for patched in plan.patched_runs:
        loop = patched.base.loop
        states[loop] = states.get(loop, 0) + 2 * NUMBER * width * len(patched.need)
        for need in patched.layers:
            held += NUMBER * widest * sum(map(len, need.captured.values()))
            entering.append(len(need.entering))
    held += max(states.values(), default=0)
    chunk = chunk or max(1, min(examples, budget // held))
    most_rows = max(entering, default=1)
    return chunk, stack or max(1, budget // (chunk * max(1, most_rows * row)))
