"""The uncertainty beside every number: Wilson, cluster bootstrap, moving-block bootstrap.

Three questions come up, each with its own unit of resampling:

- How sure is one proportion of independent examples?  `wilson`.  And that of two conditions on the same examples one is
  right more often?  `sign_test`.
- How sure is an accuracy whose examples come in graphs (all starts of a graph succeed or fail together), measured with
  several map fits and perhaps several backbones?  Count per graph with `tally`, then `cluster_bootstrap` (new graphs,
  these backbones; of several accuracies at once `cluster_bootstraps`; where few intervals are
  looked at, `cluster_bootstrap_later`) or `backbone_bootstrap` (new backbones and new
  graphs).  `mean_bootstrap` and `mean_sd` serve where one number per backbone is all there is.
- How sure is the slope of a line whose residuals hang together from one point to the next?  `fit_line` and
  `moving_block_bootstrap`; `loopscope.studies.parity.phase` uses them for the drift of parity readouts.

Everything is NumPy in float64, but for sums that float32 holds exactly.  Functions that draw take `seed`: an int, or a
Generator to continue.  Intervals are percentile intervals.  Unusable input raises `InputError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike

from loopscope.errors import InputError
from loopscope.resampling import Seed, check_draws, draw, draw_within, generator


@dataclass(frozen=True)
class Estimate:
    """A number with its interval [low, high], from `n` units of kind `unit`; `draws` is 0 for a closed formula."""

    value: float
    low: float
    high: float
    n: int
    unit: str
    draws: int

    @classmethod
    def later(cls, value: float, n: int, unit: str, bounds: Callable[[], tuple[float, float, int]]) -> Estimate:
        """One whose `bounds`, which are low, high and draws, are computed when one of them is first asked for."""
        made = object.__new__(cls)
        vars(made).update(value=value, n=n, unit=unit, _bounds=bounds)
        return made

    def __getattr__(self, name: str) -> float:
        """Python asks here for what is not there: the bounds of one made by `later`."""
        bounds = vars(self).get("_bounds")
        if bounds is None or name not in ("low", "high", "draws"):
            raise AttributeError(name)
        found = dict(zip(("low", "high", "draws"), bounds(), strict=True))
        vars(self).update(found)
        vars(self).pop("_bounds", None)
        return found[name]

    def __reduce__(self) -> tuple[type[Estimate], tuple[float, float, float, int, str, int]]:
        """A copy, or one that goes to another process, has its bounds."""
        return Estimate, (self.value, self.low, self.high, self.n, self.unit, self.draws)


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (ddof 1) of `n` values."""

    mean: float
    sd: float
    n: int

    def estimate(self, unit: str) -> Estimate:
        """The mean, with one SD to either side in place of an interval, as its unit says."""
        return Estimate(self.mean, self.mean - self.sd, self.mean + self.sd, self.n, f"{unit}, mean ± SD", 0)


# ---------------------------------------------------------------------------------------------------------------------
# Proportions and plain means


def wilson(successes: int, n: int, level: float = 0.95, *, unit: str = "example") -> Estimate:
    """Wilson score interval of `successes` out of `n` independent trials.  No trials (n = 0) is an InputError."""
    check_level(level)
    if not (n >= 1 and 0 <= successes <= n):
        raise InputError(f"Wilson interval of {successes} out of {n}: needs n >= 1 and 0 <= successes <= n")
    p = successes / n
    z = -NormalDist().inv_cdf((1 - level) / 2)
    shrink = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    # Rounding may leave 1e-17 where the formula says exactly 0 or 1; the interval must still contain p.
    return Estimate(p, min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half)), int(n), unit, 0)


def sign_test(more: int, fewer: int) -> float:
    """Exact two-sided sign test: how likely is so uneven a split of discordant examples, if either side were as likely?

    `more` and `fewer` count the examples on which only the one, and only the other of two conditions is right.  1
    without any.  InputError for a negative count.
    """
    if more < 0 or fewer < 0:
        raise InputError(f"a sign test of {more} against {fewer} examples: both are counts")
    n, least = more + fewer, min(more, fewer)
    tail = sum(math.comb(n, k) for k in range(least + 1))
    return min(1.0, 2 * tail / 2**n)  # of whole numbers, so that many examples are no trouble


