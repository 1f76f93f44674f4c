"""Target selection on the tiny backbone of the zoo, whose answers are known to be right, and on planted answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.quantity import QuantityTable, of_tables
from loopscope.quantity import one as one_of
from loopscope.store.zoo import open_zoo
from loopscope.studies.graph_walk.counting import share
from loopscope.studies.graph_walk.targets import AFTER_F, MOVED, conditions, gain, measure, tables
from loopscope.studies.records import ModelFacts
from loopscope.studies.trained import TrainedModel, Walks, instances, load_trained, walks
from loopscope.tasks.graph_walk import advance, all_starts
from loopscope.tasks.populations import population

CPU = torch.device("cpu")
TINY = ModelFacts("tiny", "key", loops=2, depth=2, nodes=6, heads=2, fits={"one": 2, "two": 2})
ANSWERS = ["u", "f(u)", "f^2(u)", "other"]
PAPER = ModelFacts("main", "key", loops=6, depth=8, nodes=10, heads=4, fits={"one": 1, "two": 1})


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return load_trained(open_zoo(), "tiny-0", CPU, prefix="tiny-")


@pytest.fixture(scope="module")
def at() -> Walks:
    return instances("tiny-test", 2, CPU, "three")


def planted(**nodes: Tensor) -> dict[str, Tensor]:
    """Predictions with these answers; underscores and capitals stand for what a name cannot hold."""
    return {name.replace("_", "-").replace("BEFORE", " before F"): each.to(torch.uint8) for name, each in nodes.items()}


def shares(found: list[QuantityTable]) -> dict[str, list[float]]:
    """The four shares of each table, by its condition."""
    named = {}
    for table in found:
        assert [row.label for row in table.rows] == [row.at["answer"] for row in table.rows] == ANSWERS
        (at,) = {(row.id, row.at["map"], row.at["read"], row.at["where"]) for row in table.rows}
        called = f"{at[1]} {at[2]}".removesuffix(f" {AFTER_F}")
        assert (at[0], table.title) == ("targets.answer", f"Answers, {called} ({at[3]})")
        named[called] = [row.estimate.value for row in table.rows]
    return named


def test_walks_are_all_starts_with_the_current_node(trained: TrainedModel, at: Walks) -> None:
    graphs, starts = all_starts(population("tiny-test").graphs)
    assert torch.equal(walks("tiny-test", trained).current, advance(graphs, starts, 2))
    assert torch.equal(at.ahead(2), advance(graphs, starts, 4))
    assert at.clusters.tolist() == [graph for graph in range(72) for _ in range(6)]
    assert 0 < int(at.kept.sum()) < 432


def test_each_map_selects_its_target(trained: TrainedModel, at: Walks) -> None:
    found = measure(trained, "tiny-test", ("stay", "one"))
    assert set(found) == {"tiny-test"}
    assert set(found["tiny-test"]) == {"unsteered"} | {
        f"{target}-{fit}{when}" for target in ("stay", "one") for fit in (1, 2) for when in ("", " before F")
    }
    assert all(nodes.dtype == torch.uint8 and nodes.shape == (432,) for nodes in found["tiny-test"].values())
    result = tables(found, ModelFacts.of(trained))
    table = shares(result)
    assert set(table) == {"unsteered", "stay", "one", "stay before F", "one before F", "stay moved", "one moved"}
    assert table["stay"] == [1, 0, 0, 0]
    assert table["one"] == [0, 1, 0, 0]
    for row in (row for each in result for row in each.rows):
        assert row.n == int(at.kept.sum())
        assert (row.estimate.n, row.estimate.draws, row.published) == (72, 5000, None)
    assert all(sum(four) == pytest.approx(1.0) for four in table.values())


def test_read_before_f_is_the_mapped_state_itself(trained: TrainedModel) -> None:
    found = measure(trained, "tiny-test", ("one",))["tiny-test"]
    with torch.no_grad():
        h = trained.model.embed(walks("tiny-test", trained).tokens)
        for _ in range(trained.loops):
            h = trained.model.call(h)
        for fit, step in enumerate(trained.maps["one"], 1):
            mapped = step(h)
            assert torch.equal(found[f"one-{fit} before F"].long(), trained.model.read(mapped)[:, -1].argmax(-1))
            after = trained.model.read(trained.model.call(mapped))[:, -1].argmax(-1)
            assert torch.equal(found[f"one-{fit}"].long(), after)


def test_fits_are_averaged_and_moved_states_answer_for_the_next_graph(at: Walks) -> None:
    """Planted answers: the first fit always right for one hop, the second always for two."""
    u, one, two = (at.ahead(steps) for steps in range(3))
    nodes = planted(unsteered=u, one_1=one, one_2=two, one_1BEFORE=u, one_2BEFORE=(two + 1) % 6)
    table = shares(tables({"tiny-test": nodes}, TINY))
    assert table["unsteered"] == [1, 0, 0, 0]
    assert table["one"] == [0, 0.5, 0.5, 0]
    assert table["one before F"][2] == 0
    by_hand = [(each[:-6] == one[6:])[at.kept[6:]].double().mean() for each in (one, two)]
    wrapped = conditions(nodes, TINY)["one", MOVED]
    assert torch.equal(wrapped[:, :6].long(), torch.stack([one, two])[:, -6:])
    moved = torch.stack([(wrapped[i].long() == one)[6:][at.kept[6:]].double().mean() for i in range(2)])
    assert torch.equal(moved, torch.stack(by_hand))


def test_a_difference_is_paired(at: Walks) -> None:
    """What is equal in every instance differs by 0 in every draw, however unsure each of the two is."""
    half = at.clusters % 2 == 0
    assert share("alone", "alone", half, at).estimate.high - share("alone", "alone", half, at).estimate.low > 0.1
    difference = share("difference", "difference", half, at, minus=half).estimate
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)


def test_claims_and_published_numbers() -> None:
    """The 4,110 instances of the confirmation set; J_one right on even graphs only, J_two always, unsteered never."""
    at = instances("confirmation", 8, CPU, "three")
    even = at.clusters % 2 == 0
    u, one, two = (at.ahead(steps) for steps in range(3))
    nodes = planted(unsteered=u, one_1=one.where(even, u), one_1BEFORE=u, two_1=two, two_1BEFORE=u)
    found = {"confirmation": nodes}
    made = tables(found, PAPER, paper=True)
    one_hop, two_hops = (
        one_of(of_tables(made), "targets.answer", map=which, read=AFTER_F, answer=answer)
        for which, answer in (("one", "f(u)"), ("two", "f^2(u)"))
    )
    gained = gain(found, PAPER)
    by_hand = float(even[at.kept].double().mean())
    assert one_hop.estimate.value == gained.estimate.value == pytest.approx(by_hand)
    assert (one_hop.n, one_hop.published, gained.published) == (4110, 0.996, None)
    assert (two_hops.estimate.value, two_hops.published) == (1, 0.982)
    published = {(table.title, row.label): row.published for table in made for row in table.rows if row.published}
    assert published == {
        ("Answers, unsteered (confirmation)", "f(u)"): 0.482,
        ("Answers, one (confirmation)", "f(u)"): 0.996,
        ("Answers, two (confirmation)", "f^2(u)"): 0.982,
    }
    assert all(
        row.published is None for table in tables({"confirmation": planted(unsteered=u)}, PAPER) for row in table.rows
    )


def test_a_target_without_maps(trained: TrainedModel) -> None:
    with pytest.raises(InputError, match="tiny-0 has no maps 'two'; there are one, stay"):
        measure(trained, "tiny-test")
