"""Counting: shares of instances as quantities, with intervals.

The studies of graph walks count in one way: of the instances that count, in how many is something so?  The starts of a
graph succeed or fail together, so graphs are what is resampled.  Fits of a map, and strings of maps, have a share each,
and the mean of these is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from loopscope.quantity import At, Quantity
from loopscope.stats import Estimate, cluster_bootstrap_later, cluster_bootstraps_later, tally
from loopscope.studies.trained import Walks

SEED = 2026092317
"""Of the bootstraps over graphs."""

OTHER = "other"
"""An answer that is none of the nodes asked about."""


def node(steps: int) -> str:
    """The node so many steps after u, as it is written."""
    return f"f^{steps}(u)" if steps > 1 else ("u", "f(u)")[steps]


def share(
    id: str,
    label: str,
    hits: Bool[Tensor, "*fits n"],
    walks: Walks,
    at: At = MappingProxyType({}),
    *,
    counted: Bool[Tensor, "*some n"] | None = None,
    minus: Bool[Tensor, "*others n"] | None = None,
    published: float | None = None,
) -> Quantity:
    """How often something is so among the instances that count, or how much more often than `minus` (paired).

    `counted`: those that count in each fit, in place of `walks.kept`; n is then that of the fit with the fewest.  Where
    fewer than two graphs count in some fit there is no interval (NaN), and where none does, no value either.
    """
    kept = walks.kept if counted is None else counted
    a, *b = (tally(each, walks.clusters, kept) for each in (hits, minus) if each is not None)
    n = int(kept.sum(-1).min())
    if (a.eligible > 0).sum(-1).min() >= 2:
        return Quantity(id, label, cluster_bootstrap_later(a, *b, seed=SEED), n, published, at)
    first, *others = (float(each.accuracy().mean()) for each in (a, *b))
    alone = Estimate(first - sum(others), math.nan, math.nan, a.clusters, "graph", 0)
    return Quantity(id, label, alone, n, published, at)


def shares_by_fit(
    id: str, label: str, hits: Bool[Tensor, "fits n"], walks: Walks, at: At, *,
    counted: Bool[Tensor, "fits n"] | None = None, published: Sequence[float] = (),
) -> list[Quantity]:  # fmt: skip
    """`share`, and then that of every fit by itself: `id.fit`; `published` numbers are in the same order."""
    known = dict(enumerate(published))
    rows = [share(id, label, hits, walks, at, counted=counted, published=known.get(0))]
    for fit in range(1, 1 + len(hits)):
        alone, some = hits[fit - 1 : fit], None if counted is None else counted[fit - 1 : fit]
        called, where = f"{label}, fit {fit}", {**at, "fit": fit}
        rows.append(share(f"{id}.fit", called, alone, walks, where, counted=some, published=known.get(fit)))
    return rows


def distribution(
    id: str,
    answers: Integer[Tensor, "fits n"],
    walks: Walks,
    steps: Iterable[int],
    at: At,
    *,
    label: str = "",
    published: Mapping[str, float] | None = None,
) -> list[Quantity]:
    """How often the node answered is that so many steps after u, for each of these, and how often another.

    `at` gets the `answer` as `node` writes it, or `OTHER`; labels are `label` and the answer; `published` by answer.
    The nodes must differ in all instances that count.
    """
    hits = {node(each): answers == walks.ahead(each) for each in steps}
    hits[OTHER] = ~torch.stack(list(hits.values())).any(0)
    shares = cluster_bootstraps_later(tally(np.stack(list(hits.values())), walks.clusters, walks.kept), seed=SEED)
    known, n = published or {}, int(walks.kept.sum())
    return [
        Quantity(id, label + answer, estimate, n, known.get(answer), {**at, "answer": answer})
        for answer, estimate in zip(hits, shares, strict=True)
    ]
