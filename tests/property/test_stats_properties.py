from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loopscope.stats import (
    Tally,
    backbone_bootstrap,
    cluster_bootstrap,
    fit_line,
    moving_block_bootstrap,
    tally,
    wilson,
)
from loopscope.studies.parity.phase import phase_robust, phase_unwrapped

seeds = st.integers(0, 2**32 - 1)
levels = st.floats(0.01, 0.999)


@st.composite
def tallies(draw: st.DrawFn) -> Tally:
    """Random counts (backbones, fits, graphs) in which every fit has at least two graphs with eligible examples."""
    rng = np.random.default_rng(draw(seeds))
    shape = tuple(draw(st.integers(low, high)) for low, high in ((2, 4), (1, 3), (2, 12)))
    eligible = rng.integers(0, 6, size=shape)
    eligible[..., :2] += 1
    return Tally(rng.binomial(eligible, rng.random()).astype(float), eligible.astype(float))


@given(n=st.integers(1, 10**7), fraction=st.floats(0, 1), level=levels)
def test_wilson_contains_the_proportion_and_mirrors(n: int, fraction: float, level: float) -> None:
    successes = round(fraction * n)
    ours, mirrored = wilson(successes, n, level), wilson(n - successes, n, level)
    assert 0 <= ours.low <= ours.value <= ours.high <= 1
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((ours.low, ours.high), abs=1e-12)
    wider = wilson(successes, n, (1 + level) / 2)
    assert wider.low <= ours.low <= ours.high <= wider.high


@given(seed=seeds, rows=st.integers(1, 3), examples=st.integers(1, 40), graphs=st.integers(1, 8))
def test_tally_loses_no_example_and_ignores_their_order(seed: int, rows: int, examples: int, graphs: int) -> None:
    rng = np.random.default_rng(seed)
    correct, eligible = rng.integers(2, size=(2, rows, examples))
    ids = rng.integers(graphs, size=examples)
    counts = tally(correct, ids, eligible)
    np.testing.assert_array_equal(counts.correct.sum(-1), (correct & eligible).sum(-1))
    np.testing.assert_array_equal(counts.eligible.sum(-1), eligible.sum(-1))
    order = rng.permutation(examples)
    shuffled = tally(correct[:, order], ids[order], eligible[:, order])
    np.testing.assert_array_equal(counts.correct, shuffled.correct)
    np.testing.assert_array_equal(counts.eligible, shuffled.eligible)


@settings(max_examples=50)
@given(counts=tallies(), seed=seeds, level=levels)
@pytest.mark.parametrize("bootstrap", [cluster_bootstrap, backbone_bootstrap])
def test_accuracies_stay_between_none_and_all(bootstrap, counts: Tally, seed: int, level: float) -> None:  # type: ignore[no-untyped-def]
    ours = bootstrap(counts, seed=seed, draws=40, level=level)
    assert 0 <= ours.low <= ours.high <= 1
    assert 1 <= ours.draws <= 40
    wrong = bootstrap(Tally(counts.eligible - counts.correct, counts.eligible), seed=seed, draws=40, level=level)
    assert (1 - wrong.high, 1 - wrong.value, 1 - wrong.low) == pytest.approx(
        (ours.low, ours.value, ours.high), abs=1e-9
    )


@settings(max_examples=50)
@given(counts=tallies(), seed=seeds)
@pytest.mark.parametrize("bootstrap", [cluster_bootstrap, backbone_bootstrap])
def test_swapping_conditions_changes_the_sign(bootstrap, counts: Tally, seed: int) -> None:  # type: ignore[no-untyped-def]
    other = Tally(np.floor(counts.correct / 2), counts.eligible)
    forward = bootstrap(counts, other, seed=seed, draws=40)
    backward = bootstrap(other, counts, seed=seed, draws=40)
    assert forward.value >= 0
    assert (-backward.high, -backward.value, -backward.low) == pytest.approx(
        (forward.low, forward.value, forward.high), abs=1e-9
    )


