"""Records of language models: kept, found again, read as tables, judged; from planted answers, so that all is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from loopscope.errors import DamagedError, InputError
from loopscope.measure.heads import Heads
from loopscope.measure.replies import answers_name
from loopscope.models.identity import Identity
from loopscope.models.passes import states
from loopscope.models.placement import between
from loopscope.program import F
from loopscope.quantity import Quantity, QuantityTable, every, of_tables, one
from loopscope.store.store import Store
from loopscope.studies.antonyms.experiments import measure_antonyms
from loopscope.studies.claims import CLAIMS, FAILS, HOLDS, NOT_RUN, Verdict, decide, decided_by
from loopscope.studies.evidence import Evidence, in_short
from loopscope.studies.iterations.experiments import measure_iterations
from loopscope.studies.iterations.tables import PAPER_LONG
from loopscope.studies.language.names import how_much, scale_of
from loopscope.studies.language.records import SteeredModel
from loopscope.studies.letters.records import measure_letters, selection_of
from loopscope.studies.letters.tables import walked
from loopscope.studies.letters.tests import answer_tokens, question_tokens
from loopscope.studies.letters.walks import walk_letters
from loopscope.studies.records import Record, records
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.report.ledger import control, failing
from loopscope.tasks.letters import NAMES
from tests.planted.language import (
    ABOUT,
    BRANCHES,
    KEY,
    PAPER_CONTENT,
    PAPER_COUNTS,
    PAPER_RESTORATION,
    PAPER_STEERING,
    Counts,
    antonyms,
    commonest,
    iterations,
    letters,
    record,
)
from tests.planted.letters import PlantedWalker, Words, raising


def tables(record: Record) -> list[QuantityTable]:
    return LANGUAGE[record.experiment].tables(record)


def verdicts(*found: Record) -> dict[str, Verdict]:
    return {each.claim.id: each for each in decide(Evidence(found)) if each.claim.experiment in LANGUAGE}


def beside(verdict: Verdict) -> list[tuple[str, str, str]]:
    """What other records gave: which models, what, and their own verdict."""
    return [(", ".join(each.backbones), each.ours, each.verdict) for each in verdict.others]


# ---- letters ---------------------------------------------------------------------------------------------------------

WHERE = " (1 of 270 heads, loop 4)"
""""5.1" of thirty layers with nine heads, patched at the last of four loops."""


def test_the_papers_letters_hold() -> None:
    found = verdicts(
        letters("steering", PAPER_STEERING), letters("pattern-vs-output", PAPER_CONTENT),
        letters("restoration", PAPER_RESTORATION),
    )  # fmt: skip
    assert {each: found[each].verdict for each in decided_by("letters")} == dict.fromkeys(decided_by("letters"), HOLDS)
    assert {each: found[each].ours for each in decided_by("letters")} == {
        "letter.steer": "0/256 -> 251/256",
        "letter.rescue": f"248/256 (steered 251/256){WHERE}",
        "letter.damage": f"0/256 (steered 251/256){WHERE}",
        "letter.controls": f"values 0/256, unrelated 0/256, wrong loop 0/256, comparison 0/256{WHERE}",
        "letter.content": f"E 71.1, D 93.8{WHERE}",
        "letter.restore": f"249/249 vs 0/249{WHERE}",
    }
    rescue = found["letter.rescue"]
    assert rescue.estimate is not None
    assert (round(rescue.estimate.low, 3), round(rescue.estimate.high, 3)) == (0.940, 0.984)
    assert rescue.scale == "smollm2-135m (135M parameters) in place of Ouro-2.6B, 256 pairs"
    assert rescue.command == "loopscope lm test letters FOLDER --map MAP"
    assert (rescue.backbones, rescue.stored) == (("smollm2-135m",), 1)
    assert {found[each].verdict for each in (*decided_by("antonyms"), *decided_by("iterations"))} == {NOT_RUN}


def test_of_two_precisions_fp32_counts() -> None:
    full, half = letters("steering", PAPER_STEERING), letters("steering", PAPER_STEERING | {"steered": 0})
    half = replace(half, settings={**half.settings, "dtype": "bf16"})
    for found in ((full, half), (half, full)):
        assert verdicts(*found)["letter.steer"].ours == "0/256 -> 251/256"
    assert verdicts(half)["letter.steer"].scale == f"{verdicts(full)['letter.steer'].scale}, in bf16"


@pytest.mark.parametrize(
    ("changes", "claim", "expected"),
    [
        ({"unsteered": 38}, "letter.steer", HOLDS),  # 14.8 %
        ({"unsteered": 39}, "letter.steer", FAILS),
        ({"steered": 205}, "letter.steer", HOLDS),  # 80.1 %
        ({"steered": 204}, "letter.steer", FAILS),
        ({"steered": 200, "rescue": 140}, "letter.rescue", HOLDS),  # exactly 70 % of it
        ({"steered": 200, "rescue": 139}, "letter.rescue", FAILS),
        ({"damage": 51}, "letter.damage", HOLDS),
        ({"damage": 52}, "letter.damage", FAILS),
        ({"wrong loop": 51}, "letter.controls", HOLDS),
        ({"comparison": 52}, "letter.controls", FAILS),
        ({"steered": 51}, "letter.rescue", NOT_RUN),  # nothing that could be rescued, damaged or controlled
        ({"steered": 51}, "letter.damage", NOT_RUN),
        ({"steered": 51}, "letter.controls", NOT_RUN),
        ({"steered": 51}, "letter.steer", FAILS),
    ],
)
def test_the_bounds_of_steering(changes: dict[str, int], claim: str, expected: str) -> None:
    assert verdicts(letters("steering", PAPER_STEERING | changes))[claim].verdict == expected


@pytest.mark.parametrize(("pattern", "output", "expected"), [(128, 180, HOLDS), (127, 180, FAILS), (128, 179, FAILS)])
def test_the_bounds_of_content(pattern: int, output: int, expected: str) -> None:
    found = letters("pattern-vs-output", {"pattern": {"E": pattern}, "output": {"D": output}})
    assert verdicts(found)["letter.content"].verdict == expected


@pytest.mark.parametrize(
    ("selected", "comparison", "expected"), [(202, 26, HOLDS), (201, 2, FAILS), (251, 27, FAILS), (251, 2, HOLDS)]
)
def test_only_broken_answers_can_be_repaired(selected: int, comparison: int, expected: str) -> None:
    """249 are broken; the first two stayed right, and are not counted."""
    found = letters("restoration", PAPER_RESTORATION | {"selected": selected, "comparison": comparison})
    assert verdicts(found)["letter.restore"].verdict == expected
    whole = letters("restoration", PAPER_RESTORATION | {"replaced": 251})
    assert (verdicts(whole)["letter.restore"].verdict, verdicts(whole)["letter.restore"].ours) == (
        NOT_RUN, f"no answer was broken{WHERE}",
    )  # fmt: skip


def test_where_all_heads_were_chosen_there_are_none_to_compare() -> None:
    steering = {name: count for name, count in PAPER_STEERING.items() if name != "comparison"}
    restoration = {name: count for name, count in PAPER_RESTORATION.items() if name != "comparison"}
    found = verdicts(letters("steering", steering), letters("restoration", restoration))
    assert found["letter.controls"].verdict == found["letter.restore"].verdict == NOT_RUN
    assert found["letter.restore"].ours == f"249/249; too many were chosen to leave heads to compare{WHERE}"


def test_without_heads_only_steering_itself_is_judged() -> None:
    made = (
        letters("steering", {"unsteered": 0, "steered": 3}), letters("pattern-vs-output", {"base": 3}),
        letters("restoration", {"clean": 3}),
    )  # fmt: skip
    found = verdicts(*(replace(each, settings={**each.settings, "heads": None}) for each in made))
    assert found["letter.steer"].verdict == FAILS
    others = [each for each in decided_by("letters") if each != "letter.steer"]
    assert {(found[each].verdict, found[each].ours) for each in others} == {(NOT_RUN, "no heads were chosen")}


def larger(made: Record, name: str, parameters: int = 2_667_974_657) -> Record:
    """The same of another model."""
    notes = {"model": {**ABOUT["model"], "parameters": parameters}}
    return replace(made, facts=replace(made.facts, name=name), notes=notes)


def test_the_larger_model_decides_whether_or_not_it_was_measured_just_now() -> None:
    small = letters("steering", PAPER_STEERING | {"steered": 0})
    large = larger(letters("steering", PAPER_STEERING), "ouro")
    for stored, fresh in (([small, large], []), ([large], [small]), ([small], [large])):
        found = {each.claim.id: each for each in decide(Evidence(stored, fresh))}
        assert found["letter.steer"].verdict == HOLDS
        assert found["letter.steer"].scale == "ouro (2.7B parameters), 256 pairs"
        assert beside(found["letter.steer"]) == [("smollm2-135m", "0/256 -> 0/256", FAILS)]
        assert beside(found["letter.damage"]) == [("smollm2-135m", f"0/256 (steered 0/256){WHERE}", "not decided")]
    assert in_short(["smollm2-135m", "d8l6-3", "d8l6-4", "ouro"]) == "smollm2-135m; ouro; d8l6-3, 4"


def test_a_claim_is_decided_by_the_closest_record_that_can() -> None:
    """J does nothing for the large one, so that only the small one has answers that could be destroyed."""
    small = letters("steering", PAPER_STEERING)
    large = larger(letters("steering", {"unsteered": 0, "steered": 3}), "large", 360_000_000)
    large = replace(large, settings={**large.settings, "heads": None})
    found = verdicts(small, large)
    assert (found["letter.steer"].verdict, found["letter.steer"].backbones) == (FAILS, ("large",))
    assert (found["letter.damage"].verdict, found["letter.damage"].backbones) == (HOLDS, ("smollm2-135m",))
    assert beside(found["letter.damage"]) == [("large", "no heads were chosen", "not decided")]


def test_patches_at_the_last_loop_decide_before_a_larger_model_patched_elsewhere() -> None:
    """The site of the patch comes first; what does not depend on it is decided by the larger model."""
    last = letters("steering", PAPER_STEERING | {"rescue": 0})
    every = larger(letters("steering", PAPER_STEERING | {"unsteered": 5, "wrong loop": 157}), "large", 360_000_000)
    every = replace(every, settings={**every.settings, "patched": [2, 3, 4]})
    found = verdicts(last, every)
    assert (found["letter.rescue"].verdict, found["letter.rescue"].backbones) == (FAILS, ("smollm2-135m",))
    assert (found["letter.steer"].ours, found["letter.steer"].backbones) == ("5/256 -> 251/256", ("large",))
    (other,) = found["letter.rescue"].others
    assert (other.verdict, [each.row.label for each in other.failed]) == (HOLDS, ["wrong loop"])
    assert control(other.failed[0]) == "control fails: wrong loop gives the answer in 157 of 256 (paper 0 of 256)"
    (said,) = failing(found["letter.rescue"])
    assert said == f"beside, large (360M): {other.ours}; {control(other.failed[0])}"
    assert other.changed[0] == "patches in loops 2-4 (paper: in the last), so that the wrong loop is the next one"
    assert found["letter.controls"].verdict == HOLDS
    assert found["letter.steer"].changed[0].startswith("how the backbone was trained")


def test_heads_named_by_hand_count_as_those_of_a_search() -> None:
    """A record of the last loop decides, also where a search had chosen all loops for the same heads."""
    searched = letters("pattern-vs-output", PAPER_CONTENT)
    searched = replace(searched, settings={**searched.settings, "patched": [2, 3, 4]})
    given = letters("pattern-vs-output", PAPER_CONTENT | {"pattern": {"E": 5}})
    for found in ((searched, given), (given, searched)):
        verdict = verdicts(*found)["letter.content"]
        assert (verdict.verdict, verdict.ours) == (FAILS, f"E 2.0, D 93.8{WHERE}")
        assert [(each.ours, each.verdict) for each in verdict.others] == [
            ("E 71.1, D 93.8 (1 of 270 heads, loops 2-4)", HOLDS)
        ]


def test_controls_of_content_and_damage_fail_beside_their_effect() -> None:
    content = PAPER_CONTENT | {"wrong loop": {"E": 52}, "values": {"D": 51}, "comparison output": {"D": 52}}
    found = verdicts(letters("pattern-vs-output", content))["letter.content"]
    assert [(each.row.label, each.gives) for each in found.failed] == [("wrong loop", "E"), ("comparison output", "D")]
    damaged = PAPER_STEERING | {"steered": 200, "comparison damage": 160, "complement damage": 159}
    found = verdicts(letters("steering", damaged))["letter.damage"]
    assert [each.row.label for each in found.failed] == ["the other heads of the same layers"]
    assert control(found.failed[0]) == "control fails: the same at the other heads of the same layers leaves 159 of 256"


def test_a_part_of_the_pairs_does_not_decide_where_there_are_all() -> None:
    """Also not if it was measured just now, by a closer protocol; nor does bf16 where there is fp32."""
    whole = letters("steering", PAPER_STEERING)
    whole = replace(whole, settings={**whole.settings, "loops": 8, "patched": [8]})
    part = letters("steering", PAPER_STEERING | {"damage": 200})
    part = replace(larger(part, "other"), settings={**part.settings, "pairs": 32})
    few = {where: {name: each[:32] for name, each in found.items()} for where, found in part.predictions.items()}
    part = replace(part, predictions=few)
    found = {each.claim.id: each for each in decide(Evidence([whole], [part]))}["letter.damage"]
    assert (found.verdict, found.backbones) == (HOLDS, ("smollm2-135m",))
    half = letters("steering", PAPER_STEERING | {"damage": 200})
    half = replace(half, settings={**half.settings, "dtype": "bf16"})
    full = letters("steering", PAPER_STEERING)
    assert {each.claim.id: each for each in decide(Evidence([full], [half]))}["letter.damage"].verdict == HOLDS


def test_other_heads_measured_just_now_do_not_take_over() -> None:
    kept = letters("pattern-vs-output", PAPER_CONTENT | {"pattern": {"E": 5}})
    other = letters("pattern-vs-output", PAPER_CONTENT)
    other = replace(other, settings={**other.settings, "heads": "1.1"})
    found = {each.claim.id: each for each in decide(Evidence([kept], [other]))}["letter.content"]
    assert (found.verdict, [each.verdict for each in found.others]) == (FAILS, [HOLDS])


def test_seeds_are_numbers() -> None:
    second, tenth = (larger(letters("steering", PAPER_STEERING), f"small-s{seed}", 16_000_000) for seed in (2, 10))
    assert verdicts(tenth, second)["letter.damage"].backbones == ("small-s2",)


def test_a_model_that_was_asked_for_no_pairs_is_judged_by_its_walks() -> None:
    depths, loops = torch.arange(1, 9).repeat_interleave(64), torch.arange(1, 9)
    right = torch.minimum(loops, depths[:, None])
    said = {answers_name(t, with_j): right.to(torch.uint8) for t in (0, 5) for with_j in (False, True)}
    said["template 0, J"] = torch.where(torch.arange(512)[:, None] < 502, 4, right).to(torch.uint8)
    walks = larger(record("letters", {"walks": said}, {"set": "walks", "letters": 64}), "large", 360_000_000)
    found = verdicts(walks)["letter.steer"]
    assert (found.verdict, found.ours) == (FAILS, "0/64 -> 10/64")
    assert found.scale == "large (360M parameters) in place of Ouro-2.6B, 64 graphs"
    small = letters("steering", PAPER_STEERING)
    found = verdicts(small, walks)["letter.steer"]  # pairs are the published population
    assert (found.verdict, found.backbones) == (HOLDS, ("smollm2-135m",))
    assert beside(found) == [("large", "0/64 -> 10/64", FAILS)]
    pairs_too = replace(letters("steering", PAPER_STEERING | {"steered": 205}), facts=walks.facts, notes=walks.notes)
    found = verdicts(small, walks, pairs_too)["letter.steer"]
    assert (found.verdict, found.ours, len(found.others)) == (HOLDS, "0/256 -> 205/256", 1)
    said["template 0, J"] = right.to(torch.uint8)
    assert verdicts(replace(walks, predictions={"walks": said}))["letter.steer"].verdict == HOLDS


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("unlike", [{"boundary": "norm", "loops": 8}, {"boundary": "none", "loops": 8}])
def test_of_models_of_one_size_the_one_with_as_many_loops_counts(
    names: tuple[str, str], unlike: dict[str, str | int]
) -> None:
    """Ouro makes four loops; of two such models the first by name counts."""
    arms = [(unlike, PAPER_STEERING | {"steered": 0}), ({"boundary": "norm", "loops": 4}, PAPER_STEERING)]
    plain, normed = (
        replace(made, facts=replace(made.facts, name=name), settings={**made.settings, **run})
        for name, (run, counts) in zip(names, arms, strict=True)
        for made in [letters("steering", counts)]
    )
    for found in ((plain, normed), (normed, plain)):
        assert verdicts(*found)["letter.steer"].verdict == HOLDS
    second = replace(plain, facts=replace(plain.facts, name="c"), settings=normed.settings)
    for found in ((second, normed), (normed, second)):
        assert verdicts(*found)["letter.steer"].verdict == HOLDS


def quantities(made: Record) -> list[Quantity]:
    return list(of_tables(tables(made)))


def test_tables_have_the_papers_numbers_beside() -> None:
    first, gap = tables(letters("steering", PAPER_STEERING))
    assert (first.id, gap.id) == ("letters.steering", "letters.steering.difference")
    assert all(row.published == row.estimate.value for row in first.rows)
    assert "agree in 2,048 of 2,048 generations" in first.note
    assert one(gap.rows, gap.id, condition="steered", minus="rescue").estimate.value == pytest.approx(3 / 256)
    assert gap.note == "Paired; right only when steered 3, only when patched 0, sign test p = 0.25."
    content = every(quantities(letters("pattern-vs-output", PAPER_CONTENT)), "letters.content")
    assert all(row.published == row.estimate.value for row in content)
    assert one(content, "letters.content", condition="output", answer="D").estimate.value == 240 / 256
    made = quantities(letters("pattern-vs-output", {"pattern": {"before_D": 251}, "output": {"before_B": 3}}))
    short = every(made, "letters.content.short")
    assert {(row.at["condition"], row.at["run"]): round(row.estimate.value * 256) for row in short} == {
        ("pattern", "receiver"): 0, ("pattern", "donor"): 251, ("output", "receiver"): 3, ("output", "donor"): 0,
    }  # fmt: skip
    assert [row.label for row in short[:2]] == ["pattern: receiver's last but one", "pattern: donor's last but one"]
    right, mended = tables(letters("restoration", PAPER_RESTORATION | {"layer 10": 5, "layer 9": 4}))
    published = [row for row in right.rows if "layer" not in row.at]
    assert [row.published for row in published] == [row.estimate.value for row in published]
    assert [(row.at["condition"], row.estimate.value, row.n) for row in mended.rows if "layer" not in row.at] == [
        ("selected", 1.0, 249), ("comparison", 0.0, 249), ("all", 1.0, 249),
    ]  # fmt: skip
    assert [row.at["layer"] for row in mended.rows if "layer" in row.at] == [9, 10]


@pytest.mark.parametrize(
    "made",
    [
        lambda: letters("steering", PAPER_STEERING), lambda: letters("pattern-vs-output", PAPER_CONTENT),
        lambda: letters("restoration", PAPER_RESTORATION), lambda: antonyms("stepwise", 20, 64),
        lambda: iterations(PAPER_COUNTS),
    ],
)  # fmt: skip
def test_every_quantity_has_a_place_of_its_own(made: Callable[[], Record]) -> None:
    """An id with all coordinates is one number, and begins with the name of its experiment."""
    record = made()
    found = quantities(record)
    assert len({(each.id, *sorted(each.at.items())) for each in found}) == len(found)
    assert {each.id.partition(".")[0] for each in found} == {record.experiment}


def test_patterns_of_the_next_loop_may_lead_a_loop_ahead() -> None:
    made = letters("steering", PAPER_STEERING)
    steered = torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8).repeat(256, 1)
    early = torch.tensor([[1, 3, 4, 4]], dtype=torch.uint8).repeat(256, 1)
    early[:64, 2] = 9
    predictions = {**made.predictions, "steering-by-loop": {"steered": steered, "wrong loop": early}}
    everywhere = replace(made, predictions=predictions, settings={**made.settings, "patched": [2, 3, 4]})
    ahead = tables(everywhere)[-1]
    assert (ahead.id, ahead.title) == ("letters.steering.ahead", "Letters, steering: the wrong loop, a loop ahead")
    assert [(row.at["loop"], row.estimate.value) for row in ahead.rows] == [(1, 0.0), (2, 1.0), (3, 0.75)]
    assert not every(quantities(replace(made, predictions=predictions)), ahead.id)


@pytest.mark.parametrize(
    ("test", "counts"),
    [("steering", PAPER_STEERING), ("pattern-vs-output", PAPER_CONTENT), ("restoration", PAPER_RESTORATION)],
)
def test_rows_stand_in_one_order_whatever_order_files_give_them_in(
    test: str, counts: Mapping[str, int | Mapping[str, int]]
) -> None:
    made = letters(test, counts)
    turned = {where: dict(reversed(found.items())) for where, found in made.predictions.items()}
    assert tables(replace(made, predictions=turned)) == tables(made)


# ---- antonyms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("final", "stepwise", "native", "steer"),
    [
        ((251, 255), (20, 64), HOLDS, HOLDS),
        ((180, 231), (76, 58), HOLDS, HOLDS),  # 70.3, 90.2; 29.7, 90.6 %
        ((179, 230), (20, 64), FAILS, FAILS),
        ((251, 255), (77, 57), FAILS, FAILS),
        (None, (20, 64), NOT_RUN, NOT_RUN),
        ((251, 255), None, NOT_RUN, NOT_RUN),
        (None, (77, 57), FAILS, FAILS),  # whatever the other does
    ],
)
def test_antonyms(final: tuple[int, int] | None, stepwise: tuple[int, int] | None, native: str, steer: str) -> None:
    both = {"final-only": final, "stepwise": stepwise}
    found = verdicts(*(antonyms(form, *counts) for form, counts in both.items() if counts))
    assert (found["antonym.native"].verdict, found["antonym.steer"].verdict) == (native, steer)
    if final == (251, 255) and stepwise == (20, 64):
        assert found["antonym.native"].ours == "stepwise 64/64 in the worst loop; final-only 255/256 at loop 3"
        assert found["antonym.steer"].ours == "98.0 vs 7.8"
        assert found["antonym.steer"].backbones == ("final-only", "stepwise")


def test_supervisions_are_compared_at_one_size() -> None:
    """A larger model that has one of them alone does not count, unless no size has both."""
    large, small = (antonyms("final-only", right, 255) for right in (20, 251))
    small, stepwise = (
        replace(each, notes={**each.notes, "model": {**ABOUT["model"], "parameters": 15_747_328}})
        for each in (small, antonyms("stepwise", 20, 64))
    )
    assert verdicts(large, small, stepwise)["antonym.steer"].ours == "98.0 vs 7.8"
    assert verdicts(small, large)["antonym.steer"].ours == "7.8 vs not run"


def test_supervisions_are_compared_in_one_model_and_in_as_many_loops() -> None:
    """Those of one name come first, then what has none of its name; four loops, as published, count more than eight."""

    def of(form: str, right: int, name: str, loops: int) -> Record:
        made = antonyms(form, right, 64)
        return replace(
            made, facts=replace(made.facts, name=name, key=f"{name} {form}"), settings={**made.settings, "loops": loops}
        )

    final, stepwise = "final-only", "stepwise"
    found = [
        of(final, 64, "a", 4), of(stepwise, 128, "b", 4), of(final, 192, "c", 4),
        of(final, 251, "d", 4), of(stepwise, 20, "d", 4), of(final, 256, "a", 8), of(stepwise, 256, "d", 8),
    ]  # fmt: skip
    for order in (found, found[::-1]):
        verdict = verdicts(*order)["antonym.steer"]
        assert (verdict.ours, verdict.backbones) == ("98.0 vs 7.8", ("d",))
        assert beside(verdict) == [
            ("a, b", "25.0 vs 50.0", FAILS), ("a, d", "100.0 vs 100.0", FAILS), ("c", "75.0 vs not run", "not decided"),
        ]  # fmt: skip
    assert "8 loops instead of 4" in scale_of(found[-1])
    assert "loops" not in scale_of(found[0])


def test_no_record_of_a_supervision_is_passed_over() -> None:
    """Two maps of one model: the second pair stands beside the first, and what has no partner stands alone."""
    found = []
    for number, (form, right) in enumerate((("final-only", 251), ("stepwise", 20), ("final-only", 128))):
        made = antonyms(form, right, 64)
        found.append(replace(made, facts=replace(made.facts, name="model", key=f"{number}" * 64)))
    verdict = verdicts(*found)["antonym.steer"]
    assert (verdict.ours, [each.ours for each in verdict.others]) == ("98.0 vs 7.8", ["50.0 vs not run"])


def test_two_backbones_may_have_one_name() -> None:
    both = [antonyms("final-only", 251, 255), antonyms("stepwise", 20, 64)]
    alike = [replace(each, facts=replace(each.facts, name="model", key=each.facts.name)) for each in both]
    assert verdicts(*alike)["antonym.steer"].verdict == HOLDS


def test_tables_of_antonyms() -> None:
    depths, truncated, chosen = tables(antonyms("stepwise", 20, 64))
    steered = [one(depths.rows, "antonyms.right", template=0, steered=True, k=k) for k in (4, 5, 6)]
    assert [row.estimate.value for row in steered] == [0, 20 / 64, 0]
    assert steered[0].label == "template 0, J, k = 4"
    assert one(depths.rows, "antonyms.right", template=0, steered=False, k=4).published == 1
    cells = {(row.at["loop"], row.at["deletion"]): row.estimate.value for row in truncated.rows}
    assert [[cells[t, k] for k in range(1, 5)] for t in range(1, 5)] == torch.eye(4).tolist()
    assert [row.estimate for row in chosen.rows] == [row.estimate for row in truncated.rows]


# ---- iterations ------------------------------------------------------------------------------------------------------


def test_how_long_replies_are_does_not_decide_which_record_counts() -> None:
    first, second = iterations((72, 23, 25, 20), cases=4), iterations((0, 0, 0, 0), cases=4)
    wordy = {group: {branch: torch.nn.functional.pad(each, (0, 9)) for branch, each in branches.items()}
             for group, branches in second.predictions.items()}  # fmt: skip
    second = replace(second, predictions=wordy, facts=replace(second.facts, name=f"{first.facts.name}-wordy"))
    for found in ((first, second), (second, first)):
        assert verdicts(*found)["iterate.strict"].verdict == HOLDS


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((574, 183, 200, 164), HOLDS),
        ((400, 208, 200, 164), HOLDS),  # exactly 30 points
        ((400, 209, 200, 164), FAILS),
        ((574, 183, 574, 164), FAILS),
        ((574, 183, 200, 574), FAILS),
    ],
)
@pytest.mark.parametrize("others", [PAPER_COUNTS, (0, 640, 640, 640)])
def test_iterations(counts: Counts, expected: str, others: Counts) -> None:
    """The claim is decided on the published starts, a row of ours on held-out ones, each whatever the others give."""
    assert verdicts(iterations(counts, others))["iterate.strict"].verdict == expected
    verdict = verdicts(iterations(others, counts))["iterate.continue"]
    assert verdict.verdict == expected
    assert verdict.n == 640
    if counts == PAPER_COUNTS:
        assert verdict.estimate is not None
        assert verdict.estimate.low < 391 / 640 < verdict.estimate.high


def test_iterations_are_told_from_both_sets_of_starts() -> None:
    found = verdicts(iterations((104, 57, 27, 1), PAPER_COUNTS))
    verdict = found["iterate.continue"]
    assert (verdict.verdict, found["iterate.strict"].verdict) == (HOLDS, FAILS)
    assert verdict.ours == "89.7 vs 28.6 (F only), 31.2 (J only), 25.6 (stop), from trained starts"
    assert found["iterate.strict"].ours == "16.2 vs 8.9 (F only), 4.2 (J only), 0.2 (stop), from held-out starts"
    assert verdict.scale == (
        "smollm2-135m (135M parameters) in place of Qwen3-8B, 2,560 requests, half of them from held-out starts"
    )
    few = iterations((8, 0, 0, 0), (20, 0, 0, 0), cases=1)
    assert verdicts(few)["iterate.strict"].ours.startswith("40.0 vs 0.0 (F only)")
    assert how_much(few) == "1 of 32 cases for each task, k and set of starts"


def test_tables_of_iterations() -> None:
    found = quantities(iterations((128, 128, 128, 128), (384, 256, 128, 0)))
    whole, parsed, trained, read = (
        every(found, id, split=split)
        for split, id in product(("test", "train"), ("iterations.whole", "iterations.parsed"))
    )

    def value(rows: list[Quantity], task: str, branch: str, length: str = "long") -> float:
        return one(rows, "iterations.whole", task=task, length=length, branch=branch).estimate.value

    assert (value(whole, "successor", "F"), value(whole, "weekday", "F")) == (1.0, 0.0)
    assert value(whole, "all", "J", "short") == 1.0
    paper = one(whole, "iterations.whole", task="all", length="long", branch="J+F").published
    assert paper == pytest.approx(0.8969, abs=1e-4)
    assert tuple(sum(counts) for counts in PAPER_LONG.values()) == PAPER_COUNTS
    assert len(parsed) == len(whole) == 4 * 7
    repeats = one(found, "iterations.baseline", split="test", task="weekday", baseline="repeats_start")
    assert round(repeats.estimate.value * repeats.n) == 32
    assert [value(trained, "all", branch) for branch in BRANCHES] == [0.6, 0.4, 0.2, 0.0]
    assert [value(trained, "weekday", branch) for branch in BRANCHES] == [1.0, 1.0, 0.0, 0.0]
    assert [row.published for row in trained] == [row.published for row in whole]
    assert [row.label for row in read] == [row.label for row in trained]


def test_tables_of_iterations_say_whose_starts_they_have() -> None:
    held_out, trained = (found := tables(iterations(PAPER_COUNTS)))[:3], found[3:]
    kinds = ["whole answers", "parsed answers", "long requests that are right without iterating on"]
    assert [table.title for table in held_out] == [f"Iterations: {kind}" for kind in kinds]
    assert [table.title for table in trained] == [f"Iterations from trained starts: {kind}" for kind in kinds]
    assert held_out[0].note.startswith("Starts are held out, which the paper's are not.")
    assert trained[0].note == "The paper's setting: its starts are not held out."
    first, second = (
        one(each[2].rows, "iterations.baseline", task="doubling", baseline="says_one_thing").estimate.value
        for each in (held_out, trained)
    )
    assert first == commonest("doubling", "test") > 0.5  # of two starts
    assert second == commonest("doubling", "train") < 0.3  # of seven


def test_a_record_without_trained_starts_is_damage() -> None:
    whole = iterations(PAPER_COUNTS)
    part = replace(whole, predictions={"iterations": whole.predictions["iterations"]})
    with pytest.raises(DamagedError, match="record of smollm2-135m: expected replies from trained starts, found none"):
        tables(part)


# ---- measured, kept and found again ----------------------------------------------------------------------------------


def subject(by: float = 1.0, name: str = "planted") -> SteeredModel:
    who = Identity(KEY, KEY, None, None)
    return SteeredModel(name, who, "planted", PlantedWalker(), Words(), raising(by), f"{int(by):064d}")


def test_a_planted_model_makes_the_letter_claims_hold(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = measure_letters(subject(), store, count=20)
    walks, heads, *rest = made
    found = selection_of(heads)
    assert found is not None
    assert str(found.heads) == "5.1,3"
    assert [each.settings["set"] for each in rest] == ["steering", "pattern-vs-output", "restoration"]
    assert {str(each.settings["heads"]) for each in rest} == {"5.1,3"}
    stored = records(store)
    found_again = {each.claim.id: each for each in decide(Evidence(stored))}
    assert {found_again[each].verdict for each in decided_by("letters")} == {HOLDS}
    assert found_again["letter.steer"].ours == "0/20 -> 20/20"
    assert found_again["letter.restore"].scale == "planted (559 parameters) in place of Ouro-2.6B, 20 of 256 pairs"
    assert tables(heads)[0].title == "Letters, heads: discovery"
    assert (walks.settings["set"], walks.settings["letters"], how_much(walks)) == ("walks", 20, "20 of 64 graphs")

    class Broken(PlantedWalker):
        def embed(self, tokens: Tensor) -> Tensor:
            raise AssertionError("measured again")

    again = measure_letters(replace(subject(), model=Broken()), store, count=20)
    assert [each.settings for each in again] == [each.settings for each in made]
    for found_anew, other in zip(again, made, strict=True):
        for where, answers in other.predictions.items():
            assert {n: t.tolist() for n, t in found_anew.predictions[where].items()} == {
                n: t.tolist() for n, t in answers.items()
            }
    with pytest.raises(InputError, match="measured again"):  # another map is another subject
        measure_letters(replace(subject(), model=Broken(), map_key="f" * 64), store, count=20)


def test_walks_say_whom_each_loop_names(tmp_path: Path) -> None:
    """The planted walker takes whatever is asked for one transfer further in every loop, from the second on with J."""
    (made,) = measure_letters(subject(), Store(tmp_path), tests=("walks",), count=5, batch=7)
    (again,) = records(Store(tmp_path))
    programs = {False: F**4, True: between("step", 4)}
    walker, step = PlantedWalker(), raising()
    for template, steered, k in product((0, 5), (False, True), (1, 4, 8)):
        found = walked(again, template, steered, k)
        assert found.shape == (5, 4)
        for letter, mine in zip(walk_letters(template, 5)[5 * (k - 1) : 5 * k], found, strict=True):
            assert (letter.k, letter.template) == (k, template)
            run = states(walker, question_tokens(Words(), [letter]), programs[steered], maps={"step": step})
            for loop, steps in enumerate(mine.tolist(), 1):
                (token,) = walker.read(run[f"h{loop}"][:, -1]).argmax(-1).tolist()
                name = dict(zip(answer_tokens(Words()), NAMES, strict=True)).get(token)
                assert steps == next((n for n in range(10) if letter.taker(letter.start, n) == name), 255)
    right, native, steered = tables(made)
    assert len(right.rows) == 32
    assert one(right.rows, "letters.walks", template=5, steered=True, k=8).published == 13 / 16
    for with_j in (True, False):
        assert one(right.rows, "letters.walks", template=0, steered=with_j, k=8).estimate.value == float(with_j)
    assert len(native.rows) == len(steered.rows) == 32
    assert one(steered.rows, "letters.walks.loops", steered=True, k=8, loop=4).at["transfers"] == 8


def test_a_map_that_does_nothing_is_recorded_too(tmp_path: Path) -> None:
    made = measure_letters(subject(0.0), Store(tmp_path), tests=("steering",), count=6)
    assert selection_of(made[0]) is None
    assert set(made[1].predictions["steering"]) == {"unsteered", "steered"}
    assert verdicts(*made)["letter.steer"].verdict == FAILS
    assert tables(made[0])[0].rows == []
    (given,) = measure_letters(subject(), Store(tmp_path), tests=("steering",), count=6, heads=Heads.parse("5.1"))
    assert given.settings["heads"] == "5.1"


def test_a_selection_that_is_none_is_damage() -> None:
    made = record("letters", {"heads": {}}, {"set": "discovery"})
    for notes in ({}, {"selection": 7}, {"selection": {"heads": "5.1"}}):
        with pytest.raises(DamagedError, match="expected a selection of heads"):
            selection_of(replace(made, notes=notes))


def test_what_cannot_be_measured_is_refused_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for wrong in (
        lambda: measure_letters(subject(), store, count=0),
        lambda: measure_antonyms(subject(), store, "neither"),
        lambda: measure_antonyms(subject(), store, "stepwise", sequences=65),
        lambda: measure_iterations(subject(), store, cases=0),
    ):
        with pytest.raises(InputError):
            wrong()
    assert not (tmp_path / "store").exists()


def test_every_claim_on_language_models_has_its_test() -> None:
    assert {claim.experiment for claim in CLAIMS if claim.id.split(".")[0] in ("letter", "antonym", "iterate")} == set(
        LANGUAGE
    )
    assert scale_of(antonyms("stepwise", 20, 64)).endswith("in place of Ouro-2.6B, 64 sequences")