def mean_sd(values: ArrayLike) -> Spread:
    """Mean and sample SD of one-dimensional `values`; at least two are needed."""
    array = _units(values)
    return Spread(float(array.mean()), float(array.std(ddof=1)), len(array))


def mean_bootstrap(
    values: ArrayLike, *, seed: Seed, draws: int = 10_000, level: float = 0.95, unit: str = "backbone"
) -> Estimate:
    """Mean of one-dimensional `values` (say twelve backbone means), the units resampled with replacement."""
    array = _units(values)
    check_level(level)
    means = draw(seed, draws, len(array)) @ array / len(array)
    return _estimate(float(array.mean()), means, level, len(array), unit)


# ---------------------------------------------------------------------------------------------------------------------
# Accuracies of clustered examples


@dataclass(frozen=True, eq=False, repr=False)
class Tally:
    """Correct and eligible examples per cluster (graph); each leading axis is a fit, a backbone or the like.

    A row's accuracy is the ratio of its sums, so rows may have different eligible sets.  `ids` name the clusters; two
    tallies can be compared only if they agree on them.  Raises InputError unless 0 <= correct <= eligible throughout.
    """

    correct: Float[np.ndarray, "*rows clusters"]
    eligible: Float[np.ndarray, "*rows clusters"]
    ids: Shaped[np.ndarray, " clusters"] | None = None

    def __repr__(self) -> str:
        return f"<tally: {self.correct.sum():g} of {self.eligible.sum():g} in {self.correct.shape[-1]:,} clusters>"

    def __post_init__(self) -> None:
        correct, eligible = as_floats("correct", self.correct), as_floats("eligible", self.eligible)
        if correct.shape != eligible.shape or correct.ndim == 0:
            raise InputError(f"a tally needs one shape (*rows, clusters): got {correct.shape} and {eligible.shape}")
        for place in np.argwhere((correct < 0) | (correct > eligible)):
            at = tuple(place.tolist())
            raise InputError(f"a tally has {correct[at]:g} correct of {eligible[at]:g} eligible at {at}")
        if self.ids is not None and np.shape(self.ids) != correct.shape[-1:]:
            raise InputError(f"a tally of {correct.shape[-1]} clusters got ids of shape {np.shape(self.ids)}")
        object.__setattr__(self, "correct", correct)
        object.__setattr__(self, "eligible", eligible)

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return int(self.correct.shape[-1])

    def accuracy(self, weights: ArrayLike | None = None) -> Float[np.ndarray, "*draws_and_rows"]:
        """Ratio of sums per row, (*rows); NaN where nothing is eligible.

        With `weights` (draws, clusters), how often each draw counts each cluster, the result is (draws, *rows).
        """
        counts = np.ones(self.clusters) if weights is None else np.asarray(weights, dtype=np.float64)
        return _ratios([self], counts)[0]


def tally(correct: ArrayLike, clusters: ArrayLike, eligible: ArrayLike | None = None) -> Tally:
    """Count per-example results by cluster; clusters come in sorted order.

    `correct` is 0/1 of shape (*rows, examples), `clusters` holds one id per example, (examples,).  `eligible` is 0/1
    and broadcasts to `correct` (default: all); results of examples that are not eligible are ignored.  Leave examples
    out by this mask, not by dropping them: a graph without any examples would vanish from the tally.
    """
    result = as_floats("correct", correct)
    mask = np.ones(()) if eligible is None else as_floats("eligible", eligible)
    groups = np.asarray(clusters)
    if result.ndim == 0 or groups.shape != result.shape[-1:]:
        raise InputError(f"tally needs one cluster id per example: got ids {groups.shape} for results {result.shape}")
    if groups.dtype.kind == "f" and np.isnan(groups).any():
        raise InputError("tally needs one cluster id per example: some ids are NaN")
    try:
        mask = np.broadcast_to(mask, result.shape)
    except ValueError:
        raise InputError(f"tally cannot spread eligible {mask.shape} over results {result.shape}") from None
    if not (np.isin(result, (0, 1)).all() and np.isin(mask, (0, 1)).all()):
        raise InputError("tally counts examples: correct and eligible must be 0 or 1 for every example")
    ids, member = np.unique(groups, return_inverse=True)

    def count(values: Float[np.ndarray, "*rows examples"]) -> Float[np.ndarray, "*rows clusters"]:
        sums = [np.bincount(member, row, minlength=len(ids)) for row in values.reshape(-1, len(groups))]
        return np.stack(sums).reshape(*values.shape[:-1], len(ids))

    return Tally(count(result * mask), count(mask), ids)


