"""Claims: as they were fixed, and those on native walks and on the main backbone judged on planted answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from loopscope.studies.claims import CLAIMS, FAILS, HOLDS, NOT_RUN, ROWS, Verdict, decide
from loopscope.studies.evidence import Evidence
from loopscope.studies.graph_walk.composition import (
    TWO_CALLS,
    hops,
    long_strings,
    name_of,
    names_of,
    strings_of_eight,
)
from loopscope.studies.records import ModelFacts, Record
from loopscope.studies.registry import COHORTS, EXPERIMENTS, LANGUAGE
from loopscope.studies.report.ledger import summary
from loopscope.studies.trained import Walks
from tests.planted.claims import BOTH, IN_ONES, IN_TWOS, MAIN, ONES, native, record, right_on, verdict, walks

pytestmark = pytest.mark.usefixtures("few_draws")

FIXED = [
    ("native.endpoint", "~100 %", "each >= 99 % on rings"),
    ("native.variety", "5 of 12 one, 3 two",
     "at least one of each (majority of increments to loops 2..L before the endpoint is first reached)"),
    ("native.hold", '"eventually they stabilise"',
     "mode at loop 16 is 8 for every backbone; also report retained accuracy"),
    ("target.one", "48.2 -> 99.6", ">= 95 % and >= 20 points above unsteered, main backbone"),
    ("target.two", "98.2", ">= 90 %"),
    ("compose.one_one", "93.6 (48.3 without the second map)", ">= 80 % and >= 20 points above omitting the second map"),
    ("compose.order", "65.3 vs 74.5", "interval of the difference excludes 0"),
    ("compose.decay", "56.3 at call 3, ~10 at call 8",
     "repeated one-hop < 60 % at call 4, and mixed at call 8 no more than 5 points above copy-u"),
    ("pattern.reroutes", "77.8", "three-backbone mean >= 60 % E and <= 10 % D"),
    ("output.transfers", "80.9", ">= 60 % D and <= 10 % E"),
    ("steer.rescue", "39.2 -> 61.6", "mean gain >= 10 points"),
    ("steer.damage", "99.7 -> 68.1", "mean loss >= 10 points"),
    ("switch.two_to_one", "0.1 -> 65.9", "mean >= 40 %, each backbone >= 20 %"),
    ("switch.one_to_two", "0.5 -> 78.5", "mean >= 50 %, each backbone >= 20 %"),
    ("restore.selected", "74.0 vs 0.5", ">= 50 % and comparison head <= 5 %; all four heads exactly 100 %"),
    ("matched.native", "100 / 100", "both >= 99 % in all five pairs"),
    ("matched.one", "66.5 vs 100", "stepwise >= 99 %, final-only at least 10 points lower"),
    ("matched.two", "50.5 vs 13.2", "final-only higher in all five pairs"),
    ("continue.inside", "97.42 (cycles, loops 9-16)", ">= 90 %"),
    ("continue.beyond", "35.11 (17-32)", "every backbone lower than inside"),
    ("parity.gain", "3 of 3 seeds", "at least 2 of 3"),
    ("parity.limit", "47.55 vs 36.40", "J not above native over 505-1000 for the seed with the largest gain"),
    ("kg.inside", "2.53 -> 99.92", "<= 10 % without, >= 95 % with J"),
    ("kg.beyond", "42.87 (17-24), 1.65 (25-32)", "17-24 below 4-16, and 25-32 <= 10 %"),
    ("letter.steer", "0 -> 251/256", "<= 15 % without, >= 80 % with J"),
    ("letter.rescue", "248/256", ">= 70 % of the steered score"),
    ("letter.damage", "0/256", "<= 20 %"),
    ("letter.controls", "0/256 each", "each <= 20 %"),
    ("letter.content", "71.1 / 93.8", ">= 50 % and >= 70 %"),
    ("letter.restore", "249/249 vs 0", ">= 80 % vs <= 10 %"),
    ("antonym.native", "64/64; 255/256", ">= 90 % each"),
    ("antonym.steer", "98.0 vs 7.8", "final-only >= 70 %, stepwise <= 30 %"),
    ("iterate.continue", "89.69 vs 28.59 (F only)",
     "long requests: J+F at least 30 points above F only, and above J only and stop"),
]  # fmt: skip


def test_the_claims_are_those_that_were_fixed() -> None:
    assert [(claim.id, claim.paper, claim.holds_if) for claim in CLAIMS] == FIXED


def test_a_claim_is_judged_where_an_experiment_measures_it() -> None:
    for claim in ROWS:
        assert claim.judge is not None
    undecided = {  # an aim of our own; what stands beside a row
        "lasting", "independent", "parity-fp32", "switching-long", "switching-next", "continuation-again",
        "lasting-longer",
    }  # fmt: skip
    assert {claim.experiment for claim in ROWS} == {*EXPERIMENTS, *LANGUAGE} - undecided
    assert {claim.experiment for claim in CLAIMS} == {claim.experiment for claim in ROWS} - {"selecting"}


def test_without_evidence_nothing_was_run() -> None:
    assert decide(Evidence()) == [Verdict(claim, NOT_RUN) for claim in ROWS]


def test_rows_of_ours_stand_behind_the_claims_and_do_not_count() -> None:
    assert ROWS[: len(CLAIMS)] == CLAIMS
    assert {claim.kind for claim in CLAIMS} == {"paper"}
    assert {claim.kind for claim in ROWS[len(CLAIMS) :]} == {"ours"}
    assert summary(decide(Evidence())).startswith(f"{len(CLAIMS)} claims: 0 hold at the paper's protocol")


# ---- native walks ----------------------------------------------------------------------------------------------------


@cache
def cohort() -> tuple[Record, ...]:
    """All D8L6 and D8L8 backbones; the first D8L8 walk in ones, the others in twos."""
    found = [native(name, BOTH) for name in COHORTS["mechanism"].backbones]
    return (*found, *(native(f"d8l8-{seed}", IN_ONES if seed < 5 else IN_TWOS) for seed in range(12)))


def natives(*found: Record) -> dict[str, Verdict]:
    return {each.claim.id.removeprefix("native."): each for each in decide(Evidence(fresh=found))[:3]}


def test_native_claims_of_perfect_walkers() -> None:
    found = natives(*cohort())
    assert [each.verdict for each in found.values()] == [HOLDS] * 3
    assert found["endpoint"].ours == "lowest 100.0 (d8l6-3); 23 of 23 hold"
    assert found["variety"].ours == "5 of 12 one, 7 two, 0 neither"
    assert (found["endpoint"].n, found["variety"].n) == (600, 12)
    assert found["hold"].backbones == (*COHORTS["mechanism"].backbones, *COHORTS["walkers"].backbones)
    assert {(each.scale, each.stored) for each in found.values()} == {("paper's model, 60 of 512 graphs", 0)}
    assert [each.fresh for each in found.values()] == [23, 12, 23]


def test_a_claim_on_all_backbones_waits_for_all_but_not_for_a_counterexample() -> None:
    *most, last = cohort()
    found = natives(*most)
    assert [each.verdict for each in found.values()] == [NOT_RUN, HOLDS, NOT_RUN]  # both walks were seen already
    found = natives(*most[:12], native("d8l8-1", IN_ONES, last=9, wrong=7))
    assert [found[name].verdict for name in ("endpoint", "hold")] == [FAILS, FAILS]
    assert found["endpoint"].ours == "lowest 98.8 (d8l8-1); 12 of 13 hold"
    assert found["variety"].verdict == NOT_RUN  # ones alone so far
    found = natives(*most, native(last.facts.name, IN_TWOS, wrong=6))
    assert (found["endpoint"].verdict, found["endpoint"].ours[:11]) == (HOLDS, "lowest 99.0")
    in_ones = [native(f"d8l8-{seed}", IN_ONES) for seed in range(12)]
    assert natives(*in_ones)["variety"].verdict == FAILS


def test_seeds_outside_of_the_cohort_decide_nothing() -> None:
    in_twos = native("d8l8-55", IN_TWOS)
    ones = [native(f"d8l8-{seed}", IN_ONES) for seed in range(11)]
    assert natives(*ones, in_twos)["variety"].verdict == NOT_RUN  # seed 11 is missing, and 55 does not stand in for it
    drifting = native("d8l6-77", BOTH, last=9)
    assert natives(*cohort(), drifting)["hold"].verdict == HOLDS


def test_backbones_of_other_recipes_are_no_evidence() -> None:
    tiny = Record(
        "trajectories", ModelFacts("tiny-0", "", 2, 2, 6, 2, {}), {"tiny-test": {"native": torch.zeros(5, 432)}}
    )
    assert {each.verdict for each in decide(Evidence([tiny]))} == {NOT_RUN}


# ---- the main backbone -----------------------------------------------------------------------------------------------


def steered(
    one: tuple[int, int], two: tuple[int, int] = (4110, 4110), unsteered: int = 0, name: str = MAIN[0]
) -> Record:
    """So many of the 4,110 instances that count are right with each fit, and f(u) without a map."""
    at = walks("confirmation")
    assert int(at.kept.sum()) == 4110
    found = {"unsteered": right_on(unsteered, at.ahead(1), at)}
    for fit in (0, 1):
        found |= {f"one-{fit + 1}": right_on(one[fit], at.ahead(1), at), f"one-{fit + 1} before F": at.current}
        found |= {f"two-{fit + 1}": right_on(two[fit], at.ahead(2), at), f"two-{fit + 1} before F": at.current}
    return record("targets", name, {"confirmation": found})


@pytest.mark.parametrize(
    ("one", "unsteered", "expected"),
    [
        ((4110, 4110), 0, HOLDS),
        ((0, 0), 0, FAILS),  # answers u, whatever is asked
        ((3905, 3904), 0, HOLDS),  # 95 % of both fits together
        ((3904, 3904), 0, FAILS),
        ((4022, 4022), 3200, HOLDS),  # 822 more: 20 points
        ((4022, 4021), 3200, FAILS),
        ((4110, 4110), 3289, FAILS),
    ],
)
def test_target_one(one: tuple[int, int], unsteered: int, expected: str) -> None:
    found = verdict("target.one", steered(one, unsteered=unsteered))
    assert (found.verdict, found.n, found.backbones) == (expected, 4110, (MAIN[0],))
    assert found.ours == f"{100 * unsteered / 4110:.1f} -> {100 * sum(one) / 8220:.1f}"
    assert found.estimate is not None
    assert found.estimate.value == pytest.approx(sum(one) / 8220)


@pytest.mark.parametrize(("two", "expected"), [((3699, 3699), HOLDS), ((3288, 4110), HOLDS), ((3699, 3698), FAILS)])
def test_target_two(two: tuple[int, int], expected: str) -> None:
    assert verdict("target.two", steered((0, 0), two)).verdict == expected


def test_only_the_main_backbone_counts() -> None:
    assert verdict("target.one", steered((4110, 4110), name=MAIN[1])).verdict == NOT_RUN
    nobody = decide(Evidence([native("d8l6-3", ONES), steered((4110, 4110))]))  # no one qualifies to be the main one
    assert {each.verdict for each in nobody if each.claim.experiment == "targets"} == {NOT_RUN}


def test_fresh_records_come_before_stored_ones() -> None:
    good, bad = steered((4110, 4110)), steered((0, 0))
    assert verdict("target.one", good, stored=(bad,)).verdict == HOLDS
    found = verdict("target.one", bad, stored=(good,))
    assert (found.verdict, found.fresh, found.stored) == (FAILS, 1, 0)
    found = verdict("target.one", stored=(good,))
    assert (found.verdict, found.fresh, found.stored) == (HOLDS, 0, 1)


def two_calls(right: int = 3200, alone: int = 0, swapped: int = 3200) -> Record:
    """One-one is right so often, one-none answers its target so often, two-one is; all other strings always are."""
    at = walks("switching-2501", "five")
    assert int(at.kept.sum()) == 3200
    found = {name_of(string, fit): at.ahead(hops(string)) for string in TWO_CALLS for fit in (1, 2)}
    for fit in (1, 2):
        found[f"11-{fit}"] = right_on(right, at.ahead(2), at)
        found[f"10-{fit}"] = right_on(alone, at.ahead(2), at)
        found[f"21-{fit}"] = right_on(swapped, at.ahead(3), at)
    return record("two-calls", MAIN[0], {"switching-2501": found})


@pytest.mark.parametrize(
    ("right", "alone", "expected"),
    [(3200, 0, HOLDS), (2560, 1920, HOLDS), (2559, 0, FAILS), (2600, 1961, FAILS), (0, 0, FAILS), (3040, 2400, HOLDS)],
)
def test_one_one(right: int, alone: int, expected: str) -> None:
    found = verdict("compose.one_one", two_calls(right, alone))
    assert (found.verdict, found.n) == (expected, 3200)
    assert found.ours == f"{right / 32:.1f} ({alone / 32:.1f} without the second map)"


@pytest.mark.parametrize(("swapped", "expected"), [(3200, FAILS), (3199, FAILS), (1600, HOLDS)])
def test_order(swapped: int, expected: str) -> None:
    found = verdict("compose.order", two_calls(swapped=swapped))
    assert (found.verdict, found.ours) == (expected, f"100.0 vs {swapped / 32:.1f}")


def eight_calls(fourth: tuple[int, int], mixed: Callable[[Walks, Tensor], Tensor], graphs: int = 512) -> Record:
    at = walks("independent-3001", "five")
    found = dict.fromkeys(names_of(*strings_of_eight(), fits=2), at.current)
    found |= {f"1111-{fit}": right_on(fourth[fit - 1], at.ahead(4), at) for fit in (1, 2)}
    strings = long_strings()["mixed"]
    found |= {name_of(string, fit): mixed(at, at.ahead(hops(string))) for string in strings for fit in (1, 2)}
    return record(
        "eight-calls", MAIN[0], {"independent-3001": {name: nodes[: 10 * graphs] for name, nodes in found.items()}}
    )


def test_decay() -> None:
    def copied(at: Walks, target: Tensor) -> Tensor:
        return at.current

    def walked(at: Walks, target: Tensor) -> Tensor:
        return target

    assert verdict("compose.decay", eight_calls((1905, 1904), copied)).verdict == HOLDS
    assert verdict("compose.decay", eight_calls((1905, 1905), copied)).verdict == FAILS  # 60 % are not below 60 %
    assert verdict("compose.decay", eight_calls((0, 0), walked)).verdict == FAILS
    few = verdict("compose.decay", eight_calls((0, 0), copied, graphs=8))
    assert (few.verdict, few.scale) == (HOLDS, "paper's model, 8 of 512 graphs")
    assert few.ours == "one at call 4: 0.0; mixed at call 8 minus copy-u: 0.0 [0.0, 0.0]"
    whole = eight_calls((3175, 3175), walked)
    for stored in ((whole, eight_calls((0, 0), copied, 8)), (eight_calls((0, 0), copied, 8), whole)):
        found = verdict("compose.decay", stored=stored)  # all graphs come before some
        assert (found.verdict, found.scale) == (FAILS, "paper scale")
    part = verdict("compose.decay", eight_calls((0, 0), copied, 8), stored=(whole,))  # also where it is measured now
    assert (part.verdict, part.scale, part.fresh) == (FAILS, "paper scale", 0)
