"""What a looped model must offer to be run, read, steered and patched.

A looped model is named stacks of layers with glue between them.  All glue acts row by row, which is what lets the
executor compute only the rows that can differ; attention alone mixes rows.  A simple model offers what `LoopedModel`
and `LoopedLayer` list, and nothing else.  Everything below has a default, so a model adds only what it needs.

    e = settle(prelude(embed(tokens)))       the input, once
    h_0 = start(e, seed)                     the state before the first call
    h_t = close(F(enter(h_{t-1}, e, t)))     a call
    logits = read(coda(leave(h_t)))          a reading, after any call

| member of a model | default | |
|---|---|---|
| `prelude`, `coda` | no layers | layers before the loop, and those that a reading goes through |
| `settle(x)` | x | the input as the prelude leaves it |
| `start(e, seed)` or `start(e, seed, rows)` | e | h_0; `seed` is a whole number that a program names |
| `enter(h, e, call)` | h | what the first layer of call `call` (from 1) sees |
| `close(x)` | x | what ends a call |
| `leave(h)` | h | what the coda, or where there is none the readout, sees |
| `stacks` | `{"F": layers}` | several stacks by name, one capital letter each |
| `embed(tokens, rows)` | `embed(tokens)` | for models whose input knows its position |
| `check_input(tokens)` | nothing | InputError for tokens [B, T] that cannot stand as they do |
| `injects` | whether it has `enter` | whether that looks at e: without, no call needs the input again |
| `draws` | whether it has `start` | whether a seed changes that; a start that is learned is begun with all the same |

A model with several stacks holds one state for each, side by side in the order of `stacks`: h is [..., stacks * d].
Its `enter(h, e, call, stack)` says what a call of a stack sees, and what a call gives replaces that stack's own part.
`leave(h)` is by default the part of the last stack.  A map J acts on the whole of h.

| member of a layer | default | |
|---|---|---|
| `join(x, out, which)` | x + out | the stream after a sublayer; `which` is "attn" or "mlp" |
| `attn_out(z, x)` | `attn_out(z)` | x is what entered the layer, for gates that look at it |
| `project(x, rows, parts, side)` | without `side` | `side` has the tokens of these rows and the number of the call |
| `mask(queries, keys)` | causal | which key rows [S] each query row [R] may see: booleans [R, S] |
| `mlp_hidden(x)`, `mlp_from(hidden)` | no such component | the MLP's units [..., R, m], and `mlp_out` of them |
| `parallel` | False | the MLP sees what entered the layer, not the stream after attention |
| `softcap` | None | scores s become cap * tanh(s / cap) before the softmax |

Arguments that a member may leave out (`rows`, `stack`, `x`, `side`) are given by their place, or by name behind `*`.

`pieces.pieces_of(model)` fills in the defaults; `conformity.check_model` says in one line where a model does not keep
to this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

STATES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Types that a model may compute in, and so those of states, maps and given tensors."""

TokenMap = Callable[[Tensor], Tensor]
"""A map J on states [..., d] that treats every row alike and alone."""


class Side(NamedTuple):
    """What a layer may know of its rows beside the stream.

    `tokens` are those of the rows, [..., R]; `call` is the number of the call: 0 in the prelude, and in a coda that of
    the call it reads.
    """

    tokens: Tensor
    call: int


@runtime_checkable
class LoopedLayer(Protocol):
    """One layer of a stack."""

    scale: float
    """Factor on q k' before the softmax."""

    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        """Queries, keys, values ("q", "kv" or "qkv"), [..., H, R, k] each, of x [..., R, d]; R >= 1.

        `rows` are the positions of x's rows in the input.
        """
        ...

    def attn_out(self, z: Tensor) -> Tensor:
        """What attention gives to `join`, from head outputs [..., H, R, k]."""
        ...

    def mlp_out(self, x: Tensor) -> Tensor:
        """What the MLP gives to `join`, from the residual stream after attention [..., R, d]."""
        ...


@runtime_checkable
class LoopedModel(Protocol):
    """A model that applies one stack of layers again and again; a model of several has `stacks` as well."""

    @property
    def layers(self) -> Sequence[LoopedLayer]:
        """The layers of F, in order; of a model with several stacks, those of the last."""
        ...

    @property
    def heads(self) -> int:
        """Attention heads per layer."""
        ...

    @property
    def width(self) -> int:
        """Width d of the stream inside a layer, and of the state of one stack."""
        ...

    @property
    def head_size(self) -> int:
        """Size k of one head's query, key, value and output; often, but not always, width / heads."""
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """[B, T, d] of tokens [B, T]; row r depends on token r alone.  Without more members this is h_0."""
        ...

    def read(self, h: Tensor) -> Tensor:
        """Logits [..., classes] of states [..., d], row by row."""
        ...


def device_of(model: object) -> torch.device | None:
    """Where the parameters of a model are; None where it has none that can be asked for."""
    return next((p.device for p in model.parameters()), None) if isinstance(model, nn.Module) else None


def in_a_line(model: LoopedModel) -> str:
    """What a model is, as it is printed: its class, loops, layers by part, and sizes."""
    stacks: dict[str, Sequence[object]] = getattr(model, "stacks", None) or {"F": model.layers}
    parts = {"prelude": getattr(model, "prelude", ()), **stacks, "coda": getattr(model, "coda", ())}
    layers = " + ".join(f"{name} {len(part)}" for name, part in parts.items() if len(part))
    loops = f"{model.loops} loops of " if hasattr(model, "loops") else ""
    heads = f"{model.heads} {'head' if model.heads == 1 else 'heads'}"
    numbers = f", {sum(p.numel() for p in model.parameters()):,} numbers" if isinstance(model, nn.Module) else ""
    return f"<{type(model).__name__}: {loops}layers {layers}, width {model.width}, {heads}{numbers}>"
