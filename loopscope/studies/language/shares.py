"""Shares and differences of answers of language models, with how sure they are.

Shares are of independent pairs, sequences or requests, with Wilson intervals.  Differences between two conditions are
paired: pairs (or prompts) are resampled 10,000 times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from jaxtyping import Bool

from loopscope.measure.replies import answers_name
from loopscope.stats import Estimate, cluster_bootstrap, wilson
from loopscope.stats import tally as by_cluster
from loopscope.studies.records import Row

DRAWS, SEED = 10_000, 0

Right = Bool[np.ndarray, " examples"]


def share(name: str, right: Right, paper: float | None = None, unit: str = "pair") -> Row:
    """How many are right, with a Wilson interval."""
    return Row(name, wilson(int(right.sum()), len(right), unit=unit), len(right), paper)


def difference(one: Right, other: Right, clusters: Sequence[object] | None = None, unit: str = "pair") -> Estimate:
    """One share minus another on the same examples, by a bootstrap over pairs, or over clusters of equal examples."""
    ids = (
        np.arange(len(one)) if clusters is None else np.unique([str(each) for each in clusters], return_inverse=True)[1]
    )
    return cluster_bootstrap(by_cluster(one, ids), by_cluster(other, ids), seed=SEED, draws=DRAWS, unit=unit)


def by_depth(
    published: Mapping[str, Sequence[int]], of: int, unit: str, templates: Sequence[int], longest: int,
    right: Callable[[int, bool, int], Right],
) -> list[Row]:  # fmt: skip
    """What is right at every depth in each wording, without J and with it; the paper counts right ones `of` so many."""
    rows = []
    for template, steered in product(templates, (False, True)):
        name = answers_name(template, steered)
        for k in range(1, longest + 1):
            paper = published[name][k - 1] / of if name in published else None
            rows.append(share(f"{name}, k = {k}", right(template, steered, k), paper, unit))
    return rows
