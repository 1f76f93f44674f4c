"""Crossing: planted answers are counted as they were planted, and identities hold on the main backbone."""

from __future__ import annotations

import math

import pytest
import torch

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.quantity import Quantity
from loopscope.store.zoo import open_zoo
from loopscope.studies.graph_walk.crossing import (
    CONFIRMATION,
    DISCOVERY,
    Answers,
    choose_head,
    eligibility,
    head_of,
    measure_all,
    pairs,
    tables,
)
from loopscope.studies.graph_walk.mechanism import crossing_runs
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, load_trained
from loopscope.tasks.graph_walk import advance, successor
from loopscope.tasks.populations import population
from tests.planted.crossing import GRAPHS, HEAD, planted

CPU = torch.device("cpu")
FACTS = ModelFacts("planted", "0" * 64, loops=6, depth=8, nodes=10, heads=4, fits={"one": 2})
N = GRAPHS * 10


def both(graphs: int = GRAPHS) -> Predictions:
    """Planted answers on the first graphs of both populations; discovery has no unsteered run."""
    predictions = {where: planted(pairs(where, 8, CPU, graphs)) for where in (DISCOVERY, CONFIRMATION)}
    del predictions[DISCOVERY]["unsteered"]
    return predictions


def rows_of(predictions: Predictions, paper: bool = False) -> dict[str, dict[str, Quantity]]:
    """By title, without the population in brackets, and by name."""
    made = tables(predictions, FACTS, paper)
    assert [table.title.endswith(f" ({DISCOVERY if table is made[0] else CONFIRMATION})") for table in made] == [
        True
    ] * 5
    return {table.title.rpartition(" (")[0]: {row.label: row for row in table.rows} for table in made}


def confirmed(predictions: Predictions) -> Answers:
    return Answers.of(predictions, FACTS, CONFIRMATION)


# ---- pairs -----------------------------------------------------------------------------------------------------------


def test_pairs_are_aligned() -> None:
    at = pairs(DISCOVERY, 8, CPU)
    receiver = at.receiver
    assert torch.equal(at.other, (receiver.current + 3) % 10)
    given = population("discovery-2608-giver").graphs.repeat_interleave(10, 0)
    assert torch.equal(at.giver_tokens[:, 3:31:3], given)
    assert torch.equal(advance(given, at.giver_tokens[:, -3], 8), at.other)
    assert torch.equal(receiver.graphs[at.shifted], receiver.graphs)
    assert torch.equal(receiver.current[at.shifted], at.other)
    B, D, E = at.labels.T
    assert torch.equal(B, receiver.ahead(1))
    assert torch.equal(D, successor(given, at.other))
    assert torch.equal(E, receiver.ahead(1)[at.shifted])


@pytest.mark.parametrize(
    ("where", "crossed", "three"),
    [(DISCOVERY, 256, None), (CONFIRMATION, 4109, 4044), ("pairs-2608-receiver", 4123, 4111)],
)
def test_labels_that_differ_are_as_many_as_on_record(where: str, crossed: int, three: int | None) -> None:
    answers = Answers({}, 0, pairs(where, 8, CPU))
    assert int(answers.at.distinct.sum()) == crossed
    assert three is None or int(answers.three.sum()) == three


def test_no_pairs() -> None:
    with pytest.raises(InputError, match=r"^population 'rings' has no giver"):
        pairs("rings", 8, CPU)


# ---- analysis --------------------------------------------------------------------------------------------------------


