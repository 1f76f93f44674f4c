"""Native trajectories: planted walks and readouts, a plain loop over a model, and the published increments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.model import LoopedTransformer, ModelConfig, attention_pattern, causal
from loopscope.store.zoo import open_zoo
from loopscope.studies.graph_walk.trajectories import (
    Trajectory,
    by_label,
    frequencies,
    increments,
    labels,
    measure,
    modes,
    positions,
    read_native,
    sublayers,
    tables,
    trajectory,
)
from loopscope.studies.records import ModelFacts
from loopscope.studies.trained import TrainedModel, load_trained
from loopscope.tasks.graph_walk import GraphWalk, advance, all_starts, walk
from loopscope.tasks.populations import population

CPU = torch.device("cpu")
D8L6 = ModelFacts("planted", "", loops=6, depth=8, nodes=10, heads=4, fits={})
RINGS, STARTS = all_starts(population("rings").graphs)


@pytest.fixture(scope="module")
def tiny() -> TrainedModel:
    return load_trained(open_zoo(), "tiny-0", CPU, prefix="tiny-")


def walker(steps: list[int]) -> Tensor:
    """The nodes a perfect walker reads out: `steps[t]` steps from the start after loop t."""
    return torch.stack([advance(RINGS, STARTS, taken) for taken in steps])


def reading(places: Tensor) -> Tensor:
    """The nodes at these positions [reads, 5120]."""
    return walk(RINGS, STARTS, 9).gather(1, places.T).T


# ---- modes and increments --------------------------------------------------------------------------------------------


def test_a_planted_walk_is_found() -> None:
    steps = [0, 1, 3, 5, 6, 7, 8, 8, 9]
    nodes = walker(steps)
    assert torch.equal(positions(nodes), torch.tensor(steps)[:, None].expand(-1, 5120))
    found = trajectory(nodes, loops=6)
    assert found.modes == steps
    assert found.increments == [1, 2, 2, 1, 1, 1, 0, 1]
    assert (found.endpoint, found.retained, found.instances) == (1.0, 0.0, 5120)
    assert found.walks_one_and_two
    assert not found.holds
    assert trajectory(nodes[:-1], loops=6).holds


def test_the_rule_of_selection() -> None:
    def chosen(steps: list[int]) -> bool:
        return trajectory(walker(steps), loops=6).walks_one_and_two

    assert chosen([5, 0, 2, 4, 6, 7, 8])  # what happens before loop 1 does not count
    assert chosen([0, 2, 2, 4, 6, 7, 8])  # standing still is allowed
    assert not chosen([0, 0, 2, 4, 6, 8, 8])  # twos alone
    assert not chosen([0, 3, 4, 5, 6, 7, 8])  # ones alone
    assert not chosen([0, 0, 3, 4, 6, 7, 8])  # a three
    assert not chosen([0, 1, 3, 5, 6, 7, 6])  # a step back is nine forward


def test_ties_have_no_mode() -> None:
    half = torch.cat([torch.full((3, 10), 4), torch.full((3, 10), 7)], 1)
    half[1, 0] = 7
    found = modes(frequencies(half, 10))
    assert found == [None, 7, None]
    assert increments([3, None, 5, 4], 10) == [None, None, 9]


PUBLISHED: dict[
    int, list[int | None]
] = {  # modes at loops 1..8 of the twelve D8L8 backbones, from their increments and the endpoint 8
    0: [0, 0, 0, 1, 1, 8, 8, 8],
    1: [1, 2, 3, 4, 5, 6, 7, 8],
    2: [1, 2, 2, 2, 0, 7, 8, 8],
    3: [1, 2, 3, 4, 5, 6, 7, 8],
    4: [2, 4, 4, 6, 8, 8, 8, 8],
    5: [0, 2, 4, 6, 8, 8, 8, 8],
    6: [1, 2, 3, None, 6, 7, 8, 8],
    7: [1, 2, 3, 4, 5, 6, 7, 8],
    8: [1, 2, 3, 4, 5, 6, 7, 8],
    9: [0, 2, 4, 6, 8, 8, 8, 8],
    10: [1, 2, 3, 4, 5, 6, 7, 8],
    11: [1, 2, 4, 6, 7, 8, 8, 8],
}


def test_the_published_backbones_walk_in_ones_and_in_twos() -> None:
    def walk_of(found: list[int | None]) -> str:
        whole = [None, *found]
        return Trajectory(8, 8, whole, increments(whole, 10), 1.0, 1.0, 5120).walk

    assert {seed: walk_of(found) for seed, found in PUBLISHED.items()} == (
        dict.fromkeys((0, 2), "neither")
        | dict.fromkeys((1, 3, 6, 7, 8, 10, 11), "one")
        | dict.fromkeys((4, 5, 9), "two")
    )


def test_a_walk_is_judged_before_it_arrives() -> None:
    def walk_of(steps: list[int]) -> str:
        return trajectory(walker(steps), loops=6).walk

    assert walk_of([0, 4, 6, 8, 9, 0, 1]) == "two"  # three ones, but after the arrival at 8
    assert walk_of([0, 4, 5, 7, 8, 8, 8]) == "one"
    assert walk_of([0, 4, 5, 7, 7, 8, 8]) == "neither"  # two ones out of four are no majority
    assert walk_of([0, 8, 8, 8, 8, 8, 8]) == "neither"  # there at once: nothing to count
    assert walk_of([0, 0, 2, 4, 6, 7, 9]) == "two"  # never there: all increments count
    assert walk_of([8, 1, 2, 3, 4, 5, 6]) == "one"  # loop 0 is before the walk


# ---- labels ----------------------------------------------------------------------------------------------------------


def test_a_label_passed_for_free_is_found_out() -> None:
    """At loop t a walker is one ahead if its path so far contains 4: tenths of all instances, all of them explained."""
    path = walk(RINGS, STARTS, 9)
    places = torch.stack([t + (path[:, : t + 1] == 4).any(1).long() for t in range(8)])
    found = labels(reading(places))
    assert [each.loop for each in found] == list(range(1, 8))
    for t, each in enumerate(found, 1):
        assert (each.behind, each.ahead, each.label) == (t, t + 1, 4)
        assert (each.at_behind, each.at_ahead) == pytest.approx(((9 - t) / 10, (t + 1) / 10))
        assert each.passed == pytest.approx(1.0)
        assert max(each.by_step) < 0.5
    assert modes(frequencies(places, 10))[4] is None  # the tie at loop 4


def test_a_start_that_is_ahead_is_found_out() -> None:
    """Starts 1, 3 and 7 are ahead, once around the end of the ring: the start explains all, no single label does."""
    fast = torch.isin(STARTS, torch.tensor([1, 3, 7]))
    nodes = reading(torch.stack([torch.zeros_like(STARTS), (9 + 2 * fast.long()) % 10, 3 - fast.long()]))
    first, second = labels(nodes)
    assert [(each.behind, each.ahead) for each in (first, second)] == [(9, 1), (2, 3)]
    assert [each.at_ahead for each in (first, second)] == pytest.approx([0.3, 0.7])
    for each in (first, second):
        assert each.by_step[0] == pytest.approx(1.0)
        assert max(each.by_step[1:]) < 0.05
        assert each.passed < 0.3
    assert first.passed == 0.0  # every path to position 9 contains every label


def test_chance_is_explained_by_nothing() -> None:
    coin = torch.rand(len(STARTS), generator=torch.Generator().manual_seed(0)) < 0.2
    (only,) = labels(reading(torch.stack([torch.zeros_like(STARTS), 2 + coin.long(), torch.full_like(STARTS, 4)])))
    assert (only.loop, only.behind, only.ahead) == (1, 2, 3)
    assert only.at_ahead == pytest.approx(float(coin.double().mean()))
    assert max(*only.by_step, only.passed) < 0.01


def test_frequencies_by_label() -> None:
    """The start decides the position at loop 0, u = f^8(s) at loop 1."""
    current = advance(RINGS, STARTS, 8)
    nodes = reading(torch.stack([STARTS, current]))
    one_each = torch.eye(10, dtype=torch.float64)
    assert torch.equal(by_label(nodes)[:, 0], one_each)
    assert torch.equal(by_label(nodes, 8)[:, 1], one_each)
    for step in (0, 3):
        torch.testing.assert_close(by_label(nodes, step).mean(0), frequencies(positions(nodes), 10))


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_tables_of_planted_readouts() -> None:
    """Even rings end at the target and stay; odd ones leave it after the trained loops."""
    odd = torch.arange(len(STARTS)) // 10 % 2
    steps = [torch.full_like(STARTS, step) for step in (0, 1, 2, 4, 6, 7, 8)] + [8 + odd] * 3
    accuracy, most = tables({"rings": {"native": reading(torch.stack(steps)).to(torch.uint8)}}, D8L6)
    assert [row.label for row in accuracy.rows] == ["endpoint, loop 6", "retained, loop 9"]
    assert [row.estimate.value for row in accuracy.rows] == [1.0, 0.5]
    endpoint, retained = (row.estimate for row in accuracy.rows)
    assert (endpoint.low, endpoint.high) == (1.0, 1.0)
    half_width = 1.96 * (0.25 / 512) ** 0.5  # of 512 graphs, each right as a whole or not at all
    assert retained.high - retained.low == pytest.approx(2 * half_width, rel=0.1)
    assert {(row.n, row.estimate.n, row.estimate.draws, row.published) for row in accuracy.rows} == {
        (5120, 512, 5000, None)
    }
    assert [row.label for row in most.rows] == [
        f"loop {loop}: position {place}" for loop, place in enumerate([0, 1, 2, 4, 6, 7, 8])
    ]


def test_where_in_a_call_the_reading_changes() -> None:
    """Planted: at even starts after layer 1's MLP, at odd ones after layer 2's attention; loop 2 changes nothing."""
    few = 20 * 10
    native = walker([0, 1, 1, 3, 4, 5, 8])
    old, new = native[:-1, None, :few], native[1:, None, :few]
    at_sublayer = torch.where(STARTS[:few] % 2 == 0, 1, 2)
    layers = torch.where(torch.arange(4)[:, None] >= at_sublayer, new, old)
    *_, inside = tables({"rings": {"native": native.to(torch.uint8), "layers": layers.to(torch.uint8)}}, D8L6)
    names = [f"loop {loop}, {name}" for loop in (1, 3, 4, 5, 6) for name in sublayers(2)[:3]]
    assert [row.label for row in inside.rows] == names
    assert [row.estimate.value for row in inside.rows] == [0.0, 0.5, 1.0] * 5
    assert {(row.n, row.estimate.n) for row in inside.rows} == {(few, 20)}
    assert "20 graphs" in inside.note


def test_a_change_of_some_readings_only_is_counted_among_those() -> None:
    """Only starts 0 to 3 move at loop 1; others read the same node throughout and say nothing."""
    native = reading(torch.stack([torch.zeros_like(STARTS), (STARTS < 4).long()] + [torch.full_like(STARTS, 8)] * 5))
    layers = native[1:, None].expand(-1, 4, -1).clone()
    layers[0, 0] = native[0]
    *_, inside = tables({"rings": {"native": native.to(torch.uint8), "layers": layers.to(torch.uint8)}}, D8L6)
    assert [(row.n, row.estimate.value) for row in inside.rows[:3]] == [(2048, 0.0), (2048, 1.0), (2048, 1.0)]


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_readouts_are_those_of_the_model() -> None:
    """A small model with random weights, loop by loop."""
    config = ModelConfig(vocabulary=22, classes=10, loops=2, layers=1, width=16, heads=2, mlp=32, positions=35)
    model = LoopedTransformer(config).eval()
    found = read_native(model, CPU, loops=3)
    assert found.shape == (4, 5120)
    graphs, starts = RINGS[:40], STARTS[:40]
    with torch.no_grad():
        h = model.embed(GraphWalk(10).tokens(graphs, starts, 8))
        for loop in range(4):
            assert torch.equal(found[loop, :40], model.read(h)[:, -1].argmax(-1))
            h = model.call(h)


def test_readouts_inside_calls_are_those_of_the_layers(tiny: TrainedModel) -> None:
    """Against the layers' own pieces over all rows; the last sublayer of a call reads what the call reads."""
    found = measure(tiny, "tiny-test", loops=4, layered=70)["tiny-test"]
    native, inside = found["native"], found["layers"]
    assert (native.dtype, inside.dtype) == (torch.uint8, torch.uint8)
    assert native.shape == (5, 432)
    assert inside.shape == (4, 4, 420)
    assert torch.equal(inside[:, -1], native[1:, :420])
    assert not torch.equal(inside[:, 0], inside[:, -1])

    model = tiny.model
    rows = torch.arange(GraphWalk(6).length)
    graphs, starts = all_starts(population("tiny-test").graphs)
    with torch.no_grad():
        x = model.embed(GraphWalk(6).tokens(graphs, starts, tiny.depth))
        assert torch.equal(native[0].long(), model.read(x[:, -1]).argmax(-1))
        for loop in range(4):
            for i, layer in enumerate(model.layers):
                q, k, v = layer.project(x, rows)
                x = x + layer.attn_out(attention_pattern(q, k, layer.scale, causal(rows, rows)) @ v)
                assert torch.equal(inside[loop, 2 * i].long(), model.read(x[:420, -1]).argmax(-1))
                x = x + layer.mlp_out(x)
                assert torch.equal(inside[loop, 2 * i + 1].long(), model.read(x[:420, -1]).argmax(-1))
            assert torch.equal(native[loop + 1].long(), model.read(x[:, -1]).argmax(-1))


