"""Shares and differences of answers of language models, with how sure they are.

Shares are of independent pairs, sequences or requests, with Wilson intervals.  Differences between two conditions are
paired: pairs (or prompts) are resampled 10,000 times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool

from loopscope.measure.replies import answers_name
from loopscope.quantity import Coordinate, Quantity
from loopscope.stats import Estimate, cluster_bootstrap_later, wilson
from loopscope.stats import tally as by_cluster

DRAWS, SEED = 10_000, 0

Right = Bool[np.ndarray, " examples"]


def share(
    id: str,
    label: str,
    right: Right,
    at: Mapping[str, Coordinate],
    published: float | None = None,
    unit: str = "pair",
) -> Quantity:
    """How many are right, with a Wilson interval."""
    return Quantity(id, label, wilson(int(right.sum()), len(right), unit=unit), len(right), published, at)


def difference(one: Right, other: Right, clusters: Sequence[object] | None = None, unit: str = "pair") -> Estimate:
    """One share minus another on the same examples, by a bootstrap over pairs, or over clusters of equal examples."""
    ids = (
        np.arange(len(one)) if clusters is None else np.unique([str(each) for each in clusters], return_inverse=True)[1]
    )
    return cluster_bootstrap_later(by_cluster(one, ids), by_cluster(other, ids), seed=SEED, draws=DRAWS, unit=unit)


def by_depth(
    id: str, published: Mapping[str, Sequence[int]], of: int, unit: str, templates: Sequence[int], longest: int,
    right: Callable[[int, bool, int], Right], where: Mapping[str, Coordinate] = MappingProxyType({}),
) -> list[Quantity]:  # fmt: skip
    """What is right at every depth in each wording, without J and with it; the paper counts right ones `of` so many.

    Coordinates are those of `where`, `template`, `steered` and `k`.
    """
    rows = []
    for template, steered in product(templates, (False, True)):
        name = answers_name(template, steered)
        for k in range(1, longest + 1):
            paper = published[name][k - 1] / of if name in published else None
            at = {**where, "template": template, "steered": steered, "k": k}
            rows.append(share(id, f"{name}, k = {k}", right(template, steered, k), at, paper, unit))
    return rows