def test_planted_answers_are_counted() -> None:
    found = rows_of(both(), paper=True)
    share = {title: {name: row.estimate.value for name, row in rows.items()} for title, rows in found.items()}
    assert share["Choice of the head"] == {f"head {head}, pattern -> E": float(head == HEAD) for head in range(4)}

    at = pairs(CONFIRMATION, 8, CPU, GRAPHS)
    patches = share["Pattern and output patches between graphs"]
    assert {row.n for row in found["Pattern and output patches between graphs"].values()} == {int(at.distinct.sum())}
    for what, expected in (("pattern", "E"), ("output", "D")):
        assert patches[f"{what} -> {expected}, fit 2"] == patches[f"{what} -> {expected}, no filter but labels"] == 1
        for label in "BDE":
            assert patches[f"{what} -> {label}"] == (label == expected)
            for head in range(4):
                assert patches[f"head {head}, {what} -> {label}"] == (label == (expected if head == HEAD else "B"))

    steering = share["Steering patterns"]
    assert (steering["unsteered"], steering["steered"], steering["J->0"], steering["0->J"]) == (0, 1, 1, 0)
    assert (steering["J->0 minus unsteered"], steering["0->J minus steered"]) == (1, -1)
    assert [steering[f"J->0, head {head} alone"] for head in range(4)] == [0, 0, 1, 0]
    assert [steering[f"0->J, head {head} alone"] for head in range(4)] == [1, 1, 0, 1]

    restoration = share["Restoration"]
    assert restoration["broken"] == restoration["broken answers f(w)"] == 1  # f(w) is never f(c)
    assert (restoration["restored, selected"], restoration["restored, comparison"]) == (1, 0)
    assert [restoration[f"restored, head {head}"] for head in range(4)] == [0, 0, 1, 0]
    assert {row.n for row in found["Restoration"].values()} == {N}
    assert found["Restoration"]["restored, selected"].published == 0.601
    assert found["Restoration"]["restored, selected, fit 1"].published is None


def test_the_comparison_head_after_the_last_is_the_first() -> None:
    predictions = both()
    found = predictions[DISCOVERY]
    for fit in (1, 2):
        swap = f"one-{fit}/pattern 3", f"one-{fit}/pattern {HEAD}"
        found[swap[0]], found[swap[1]] = found[swap[1]], found[swap[0]]
    assert head_of(predictions, FACTS) == 3
    restoration = tables(predictions, FACTS)[-1]
    assert "Selected: head 3; comparison: head 0." in restoration.note


def test_the_head_follows_from_discovery_alone() -> None:
    predictions = both()
    for name, nodes in predictions[CONFIRMATION].items():
        predictions[CONFIRMATION][name] = (nodes + 1) % 10
    assert head_of(predictions, FACTS) == HEAD
    assert all(row.published is None for rows in rows_of(predictions).values() for row in rows.values())


def test_each_condition_leaves_out_its_pairs() -> None:
    """Ten pairs made wrong at a time, each by one condition; each number says how many are left after all so far."""
    predictions = both()
    found = predictions[CONFIRMATION]
    order = ("before F", "steered", "giver before F", "giver")
    for place, name in enumerate(order):
        nodes = found[f"one-2/{name}"] = found[f"one-2/{name}"].clone()
        nodes[10 * place : 10 * place + 10] = (nodes[10 * place : 10 * place + 10] + 1) % 10
    answers = confirmed(predictions)
    distinct = answers.at.distinct
    assert torch.equal(answers.eligible[0], distinct)
    assert not bool(answers.eligible[1][:40].any())
    assert torch.equal(answers.eligible[1][40:], distinct[40:])
    left = [int(distinct.sum()), *(int(distinct[10 * place :].sum()) for place in (1, 2, 3, 4))]
    table = eligibility(answers)
    assert table.note.endswith("fit 2: 120 -> " + " -> ".join(map(str, left)) + ".")
    assert [row.estimate.value for row in table.rows[5:]] == pytest.approx([count / N for count in left])
    assert {row.n for row in table.rows} == {N}


def test_fits_with_other_pairs_are_averaged_first() -> None:
    """Fit 2 counts only on the last graph pairs, and patches there fail: the mean of 1 and 0, whatever the numbers."""
    predictions = both()
    found = predictions[CONFIRMATION]
    found["one-2/giver"] = found["one-2/giver"].clone()
    found["one-2/giver"][:90] = (found["one-2/giver"][:90] + 1) % 10
    found[f"one-2/pattern {HEAD}"] = found["one-2/steered"]
    patches = rows_of(predictions)["Pattern and output patches between graphs"]
    assert patches["pattern -> E"].estimate.value == patches["pattern -> B"].estimate.value == 0.5
    distinct = confirmed(predictions).at.distinct
    assert patches["pattern -> E, fit 1"].n == int(distinct.sum())
    assert patches["pattern -> E"].n == patches["pattern -> E, fit 2"].n == int(distinct[90:].sum())


