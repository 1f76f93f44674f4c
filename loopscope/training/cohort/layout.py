"""How examples lie among the rows of a state: what only embedding, attention and reading need to know.

Everything else in a layer works row by row.  `ops` is the module of operations, `ops.py` or `kernels.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.tasks.graph_walk import GraphWalk
from loopscope.training.cohort.ops import BEGUN, Beginnings, Weight


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

    @property
    def row_of(self) -> list[int]:
        """Which row of its example each row of a piece is; here a piece is an example."""
        return list(range(self.tokens))

    def pieces(self, x: Float[Tensor, "S M c"]) -> Float[Tensor, "S B T c"]:
        """The rows of each example."""
        return x.unflatten(1, (-1, self.tokens))

    def pack(self, pieces: Float[Tensor, "S B T c"]) -> Float[Tensor, "S M c"]:
        """What `pieces` was given."""
        return pieces.flatten(1, 2)


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


class AllStarts(NamedTuple):
    """Graph walks in which every graph is asked for all of its N starts; rows before QUERY are computed once a graph.

    Exact: attention is causal, so no start changes those rows.  A *piece* is what belongs to one graph: the rows before
    QUERY, then the own rows of each start.  The rows of a seed are those of the examples' own, one example after
    another, then those of each graph.
    """

    task: GraphWalk
    graphs: int

    @property
    def tokens(self) -> int:
        """As `Layout` says."""
        return self.task.length

    @property
    def shared(self) -> int:
        """How many rows the starts of a graph have in common."""
        return self.task.query_row

    @property
    def own(self) -> int:
        """How many rows an example has for itself."""
        return self.task.length - self.task.query_row

    @property
    def row_of(self) -> list[int]:
        """Which row of its example each row of a piece is."""
        return [*range(self.shared), *[*range(self.shared, self.tokens)] * self.task.nodes]

    def embed(
        self,
        ops: Any,
        table: Float[Tensor, "S V d"],
        positions: Float[Tensor, "S places d"] | None,
        tokens: Int[Tensor, "S B T"],
    ) -> Float[Tensor, "S M d"]:
        """As `Layout` says."""
        later = None if positions is None else positions[:, self.shared :]
        own = Runs(self.own).embed(ops, table, later, tokens[..., self.shared :])
        begun = tokens[:, :: self.task.nodes, : self.shared]
        return torch.cat([own, Runs(self.shared).embed(ops, table, positions, begun)], 1)

    def at(self, row: int) -> slice:
        """As `Layout` says, for rows that are the examples' own."""
        assert row >= self.shared, f"row {row} is shared: an example's own rows start at {self.shared}"
        return slice(row - self.shared, self.graphs * self.task.nodes * self.own, self.own)

    def pieces(self, x: Float[Tensor, "S M c"]) -> Float[Tensor, "S G R c"]:
        """The rows of each graph."""
        own, shared = x.tensor_split([self.graphs * self.task.nodes * self.own], 1)
        return torch.cat([each.unflatten(1, (self.graphs, -1)) for each in (shared, own)], 2)

    def pack(self, pieces: Float[Tensor, "S G R c"]) -> Float[Tensor, "S M c"]:
        """What `pieces` was given."""
        return torch.cat([pieces[:, :, self.shared :].flatten(1, 2), pieces[:, :, : self.shared].flatten(1, 2)], 1)

    def visible(self, device: torch.device) -> Bool[Tensor, "R R"]:
        """Which rows of a piece each row may see: of its own start and of none, up to itself."""
        row = torch.arange(self.shared + self.task.nodes * self.own, device=device)
        start = torch.where(row < self.shared, -1, (row - self.shared) // self.own)
        return (row <= row[:, None]) & ((start == -1) | (start == start[:, None]))

    def attention(
        self, ops: Any, qkv: Float[Tensor, "S M three_d"], bias: Weight | None, heads: int
    ) -> Float[Tensor, "S M d"]:
        """As `Layout` says."""
        pieces = self.pieces(ops.add(qkv, None, bias))
        q, k, v = (part.transpose(2, 3) for part in pieces.unflatten(-1, (3, heads, -1)).unbind(3))
        z = nnf.scaled_dot_product_attention(q, k, v, attn_mask=self.visible(qkv.device))
        return self.pack(z.transpose(2, 3).flatten(3))

    def answer_attention(
        self, ops: Any, q: Float[Tensor, "S B d"], kv: Float[Tensor, "S M two_d"], heads: int
    ) -> Float[Tensor, "S B d"]:
        """As `Layout` says."""
        k, v = (part.transpose(2, 3) for part in self.pieces(kv).unflatten(-1, (2, heads, -1)).unbind(3))
        asked = q.unflatten(1, (self.graphs, -1)).unflatten(-1, (heads, -1)).transpose(2, 3)
        seen = self.visible(q.device)[self.shared + self.own - 1 :: self.own]  # by the last row of each start
        z = nnf.scaled_dot_product_attention(asked, k, v, attn_mask=seen)
        return z.transpose(2, 3).flatten(3).flatten(1, 2)


def layout_of(layout: Layout | int) -> Layout:
    """The layout itself; a number stands for runs of so many tokens."""
    return Runs(layout) if isinstance(layout, int) else layout