def test_the_tiny_backbone_end_to_end(tiny: TrainedModel) -> None:
    """Its answers are right at its last trained loop; a population that is no set of rings has positions of its own."""
    predictions = measure(tiny, "tiny-test", loops=3)
    assert predictions["tiny-test"]["layers"].shape == (3, 4, 432)  # all of its graphs, which are fewer than asked for
    found = trajectory(predictions["tiny-test"]["native"], tiny.loops, "tiny-test", tiny.depth)
    assert (found.endpoint, found.target) == (1.0, 2)
    accuracy, _, inside = tables(predictions, ModelFacts.of(tiny), "tiny-test")
    assert [row.label for row in accuracy.rows] == ["endpoint, loop 2", "retained, loop 3"]
    assert [row.estimate.value for row in accuracy.rows] == [found.endpoint, found.retained]
    assert len(inside.rows) % 3 == 0


def test_layers_can_be_left_out(tiny: TrainedModel) -> None:
    alone = measure(tiny, "tiny-test", loops=2, layered=0)["tiny-test"]
    assert set(alone) == {"native"}
    assert torch.equal(alone["native"], measure(tiny, "tiny-test", loops=2)["tiny-test"]["native"])
    assert len(tables({"tiny-test": alone}, ModelFacts.of(tiny), "tiny-test")) == 2


def test_mistakes(tiny: TrainedModel) -> None:
    with pytest.raises(InputError, match=r"cannot read 1 loops: tiny-0 is trained for 2 \(nearest: 2\)"):
        measure(tiny, "tiny-test", loops=1)
    with pytest.raises(InputError, match="cannot read -1 graphs layer by layer"):
        measure(tiny, "tiny-test", loops=2, layered=-1)
    for n in (15, 5130):
        with pytest.raises(InputError, match=f"{n} readouts are not all starts of the first graphs of 'rings'"):
            positions(torch.zeros(2, n, dtype=torch.int64))