def cluster_bootstrap(
    a: Tally, b: Tally | None = None, *, seed: Seed, draws: int = 5_000, level: float = 0.95, unit: str = "graph"
) -> Estimate:
    """Accuracy of `a`, or the paired difference a - b; clusters are resampled and all of a cluster stays together.

    The statistic is the ratio of sums of every row, averaged over all rows (fits, backbones) with equal weight.  One
    draw uses the same clusters for every row and for both conditions; a and b may differ in their rows.  A draw that
    leaves some row without eligible examples has no statistic and is left out; `draws` of the result counts the rest.
    """
    _check_bootstrap(a, b, level)
    return _estimate(_value(a, b), _contrast(a, b, draw(seed, draws, a.clusters)), level, a.clusters, unit)


def cluster_bootstrap_later(
    a: Tally, b: Tally | None = None, *, seed: int, draws: int = 5_000, level: float = 0.95, unit: str = "graph"
) -> Estimate:
    """`cluster_bootstrap` with its value at once, its interval when it is asked for: of many rows few are looked at.

    The counts must stay as they are until then.
    """
    _check_bootstrap(a, b, level)

    def bounds() -> tuple[float, float, int]:
        return _bounds(_contrast(a, b, draw(seed, draws, a.clusters)), level)

    return Estimate.later(_value(a, b), a.clusters, unit, bounds)


def cluster_bootstraps(
    a: Tally, *, seed: Seed, draws: int = 5_000, level: float = 0.95, unit: str = "graph"
) -> list[Estimate]:
    """`cluster_bootstrap` of every entry along the first axis, (entries, *rows, clusters), from the same draws."""
    _check_bootstraps(a, level)
    values = _contrast(a, None, np.ones((1, a.clusters)), kept=1)[0]
    samples = _contrast(a, None, draw(seed, draws, a.clusters), kept=1)
    return [_estimate(value, each, level, a.clusters, unit) for value, each in zip(values, samples.T, strict=True)]


def cluster_bootstraps_later(
    a: Tally, *, seed: int, draws: int = 5_000, level: float = 0.95, unit: str = "graph"
) -> list[Estimate]:
    """`cluster_bootstraps` with their values at once, all intervals when one is asked for."""
    _check_bootstraps(a, level)

    @cache
    def samples() -> Float[np.ndarray, "entries draws"]:
        return _contrast(a, None, draw(seed, draws, a.clusters), kept=1).T

    def bounds(entry: int) -> Callable[[], tuple[float, float, int]]:
        return lambda: _bounds(samples()[entry], level)

    values = _contrast(a, None, np.ones((1, a.clusters)), kept=1)[0].tolist()
    return [Estimate.later(value, a.clusters, unit, bounds(entry)) for entry, value in enumerate(values)]


def backbone_bootstrap(
    a: Tally, b: Tally | None = None, *, seed: Seed, draws: int = 5_000, level: float = 0.95
) -> Estimate:
    """Accuracy of `a`, or a - b, with backbones resampled and, within every backbone drawn, the clusters.

    Tallies are (backbones, *fits, clusters).  Ratios of sums are averaged over fits first, then over backbones with
    equal weight; nothing is pooled.  A backbone drawn twice gets two independent sets of clusters.  `n` of the result
    counts backbones.
    """
    _check_bootstrap(a, b, level)
    backbones = a.correct.shape[0]
    if a.correct.ndim < 2 or backbones < 2 or (b is not None and b.correct.shape[:-1][:1] != (backbones,)):
        found = [t.correct.shape for t in (a, b) if t is not None]
        raise InputError(
            f"backbone_bootstrap needs (backbones >= 2, *fits, clusters), the same backbones throughout: {found}"
        )
    total = np.zeros(check_draws(draws))
    for picked, weights in draw_within(seed, draws, backbones, a.clusters):
        effects = _contrast(a, b, weights.astype(np.float32), kept=1)
        total += effects[np.arange(draws), picked]
    return _estimate(_value(a, b), total / backbones, level, backbones, "backbone")


