"""Relation composition: runs against plain loops, the analysis against planted outcomes and written-out formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.maps import Dense
from loopscope.model import LoopedTransformer, relations_config
from loopscope.quantity import Quantity, QuantityTable
from loopscope.stats import wilson
from loopscope.studies.relations import chains
from loopscope.studies.relations.chains import COUNTS, FINAL, GROWN, NATIVE
from loopscope.tasks import relations
from tests.planted.chains import first, planted

WORLD = relations.world().tolist()

# ---- measuring -------------------------------------------------------------------------------------------------------


def small_model(seed: int = 0) -> LoopedTransformer:
    """A model of width 16 whose answers depend on everything before them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LoopedTransformer(replace(relations_config(), width=16, heads=4, mlp=32))
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval().requires_grad_(False)


def far_map(seed: int) -> Dense:
    """A map far from the identity."""
    step, generator = Dense(16), torch.Generator().manual_seed(seed)
    for parameter in step.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return step.requires_grad_(False)


def plain_hits(model: LoopedTransformer, step: Dense | None, starts: Sequence[int], followed: Tensor) -> list[bool]:
    """F (J F)^(n-1) written out, read at the last row, against the world followed one relation after the other."""
    tokens = [[0, 1 + start, *(65 + r for r in row)] for start, row in zip(starts, followed.tolist(), strict=True)]
    h = model.call(model.embed(torch.tensor(tokens)))
    for _ in range(followed.shape[1] - 1):
        h = model.call(h if step is None else step(h))
    guesses = model.read(h[:, -1]).argmax(-1).tolist()
    answers = list(starts)
    for column in followed.T.tolist():
        answers = [WORLD[r][entity] for r, entity in zip(column, answers, strict=True)]
    return [guess == answer for guess, answer in zip(guesses, answers, strict=True)]


FITS = [{0: far_map(1), 500: far_map(2)}, {0: far_map(3), 500: far_map(4)}]


@pytest.mark.parametrize("cut", [False, True])
def test_every_query_is_run_and_read_as_written_out(cut: bool) -> None:
    model, lengths = small_model(), (1, 2, 5, 9)
    seen = chains.outcomes(chains.measure(model, FITS, lengths=lengths, queries=256, cut=cut))
    assert (seen.lengths, seen.updates, seen.cut) == (lengths, (0, 500), cut)
    assert seen.native.shape == (4, 256)
    assert seen.steered.shape == (2, 2, 4, 256)
    outcomes = {None: seen.native} | {
        FITS[fit][update]: seen.steered[fit, place] for fit in (0, 1) for place, update in enumerate((0, 500))
    }
    for place, length in enumerate(lengths):
        starts, followed = relations.evaluation(9 if cut else length)
        for step, found in outcomes.items():
            wanted = plain_hits(model, step, starts[:256].tolist(), followed[:256, :length])
            assert found[place].tolist() == wanted
    # One relation is one call, which no map precedes; after it, some are right by chance and not the same ones.
    assert all(torch.equal(found[0], seen.native[0]) for found in outcomes.values())
    assert len({tuple(found[1:].flatten().tolist()) for found in outcomes.values()}) == 5
    assert all(bool(found[1:].any()) for found in outcomes.values())


def test_programs_as_text() -> None:
    told = [str(chains.program(length, steered)) for length in (1, 4) for steered in (False, True)]
    assert told == ["F", "F", "F4", "F J:map F J:map F J:map F"]


def test_fewer_queries_are_the_first_of_them() -> None:
    model = small_model()
    few, many = (chains.measure(model, FITS, lengths=(2, 3), queries=n)["own-queries"] for n in (16, 64))
    assert few["fit 1"].shape == (2, 2, 2)
    assert all(torch.equal(few[name], many[name][..., :2]) for name in ("F only", "fit 1", "fit 2"))


