"""Which inputs a run is computed on, and which rows they share.

With causal attention, rows before the first differing token do not depend on it: ten queries about one graph share the
states of the graph's tokens, their common prefix.  `PrefixGroups` cuts the rows of some inputs into two segments.  The
leading rows are held once for every group of inputs that agree on them, the remaining rows once for every input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from loopscope.execute.rows import Repeats, RowBlock


@dataclass(frozen=True)
class Segment:
    """Some rows of all inputs.

    `members` are the groups (leading rows) or inputs (trailing rows) that it holds an entry for; `repeats[name]` says
    which entry each example of the input called `name` uses.
    """

    rows: tuple[int, ...]
    members: Int[Tensor, " entries"]
    repeats: dict[str, Repeats]


@dataclass(frozen=True)
class PrefixGroups:
    """Distinct inputs, cut into segments.

    `repeats` says which entry of the first segment each entry of the last uses.
    """

    segments: tuple[Segment, ...]
    repeats: Repeats

    def rows_of(self, blocks: list[RowBlock], rows: tuple[int, ...], name: str) -> Tensor:
        """These rows for every example of the input `name`, from one block per segment: [examples, ..., R, n]."""
        pieces: list[Tensor] = []
        found: list[int] = []
        for segment, block in zip(self.segments, blocks, strict=True):
            first, last = segment.rows[0], segment.rows[-1]
            mine = tuple(r for r in rows if first <= r <= last)
            if mine:
                pieces.append(segment.repeats[name].gather(block.take(mine)))
                found.extend(mine)
        if len(pieces) == 1:
            return pieces[0]
        return RowBlock(tuple(found), torch.cat(pieces, -2)).take(rows)

    def regrouped(self, blocks: list[RowBlock], other: PrefixGroups) -> list[RowBlock]:
        """Blocks of another grouping of the same examples, laid out for this one, which shares no rows."""
        (segment,) = self.segments
        rows = tuple(row for block in blocks for row in block.rows)
        device = segment.members.device
        if not rows:
            return [RowBlock((), blocks[0].data.new_empty((len(segment.members), 0, blocks[0].data.shape[-1])))]
        out = None
        for name, repeats in segment.repeats.items():
            found = other.rows_of(blocks, rows, name)
            out = found.new_empty((len(segment.members), *found.shape[1:])) if out is None else out
            out[repeats.places(device)] = found
        assert out is not None
        return [RowBlock(rows, out)]

    def within(self, blocks: list[RowBlock], parent: PrefixGroups) -> list[RowBlock]:
        """Blocks of a parent run, narrowed to the inputs that this run has."""
        if parent is self:
            return blocks
        narrowed = []
        for mine, theirs, block in zip(self.segments, parent.segments, blocks, strict=True):
            where = torch.searchsorted(theirs.members, mine.members)
            narrowed.append(RowBlock(block.rows, Repeats.of(where, len(theirs.members)).gather(block.data)))
        return narrowed


class Inputs:
    """All inputs of one kind (tokens, or states) of a batch of examples, with equal ones held once.

    `named[name]` [examples, T, ...] are aligned: example i of every name belongs together.
    """

    def __init__(self, named: dict[str, Tensor], closed: Bool[Tensor, " T"] | None = None) -> None:
        """`closed` says for every number of leading rows whether none of them sees a row behind; None: of all."""
        stacked = torch.cat(list(named.values()))
        if stacked.is_floating_point():
            self.distinct = stacked
            inverse = torch.arange(len(stacked), device=stacked.device)
        else:
            self.distinct, inverse = torch.unique(stacked, dim=0, return_inverse=True)
        self.index = dict(zip(named, inverse.split([len(t) for t in named.values()]), strict=True))
        self.length = stacked.shape[1]
        self.split = 0 if stacked.is_floating_point() else shared_rows(self.distinct, closed)
        first = torch.ones(len(self.distinct), dtype=torch.bool, device=stacked.device)
        first[1:] = (self.distinct[1:, : self.split] != self.distinct[:-1, : self.split]).flatten(1).any(1)
        self.group = first.cumsum(0) - 1
        self.first = first.nonzero()[:, 0]  # an input of each group
        self._known: dict[frozenset[str], PrefixGroups] = {}

    def prefix_groups(self, names: frozenset[str]) -> PrefixGroups:
        """The distinct inputs found under any of these names."""
        if names not in self._known:
            self._known[names] = self._gather(names)
        return self._known[names]

    def _gather(self, names: frozenset[str]) -> PrefixGroups:
        members = torch.unique(torch.cat([self.index[name] for name in sorted(names)]))
        at = {name: torch.searchsorted(members, self.index[name]) for name in names}
        repeats = {name: Repeats.of(index, len(members)) for name, index in at.items()}
        if not self.split:
            whole = Segment(tuple(range(self.length)), members, repeats)
            return PrefixGroups((whole,), Repeats(len(members)))
        groups, place = torch.unique(self.group[members], return_inverse=True)
        shared_repeats = {name: Repeats.of(place[index], len(groups)) for name, index in at.items()}
        leading = Segment(tuple(range(self.split)), groups, shared_repeats)
        trailing = Segment(tuple(range(self.split, self.length)), members, repeats)
        return PrefixGroups((leading, trailing), Repeats.of(place, len(groups)))

    def laid_out(self, prefix_groups: PrefixGroups, h: Tensor) -> list[RowBlock]:
        """What the distinct inputs have, [distinct, T, ...], laid out for some inputs."""
        *leading, trailing = prefix_groups.segments
        blocks = [RowBlock(each.rows, h[self.first[each.members], : self.split]) for each in leading]
        return [*blocks, RowBlock(trailing.rows, h[trailing.members, self.split :])]


def shared_rows(tokens: Int[Tensor, "inputs T"], closed: Bool[Tensor, " T"] | None = None) -> int:
    """How many leading rows to hold once per group, so that the fewest rows are held.  `tokens`: sorted, distinct.

    Only numbers of rows that are `closed` may be chosen: none of these rows sees a row behind them.
    """
    count, length = tokens.shape
    if count < 2:
        return 0
    agree = (tokens[1:] == tokens[:-1]).long().cumprod(1).sum(1)  # leading tokens each input shares with the one before
    splits = torch.arange(length, device=tokens.device)
    groups = 1 + (agree[None, :] < splits[:, None]).sum(1)
    held = groups * splits + count * (length - splits)
    if closed is not None:
        held = torch.where(closed.to(held.device), held, count * length + 1)
    return int(held.argmin())
