"""Composition on several backbones: counts by graph say what single answers say, and the rule names the backbones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.quantity import of_tables, one
from loopscope.store.store import Store
from loopscope.store.zoo import open_zoo
from loopscope.studies.graph_walk import composition, independent
from loopscope.studies.graph_walk.composition import (
    CALLS,
    EVERY,
    INDEPENDENT,
    PAIRS,
    Answers,
    at_call,
    hops,
    long_strings,
    spelled,
    tables_long,
)
from loopscope.studies.graph_walk.independent import (
    COLUMNS,
    CONTROLS,
    KINDS,
    LAST,
    PAPER,
    Counted,
    counts,
    headline,
    measure,
    pieces,
)
from loopscope.studies.graph_walk.layouts import of_independent
from loopscope.studies.records import PIECE, RECORD, SUFFIX, ModelFacts, Record
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.runner import Step, measured
from loopscope.studies.schema import MisfitError
from loopscope.studies.selection import Selection
from loopscope.studies.trained import TrainedModel, Walks, load_trained
from tests.planted.composition import planted

CPU = torch.device("cpu")
FACTS = ModelFacts("d8l6-8", "key", loops=6, depth=8, nodes=10, heads=4, fits={"one": 2, "two": 2})
GRAPHS = 24


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    tiny = load_trained(open_zoo(), "tiny-0", CPU, prefix="tiny-")
    return replace(tiny, maps={"one": tiny.maps["one"], "two": tiny.maps["stay"]})


def uneven(string: str, fit: int, at: Walks) -> Tensor:
    """Right in some graphs and not in others, by string and fit."""
    lost = (at.clusters * (3 + len(string)) + 5 * fit + hops(string)) % 7 < len(string) // 2
    return torch.where(lost, at.current, at.ahead(hops(string)))


def test_counts_say_what_single_answers_say() -> None:
    found = planted(INDEPENDENT, FACTS, GRAPHS, uneven)
    answers = Answers.of(found, FACTS, INDEPENDENT)
    kept = counts(answers)
    assert {name: tuple(each.shape) for name, each in kept.items()} == (
        {kind: (CALLS, GRAPHS) for kind in KINDS}
        | {f"mixed, {control}": (CALLS, GRAPHS) for control in CONTROLS}
        | {"two calls": (4, GRAPHS), "two calls, first map alone": (4, GRAPHS), "runs": (3,)}
    )
    assert kept["runs"].tolist() == [2, 2, 64]
    counted = Counted.of({INDEPENDENT: kept}, FACTS)
    for kind in KINDS:
        for condition in (EVERY, *(CONTROLS if kind == "mixed" else ())):
            expected = [at_call(answers, kind, condition, call, where=INDEPENDENT) for call in range(1, 1 + CALLS)]
            for ours, single in zip(counted.long(kind, condition), expected, strict=True):
                assert (ours.id, ours.at) == (single.id, single.at)
                for value in ("value", "low", "high"):
                    told = getattr(single.estimate, value)
                    assert getattr(ours.estimate, value) == pytest.approx(told, abs=1e-12)
                assert ours.n == single.n
    rows = headline(counted)
    assert tuple(rows) == COLUMNS
    told_of = list(of_tables(tables_long(found, FACTS)))
    for pair in PAIRS:
        single = one(told_of, "compose.two", string=pair)
        assert rows[spelled(pair)].estimate.value == pytest.approx(single.estimate.value)
    assert 0 < rows[LAST].estimate.low < rows[LAST].estimate.value < rows[LAST].estimate.high < 1
    # The main backbone keeps answers, and is counted alike.
    main = Counted.of(found, FACTS)
    assert all(torch.equal(main.found[name], each) for name, each in kept.items())


def test_what_is_measured_is_what_is_counted(trained: TrainedModel) -> None:
    kept = measure(trained, "tiny-test", graphs=5)["tiny-test"]
    whole = composition.measure_long(trained, "tiny-test", graphs=5)
    expected = counts(Answers.of(whole, ModelFacts.of(trained), "tiny-test"))
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], each) for name, each in expected.items())
    assert all(each.dtype == torch.int16 for each in kept.values())
    tables = independent.tables({"tiny-test": kept}, ModelFacts.of(trained))
    assert [len(table.rows) for table in tables] == [8] + [CALLS] * (len(KINDS) + len(CONTROLS))


def test_pieces_are_the_whole_to_the_last_byte(
    trained: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is measured in pieces is that of one go: the same key, files and forward-equivalents."""
    monkeypatch.setattr(independent, "AT_ONCE", 2)
    assert [each["graphs"] for each in pieces({"where": "tiny-test", "graphs": 5})] == [2, 2, 1]
    assert [each["first"] for each in pieces({})][-1] == 510
    experiment = EXPERIMENTS["independent"]
    cohort = replace(COHORTS["mechanism"], prefix="tiny-")
    cut, uncut = Store(tmp_path / "cut"), Store(tmp_path / "uncut")
    costs = []
    for store, asked in ((cut, experiment), (uncut, replace(experiment, pieces=None))):
        step = Step(asked, trained.name, cohort, {"where": "tiny-test", "graphs": 5})
        costs.append(measured(step, trained, open_zoo(), store).cost)
    (one,), (other,) = (store.every(RECORD) for store in (cut, uncut))
    name = f"tiny-test{SUFFIX}"
    assert (one.key, one.bytes(name)) == (other.key, other.bytes(name))
    assert (len(cut.every(PIECE)), len(uncut.every(PIECE))) == (3, 0)
    for counted in ("forwards", "plain"):
        assert costs[0][counted] == pytest.approx(costs[1][counted])
    again = measured(Step(experiment, trained.name, cohort, {"where": "tiny-test", "graphs": 5}), trained, uncut, cut)
    assert again.key == one.key