def test_a_record_of_the_whole_study_is_small() -> None:
    hits = torch.zeros(21, 32, 1024, dtype=torch.bool)
    found = planted(hits[0], [hits, hits, hits], updates=tuple(range(0, 10_001, 500)))
    size = sum(each.numel() * each.element_size() for each in found["own-queries"].values())
    assert size == 4096 * (1 + 3 * 21) + 4 * (32 + 21) < 300_000


@pytest.mark.parametrize("shape", [(8,), (3, 16), (2, 0, 8), (2, 3, 4, 1024)])
def test_bits_come_back(shape: tuple[int, ...]) -> None:
    hits = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    packed = chains.pack_bits(hits)
    assert packed.shape == (*shape[:-1], shape[-1] // 8)
    assert torch.equal(chains.unpack_bits(packed), hits)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lengths": ()}, "lengths must be increasing whole numbers from 1, not [] (nearest: 1 to 32)"),
        ({"lengths": (0, 1)}, "lengths must be increasing whole numbers from 1, not [0, 1] (nearest: 1 to 32)"),
        ({"lengths": (2, 2)}, "lengths must be increasing whole numbers from 1, not [2, 2] (nearest: 1 to 32)"),
        ({"queries": 100}, "100 queries cannot be asked: a multiple of 8 up to 1024 (nearest: 96)"),
        ({"queries": 0}, "0 queries cannot be asked: a multiple of 8 up to 1024 (nearest: 8)"),
        ({"queries": 2048}, "2048 queries cannot be asked: a multiple of 8 up to 1024 (nearest: 1024)"),
        ({"fits": []}, "all fits must have maps of the same updates, one of them after 0: got []"),
        ({"fits": [{}]}, "all fits must have maps of the same updates, one of them after 0: got [[]]"),
        ({"fits": [{0: far_map(1)}]}, "all fits must have maps of the same updates, one of them after 0: got [[0]]"),
        (
            {"fits": [{5: far_map(1)}, {6: far_map(1)}]},
            "all fits must have maps of the same updates, one of them after 0: got [[5], [6]]",
        ),
    ],
)
def test_what_cannot_be_measured(settings: Mapping[str, object], told: str) -> None:
    with pytest.raises(InputError) as error:
        chains.measure(small_model(), **{"fits": FITS, **settings})
    assert str(error.value) == told


# ---- planted outcomes ------------------------------------------------------------------------------------------------


