"""Graph walk: what must hold for every graph, against the slowest and plainest way to compute it."""

from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from loopscope.tasks import graph_walk as gw
from loopscope.tasks.graph_walk import GraphWalk


@st.composite
def graph_batches(draw, largest=12):
    """Successor rows of 1 to 5 graphs on the same number of nodes."""
    nodes = draw(st.integers(1, largest))
    rows = draw(st.lists(st.permutations(range(nodes)), min_size=1, max_size=5))
    return torch.tensor(rows)


@st.composite
def placed_batches(draw):
    """Graphs with one node each."""
    graphs = draw(graph_batches())
    batch, nodes = graphs.shape
    return graphs, torch.tensor(draw(st.lists(st.integers(0, nodes - 1), min_size=batch, max_size=batch)))


def step_by_step(row, node, steps):
    for _ in range(steps):
        node = row[node]
    return node


def cycle_of(row, node):
    cycle = [node]
    while row[cycle[-1]] != node:
        cycle.append(row[cycle[-1]])
    return cycle


@given(placed_batches(), st.integers(0, 30))
def test_a_walk_is_the_successor_iterated(placed, steps):
    graphs, starts = placed
    path = gw.walk(graphs, starts, steps)
    assert path.shape == (len(graphs), steps + 1)
    for row, start, nodes in zip(graphs.tolist(), starts.tolist(), path.tolist(), strict=True):
        assert nodes == [step_by_step(row, start, t) for t in range(steps + 1)]
    assert torch.equal(gw.advance(graphs, starts, steps), path[:, -1])


@given(placed_batches(), st.integers(0, 20))
def test_start_for_inverts_the_walk(placed, steps):
    graphs, nodes = placed
    assert torch.equal(gw.advance(graphs, gw.start_for(graphs, nodes, steps), steps), nodes)
    assert torch.equal(gw.start_for(graphs, gw.advance(graphs, nodes, steps), steps), nodes)


@given(graph_batches())
def test_cycles_against_walking_until_home(graphs):
    nodes = graphs.shape[1]
    found = graphs.tolist(), gw.cycle_lengths(graphs).tolist(), gw.is_ring(graphs).tolist()
    for row, lengths, ring in zip(*found, strict=True):
        assert lengths == [len(cycle_of(row, node)) for node in range(nodes)]
        assert ring == (len({frozenset(cycle_of(row, node)) for node in range(nodes)}) == 1)


@given(placed_batches(), st.data())
def test_path_position_is_the_place_on_the_cycle(placed, data):
    graphs, starts = placed
    batch, nodes = graphs.shape
    reads = torch.tensor(
        data.draw(
            st.lists(
                st.lists(st.integers(0, nodes - 1), min_size=3, max_size=3),
                min_size=batch,
                max_size=batch,
            )
        )
    )
    positions = gw.path_position(graphs, starts, reads)
    for row, start, asked, found in zip(
        graphs.tolist(), starts.tolist(), reads.tolist(), positions.tolist(), strict=True
    ):
        cycle = cycle_of(row, start)
        assert found == [cycle.index(node) if node in cycle else -1 for node in asked]
    assert torch.equal(gw.path_position(graphs, starts, reads[:, 0]), positions[:, 0])


@given(placed_batches(), st.integers(1, 8))
def test_tokens_parse_back(placed, depth):
    graphs, starts = placed
    task = GraphWalk(graphs.shape[1])
    tokens = task.tokens(graphs, starts, depth)
    assert tokens.shape == (len(graphs), task.length)
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < task.vocabulary
    for row, start, line in zip(graphs.tolist(), starts.tolist(), tokens.tolist(), strict=True):
        assert line[0] == task.BOS
        arrows = [tuple(line[1 + 3 * j : 4 + 3 * j]) for j in range(task.nodes)]
        assert arrows == [(task.EDGE, source, target) for source, target in enumerate(row)]
        assert line[-4:] == [task.QUERY, start, task.BOS + depth, task.ANSWER]
        assert [line[place] for place in task.destination_rows] == row
        assert [line[place] for place in task.source_rows] == list(range(task.nodes))
        assert [line[task.query_row], line[task.start_row], line[task.depth_row], line[task.answer_row]] == line[-4:]


@given(graph_batches())
def test_all_starts_is_every_start_of_every_graph(graphs):
    repeated, starts = gw.all_starts(graphs)
    expected = [(row, start) for row in graphs.tolist() for start in range(graphs.shape[1])]
    assert list(zip(repeated.tolist(), starts.tolist(), strict=True)) == expected


@given(st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=1))
def test_distinct_is_as_many_labels_as_places(labels):
    assert gw.distinct(torch.tensor(labels)).tolist() == [len(set(row)) == 4 for row in labels]


@given(placed_batches(), st.randoms(use_true_random=False))
def test_label_rules_against_brute_force(placed, shuffler: random.Random):
    graphs, currents = placed
    nodes = graphs.shape[1]
    givers = torch.tensor([shuffler.sample(range(nodes), nodes) for _ in graphs])
    three, five = gw.distinct(gw.walk(graphs, currents, 2)), gw.distinct(gw.walk(graphs, currents, 4))
    crossed = gw.distinct(gw.crossed_labels(graphs, givers, currents))
    for i, (f2, f1, c) in enumerate(zip(graphs.tolist(), givers.tolist(), currents.tolist(), strict=True)):
        assert bool(three[i]) == (len(cycle_of(f2, c)) >= 3)
        assert bool(five[i]) == (len(cycle_of(f2, c)) >= 5)
        w = (c + 3) % nodes
        assert bool(crossed[i]) == (len({f2[c], f1[w], f2[w]}) == 3)


@given(graph_batches(largest=15))
def test_codes_are_numbers_of_so_many_digits_and_tell_graphs_apart(graphs):
    codes, nodes = gw.codes_of(graphs), graphs.shape[1]
    digits = torch.stack([codes // nodes**place % nodes for place in reversed(range(nodes))], 1)
    assert torch.equal(digits, graphs)
    assert len(set(codes.tolist())) == len(set(map(tuple, graphs.tolist())))
    by_code = sorted(zip(codes.tolist(), graphs.tolist(), strict=True))
    assert [row for _, row in by_code] == sorted(graphs.tolist())


@given(
    st.integers(1, 6).flatmap(
        lambda nodes: st.tuples(
            st.lists(st.permutations(range(nodes)), min_size=1, max_size=20),
            st.lists(st.permutations(range(nodes)), max_size=20),
        )
    )
)
def test_rejection_is_set_membership(case):
    asked, withheld = case
    held_out = torch.tensor(sorted({gw.codes_of(torch.tensor([row])).item() for row in withheld}), dtype=torch.int64)
    found = gw.is_held_out(torch.tensor(asked), held_out).tolist()
    assert found == [row in withheld for row in asked]
