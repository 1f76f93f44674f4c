"""The programs of the mechanism experiments, and how their answers are counted."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch

from loopscope.errors import InputError
from loopscope.program import Program
from loopscope.studies.graph_walk.counting import share
from loopscope.studies.graph_walk.mechanism import battery, crossing_runs, exchange, extra_call
from loopscope.studies.trained import Walks, first_graphs, instances

CPU = torch.device("cpu")


def test_the_battery_is_what_the_paper_reports() -> None:
    runs = battery()
    assert len(runs) == 29
    assert len(set(runs.values())) == 29
    texts = {
        "unsteered": "F7",
        "steered": "F6 J:one F",
        "pattern 2": "F6 J:one F[layer[2].head[2].row[-1].pattern<-(F6 J:one F)@giver]",
        "output 2": "F6 J:one F[layer[2].head[2].row[-1].z<-(F6 J:one F)@giver]",
        "J->0 all": "F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]",
        "J->0 1": "F6 F[layer[2].head[1].row[-1].pattern<-(F6 J:one F)]",
        "0->J all": "F6 J:one F[layer[2].row[-1].pattern<-(F7)]",
        "two->one": "F6 J:one F[layer[2].pattern<-(F6 J:two F)]",
        "one->two": "F6 J:two F[layer[2].pattern<-(F6 J:one F)]",
        "broken": "F6 J:one F[layer[2].row[-1].q<-(F6 J:one F)@shifted]",
        "restored 3": "F6 J:one F[layer[2].row[-1].q<-(F6 J:one F)@shifted; layer[2].head[3].row[-1].z<-(F6 J:one F)]",
    }
    for name, text in texts.items():
        assert runs[name] == Program.parse(text)


def test_the_runs_fit_any_size() -> None:
    runs = crossing_runs(loops=2, heads=2, one="one-2")
    assert len(runs) == 3 + 2 * 2 + 3 * 3
    assert {name for name in runs if name.startswith("restored")} == {"restored all", "restored 0", "restored 1"}
    assert str(runs["0->J 1"]) == "F2 J:one-2 F[layer[2].head[1].row[-1].pattern<-(F3)]"


def test_an_exchange_of_several_parts_in_both_layers() -> None:
    made = exchange(extra_call(2, "a"), extra_call(2), ("q", "k"), (1, 2))
    parts = "; ".join(f"layer[{layer}].{part}<-(F3)" for layer in (1, 2) for part in "qk")
    assert str(made) == f"F2 J:a F[{parts}]"


def four_instances(clusters: list[int]) -> Walks:
    """Walks of which only the graph of each instance matters."""
    at = first_graphs(instances("tiny-test", 2, CPU), 1)
    few = Walks(*(getattr(at, part.name)[:4] for part in fields(at)))
    return replace(few, clusters=torch.tensor(clusters))


def test_fits_are_averaged_after_their_own_denominators() -> None:
    """Fit 1 is right in 3 of 4 instances that count, fit 2 in 1 of 2: 0.625, where pooling would say 4 of 6."""
    hits = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()
    counted = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1]]).bool()
    row = share("some.share", "either", hits, four_instances([0, 0, 1, 1]), counted=counted)
    assert row.estimate.value == 0.625
    assert row.n == 2  # of the fit with the fewest
    assert (row.estimate.unit, row.estimate.n) == ("graph", 2)


def test_too_few_graphs_have_no_interval_and_none_no_value() -> None:
    hits = torch.tensor([[1, 0, 1, 0]]).bool()
    walks = four_instances([0, 0, 1, 1])
    one_graph = share("some.share", "one graph", hits, walks, counted=torch.tensor([[1, 1, 0, 0]]).bool())
    assert (one_graph.estimate.value, one_graph.n) == (0.5, 2)
    assert math.isnan(one_graph.estimate.low)
    assert math.isnan(one_graph.estimate.high)
    none = share("some.share", "none", hits, walks, counted=torch.zeros(1, 4, dtype=torch.bool))
    assert none.n == 0
    assert math.isnan(none.estimate.value)


def test_the_first_graphs() -> None:
    everyone = instances("tiny-test", 2, CPU)
    assert first_graphs(everyone, None) is everyone
    few = first_graphs(everyone, 3)
    assert few.clusters.tolist() == [graph for graph in range(3) for _ in range(6)]
    assert torch.equal(few.ahead(2), everyone.ahead(2)[:18])
    for asked, near in ((0, 1), (73, 72)):
        with pytest.raises(InputError, match=rf"^cannot take {asked} of 72 graphs \(nearest: {near}\)$"):
            first_graphs(everyone, asked)
