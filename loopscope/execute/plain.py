"""What a program means, computed the plain way: one full run, every row of every layer, nothing shared.

This is the definition that `execute.run` must agree with, and the baseline it is measured against.  It is how
hook-based tools work: a full forward for every patched run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from loopscope.address import PER_HEAD
from loopscope.errors import InputError
from loopscope.execute.changing import changed
from loopscope.model import attention_pattern
from loopscope.pieces import LayerPieces, pieces_of
from loopscope.program import Call, Given, Patch, Program, ProgramLike, Run, as_program
from loopscope.protocol import LoopedModel, Side, TokenMap

Where = int | str
"""A part of a run: the loop that a call is, "prelude", or "coda[8]" for the coda that reads the state after loop 8."""


@dataclass(repr=False)
class PlainRun:
    """Everything a plain run saw: the state at every point, and every component by (loop, layer, component).

    In the place of the loop stands "prelude" for the layers before it and "coda[8]" for the coda of h8; a coda is seen
    once its point was read.
    """

    states: dict[str, Float[Tensor, "B T d"]] = field(default_factory=dict)
    components: dict[tuple[Where, int, str], Tensor] = field(default_factory=dict)
    logits: dict[str, Float[Tensor, "B T classes"]] = field(default_factory=dict)
    _reading: Callable[[str], Tensor] = field(default=lambda point: torch.empty(0), repr=False)

    def __repr__(self) -> str:
        return f"<plain run: {len(self.states):,} states, {len(self.components):,} components>"

    def read(self, point: str) -> Float[Tensor, "B T classes"]:
        """Logits at a point, every row of them."""
        if point not in self.logits:
            self.logits[point] = self._reading(point)
        return self.logits[point]


def plain_run(
    model: LoopedModel,
    inputs: Mapping[str, Tensor],
    program: ProgramLike,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    given: Mapping[str, Tensor] | None = None,
    tokens: Mapping[str, Tensor] | None = None,
    name: str = "main",
    memo: dict[tuple[Program, str], PlainRun] | None = None,
    gradients: bool = False,
) -> PlainRun:
    """Run `program` on `inputs[name]`: tokens [B, T], or a state [B, T, d] for a program that starts from one.

    A model that looks at its input in every call needs `tokens[name]` beside a state.  `memo` keeps finished runs, so
    that a source used by many patched runs is computed once.  `gradients` as in `execute.run`.
    """
    with torch.set_grad_enabled(gradients):
        return _plain_run(
            model, inputs, as_program(program), maps or {}, given or {}, tokens or {}, name,
            {} if memo is None else memo,
        )  # fmt: skip


def _plain_run(
    model: LoopedModel,
    inputs: Mapping[str, Tensor],
    program: Program,
    maps: Mapping[str, TokenMap],
    given: Mapping[str, Tensor],
    tokens: Mapping[str, Tensor],
    name: str,
    memo: dict[tuple[Program, str], PlainRun],
) -> PlainRun:
    if (program, name) in memo:
        return memo[program, name]
    pieces = pieces_of(model)
    pieces.check(program)
    words = inputs[name] if not program.given else tokens.get(name)
    rows = torch.arange(inputs[name].shape[1], device=inputs[name].device)
    seen = PlainRun()

    def value(patch: Patch, where: Where) -> Tensor | None:
        source = patch.giver
        if source is None:
            return None
        if isinstance(source, Given):
            return given[source.name]
        giver_name = name if source.input is None else source.input
        giver = _plain_run(model, inputs, source.program, maps, given, tokens, giver_name, memo)
        if source.loop is not None:
            where = source.loop if isinstance(where, int) else f"coda[{source.loop}]"
        if isinstance(where, str) and where.startswith("coda"):
            giver.read(f"h{where[5:-1]}")
        return giver.components[where, patch.site.layer, patch.site.part]

    def through(where: Where, layers: Sequence[LayerPieces], x: Tensor, patches: Sequence[Patch], call: int) -> Tensor:
        """Layers on all rows; every component after its patches, captured."""
        side = None if words is None else Side(words, call)
        for number, layer in enumerate(layers, start=1):

            def put(component: str, tensor: Tensor, number: int = number, layer: LayerPieces = layer) -> Tensor:
                for patch in patches:
                    if (patch.site.layer, patch.site.part) == (number, component):
                        visible = layer.visible(rows, rows) if component == "pattern" else None
                        tensor = patched(tensor, patch, value(patch, where), model.heads, maps, visible)
                seen.components[where, number, component] = tensor
                return tensor

            x = put("resid", x)
            q, k, v = (put(c, part) for c, part in zip("qkv", layer.project(x, rows, "qkv", side), strict=True))
            alpha = attention_pattern(q, k, layer.scale, layer.visible(rows, rows), layer.softcap)
            z = put("z", put("pattern", alpha) @ v)
            middle = layer.join(x, put("attn_out", layer.attn_out(z, x)), "attn")
            if layer.units:
                out = layer.mlp_from(put("mlp_hidden", layer.mlp_hidden(x, middle)))
            else:
                out = layer.mlp_out(x, middle)
            x = layer.join(middle, put("mlp_out", out), "mlp")
        return x

    e = None
    if words is not None:
        e = pieces.settle(through("prelude", pieces.prelude, pieces.embed(words, rows), program.prelude, 0))
    elif pieces.needs_tokens:
        raise InputError(f"'{program}' starts from a given state, and this model needs the tokens beside it")
    h = inputs[name] if program.given or e is None else pieces.start(e, program.start, rows)
    seen.states[program.points[0]] = h
    for index, step in enumerate(program.steps):
        if not isinstance(step, Call):
            h = maps[step.name](h)
        else:
            loop = program.loop_of(index)
            x = pieces.enter(h, e, loop, step.stack)
            h = pieces.close(through(loop, pieces.stack(step.stack), x, step.patches, loop), h, step.stack)
        seen.states[program.points[index + 1]] = h

    def reading(point: str) -> Tensor:
        loop = program.calls_before(point)
        patches = program.coda_patches(loop) if point == f"h{loop}" else ()
        where = f"coda[{loop}]" if point == f"h{loop}" else f"coda[{point}]"
        return pieces.read(through(where, pieces.coda, pieces.leave(seen.states[point]), patches, loop))

    gradients = torch.is_grad_enabled()

    def read(point: str) -> Tensor:
        with torch.set_grad_enabled(gradients):
            return reading(point)

    seen._reading = read
    memo[program, name] = seen
    return seen


def patched(
    tensor: Tensor,
    patch: Patch,
    value: Tensor | None,
    heads: int,
    functions: Mapping[str, TokenMap],
    visible: Bool[Tensor, "T T"] | None,
) -> Tensor:
    """`tensor` [B, (H,) T, ...] with the patched heads and rows taken from `value`, or changed.

    A value from a run has all heads and rows of that run, whose rows may be others; a given one broadcasts to the
    patched slice.
    """
    site = patch.site.resolve(layers=patch.site.layer, heads=heads, rows=tensor.shape[-2])
    rows = torch.tensor(site.rows, device=tensor.device)
    tensor = tensor.clone()
    where: tuple[slice | Tensor, ...] = (slice(None), rows)
    chosen = where
    if isinstance(patch.giver, Run):
        assert value is not None
        theirs = patch.site if patch.giver.rows is None else replace(patch.site, rows=patch.giver.rows)
        giving = theirs.resolve(layers=patch.site.layer, heads=heads, rows=value.shape[-2])
        chosen = (slice(None), torch.tensor(giving.rows, device=tensor.device))
    if site.component in PER_HEAD:
        some = torch.tensor(site.heads, device=tensor.device)[:, None]
        where, chosen = (slice(None), some, rows), (slice(None), some, chosen[1])
    own = tensor[where]
    if value is not None:
        value = value[chosen] if isinstance(patch.giver, Run) else value.expand_as(own)
    if patch.change is not None:
        value = changed(patch.change, own, value, functions, None if visible is None else visible[rows])
    assert value is not None
    tensor[where] = value
    return tensor
