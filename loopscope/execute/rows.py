"""Tensors that hold some rows, and attention over keys that live in several places.

A run that computes only a few rows still attends to all earlier ones.  Their keys and values belong to other runs: the
shared graph tokens of ten queries, the base run of a patched one.  `KeysValues` names one such place.  `patterns` forms
one softmax over all of them, without copying keys to every run that attends to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.execute.places import indices
from loopscope.model import attention_pattern
from loopscope.pieces import LayerPieces


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a tensor: `data` [entries, ..., rows, features] holds exactly `rows`, in this order."""

    rows: tuple[int, ...]
    data: Tensor

    def take(self, rows: tuple[int, ...]) -> Tensor:
        """The data of these rows; a view where they are adjacent."""
        if rows == self.rows:
            return self.data
        if not rows:
            return self.data[..., :0, :]
        held = {row: place for place, row in enumerate(self.rows)}
        places = [held[row] for row in rows]
        if places == list(range(places[0], places[0] + len(places))):
            return self.data.narrow(-2, places[0], len(places))
        return self.data.index_select(-2, indices(tuple(places), self.data.device))

    def among(self, rows: tuple[int, ...]) -> RowBlock:
        """The part of this block whose rows are among `rows`."""
        wanted = set(rows)
        kept = tuple(r for r in self.rows if r in wanted)
        return RowBlock(kept, self.take(kept))

    def alone(self) -> RowBlock:
        """The same block, copied if it is a view that would keep more than a quarter as much beside it alive."""
        large = 4 * self.data.untyped_storage().nbytes() > 5 * self.data.nbytes
        return RowBlock(self.rows, self.data.clone()) if large else self


@dataclass(frozen=True)
class Repeats:
    """Which entry of a shared tensor each of `count` entries uses: i // repeat, or index[i] where that is given."""

    count: int
    repeat: int = 1
    index: Int[Tensor, " count"] | None = None

    @classmethod
    def of(cls, index: Int[Tensor, " count"], shared: int) -> Repeats:
        """The simplest form of this index into `shared` entries."""
        count = len(index)
        if shared and count % shared == 0:
            repeat = count // shared
            if torch.equal(index, torch.arange(count, device=index.device) // repeat):
                return cls(count, repeat)
        return cls(count, 1, index)

    def places(self, device: torch.device) -> Int[Tensor, " count"]:
        """Which entry each uses, written out."""
        return torch.arange(self.count, device=device) // self.repeat if self.index is None else self.index

    def gather(self, shared: Tensor) -> Tensor:
        """The shared tensor laid out entry by entry; no copy where both already agree."""
        if self.index is not None:
            return shared.index_select(0, self.index)
        return shared if self.repeat == 1 else shared.repeat_interleave(self.repeat, 0)

    def spread(self, times: int) -> Repeats:
        """The same after every entry has been repeated `times` times in place."""
        index = None if self.index is None else self.index.repeat_interleave(times)
        return Repeats(self.count * times, self.repeat * times, index)

    def matmul(
        self, a: Float[Tensor, "count H R m"], shared: Float[Tensor, "shared H m n"]
    ) -> Float[Tensor, "count H R n"]:
        """a @ (the shared matrix of each entry).  Entries that share a matrix go through it as one taller product."""
        if self.index is not None or self.repeat == 1:
            return a @ self.gather(shared)
        _, heads, rows, inner = a.shape
        tall = a.view(-1, self.repeat, heads, rows, inner).transpose(1, 2)
        product = tall.reshape(-1, heads, self.repeat * rows, inner) @ shared
        return product.view(-1, heads, self.repeat, rows, shared.shape[-1]).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True)
class KeysValues:
    """Keys and values of some rows; `repeats` says which of them each entry that attends uses."""

    rows: tuple[int, ...]
    k: Float[Tensor, "shared H S k"]
    v: Float[Tensor, "shared H S k"]
    repeats: Repeats


def patterns(
    q: Float[Tensor, "entries H R k"], rows: tuple[int, ...], attended: list[KeysValues], layer: LayerPieces
) -> Float[Tensor, "entries H R S"]:
    """alpha of these query rows over all keys, in the order of `columns(attended)`."""
    device = q.device
    visible = None
    if not (layer.causal and max(columns(attended)) <= min(rows)):
        visible = layer.visible(indices(rows, device), indices(tuple(columns(attended)), device))
    if len(attended) == 1 and attended[0].repeats.repeat == 1 and attended[0].repeats.index is None:
        return attention_pattern(q, attended[0].k, layer.scale, visible, layer.softcap)
    scores = torch.cat([each.repeats.matmul(q, each.k.transpose(-1, -2)) for each in attended], -1) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if visible is not None:
        scores = scores.masked_fill_(~visible, -torch.inf)
    return scores.softmax(-1)


def mix(alpha: Float[Tensor, "entries H R S"], attended: list[KeysValues]) -> Float[Tensor, "entries H R k"]:
    """z = alpha V, place by place."""
    slices = alpha.split([len(each.rows) for each in attended], -1)
    total = attended[0].repeats.matmul(slices[0], attended[0].v)
    for piece, each in zip(slices[1:], attended[1:], strict=True):
        total = total + each.repeats.matmul(piece, each.v)
    return total


def columns(attended: list[KeysValues]) -> list[int]:
    """The key rows of all places, one after the other."""
    return [row for each in attended for row in each.rows]
