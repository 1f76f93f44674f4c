"""Continuation: counted by hand on the tiny backbone of the zoo, judged on planted walkers whose tables are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.quantity import Quantity, every, one
from loopscope.store.zoo import open_zoo
from loopscope.studies.graph_walk import continuation
from loopscope.studies.graph_walk.continuation import BROAD, WITHHELD, measure_broad, measure_strict
from loopscope.studies.graph_walk.continuation_curves import (
    ALL,
    BEYOND,
    INSIDE,
    RINGS,
    STEERED,
    curves,
    hold,
    nested_bootstrap,
    plain,
    strict_curves,
    tables,
)
from loopscope.studies.records import ModelFacts, Predictions, pack, unpack
from loopscope.studies.trained import TrainedModel, instances, load_trained
from loopscope.tasks.graph_walk import all_starts, cycle_lengths, is_ring, walk
from loopscope.tasks.populations import population
from tests.planted.continuation import planted
from tests.toys import walked

CPU = torch.device("cpu")
TINY, FEW, LOOPS = "tiny-test", 10, 9

# Steered accuracy of the reference's twelve backbones over loops 9-16, 17-32 and 17-40 of the broad sample.
PUBLISHED = {
    100: (0.99999, 0.4701, 0.3676), 101: (0.99995, 0.4837, 0.3967), 102: (0.99562, 0.4508, 0.3582),
    103: (0.75005, 0.3473, 0.3102), 104: (0.99998, 0.4709, 0.3776), 105: (0.99999, 0.5412, 0.4596),
    106: (0.99988, 0.5081, 0.4282), 107: (1.0000, 0.4691, 0.3648), 108: (0.99930, 0.4109, 0.3227),
    109: (0.98856, 0.4659, 0.4076), 110: (0.88426, 0.3931, 0.3572), 111: (1.0000, 0.5456, 0.4546),
}  # fmt: skip

# What holding f^8(s) scores at loops 9, 10, ... on the broad sample.
HELD = (
    0.1275, 0.2499, 0.2531, 0.3816, 0.2497, 0.5019, 0.2505, 0.5028, 0.2531, 0.3721, 0.1275, 0.6335, 0.1275, 0.373,
    0.3753, 0.5028, 0.1275, 0.5019, 0.1275, 0.5038, 0.3762, 0.2499, 0.1275, 0.7547, 0.2497, 0.2499, 0.2531, 0.5046,
    0.1275, 0.6241, 0.1275, 0.5028,
)  # fmt: skip


# ---- measuring -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return load_trained(open_zoo(), "tiny-0", CPU, prefix="tiny-")


@pytest.fixture(scope="module")
def measured(trained: TrainedModel) -> dict[str, Tensor]:
    return measure_strict(trained, TINY, LOOPS, FEW, "one")[TINY]


@torch.no_grad()
def readings(trained: TrainedModel, name: str | None, moved: bool = False) -> list[list[int]]:
    """The answers after each call, one call of F at a time; `moved`: F gets what J made of the graph before."""
    h = trained.model.embed(instances(TINY, 2, CPU).tokens[: FEW * 6])
    found = []
    for _ in range(LOOPS):
        entering = h if name is None else trained.named("one")[name](h)
        h = trained.model.call(entering)
        given = trained.model.call(entering.roll(6, 0)) if moved else h
        found.append(trained.model.read(given[:, -1]).argmax(-1).tolist())
    return found


def counted_by_hand(answers: list[list[int]], strict: bool) -> list[list[int]]:
    """Right answers [loops][graphs] of the first graphs; `strict`: of starts with f^t(s) other than f^2(s)."""
    rows = population(TINY).graphs[:FEW].tolist()
    right = [[0] * FEW for _ in range(LOOPS)]
    for t, (g, s) in itertools.product(range(1, LOOPS + 1), itertools.product(range(FEW), range(6))):
        target, held = walked(rows[g], s, t), walked(rows[g], s, 2)
        right[t - 1][g] += answers[t - 1][6 * g + s] == target and not (strict and target == held)
    return right


def test_counts_are_those_of_calling_F_and_J_in_turn(trained: TrainedModel, measured: dict[str, Tensor]) -> None:
    for run in ("native", "one-1", "one-2"):
        answers = readings(trained, None if run == "native" else run)
        assert measured[f"{run} strict"].tolist() == counted_by_hand(answers, strict=True)
        by_length = measured[run]
        assert by_length.sum(0).tolist() == [sum(each) for each in counted_by_hand(answers, strict=False)]
        rings = is_ring(population(TINY).graphs[:FEW])
        on_rings = torch.tensor(counted_by_hand(answers, strict=False))[:, rings].sum(1)
        assert rings.any()
        assert torch.equal(by_length[-1], on_rings.int())
    assert measured["native strict"].sum() < measured["one-1 strict"].sum()  # the map does walk


def test_controls_are_what_they_are_called(trained: TrainedModel, measured: dict[str, Tensor]) -> None:
    maps = trained.named("one")
    tokens = instances(TINY, 2, CPU).tokens[: FEW * 6]
    for name, step in maps.items():
        moved = readings(trained, name, moved=True)
        assert measured[f"{name} moved"].tolist() == counted_by_hand(moved, strict=True)
        with torch.no_grad():
            h = trained.model.embed(tokens)
            for t in range(LOOPS):
                h = step(h)
                nodes = trained.model.read(h[:, -1]).argmax(-1)
                assert nodes.unique().tolist() == [int(measured[f"{name} alone"][t])]  # whatever the input


def test_the_broad_measurement_is_a_part_of_the_strict_one(trained: TrainedModel, measured: dict[str, Tensor]) -> None:
    broad = measure_broad(trained, TINY, LOOPS, FEW, "one")[TINY]
    assert set(broad) == {"instances", "native", "one-1", "one-2"}
    assert all(torch.equal(broad[name], measured[name]) for name in broad)
    lengths = cycle_lengths(population(TINY).graphs[:FEW])
    assert broad["instances"].tolist() == [int((lengths == length).sum()) for length in range(1, 7)]
    for name, counts in measured.items():
        assert counts.dtype == (torch.uint8 if " " in name else torch.int32)


def test_pieces_do_not_matter(
    trained: TrainedModel, measured: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuation, "AT_ONCE", 4)
    again = measure_strict(trained, TINY, LOOPS, FEW, "one")[TINY]
    assert all(torch.equal(again[name], measured[name]) for name in measured)


def test_a_measured_record_becomes_tables(trained: TrainedModel) -> None:
    found = {"tiny-0": measure_strict(trained, TINY, 16, FEW, "one")}
    made = rows_of(found, {"tiny-0": ModelFacts.of(trained)}, TINY)
    inside = made["all graphs, J F, loops 9-16"]
    assert (inside.estimate.unit, inside.n) == ("run, lowest to highest", FEW * 6 * 8)
    assert "J alone, loops 9-16" in made


def test_what_cannot_be_measured(trained: TrainedModel) -> None:
    for graphs in (0, 73):
        with pytest.raises(InputError, match="of 72 graphs of tiny-test"):
            measure_broad(trained, TINY, LOOPS, graphs, "one")
    with pytest.raises(InputError, match="no maps 'continue16'; there are one, stay"):
        measure_strict(trained, TINY)
    with pytest.raises(InputError, match="eight-broad has graphs of 8 nodes, and tiny-0 walks on 6"):
        measure_broad(trained, target="one")


# ---- the hold baseline -----------------------------------------------------------------------------------------------


def test_the_broad_sample_is_the_reference_one() -> None:
    chosen = np.random.default_rng(2026092402).choice(40320, 8192, replace=False)
    every = list(itertools.permutations(range(8)))
    assert population(BROAD).rows == tuple(every[number] for number in chosen)
    assert int(is_ring(population(BROAD).graphs).sum()) == 993


def test_holding_scores_what_the_reference_recorded() -> None:
    shares = hold()
    assert shares[8:40] == pytest.approx(HELD, abs=5.1e-5)
    means = [shares[first - 1 : last].mean() for first, last in ((9, 16), (17, 32), (17, 40))]
    assert means == pytest.approx([0.3146247864, 0.3458614349, 0.3405418396], abs=5e-11)


@pytest.mark.parametrize(("where", "depth"), [(WITHHELD, 8), (TINY, 2)])
def test_holding_by_cycle_length_is_holding_by_walking(where: str, depth: int) -> None:
    path = walk(*all_starts(population(where).graphs[:50]), 70)
    expected = (path[:, 1:] == path[:, depth : depth + 1]).double().mean(0)
    assert hold(where, 70, 50, depth) == pytest.approx(expected.numpy())


# ---- planted walkers -------------------------------------------------------------------------------------------------


def facts_of(name: str) -> ModelFacts:
    return ModelFacts(name, "0" * 64, loops=8, depth=8, nodes=8, heads=4, fits={"continue16": 2})


def cohort(where: str, *walks: Sequence[int], **settings: Any) -> tuple[dict[str, Predictions], dict[str, ModelFacts]]:
    names = [f"n8-d8l8-{100 + number}" for number in range(len(walks))]
    found = {name: {where: planted(where, each, **settings)} for name, each in zip(names, walks, strict=True)}
    return found, {name: facts_of(name) for name in names}


def rows_of(found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str) -> dict[str, Quantity]:
    made = tables(found, facts, where, paper=True)
    rows = [row for table in made for row in table.rows]
    assert len({row.label for row in rows}) == len(rows)
    return {row.label: row for row in rows}


def test_a_walker_that_stops_falls_to_the_hold_baseline() -> None:
    found, facts = cohort(BROAD, (16, 16), (16, 16), (16, 16))
    rows = rows_of(found, facts, BROAD)
    base = hold(BROAD, 40, 64)
    for group in ("all graphs", "single cycles"):
        assert rows[f"{group}, J F, loops 9-16"].estimate.value == 1.0
        for first, last in ((17, 32), (17, 40)):
            values = [rows[f"{group}, {each}, loops {first}-{last}"] for each in ("J F", "F alone", "hold f^8(s)")]
            expected = 0.125 if group == "single cycles" else base[first - 1 : last].mean()
            assert [row.estimate.value for row in values] == pytest.approx([expected] * 3)
    row = rows["all graphs, J F, loops 17-40"]
    assert (row.n, row.published, row.estimate.unit, row.estimate.draws) == (64 * 8 * 24, 0.3837, "backbone", 10_000)
    for length in range(1, 9):
        hits = sum((t - 8) % length == 0 for t in range(17, 33)) / 16
        assert rows[f"cycle of {length}, J F, loops 17-32"].estimate.value == pytest.approx(hits)
    assert not any("128" in name for name in rows)  # never run that long


def test_curves_average_maps_then_backbones() -> None:
    found, facts = cohort(BROAD, (16, 24), (20, 20), (40, 40))
    curve = {(each.condition, each.group): each for each in curves(found, facts)}
    steered = curve["J F", "single cycles"]
    assert steered.loops == list(range(1, 41))
    assert steered.estimates[19].value == pytest.approx((0.5 + 1 + 1) / 3)  # loop 20, 12 steps on: holding is wrong
    assert steered.estimates[36].value == pytest.approx(1 / 3)
    assert (steered.estimates[36].low, steered.estimates[36].high) == (0.0, 1.0)
    held = [point.value for point in curve["hold f^8(s)", "all graphs"].estimates]
    assert held == pytest.approx(hold(BROAD, 40, 64))
    assert steered.n == 8 * int(is_ring(population(BROAD).graphs[:64]).sum())


def test_the_published_backbones_give_the_published_means() -> None:
    """Counts as the reference's table has them, evenly over loops; also the interval, by an independent bootstrap."""
    found, facts = cohort(BROAD, *[(16, 16)] * 12, graphs=8192)
    for name, (inside, beyond, longer) in zip(found, PUBLISHED.values(), strict=True):
        late = (24 * longer - 16 * beyond) / 8  # the mean of loops 33-40
        shares = torch.tensor([1.0] * 8 + [inside] * 8 + [beyond] * 16 + [late] * 8)
        counts = found[name][BROAD]
        for fit in (1, 2):
            counts[f"continue16-{fit}"] = (counts["instances"][:, None] * shares).round().int()
    rows = rows_of(found, facts, BROAD)
    for loops, column in (("9-16", 0), ("17-32", 1), ("17-40", 2)):
        row = rows[f"all graphs, J F, loops {loops}"]
        assert row.estimate.value == pytest.approx(row.published, abs=1e-4)
        values = np.array([each[column] for each in PUBLISHED.values()])
        draws = values[np.random.default_rng(5).integers(12, size=(20_000, 12))].mean(1)
        ends = np.quantile(draws, [0.025, 0.975])
        assert [row.estimate.low, row.estimate.high] == pytest.approx(ends, abs=2e-3)
        held = rows[f"all graphs, F alone, loops {loops}"]
        assert held.estimate.value == pytest.approx(held.published, abs=5.1e-6)
    assert rows["n8-d8l8-103, all graphs, loops 9-16"].estimate.value == pytest.approx(0.75005, abs=1e-4)


