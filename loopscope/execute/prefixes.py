"""Which inputs a run is computed on, and which rows they share.

With causal attention, rows before the first differing token do not depend on it: ten queries about one graph share the
states of the graph's tokens.  A `Crowd` cuts the rows of its inputs into two segments: the leading rows, held once per
group of inputs that agree on them, and the remaining rows, held for every input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from loopscope.execute.rows import Fan, Slab


@dataclass(frozen=True)
class Segment:
    """Some rows of every input of a crowd.

    `members` are the groups (leading rows) or inputs (trailing rows) it holds an entry for; `looks[name]` says which
    entry each example of the input called `name` uses.
    """

    rows: tuple[int, ...]
    members: Int[Tensor, " entries"]
    looks: dict[str, Fan]


@dataclass(frozen=True)
class Crowd:
    """Distinct inputs, cut into segments.

    `fan` leads from the last segment's entries to the first's.
    """

    segments: tuple[Segment, ...]
    fan: Fan

    def rows_of(self, slabs: list[Slab], rows: tuple[int, ...], name: str) -> Tensor:
        """These rows for every example of the input called `name`, from one slab per segment: [examples, ..., R, n]."""
        pieces: list[Tensor] = []
        found: list[int] = []
        for segment, slab in zip(self.segments, slabs, strict=True):
            first, last = segment.rows[0], segment.rows[-1]
            mine = tuple(r for r in rows if first <= r <= last)
            if mine:
                pieces.append(segment.looks[name].gather(slab.take(mine)))
                found.extend(mine)
        if len(pieces) == 1:
            return pieces[0]
        return Slab(tuple(found), torch.cat(pieces, -2)).take(rows)

    def within(self, slabs: list[Slab], parent: Crowd) -> list[Slab]:
        """A parent crowd's slabs, narrowed to this crowd's inputs."""
        if parent is self:
            return slabs
        narrowed = []
        for mine, theirs, slab in zip(self.segments, parent.segments, slabs, strict=True):
            where = torch.searchsorted(theirs.members, mine.members)
            narrowed.append(Slab(slab.rows, Fan.of(where, len(theirs.members)).gather(slab.data)))
        return narrowed


class Inputs:
    """All inputs of one kind (tokens, or states) of a batch of examples, with equal ones held once.

    `named[name]` [examples, T, ...] are aligned: example i of every name belongs together.
    """

    def __init__(self, named: dict[str, Tensor]) -> None:
        stacked = torch.cat(list(named.values()))
        if stacked.is_floating_point():
            self.distinct = stacked
            inverse = torch.arange(len(stacked), device=stacked.device)
        else:
            self.distinct, inverse = torch.unique(stacked, dim=0, return_inverse=True)
        self.index = dict(zip(named, inverse.split([len(t) for t in named.values()]), strict=True))
        self.length = stacked.shape[1]
        self.split = 0 if stacked.is_floating_point() else shared_rows(self.distinct)
        fresh = torch.ones(len(self.distinct), dtype=torch.bool, device=stacked.device)
        fresh[1:] = (self.distinct[1:, : self.split] != self.distinct[:-1, : self.split]).flatten(1).any(1)
        self.group = fresh.cumsum(0) - 1
        self.first = fresh.nonzero()[:, 0]
        self._crowds: dict[frozenset[str], Crowd] = {}

    def crowd(self, names: frozenset[str]) -> Crowd:
        """The distinct inputs found under any of these names."""
        if names not in self._crowds:
            self._crowds[names] = self._gather(names)
        return self._crowds[names]

    def _gather(self, names: frozenset[str]) -> Crowd:
        members = torch.unique(torch.cat([self.index[name] for name in sorted(names)]))
        at = {name: torch.searchsorted(members, self.index[name]) for name in names}
        looks = {name: Fan.of(index, len(members)) for name, index in at.items()}
        if not self.split:
            whole = Segment(tuple(range(self.length)), members, looks)
            return Crowd((whole,), Fan(len(members)))
        groups, place = torch.unique(self.group[members], return_inverse=True)
        shared_looks = {name: Fan.of(place[index], len(groups)) for name, index in at.items()}
        leading = Segment(tuple(range(self.split)), groups, shared_looks)
        trailing = Segment(tuple(range(self.split, self.length)), members, looks)
        return Crowd((leading, trailing), Fan.of(place, len(groups)))

    def start(self, crowd: Crowd, h: Tensor) -> list[Slab]:
        """The starting states h [distinct, T, d], laid out for a crowd."""
        *leading, trailing = crowd.segments
        slabs = [Slab(part.rows, h[self.first[part.members], : self.split]) for part in leading]
        return [*slabs, Slab(trailing.rows, h[trailing.members, self.split :])]


def shared_rows(tokens: Int[Tensor, "inputs T"]) -> int:
    """How many leading rows to hold once per group, so that the fewest rows are held.  `tokens`: sorted, distinct."""
    count, length = tokens.shape
    if count < 2:
        return 0
    agree = (tokens[1:] == tokens[:-1]).long().cumprod(1).sum(1)  # leading tokens each input shares with the one before
    splits = torch.arange(length, device=tokens.device)
    groups = 1 + (agree[None, :] < splits[:, None]).sum(1)
    return int((groups * splits + count * (length - splits)).argmin())
