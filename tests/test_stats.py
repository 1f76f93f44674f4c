from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import optimize
from scipy import stats as scipy_stats
from statsmodels.stats.proportion import proportion_confint

from loopscope.errors import InputError
from loopscope.stats import (
    Estimate,
    Tally,
    backbone_bootstrap,
    cluster_bootstrap,
    cluster_bootstrap_later,
    cluster_bootstraps,
    cluster_bootstraps_later,
    fit_line,
    mean_bootstrap,
    mean_sd,
    moving_block_bootstrap,
    sign_test,
    tally,
    wilson,
)
from loopscope.studies.parity.phase import (
    coherence,
    coherence_by_chance,
    drift_bootstrap,
    phase_robust,
    phase_unwrapped,
    project_bands,
)


def width(estimate: Estimate) -> float:
    return estimate.high - estimate.low


def covers(estimate: Estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


# --- Wilson and plain means -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("n", [1, 2, 7, 64, 256, 5120])
def test_wilson_agrees_with_statsmodels(n: int, level: float) -> None:
    for successes in sorted({0, 1, n // 3, n // 2, n - 1, n}):
        low, high = proportion_confint(successes, n, alpha=1 - level, method="wilson")
        ours = wilson(successes, n, level)
        assert (ours.low, ours.high) == pytest.approx((low, high), abs=1e-12)
        assert (ours.value, ours.n, ours.draws) == (successes / n, n, 0)


@pytest.mark.parametrize(("successes", "low", "high"), [(182, 65.3, 76.3), (248, 94.0, 98.4)])
def test_wilson_gives_the_papers_intervals(successes: int, low: float, high: float) -> None:
    ours = wilson(successes, 256)
    assert (round(100 * ours.low, 1), round(100 * ours.high, 1)) == (low, high)


def test_wilson_is_exact_at_the_edges() -> None:
    for n in range(1, 200):
        assert wilson(0, n).low == 0.0
        assert wilson(n, n).high == 1.0


def test_the_sign_test_agrees_with_scipy() -> None:
    for more, fewer in [(0, 0), (1, 0), (4, 1), (1, 4), (5, 5), (5, 6), (178, 3), (0, 240), (3000, 2800)]:
        n = more + fewer
        expected = scipy_stats.binomtest(more, n, 0.5).pvalue if n else 1.0
        assert sign_test(more, fewer) == pytest.approx(expected, rel=1e-9)
        assert sign_test(more, fewer) == sign_test(fewer, more)
    with pytest.raises(InputError, match="sign test of -1 against 2"):
        sign_test(-1, 2)


def test_the_papers_paired_gap_between_steering_and_its_patterns() -> None:
    """Full steering alone is right on 4 pairs, the pattern patch alone on 1: 3 of 256 more, -1 to 7."""
    steered, patched = np.ones(256), np.ones(256)
    steered[:5], patched[1:9] = [0, 1, 1, 1, 1], 0
    steered[5:9] = 0
    pairs = np.arange(256)
    assert (steered.sum(), patched.sum()) == (251, 248)
    ours = cluster_bootstrap(tally(steered, pairs), tally(patched, pairs), seed=0, draws=10_000, unit="pair")
    assert 256 * np.array([ours.value, ours.low]) == pytest.approx([3, -1])
    assert 256 * ours.high in (7, 8)  # an eighth comes up in 2.5 % of draws, give or take
    assert sign_test(4, 1) == pytest.approx(0.375)


def test_mean_sd_uses_the_sample_sd() -> None:
    spread = mean_sd([1.0, 2.0, 4.0])
    assert spread.mean == pytest.approx(7 / 3)
    assert spread.sd == pytest.approx(np.sqrt(7 / 3))
    assert spread.n == 3


def test_mean_bootstrap_equals_resampling_the_units_one_by_one() -> None:
    values = np.random.default_rng(0).normal(size=12)
    ours = mean_bootstrap(values, seed=5, draws=400)
    rng = np.random.default_rng(5)
    means = [np.repeat(values, rng.multinomial(12, [1 / 12] * 12)).mean() for _ in range(400)]
    assert (ours.low, ours.high) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])), abs=1e-12)
    assert (ours.value, ours.n, ours.unit, ours.draws) == (pytest.approx(values.mean()), 12, "backbone", 400)


# --- Tallies ----------------------------------------------------------------------------------------------------------


def test_tally_and_ratio_of_sums_by_hand() -> None:
    #       graph 7: starts 0, 1, 3; graph 2: starts 2, 4
    graphs = np.array([7, 7, 2, 7, 2])
    correct = np.array([[1, 0, 1, 1, 1], [1, 1, 0, 0, 1]])
    eligible = np.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 1]])
    counts = tally(correct, graphs, eligible)
    assert counts.ids is not None
    assert counts.ids.tolist() == [2, 7]
    assert counts.correct.tolist() == [[1, 2], [1, 1]]
    assert counts.eligible.tolist() == [[1, 3], [2, 2]]
    assert counts.accuracy().tolist() == [3 / 4, 2 / 4]
    # Graph 2 drawn three times, graph 7 never; then the reverse mix.
    assert counts.accuracy([[3, 0], [1, 2]]).tolist() == [[1.0, 0.5], [5 / 7, 3 / 6]]
    assert cluster_bootstrap(counts, seed=0, draws=10).value == (3 / 4 + 2 / 4) / 2


