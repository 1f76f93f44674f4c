"""What a program means, computed the plain way: one full run, every row of every layer, nothing shared.

This is the definition that `execute.run` must agree with, and the baseline it is measured against.  It is how
hook-based tools work: a full forward for every patched run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from loopscope.address import PER_HEAD
from loopscope.model import attention_pattern, causal
from loopscope.program import Call, Given, Patch, Program, Run
from loopscope.protocol import LoopedModel, TokenMap


@dataclass
class PlainRun:
    """Everything a plain run saw: the state at every point, and every component by (loop, layer, component)."""

    states: dict[str, Float[Tensor, "B T d"]] = field(default_factory=dict)
    components: dict[tuple[int, int, str], Tensor] = field(default_factory=dict)


@torch.no_grad()
def plain_run(
    model: LoopedModel,
    inputs: Mapping[str, Tensor],
    program: Program,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    given: Mapping[str, Tensor] | None = None,
    name: str = "main",
    memo: dict[tuple[Program, str], PlainRun] | None = None,
) -> PlainRun:
    """Run `program` on `inputs[name]`: tokens [B, T], or a state [B, T, d] for a program that starts from one.

    `memo` keeps finished runs, so that a source used by many patched runs is computed once.
    """
    memo = {} if memo is None else memo
    if (program, name) in memo:
        return memo[program, name]
    maps, given = maps or {}, given or {}
    seen = PlainRun()
    x = model.embed(inputs[name]) if program.start is None else inputs[name]
    seen.states[program.points[0]] = x
    rows = torch.arange(x.shape[1], device=x.device)

    def value(patch: Patch, loop: int) -> Tensor:
        source = patch.source
        if isinstance(source, Given):
            return given[source.name]
        giver_name = name if source.input is None else source.input
        giver = plain_run(model, inputs, source.program, maps=maps, given=given, name=giver_name, memo=memo)
        return giver.components[loop if source.loop is None else source.loop, patch.site.layer, patch.site.component]

    for index, step in enumerate(program.steps):
        if not isinstance(step, Call):
            x = maps[step.name](x)
        else:
            loop = program.loop_of(index)

            def put(number: int, component: str, tensor: Tensor, step: Call = step, loop: int = loop) -> Tensor:
                """The component after its patches, captured."""
                for patch in step.patches:
                    if (patch.site.layer, patch.site.component) == (number, component):
                        tensor = replaced(tensor, patch, value(patch, loop), model.heads)
                seen.components[loop, number, component] = tensor
                return tensor

            for number, layer in enumerate(model.layers, start=1):
                x = put(number, "resid", x)
                q, k, v = (put(number, c, part) for c, part in zip("qkv", layer.project(x, rows, "qkv"), strict=True))
                alpha = put(number, "pattern", attention_pattern(q, k, layer.scale, causal(rows, rows)))
                z = put(number, "z", alpha @ v)
                x = x + put(number, "attn_out", layer.attn_out(z))
                x = x + put(number, "mlp_out", layer.mlp_out(x))
            x = model.close(x)
        seen.states[program.points[index + 1]] = x
    memo[program, name] = seen
    return seen


def replaced(tensor: Tensor, patch: Patch, value: Tensor, heads: int) -> Tensor:
    """`tensor` [B, (H,) T, ...] with the patched heads and rows taken from `value`.

    A value from a run has the tensor's own shape; a given one broadcasts to the patched slice.
    """
    site = patch.site.resolve(layers=patch.site.layer, heads=heads, rows=tensor.shape[-2])
    rows = torch.tensor(site.rows, device=tensor.device)
    tensor = tensor.clone()
    where: tuple[slice | Tensor, ...] = (slice(None), rows)
    if site.component in PER_HEAD:
        where = (slice(None), torch.tensor(site.heads, device=tensor.device)[:, None], rows)
    tensor[where] = value[where] if isinstance(patch.source, Run) else value.expand_as(tensor[where])
    return tensor
