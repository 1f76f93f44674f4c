"""Tensors that hold some rows, and attention over keys that live in several places.

A run that computes only a few rows still attends to all earlier ones.  Their keys and values belong to other runs: the
graph tokens of ten queries about one graph, the base run of a patched one.  `Part`s name those places, and
`attend` forms one softmax over all of them without copying keys to every run that looks at them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.model import attention_pattern, causal


@dataclass(frozen=True)
class Slab:
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
        return self.data.index_select(-2, torch.tensor(places, device=self.data.device))

    def among(self, rows: tuple[int, ...]) -> Slab:
        """The part of this slab whose rows are among `rows`."""
        wanted = set(rows)
        kept = tuple(r for r in self.rows if r in wanted)
        return Slab(kept, self.take(kept))

    def alone(self) -> Slab:
        """The same slab, copied if it is a small view that would keep a large tensor alive."""
        large = self.data.untyped_storage().nbytes() > 2 * self.data.nbytes
        return Slab(self.rows, self.data.clone()) if large else self


@dataclass(frozen=True)
class Fan:
    """Which entry of a shared tensor each of `count` entries uses: i // repeat, or index[i] where that is given."""

    count: int
    repeat: int = 1
    index: Int[Tensor, " count"] | None = None

    @classmethod
    def of(cls, index: Int[Tensor, " count"], shared: int) -> Fan:
        """The simplest fan equal to this index into `shared` entries."""
        count = len(index)
        if shared and count % shared == 0:
            repeat = count // shared
            if torch.equal(index, torch.arange(count, device=index.device) // repeat):
                return cls(count, repeat)
        return cls(count, 1, index)

    def gather(self, shared: Tensor) -> Tensor:
        """The shared tensor laid out entry by entry; no copy where both already agree."""
        if self.index is not None:
            return shared.index_select(0, self.index)
        return shared if self.repeat == 1 else shared.repeat_interleave(self.repeat, 0)

    def spread(self, times: int) -> Fan:
        """The fan after every entry has been repeated `times` times in place."""
        index = None if self.index is None else self.index.repeat_interleave(times)
        return Fan(self.count * times, self.repeat * times, index)

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
class Part:
    """Keys and values of some rows, shared by the looking entries through `fan`."""

    rows: tuple[int, ...]
    k: Float[Tensor, "shared H S k"]
    v: Float[Tensor, "shared H S k"]
    fan: Fan


def patterns(
    q: Float[Tensor, "entries H R k"], rows: tuple[int, ...], parts: list[Part], scale: float
) -> Float[Tensor, "entries H R S"]:
    """alpha of these query rows over the keys of all parts, in the order of `columns(parts)`."""
    device = q.device
    positions = torch.tensor(columns(parts), device=device)
    queries = torch.tensor(rows, device=device)
    visible = None if max(columns(parts)) <= min(rows) else causal(queries, positions)
    if len(parts) == 1 and parts[0].fan.repeat == 1 and parts[0].fan.index is None:
        return attention_pattern(q, parts[0].k, scale, visible)
    scores = torch.cat([part.fan.matmul(q, part.k.transpose(-1, -2)) for part in parts], -1) * scale
    if visible is not None:
        scores = scores.masked_fill_(~visible, -torch.inf)
    return scores.softmax(-1)


def mix(alpha: Float[Tensor, "entries H R S"], parts: list[Part]) -> Float[Tensor, "entries H R k"]:
    """z = alpha V, part by part."""
    slices = alpha.split([len(part.rows) for part in parts], -1)
    total = parts[0].fan.matmul(slices[0], parts[0].v)
    for piece, part in zip(slices[1:], parts[1:], strict=True):
        total = total + part.fan.matmul(piece, part.v)
    return total


def columns(parts: list[Part]) -> list[int]:
    """The key rows of the parts, one after the other."""
    return [row for part in parts for row in part.rows]
