"""Matched supervision: measured on the tiny backbone of the zoo, judged on planted answers whose tables are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from loopscope.errors import DamagedError, InputError
from loopscope.execute.plain import plain_run
from loopscope.program import Program
from loopscope.quantity import Quantity, QuantityTable
from loopscope.store.artefacts import BACKBONE, MAP, RESULT
from loopscope.store.store import Store
from loopscope.store.zoo import find, open_zoo
from loopscope.studies.graph_walk.learning import curves, noted, notes
from loopscope.studies.graph_walk.matched import BEFORE, HOPS, measure
from loopscope.studies.graph_walk.matched_tables import pairs, tables
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, Walks, instances, load_trained
from loopscope.tasks.graph_walk import cycle_lengths
from tests.planted.matched import TINY, elsewhere, planted, right_on

CPU = torch.device("cpu")

# One-hop and two-hop accuracies of each fit as published, in percent; stepwise one-hop maps are all at 100.
PUBLISHED = {
    "matched-final-0": {"one": (78.75, 76.46), "two": (62.05, 56.80)},
    "matched-final-1": {"one": (74.09, 72.71), "two": (66.76, 65.55)},
    "matched-final-2": {"one": (56.42, 55.43), "two": (57.77, 56.90)},
    "matched-final-3": {"one": (68.41, 70.22), "two": (39.21, 40.83)},
    "matched-final-4": {"one": (56.78, 55.60), "two": (30.67, 28.04)},
    "matched-stepwise-0": {"one": (100.0, 100.0), "two": (25.57, 15.54)},
    "matched-stepwise-1": {"one": (100.0, 100.0), "two": (11.58, 12.79)},
    "matched-stepwise-2": {"one": (100.0, 100.0), "two": (6.48, 5.00)},
    "matched-stepwise-3": {"one": (100.0, 100.0), "two": (19.17, 20.45)},
    "matched-stepwise-4": {"one": (100.0, 100.0), "two": (7.57, 7.69)},
}


# ---- planted answers -------------------------------------------------------------------------------------------------


def facts_of(name: str, fits: Mapping[str, int], nodes: int = 6, depth: int = 2) -> ModelFacts:
    return ModelFacts(name, "0" * 64, loops=depth, depth=depth, nodes=nodes, heads=2, fits=fits)


@pytest.fixture(scope="module")
def at() -> Walks:
    return instances(TINY, 2, CPU, "three")


@pytest.fixture(scope="module")
def paper_at() -> Walks:
    return instances("matched-test", 8, CPU, "three")


def rows_of(found: list[QuantityTable]) -> dict[str, dict[str, Quantity]]:
    """Rows by title and name; neither may come twice."""
    assert len({table.title for table in found}) == len(found)
    for table in found:
        assert len({row.label for row in table.rows}) == len(table.rows)
        assert table.note
    return {
        table.title.removeprefix("Matched supervision: "): {row.label: row for row in table.rows} for table in found
    }


ACCURACY = "target accuracy after one more call, {}".format
ANSWERED = "which node is answered, {}".format
FITS, GAPS = "target accuracy of every fit", "the gap within each pair"
BEFORE_F, COPYING, BASELINES = "what J alone reads out", "is the start copied?", "baselines that copy"
CYCLES, LONGER = "target accuracy by the cycle length of the start", "what a longer fit adds"


# ---- measuring -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return load_trained(open_zoo(), "tiny-0", CPU, prefix="tiny-")


@pytest.fixture(scope="module")
def measured(trained: TrainedModel) -> Predictions:
    return measure(trained, TINY)


def test_measured_answers_are_those_of_plain_runs(trained: TrainedModel, measured: Predictions, at: Walks) -> None:
    texts = {"endpoint": "F2", "unsteered": "F3"}
    for name in ("stay-1", "stay-2", "one-1", "one-2"):
        texts |= {name: f"F2 J:{name} F", name + BEFORE: f"F2 J:{name}"}
    assert set(measured) == {TINY}
    assert set(measured[TINY]) == set(texts)
    maps = trained.named("stay", "one")
    for name, program in {name: Program.parse(text) for name, text in texts.items()}.items():
        end = plain_run(trained.model, {"main": at.tokens}, program, maps=maps).states[program.points[-1]]
        expected = trained.model.read(end[:, -1]).argmax(-1)
        assert measured[TINY][name].dtype == torch.uint8
        assert torch.equal(measured[TINY][name].long(), expected), name


def test_tables_of_a_backbone_that_obeys_its_maps(trained: TrainedModel, measured: Predictions) -> None:
    found = rows_of(tables({"tiny-0": measured}, {"tiny-0": ModelFacts.of(trained)}, TINY))
    accuracy = found[ACCURACY("by supervision")]
    for row in ("last trained loop: stay", "J_stay: stay", "J_one: one"):
        assert accuracy[f"tiny-0, {row}"].estimate.value == 1.0
    assert not any("J_two" in name for rows in found.values() for name in rows)  # tiny-0 has no such maps
    assert not {GAPS, LONGER} & set(found)
    answered = list(found[ANSWERED("by supervision")].values())
    for start in range(0, len(answered), 4):
        assert sum(row.estimate.value for row in answered[start : start + 4]) == pytest.approx(1.0)


# ---- means over backbones, against the published tables --------------------------------------------------------------


@pytest.fixture(scope="module")
def published(paper_at: Walks) -> tuple[dict[str, Predictions], dict[str, ModelFacts]]:
    """Ten backbones whose fits are right exactly as often as the paper's table of fits says."""
    n = int(paper_at.kept.sum())
    found = {}
    for name, fits in PUBLISHED.items():
        given = {t: [right_on(round(share / 100 * n), HOPS[t], paper_at) for share in fits[t]] for t in fits}
        found[name] = planted(paper_at, "matched-test", unsteered=int("stepwise" in name), **given)
    return found, {name: facts_of(name, {"one": 2, "two": 2}, nodes=10, depth=8) for name in found}


