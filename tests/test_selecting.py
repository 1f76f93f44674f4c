"""Does J select or create: what is measured, which hops are native, the judge and the section, on planted records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.maps import AffineMap, DiagonalLowRank, map_files
from loopscope.store.artefacts import BACKBONE, MAP, load_backbone, name_of
from loopscope.store.store import Store
from loopscope.store.zoo import find, open_zoo
from loopscope.studies.evidence import Evidence
from loopscope.studies.graph_walk.trajectories import positions, read_native
from loopscope.studies.recipes import map_recipe
from loopscope.studies.records import ModelFacts, Record, load, save
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.runner import inputs_of, steps
from loopscope.studies.selecting import hops as selecting
from loopscope.studies.selecting.claims import native_hops, select_moving, select_native
from loopscope.studies.selecting.experiments import SELECTING
from loopscope.studies.selecting.hops import (
    DECIDING,
    Counted,
    ahead,
    counted_walks,
    measure,
    native,
    returns,
    tables,
)
from loopscope.studies.selecting.report import selecting_section
from loopscope.studies.selection import Selection
from loopscope.studies.trained import TrainedModel, load_trained
from loopscope.tasks.graph_walk import cycle_lengths
from loopscope.training.cohort.controls import permuted
from loopscope.training.cohort.hops import BLOCKS, CONTROLS, HOPS, Budget, Control
from tests.planted.claims import native as native_walk

pytestmark = pytest.mark.usefixtures("few_draws")

TRAINED, PERMUTED, OTHER, NONE = BLOCKS
CPU = torch.device("cpu")
WHERE = "confirmation"


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_instances_count_when_all_targets_differ() -> None:
    at = counted_walks(WHERE, 8, CPU)
    assert int(at.kept.sum()) == 2_577
    lengths = cycle_lengths(at.graphs).gather(1, at.starts[:, None])[:, 0]
    assert torch.equal(at.kept, lengths >= len(HOPS))
    back = ahead(at, -1)
    assert torch.equal(at.graphs.gather(1, back[:, None])[:, 0], at.current)
    assert torch.equal(ahead(at, 0), at.current)
    around = {k: float((lengths[at.kept] == 8 + k).double().mean()) for k in HOPS}  # cycles of six nodes come twice
    around[4] += float((lengths[at.kept] == 6).double().mean())
    assert returns(WHERE, 8) == pytest.approx(around)


def shaken(seed: int) -> AffineMap:
    step = DiagonalLowRank(64, 2, seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in step.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=1.0)
    return step.requires_grad_(False)


def tiny_subject(**maps: list[AffineMap]) -> TrainedModel:
    backbone = find(open_zoo(), "tiny-0", BACKBONE)
    return TrainedModel("tiny-0", backbone.key, load_backbone(backbone), maps, 2, CPU)


def test_counts_are_those_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fits of one map, one of others, by plain runs; six nodes, so that five hops ahead is the node itself."""
    monkeypatch.setattr(selecting, "AT_ONCE", 10)
    names = {"hops-1": [1, 2], "hops-minus1-permuted": [3], "brief-hops-1-none": [4], "hops-1-answer": [5]}
    maps = {name: [shaken(seed) for seed in seeds] for name, seeds in names.items()}
    trained = tiny_subject(**maps)
    found = measure(trained, "tiny-test", "tiny-selection")
    assert set(found) == {"tiny-test", "tiny-test-brief", "tiny-selection"}
    assert set(found["tiny-test-brief"]) == {"brief-hops-1-none right", "brief-hops-1-none answers"}
    model, at = trained.model, counted_walks("tiny-test", 2, CPU)
    h = model.embed(at.tokens)
    for _ in range(2):
        h = model.call(h)

    def logits(name: str, step: AffineMap) -> Tensor:
        if "answer" in name:
            return model.read(model.call(torch.cat([h[:, :-1], step(h[:, -1:])], 1))[:, -1])
        block = permuted(model) if "permuted" in name else model
        return model.read(step(h)[:, -1]) if "none" in name else block.read(block.call(step(h))[:, -1])

    for name, fits in maps.items():
        told, k = found["tiny-test-brief" if "brief" in name else "tiny-test"], -1 if "minus1" in name else 1
        for fit, step in enumerate(fits):
            nodes = logits(name, step).argmax(-1)
            right = (nodes == ahead(at, k)) & at.kept
            assert torch.equal(told[f"{name} right"][fit].long(), right.view(-1, 6).sum(1))
            answers = [int(((nodes == ahead(at, each)) & at.kept).sum()) for each in HOPS]
            assert told[f"{name} answers"][fit].tolist() == [*answers, int(at.kept.sum()) - sum(answers)]
    walked = positions(read_native(model, CPU, "tiny-selection", 3, 2), "tiny-selection")
    counts = [[int((each == place).sum()) for place in range(6)] for each in walked]
    assert found["tiny-selection"]["positions"].tolist() == counts
    assert sum(counts[3]) > 0
    assert set(measure(tiny_subject(**{"brief-hops-1-none": [shaken(4)]}), "tiny-test")) == {"tiny-test-brief"}
    first, second = found["tiny-test"]["hops-1 answers"]
    assert not torch.equal(first, second)
    with pytest.raises(InputError, match="tiny-0 has no map"):
        measure(tiny_subject(one=[shaken(1)]), "tiny-test")


