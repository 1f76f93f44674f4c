"""One layer on some rows of some runs: the only place where the executor computes a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.execute.plan import LayerNeed
from loopscope.execute.rows import KeysValues, Repeats, RowBlock, columns, mix, patterns
from loopscope.protocol import LoopedLayer

Put = Callable[[str, Tensor, tuple[int, ...], list[int]], Tensor]
"""(component, tensor, its rows, key rows of a pattern) -> the tensor after patches, captured where asked for."""
See = Callable[[Tensor, Tensor], None]
"""Looks at queries and keys that go into fused attention, which would hide that they are not finite."""


def through(
    layer: LoopedLayer, x: RowBlock, need: LayerNeed, context: list[KeysValues], explicit: bool, put: Put, see: See
) -> tuple[RowBlock | None, KeysValues]:
    """One layer on the rows of x: (the rows that leave it, its keys and values).

    - x holds this run's own rows among `need.entering`; keys and values of other rows come from `context`.
    - `explicit` forms the attention pattern, for somebody who reads or replaces it; else attention may be fused.
    - `put` is called with every component in the order of computation, and may replace it.
    """
    device = x.data.device
    keyed = tuple(r for r in x.rows if r in need.keyed)
    mixed = tuple(r for r in x.rows if r in need.mixed)
    leaving = tuple(r for r in x.rows if r in need.leaving)

    def project(rows: tuple[int, ...], parts: str) -> tuple[Tensor, ...]:
        return layer.project(x.take(rows), torch.tensor(rows, dtype=torch.long, device=device), parts)

    x = RowBlock(x.rows, put("resid", x.data, x.rows, []))
    q = k = v = x.data[:, None, :0]  # stand in where there are no rows to project
    if keyed and keyed == mixed:
        q, k, v = project(keyed, "qkv")
    else:
        if keyed:
            k, v = project(keyed, "kv")
        if mixed:
            (q,) = project(mixed, "q")
    if keyed:
        k, v = put("k", k, keyed, []), put("v", v, keyed, [])
    own = KeysValues(keyed, k, v, Repeats(len(x.data)))
    if not mixed:
        return None, own
    q = put("q", q, mixed, [])
    attended = [*context, own] if keyed else context
    if not explicit and not context and keyed == mixed == tuple(range(len(mixed))):
        see(q, k)
        z = nnf.scaled_dot_product_attention(q, k, v, is_causal=True, scale=layer.scale)
    else:
        alpha = put("pattern", patterns(q, mixed, attended, layer.scale), mixed, columns(attended))
        z = mix(alpha, attended)
    z = put("z", z, mixed, [])
    if not leaving:
        return None, own
    a = put("attn_out", layer.attn_out(RowBlock(mixed, z).take(leaving)), leaving, [])
    middle = x.take(leaving) + a
    return RowBlock(leaving, middle + put("mlp_out", layer.mlp_out(middle), leaving, [])), own