def test_the_papers_fits_give_the_papers_means(published: tuple[dict[str, Predictions], dict[str, ModelFacts]]) -> None:
    expected = {
        "matched-final, no map: stay": (100.0, 0.0), "matched-final, no map: one": (0.0, 0.0),
        "matched-stepwise, no map: stay": (0.0, 0.0), "matched-stepwise, no map: one": (100.0, 0.0),
        "matched-final, J_one: one": (66.5, 10.0), "matched-stepwise, J_one: one": (100.0, 0.0),
        "matched-final, J_two: two": (50.5, 15.2), "matched-stepwise, J_two: two": (13.2, 6.8),
    }  # fmt: skip
    rows = {row.label: row for row in tables(*published, paper=True)[0].rows}
    for name, (mean, sd) in expected.items():
        row = rows[name]
        assert 100 * row.estimate.value == pytest.approx(mean, abs=0.05)
        assert 50 * (row.estimate.high - row.estimate.low) == pytest.approx(sd, abs=0.05)
        assert (row.n, row.estimate.n, row.estimate.unit) == (4137, 5, "backbone, mean ± SD")
        assert row.published == pytest.approx(mean / 100)


def test_the_papers_gaps(published: tuple[dict[str, Predictions], dict[str, ModelFacts]]) -> None:
    found = pairs(*published)
    two = [pair for pair in found if pair.target == "two"]
    assert [pair.seed for pair in two] == ["0", "1", "2", "3", "4"]
    gaps = [100 * pair.gap.value for pair in two]
    assert gaps == pytest.approx([38.87, 53.98, 51.60, 20.21, 21.73], abs=0.01)
    assert (np.mean(gaps), np.std(gaps, ddof=1)) == pytest.approx((37.28, 15.96), abs=0.01)
    for pair in found:
        assert pair.gap.value == pytest.approx(pair.final - pair.stepwise)
        assert pair.gap.low < pair.gap.value < pair.gap.high
        assert (pair.n, pair.gap.n) == (4137, 512)


# ---- planted truths on small graphs ----------------------------------------------------------------------------------