# ---- strict accuracy -------------------------------------------------------------------------------------------------


def test_strict_accuracy_counts_no_answer_that_merely_holds() -> None:
    found, facts = cohort(WITHHELD, (16, 16), (16, 48), loops=48, strict=True)
    rows = rows_of(found, facts, WITHHELD)
    assert [rows[f"{each}, loops 9-16"].estimate.value for each in ("J F", "F alone")] == pytest.approx([1.0, 0.0])
    assert [rows[f"{each}, loops 17-40"].estimate.value for each in ("J F", "F alone")] == pytest.approx([0.25, 0.0])
    assert rows["J F, loops 9-16"].published == 0.9640
    path = walk(*all_starts(population(WITHHELD).graphs[:64]), 48).T.view(49, 64, 8)
    counted = path[1:] != path[8]
    shares = ((path[1:] == 0) & counted).sum(-1) / counted.sum(-1)
    expected = [float(each[~each.isnan()].mean()) for each in shares]
    alone = next(curve for curve in strict_curves(found, facts) if curve.condition == "J alone")
    assert alone.loops == [loop for loop in range(1, 49) if loop != 8]  # there every start is held
    assert [point.value for point in alone.estimates] == pytest.approx([expected[loop - 1] for loop in alone.loops])
    assert rows["J alone, loops 17-40"].estimate.value == pytest.approx(np.mean(expected[16:40]))
    assert rows["J alone, loops 17-40"].n == int((counted.sum(-1) > 0).sum(1)[16:40].sum())