def test_fits_count_equally_whatever_their_denominators() -> None:
    counts = Tally(np.array([[10.0, 10.0], [0.0, 0.0]]), np.array([[10.0, 10.0], [1.0, 1.0]]))
    assert cluster_bootstrap(counts, seed=0, draws=10).value == 0.5  # pooled it would be 20 / 22


def test_an_interval_that_is_drawn_when_it_is_asked_for_is_the_same() -> None:
    rng = np.random.default_rng(0)
    a, b = (Tally(rng.integers(0, 4, (3, 20)), np.full((3, 20), 4)) for _ in range(2))
    later = cluster_bootstrap_later(a, b, seed=3, draws=50)
    assert "low" not in vars(later)
    for made in (pickle.loads(pickle.dumps(later)), copy.deepcopy(later), later):
        assert made == cluster_bootstrap(a, b, seed=3, draws=50)
    assert cluster_bootstraps_later(a, seed=3, draws=50) == cluster_bootstraps(a, seed=3, draws=50)
    with pytest.raises(AttributeError):
        later.nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(InputError, match="at least two clusters"):
        cluster_bootstrap_later(Tally(np.ones((1, 1)), np.ones((1, 1))), seed=0)


def test_examples_that_are_not_eligible_do_not_count() -> None:
    correct, eligible = np.array([1, 1, 0, 1]), np.array([1, 0, 1, 0])
    counts = tally(correct, [0, 0, 1, 1], eligible)
    assert counts.correct.tolist() == [1, 0]
    assert counts.eligible.tolist() == [1, 1]


@pytest.mark.parametrize("rows", [(), (2,), (3, 2)])
def test_several_bootstraps_at_once_are_those_of_each(rows: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    eligible = rng.integers(1, 9, size=(4, *rows, 30)).astype(float)
    counts = Tally(rng.integers(0, eligible + 1).astype(float), eligible)
    each = [cluster_bootstrap(Tally(*pair), seed=7) for pair in zip(counts.correct, counts.eligible, strict=True)]
    assert cluster_bootstraps(counts, seed=7) == each


def test_parts_of_examples_are_counted_in_full_precision() -> None:
    counts = Tally(np.array([0.1, 0.7, 0.2]), np.array([0.3, 0.9, 1.1]))
    estimate = cluster_bootstrap(counts, seed=0, draws=200)
    drawn = np.random.default_rng(0).multinomial(3, np.full(3, 1 / 3), size=200)
    shares = (drawn @ counts.correct) / (drawn @ counts.eligible)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(shares, [0.025, 0.975])), rel=1e-14)


def test_a_row_without_eligible_examples_has_no_accuracy() -> None:
    assert np.isnan(Tally(np.zeros((2, 3)), np.array([[0.0] * 3, [1.0] * 3])).accuracy()).tolist() == [True, False]


# --- Cluster bootstrap ------------------------------------------------------------------------------------------------