def _contrast(
    a: Tally, b: Tally | None, weights: Float[np.ndarray, "draws clusters"], kept: int = 0
) -> Float[np.ndarray, "draws ..."]:
    """a - b (or a) for every draw: accuracies averaged over all row axes but the first `kept`."""

    def mean(accuracy: Float[np.ndarray, "draws ..."]) -> Float[np.ndarray, "draws ..."]:
        return accuracy.mean(axis=tuple(range(1 + kept, accuracy.ndim)))

    first, *others = (mean(each) for each in _ratios([a] if b is None else [a, b], weights))
    return first - others[0] if others else first


def _ratios(
    tallies: Sequence[Tally], weights: Float[np.ndarray, "*draws clusters"]
) -> list[Float[np.ndarray, "*draws_and_rows"]]:
    """`Tally.accuracy` of each, for weights in float64 or, from `_resample`, in float32.

    Most of the time goes into reading the weights: one product serves all counts, each of those that are equal once,
    and float32 halves them.
    """
    eligible = [_once(t.eligible) for t in tallies]
    if len(eligible) == 2 and np.array_equal(eligible[0], eligible[1]):
        eligible.pop()
    counts = [*(t.correct.reshape(-1, t.clusters) for t in tallies), *eligible]
    together = np.concatenate(counts)
    kind = weights.dtype if _exact_in_float32(together) else np.dtype(np.float64)
    sums = (weights.astype(kind, copy=False) @ together.T.astype(kind)).astype(np.float64)
    parts = np.split(sums, np.cumsum([len(each) for each in counts])[:-1], axis=-1)
    found = []
    for t, right, counted in zip(tallies, parts, [*parts[len(tallies) :], parts[-1]], strict=False):
        ratios = np.divide(right, counted, out=np.full(right.shape, np.nan), where=counted > 0)
        found.append(ratios.reshape(weights.shape[:-1] + t.correct.shape[:-1]))
    return found


def _once(counts: Float[np.ndarray, "*rows clusters"]) -> Float[np.ndarray, "rows clusters"]:
    """All rows, or the first if they are equal."""
    rows = counts.reshape(-1, counts.shape[-1])
    return rows[:1] if (rows == rows[0]).all() else rows


def _exact_in_float32(counts: Float[np.ndarray, "*rows clusters"]) -> bool:
    """Whether float32 rounds no sum of as many counts as there are clusters: whole numbers, all sums below 2^24."""
    return bool(counts.max() * counts.shape[-1] < 2**24 and (counts == np.rint(counts)).all())


def _value(a: Tally, b: Tally | None) -> float:
    return float(_contrast(a, b, np.ones((1, a.clusters)))[0])


def _check_bootstraps(a: Tally, level: float) -> None:
    _check_bootstrap(a, None, level)
    if a.correct.ndim < 2:
        raise InputError(f"cluster_bootstraps needs (entries, *rows, clusters): got {a.correct.shape}")


def _check_bootstrap(a: Tally, b: Tally | None, level: float) -> None:
    check_level(level)
    if b is not None and (a.clusters != b.clusters or not np.array_equal(np.asarray(a.ids), np.asarray(b.ids))):
        raise InputError(f"a paired difference needs the same clusters: {a.clusters} and {b.clusters}, or other ids")
    for t in (a, b):
        # A single contributing cluster resamples to itself, and its zero-width interval would look like certainty.
        if t is not None and ((t.eligible > 0).sum(axis=-1) < 2).any():
            raise InputError("a cluster bootstrap needs at least two clusters with eligible examples in every row")


# ---------------------------------------------------------------------------------------------------------------------
# Lines


@dataclass(frozen=True)
class Line:
    """Least-squares line y = slope * x + intercept through `n` points, and the size of its residuals."""

    slope: float
    intercept: float
    mae: float
    rmse: float
    r2: float
    n: int


