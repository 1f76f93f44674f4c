"""Maps for k hops and their controls, as values: which block follows J, which rows J acts on, its rank, its budget.

The paper fits J for one hop and for two.  Here J is fitted for `HOPS`, each from the same h_L with one more call, with
the backbone's own block and under controls; `recipes.py` makes the recipes, `experiments.selecting` measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HOPS = (-1, 0, 1, 2, 3, 4)
"""J_k is to answer f^(8 + k)(s)."""

OTHER = "relations-0"
"""The backbone of another task whose block and readout take the place of the walker's: its ten first entities are the
nodes.  That of parity has too few answers to say ten nodes."""

Rows = Literal["all", "answer", "edges", "query"]
Budget = Literal["full", "brief"]
BUDGETS: tuple[Budget, ...] = ("full", "brief")
"""The published 8,000 updates, or few enough for a CPU."""


@dataclass(frozen=True)
class Control:
    """One way of fitting J: the block after it (see `training.controls`), the rows it acts on, its rank."""

    name: str
    about: str
    block: str = "trained"
    rows: Rows = "all"
    rank: int = 48

    def target(self, hops: int, budget: Budget = "full") -> str:
        """What the recipe for so many hops is called: hops-1, hops-minus1-permuted, brief-hops-2-rank-4, ..."""
        name = f"hops-{'minus' if hops < 0 else ''}{abs(hops)}"
        return ("" if budget == "full" else "brief-") + name + ("" if self.name == "trained" else f"-{self.name}")


BLOCKS = (
    Control("trained", "F as trained"),
    Control("permuted", "F with permuted weights", "permuted"),
    Control("other", f"F and readout of {OTHER}", OTHER),
    Control("none", "no F: J(h) is read", "none"),
)
"""What follows J."""

PARTS = (
    Control("answer", "J on ANSWER alone", rows="answer"),
    Control("edges", "J on the edges alone", rows="edges"),
    Control("query", "J on the query alone", rows="query"),
    Control("rank-1", "J of rank 1", rank=1),
    Control("rank-4", "J of rank 4", rank=4),
    Control("rank-16", "J of rank 16", rank=16),
)
"""Less of J, before F as trained."""

CONTROLS = (*BLOCKS, *PARTS)
