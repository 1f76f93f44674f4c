"""Does a call draw neighbouring states together?  The Jacobian of F at the states of a run, by products alone.

    contraction(model, tokens)        its largest singular value before every call

J is the derivative of h_t by h_{t-1}, of all rows by all rows.  Its largest singular value is how far a call can carry
apart two states that are close; where it is below 1, they come closer whatever their direction.  It is found by power
iteration: v becomes J'(J v) over its length, where J v is a forward-mode product and J' u a reverse-mode one.  No
matrix is formed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from loopscope.bounds import whole
from loopscope.errors import InputError
from loopscope.estimates import DRAWS, means
from loopscope.execute.unequal import Texts
from loopscope.measure.streaming import NUMBER, Examples, Inputs, Part, about, on, states_at
from loopscope.models.passes import one_pass
from loopscope.program import Call, Program, ProgramLike
from loopscope.protocol import LoopedModel
from loopscope.table import Table

ITERATIONS = 30
"""Products J'(J v), where nothing else is asked for."""

INSIDE = 40
"""States' worth of numbers that the products of one layer hold, roughly."""


def contraction(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None = None,
    *,
    iterations: int = ITERATIONS,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """The largest singular value of the Jacobian of every call, at the state before it: a row for every loop.

    - `singular`: its mean over examples.  Power iteration comes from below, so that it is at least that;
    - `change`: by how much, as a share, the last iteration still moved it; small where it has settled;
    - `below`: the share of examples in which it is below 1.

    The direction that it starts from is drawn from `seed`.  All else as `trajectories`; InputError for a program with
    patches, as those of a call would be part of its derivative.
    """
    whole("iterations", iterations, 2, 10_000)
    examples = Examples(model, tokens, program, (-1,), inputs)
    asked = examples.program
    if asked != asked.skeleton:
        raise InputError(
            f"'{asked}' has patches, and the Jacobian is that of a call without (nearest: {asked.skeleton})"
        )
    calls = {asked.loop_of(i): i for i, step in enumerate(asked.steps) if isinstance(step, Call)}
    if not calls:
        raise InputError(f"'{asked}' calls F nowhere, so there is no Jacobian")
    values = np.full((len(examples), len(calls), 2), np.nan)
    size = NUMBER * examples.pieces.state_width * max(examples.lengths) * (len(calls) + INSIDE * model.heads)
    for part in examples.parts(size, memory):
        length = examples.lengths[part["at"][0]]
        points = {loop: asked.points[index] for loop, index in calls.items()}
        states, _ = states_at(examples, part, dict.fromkeys(points.values()), rows=tuple(range(length)))
        for number, (loop, index) in enumerate(calls.items()):
            step = Program((asked.steps[index],), start=loop - 1)
            last, before = _largest(examples, part, step, states[points[loop]], iterations, seed)
            values[part["at"], number] = torch.stack([last, (last - before).abs() / last], -1).double().cpu().numpy()
    columns: dict[str, Any] = {"loop": list(calls)}
    for name, each in (("singular", values[..., 0]), ("below", values[..., 0] < 1), ("change", values[..., 1])):
        made = means(each, clusters=clusters, seed=seed, draws=draws, share=name == "below")
        columns |= {name: made, "n": made.n}
    columns["n"] = columns.pop("n")
    return Table("contraction", columns, {**about(examples), "iterations": iterations})


def _largest(
    examples: Examples, part: Part, step: Program, state: Float[Tensor, "B T s"], iterations: int, seed: int
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """The largest singular value of each example by the last iteration, and by the one before."""
    tokens = None if part["tokens"] is None else on(examples.model, part["tokens"])
    end = step.points[-1]

    def call(h: Tensor) -> Tensor:
        found: Tensor = one_pass(examples.model, tokens, step, state=h).states[end]
        return found

    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(state.shape[1:], generator=generator, dtype=torch.float64)
    v = _unit(on(examples.model, drawn).to(state).expand_as(state))
    sizes: list[Tensor] = []
    # Fused attention has no forward-mode products, and the watch of a pass without gradients would wait for each.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        transposed = torch.func.vjp(call, state)[1]
        for _ in range(iterations):
            moved = _product(call, state, v)
            sizes.append(moved.flatten(1).norm(dim=1))
            v = _unit(transposed(moved)[0].detach())
    return sizes[-1], sizes[-2]


def _product(call: Callable[[Tensor], Tensor], state: Tensor, v: Tensor) -> Tensor:
    """J v."""
    with warnings.catch_warnings():  # torch's own, when it first loads its rules for forward mode
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        found: Tensor = torch.func.jvp(call, (state,), (v,))[1]
    return found.detach()


def _unit(v: Float[Tensor, "B T s"]) -> Float[Tensor, "B T s"]:
    return v / v.flatten(1).norm(dim=1).clamp(min=torch.finfo(v.dtype).tiny)[:, None, None]