def test_it_is_done_where_some_of_its_maps_are_and_rests_on_them_alone(tmp_path: Path) -> None:
    zoo, store = open_zoo(), Store(tmp_path)
    backbones = [find(zoo, name, BACKBONE) for name in ("d8l6-5", "d8l6-8")]
    for each in backbones:
        store.adopt(each)
    for name in ("brief-hops-3", "one"):
        config = {"recipe": map_recipe(name).to_dict(), "fit": 1}
        with store.write(MAP, config, {BACKBONE: backbones[0].key}) as draft:
            for file, data in map_files(DiagonalLowRank(256, 48, seed=1)).items():
                draft.bytes(file, data)
    experiment = EXPERIMENTS[SELECTING]
    cohorts = [COHORTS[name] for name in experiment.cohorts]
    (step,) = steps(store, cohorts, [experiment], Selection(()), "quick")
    assert step.backbone == name_of(backbones[0])
    used = inputs_of(experiment, load_trained(store, step.backbone, CPU))
    assert set(used) == {BACKBONE, "brief-hops-3-1"}
    assert steps(zoo, cohorts, [experiment], Selection(()), "quick") == []  # whose maps are the paper's


# ---- native hops -----------------------------------------------------------------------------------------------------


def shown(*modes: int | None, loops: int = 3) -> tuple[int, ...]:
    return native([None if a is None or b is None else (b - a) % 10 for a, b in pairwise(modes)], loops, 10)


def test_native_hops_are_increments_to_the_second_loop_and_up_to_the_extra_one() -> None:
    assert shown(None, 4, 5, 8, 8, 9) == (0, 1, 3)  # 4 of the first loop, 1 of the fifth do not count
    assert shown(None, 4, 3, 8, None) == (-1,)  # five is not asked for, a tie shows nothing
    assert shown(0, 4, 6, 8, 2) == (2, 4)


# ---- the judge -------------------------------------------------------------------------------------------------------


def counted_record(
    name: str, share: Callable[[Control, int], float | None], budget: Budget = "full", fits: int = 2
) -> Record:
    """J_k is right on that share of the graphs; nothing was fitted where it is None."""
    at = counted_walks(WHERE, 8, CPU)
    eligible, graph = at.kept.view(at.many, -1).sum(1), torch.arange(at.many)
    found: dict[str, Tensor] = {}
    for control in CONTROLS:
        for k in HOPS:
            if (each := share(control, k)) is not None:
                right = torch.where(graph < each * at.many, eligible, 0).to(torch.uint8)
                found[f"{control.target(k, budget)} right"] = right.expand(fits, -1).clone()
                found[f"{control.target(k, budget)} answers"] = torch.zeros(fits, 7, dtype=torch.int32)
    counts = {selecting.place(WHERE, budget): found}
    if budget == "full":
        counts[selecting.RINGS] = {selecting.POSITIONS: torch.eye(10, dtype=torch.int32)[modes_of(name)]}
    return Record(SELECTING, ModelFacts(name, "0" * 64, int(name[3]), 8, 10, 4, {}), counts, raw=True)


def selects(native: Mapping[str, tuple[int, ...]], random: float = 0.1) -> list[Record]:
    """With trained F, native hops are right and others are not; permuted F is right on some graphs."""

    def share(name: str) -> Callable[[Control, int], float | None]:
        def each(control: Control, k: int) -> float | None:
            if control == TRAINED:
                return 0.9 if k in native[name] else 0.3
            return random if control == PERMUTED else None

        return each

    return [counted_record(name, share(name)) for name in native]


SHOWN = {name: (0, 1, 2) if number % 2 else (0, 2) for number, name in enumerate(DECIDING)}


def modes_of(name: str) -> list[int]:
    """On rings, loops that advance by two, or by one and by two, and then stay."""
    steps = [0, 0, 2, 4, 6, 8, 8] if 1 not in SHOWN[name] else [0, 1, 3, 5, 7, 8, 8]
    return [*steps, *[8] * (int(name[3]) + 2 - len(steps))]


def walkers() -> list[Record]:
    return [native_walk(name, modes_of(name)[: int(name[3]) + 1]) for name in SHOWN]