def test_fits_first_then_backbones(at: Walks) -> None:
    """Fits that are right always and never; a second backbone that is always right."""
    found = {
        "matched-final-0": planted(at, two=[at.ahead(2), at.ahead(1)]),
        "matched-final-1": planted(at, two=[at.ahead(2), at.ahead(2)]),
        "matched-stepwise-1": planted(at, unsteered=1, two=[elsewhere(at), at.current]),
    }
    made = rows_of(tables(found, {name: facts_of(name, {"two": 2}) for name in found}, TINY))
    row = made[ACCURACY("by supervision")]["matched-final, J_two: two"].estimate
    half = np.std([0.5, 1.0], ddof=1)
    assert (row.value, row.low, row.high, row.n) == pytest.approx((0.75, 0.75 - half, 0.75 + half, 2))
    alone = made[ACCURACY("by backbone")]["matched-final-0, J_two: two"].estimate
    assert (alone.value, alone.n, alone.unit) == (0.5, 72, "graph")
    answered = made[ANSWERED("by supervision")]
    for group, shares in {"matched-final": (0, 0.25, 0.75, 0), "matched-stepwise-1": (0.5, 0, 0, 0.5)}.items():
        kinds = ("stay", "one", "two", "other")
        assert [answered[f"{group}, J_two: {kind}"].estimate.value for kind in kinds] == pytest.approx(shares)
    fits = made[FITS]
    assert [fits[f"matched-final-0, J_two, fit {fit}"].estimate.value for fit in (1, 2)] == [1.0, 0.0]
    assert list(made[GAPS]) == ["J_two, seed 1"]  # seed 0 has no partner, and one pair has no mean
    assert made[GAPS]["J_two, seed 1"].estimate.value == 1.0


def test_pairs_take_the_same_graphs(at: Walks) -> None:
    """Right on the same instances but for every third graph: the gap is the share of those graphs."""
    third = at.clusters % 3 == 0
    found = {
        "matched-final-7": planted(at, one=[at.ahead(1)]),
        "matched-stepwise-7": planted(at, one=[torch.where(third, at.current, at.ahead(1))]),
    }
    (pair,) = pairs(found, {name: facts_of(name, {"one": 1}) for name in found}, TINY)
    lost = float(third[at.kept].double().mean())
    assert (pair.seed, pair.target, pair.n) == ("7", "one", int(at.kept.sum()))
    assert (pair.final, pair.stepwise) == (1.0, pytest.approx(1 - lost))
    assert pair.gap.value == pytest.approx(lost)
    assert 0 < pair.gap.low < lost < pair.gap.high < 1


def test_what_was_there_before_f(at: Walks) -> None:
    """Of the right answers of fit 1 half were there before F (by graph), of fit 2 none."""
    even = at.clusters % 2 == 0
    one = at.ahead(1)
    right = planted(
        at, one=[one, one], one_before=[torch.where(even, one, at.current), at.current],
        two=[at.current], two_before=[at.ahead(2)],
    )  # fmt: skip
    rows = rows_of(tables({"tiny-0": right}, {"tiny-0": facts_of("tiny-0", {"one": 2, "two": 1})}, TINY))[BEFORE_F]
    share = float(even[at.kept].double().mean()) / 2
    assert rows["tiny-0, J_one: read before F"].estimate.value == pytest.approx(share)
    both = rows["tiny-0, J_one: right after F, and before"]
    assert (both.estimate.value, both.n) == (pytest.approx(share), 2 * int(at.kept.sum()))
    assert rows["tiny-0, J_two: read before F"].estimate.value == 1.0
    assert "tiny-0, J_two: right after F, and before" not in rows  # nothing is right after F


def test_a_map_that_copies_the_start_is_found_out(at: Walks) -> None:
    """It is right on cycles whose length divides the number of steps, 4, and nowhere else."""
    found = {"tiny-0": planted(at, one=[at.ahead(1)], two=[at.starts])}
    made = rows_of(tables(found, {"tiny-0": facts_of("tiny-0", {"one": 1, "two": 1})}, TINY))
    cycles = [made[CYCLES][f"tiny-0, J_two, cycle of {length}"] for length in range(3, 7)]
    assert [row.estimate.value for row in cycles] == [0.0, 1.0, 0.0, 0.0]
    assert sum(row.n for row in cycles) == int(at.kept.sum())
    copying = {name: row.estimate.value for name, row in made[COPYING].items()}
    assert copying["tiny-0, J_two: answers s, where s is wrong"] == 1.0
    assert copying["tiny-0, J_two: right, where s is wrong"] == 0.0
    assert copying["tiny-0, J_one: answers s, where s is wrong"] == 0.0
    assert copying["tiny-0, J_one: right, where s is wrong"] == 1.0


