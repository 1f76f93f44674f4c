"""How examples lie among the rows of a state: what only embedding, attention and reading need to know.

Everything else in a layer works row by row.  `ops` is the module of operations, `ops.py` or `kernels.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.tasks.graph_walk import GraphWalk
from loopscope.training.ops import BEGUN, Beginnings, Weight


@runtime_checkable
class Layout(Protocol):
    """The places of B examples of `tokens` tokens each among the M rows of a seed."""

    @property
    def tokens(self) -> int:
        """T, the length of an example."""
        ...

    def embed(
        self,
        ops: Any,
        table: Float[Tensor, "S V d"],
        positions: Float[Tensor, "S places d"] | None,
        tokens: Int[Tensor, "S B T"],
    ) -> Float[Tensor, "S M d"]:
        """Every row's entry of the table, and that of its place in the example where there are positions."""
        ...

    def at(self, row: int) -> slice:
        """Where this row of each example lies, examples in order."""
        ...

    def attention(
        self, ops: Any, qkv: Float[Tensor, "S M three_d"], bias: Weight | None, heads: int
    ) -> Float[Tensor, "S M d"]:
        """Causal attention inside each example, from q, k, v side by side."""
        ...

    def answer_attention(
        self, ops: Any, q: Float[Tensor, "S B d"], kv: Float[Tensor, "S M two_d"], heads: int
    ) -> Float[Tensor, "S B d"]:
        """Attention of the examples' last rows over all of their rows."""
        ...


class Runs(NamedTuple):
    """One example after another, each a run of `tokens` rows."""

    tokens: int

    def embed(
        self,
        ops: Any,
        table: Float[Tensor, "S V d"],
        positions: Float[Tensor, "S places d"] | None,
        tokens: Int[Tensor, "S B T"],
    ) -> Float[Tensor, "S M d"]:
        """As `Layout` says."""
        x = ops.embed(table, tokens.flatten(1))
        if positions is not None:
            x = (x.unflatten(1, tokens.shape[1:]) + positions[:, None, : self.tokens]).flatten(1, 2)
        return x

    def at(self, row: int) -> slice:
        """As `Layout` says."""
        return slice(row, None, self.tokens)

    def attention(
        self, ops: Any, qkv: Float[Tensor, "S M three_d"], bias: Weight | None, heads: int
    ) -> Float[Tensor, "S M d"]:
        """As `Layout` says."""
        return ops.attention(qkv, bias, self.tokens, heads)

    def answer_attention(
        self, ops: Any, q: Float[Tensor, "S B d"], kv: Float[Tensor, "S M two_d"], heads: int
    ) -> Float[Tensor, "S B d"]:
        """As `Layout` says."""
        return ops.answer_attention(q, kv, self.tokens, heads)


class SharedBeginnings:
    """Graph walks whose first nine rows, which take few values, are computed once for all examples of a seed.

    Exact: the rows left out are copies of those kept (see `ops.Beginnings`).  Made for one batch of permutations
    [S, B, N] of at least three nodes, without waiting for the device.
    """

    def __init__(self, task: GraphWalk, graphs: Int[Tensor, "S B N"]) -> None:
        seeds, batch, nodes = graphs.shape
        assert nodes > 2, f"the first nine rows of a walk on {nodes} nodes are not those of three arrows"
        others, all_variants = nodes - 1, torch.arange(nodes * (nodes - 1), device=graphs.device)
        first, second = graphs[..., 0], graphs[..., 1]
        variant = first * others + second - (second > first).long()
        numbers = torch.cat([variant, all_variants.expand(seeds, -1)], 1)
        self.begun = Beginnings(numbers, batch, task.length, nodes)
        first, place = all_variants // others, all_variants % others
        arrows = torch.stack([first, place + (place >= first).long()], 1)
        rest = arrows.new_zeros(len(arrows), nodes - 2)  # of no account: these arrows come after the beginning
        tokens = task.tokens(torch.cat([arrows, rest], 1), rest[:, 0], check=False)
        self.beginnings = tokens[:, :BEGUN].expand(seeds, -1, -1)

    @property
    def tokens(self) -> int:
        """As `Layout` says."""
        return self.begun.tokens

    def embed(
        self,
        ops: Any,
        table: Float[Tensor, "S V d"],
        positions: Float[Tensor, "S places d"] | None,
        tokens: Int[Tensor, "S B T"],
    ) -> Float[Tensor, "S M d"]:
        """As `Layout` says."""
        later = None if positions is None else positions[:, BEGUN:]
        own = Runs(self.begun.own).embed(ops, table, later, tokens[..., BEGUN:])
        begun = Runs(BEGUN).embed(ops, table, positions, self.beginnings)
        return self.begun.pack(own.unflatten(1, (-1, self.begun.own)), begun.unflatten(1, (-1, BEGUN)))

    def at(self, row: int) -> slice:
        """As `Layout` says, for rows that are the examples' own."""
        assert row >= BEGUN, f"row {row} is shared: an example's own rows start at {BEGUN}"
        return slice(row - BEGUN, self.begun.batch * self.begun.own, self.begun.own)

    def attention(
        self, ops: Any, qkv: Float[Tensor, "S M three_d"], bias: Weight | None, heads: int
    ) -> Float[Tensor, "S M d"]:
        """As `Layout` says; models of graph walks have no bias there."""
        assert bias is None, "attention with shared beginnings takes no bias"
        return ops.shared_attention(qkv, self.begun, heads)

    def answer_attention(
        self, ops: Any, q: Float[Tensor, "S B d"], kv: Float[Tensor, "S M two_d"], heads: int
    ) -> Float[Tensor, "S B d"]:
        """As `Layout` says."""
        return ops.shared_answer_attention(q, kv, self.begun, heads)


def layout_of(layout: Layout | int) -> Layout:
    """The layout itself; a number stands for runs of so many tokens."""
    return Runs(layout) if isinstance(layout, int) else layout
