"""Means of many cells at once, each with its bootstrap interval over examples or clusters of examples.

`stats` has intervals for one number at a time, and for accuracies.  Here a cell is any place of a measurement, such as
one layer after one loop, and every example has a value in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike

from loopscope.errors import InputError
from loopscope.resampling import Seed, draw
from loopscope.stats import check_level, wilson

DRAWS = 1_000
"""Samples of a bootstrap, where nothing else is asked for."""

AT_ONCE = 1 << 22
"""Entries of draws times cells that are held at a time."""


@dataclass(frozen=True, eq=False, repr=False)
class Estimates:
    """A mean for every cell and its interval; `low` and `high` are NaN where there is only one cluster to resample.

    `n` counts the examples that have a value in the cell.
    """

    value: Float[np.ndarray, "*cells"]
    low: Float[np.ndarray, "*cells"]
    high: Float[np.ndarray, "*cells"]
    n: Int[np.ndarray, "*cells"]

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        there = self.value[~np.isnan(self.value)]
        ends = f" from {there.min():.4g} to {there.max():.4g}" if len(there) else ""
        return f"<estimates: {list(self.value.shape)}{ends}>"

    def flat(self) -> Estimates:
        """The cells in one axis."""
        return Estimates(*(each.reshape(-1) for each in (self.value, self.low, self.high, self.n)))


def means(
    values: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    seed: Seed = 0,
    draws: int = DRAWS,
    level: float = 0.95,
    share: bool = False,
) -> Estimates:
    """The mean of every cell of `values` [examples, *cells] over examples, with a percentile interval.

    - A NaN is no value: the example does not count in that cell.  A cell without any has a NaN mean.
    - `clusters` has one id per example, and all examples of a cluster are drawn together; by default each is its own.
      The mean is that of the examples, whatever their clusters.
    - All cells are resampled alike.  A draw in which a cell has no example does not count for its interval.
    - `share`: the values are shares, from 0 to 1.  Where all of a cell are 0, or all are 1, its interval is Wilson's
      over its examples or clusters: resampled they would never be other than they are, and would look certain.

    InputError for infinite values, no examples, or clusters that do not fit.
    """
    check_level(level)
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or len(array) == 0:
        raise InputError(f"means are taken over examples: got values of shape {list(array.shape)}")
    if np.isinf(array).any():
        raise InputError(f"{int(np.isinf(array).sum())} values to be averaged are infinite")
    cells = array.shape[1:]
    table = array.reshape(len(array), -1)
    there = ~np.isnan(table)
    sums, counts = np.where(there, table, 0.0), there.astype(np.float64)
    n = counts.sum(0)
    value = np.divide(sums.sum(0), n, out=np.full(len(n), np.nan), where=n > 0)
    if clusters is not None:
        sums, counts = _by_cluster(sums, counts, np.asarray(clusters))
    low, high = np.full((2, len(n)), np.nan)
    several = (counts > 0).sum(0) > 1  # one cluster resamples to itself: its interval would look like certainty
    if several.any():
        weights = draw(seed, draws, len(sums)).astype(np.float64)
        step = max(1, AT_ONCE // draws)
        for some in np.array_split(np.flatnonzero(several), range(step, int(several.sum()), step)):
            weighed = weights @ counts[:, some]
            drawn = np.divide(weights @ sums[:, some], weighed, out=np.full(weighed.shape, np.nan), where=weighed > 0)
            quantile = np.nanquantile if np.isnan(drawn).any() else np.quantile
            low[some], high[some] = quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    if share:
        units = (counts > 0).sum(0)
        for at in np.flatnonzero(several & ((value == 0) | (value == 1))):
            found = wilson(int(value[at]) * int(units[at]), int(units[at]), level)
            low[at], high[at] = found.low, found.high
    return Estimates(*(each.reshape(cells) for each in (value, low, high, n.astype(np.int64))))


def _by_cluster(
    sums: Float[np.ndarray, "examples cells"],
    counts: Float[np.ndarray, "examples cells"],
    clusters: Shaped[np.ndarray, " ids"],
) -> tuple[Float[np.ndarray, "clusters cells"], Float[np.ndarray, "clusters cells"]]:
    if clusters.shape != (len(sums),):
        raise InputError(f"{len(sums)} examples need as many cluster ids, not {list(clusters.shape)}")
    ids, member = np.unique(clusters, return_inverse=True)
    found = np.zeros((2, len(ids), sums.shape[1]))
    np.add.at(found[0], member, sums)
    np.add.at(found[1], member, counts)
    return found[0], found[1]


def rank_correlation(
    one: ArrayLike,
    two: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
    seed: Seed = 0,
    draws: int = DRAWS,
    level: float = 0.95,
) -> dict[str, float | None]:
    """Spearman's rank correlation between the means of two measurements [examples, *cells] over all their cells.

    `value`, and a percentile interval, `low` and `high`, that resamples examples or the clusters they are given in.
    Equal means share their ranks.  None where there is none: of fewer than two cells, of cells that are all equal, and
    of one cluster alone.  InputError as `means`, and for a value that is missing.
    """
    found = means(one, draws=1), means(two, draws=1)
    arrays = [np.asarray(each, dtype=np.float64).reshape(len(np.asarray(each)), -1) for each in (one, two)]
    if arrays[0].shape != arrays[1].shape or any(np.isnan(each).any() for each in arrays):
        shapes = " and ".join(str(list(each.shape)) for each in arrays)
        raise InputError(f"a rank correlation is between two values for each example and cell, not {shapes}")
    check_level(level)
    value = _spearman(*(each.value.reshape(-1) for each in found))
    counts = np.ones_like(arrays[0][:, :1])
    if clusters is not None:
        sums, more = _by_cluster(
            np.concatenate(arrays, 1), np.tile(counts, 2 * arrays[0].shape[1]), np.asarray(clusters)
        )
        arrays, counts = np.split(sums, 2, axis=1), more[:, :1]
    low = high = None
    if len(counts) > 1 and value is not None:
        drawn = []
        for weights in draw(seed, draws, len(counts)).astype(np.float64):
            size = float(weights @ counts[:, 0])
            again = _spearman(*(weights @ each / size for each in arrays))
            drawn += [] if again is None else [again]
        if drawn:
            low, high = (float(each) for each in np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]))
    return {"value": value, "low": low, "high": high}


def _spearman(one: Float[np.ndarray, " cells"], two: Float[np.ndarray, " cells"]) -> float | None:
    if min(len(np.unique(each)) for each in (one, two)) < 2:
        return None
    x, y = (_ranks(each) - (len(each) + 1) / 2 for each in (one, two))
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def _ranks(values: Float[np.ndarray, " cells"]) -> Float[np.ndarray, " cells"]:
    """Ranks from 1; equal values have the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[place]