def test_nested_draws_take_backbones_then_one_map_then_graphs() -> None:
    one_or_nothing = [np.stack([np.zeros((5, 3)), np.ones((5, 3))])]
    draws = nested_bootstrap(one_or_nothing)
    assert set(np.unique(draws)) == {0.0, 1.0}  # never both maps
    assert draws.mean() == pytest.approx(0.5, abs=0.05)
    assert (draws == draws[:, :1]).all()  # one draw serves all loops

    means = np.linspace(0, 1, 6)
    draws = nested_bootstrap([np.full((2, 4, 1), mean) for mean in means], draws=20_000)[:, 0]
    assert draws.std() == pytest.approx(means.std() / np.sqrt(6), rel=0.03)

    values = np.random.default_rng(2).random((1, 40, 1))
    draws = nested_bootstrap([values], draws=20_000)[:, 0]
    assert draws.mean() == pytest.approx(values.mean(), abs=2e-3)
    assert draws.std() == pytest.approx(values.std() / np.sqrt(40), rel=0.03)


def test_graphs_that_drop_out_of_a_loop_do_not_count_there() -> None:
    values = np.random.default_rng(3).random((2, 30, 2))
    without, values[:, 20:, 0] = values[:, :20, :1], np.nan
    draws = nested_bootstrap([values], draws=20_000)
    assert draws[:, 0].mean() == pytest.approx(without.mean(), abs=3e-3)
    assert draws[:, 1].mean() == pytest.approx(values[..., 1].mean(), abs=3e-3)
    assert np.isnan(nested_bootstrap([np.full((1, 3, 1), np.nan)], draws=5)).all()


