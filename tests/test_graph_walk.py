"""Graph walk: tokens against hand-written ones, walks and cycles on graphs one can follow by eye, error lines."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch

from loopscope.errors import InputError
from loopscope.tasks import graph_walk as gw
from loopscope.tasks.graph_walk import GraphWalk

# 0 -> 2 -> 1 -> 0 is a cycle of three, 3 <-> 4 one of two, 5 points to itself.
THREE_TWO_ONE = torch.tensor([[2, 0, 1, 4, 3, 5]])
# 0 -> 3 -> 1 -> 5 -> 4 -> 2 -> 0: one cycle through all.
RING = torch.tensor([[3, 5, 0, 1, 2, 4]])


def test_token_ids_and_rows_of_ten_nodes():
    task = GraphWalk()
    assert (task.EDGE, task.QUERY, task.ANSWER, task.BOS) == (10, 11, 12, 13)
    assert [task.DEPTH(k) for k in range(1, 9)] == [14, 15, 16, 17, 18, 19, 20, 21]
    assert (task.vocabulary, task.length) == (22, 35)
    assert task.destination_rows == (3, 6, 9, 12, 15, 18, 21, 24, 27, 30)
    assert task.source_rows == (2, 5, 8, 11, 14, 17, 20, 23, 26, 29)
    assert (task.query_row, task.start_row, task.depth_row, task.answer_row) == (31, 32, 33, 34)


def test_token_ids_and_rows_of_eight_nodes():
    task = GraphWalk(8)
    assert (task.EDGE, task.QUERY, task.ANSWER, task.BOS, task.DEPTH(8)) == (8, 9, 10, 11, 19)
    assert (task.vocabulary, task.length, task.answer_row) == (20, 29, 28)


def test_tokens_written_out_by_hand():
    tokens = GraphWalk(3).tokens(torch.tensor([[1, 2, 0], [0, 2, 1]]), torch.tensor([2, 0]), depth=5)
    assert tokens.tolist() == [
        [6, 3, 0, 1, 3, 1, 2, 3, 2, 0, 4, 2, 11, 5],
        [6, 3, 0, 0, 3, 1, 2, 3, 2, 1, 4, 0, 11, 5],
    ]
    assert tokens.dtype == torch.int64


def test_one_depth_for_each_graph():
    graphs, starts, depths = THREE_TWO_ONE.expand(3, -1), torch.tensor([0, 3, 5]), torch.tensor([1, 8, 4])
    task = GraphWalk(6)
    tokens = task.tokens(graphs, starts, depths)
    for row, depth in enumerate(depths.tolist()):
        assert torch.equal(tokens[row], task.tokens(graphs[:1], starts[row : row + 1], depth)[0])


def test_tokens_without_graphs_are_empty():
    assert GraphWalk(6).tokens(THREE_TWO_ONE[:0], torch.empty(0, dtype=torch.int64)).shape == (0, 23)


@pytest.mark.parametrize(
    ("graphs", "starts", "depth", "line"),
    [
        ([[0, 1, 2, 3]], [0], 8, "graphs have shape [1, 4], but shape [any, 3] is needed"),
        ([0, 1, 2], [0], 8, "graphs have shape [3], but shape [any, 3] is needed"),
        ([[0.0, 1.0, 2.0]], [0], 8, "graphs are torch.float32, but torch.int64 is needed"),
        ([[0, 1, 3]], [0], 8, "node 3 does not exist: it is one of 0 to 2"),
        ([[0, 1, -1]], [0], 8, "node -1 does not exist: it is one of 0 to 2"),
        ([[0, 1, 2], [2, 1, 1]], [0, 0], 8, "graph 1 is not a permutation, some node has two arrows into it: 2 1 1"),
        ([[0, 1, 2]], [3], 8, "start 3 does not exist: it is one of 0 to 2"),
        ([[0, 1, 2]], [0, 1], 8, "starts have shape [2], but shape [1] is needed"),
        ([[0, 1, 2]], [0.5], 8, "starts are torch.float32, but torch.int64 is needed"),
        ([[0, 1, 2]], [0], 0, "depth 0 cannot be requested: depths are 1 to 8"),
        ([[0, 1, 2]], [0], 9, "depth 9 cannot be requested: depths are 1 to 8"),
        ([[0, 1, 2]], [0], [9], "depth 9 does not exist: it is one of 1 to 8"),
        ([[0, 1, 2]], [0], [1, 2], "depths have shape [2], but shape [1] is needed"),
    ],
)
def test_wrong_input_is_one_line(graphs, starts, depth, line):
    depth = torch.tensor(depth) if isinstance(depth, list) else depth
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        GraphWalk(3).tokens(torch.tensor(graphs), torch.tensor(starts), depth)


def test_unchecked_tokens_are_the_same_tokens():
    graphs, starts = gw.all_starts(torch.cat([THREE_TWO_ONE, RING]))
    task = GraphWalk(6)
    assert torch.equal(task.tokens(graphs, starts), task.tokens(graphs, starts, check=False))


def test_a_walk_needs_a_node_and_steps_to_take():
    with pytest.raises(InputError, match=r"^a graph walk needs at least 1 node, asked for 0$"):
        GraphWalk(0)
    for walking in (gw.walk, gw.advance, gw.start_for):
        with pytest.raises(InputError, match=r"^a walk cannot take -1 steps: the number of steps is 0 or more$"):
            walking(RING, torch.tensor([0]), -1)


def test_all_starts_go_graph_by_graph():
    graphs, starts = gw.all_starts(torch.tensor([[1, 2, 0], [0, 2, 1]]))
    assert starts.tolist() == [0, 1, 2, 0, 1, 2]
    assert graphs.tolist() == [[1, 2, 0]] * 3 + [[0, 2, 1]] * 3


def test_walks_by_eye():
    assert gw.walk(RING, torch.tensor([0]), 7).tolist() == [[0, 3, 1, 5, 4, 2, 0, 3]]
    assert gw.walk(THREE_TWO_ONE, torch.tensor([4]), 3).tolist() == [[4, 3, 4, 3]]
    assert gw.walk(RING, torch.tensor([5]), 0).tolist() == [[5]]
    assert gw.advance(RING, torch.tensor([0]), 8).tolist() == [1]
    assert gw.start_for(RING, torch.tensor([1])).tolist() == [0]


def test_cycles_by_eye():
    both = torch.cat([THREE_TWO_ONE, RING])
    assert gw.cycle_lengths(both).tolist() == [[3, 3, 3, 2, 2, 1], [6] * 6]
    assert gw.is_ring(both).tolist() == [False, True]


def test_cycle_types_of_all_graphs_of_six_nodes():
    """The number of permutations with c_k cycles of length k is n! / prod(k^c_k c_k!)  (Cauchy)."""
    universe = torch.tensor(list(itertools.permutations(range(6))))
    sizes = torch.arange(1, 7)
    types = (gw.cycle_lengths(universe)[:, :, None] == sizes).sum(1) // sizes  # cycles of each length
    types, counts = types.unique(dim=0, return_counts=True)
    assert len(types) == 11  # partitions of 6
    for cycles, count in zip(types.tolist(), counts.tolist(), strict=True):
        ways = math.prod(k**c * math.factorial(c) for k, c in enumerate(cycles, start=1))
        assert count == math.factorial(6) // ways
    assert int(gw.is_ring(universe).sum()) == math.factorial(5)


def test_path_positions_by_eye():
    start = torch.tensor([2])
    assert [int(gw.path_position(RING, start, torch.tensor([node]))) for node in range(6)] == [1, 3, 0, 2, 5, 4]
    reads = torch.tensor([[0, 1, 2, 3, 4, 5]])
    assert gw.path_position(THREE_TWO_ONE, start, reads).tolist() == [[2, 1, 0, -1, -1, -1]]


def test_distinct_by_eye():
    assert gw.distinct(torch.tensor([[1, 2, 3], [1, 2, 1], [2, 2, 2]])).tolist() == [True, False, False]
    assert gw.distinct(torch.tensor([[4]])).tolist() == [True]


def test_crossed_labels_by_eye():
    receiver = torch.tensor([[7, 4, 6, 8, 9, 0, 2, 1, 5, 3]])
    giver = torch.tensor([[9, 0, 6, 7, 1, 4, 3, 5, 2, 8]])
    # c = 8: B = f_2(8) = 5; w = 11 mod 10 = 1: D = f_1(1) = 0, E = f_2(1) = 4.
    assert gw.crossed_labels(receiver, giver, torch.tensor([8])).tolist() == [[5, 0, 4]]
    assert gw.crossed_current(torch.tensor([0, 6, 7, 9]), 10).tolist() == [3, 9, 0, 2]


def test_codes_are_the_rows_read_as_numbers():
    assert gw.codes_of(torch.tensor([[7, 4, 6, 8, 9, 0, 2, 1, 5, 3]])).tolist() == [7468902153]
    assert gw.codes_of(torch.tensor([[7, 6, 5, 4, 3, 2, 1, 0]])).tolist() == [0o76543210]
    assert gw.codes_of(torch.tensor([list(range(14, -1, -1))])).item() < 2**63


@pytest.mark.parametrize("nodes", [16, 20])
def test_graphs_too_large_for_a_code(nodes):
    line = f"^graphs of {nodes} nodes have no int64 code: the largest that have one are 15 nodes$"
    with pytest.raises(InputError, match=line):
        gw.codes_of(torch.arange(nodes).unsqueeze(0))


def test_nothing_is_held_out_by_an_empty_list():
    assert gw.is_held_out(RING, torch.empty(0, dtype=torch.int64)).tolist() == [False]


def test_no_value_is_read_back_and_the_device_is_kept():
    """Tensors on the meta device have no values: whatever works on them has fixed shapes and never waits for a GPU."""
    graphs = torch.empty(7, 10, dtype=torch.int64, device="meta")
    starts = torch.empty(7, dtype=torch.int64, device="meta")
    held_out = torch.empty(100, dtype=torch.int64, device="meta")
    results = {
        "tokens": (GraphWalk().tokens(graphs, starts, starts, check=False), (7, 35)),
        "tokens, one depth": (GraphWalk().tokens(graphs, starts, 8, check=False), (7, 35)),
        "all_starts": (gw.all_starts(graphs)[1], (70,)),
        "walk": (gw.walk(graphs, starts, 4), (7, 5)),
        "start_for": (gw.start_for(graphs, starts), (7,)),
        "is_ring": (gw.is_ring(graphs), (7,)),
        "path_position": (gw.path_position(graphs, starts, graphs), (7, 10)),
        "distinct": (gw.distinct(graphs), (7,)),
        "crossed_labels": (gw.crossed_labels(graphs, graphs, starts), (7, 3)),
        "is_held_out": (gw.is_held_out(graphs, held_out), (7,)),
    }
    for name, (result, shape) in results.items():
        assert result.device.type == "meta", name
        assert result.shape == shape, name