def test_the_judge_needs_every_backbone_at_the_full_budget() -> None:
    native_records, whole = walkers(), selects(SHOWN)
    evidence = Evidence([*native_records, *whole])
    assert {each.facts.name: native_hops(Evidence(), each) for each in whole} == SHOWN
    finding = select_native(evidence)
    assert finding is not None
    assert finding.holds is True
    assert finding.estimate is not None
    assert finding.estimate.value == pytest.approx(0.6, abs=0.02)
    assert (finding.estimate.n, finding.n, len(finding.used)) == (12, 2_577, 12)
    assert select_native(Evidence(native_records)) is None
    brief = [counted_record(name, lambda control, k: 0.9, "brief") for name in DECIDING]
    assert select_native(Evidence([*native_records, *brief])) is None
    for fewer in (whole[1:], [replace(whole[0], predictions=brief[0].predictions), *whole[1:]]):
        undecided = select_native(Evidence([*native_records, *fewer]))
        assert undecided is not None
        assert undecided.holds is None
        assert "11 of 12" in undecided.ours


def test_a_backbone_trained_again_is_judged_by_its_own_walk() -> None:
    """The seed's first weights, which stored records are of, may walk otherwise; the reduced budget has no other."""
    stays = [native_walk(name, [8]) for name in DECIDING]
    whole = selects(SHOWN)
    again = select_native(Evidence([*stays, *whole]))
    alone = select_native(Evidence(whole))
    assert again is not None
    assert alone is not None
    assert (again.holds, again.estimate) == (alone.holds, alone.estimate) == (True, alone.estimate)
    brief = counted_record("d8l6-5", lambda control, k: 0.9, "brief")
    assert native_hops(Evidence(stays), brief) == (0,)
    assert native_hops(Evidence(), brief) is None


def test_both_halves_of_the_predicate_count() -> None:
    def verdict(records: list[Record]) -> tuple[bool | None, bool | None]:
        evidence = Evidence([*walkers(), *records])
        found = select_native(evidence), select_moving(evidence)
        assert found[0] is not None
        assert found[1] is not None
        return found[0].holds, found[1].holds

    assert verdict(selects(SHOWN)) == (True, True)
    assert verdict(selects(SHOWN, random=0.25)) == (False, False)

    def alike(control: Control, k: int) -> float | None:
        return 0.9 if control == TRAINED else 0.1 if control == PERMUTED else None

    assert verdict([counted_record(name, alike) for name in DECIDING]) == (False, False)

    def u_is_there(name: str) -> Callable[[Control, int], float | None]:
        def each(control: Control, k: int) -> float | None:
            if control == PERMUTED:
                return 1.0 if k == 0 else 0.1
            return 0.9 if k in SHOWN[name] else 0.3

        return each

    # With any block k = 0 is right, and the predicate as it was written does not leave it out.
    assert verdict([counted_record(name, u_is_there(name)) for name in DECIDING]) == (False, True)


def test_shares_of_several_hops_are_averaged() -> None:
    record = counted_record("d8l6-5", lambda control, k: (k + 1) / 10 if control == TRAINED else None, fits=3)
    counted = Counted.of(record.predictions, record.facts, "full")
    assert counted is not None
    assert counted.hops(TRAINED) == list(HOPS)
    assert counted.hops(NONE) == []
    each = [float(counted.tally(TRAINED, [k]).accuracy()) for k in HOPS]
    assert float(counted.tally(TRAINED, HOPS).accuracy()) == pytest.approx(sum(each) / len(each))
    (table,) = tables(record.predictions, record.facts)
    assert [row.estimate.value for row in table.rows] == pytest.approx(each)
    assert [row.n for row in table.rows] == [2_577] * 6
    assert Counted.of(record.predictions, record.facts, "brief") is None


# ---- the section -----------------------------------------------------------------------------------------------------


def test_the_section_tells_budgets_apart_and_says_what_is_not_decided(tmp_path: Path) -> None:
    few = ("d8l6-5", "d8l6-8")
    brief = [counted_record(name, lambda control, k: 0.8 if control == TRAINED else 0.2, "brief") for name in few]
    evidence = Evidence([*walkers(), *brief])
    section = selecting_section(evidence)
    assert section is not None
    text = " ".join(section.text)
    assert "600 updates" in text
    assert "decides nothing" in text
    assert "16.8 for k = 1" in text
    assert "8,000 updates:" not in text
    (figure,), (grid,) = section.figures, section.tables
    assert "reduced budget" in figure.title
    assert "d8l6-5, native 0, 2, F as trained: 78.9 at -1, 78.9 at 0" in figure.description
    assert "less of J" in figure.description
    assert section.claims == ["select.native"]
    assert figure.drawings.svg.startswith("<svg")
    assert "d8l6-8, no F: J(h) is read" in grid.lines  # type: ignore[union-attr]
    full = selecting_section(Evidence([*walkers(), *selects(SHOWN)[:3], *brief]))
    assert full is not None
    assert len(full.figures) == 2
    assert "9 of 12 backbones are missing" in " ".join(full.text)
    assert selecting_section(Evidence(walkers())) is None
    stored = Store(tmp_path)
    again = load(save(stored, brief[0], {BACKBONE: "0" * 64}))
    assert torch.equal(
        again.predictions["confirmation-brief"]["brief-hops-0 right"],
        brief[0].predictions["confirmation-brief"]["brief-hops-0 right"],
    )
