"""Target selection on the tiny backbone of the zoo, whose answers are known to be right."""

from __future__ import annotations

import pytest
import torch

from loopscope.errors import InputError
from loopscope.experiments.subject import Subject, Walks, load_subject, walks
from loopscope.experiments.targets import answers, measure
from loopscope.tasks.graph_walk import advance, all_starts
from loopscope.tasks.populations import population
from loopscope.zoo import open_zoo


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load_subject(open_zoo(), "tiny-0", torch.device("cpu"), prefix="tiny-")


@pytest.fixture(scope="module")
def at(subject: Subject) -> Walks:
    return walks("tiny-test", subject, rule="three")


def test_walks_are_all_starts_with_the_current_node(subject: Subject, at: Walks) -> None:
    graphs, starts = all_starts(population("tiny-test").graphs)
    assert torch.equal(at.current, advance(graphs, starts, 2))
    assert torch.equal(at.ahead(2), advance(graphs, starts, 4))
    assert at.clusters.tolist() == [graph for graph in range(72) for _ in range(6)]
    assert 0 < int(at.kept.sum()) < 432


def test_each_map_selects_its_target(subject: Subject, at: Walks) -> None:
    found = measure(subject, at, ("stay", "one"))
    assert set(found) == {"unsteered"} | {
        f"{target}-{fit}{when}" for target in ("stay", "one") for fit in (1, 2) for when in ("", " before F")
    }
    table = answers(found, at)
    assert set(table) == {"unsteered", "stay", "one", "stay before F", "one before F", "stay moved", "one moved"}
    assert table["stay"]["u"].value == 1.0
    assert table["one"]["one"].value == 1.0
    for row in table.values():
        assert sum(estimate.value for estimate in row.values()) == pytest.approx(1.0)
        assert all(estimate.n == 72 for estimate in row.values())


def test_fits_are_averaged_and_moved_states_answer_for_the_next_graph(subject: Subject, at: Walks) -> None:
    """Planted answers: the first fit always right for one hop, the second always for two."""
    planted = {"unsteered": at.current, "one-1": at.ahead(1), "one-2": at.ahead(2)}
    table = answers({name: nodes.to(torch.uint8) for name, nodes in planted.items()}, at)
    assert [table["unsteered"][answer].value for answer in ("u", "one", "two", "other")] == [1, 0, 0, 0]
    assert [table["one"][answer].value for answer in ("u", "one", "two", "other")] == [0, 0.5, 0.5, 0]
    moved = [nodes.roll(6) for nodes in (at.ahead(1), at.ahead(2))]
    by_hand = torch.stack([(nodes == at.ahead(1))[at.kept].double().mean() for nodes in moved]).mean()
    assert table["one moved"]["one"].value == pytest.approx(float(by_hand))


def test_a_target_without_maps(subject: Subject) -> None:
    with pytest.raises(InputError, match="tiny-0 has no maps 'two'; there are one, stay"):
        subject.named("two")
