"""Claims on depth, judged on planted counts that lie on the bounds or just off them; raw records as evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from loopscope.store.store import Store
from loopscope.studies.claims import FAILS, HOLDS, NOT_RUN, Verdict, decide, decided_by
from loopscope.studies.evidence import Evidence, scale
from loopscope.studies.graph_walk.continuation import BROAD, WITHHELD
from loopscope.studies.parity import counts as parity_counts
from loopscope.studies.records import Record, records, save
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.selection import Role
from loopscope.tasks.graph_walk import is_ring
from loopscope.tasks.populations import population
from tests.planted.chains import first
from tests.planted.chains import planted as chain_counts
from tests.planted.claims import MAIN, native
from tests.planted.continuation import planted as walk_counts
from tests.planted.continuation import raw

EIGHT, BITS = COHORTS["eight"].backbones, COHORTS["parity"].backbones


def verdicts(*stored: Record, fresh: Sequence[Record] = ()) -> dict[str, Verdict]:
    return {each.claim.id: each for each in decide(Evidence(stored, fresh))}


# ---- eight nodes -----------------------------------------------------------------------------------------------------

INSIDE, BEYOND = 5 * 8 * 8, 5 * 8 * 16
"""Answers of one run on five single cycles, eight starts each, at loops 9-16 and 17-32."""


@cache
def five_rings() -> int:
    """So many graphs have five single cycles among them."""
    return int((is_ring(population(WITHHELD).graphs).cumsum(0) < 5).sum()) + 1


@cache
def walked() -> dict[str, Tensor]:
    return walk_counts(WITHHELD, (16, 16), graphs=five_rings())


def spread(right: int, loops: int) -> Tensor:
    """So many right answers, put on the loops one by one."""
    return torch.tensor([right // loops + (loop < right % loops) for loop in range(loops)], dtype=torch.int32)


def walker(name: str, inside: int = INSIDE, beyond: int = 0, other: int | None = None) -> Record:
    """So many answers on single cycles are right with both maps, or with the second as many as `other` inside."""
    found = {each: counts.clone() for each, counts in walked().items()}
    for fit, right in ((1, inside), (2, inside if other is None else other)):
        found[f"continue16-{fit}"][-1, 8:16] = spread(right, 8)
        found[f"continue16-{fit}"][-1, 16:32] = spread(beyond, 16)
    return raw("continuation", name, {WITHHELD: found}, graphs=five_rings())


def test_continuation_on_the_bounds() -> None:
    """90 % of 12 x 320 answers of both maps together are 3,456."""
    usual = [walker(name, 288, 575) for name in EIGHT[1:]]
    found = verdicts(*usual, walker(EIGHT[0], 288, 575))
    assert [found[each].verdict for each in decided_by("continuation")] == [HOLDS, HOLDS]
    inside, beyond = (found[each] for each in decided_by("continuation"))
    assert inside.ours == "90.0 (cycles, loops 9-16)"
    assert beyond.ours == "89.8 (17-32); lower than inside in 12 of 12"
    assert inside.backbones == tuple(EIGHT)
    assert (inside.n, beyond.n, inside.stored) == (INSIDE, BEYOND, 12)
    assert inside.scale == f"paper's model, {five_rings()} graphs"
    assert inside.estimate is not None
    assert inside.estimate.unit == "backbone"
    found = verdicts(*usual, walker(EIGHT[0], 288, 576, other=287))  # and now beyond is a little above inside
    assert [found[each].verdict for each in decided_by("continuation")] == [FAILS, FAILS]
    assert found["continue.beyond"].ours.endswith("lower than inside in 11 of 12")
    found = verdicts(*usual, walker(EIGHT[0], 288, 576))  # equal is not lower
    assert [found[each].verdict for each in decided_by("continuation")] == [HOLDS, FAILS]


def test_continuation_waits_for_all_backbones_but_not_for_a_counterexample() -> None:
    most = [walker(name) for name in EIGHT[:-1]]
    found = verdicts(*most)
    assert [found[each].verdict for each in decided_by("continuation")] == [NOT_RUN, NOT_RUN]
    assert found["continue.inside"].ours == "100.0 (cycles, loops 9-16)"
    found = verdicts(walker(EIGHT[3], 0, 1))
    assert [found[each].verdict for each in decided_by("continuation")] == [NOT_RUN, FAILS]
    stranger = walker("n8-d8l8-112")
    found = verdicts(*most, stranger)
    assert [found[each].verdict for each in decided_by("continuation")] == [NOT_RUN, NOT_RUN]
    assert "n8-d8l8-112" not in found["continue.inside"].backbones


def test_continuation_without_single_cycles_or_without_the_withheld_graphs_was_not_run() -> None:
    ringless = int(is_ring(population(WITHHELD).graphs).int().argmax())
    none = raw("continuation", EIGHT[0], {WITHHELD: walk_counts(WITHHELD, (16, 16), graphs=ringless)})
    broad = raw("continuation", EIGHT[0], {BROAD: walk_counts(BROAD, (16, 16), graphs=8)})
    short = raw("continuation", EIGHT[0], {WITHHELD: walk_counts(WITHHELD, (16, 16), loops=20, graphs=five_rings())})
    for each in (none, broad):
        assert verdicts(each)["continue.inside"] == Verdict(verdicts()["continue.inside"].claim, NOT_RUN)
    found = verdicts(short)
    assert [bool(found[each].ours) for each in decided_by("continuation")] == [True, False]


# ---- parity ----------------------------------------------------------------------------------------------------------


def band(lengths: Sequence[int], *right: int) -> dict[str, Tensor]:
    """So many of ten strings are right at t = n, native and with J; nothing is at other loops."""
    counts = torch.zeros(len(right), 2, len(lengths), 21, dtype=torch.int32)
    for condition, each in enumerate(right):
        counts[condition, :, :, 10] = torch.tensor([each // 2, each - each // 2], dtype=torch.int32)[:, None]
    return {"lengths": torch.tensor(lengths).int(), "strings": torch.tensor([5, 5]).int(), "right": counts}


def bits(name: str, *near: int, far: Sequence[int] = (), settings: Mapping[str, object] = {}) -> Record:
    found = {"near": band((110, 230, 410), *near)} | ({"far": band((505, 800, 1000), *far)} if far else {})
    return replace(raw("parity", name, found), settings=settings)


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([1, 1, 1], HOLDS), ([1, 1, -3], HOLDS), ([1, 0, 0], FAILS), ([1, 0, -1], FAILS), ([1, 1], HOLDS),
        ([0, -1], FAILS), ([1, 0], NOT_RUN), ([1], NOT_RUN), ([0], NOT_RUN),
    ],
)  # fmt: skip
def test_parity_must_gain_in_two_of_three(gains: list[int], expected: str) -> None:
    found = verdicts(*(bits(name, 5, 5 + gain) for name, gain in zip(BITS, gains, strict=False)))["parity.gain"]
    assert (found.verdict, found.n) == (expected, 30)
    higher = sum(gain > 0 for gain in gains)
    told = ", ".join(f"{10.0 * gain:.1f}" for gain in gains)
    assert found.ours == f"{higher} of {len(gains)} seeds; J minus native {told}"
    assert found.backbones == tuple(BITS[: len(gains)])


def test_records_without_a_map_or_without_long_strings_say_nothing_about_the_gain() -> None:
    short = raw("parity", BITS[1], {"near": band((10, 20, 110), 5, 9)})  # one length beyond 100 is too few
    for each in (bits(BITS[0], 5), short, raw("parity", BITS[0], {}), bits("parity-7", 5, 9)):
        found = verdicts(each)
        assert {found[claim] for claim in decided_by("parity")} == {
            Verdict(found[claim].claim, NOT_RUN) for claim in decided_by("parity")
        }


@pytest.mark.parametrize(
    ("far", "expected"),
    [((5, 4), HOLDS), ((5, 5), HOLDS), ((5, 6), FAILS)],
)
def test_the_limit_is_judged_on_the_backbone_that_gains_most(far: tuple[int, int], expected: str) -> None:
    others = [bits(BITS[0], 5, 6, far=(1, 9) if expected == HOLDS else (9, 1)), bits(BITS[2], 5, 7)]
    found = verdicts(*others, bits(BITS[1], 2, 8, far=far))["parity.limit"]
    assert (found.verdict, found.ours) == (expected, f"parity-1: 50.0 vs {10.0 * far[1]:.1f}")
    assert (found.n, found.backbones) == (30, tuple(BITS))
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx((far[1] - far[0]) / 10)


def test_the_limit_waits_for_all_gains_and_for_long_lengths() -> None:
    two = verdicts(bits(BITS[1], 2, 8, far=(5, 4)), bits(BITS[0], 2, 3))["parity.limit"]
    assert (two.verdict, two.ours) == (NOT_RUN, "parity-1: 50.0 vs 40.0")
    found = verdicts(*(bits(name, 2, 8 - number, far=(5, 4) if number else ()) for number, name in enumerate(BITS)))
    assert found["parity.limit"].verdict == NOT_RUN
    assert found["parity.limit"].ours == "parity-0 gains most; lengths 505-1000 not measured"
    assert found["parity.gain"].verdict == HOLDS


def test_a_part_measured_now_does_not_replace_a_stored_whole() -> None:
    stored = [bits(name, 2, 8 - number, far=(5, 4)) for number, name in enumerate(BITS)]
    fresh = bits(BITS[0], 5, 4, settings=parity_counts.QUICK)
    found = verdicts(*stored, fresh=[fresh])
    assert (found["parity.gain"].fresh, found["parity.gain"].stored) == (0, 3)
    assert found["parity.gain"].ours == "3 of 3 seeds; J minus native 60.0, 50.0, 40.0"
    assert (found["parity.limit"].verdict, found["parity.limit"].stored) == (HOLDS, 3)
    assert {found[name].scale for name in ("parity.gain", "parity.limit")} == {"paper scale"}
    evidence = Evidence(stored, [fresh])
    assert [*map(id, evidence.in_part)] == [id(fresh)]
    assert "Recomputed now in part, as a check: `parity` on parity-0." in evidence.origin("parity")
    alone = verdicts(*stored[1:], fresh=[fresh])  # what there is no whole of is judged by the part, and says so
    assert (alone["parity.gain"].fresh, alone["parity.gain"].stored) == (1, 2)
    assert alone["parity.gain"].scale == "paper's model, no far, heat 16, 8 heat strings, near 45-125 by 20, 8 strings"
    assert Evidence(stored[1:], [fresh]).in_part == []


# ---- chains of relations ---------------------------------------------------------------------------------------------

ASKED = 40
WHOLE = [ASKED] * 13


def chain(
    native: Sequence[int] = (4,) * 13, fits: Sequence[Sequence[int]] = (WHOLE,) * 3, near: int = 20, far: int = 4,
    settings: Mapping[str, object] = {}, name: str = "relations-0",
) -> Record:  # fmt: skip
    """Of 40 queries so many are right at lengths 4-16, and with J at 17-24 and 25-32."""
    without = first([ASKED] * 3 + [*native] + [1] * 16, ASKED)
    steered = [first([ASKED] * 3 + [*each] + [near] * 8 + [far] * 8, ASKED) for each in fits]
    found = chain_counts(without, [torch.stack([without, each]) for each in steered], cut="cut" in settings)
    return replace(raw("chains", name, found), settings=settings)


def test_chains_on_the_bounds() -> None:
    """95 % of three fits at 13 lengths are 1,482 of 1,560, 10 % of one run at 13 lengths 52 of 520."""
    on = [WHOLE, [ASKED - 6] * 13, WHOLE]
    found = verdicts(chain(fits=on))
    assert [found[each].verdict for each in decided_by("chains")] == [HOLDS, HOLDS]
    assert found["kg.inside"].ours == "10.0 -> 95.0"
    assert found["kg.beyond"].ours == "50.0 (17-24), 10.0 (25-32)"
    assert (found["kg.inside"].n, found["kg.beyond"].n) == (13 * ASKED, 8 * ASKED)
    assert found["kg.inside"].scale == "paper scale"
    off = [WHOLE, [ASKED - 6] * 13, [*WHOLE[1:], ASKED - 1]]
    found = verdicts(chain(fits=off, far=5))
    assert [found[each].verdict for each in decided_by("chains")] == [FAILS, FAILS]
    found = verdicts(chain([*[4] * 12, 5], near=ASKED))  # as good at 17-24 as at 4-16
    assert [found[each].verdict for each in decided_by("chains")] == [FAILS, FAILS]


def test_chains_need_three_fits() -> None:
    found = verdicts(chain(fits=[WHOLE] * 2))
    assert [found[each].verdict for each in decided_by("chains")] == [NOT_RUN, NOT_RUN]
    assert found["kg.inside"].ours == "10.0 -> 100.0"
    assert not verdicts(chain(name="relations-1"))["kg.inside"].ours


def test_of_chains_the_record_with_most_fits_comes_first_then_the_whole_and_then_the_fresh_one() -> None:
    whole, quick = chain(), {"queries": 64, "cut": True}
    for fresh in (chain(fits=[WHOLE], settings=quick), chain(far=9, settings=quick)):
        found = verdicts(whole, fresh=[fresh])
        assert {(each.verdict, each.stored, each.fresh) for each in found.values() if each.ours} == {(HOLDS, 1, 0)}
    found = verdicts(whole, fresh=[chain(far=9)])
    assert (found["kg.beyond"].verdict, found["kg.beyond"].stored, found["kg.beyond"].fresh) == (FAILS, 0, 1)
    found = verdicts(fresh=[chain(far=9, settings=quick)])
    assert (found["kg.beyond"].verdict, found["kg.beyond"].scale) == (FAILS, "paper's model, cut, 64 queries")


def test_chains_of_which_too_little_was_asked() -> None:
    hits = first([ASKED] * 10, ASKED)
    few = raw("chains", "relations-0", chain_counts(hits, [torch.stack([hits, hits])] * 3, lengths=range(1, 11)))
    found = verdicts(few)
    assert found["kg.inside"].verdict == FAILS  # without a map all are right
    assert found["kg.beyond"] == Verdict(found["kg.beyond"].claim, NOT_RUN)


# ---- raw records as evidence -----------------------------------------------------------------------------------------


def test_the_scale_of_a_raw_record_is_what_its_settings_reduce() -> None:
    assert scale([chain(), bits(BITS[0], 1, 1)]) == "paper scale"
    for name, experiment in EXPERIMENTS.items():
        for role, profile in product(get_args(Role), ("paper", "quick")) if experiment.raw else ():
            for settings in experiment.settings(role, profile):
                said = scale([raw(name, "any-0", {}, **settings)])
                assert (said == "paper scale") == (settings in experiment.settings(role, "paper"))
    both = scale([chain(settings={"queries": 64, "cut": False}), replace(walker(EIGHT[0]), settings={"graphs": 32})])
    assert both == "paper's model, 32 graphs, no cut, 64 queries"


def test_fresh_records_come_after_all_stored_ones_of_a_backbone() -> None:
    small, whole, fresh = bits(BITS[0], 1, 1), bits(BITS[0], 2, 2, far=(1, 1)), bits(BITS[0], 3, 3)
    for stored in ((small, whole), (whole, small)):
        evidence = Evidence(stored, [fresh])
        assert evidence.of("parity")[BITS[0]] is fresh
        assert evidence.of("parity", "far")[BITS[0]] is whole
        assert evidence.every("parity") == [whole, fresh]
        assert Evidence(stored).of("parity")[BITS[0]] is whole


def test_raw_records_go_through_a_store_and_disturb_nobody(tmp_path: Path) -> None:
    made = [*(walker(name, 288) for name in EIGHT), *(bits(name, 2, 8, far=(5, 4)) for name in BITS), chain()]
    walks = [native(name, [0, 1, 3, 5, 6, 7, 8]) for name in MAIN]
    store = Store(tmp_path)
    for each in (*made, *walks):
        save(store, each, {"backbone": each.facts.key})
    loaded = records(store)
    assert [each.raw for each in loaded].count(True) == len(made)
    before, after = verdicts(*made, *walks), verdicts(*loaded)
    assert before == after
    assert {after[each].verdict for each in decided_by("continuation", "parity", "chains")} == {HOLDS}
    evidence = Evidence(loaded)
    assert evidence.selection.names == MAIN
    assert all({row.id for row in evidence.quantities(each)} >= {"parity.exit"} for each in evidence.every("parity"))
    quick = bits(BITS[0], 2, 8, settings=parity_counts.QUICK)
    save(store, quick, {"backbone": quick.facts.key})
    again = next(each for each in records(store, "parity") if each.settings)
    assert scale([again]) == scale([quick])  # though its settings come back as lists, in another order