def drawn(shares: Sequence[float], queries: int = 1024, seed: int = 0) -> Tensor:
    """At each length, right with this probability, each query for itself."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(shares), queries, generator=generator, dtype=torch.float64) < torch.tensor(shares)[:, None]


REFERENCE = planted(first(COUNTS[NATIVE]), [torch.stack([first(COUNTS[GROWN]), first(COUNTS[FINAL])])])


def table(tables: Sequence[QuantityTable], title: str) -> dict[str, Quantity]:
    (found,) = (each for each in tables if each.title.startswith(title))
    return {row.label: row for row in found.rows}


def test_published_counts_give_the_published_table() -> None:
    rows = table(chains.tables(REFERENCE, paper=True), "Right answers by range")
    told = {name: f"{100 * row.estimate.value:.2f}" for name, row in rows.items() if "minus" not in name}
    assert told == {
        "1-3, F only": "99.87", "1-3, J after the curriculum": "100.00", "1-3, J": "100.00",
        "4-16, F only": "2.53", "4-16, J after the curriculum": "98.75", "4-16, J": "99.92",
        "17-24, F only": "1.54", "17-24, J after the curriculum": "22.55", "17-24, J": "42.87",
        "25-32, F only": "1.56", "25-32, J after the curriculum": "1.53", "25-32, J": "1.65",
    }  # fmt: skip
    assert [rows[f"{name}, J"].n for name in chains.RANGES] == [3072, 13312, 8192, 8192]
    for name, row in rows.items():
        assert row.published == (None if "minus" in name else pytest.approx(row.estimate.value, abs=1e-12))
        assert row.estimate.low <= row.estimate.value <= row.estimate.high
        assert (row.estimate.n, row.estimate.unit, row.estimate.draws) == (1024, "query", 5000)
    gain = rows["4-16, J minus F only"].estimate
    assert gain.value == pytest.approx(rows["4-16, J"].estimate.value - rows["4-16, F only"].estimate.value)


def test_one_map_at_one_length_has_wilsons_interval() -> None:
    tables = chains.tables(REFERENCE, paper=True)
    for condition, counts in COUNTS.items():
        (found,) = (each for each in tables if each.title == f"Right answers by length, {condition}")
        assert [row.label for row in found.rows] == [f"length {n}" for n in range(1, 33)]
        for row, count in zip(found.rows, counts, strict=True):
            at = {"condition": condition, "length": int(row.label.removeprefix("length "))}
            expected = wilson(count, 1024, unit="query")
            assert row == Quantity("chains.length", row.label, expected, 1024, count / 1024, at)
    final = next(each for each in tables if each.title == "Right answers by length, J").rows
    assert [f"{100 * final[n - 1].estimate.value:.2f}" for n in (17, 18, 19)] == ["99.61", "97.75", "85.74"]


def test_claims_of_the_published_counts() -> None:
    seen = chains.outcomes(REFERENCE)
    native = chains.share(seen, chains.INSIDE, chains.NATIVE, paper=True)
    steered, near, far = (chains.share(seen, each, chains.FINAL) for each in (chains.INSIDE, chains.BEYOND, chains.FAR))
    assert (round(native.estimate.value, 4), round(steered.estimate.value, 4)) == (0.0253, 0.9992)
    assert native.published == pytest.approx(native.estimate.value)
    assert (round(near.estimate.value, 4), round(far.estimate.value, 4)) == (0.4287, 0.0165)


def half_width(row: Quantity) -> float:
    return (row.estimate.high - row.estimate.low) / 2


def test_the_interval_of_a_range_is_that_of_queries_within_lengths() -> None:
    shares = [0.99, 0.9, 0.7, 0.5, 0.3, 0.1, 0.05, 0.02]
    hits = drawn(shares)
    lengths = range(17, 25)
    seen = chains.outcomes(planted(hits, [torch.stack([hits, hits])], lengths=lengths))
    row = chains.share(seen, "17-24", FINAL)
    real = hits.double().mean(1)
    error = math.sqrt(float((real * (1 - real)).sum()) / 1024) / len(shares)
    assert row.estimate.value == pytest.approx(float(real.mean()))
    assert half_width(row) == pytest.approx(1.96 * error, rel=0.1)


def test_queries_that_are_the_same_at_all_lengths_count_once() -> None:
    once = drawn([0.4])
    hits = once.expand(8, -1)
    seen = chains.outcomes(planted(hits, [torch.stack([hits, hits])] * 3, lengths=range(17, 25), cut=True))
    share = float(once.double().mean())
    row = chains.share(seen, "17-24", FINAL)
    assert half_width(row) == pytest.approx(1.96 * math.sqrt(share * (1 - share) / 1024), rel=0.1)
    assert row.n == 8 * 1024


def test_a_gain_is_paired() -> None:
    native = drawn([0.5] * 13)
    more = native | drawn([0.02] * 13, seed=1)
    lengths = range(4, 17)
    same, gained = (
        chains.share(
            chains.outcomes(planted(native, [torch.stack([hits, hits])], lengths=lengths)), "4-16", FINAL, minus=NATIVE
        )
        for hits in (native, more)
    )
    assert (same.estimate.value, same.estimate.low, same.estimate.high) == (0.0, 0.0, 0.0)
    real = float((more & ~native).double().mean())
    assert gained.estimate.value == pytest.approx(real)
    assert half_width(gained) == pytest.approx(1.96 * math.sqrt(real * (1 - real) / (13 * 1024)), rel=0.1)
    assert gained.label == "4-16, J minus F only"


def test_fits_count_alike_and_their_spread_is_told() -> None:
    fits = [torch.stack([first([512] * 8), first([right] * 8)]) for right in (128, 256, 384)]
    found = planted(first([0] * 8), fits, lengths=range(17, 25))
    tables = chains.tables(found)
    rows = table(tables, "Spread over fits")
    assert [round(rows[f"17-24, fit {k}"].estimate.value, 12) for k in (1, 2, 3)] == [0.125, 0.25, 0.375]
    spread = rows["17-24, all fits"].estimate
    assert (spread.n, spread.unit) == (3, "fit, mean ± SD")
    assert (spread.low, spread.value, spread.high) == pytest.approx((0.125, 0.25, 0.375))
    ranges = table(tables, "Right answers by range")
    assert ranges["17-24, J"].estimate.value == pytest.approx(0.25)
    assert ranges["17-24, J after the curriculum"].estimate.value == pytest.approx(0.5)
    lengths = table([each for each in tables if each.title.endswith("length, J")], "")
    assert lengths["length 20"].estimate.value == pytest.approx(0.25)
    assert lengths["length 20"].estimate.draws == 5000


def test_checks_of_the_continuation_and_their_spread() -> None:
    updates = (0, 500, 1000, 1500)
    rights = {1: (1000, 512, 0, 256), 2: (1000, 128, 256, 384)}
    fits = [torch.stack([first([0] * 7 + [right]) for right in each]) for each in rights.values()]
    found = planted(first([0] * 8), fits, lengths=range(13, 21), updates=updates)
    seen = chains.outcomes(found)
    assert seen.course(range(20, 21)).tolist() == [[each / 1024 for each in rights[fit]] for fit in (1, 2)]
    assert seen.course(range(13, 21))[1].tolist() == [each / 8192 for each in rights[2]]
    rows = table(chains.tables(found), "Spread over the last checks")
    assert list(rows) == [f"{name}, fit {fit}" for name in ("4-16", "17-24", "length 20") for fit in (1, 2)]
    estimate = rows["length 20, fit 1"].estimate
    assert (estimate.value, estimate.low, estimate.high) == (0.25, 0.0, 0.5)  # what was before is not of it
    assert (estimate.n, estimate.unit) == (3, "check, lowest to highest")
    assert rows["17-24, fit 2"].estimate.value == pytest.approx(0.25 / 4)
    assert rows["17-24, fit 2"].n == 4 * 1024
    last_two = {row.label: row.estimate for row in chains.by_check(seen, last=2).rows}["length 20, fit 2"]
    assert (last_two.n, last_two.low, last_two.high) == (2, 0.25, 0.375)


def test_a_reduced_record_says_so_and_leaves_out_what_was_not_measured() -> None:
    lengths = (2, 8, 12, 40)
    hits = first([16, 32, 48, 8], queries=64)
    found = planted(hits, [hits[None]], lengths=lengths, updates=(10_000,), cut=True)
    tables = chains.tables(found, paper=True)
    assert list(table(tables, "Right answers by range")) == [
        "1-3, F only", "1-3, J", "1-3, J minus F only", "4-16, F only", "4-16, J", "4-16, J minus F only"
    ]  # fmt: skip
    rows = table(tables, "Right answers by length, J")
    assert rows["length 12"].estimate == wilson(48, 64, unit="query")
    assert [row.published for row in rows.values()] == [1.0, 1023 / 1024, 1023 / 1024, None]
    assert all("64 queries cut to each of 4 lengths, 2 to 40" in each.note for each in tables)
    assert [each.title for each in tables if each.title.startswith("Spread")] == [
        "Spread over fits, right answers with the last map"
    ]
    seen = chains.outcomes(found)
    assert chains.share(seen, chains.INSIDE, chains.FINAL).estimate.value == pytest.approx(80 / 128)
    with pytest.raises(InputError, match="17-24, J was not measured; there are 64 queries cut to each of 4 lengths"):
        chains.share(seen, chains.BEYOND, chains.FINAL)
    with pytest.raises(InputError, match=r"4-16, J after the curriculum was not measured; there are .*, F only, J$"):
        chains.share(seen, "4-16", GROWN)