def simulate(
    rng: np.random.Generator, fits: int = 2, graphs: int = 40, starts: int = 10, spread: float = 0.3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correct and eligible (fits, graphs * starts) and graph ids; starts of a graph share its difficulty around 0.6."""
    difficulty = 0.6 + spread * rng.choice([-1, 1], size=graphs)
    correct = rng.random((fits, graphs, starts)) < difficulty[:, None]
    eligible = rng.random((fits, graphs, starts)) < 0.8
    return correct.reshape(fits, -1), eligible.reshape(fits, -1), np.repeat(np.arange(graphs), starts)


def literal_bootstrap(
    correct: np.ndarray, eligible: np.ndarray, graphs: np.ndarray, seed: int, draws: int
) -> list[float]:
    """The definition, one draw, one graph, one copy at a time."""
    rng, names = np.random.default_rng(seed), sorted(set(graphs.tolist()))
    samples = []
    for _ in range(draws):
        copies = rng.multinomial(len(names), [1 / len(names)] * len(names))
        ratios = []
        for fit_correct, fit_eligible in zip(correct, eligible, strict=True):
            right = asked = 0
            for name, times in zip(names, copies, strict=True):
                for _ in range(times):
                    for example in np.flatnonzero(graphs == name):
                        if fit_eligible[example]:
                            asked += 1
                            right += int(fit_correct[example])
            ratios.append(right / asked)
        samples.append(sum(ratios) / len(ratios))
    return samples


def test_cluster_bootstrap_equals_the_literal_loop() -> None:
    correct, eligible, graphs = simulate(np.random.default_rng(1), graphs=9, starts=4)
    order = np.random.default_rng(2).permutation(len(graphs))
    correct, eligible, graphs = correct[:, order], eligible[:, order], graphs[order]
    ours = cluster_bootstrap(tally(correct, graphs, eligible), seed=3, draws=150)
    literal = literal_bootstrap(correct, eligible, graphs, seed=3, draws=150)
    assert (ours.low, ours.high) == pytest.approx(tuple(np.percentile(literal, [2.5, 97.5])), abs=1e-12)
    assert (ours.n, ours.unit, ours.draws) == (9, "graph", 150)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.99])
def test_level_chooses_the_percentiles(level: float) -> None:
    correct, eligible, graphs = simulate(np.random.default_rng(1), graphs=6, starts=3)
    ours = cluster_bootstrap(tally(correct, graphs, eligible), seed=3, draws=101, level=level)
    literal = np.sort(literal_bootstrap(correct, eligible, graphs, seed=3, draws=101))
    tail = 100 * (1 - level) / 2  # 101 sorted draws are the 0th to 100th percentile
    below, above = literal[int(tail)], literal[int(np.ceil(tail - 1e-9))]
    assert below - 1e-12 <= ours.low <= above + 1e-12
    below, above = literal[100 - int(np.ceil(tail - 1e-9))], literal[100 - int(tail)]
    assert below - 1e-12 <= ours.high <= above + 1e-12


def test_paired_difference_equals_the_literal_loop() -> None:
    a, eligible_a, graphs = simulate(np.random.default_rng(1), graphs=8, starts=3)
    b, eligible_b, _ = simulate(np.random.default_rng(2), graphs=8, starts=3)
    ours = cluster_bootstrap(tally(a, graphs, eligible_a), tally(b, graphs, eligible_b), seed=4, draws=100)
    literal = np.subtract(
        literal_bootstrap(a, eligible_a, graphs, seed=4, draws=100),
        literal_bootstrap(b, eligible_b, graphs, seed=4, draws=100),
    )
    assert (ours.low, ours.high) == pytest.approx(tuple(np.percentile(literal, [2.5, 97.5])), abs=1e-12)


def test_cluster_bootstrap_covers_the_truth_19_times_in_20() -> None:
    rng = np.random.default_rng(10)
    simulations = 400
    hits = 0
    for _ in range(simulations):
        correct, eligible, graphs = simulate(rng, graphs=80, starts=5)
        hits += covers(cluster_bootstrap(tally(correct, graphs, eligible), seed=rng, draws=400), 0.6)
    # Percentile intervals of 80 clusters are known to run slightly short, so 0.94; then four binomial SDs around it.
    assert abs(hits / simulations - 0.94) < 4 * np.sqrt(0.94 * 0.06 / simulations)


def test_ignoring_clusters_makes_the_interval_too_narrow() -> None:
    correct, eligible, graphs = simulate(np.random.default_rng(5), graphs=200)
    by_graph = cluster_bootstrap(tally(correct, graphs, eligible), seed=0)
    by_example = cluster_bootstrap(tally(correct, np.arange(len(graphs)), eligible), seed=0, draws=2_000)
    assert width(by_graph) > 1.5 * width(by_example)
    # Theory for one fit-mean: Var per graph of the shared difficulty 0.3^2 plus what is left between starts.
    assert width(by_graph) == pytest.approx(2 * 1.96 * np.sqrt((0.09 + (0.24 - 0.09) / 16) / 200), rel=0.15)


def test_independent_examples_lose_nothing_by_clustering() -> None:
    correct, eligible, graphs = simulate(np.random.default_rng(6), graphs=300, spread=0.0)
    by_graph = cluster_bootstrap(tally(correct, graphs, eligible), seed=0)
    by_example = cluster_bootstrap(tally(correct, np.arange(len(graphs)), eligible), seed=0, draws=2_000)
    assert width(by_graph) == pytest.approx(width(by_example), rel=0.15)


def test_identical_conditions_differ_by_exactly_nothing() -> None:
    correct, eligible, graphs = simulate(np.random.default_rng(7), fits=3)
    same = cluster_bootstrap(tally(correct, graphs, eligible), tally(correct, graphs, eligible), seed=0)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_pairing_removes_what_the_conditions_share() -> None:
    rng = np.random.default_rng(8)
    correct, eligible, graphs = simulate(rng, graphs=200)
    worse = correct & (rng.random(correct.shape) < 0.95)
    a, b = tally(correct, graphs, eligible), tally(worse, graphs, eligible)
    paired = cluster_bootstrap(a, b, seed=0)
    assert width(paired) < 0.5 * width(cluster_bootstrap(a, seed=0))
    assert paired.low > 0


def test_a_condition_may_have_other_fits_than_its_partner() -> None:
    correct, eligible, graphs = simulate(np.random.default_rng(9), fits=2)
    native = tally(correct[0], graphs, eligible[0])
    difference = cluster_bootstrap(tally(correct, graphs, eligible), native, seed=0)
    steered = tally(correct, graphs, eligible).accuracy().mean()
    assert difference.value == pytest.approx(steered - native.accuracy())


def test_order_of_fits_does_not_matter() -> None:
    correct, eligible, graphs = simulate(np.random.default_rng(11), fits=5)
    forward = cluster_bootstrap(tally(correct, graphs, eligible), seed=1)
    backward = cluster_bootstrap(tally(correct[::-1], graphs, eligible[::-1]), seed=1)
    assert (forward.value, forward.low, forward.high) == pytest.approx((backward.value, backward.low, backward.high))


def test_copies_of_a_fit_stay_together() -> None:
    """Resampling each fit on its own would shrink the interval of six copies by sqrt(6)."""
    correct, eligible, graphs = simulate(np.random.default_rng(12), fits=1)
    once = cluster_bootstrap(tally(correct, graphs, eligible), seed=1)
    six = cluster_bootstrap(tally(np.repeat(correct, 6, 0), graphs, np.repeat(eligible, 6, 0)), seed=1)
    assert (once.value, once.low, once.high) == pytest.approx((six.value, six.low, six.high), abs=1e-12)


def test_order_of_graphs_matters_only_to_the_random_numbers() -> None:
    correct, eligible, graphs = simulate(np.random.default_rng(13), graphs=60)
    counts, order = tally(correct, graphs, eligible), np.random.default_rng(0).permutation(60)
    shuffled = Tally(counts.correct[:, order], counts.eligible[:, order])
    weights = np.random.default_rng(1).multinomial(60, [1 / 60] * 60, size=50)
    np.testing.assert_array_equal(counts.accuracy(weights), shuffled.accuracy(weights[:, order]))
    a, b = cluster_bootstrap(counts, seed=2), cluster_bootstrap(shuffled, seed=2)
    assert a.value == pytest.approx(b.value)
    assert (a.low, a.high) == pytest.approx((b.low, b.high), abs=0.1 * width(a))


def test_draws_without_eligible_examples_are_left_out_and_counted() -> None:
    counts = Tally(np.array([1.0, 0, 0, 0]), np.array([2.0, 2, 0, 0]))
    ours = cluster_bootstrap(counts, seed=0, draws=4_000)
    # Neither of the two useful graphs is drawn with probability (1/2)^4.
    assert ours.draws == pytest.approx(4_000 * 15 / 16, abs=4 * np.sqrt(4_000 / 16))
    assert (ours.low, ours.high) == (0.0, 0.5)


# --- Backbone bootstrap -----------------------------------------------------------------------------------------------


def cohort(
    rng: np.random.Generator, backbones: int = 6, fits: int = 2, graphs: int = 50, spread: float = 0.15
) -> Tally:
    levels = 0.6 + spread * np.linspace(-1, 1, backbones)
    eligible = rng.integers(5, 11, size=(backbones, fits, graphs))
    return Tally(rng.binomial(eligible, levels[:, None, None]).astype(float), eligible.astype(float))


def test_backbone_bootstrap_equals_the_literal_loop() -> None:
    counts, draws = cohort(np.random.default_rng(0), backbones=3, graphs=7), 200
    ours = backbone_bootstrap(counts, seed=1, draws=draws)
    rng = np.random.default_rng(1)
    picked = rng.integers(3, size=(draws, 3))
    weights = [rng.multinomial(7, [1 / 7] * 7, size=draws) for _ in range(3)]
    samples = []
    for draw in range(draws):
        means = []
        for slot in range(3):
            backbone, copies = picked[draw, slot], weights[slot][draw]
            ratios = [
                np.repeat(counts.correct[backbone, fit], copies).sum()
                / np.repeat(counts.eligible[backbone, fit], copies).sum()
                for fit in range(2)
            ]
            means.append(np.mean(ratios))
        samples.append(np.mean(means))
    assert (ours.low, ours.high) == pytest.approx(tuple(np.percentile(samples, [2.5, 97.5])), abs=1e-12)
    assert ours.value == pytest.approx(np.mean(counts.correct.sum(-1) / counts.eligible.sum(-1)))
    assert (ours.n, ours.unit) == (3, "backbone")


def test_backbones_that_differ_widen_the_interval() -> None:
    counts = cohort(np.random.default_rng(1), backbones=8)
    graphs_only, both = cluster_bootstrap(counts, seed=0), backbone_bootstrap(counts, seed=0)
    assert graphs_only.value == both.value
    assert width(both) > 2 * width(graphs_only)
    # With many examples per backbone the graphs hardly matter: what is left is the bootstrap of backbone means.
    means = mean_bootstrap(counts.accuracy().mean(axis=1), seed=0)
    assert width(both) == pytest.approx(width(means), rel=0.1)


def test_backbones_are_never_pooled() -> None:
    correct, eligible = np.array([[90.0, 90.0], [0.0, 0.0]]), np.array([[100.0, 100.0], [1.0, 1.0]])
    assert backbone_bootstrap(Tally(correct, eligible), seed=0, draws=10).value == pytest.approx(0.45)


def test_backbone_bootstrap_of_a_paired_difference() -> None:
    a = cohort(np.random.default_rng(2))
    same = backbone_bootstrap(a, a, seed=0, draws=500)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    # A condition that loses a tenth everywhere: the spread of levels is shared, so pairing removes most of it.
    paired = backbone_bootstrap(a, Tally(a.correct * 0.9, a.eligible), seed=0, draws=500)
    assert width(paired) < 0.2 * width(backbone_bootstrap(a, seed=0, draws=500))


def test_backbone_bootstrap_covers_the_mean_of_new_backbones() -> None:
    rng = np.random.default_rng(3)
    simulations, hits = 200, 0
    for _ in range(simulations):
        levels = rng.normal(0.6, 0.1, size=12).clip(0, 1)
        eligible = np.full((12, 2, 30), 8.0)
        counts = Tally(rng.binomial(8, np.broadcast_to(levels[:, None, None], eligible.shape)).astype(float), eligible)
        hits += covers(backbone_bootstrap(counts, seed=rng, draws=200), 0.6)
    # A percentile bootstrap of 12 units reaches about 0.92; a graph bootstrap of the same data would reach about 0.3.
    assert hits / simulations > 0.87


# --- Lines and moving blocks ------------------------------------------------------------------------------------------


def test_line_agrees_with_scipy_and_numpy() -> None:
    rng = np.random.default_rng(0)
    for x in (np.arange(41.0, 491.0), rng.normal(1e4, 3, size=50)):
        y = 0.01 * x - 3 + rng.normal(size=len(x))
        line, oracle = fit_line(x, y), scipy_stats.linregress(x, y)
        assert line.slope == pytest.approx(oracle.slope, rel=1e-9)
        assert line.intercept == pytest.approx(oracle.intercept, rel=1e-9)
        assert line.r2 == pytest.approx(oracle.rvalue**2, rel=1e-9)
        residuals = y - np.polyval(np.polyfit(x - x.mean(), y, 1), x - x.mean())
        assert line.mae == pytest.approx(np.abs(residuals).mean(), rel=1e-9)
        assert line.rmse == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=1e-9)
        assert line.n == len(x)


def test_line_through_a_constant() -> None:
    line = fit_line([1, 2, 3], [0.1, 0.1, 0.1])
    assert (line.slope, line.r2) == (pytest.approx(0, abs=1e-15), 1.0)


@pytest.mark.parametrize(("n", "block"), [(450, 20), (37, 10), (12, 12), (12, 1)])
def test_moving_blocks_equal_the_literal_loop(n: int, block: int) -> None:
    rng = np.random.default_rng(n)
    x = np.arange(41.0, 41.0 + n)
    y = 0.012 * x + np.cumsum(rng.normal(size=n)) * 0.1
    ours = moving_block_bootstrap(x, y, seed=20260805, block=block, draws=60)
    slope, intercept = np.polyfit(x, y, 1)
    residuals = y - (slope * x + intercept)
    draw = np.random.default_rng(20260805)
    slopes = []
    for _ in range(60):
        sample: list[float] = []
        for start in draw.integers(0, n - block + 1, size=-(-n // block)):
            sample.extend(residuals[start : start + block])
        slopes.append(np.polyfit(x, slope * x + intercept + np.array(sample[:n]), 1)[0])
    assert (ours.low, ours.high) == pytest.approx(tuple(np.percentile(slopes, [2.5, 97.5])), abs=1e-10)
    assert (ours.value, ours.n, ours.unit) == (pytest.approx(slope), n, f"block of {block}")


def test_blocks_cover_better_than_single_residuals_when_noise_is_autocorrelated() -> None:
    rng = np.random.default_rng(4)
    n, simulations = 450, 150
    x = np.arange(n, dtype=float)
    blocks = singles = 0
    for _ in range(simulations):
        noise = rng.normal(size=n)
        for i in range(1, n):
            noise[i] += 0.7 * noise[i - 1]
        y = 0.01 * x + noise
        blocks += covers(moving_block_bootstrap(x, y, seed=rng, draws=200), 0.01)
        singles += covers(moving_block_bootstrap(x, y, seed=rng, block=1, draws=200), 0.01)
    assert blocks / simulations > 0.84
    assert singles / simulations < 0.75


# --- Phase of the parity bands ----------------------------------------------------------------------------------------

LENGTHS = np.arange(41, 491)


def bands_at(offsets: np.ndarray, period: float = 4.0) -> np.ndarray:
    """Accuracy at d = -10..10 of a readout that is right at `offsets` and repeats every `period` loops."""
    return 0.5 + 0.45 * np.cos(2 * np.pi * (np.arange(-10, 11) - offsets[:, None]) / period)


def measured(rng: np.random.Generator, offsets: np.ndarray, examples: int = 64) -> np.ndarray:
    return rng.binomial(examples, bands_at(offsets)) / examples


@pytest.mark.parametrize("estimator", [phase_unwrapped, phase_robust])
@pytest.mark.parametrize("drift", [0.5732, -0.3275, 1.3121, 1.176, -0.9605, -0.1827])
def test_known_drift_is_found(estimator: Callable[..., Any], drift: float) -> None:
    offsets = drift / 100 * LENGTHS - 0.1
    phase = estimator(LENGTHS, measured(np.random.default_rng(0), offsets))
    # The leakage of 21 offsets (see the next test) bends a slow drift by up to 0.017 per 100.
    assert phase.drift == pytest.approx(drift, abs=0.02)
    assert phase.line.intercept == pytest.approx(-0.1, abs=0.06)
    assert phase.line.n == 450
    assert phase.line.r2 > 0.95
    np.testing.assert_allclose(phase.offsets, offsets, atol=0.6)


def test_a_window_of_21_offsets_leaks_less_than_three_hundredths_of_a_loop() -> None:
    offsets = np.linspace(-1.99, 1.99, 400)
    found = np.angle(project_bands(bands_at(offsets))) * 2 / np.pi
    assert 0.02 < np.abs(found - offsets).max() < 0.031


def test_projection_follows_its_definition() -> None:
    band = np.random.default_rng(1).random((3, 21))
    band[1] = 0.25
    for row, phasor in zip(band, project_bands(band), strict=True):
        sd = np.sqrt(np.mean((row - row.mean()) ** 2))
        z = [(value - row.mean()) / sd if sd > 0 else 0.0 for value in row]
        definition = sum(z[d + 10] * np.exp(2j * np.pi * d / 4) for d in range(-10, 11))
        assert phasor == pytest.approx(definition, abs=1e-12)
    assert project_bands(band)[1] == 0
    assert project_bands(np.full((1, 21), 0.1))[0] == 0  # the mean of 21 x 0.1 is not exactly 0.1
    peak_at_one = project_bands(bands_at(np.array([1.0])))[0]
    assert np.angle(peak_at_one) == pytest.approx(np.pi / 2, abs=0.05)  # later than t = n is positive


def test_the_period_of_a_band_has_the_largest_amplitude() -> None:
    band = bands_at(0.01 * LENGTHS, period=4.2)
    periods = np.linspace(3.5, 4.5, 101)
    amplitude = [np.abs(project_bands(band, period)).mean() for period in periods]
    assert periods[np.argmax(amplitude)] == pytest.approx(4.2, abs=0.03)


def slipping_offsets() -> tuple[np.ndarray, np.ndarray]:
    """A steady drift of 1.176 per 100, and the same with one row (n = 437) far off and its successor a little early."""
    clean = 0.01176 * LENGTHS - 0.3
    noisy = clean.copy()
    noisy[LENGTHS == 437] += 1.9
    noisy[LENGTHS == 438] -= 0.6
    return clean, noisy


def test_one_noisy_row_makes_ordinary_unwrapping_slip_and_the_robust_fit_does_not() -> None:
    clean, noisy = slipping_offsets()
    paper, robust = phase_unwrapped(LENGTHS, bands_at(noisy)), phase_robust(LENGTHS, bands_at(noisy))
    after = LENGTHS > 438
    # Every later row is one whole period too late, which alone turns a drift of 1.176 into the published 1.73.
    np.testing.assert_allclose(paper.offsets[after], clean[after] + 4, atol=0.1)
    assert paper.drift == pytest.approx(1.7305, abs=0.01)
    assert paper.line.mae > 0.5
    np.testing.assert_allclose(robust.offsets[after], clean[after], atol=0.1)
    assert robust.drift == pytest.approx(1.176, abs=0.01)
    assert robust.line.mae < 0.05
    assert robust.line.r2 > 0.99 > paper.line.r2
    # Away from the slip the two agree on every single offset.
    before = LENGTHS < 437
    np.testing.assert_allclose(paper.offsets[before], robust.offsets[before], atol=1e-9)
    slipped, right = drift_bootstrap(paper, seed=20260806), drift_bootstrap(robust, seed=20260806)
    assert not covers(slipped, 1.176)
    assert covers(right, 1.176)
    assert width(slipped) > 5 * width(right)


def test_robust_fit_survives_many_noisy_rows() -> None:
    rng = np.random.default_rng(5)
    band = measured(rng, 0.0131 * LENGTHS - 0.4)
    noisy = rng.choice(len(band), size=135, replace=False)
    band[noisy] = rng.binomial(64, 0.5, size=(135, 21)) / 64
    robust = phase_robust(LENGTHS, band)
    assert robust.drift == pytest.approx(1.31, abs=0.1)
    clean = np.setdiff1d(np.arange(len(band)), noisy)
    np.testing.assert_allclose(robust.offsets[clean], (0.0131 * LENGTHS - 0.4)[clean], atol=0.6)


@pytest.mark.parametrize("step", [1, 5])
def test_robust_fit_is_the_maximum_of_its_objective(step: int) -> None:
    """With half of the rows pure noise, many lie near a branch cut and show even a slightly wrong line."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        lengths = 41 + step * np.arange(300)
        band = measured(rng, 0.0131 / step * lengths - 0.4)
        band[rng.choice(300, size=150, replace=False)] = rng.random((150, 21))
        phasors = project_bands(band)

        def misfit(line: np.ndarray, lengths: np.ndarray = lengths, phasors: np.ndarray = phasors) -> float:
            slope, start = line[0] / 1000, line[1]
            return -float(np.sum(phasors * np.exp(-0.5j * np.pi * (slope * (lengths - 41) + start))).real)

        best = optimize.minimize(
            misfit, [13.1 / step, 0.13], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}
        )
        fitted = best.x[0] / 1000 * (lengths - 41) + best.x[1]
        principal = np.angle(phasors) * 2 / np.pi
        branches = [principal + 4 * turn for turn in range(-3, 6)]
        nearest = np.min([np.abs(branch - fitted) for branch in branches], axis=0)
        np.testing.assert_allclose(np.abs(phase_robust(lengths, band).offsets - fitted), nearest, atol=1e-9)


