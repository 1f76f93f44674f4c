"""Native trajectories: planted walks, and a plain loop over a model."""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.experiments.trajectories import frequencies, increments, modes, positions, read_native, trajectory
from loopscope.model import LoopedTransformer, ModelConfig
from loopscope.tasks.graph_walk import GraphWalk, advance, all_starts
from loopscope.tasks.populations import population


def walker(steps: list[int]) -> Tensor:
    """The nodes a perfect walker reads out: `steps[t]` steps from the start after loop t."""
    graphs, starts = all_starts(population("rings").graphs)
    return torch.stack([advance(graphs, starts, taken) for taken in steps])


def test_a_planted_walk_is_found() -> None:
    steps = [0, 1, 3, 5, 6, 7, 8, 8, 9]
    nodes = walker(steps)
    assert torch.equal(positions(nodes), torch.tensor(steps)[:, None].expand(-1, 5120))
    found = trajectory(nodes, loops=6)
    assert found.modes == steps
    assert found.increments == [1, 2, 2, 1, 1, 1, 0, 1]
    assert (found.endpoint, found.retained, found.instances) == (1.0, 0.0, 5120)
    assert found.walks_one_and_two


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


def test_readouts_are_those_of_the_model() -> None:
    """A small model with random weights, loop by loop."""
    config = ModelConfig(vocabulary=22, classes=10, loops=2, layers=1, width=16, heads=2, mlp=32, positions=35)
    model = LoopedTransformer(config).eval()
    found = read_native(model, torch.device("cpu"), loops=3)
    assert found.shape == (4, 5120)
    graphs, starts = all_starts(population("rings").graphs[:4])
    with torch.no_grad():
        h = model.embed(GraphWalk(10).tokens(graphs, starts, 8))
        for loop in range(4):
            assert torch.equal(found[loop, :40], model.read(h)[:, -1].argmax(-1))
            h = model.call(h)