def test_a_longer_fit_is_compared_with_the_short_one(at: Walks) -> None:
    half = torch.where(at.clusters % 2 == 0, at.ahead(2), at.current)
    found = {
        "matched-final-0": planted(at, two=[half], two_long=[at.ahead(2)]),
        "matched-final-1": planted(at, two=[half]),
    }
    facts = {
        "matched-final-0": facts_of("matched-final-0", {"two": 1, "two-long": 1}),
        "matched-final-1": facts_of("matched-final-1", {"two": 1}),
    }
    made = rows_of(tables(found, facts, TINY))
    gain = made[LONGER]["matched-final-0, J_two-long - J_two"]
    assert gain.estimate.value == pytest.approx(float((at.clusters % 2 == 1)[at.kept].double().mean()))
    assert made[ACCURACY("by backbone")]["matched-final-0, J_two-long: two"].estimate.value == 1.0
    assert "matched-final, J_two-long: two" not in made[ACCURACY("by supervision")]  # only one of the two has it
    # Nothing is left out of what the comparison says, and nothing is said of the backbone without a longer fit.
    assert {name.partition(", ")[0] for name in made[LONGER]} == {"matched-final-0"}
    assert {name.partition(", ")[2] for name in made[LONGER]} == {
        "J_two", "J_two-long", "J_two-long - J_two",
        *(f"J_{target}: {what}" for target in ("two", "two-long")
          for what in ("read before F", "right after F, and before")),
    }  # fmt: skip
    assert made[LONGER]["matched-final-0, J_two-long"].estimate.value == 1.0
    assert made[LONGER]["matched-final-0, J_two"].estimate.value == pytest.approx(1 - gain.estimate.value)


def test_longer_fits_of_a_pair_are_compared(at: Walks) -> None:
    """With the short fits final-only is worse in the odd graphs, with the long ones as good."""
    half = torch.where(at.clusters % 2 == 0, at.ahead(2), at.current)
    names = ("matched-final-0", "matched-stepwise-0")
    found = {name: planted(at, two=[short], two_long=[at.ahead(2)])
             for name, short in zip(names, (half, at.ahead(2)), strict=True)}  # fmt: skip
    rows = rows_of(tables(found, {name: facts_of(name, {"two": 1, "two-long": 1}) for name in names}, TINY))[LONGER]
    short, long = (rows[f"matched-final - matched-stepwise, seed 0, J_two{which}"] for which in ("", "-long"))
    odd = float((at.clusters % 2 == 1)[at.kept].double().mean())
    assert (short.estimate.value, long.estimate.value) == pytest.approx((-odd, 0.0))
    assert short.estimate.high < 0


# ---- baselines on the population of the paper ------------------------------------------------------------------------


def test_copying_scores_where_the_cycle_length_divides_the_steps(paper_at: Walks) -> None:
    found = {"d8l8-0": planted(paper_at, "matched-test")}
    rows = rows_of(tables(found, {"d8l8-0": facts_of("d8l8-0", {}, nodes=10, depth=8)}))[BASELINES]
    lengths = cycle_lengths(paper_at.graphs).gather(1, paper_at.starts[:, None])[:, 0][paper_at.kept]
    assert len(lengths) == 4137
    assert rows["copy s: two, cycle of 10"].n == 660
    for answer, steps in {"stay": 8, "one": 9, "two": 10}.items():
        for length in range(3, 11):
            row = rows[f"copy s: {answer}, cycle of {length}"]
            assert (row.estimate.value, row.n) == (float(steps % length == 0), int((lengths == length).sum()))
        divides = float((steps % lengths == 0).double().mean())
        whole = rows[f"copy s: {answer}"]
        assert whole.estimate.value == pytest.approx(divides)
        assert whole.estimate.low < 0.25 < whole.estimate.high  # lengths 3 to 10 are equally likely
        assert rows[f"copy u: {answer}"].estimate.value == float(answer == "stay")