def test_only_broken_answers_can_be_restored() -> None:
    predictions = both()
    found = predictions[CONFIRMATION]
    found["one-1/broken"] = found["one-1/broken"].clone()
    found["one-1/broken"][:30] = found["one-1/steered"][:30]
    # An instance is out, too, where the run it takes queries from is wrong.
    found["one-2/before F"] = found["one-2/before F"].clone()
    found["one-2/before F"][0] = (found["one-2/before F"][0] + 1) % 10
    answers = confirmed(predictions)
    assert torch.equal(answers.broken[0], torch.arange(N) >= 30)
    reads_wrong = int((answers.at.shifted == 0).nonzero())
    assert (~answers.broken[1]).nonzero().flatten().tolist() == sorted({0, reads_wrong})


def test_a_backbone_without_pairs_that_count() -> None:
    predictions = both()
    for found in predictions.values():
        found["one-1/giver"] = (found["one-1/giver"] + 1) % 10
    discovery = Answers.of(predictions, FACTS, DISCOVERY)
    assert choose_head(discovery, 4) == (2, [-0.5, -0.5, 0.0, -0.5])
    patches = rows_of(predictions)["Pattern and output patches between graphs"]
    assert math.isnan(patches["pattern -> E"].estimate.value)
    assert patches["pattern -> E, fit 2"].estimate.value == 1.0
    assert (patches["pattern -> E, fit 1"].n, patches["pattern -> E"].n) == (0, 0)
    assert patches["pattern -> E, fit 2"].n > 0


def test_both_populations_are_needed() -> None:
    predictions = both(2)
    with pytest.raises(InputError, match=rf"^crossing needs .*, not {CONFIRMATION}$"):
        tables({CONFIRMATION: predictions[CONFIRMATION]}, FACTS)
    with pytest.raises(InputError, match=r"^crossing needs .*, not nothing$"):
        tables({}, FACTS)


# ---- measuring -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return load_trained(open_zoo(), "d8l6-5", CPU)


@pytest.fixture(scope="module")
def measured(trained: TrainedModel) -> Predictions:
    return measure_all(trained, graphs=1)


def test_clean_runs_are_those_of_the_model(trained: TrainedModel, measured: Predictions) -> None:
    at = pairs(CONFIRMATION, 8, CPU, 1)
    found = measured[CONFIRMATION]
    assert len(found) == 1 + 2 * (25 + 3)
    with torch.no_grad():
        for side, tokens in (("", at.receiver.tokens), ("giver", at.giver_tokens)):
            h = trained.model.embed(tokens)
            for _ in range(6):
                h = trained.model.call(h)
            for fit, step in enumerate(trained.maps["one"], 1):
                before, after = (
                    trained.model.read(x)[:, -1].argmax(-1) for x in (step(h), trained.model.call(step(h)))
                )
                assert torch.equal(found[f"one-{fit}/{side} before F".replace("/ ", "/")].long(), before)
                assert torch.equal(found[f"one-{fit}/{side or 'steered'}"].long(), after)
    assert set(measured[DISCOVERY]) == {
        f"one-{fit}/{name}"
        for fit in (1, 2)
        for name in ("steered", "before F", "giver", "giver before F", *(f"pattern {head}" for head in range(4)))
    }


def test_patched_runs_are_those_done_the_plain_way(trained: TrainedModel, measured: Predictions) -> None:
    at = pairs(CONFIRMATION, 8, CPU, 1)
    found = measured[CONFIRMATION]
    assert torch.equal(found["one-1/restored all"], found["one-1/steered"])
    inputs = {"main": at.receiver.tokens, "giver": at.giver_tokens, "shifted": at.receiver.tokens[at.shifted]}
    runs = crossing_runs(6, 4, "one-2")
    for name in ("pattern 3", "output 3", "J->0 all", "0->J 3", "broken", "restored 3"):
        seen = plain_run(trained.model, inputs, runs[name], maps=trained.named("one"))
        answered = trained.model.read(seen.states["h7"][:, -1:]).argmax(-1)[:, 0]
        assert torch.equal(found[f"one-2/{name}"].long(), answered)