@pytest.mark.parametrize(("settings", "said"), [({"first": 72}, "below 72"), ({"first": 70, "graphs": 3}, "graphs of")])
def test_a_piece_beyond_the_last_graph(settings: dict[str, int], said: str, trained: TrainedModel) -> None:
    asked = {"where": "tiny-test", **settings}
    with pytest.raises(InputError, match="graphs"):
        measure(trained, **asked)
    with pytest.raises(MisfitError) as caught:
        of_independent(Record("independent", ModelFacts.of(trained), {}, asked))
    assert said in str(caught.value)


def test_what_was_not_measured() -> None:
    with pytest.raises(InputError, match=r"d8l6-8 was not measured on 'independent-3001'; there are elsewhere"):
        Counted.of({"elsewhere": {}}, FACTS)


def test_five_backbones_by_a_rule() -> None:
    """Those that are taken apart, then the first others by seed, whether or not they are at hand."""
    experiment, cohort = EXPERIMENTS["independent"], COHORTS["mechanism"]
    chosen = Selection(("d8l6-5", "d8l6-8", "d8l6-14"))
    assert experiment.on(cohort, chosen) == ["d8l6-3", "d8l6-4", "d8l6-5", "d8l6-8", "d8l6-14"]
    assert experiment.on(cohort, Selection(())) == [f"d8l6-{seed}" for seed in range(3, 8)]
    assert EXPERIMENTS["two-calls"].on(cohort, chosen) == [f"d8l6-{seed}" for seed in range(3, 20)]
    assert chosen.first(2, []) == ["d8l6-5", "d8l6-8"]
    # The main backbone has all its answers already.
    assert [len(experiment.settings(role, "paper")) for role in ("main", "mechanism", "other")] == [0, 1, 1]


def test_the_published_backbones() -> None:
    """As printed: the first is the one whose strings are published in full."""
    assert list(PAPER) == [6, 3, 4, 5, 7]
    first = dict(zip(COLUMNS, PAPER[6], strict=True))
    assert {spelled(pair): share for pair, share in composition.PAPER_PAIRS[INDEPENDENT].items()} == {
        spelled(pair): first[spelled(pair)] for pair in PAIRS
    }
    assert first[LAST] == composition.PAPER_LONG[INDEPENDENT]["mixed", EVERY][CALLS]
    assert min(each[-1] for each in PAPER.values()) == 0.0905
    assert max(each[-1] for each in PAPER.values()) == 0.1157
    assert len(long_strings()["mixed"]) == 32
