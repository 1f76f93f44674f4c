"""Parity at long lengths: analyses of bands whose answers are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from loopscope.errors import InputError
from loopscope.quantity import one
from loopscope.stats import fit_line
from loopscope.studies.parity import lengths as lengths_of
from loopscope.studies.parity import timing as timing_of
from loopscope.studies.parity.counts import Counts
from loopscope.studies.parity.lengths import Band, at_exit, mean_over_lengths
from tests.planted.lengths import LINES, Line, planted, recorded, wave

Refused = Callable[..., str]

# ---- planted bands ---------------------------------------------------------------------------------------------------


def test_accuracy_at_n_is_what_was_planted() -> None:
    counts: Counts = {"near": planted(range(1, 501))}
    for first, last in ((1, 100), (101, 500), (200, 300)):
        n = np.arange(first, last + 1)
        native, with_j = (wave(line(n)).mean() for line in LINES)
        rows = at_exit(counts, first, last)
        expected = {"native": native, "J": with_j, "J minus native": with_j - native}
        assert {name: row.estimate.value for name, row in rows.items()} == pytest.approx(expected, abs=1e-4)
        for row in rows.values():
            assert row.estimate.low <= row.estimate.value <= row.estimate.high
            assert (row.n, row.estimate.n, row.estimate.unit) == (20_000 * len(n), len(n), "block of 20 lengths")
            assert row.published is None
    rows = at_exit(counts, 101, 500, backbone=2)
    assert [row.published for row in rows.values()] == pytest.approx([0.4505, 0.7373, 0.2868])
    alone = at_exit({"near": planted(range(1, 501), LINES[:1])}, 101, 500)
    assert list(alone) == ["native"]


def test_means_resample_blocks() -> None:
    alternating = np.tile([0.0, 1.0], 200)
    flat = mean_over_lengths(alternating)  # every block holds as many zeros as ones
    assert (flat.value, flat.low, flat.high) == (0.5, 0.5, 0.5)
    noise = np.random.default_rng(1).normal(size=400)
    for values in (noise, np.cumsum(noise)):  # neighbours that have nothing in common, and such that are alike
        blocks = np.mean([np.roll(values, -place) for place in range(20)], 0)  # one from every start
        found = mean_over_lengths(values)
        assert found.high - found.low == pytest.approx(2 * 1.96 * blocks.std() / np.sqrt(20), rel=0.05)
        assert found.value == values.mean()
    ramp = mean_over_lengths(np.linspace(0, 1, 400))  # ends count as much as the middle
    assert (ramp.low + ramp.high) / 2 == pytest.approx(0.5, abs=0.01)
    assert mean_over_lengths(np.arange(9.0)).unit == "block of 2 lengths"
    with pytest.raises(InputError, match="at least two"):
        mean_over_lengths(np.ones(1))


def test_timings_find_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_of, "DRAWS", 500)
    found = timing_of.timings({"near": planted(range(1, 501))}, backbone=2)
    assert [(each.condition, each.estimator) for each in found] == [
        ("native", "unwrapped"), ("native", "robust"), ("J", "unwrapped"), ("J", "robust")
    ]  # fmt: skip
    for each, (drift, intercept) in zip(found, [(-0.96, -0.12)] * 2 + [(-0.18, -0.16)] * 2, strict=True):
        assert each.drift.value == pytest.approx(drift, abs=0.01)
        assert each.drift.low <= each.drift.value <= each.drift.high
        assert each.intercept == pytest.approx(intercept, abs=0.05)
        assert (each.drift.n, each.drift.unit, each.mae.n) == (450, "block of 20", 450)
        assert each.mae.value < 0.03
        assert each.period == pytest.approx(4, abs=0.1)
        assert each.slips == 0
    assert [each.paper for each in found] == [(-0.961, 0.066), None, (-0.183, 0.052), None]


def test_one_noisy_length_fools_only_the_papers_estimator() -> None:
    """As recorded for the published seed 1: two odd rows, and all offsets behind them are a period too late."""

    def slipping(n: np.ndarray) -> np.ndarray:
        return 0.0118 * n - 0.3 + 1.5 * (n == 437) + 3.0 * (n == 438)

    counts: Counts = {"near": planted(range(1, 501), (LINES[0], slipping))}
    *_, unwrapped, robust = timing_of.timings(counts)
    assert robust.drift.value == pytest.approx(1.18, abs=0.01)
    assert robust.mae.value < 0.05
    assert unwrapped.drift.value > 1.4
    assert unwrapped.mae.value > 0.3
    assert unwrapped.slips == robust.slips == 490 - 437


def test_no_phase_without_variation() -> None:
    flat: Counts = {"near": planted(range(1, 501), LINES, ceiling=0.0)}
    assert timing_of.timings(flat) == []
    assert timing_of.timings({"near": planted(range(1, 44))}) == []
    band = Band.of(flat, "near").within(41, 490)
    assert not any(row.at["way"] == timing_of.SHIFTED for row in timing_of.exits(band, band))
    assert len(timing_of.timings({"near": planted(range(45, 126, 20))})) == 4


# ---- computation or timing? ------------------------------------------------------------------------------------------


def test_a_shift_undoes_a_drift_and_a_better_computation_shows() -> None:
    n = np.arange(41, 491)
    counts: Counts = {"near": planted(range(1, 501))}
    band = Band.of(counts, "near").within(41, 490)
    found = {row.label: row.estimate.value for row in timing_of.exits(band, band)}
    native, with_j = (wave(np.rint(line(n)) - line(n)).mean() for line in LINES)
    assert found["native, on the line"] == pytest.approx(native, abs=0.01)
    assert found["J, on the line"] == pytest.approx(with_j, abs=0.01)
    assert found["native, best offset"] == pytest.approx(native, abs=1e-3)
    assert found["native, best offset of the other half"] == pytest.approx(native, abs=1e-3)
    assert found["native, t = n"] == pytest.approx(wave(LINES[0](n)).mean(), abs=1e-3)
    assert found["J minus native, t = n"] > 0.2
    assert abs(found["J minus native, on the line"]) < 0.05
    shifted = found["native, on the line"] - found["J, t = n"]
    assert found["native, on the line, minus J, t = n"] == pytest.approx(shifted)
    # A map that answers better at every loop, without moving anything, keeps its gain however the loop is chosen.
    worse, better = planted(range(1, 501), LINES[:1], ceiling=0.5), planted(range(1, 501), LINES[:1])
    both = Band.of({"near": {**worse, "right": torch.cat([worse["right"], better["right"]])}}, "near").within(41, 490)
    found = {row.label: row.estimate.value for row in timing_of.exits(both, both)}
    for way in ("on the line", "best offset", "best offset of the other half"):
        assert found[f"J minus native, {way}"] == pytest.approx(0.5 * native, abs=0.01)


def test_chance_flatters_only_the_best_on_the_same_strings() -> None:
    """Fair coins at every loop: nothing to find, and the other half says so."""
    coins = np.random.default_rng(0).binomial(32, 0.5, size=(1, 2, 450, 21))
    band = Band(np.arange(41, 491), np.array([32, 32]), coins)
    found = timing_of.exits(band, band)
    assert one(found, "parity.loop", condition="native", way=timing_of.BEST).estimate.value > 0.6
    for way in (timing_of.AT_N, timing_of.SHIFTED, timing_of.CHOSEN):
        row = one(found, "parity.loop", condition="native", way=way)
        assert (row.label, row.estimate.value) == (f"native, {way}", pytest.approx(0.5, abs=0.02))


def test_offsets() -> None:
    n = np.array([0, 10, 15, 16, 20, 25, 30, 40])
    line = fit_line(n, 0.1 * n)  # 0, 1, 1.5, 1.6, 2, 2.5, 3, 4 loops late
    assert timing_of.nearest_loop(line, n[[0, 1, 3, 5, 6, 7]]).tolist() == [0, 1, 2, -2, -1, 0]
    rows = np.zeros((3, 21))
    rows[0, [0, 9, 11]] = 1.0
    rows[1] = 1.0
    rows[2, 20] = 0.5
    assert timing_of.best_offsets(rows).tolist() == [-1, 0, 10]
    rows[0, :10] = np.nan
    assert timing_of.best_offsets(rows).tolist() == [1, 0, 10]


def test_tables_of_everything() -> None:
    counts: Counts = {"near": planted(range(1, 501)), "far": planted(range(500, 1001, 5))}
    titles = [table.title for table in timing_of.tables(counts, backbone=2)]
    assert titles == [
        "Right at t = n, lengths 1-100",
        "Right at t = n, lengths 101-500",
        "Right at t = n, lengths 505-1000",
        "Computation or timing? Lengths 41-490, lines of 41-490",
        "Computation or timing? Lengths 266-490, lines of 41-265",
        "Computation or timing? Lengths 505-1000, lines of 41-490",
    ]
    beyond = timing_of.tables(counts, backbone=2)[-1]
    shares = {row.label: row.estimate.value for row in beyond.rows}
    n = np.arange(505, 1001, 5)  # the line of shorter lengths still holds, so reading on it does, too
    assert shares["native, on the line"] == pytest.approx(wave(np.rint(LINES[0](n)) - LINES[0](n)).mean(), abs=0.02)
    assert beyond.note.startswith("100 lengths from 505 to 1000, 20000 strings each")


# ---- claims, figures -------------------------------------------------------------------------------------------------


def test_claims(refused: Refused) -> None:
    flat: Line = lambda n: 0.0 * n + 0.5  # noqa: E731
    cohort: dict[str, Counts] = {
        "parity-0": {"near": planted(range(1, 501), (flat, flat))},
        "parity-1": {"near": planted(range(1, 501), (LINES[1], LINES[0]))},
        "parity-2": {"near": planted(range(1, 501)), "far": recorded()},
    }
    gains = lengths_of.gains_of(cohort)
    assert list(gains) == list(cohort)
    signs = [np.sign(round(row.estimate.value, 6)) for row in gains.values()]
    assert signs == [0, -1, 1]
    assert lengths_of.at_exit(cohort["parity-2"], 101, 500, 2)[lengths_of.GAIN].published == pytest.approx(0.2868)
    assert lengths_of.gains_most(cohort) == "parity-2"
    rows = lengths_of.at_exit(cohort["parity-2"], *lengths_of.LIMIT, 2)
    assert [row.estimate.value for row in rows.values()] == pytest.approx([0.4755, 0.3640, -0.1115], abs=1e-4)
    assert [row.published for row in rows.values()] == pytest.approx([0.4755, 0.3640, -0.1115])
    assert all(row.n == 12_800 and row.estimate.unit == "block of 20 lengths" for row in rows.values())
    del cohort["parity-2"]["far"]
    assert refused(InputError, lengths_of.at_exit, cohort["parity-2"], *lengths_of.LIMIT) == (
        "part 'far' was not measured; there are near (nearest: near)"
    )


def test_agreement_compares_the_same_cells() -> None:
    near, exact = planted(range(1, 501), half=50), planted(range(100, 501, 200), half=50)
    assert lengths_of.agreement({"near": near}) is None
    assert lengths_of.agreement({"near": near, "check": planted(range(600, 700, 50))}) is None
    counts: Counts = {"near": near, "check": exact}
    told = lengths_of.agreement(counts)
    assert told is not None
    assert told.startswith("3 lengths from 100 to 500, 100 strings each, the 21 loops around t = n: native ")
    assert told.count("a cell differs by 0.0 points in the mean, 0.0 at most") == 2
    exact["right"][1, 0, 2, 7] += 21  # of 100 strings, in one of 63 cells
    told = lengths_of.agreement(counts)
    assert told is not None
    assert told.count("a cell differs by 0.0 points in the mean, 0.0 at most") == 1
    assert told.endswith("a cell differs by 0.3 points in the mean, 21.0 at most.")


def test_heat_maps_and_their_dots(refused: Refused) -> None:
    right = torch.tensor([[[4, 2, 0], [4, 3, 4], [0, 2, 1]], [[1, 4, 0], [0, 0, 3], [3, 2, 4]]], dtype=torch.int32)
    sizes = torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([4], dtype=torch.int32)
    counts: Counts = {"heat": {"lengths": sizes[0], "strings": sizes[1], "right": right}}
    heat = lengths_of.heat_map(counts)
    assert heat["native"][0].tolist() == [1.0, 0.5, 0.0]
    assert lengths_of.best_nearby(heat["native"]) == [1, None, 2]
    assert lengths_of.best_nearby(heat["J"]) == [2, 3, 3]
    refused(InputError, lengths_of.heat_map, {})


def test_smoothed_curves_start_half_a_window_in() -> None:
    n = np.arange(1, 501)
    x, y = lengths_of.smoothed(n, n / 500, 10)
    assert (len(x), x[0], x[1], x[-1]) == (491, pytest.approx(5.5), pytest.approx(6.5), pytest.approx(495.5))
    np.testing.assert_allclose(y, x / 500)