def test_coherence_tells_a_line_from_none() -> None:
    rng = np.random.default_rng(6)
    line, none = bands_at(0.0131 * LENGTHS - 0.4), rng.binomial(64, 0.3, size=(len(LENGTHS), 21)) / 64
    assert coherence(LENGTHS, line) == pytest.approx(1, abs=2e-3)
    found = coherence(LENGTHS, none)
    # The definition, over all slopes that can be told apart.
    phasors, fitted = project_bands(none), phase_robust(LENGTHS, none)
    slopes = np.linspace(-2, 2, 200_001)[:, None]
    best = max(
        np.abs(np.exp(-0.5j * np.pi * part * (LENGTHS - 41)) @ phasors).max() for part in np.array_split(slopes, 50)
    )
    assert found == pytest.approx(best / np.abs(phasors).sum(), abs=1e-4)
    assert fitted.line.n == len(LENGTHS)
    assert found < coherence_by_chance(LENGTHS, none, seed=1) < 0.25
    still = bands_at(np.full(len(LENGTHS), 0.3))  # a line without drift is a line, too
    assert coherence(LENGTHS, still) > 0.99 > 0.25 > coherence_by_chance(LENGTHS, still, seed=1)
    # A weak line among as much noise is still one.
    weak = np.where(rng.random(len(LENGTHS))[:, None] < 0.4, line, none)
    assert coherence(LENGTHS, weak) > 2 * coherence_by_chance(LENGTHS, weak, seed=1)