# ---- claims ----------------------------------------------------------------------------------------------------------


def test_claims_of_twelve_walkers() -> None:
    found, facts = cohort(WITHHELD, *[(16, 16)] * 10, (12, 16), (40, 40))
    rows = plain(found, facts, WITHHELD)

    def over(id: str, **at: str) -> list[Quantity]:
        ranges = [{"first": first, "last": last} for first, last in (INSIDE, BEYOND)]
        return [one(rows, id, group=RINGS, condition=STEERED, **loops, **at) for loops in ranges]

    inside, row = over("continuation.accuracy")
    each = {
        name: tuple(found.estimate.value for found in over("continuation.backbone", backbone=name)) for name in found
    }
    stopped = 5 / 8  # of loops 9-16, four are walked, and holding is right at loop 16
    assert inside.estimate.value == pytest.approx((11 + (1 + stopped) / 2) / 12)
    assert row.estimate.value == pytest.approx((11 * 0.125 + 1) / 12)
    assert list(each) == list(found)
    assert each["n8-d8l8-110"] == pytest.approx(((1 + stopped) / 2, 0.125))
    assert [name for name, (before, after) in each.items() if not after < before] == ["n8-d8l8-111"]  # it walks on


def test_claims_wait_for_what_was_not_measured() -> None:
    found, facts = cohort(WITHHELD, (16, 16), loops=20)
    rows = plain(found, facts, WITHHELD)
    assert [row.at["last"] for row in every(rows, "continuation.accuracy", group=RINGS, condition=STEERED)] == [16]
    first_ring = int(is_ring(population(WITHHELD).graphs).int().argmax())
    found, facts = cohort(WITHHELD, (16, 16), graphs=first_ring)
    rows = plain(found, facts, WITHHELD)
    assert not every(rows, "continuation.accuracy", group=RINGS)
    assert every(rows, "continuation.accuracy", group=ALL, condition=STEERED, first=9, last=16)