# ---- learning curves -------------------------------------------------------------------------------------------------


def test_curves_of_the_zoo() -> None:
    zoo = open_zoo()
    backbone = find(zoo, "tiny-0", BACKBONE).key
    inputs = {BACKBONE: backbone}
    for number, fit in enumerate(zoo.every(MAP)):
        inputs |= {f"fit-{number}": fit.key} if fit.manifest.inputs[BACKBONE] == backbone else {}
    found = curves(zoo, inputs, prefix="tiny-")
    assert noted(notes(zoo, inputs, "tiny-")) == found
    one = find(zoo, "tiny-one-1@tiny-0", MAP).key
    assert curves(zoo, {BACKBONE: backbone, "one-1": one}, "tiny-") == found[:1]  # not those of other maps
    assert [(curve.target, curve.fit) for curve in found] == [("one", 1), ("one", 2), ("stay", 1), ("stay", 2)]
    for curve in found:
        assert curve.backbone == "tiny-0"
        assert curve.updates == list(range(50, 501, 50))
        # The earliest best check is the one whose map was kept.
        assert curve.kept == curve.updates[curve.scores.index(max(curve.scores))]
        stored = find(zoo, f"tiny-{curve.target}-{curve.fit}@tiny-0", MAP).json(RESULT)["selected"]
        assert (curve.kept, max(curve.scores)) == (stored["update"], stored["score"][0])


def test_curves_that_cannot_be_read(tmp_path: Path, refused: Callable[..., str]) -> None:
    store = Store(tmp_path)
    with store.write(BACKBONE, {"recipe": {"name": "toy"}, "seed": 0}) as backbone:
        backbone.json(RESULT, {})
    with store.write(
        MAP,
        {"recipe": {"name": "matched-one", "data": {"task": "graph-walk"}}, "fit": 1},
        {BACKBONE: backbone.artefact.key},
    ) as fit:
        fit.json(RESULT, {"history": [{"update": 50, "score": []}], "selected": {"update": 50}})
    inputs = {BACKBONE: backbone.artefact.key, "one-1": fit.artefact.key}
    told = refused(DamagedError, curves, store, inputs)
    assert told == f"{fit.artefact.folder / RESULT}: expected the checks of a fit, found something else"
    refused(InputError, curves, store, {**inputs, BACKBONE: "0" * 64})


# ---- what does not fit -----------------------------------------------------------------------------------------------


def test_predictions_that_do_not_fit(at: Walks, refused: Callable[..., str]) -> None:
    good, facts = planted(at, one=[at.ahead(1)]), facts_of("tiny-0", {"one": 1})

    def told(found: dict[str, Predictions], known: dict[str, ModelFacts], where: str = TINY) -> str:
        return refused(InputError, tables, found, known, where)

    assert "at least one backbone" in told({}, {})
    assert told({"tiny-0": good}, {"tiny-1": facts}) == "no facts of 'tiny-0' among tiny-1 (nearest: tiny-1)"
    other = told({"tiny-0": good}, {"tiny-0": facts}, "rings")
    assert other == "tiny-0 was not measured on 'rings' (nearest: tiny-test)"
    missing = told({"tiny-0": good}, {"tiny-0": facts_of("tiny-0", {"one": 2})})
    assert missing == "tiny-0 has no answers for 'one-2' (nearest: one-1)"
    short = {TINY: {name: nodes[:60] for name, nodes in good[TINY].items()}}
    assert "shape [60] for 'endpoint', not one for each of 432" in told({"tiny-0": short}, {"tiny-0": facts})
    deeper = facts_of("tiny-1", {"one": 1}, depth=8)
    mixed = told({"tiny-0": good, "tiny-1": good}, {"tiny-0": facts, "tiny-1": deeper})
    assert mixed == "backbones with requests of 2 and 8 steps cannot be compared"