def test_robust_fit_leaves_out_rows_without_variation() -> None:
    band = bands_at(0.01 * LENGTHS + 0.5)
    band[100:140] = 1.0
    robust = phase_robust(LENGTHS, band)
    assert robust.line.n == len(robust.lengths) == 410
    assert robust.drift == pytest.approx(1.0, abs=0.01)


def test_robust_fit_takes_lengths_with_gaps() -> None:
    lengths = np.array([50, 55, 65, 80, 100, 110, 200, 205, 300, 480])
    robust = phase_robust(lengths, bands_at(-0.009 * lengths + 1.0))
    assert robust.drift == pytest.approx(-0.9, abs=0.03)


def test_drift_interval_is_the_slope_interval_per_hundred_tokens() -> None:
    phase = phase_robust(LENGTHS, measured(np.random.default_rng(6), 0.0057 * LENGTHS))
    drift = drift_bootstrap(phase, seed=7)
    slope = moving_block_bootstrap(LENGTHS, phase.offsets, seed=7)
    assert (drift.value, drift.low, drift.high) == pytest.approx((100 * slope.value, 100 * slope.low, 100 * slope.high))
    assert drift.value == pytest.approx(phase.drift)
    assert covers(drift, 0.57)
    assert (drift.draws, drift.unit, drift.n) == (5_000, "block of 20", 450)


