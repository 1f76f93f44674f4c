"""Layers on the rows of a pass: attention with what the rows see, behind a cache, recomputed or compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from loopscope.finite import Watch
from loopscope.model import attention_pattern
from loopscope.models.caches import Cache, Where
from loopscope.models.padding import PassRows
from loopscope.pieces import LayerPieces, Pieces
from loopscope.protocol import LoopedModel, Side


class PassLayers:
    """Runs layers on the rows of a pass; x, like a state, is what positions are worked out for."""

    def __init__(
        self, pieces: Pieces, rows: PassRows, tokens: Tensor | None, x: Tensor, cache: Cache | None, recompute: bool,
        compiled: bool, watch: Watch | None,
    ) -> None:  # fmt: skip
        self.pieces, self.watch = pieces, watch
        self._rows, self._tokens, self._angles, self._cache = rows, tokens, _angles(pieces.model, rows, x), cache
        self._before = 0 if cache is None else cache.length
        self._cut: tuple[int, Any] | None = None
        self._recompute, self._through = recompute, _compiled() if compiled else _through

    def __call__(
        self, where: Where, layers: Sequence[LayerPieces], x: Float[Tensor, "B R d"], call: int
    ) -> Float[Tensor, "B R d"]:
        """The stream after some layers; `call` is what they are told of it."""
        examples = len(x)
        for number, layer in enumerate(layers, start=1):
            visible = self._rows.of(layer, examples)
            alone = visible is None and self._rows.alone  # decided here, so that a compiled layer knows it for certain
            side = Side(self._tokens[:examples], call) if layer.takes_side and self._tokens is not None else None
            angles = self._angles_of(examples)
            if self._recompute:
                # Nothing in a layer is random, so no generator's state has to be kept with it.
                x = checkpoint(
                    self._through, layer, x, angles, visible, alone, side, None, None, use_reentrant=False,
                    preserve_rng_state=False,
                )  # fmt: skip
            else:
                slot = None if self._cache is None else _Slot(self._cache, where, number, self._before)
                see = None if self.watch is None else _See(self.watch, where, number)
                x = self._through(layer, x, angles, visible, alone, side, slot, see)
        return x

    def see(self, x: Tensor, *place: object) -> None:
        """Look whether numbers are finite, where somebody asks."""
        if self.watch:
            self.watch.see(x, *place)

    def _angles_of(self, examples: int) -> Any:
        """Rotary angles, or rows, of the first examples."""
        if self._rows.positions.dim() == 1 or examples == len(self._rows.positions):
            return self._angles
        if self._cut is None or self._cut[0] != examples:
            self._cut = (examples, _first(self._angles, examples))
        return self._cut[1]


def _angles(model: LoopedModel, rows: PassRows, x: Tensor) -> Any:
    """What the layers' `project` is told of its rows."""
    own: Callable[..., Any] | None = getattr(model, "rotary_angles", None)
    if own is not None:
        return own(rows.positions, x)
    return _Apart(rows.positions) if rows.positions.dim() == 2 else rows.positions


class _Apart(NamedTuple):
    """Rows of examples that stand elsewhere, for a model whose layers take those of one example at a time."""

    positions: Int[Tensor, "B R"]


def _first(angles: Any, examples: int) -> Any:
    """Those of the first examples, in memory of their own."""
    if isinstance(angles, tuple):
        several = (_first(each, examples) for each in angles)
        return type(angles)(*several) if hasattr(angles, "_fields") else tuple(several)
    return angles[:examples].clone()


def embedded(pieces: Pieces, tokens: Int[Tensor, "B R"], rows: PassRows) -> Float[Tensor, "B R d"]:
    """The input of the rows of a pass."""
    positions = rows.positions
    if hasattr(pieces.model, "rotary_angles") or rows.alone:
        return pieces.embed(tokens, positions)
    # This embed may look at where a token stands: every token is put there, behind any others.
    length = int(positions.max()) + 1
    places = positions.expand_as(tokens)
    if rows.padded is not None:
        places = places.masked_fill(rows.padded, length)
    text = tokens[:, -1:].repeat(1, length + 1).scatter(1, places, tokens)[:, :length]
    whole = pieces.embed(text, torch.arange(length, device=tokens.device))
    return whole.gather(1, positions.expand_as(tokens)[..., None].expand(-1, -1, whole.shape[-1]))


class _Slot(NamedTuple):
    """Where in a cache the keys and values of one layer go."""

    cache: Cache
    where: Where
    layer: int
    before: int


class _See(NamedTuple):
    """Who looks at the attention of one layer."""

    watch: Watch
    where: Where
    layer: int

    def look(self, q: Tensor, k: Tensor) -> None:
        """At the score of every row with itself."""
        loop = ("loop", self.where) if isinstance(self.where, int) else (self.where,)
        self.watch.scores(q, k, *loop, "layer", self.layer)


def _through(
    layer: LayerPieces,
    x: Float[Tensor, "B R d"],
    angles: Any,
    visible: Bool[Tensor, "*M R S"] | None,
    alone: bool,
    side: Side | None,
    slot: _Slot | None,
    see: _See | None,
) -> Float[Tensor, "B R d"]:
    """The stream after one layer; `alone`: all rows are here and see those before them, so no mask is needed."""
    q, k, v = _projected(layer, x, angles, side)
    if see is not None:
        see.look(q, k)
    if slot is not None:
        k, v = slot.cache.extend(slot.where, slot.layer, k, v, slot.before)
    if layer.softcap is None:
        z = nnf.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=alone, scale=layer.scale)
    else:
        z = attention_pattern(q, k, layer.scale, visible, layer.softcap) @ v
    middle = layer.join(x, layer.attn_out(z, x), "attn")
    return layer.join(middle, layer.mlp_out(x, middle), "mlp")


def _projected(layer: LayerPieces, x: Tensor, angles: Any, side: Side | None) -> tuple[Tensor, ...]:
    if not isinstance(angles, _Apart):
        return layer.project(x, angles, "qkv", side)
    found = []
    for number, positions in enumerate(angles.positions):
        one = slice(number, number + 1)
        mine = None if side is None else Side(side.tokens[one], side.call)
        found.append(layer.project(x[one], positions, "qkv", mine))
    return tuple(torch.cat(part) for part in zip(*found, strict=True))


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_through, dynamic=True)
