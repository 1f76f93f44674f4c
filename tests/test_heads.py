"""Head selection: values, and the search on a model whose heads are planted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache

import pytest
import torch

from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.measure import searching
from loopscope.measure.controls import Chosen, steering
from loopscope.measure.heads import Heads, Selection, late_layers
from loopscope.measure.searching import MAP_NAME, select
from loopscope.models.placement import between, without_maps
from loopscope.program import Call, F, Program, Run
from loopscope.studies.letters.tests import discovery
from tests.kinds import KINDS
from tests.planted.letters import CARRIERS, HEADS, LATE, LAYERS, PlantedWalker, Words, raising

FOUND = Heads(tuple((LATE, head) for head in CARRIERS))


@cache
def selected() -> Selection:
    at = discovery(Words(), "discovery")
    told: list[str] = []
    found = select(PlantedWalker(), raising(), *at, confirmation=discovery(Words(), "confirmation"), log=told.append)
    assert found is not None
    assert sum(int(line.split(", ")[-1].split()[0]) for line in told) == len(found.tried)  # every scope was announced
    return found


# ---- heads as values -------------------------------------------------------------------------------------------------


def test_heads_are_read_as_they_are_written() -> None:
    some = Heads(((44, 1), (42, 10), (42, 2), (42, 2)))
    assert str(some) == "42.2,10 44.1"
    assert Heads.parse(" 44.1  42.10,2 ") == some
    assert (len(some), some.by_layer) == (3, {42: (2, 10), 44: (1,)})
    assert some - Heads.parse("42.2 9.9") == Heads.parse("42.10 44.1")
    assert some.of_layer(42) == Heads.parse("42.2,10")
    for text in ("", "42", "42.", "42.2;3", "x.1", "42.2 10", "42.-1", "42.2,,3"):
        with pytest.raises(InputError, match=r"cannot read heads .* such as '42\.2,10 44\.1'"):
            Heads.parse(text)


def test_the_comparison_heads_of_the_paper() -> None:
    """Layers are counted from 1 here and from 0 there: its L41 is layer 42."""
    chosen = Heads.parse("42.2,10,12,15 44.1,6,11,13,15 48.0,2,3,4,7,13,15")
    assert (len(chosen), str(chosen.comparison(16))) == (16, "42.0,1,3,4 44.0,2,3,4,5 48.1,5,6,8,9,10,11")
    assert str(Heads.parse("1.0,1,2").comparison(4)) == "1.3"  # no more are left


def test_late_layers_of_the_models_we_know() -> None:
    assert late_layers(48) == tuple(range(33, 49))
    assert late_layers(30) == tuple(range(21, 31))
    assert (late_layers(30, 2), late_layers(30, 1)) == (tuple(range(16, 31)), tuple(range(1, 31)))
    assert late_layers(2) == (2,)


def test_several_heads_of_several_layers_are_patched_in_all_rows() -> None:
    program = Heads.parse("5.1,3 6.0").patch(F**2, "pattern", Run(between("x", 2)), [2])
    assert str(program) == "F F[layer[5].head[1,3].pattern<-(F J:x F); layer[6].head[0].pattern<-(F J:x F)]"
    assert Program.parse(str(program)) == program


def test_heads_of_the_last_of_several_stacks_are_patched_in_its_calls() -> None:
    model, program = KINDS["two stacks"](), Program.parse("L H J:x L2 H L H")
    assert searching.loops_behind(model, program) == (5, 7)
    patched = Heads.parse("2.1").patch(program, "pattern", Run(program), [5])
    assert str(patched) == f"L H J:x L2 H[layer[2].head[1].pattern<-({program})] L H"
    with pytest.raises(InputError, match="calls H nowhere behind its map"):
        searching.loops_behind(model, Program.parse("L H J:x L"))


@pytest.mark.parametrize(
    ("program", "loop", "wrong"),
    [("F J:x F3", 2, 3), ("F J:x F3", 4, 2), ("F J:x F", 2, 1), ("L H J:x L H", 4, 2), ("J:x F", 1, None)],
)
def test_a_wrong_loop_is_another_call_of_the_same_stack_or_none(program: str, loop: int, wrong: int | None) -> None:
    steered, few = Program.parse(program), Heads.parse("1.0")
    rows = steering(without_maps(steered), steered, Chosen(few, few, few, few, (loop,)), [loop])
    assert ("wrong loop" in rows) == (wrong is not None)
    if wrong is not None:
        assert f".pattern<-({program}).loop[{wrong}]]" in str(rows["wrong loop"].program)


def test_heads_that_a_model_has_not() -> None:
    for text in ("7.0", "5.4", "0.0"):
        with pytest.raises(InputError, match=r"does not exist: layers 1\.\.6, heads 0\.\.3"):
            Heads.parse(text).check(PlantedWalker())


# ---- the search ------------------------------------------------------------------------------------------------------


def test_the_planted_heads_are_found() -> None:
    found = selected()
    assert (found.heads, found.loops, found.passed) == (FOUND, (4,), True)
    assert (found.pairs, found.unsteered, found.steered) == (8, 0, 8)
    assert found.late == (LAYERS - 1, LAYERS)
    steps = Counter(each.step for each in found.tried)
    assert steps == {
        "late layers": 1, "groups, 1 together": 2, "heads left out": 1 + HEADS, "leading heads": HEADS, "loops": 2,
        "confirmation": HEADS - 1,
    }  # fmt: skip
    loops = {each.loops: (each.rescued, each.damaged) for each in found.tried if each.step == "loops"}
    assert loops == {(4,): (8, 0), (2, 3): (0, 0)}  # without the hops of loops 2 and 3, a steered run is lost
    (confirmed, *_) = (each for each in found.tried if each.step == "confirmation")
    assert (confirmed.heads, confirmed.rescued, confirmed.damaged) == (str(FOUND), 64, 0)


def test_every_scope_that_was_tried_has_its_true_counts() -> None:
    """Each is run again alone."""
    model, (tokens, answers) = PlantedWalker(), discovery(Words(), "discovery")
    plain, steered = F**4, between(MAP_NAME, 4)
    for each in (each for each in selected().tried if each.step != "confirmation"):
        scope = Heads.parse(each.heads)
        for onto, source, right, likely in (
            (plain, steered, each.rescued, each.rescue),
            (steered, plain, each.damaged, each.damage),
        ):
            program = scope.patch(onto, "pattern", Run(source), each.loops)
            logits = run(model, tokens, program, maps={MAP_NAME: raising()})[program].logits[:, 0]
            assert int((logits.argmax(-1) == answers).sum()) == right
            assert float(logits.softmax(-1).gather(1, answers[:, None]).mean()) == pytest.approx(likely)
        assert each.passed == (each.rescued >= 8 * 0.9 and each.damaged <= 8 * 0.1)


def test_many_programs_cost_far_fewer_forwards() -> None:
    found = selected()
    alone = sum(2 * (64 if each.step == "confirmation" else found.pairs) for each in found.tried)
    assert 0 < found.forwards < 0.75 * alone


# ---- the search, on large models of which only the truth is there ----------------------------------------------------

PAPER = "42.2,10,12,15 44.1,6,11,13,15 48.0,2,3,4,7,13,15"
FOUR_LAYERS = "41.0 42.3,5 44.1 48.0,2"
EARLY = "3.0,4 20.7"
MANY_LAYERS = " ".join(f"{layer}.{layer % 16}" for layer in (33, 34, 37, 38, 41, 42, 45, 46))


class Scripted(searching._Trials):
    """Rescue needs all of some heads at the last loop, damage any of them; probabilities grow with their number."""

    needed = Heads(())

    def _scores(self, programs: Sequence[Program]) -> list[tuple[int, float]]:
        return [self.score(program) for program in programs]

    def score(self, program: Program) -> tuple[int, float]:
        steered = program.skeleton != F**4
        last = program.steps[-1]
        assert isinstance(last, Call)
        patched = {(patch.site.layer, head) for patch in last.patches for head in patch.site.heads or ()}
        share = len(patched & set(self.needed)) / len(self.needed)
        if steered:
            return 8 if share == 0 else 0, 1 - share
        return 8 if share == 1 else 0, share


class Drifting(Scripted):
    """A run without J that is patched before its last loop, too, is led astray; `most` are rescued otherwise."""

    most = 8

    def score(self, program: Program) -> tuple[int, float]:
        right, likely = super().score(program)
        if program.skeleton != F**4:
            return right, likely
        astray = any(isinstance(step, Call) and step.patches for step in program.steps[:-1])
        return (0, 0.1 * likely) if astray else (min(right, self.most), likely * self.most / 8)


class Lucky(Scripted):
    """Two answers of eight are right by chance without J, and so they are where J is undone."""

    def score(self, program: Program) -> tuple[int, float]:
        right, likely = super().score(program)
        return max(right, 2), likely


def scripted(
    monkeypatch: pytest.MonkeyPatch, needed: str, bench: type[Scripted] = Scripted, layers: int = 48
) -> Selection:
    monkeypatch.setattr(Scripted, "needed", Heads.parse(needed))
    monkeypatch.setattr(searching, "_Trials", bench)
    model = PlantedWalker()
    model.layers, model.heads = (model.layers[0],) * layers, 16  # type: ignore[misc]
    found = select(model, raising(), torch.zeros((8, 3), dtype=torch.long), torch.zeros(8, dtype=torch.long))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("needed", "late", "steps"),
    [
        (PAPER, 16, {"late layers": 1, "groups, 1 together": 4, "groups, 2 together": 6, "triples of layers": 56,
                     "heads left out": 49, "leading heads": 48}),
        (FOUR_LAYERS, 16, {"late layers": 1, "groups, 1 together": 4, "groups, 2 together": 6, "triples of layers": 56,
                           "layers left out": 9, "leading layers": 4, "heads left out": 65, "leading heads": 64}),
        (EARLY, 48, {"late layers": 3, "groups, 1 together": 4, "groups, 2 together": 6, "layers left out": 25,
                     "triples of layers": 120, "heads left out": 49, "leading heads": 48}),
    ],
)  # fmt: skip
def test_the_search_of_the_paper(
    monkeypatch: pytest.MonkeyPatch, needed: str, late: int, steps: dict[str, int]
) -> None:
    """48 layers of 16 heads: what is needed is found, whatever else is there, by so many scopes."""
    found = scripted(monkeypatch, needed)
    assert (str(found.heads), found.loops, found.passed, len(found.late)) == (needed, (4,), True, late)
    assert Counter(each.step for each in found.tried) == {**steps, "loops": 2}


def test_a_search_that_narrows_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """All four groups are needed, so no step before the heads passes with fewer; the heads are found all the same."""
    found = scripted(monkeypatch, MANY_LAYERS)
    assert (str(found.heads), found.passed) == (MANY_LAYERS, False)


def test_where_patched_runs_drift_away_the_last_loop_alone_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    found = scripted(monkeypatch, PAPER, Drifting)
    assert (str(found.heads), found.loops, found.passed, len(found.late)) == (PAPER, (4,), True, 16)
    steps = Counter(each.step for each in found.tried)
    assert (steps["late layers"], steps["loops"]) == (4, 0)  # a third, a half, all; then a third in the last loop
    assert {each.loops for each in found.tried if each.step != "late layers"} == {(4,)}


@pytest.mark.parametrize(("bench", "loops"), [(Drifting, (4,)), (Scripted, (2, 3, 4))])
def test_where_no_layers_pass_the_loops_that_rescue_more_are_taken(
    monkeypatch: pytest.MonkeyPatch, bench: type[Scripted], loops: tuple[int, ...]
) -> None:
    """Of loops that rescue alike, it is all of them.  More must be rescued than there is, so nothing passes at all."""
    monkeypatch.setattr(searching, "KEEPS", 2.0)
    found = scripted(monkeypatch, "2.0 4.3,5", bench, layers=4)
    assert (found.loops, found.passed, found.late, len(found.heads)) == (loops, False, (1, 2, 3, 4), 4 * 16)


def test_where_all_layers_rescue_little_heads_must_keep_nine_tenths_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of eight are too few by themselves; three heads rescue the same six, in the last loop."""
    monkeypatch.setattr(Drifting, "most", 6)
    found = scripted(monkeypatch, "2.0 4.3,5", Drifting, layers=4)
    assert (str(found.heads), found.loops, found.passed, found.late) == ("2.0 4.3,5", (4,), False, (1, 2, 3, 4))
    monkeypatch.setattr(Drifting, "most", 0)  # nothing rescued is nothing to keep
    assert len(scripted(monkeypatch, "2.0 4.3,5", Drifting, layers=4).heads) == 4 * 16


def test_damage_need_not_leave_less_than_the_unsteered_run_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = scripted(monkeypatch, PAPER, Lucky)
    assert (str(found.heads), found.loops, found.passed, found.unsteered) == (PAPER, (4,), True, 2)


def test_a_map_that_brings_nothing_leaves_nothing_to_find() -> None:
    assert select(PlantedWalker(), raising(0.0), *discovery(Words(), "discovery")) is None
    with pytest.raises(InputError, match=r"with 1 loops there is none \(nearest: 2\)"):
        select(PlantedWalker(), raising(), *discovery(Words(), "discovery"), loops=1)


def test_nothing_is_chosen_on_pairs_that_are_tested_on() -> None:
    for name in ("steering", "pattern-vs-output", "restoration"):
        with pytest.raises(InputError, match=f"heads are not chosen on '{name}'"):
            discovery(Words(), name)


def test_a_selection_comes_back_from_json() -> None:
    found = selected()
    assert Selection.from_dict(json.loads(json.dumps(found.to_dict()))) == found
