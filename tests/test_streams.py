"""Streams: the published numbers of the hash, fair draws that never change, and nothing held out ever drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from loopscope.errors import InputError
from loopscope.tasks import relations
from loopscope.tasks.graph_walk import codes_of
from loopscope.tasks.parity import make_batch
from loopscope.tasks.populations import held_out
from loopscope.training.cohort.streams import BitStream, GraphStream, QueryStream, absorb, below, bits, stream_key


def splitmix(key: int, counter: int) -> int:
    """One number of the hash in Python's integers."""
    x = (key + (counter + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def chi_squared(counts: torch.Tensor) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


# ---- the hash --------------------------------------------------------------------------------------------------------


def test_splitmix64_gives_its_published_numbers() -> None:
    """The first outputs for seed 1234567, as listed for the reference implementation."""
    wanted = [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821
    ]  # fmt: skip
    found = bits(torch.tensor(1234567), torch.arange(5))
    assert [int(x) % 2**64 for x in found] == wanted


@given(key=st.integers(-(2**63), 2**63 - 1), counter=st.integers(0, 2**40))
def test_bits_against_python_integers(key: int, counter: int) -> None:
    assert int(bits(torch.tensor(key), torch.tensor(counter))) % 2**64 == splitmix(key, counter)


def test_numbers_below_are_uniform() -> None:
    counts = torch.bincount(below(10, bits(torch.tensor(stream_key("test")), torch.arange(100_000))), minlength=10)
    # Chi-squared with 9 degrees of freedom stays below 27.9 in 999 of 1,000 fair streams; this stream is fixed.
    assert chi_squared(counts) < 27.9


# ---- graphs ----------------------------------------------------------------------------------------------------------


def test_graphs_of_record() -> None:
    """Numbers written down once: a stream that changes would make every trained model another one."""
    update = torch.tensor(12345)
    stream = GraphStream("vector", [0, 7], 40, 10, held_out("main"))
    codes = codes_of(stream.graphs(update).flatten(0, 1)).view(2, 40)
    assert codes[:, [0, 1, -1]].tolist() == [
        [7035289614, 3287150496, 8674125039], [2074368591, 2078413659, 2037184569]
    ]  # fmt: skip
    assert codes.sum(dim=1).tolist() == [200156913873, 194079237048]
    assert stream.starts(update)[:, :6].tolist() == [[8, 6, 8, 7, 4, 2], [3, 3, 4, 7, 2, 9]]
    assert stream.depths(update, 8)[:, :6].tolist() == [[3, 7, 5, 6, 8, 2], [8, 5, 7, 1, 5, 8]]
    eight = GraphStream("vector", [0, 7], 40, 8, held_out("eight")).graphs(update)
    assert codes_of(eight.flatten(0, 1)).view(2, 40).sum(dim=1).tolist() == [375775127, 312128068]


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


def test_no_draw_reads_a_value() -> None:
    """Tensors of the meta device have shapes and no values: whoever looked at one, and made a GPU wait, would fail."""
    update = torch.zeros((), dtype=torch.int64, device="meta")
    graphs = GraphStream("a", [0, 1], 8, 10, held_out("main"), "meta")
    assert graphs.graphs(update).shape == (2, 8, 10)
    assert graphs.starts(update).shape == graphs.depths(update, 8).shape == (2, 8)
    strings = BitStream("a", [0, 1], 8, 20, "meta")
    batch = make_batch(strings.bits(update), strings.lengths(update, 12), 12, check=False)
    assert batch.tokens.shape == batch.targets.shape == batch.answer.shape == (2, 8, 14)
    world = relations.world().to("meta")
    for length in (1, 2, 3):
        queries = QueryStream("a", [0, 1], 8, 3, relations.held_out(), "meta").queries(update, length)
        assert relations.path(world, *queries).shape == (2, 8, length)
        tokens = relations.tokens(*queries, check=False)
        assert tokens.shape == (2, 8, length + 2)
        assert absorb(torch.zeros(2, dtype=torch.int64, device="meta"), tokens).shape == (2,)


# ---- bits ------------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 50), update=st.integers(0, 2**31 - 1), longest=st.integers(1, 9), data=st.data())
def test_bits_and_lengths_against_python_integers(seed: int, update: int, longest: int, data: st.DataObject) -> None:
    most = data.draw(st.integers(1, longest))
    stream = BitStream("test", [seed], 3, longest)
    key = stream_key("test", seed, "bits")
    wanted = [[splitmix(key, (update << 32) + (row << 16) + n) >> 63 for n in range(longest)] for row in range(3)]
    assert stream.bits(torch.tensor(update))[0].tolist() == wanted
    key = stream_key("test", seed, "lengths")
    lengths = [1 + (splitmix(key, (update << 32) + (row << 16)) >> 32) * most // 2**32 for row in range(3)]
    assert stream.lengths(torch.tensor(update), most)[0].tolist() == lengths


def test_bits_of_record() -> None:
    stream, update = BitStream("vector", [0, 7], 64, 20), torch.tensor(12345)
    assert stream.lengths(update, 20)[:, :8].tolist() == [[10, 14, 7, 3, 3, 19, 8, 8], [8, 4, 5, 16, 14, 10, 18, 18]]
    rows = ["".join(map(str, row)) for row in stream.bits(update)[:, 1].tolist()]
    assert rows == ["00001111111100011100", "11111010111110010010"]


def test_bits_do_not_depend_on_what_is_drawn_beside_them() -> None:
    update = torch.tensor(9)
    large, small = BitStream("a", [3, 4, 5], 64, 40), BitStream("a", [4], 48, 20)
    assert torch.equal(large.bits(update)[1:2, :48, :20], small.bits(update))
    assert torch.equal(large.lengths(update, 13)[1:2, :48], small.lengths(update, 13))


def test_no_bit_is_drawn_twice() -> None:
    """Different updates, seeds, names and parts: long rows of coins that all differ."""
    rows = [
        tuple(row)
        for name in ("a", "b")
        for update in (0, 1, 2)
        for row in BitStream(name, [0, 1], 50, 64).bits(torch.tensor(update)).flatten(0, 1).tolist()
    ]
    assert len(set(rows)) == len(rows) == 600


def test_bits_and_lengths_are_uniform() -> None:
    stream, updates = BitStream("test", list(range(8)), 64, 20), torch.arange(100)
    coins = torch.stack([stream.bits(update) for update in updates]).flatten(0, 2)
    # 51,200 coins in each of 20 columns: five standard deviations are 566.
    assert int((coins.sum(dim=0) - 25_600).abs().max()) < 566
    neighbours = (coins[:, 1:] == coins[:, :-1]).sum(dim=0)
    assert int((neighbours - 25_600).abs().max()) < 566
    lengths = torch.stack([stream.lengths(update, 20) for update in updates]).flatten()
    counts = torch.bincount(lengths, minlength=21)
    assert counts[0] == 0
    assert len(counts) == 21
    assert chi_squared(counts[1:]) < 43.8  # 19 degrees of freedom, 999 of 1,000


def test_lengths_that_no_string_has() -> None:
    for most in (0, 21):
        with pytest.raises(InputError, match=f"^lengths up to {most} cannot be drawn: strings here have 1 to 20 bits$"):
            BitStream("a", [0], 4, 20).lengths(torch.tensor(0), most)
    with pytest.raises(
        InputError, match=r"^an update cannot draw 65537 rows of 1 numbers: 65536 of each are the most$"
    ):
        BitStream("a", [0], 65_537, 1).bits(torch.tensor(0))


# ---- queries ---------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 50), update=st.integers(0, 2**31 - 1), length=st.integers(1, 4), batch=st.integers(1, 12))
@settings(max_examples=30)
def test_queries_against_python_integers(seed: int, update: int, length: int, batch: int) -> None:
    """Row by row, skipping what is held out: small batches too never run out of rows."""
    key, codes = stream_key("test", seed, f"queries {length}"), relations.held_out()
    barred = set(codes.get(length, torch.empty(0)).tolist())
    wanted: list[list[int]] = []
    row = 0
    while len(wanted) < batch:
        counter = (update << 32) + (row << 16)
        query = [splitmix(key, counter) >> 58, *[splitmix(key, counter + n) >> 60 for n in range(1, length + 1)]]
        if int(relations.codes_of(torch.tensor(query[0]), torch.tensor(query[1:]))) not in barred:
            wanted.append(query)
        row += 1
    found = QueryStream("test", [seed], batch, 4, codes).queries(torch.tensor(update), length)
    assert found.starts[0].tolist() == [query[0] for query in wanted]
    assert found.relations[0].tolist() == [query[1:] for query in wanted]


def test_queries_of_record() -> None:
    stream, update = QueryStream("vector", [0, 7], 128, 16, relations.held_out()), torch.tensor(12345)
    recorded = {
        1: ([[60, 34, 8, 17], [37, 0, 12, 48]], [[15], [14]], [67918, 63310]),
        2: ([[33, 26, 32, 43], [60, 31, 9, 51]], [[15, 6], [5, 3]], [994995, 1156489]),
        3: ([[11, 59, 60, 16], [2, 41, 58, 42]], [[6, 9, 13], [0, 3, 6]], [16108371, 17216861]),
    }
    for length, (starts, followed, total) in recorded.items():
        found = stream.queries(update, length)
        assert found.starts[:, :4].tolist() == starts
        assert found.relations[:, 1].tolist() == followed
        assert relations.codes_of(*found).sum(dim=1).tolist() == total


@settings(max_examples=10)
@given(update=st.integers(0, 100_000), seed=st.integers(0, 50))
@pytest.mark.parametrize("length", [2, 3])
def test_no_held_out_composition_is_drawn(length: int, update: int, seed: int) -> None:
    codes = relations.held_out()
    found = QueryStream("test", [seed, seed + 1], 512, 3, codes).queries(torch.tensor(update), length)
    assert found.starts.shape == (2, 512)
    assert found.relations.shape == (2, 512, length)
    assert not set(relations.codes_of(*found).flatten().tolist()) & set(codes[length].tolist())


def test_queries_do_not_depend_on_what_is_drawn_beside_them() -> None:
    update, codes = torch.tensor(9), relations.held_out()
    large, small = QueryStream("a", [3, 4, 5], 64, 16, codes), QueryStream("a", [4], 48, 3, codes)
    for length in (1, 2, 3):
        together, alone = large.queries(update, length), small.queries(update, length)
        assert torch.equal(together.starts[1:2, :48], alone.starts)
        assert torch.equal(together.relations[1:2, :48], alone.relations)


def test_barring_a_composition_moves_the_others_up() -> None:
    update = torch.tensor(3)
    free = QueryStream("a", [0], 16, 2, {}).queries(update, 2)
    moved = QueryStream("a", [0], 16, 2, {2: relations.codes_of(*free)[0, :1]}).queries(update, 2)
    assert torch.equal(moved.starts[:, :-1], free.starts[:, 1:])
    assert torch.equal(moved.relations[:, :-1], free.relations[:, 1:])


def test_lengths_updates_and_names_share_no_queries() -> None:
    seen = {
        tuple(QueryStream(name, [0], 8, 4, {}).queries(torch.tensor(update), length).starts[0].tolist())
        for name in ("a", "b")
        for update in (0, 1)
        for length in (1, 2, 3, 4)
    }
    assert len(seen) == 16


def test_queries_are_uniform_over_what_is_left() -> None:
    stream, updates = QueryStream("test", list(range(8)), 512, 16, relations.held_out()), range(40)
    drawn = [stream.queries(torch.tensor(update), 2) for update in updates]
    counts = torch.bincount(torch.cat([relations.codes_of(*each).flatten() for each in drawn]), minlength=64 * 16**2)
    kept = torch.ones(64 * 16**2, dtype=torch.bool)
    kept[relations.held_out()[2]] = False
    freedom = int(kept.sum()) - 1
    assert freedom + 1 == 64 * 16**2 - 4608
    # 163,840 queries over 11,776 compositions; chi-squared is close to normal, here within four standard deviations.
    assert abs(chi_squared(counts[kept]) - freedom) < 4 * (2 * freedom) ** 0.5
    long = [stream.queries(torch.tensor(update), 16) for update in updates]
    assert chi_squared(torch.bincount(torch.cat([each.starts.flatten() for each in long]), minlength=64)) < 103.4
    followed = torch.cat([each.relations.flatten(0, 1) for each in long])
    for column in followed.unbind(dim=1):
        assert chi_squared(torch.bincount(column, minlength=16)) < 45.0  # 15 degrees of freedom, 9,999 of 10,000


def test_a_batch_practically_never_has_too_few_left() -> None:
    """At the largest share that may be held out, for any size of batch: fewer than `batch` of the proposals pass."""
    assert max(binom.cdf(batch - 1, 2 * batch + QueryStream.SPARE, 2 / 3) for batch in range(1, 1000)) < 1e-19


def test_queries_that_cannot_be_drawn() -> None:
    for length in (0, 4):
        with pytest.raises(InputError, match=f"^queries of length {length} cannot be drawn: lengths here are 1 to 3$"):
            QueryStream("a", [0], 4, 3, {}).queries(torch.tensor(0), length)
    with pytest.raises(InputError, match=r"^342 compositions of length 1 cannot be held out: of the 1024 there are"):
        QueryStream("a", [0], 4, 3, {1: torch.arange(342)})
    assert QueryStream("a", [0], 4, 3, {1: torch.arange(341)}).queries(torch.tensor(0), 1).starts.shape == (1, 4)


# ---- checksums -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(-(2**63), 2**63 - 1))
def test_a_checksum_against_python_integers(values: list[int], state: int) -> None:
    total = sum(splitmix(value, place) for place, value in enumerate(values))
    found = absorb(torch.tensor([state]), torch.tensor([values]))
    assert int(found) % 2**64 == splitmix(state, total)


def test_a_checksum_of_record() -> None:
    stream, update = BitStream("vector", [0, 7], 64, 20), torch.tensor(12345)
    state = absorb(torch.zeros(2, dtype=torch.int64), stream.bits(update))
    assert absorb(state, stream.lengths(update, 20)).tolist() == [5945112148357965330, -3587824962838283943]


@given(st.lists(st.integers(0, 80), min_size=2, max_size=12), st.data())
def test_any_change_changes_the_checksum(values: list[int], data: st.DataObject) -> None:
    start = torch.zeros(1, dtype=torch.int64)
    original = absorb(start, torch.tensor([values]))
    place = data.draw(st.integers(0, len(values) - 1))
    other = [*values[:place], data.draw(st.integers(0, 80).filter(lambda x: x != values[place])), *values[place + 1 :]]
    order = data.draw(st.permutations(values))
    assert int(absorb(start, torch.tensor([other]))) != int(original)
    assert (int(absorb(start, torch.tensor([order]))) == int(original)) == (order == values)
    assert int(absorb(start, torch.tensor([[*values, 0]]))) != int(original)


def test_the_checksum_keeps_the_order_of_batches_and_every_seed_apart() -> None:
    first, second = torch.arange(12).view(2, 2, 3), torch.arange(12, 24).view(2, 2, 3)
    start = torch.zeros(2, dtype=torch.int64)
    forwards, backwards = absorb(absorb(start, first), second), absorb(absorb(start, second), first)
    assert not bool((forwards == backwards).any())
    assert not bool((absorb(start, torch.cat([first, second], dim=1)) == forwards).any())
    alone = absorb(absorb(start[1:], first[1:]), second[1:])
    assert torch.equal(alone, forwards[1:])
    assert torch.equal(absorb(start, first.flatten(1)), absorb(start, first))
    assert torch.equal(absorb(start, first.to(torch.int32)), absorb(start, first))