# ---- records ---------------------------------------------------------------------------------------------------------


def test_backbones_measured_at_different_sizes_are_averaged_with_equal_weight() -> None:
    small, facts = cohort(WITHHELD, (16, 16), loops=40, graphs=32, strict=True)
    large, more = cohort(WITHHELD, (16, 16), (40, 40), loops=64, graphs=80, strict=True)
    rows = rows_of({**large, **small}, facts | more, WITHHELD)
    held = [hold(WITHHELD, 40, graphs)[16:32].mean() for graphs in (32, 80)]
    assert rows["all graphs, J F, loops 17-32"].estimate.value == pytest.approx((held[0] + 1) / 2)
    assert rows["all graphs, F alone, loops 17-32"].estimate.value == pytest.approx(np.mean(held))
    assert rows["all graphs, J F, loops 17-32"].n == 32 * 8 * 16
    assert rows["J F, loops 17-40"].estimate.value == pytest.approx(0.5)


def test_a_record_is_small_and_counts_by_graph_can_be_packed() -> None:
    broad, strict = planted(BROAD, (16, 16), graphs=8192), planted(WITHHELD, (16, 16), 128, 512, strict=True)
    assert sum(each.nbytes for each in broad.values()) < 4_000
    packed = [pack(each) if each.dtype == torch.uint8 else each for each in strict.values()]
    assert sum(each.nbytes for each in packed) < 180_000
    assert torch.equal(unpack(pack(strict["continue16-1 strict"])), strict["continue16-1 strict"])


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("native", lambda counts: None, r"needs counts 'native' .* and has none"),
        ("continue16-2 alone", lambda nodes: None, r"'continue16-2 alone' of shape \[40\] .* and has none"),
        ("continue16-1", lambda counts: counts[:, :5], r"of shape \[8, 40\] .* and has \[8, 5\]"),
        ("instances", lambda counts: counts.flip(0), "on the first 64 graphs of eight-test"),
    ],
)  # fmt: skip
def test_counts_that_do_not_fit(name: str, changed: Callable[[Tensor], Tensor | None], words: str) -> None:
    found, facts = cohort(WITHHELD, (16, 16), strict=True)
    counts = found["n8-d8l8-100"][WITHHELD]
    other = changed(counts.pop(name))
    if other is not None:
        counts[name] = other
    with pytest.raises(InputError, match=words):
        tables(found, facts, WITHHELD)


def test_mistakes_of_the_analysis() -> None:
    found, facts = cohort(BROAD, (16, 16))
    with pytest.raises(InputError, match="at least one backbone"):
        tables({}, facts)
    with pytest.raises(InputError, match="no facts of 'n8-d8l8-100'"):
        curves(found, {})
    with pytest.raises(InputError, match="was not measured on 'eight-test'"):
        plain(found, facts, WITHHELD)
    with pytest.raises(InputError, match="strict accuracy was not measured"):
        strict_curves(found, facts, BROAD)