def fit_line(x: ArrayLike, y: ArrayLike) -> Line:
    """Ordinary least squares of y on x, both (points,).  R^2 of a constant y is 1: nothing is left to explain."""
    xs, ys = _points(x, y)
    dx, dy = xs - xs.mean(), ys - ys.mean()
    slope = dx @ dy / (dx @ dx)
    residuals = dy - slope * dx
    unexplained = residuals @ residuals
    return Line(
        slope=float(slope),
        intercept=float(ys.mean() - slope * xs.mean()),
        mae=float(np.abs(residuals).mean()),
        rmse=math.sqrt(unexplained / len(ys)),
        r2=1.0 if np.ptp(ys) == 0 else float(1 - unexplained / (dy @ dy)),
        n=len(ys),
    )


def moving_block_bootstrap(
    x: ArrayLike, y: ArrayLike, *, seed: Seed, block: int = 20, draws: int = 5_000, level: float = 0.95
) -> Estimate:
    """Slope of y on x when neighbouring residuals are alike; points must be in the order of x.

    Every draw strings together blocks of `block` consecutive residuals with uniformly chosen starts, cuts them to the
    number of points, adds them to the fitted line and refits.  `block=1` is the ordinary residual bootstrap.
    """
    check_level(level)
    xs, ys = _points(x, y)
    n = len(xs)
    if not 1 <= block <= n:
        raise InputError(f"blocks of {block} residuals do not fit {n} points: choose 1 to {n}")
    line = fit_line(xs, ys)
    residuals = ys - (line.slope * xs + line.intercept)
    rng = generator(seed)
    starts = rng.integers(n - block + 1, size=(check_draws(draws), math.ceil(n / block)))
    chosen = (starts[:, :, None] + np.arange(block)).reshape(draws, -1)[:, :n]
    # Refitting line + residuals moves the slope by the slope of the residuals alone: least squares is linear in y.
    dx = xs - xs.mean()
    slopes = line.slope + residuals[chosen] @ dx / (dx @ dx)
    return _estimate(line.slope, slopes, level, n, f"block of {block}")


# ---------------------------------------------------------------------------------------------------------------------
# Shared by the sections above


def _estimate(value: float, samples: Float[np.ndarray, " draws"], level: float, n: int, unit: str) -> Estimate:
    low, high, draws = _bounds(samples, level)
    return Estimate(float(value), low, high, n, unit, draws)


def _bounds(samples: Float[np.ndarray, " draws"], level: float) -> tuple[float, float, int]:
    """The percentile interval, and of how many draws; InputError where none has a statistic."""
    defined = samples[~np.isnan(samples)]
    if len(defined) == 0:
        raise InputError(f"none of {len(samples)} bootstrap draws holds eligible examples in every row")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high), len(defined)


def check_level(level: float) -> None:
    """InputError unless it is a level of confidence."""
    if not 0 < level < 1:
        raise InputError(f"confidence level {level} is not between 0 and 1 (nearest usual choice: 0.95)")


def as_floats(name: str, values: ArrayLike) -> Float[np.ndarray, "*shape"]:
    """The values as a finite, non-empty float64 array; InputError names what is wrong with `name`."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a rectangular array of numbers") from None
    if array.size == 0:
        raise InputError(f"{name} is empty: shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError(f"{name} holds {int((~np.isfinite(array)).sum())} values that are NaN or infinite")
    return array


def _units(values: ArrayLike) -> Float[np.ndarray, " units"]:
    array = as_floats("values", values)
    if array.ndim != 1 or len(array) < 2:
        raise InputError(f"a spread needs at least two values in one dimension: got shape {array.shape}")
    return array


def _points(x: ArrayLike, y: ArrayLike) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    xs, ys = as_floats("x", x), as_floats("y", y)
    if xs.ndim != 1 or xs.shape != ys.shape:
        raise InputError(f"a line needs x and y of one shape (points,): got {xs.shape} and {ys.shape}")
    if np.ptp(xs) == 0:
        raise InputError("a line needs at least two different x")
    return xs, ys
