"""Streams: the published numbers of the hash, fair permutations, and nothing held out ever drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.tasks.graph_walk import codes_of
from loopscope.tasks.populations import held_out
from loopscope.training.streams import GraphStream, below, bits, stream_key


def test_splitmix64_gives_its_published_numbers() -> None:
    """The first outputs for seed 1234567, as listed for the reference implementation."""
    wanted = [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821
    ]  # fmt: skip
    found = bits(torch.tensor(1234567), torch.arange(5))
    assert [int(x) % 2**64 for x in found] == wanted


@given(key=st.integers(-(2**63), 2**63 - 1), counter=st.integers(0, 2**40))
def test_bits_against_python_integers(key: int, counter: int) -> None:
    x = (key + (counter + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    assert int(bits(torch.tensor(key), torch.tensor(counter))) % 2**64 == x ^ (x >> 31)


def test_numbers_below_are_uniform() -> None:
    counts = torch.bincount(below(10, bits(torch.tensor(stream_key("test")), torch.arange(100_000))), minlength=10)
    # Chi-squared with 9 degrees of freedom stays below 27.9 in 999 of 1,000 fair streams; this stream is fixed.
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 27.9


@pytest.mark.parametrize("which", ["main", "matched", "eight"])
@settings(max_examples=10)
@given(update=st.integers(0, 100_000), seed=st.integers(0, 50))
def test_nothing_held_out_is_drawn(which: str, update: int, seed: int) -> None:
    nodes = 8 if which == "eight" else 10
    codes = held_out(which)  # type: ignore[arg-type]
    graphs = GraphStream("test", [seed], 64, nodes, codes).graphs(torch.tensor(update))[0]
    assert graphs.shape == (64, nodes)
    assert torch.equal(graphs.sort(-1).values, torch.arange(nodes).expand(64, -1))
    assert not set(codes_of(graphs).tolist()) & set(codes.tolist())


def test_rejection_skips_and_keeps_the_order() -> None:
    """Withholding the first graph of a batch moves the others up; the rest of the batch is as before."""
    update = torch.tensor(3)
    free = GraphStream("test", [0], 16, 10, torch.empty(0, dtype=torch.int64)).graphs(update)[0]
    barred = codes_of(free[:1])
    moved = GraphStream("test", [0], 16, 10, barred).graphs(update)[0]
    assert torch.equal(moved[:-1], free[1:])


def test_a_seed_does_not_depend_on_its_neighbours() -> None:
    update, codes = torch.tensor(7), held_out("main")
    together, alone = GraphStream("a", [3, 4, 5], 32, 10, codes), GraphStream("a", [4], 32, 10, codes)
    assert torch.equal(together.graphs(update)[1], alone.graphs(update)[0])
    assert torch.equal(together.starts(update)[1], alone.starts(update)[0])
    assert torch.equal(together.depths(update, 8)[1], alone.depths(update, 8)[0])


def test_seeds_names_and_updates_differ() -> None:
    codes = held_out("main")
    seen = {
        tuple(codes_of(GraphStream(name, [seed], 8, 10, codes).graphs(torch.tensor(update))[0]).tolist())
        for name in ("a", "b")
        for seed in (0, 1)
        for update in (0, 1)
    }
    assert len(seen) == 8
    depths = GraphStream("a", [0], 4096, 10, codes).depths(torch.tensor(0), 8)
    assert sorted(set(depths.flatten().tolist())) == list(range(1, 9))