# --- Seeds and bad input ----------------------------------------------------------------------------------------------

COUNTS = cohort(np.random.default_rng(0), backbones=3, graphs=12)
WALK = np.cumsum(np.random.default_rng(0).normal(size=60))


@pytest.mark.parametrize(
    "estimate",
    [
        lambda seed: cluster_bootstrap(COUNTS, seed=seed, draws=100),
        lambda seed: backbone_bootstrap(COUNTS, seed=seed, draws=100),
        lambda seed: mean_bootstrap(WALK, seed=seed, draws=100),
        lambda seed: moving_block_bootstrap(np.arange(60), WALK, seed=seed, draws=100),
    ],
)
def test_a_seed_fixes_the_draws(estimate: Callable[[Any], Estimate]) -> None:
    assert estimate(3) == estimate(3) == estimate(np.random.default_rng(3))
    assert estimate(3) != estimate(4)
    rng = np.random.default_rng(3)
    assert estimate(rng) != estimate(rng)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wilson(0, 0), "0 out of 0"),
        (lambda: wilson(5, 4), "5 out of 4"),
        (lambda: wilson(-1, 4), "-1 out of 4"),
        (lambda: wilson(1, 4, level=1.0), "level 1.0"),
        (lambda: wilson(1, 4, level=float("nan")), "level nan"),
        (lambda: mean_sd([1.0]), "at least two"),
        (lambda: mean_sd([]), "empty"),
        (lambda: mean_sd([[1.0, 2.0]]), "one dimension"),
        (lambda: mean_sd([1.0, float("nan")]), "NaN"),
        (lambda: mean_bootstrap([1.0, 2.0], seed=0, draws=0), "0 draws"),
        (lambda: mean_bootstrap([1.0, 2.0], seed=0, level=95), "level 95"),
        (lambda: mean_bootstrap([1.0, 2.0], seed=-1), "seed -1"),
        (lambda: Tally(np.ones(3), np.ones(4)), "(3,) and (4,)"),
        (lambda: Tally(np.array(1.0), np.array(1.0)), "one shape"),
        (lambda: Tally(np.ones((2, 0)), np.ones((2, 0))), "empty"),
        (lambda: Tally(np.array([1.0, 3.0]), np.array([2.0, 2.0])), "3 correct of 2 eligible at (1,)"),
        (lambda: Tally(np.array([-1.0, 1.0]), np.array([2.0, 2.0])), "-1 correct"),
        (lambda: Tally(np.array([np.nan, 1.0]), np.array([2.0, 2.0])), "NaN"),
        (lambda: Tally(np.ones(3), np.ones(3), np.arange(2)), "ids of shape (2,)"),
        (lambda: tally([1, 0], [0]), "one cluster id per example"),
        (lambda: tally([1, 0], [0, np.nan]), "NaN"),
        (lambda: tally([1, 2], [0, 1]), "0 or 1"),
        (lambda: tally([1, 0], [0, 1], [1, 0.5]), "0 or 1"),
        (lambda: tally([1, 0], [0, 1], [1, 1, 1]), "eligible (3,)"),
        (lambda: tally([[1, 0], [1]], [0, 1]), "rectangular"),
        (lambda: cluster_bootstrap(COUNTS, seed=0, level=0), "level 0"),
        (lambda: cluster_bootstrap(COUNTS, seed=0, draws=0), "0 draws"),
        (lambda: cluster_bootstraps(Tally(np.ones(3), np.ones(3)), seed=0), "entries"),
        (lambda: cluster_bootstrap(Tally(np.ones(3), np.ones(3)), Tally(np.ones(4), np.ones(4)), seed=0), "3 and 4"),
        (lambda: cluster_bootstrap(tally([1, 1], [0, 1]), tally([1, 1], [0, 2]), seed=0), "same clusters"),
        (lambda: cluster_bootstrap(Tally(np.ones(1), np.ones(1)), seed=0), "two clusters"),
        (lambda: cluster_bootstrap(Tally(np.zeros(9), np.eye(9)[0]), seed=0), "two clusters"),
        (lambda: backbone_bootstrap(Tally(np.ones(3), np.ones(3)), seed=0), "backbones >= 2"),
        (lambda: backbone_bootstrap(Tally(np.ones((1, 3)), np.ones((1, 3))), seed=0), "backbones >= 2"),
        (lambda: backbone_bootstrap(COUNTS, Tally(np.ones(12), np.ones(12)), seed=0), "same backbones"),
        (lambda: fit_line([1, 2], [1, 2, 3]), "(2,) and (3,)"),
        (lambda: fit_line([2, 2], [1, 2]), "two different x"),
        (lambda: fit_line([1, 2], [1, np.inf]), "infinite"),
        (lambda: moving_block_bootstrap([1, 2, 3], [1, 2, 3], seed=0), "blocks of 20"),
        (lambda: moving_block_bootstrap([1, 2, 3], [1, 2, 3], seed=0, block=0), "blocks of 0"),
        (lambda: project_bands(np.ones((3, 20))), "(3, 20)"),
        (lambda: project_bands(np.ones((3, 3))), "one period"),
        (lambda: project_bands(np.ones(21)), "(21,)"),
        (lambda: phase_unwrapped([1, 2, 3], np.ones((2, 21))), "(3,) and (2,)"),
        (lambda: phase_unwrapped([1], np.ones((1, 21))), "at least two"),
        (lambda: phase_robust([2, 1], bands_at(np.zeros(2))), "increasing"),
        (lambda: phase_robust([1, 2.5], bands_at(np.zeros(2))), "whole numbers"),
        (lambda: phase_robust([1, 2], np.ones((2, 21))), "varies"),
    ],
)
def test_bad_input_is_one_clear_line(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
