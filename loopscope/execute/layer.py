"""One layer on some rows of some runs: the only place where the executor computes a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from loopscope.execute.places import LayerRows, Picked
from loopscope.pieces import LayerPieces
from loopscope.protocol import Side

Put = Callable[[str, Tensor], Tensor]
"""(component, tensor) -> the tensor after patches, captured where asked for."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries, keys, values of these rows) -> what the heads give, from these keys and those of rows elsewhere."""
At = Callable[[Picked, Tensor], Any]
"""(rows, what is projected) -> where the rows stand, as `project` takes it."""
SideOf = Callable[[Picked], Side]
"""What a layer may know of these rows beside the stream."""


def through(
    layer: LayerPieces, x: Tensor, rows: LayerRows, attend: Attend, put: Put, at: At, side: SideOf, units: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """One layer on x [entries, rows, d]: (the rows that leave it, if any do; keys and values of those that have any).

    - `put` is called with every component but the pattern in the order of computation, and may replace it; `attend`
      sees to the pattern;
    - `units`: somebody reads or patches the hidden units of the MLP.
    """

    def project(some: Picked, parts: str) -> tuple[Tensor, ...]:
        return layer.project(some.take(x), at(some, x), parts, side(some) if layer.takes_side else None)

    x = put("resid", x)
    q = k = v = x[:, None, :0]  # stand in where there are no rows to project
    if len(rows.keyed) and rows.together:
        q, k, v = project(rows.keyed, "qkv")
    else:
        if len(rows.keyed):
            k, v = project(rows.keyed, "kv")
        if len(rows.mixed):
            (q,) = project(rows.mixed, "q")
    if len(rows.keyed):
        k, v = put("k", k), put("v", v)
    if not len(rows.mixed):
        return None, k, v
    z = put("z", attend(put("q", q), k, v))
    if not len(rows.leaving):
        return None, k, v
    entered = rows.leaving.take(x)
    a = put("attn_out", layer.attn_out(rows.left.take(z), entered))
    middle = layer.join(entered, a, "attn")
    if units:
        m = layer.mlp_from(put("mlp_hidden", layer.mlp_hidden(entered, middle)))
    else:
        m = layer.mlp_out(entered, middle)
    return layer.join(middle, put("mlp_out", m), "mlp"), k, v