@settings(max_examples=50)
@given(counts=tallies(), seed=seeds, factor=st.integers(2, 5) | st.just(2**24 + 1))  # the last is too much for float32
def test_only_the_share_of_examples_matters(counts: Tally, seed: int, factor: int) -> None:
    more = Tally(counts.correct * factor, counts.eligible * factor)
    assert cluster_bootstrap(counts, seed=seed, draws=40) == cluster_bootstrap(more, seed=seed, draws=40)


@given(seed=seeds, n=st.integers(3, 60), slope=st.floats(-5, 5), shift=st.floats(-50, 50))
def test_lines_add(seed: int, n: int, slope: float, shift: float) -> None:
    """Adding a line to y adds it to the fit, and leaves residuals and interval widths alone."""
    rng = np.random.default_rng(seed)
    x, y = np.arange(n), rng.normal(size=n)
    plain, tilted = fit_line(x, y), fit_line(x, y + slope * x + shift)
    assert tilted.slope - slope == pytest.approx(plain.slope, abs=1e-9)
    assert tilted.intercept - shift == pytest.approx(plain.intercept, abs=1e-9)
    assert (tilted.mae, tilted.rmse) == pytest.approx((plain.mae, plain.rmse), abs=1e-9)
    block = int(rng.integers(1, n + 1))
    before = moving_block_bootstrap(x, y, seed=seed, block=block, draws=20)
    after = moving_block_bootstrap(x, y + slope * x + shift, seed=seed, block=block, draws=20)
    assert (after.low - slope, after.high - slope) == pytest.approx((before.low, before.high), abs=1e-9)


@settings(max_examples=60)
@given(
    drift=st.floats(-1.0, 1.0),
    start=st.floats(-1.9, 1.9),
    count=st.integers(30, 300),
    first=st.integers(1, 300),
    step=st.sampled_from([1, 2, 5]),
)
def test_robust_phase_finds_every_drift_that_lengths_can_tell_apart(
    drift: float, start: float, count: int, first: int, step: int
) -> None:
    """Slopes up to a quarter period per step: the aliases of a slope lie a whole period per step away."""
    lengths = first + step * np.arange(count)
    offsets = start + drift / step * (lengths - first)
    band = 0.5 + 0.5 * np.cos(np.pi / 2 * (np.arange(-10, 11) - offsets[:, None]))
    phase = phase_robust(lengths, band)
    # 21 offsets are not whole periods; the leakage moves single offsets by less than 0.1 loops.
    np.testing.assert_allclose(phase.offsets, offsets, atol=0.1)


@settings(max_examples=60)
@given(seed=seeds, count=st.integers(2, 60))
def test_both_phases_differ_by_whole_periods_only(seed: int, count: int) -> None:
    band = np.random.default_rng(seed).random((count, 21))
    lengths = np.arange(41, 41 + count)
    paper, robust = phase_unwrapped(lengths, band), phase_robust(lengths, band)
    turns = (paper.offsets - robust.offsets) / 4
    np.testing.assert_allclose(turns, np.round(turns), atol=1e-9)
    assert -2 <= paper.offsets[0] <= 2


@settings(max_examples=60)
@given(seed=seeds, drift=st.floats(-2, 2), row=st.integers(0, 199))
def test_one_row_cannot_move_the_robust_offsets_of_others(seed: int, drift: float, row: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = np.arange(41, 241)
    offsets = drift / 100 * (lengths - 41)
    band = 0.5 + 0.5 * np.cos(np.pi / 2 * (np.arange(-10, 11) - offsets[:, None]))
    spoilt = band.copy()
    spoilt[row] = rng.random(21)
    assume(np.ptp(spoilt[row]) > 0)
    others = np.arange(200) != row
    np.testing.assert_array_equal(
        phase_robust(lengths, band).offsets[others], phase_robust(lengths, spoilt).offsets[others]
    )
