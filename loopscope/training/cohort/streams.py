"""Random numbers and batches that are a pure function of (seed, update).

A generator with state must be saved, restored and kept in step on every device.  Here there is none: number i of a
stream is a hash of (key, i), made of 64-bit integer operations that give the same integers on every device.  A killed
run resumes by counting on, and a seed's data does not depend on which seeds are trained beside it.  Every batch has a
shape known beforehand and is drawn without waiting for the device, so a draw can be captured into a CUDA graph.

The hash is SplitMix64 (Steele, Lea, Flood 2014): its i-th output is `mix(key + i * GOLDEN)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from loopscope.errors import InputError
from loopscope.tasks import graph_walk, relations
from loopscope.tasks.labels import is_listed

GOLDEN = 0x9E3779B97F4A7C15


def _signed(value: int) -> int:
    """The int64 with the same bits as an unsigned 64-bit number."""
    return value - 2**64 if value >= 2**63 else value


MIX = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))
"""Rounds of the hash: x ^ (x >> places), times a factor; after the last, x ^ (x >> 31)."""
LAST = 31


def _shifted(x: Int[Tensor, "*shape"], places: int) -> Int[Tensor, "*shape"]:
    """Logical shift to the right; torch's own shift of int64 keeps the sign."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def bits(key: Int[Tensor, "*keys"], counter: Int[Tensor, "*counters"]) -> Int[Tensor, "*both"]:
    """Number `counter` of stream `key`: 64 random bits as int64, element by element, shapes broadcast."""
    x = key + (counter + 1) * _signed(GOLDEN)
    if x.is_cuda:
        from loopscope.training.cohort.kernels import mix

        return mix(x, (*MIX, (LAST, 1)))
    for places, factor in MIX:
        x = (x ^ _shifted(x, places)) * factor
    return x ^ _shifted(x, LAST)


def stream_key(*names: int | str) -> int:
    """The key of a stream, from whatever tells it from others: a digest, so that near seeds share nothing."""
    digest = hashlib.sha256("\x1f".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def below(n: int, random: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Integers 0..n-1 from random bits.  The bias is below n / 2^32."""
    return (_shifted(random, 32) * n) >> 32


def absorb(state: Int[Tensor, " seeds"], values: Int[Tensor, "seeds ..."]) -> Int[Tensor, " seeds"]:
    """The checksum of everything absorbed so far and of these values after it, one for each seed; start from zeros.

    Two runs that saw the same integers at the same places of the same batches have the same checksum, on any device;
    with any integer, place or order changed it is another, as surely as 64 bits can tell (it is no cryptography).
    Places are counted row by row, so [seeds, 2, 3] and [seeds, 6] are the same batch.
    """
    rows = values.reshape(len(values), -1)
    place = torch.arange(rows.shape[1], device=rows.device)
    # Sums wrap around and do not depend on the order of their terms, which is the device's own.
    return bits(state, bits(rows, place).sum(dim=1))


# ---- what streams share ----------------------------------------------------------------------------------------------


def _first_kept(
    proposals: Int[Tensor, "seeds proposals entries"], rejected: Bool[Tensor, "seeds proposals"], batch: int
) -> Int[Tensor, "seeds batch entries"]:
    """The first `batch` proposals of each seed that are not rejected, in their order."""
    first = rejected.to(torch.int8).argsort(dim=1, stable=True)[:, :batch]
    return proposals.gather(1, first[..., None].expand(-1, -1, proposals.shape[-1]))


_SIDE = 2**16  # rows or columns that a table of random bits can have


def _table(
    keys: Int[Tensor, " seeds"], update: Int[Tensor, ""], rows: int, columns: int
) -> Int[Tensor, "seeds {rows} {columns}"]:
    """The random bits of one update, a table for each seed, made of the counters u * 2^32 + row * 2^16 + column.

    No two updates share a counter, and a place keeps its number whatever the size of the table around it.  Raises
    InputError for a table too large for that.
    """
    if max(rows, columns) > _SIDE:
        raise InputError(f"an update cannot draw {rows} rows of {columns} numbers: {_SIDE} of each are the most")
    row = torch.arange(rows, device=keys.device)[:, None]
    column = torch.arange(columns, device=keys.device)
    return bits(keys[:, None, None], (update * _SIDE + row) * _SIDE + column)


# ---- streams ---------------------------------------------------------------------------------------------------------


class GraphStream:
    """Fresh graphs and starts for every update of several seeds, held-out graphs left out.

    Update u of seed s draws `2 * batch` permutations and keeps the first `batch` that are not held out, so a batch has
    a fixed shape.  The keys of the streams are a digest of (name, seed).
    """

    def __init__(
        self,
        name: str,
        seeds: list[int],
        batch: int,
        nodes: int,
        held_out: Int[Tensor, " codes"],
        device: torch.device | str = "cpu",
    ) -> None:
        self.batch, self.nodes = batch, nodes
        self.held_out = held_out.to(device)
        keys = [[stream_key(name, seed, part) for seed in seeds] for part in ("graphs", "starts", "depths")]
        self.keys = torch.tensor(keys, dtype=torch.int64, device=device)

    def graphs(self, update: Int[Tensor, ""]) -> Int[Tensor, "seeds batch nodes"]:
        """Uniform permutations outside the held-out ones: successor rows."""
        proposals = 2 * self.batch
        order = torch.arange(proposals * self.nodes, device=self.keys.device)
        random = bits(self.keys[0][:, None], update * proposals * self.nodes + order)
        random = random.view(-1, proposals, self.nodes)
        # The rank of each number among its row is a uniform permutation; ranks need no sort and no synchronisation.
        graphs = (random[..., :, None] > random[..., None, :]).sum(-1)
        rejected = graph_walk.is_held_out(graphs.flatten(0, 1), self.held_out).view(-1, proposals)
        return _first_kept(graphs, rejected, self.batch)

    def starts(self, update: Int[Tensor, ""]) -> Int[Tensor, "seeds batch"]:
        """Uniform start nodes."""
        return below(self.nodes, self._numbers(1, update))

    def depths(self, update: Int[Tensor, ""], most: int) -> Int[Tensor, "seeds batch"]:
        """Uniform requested depths 1..most."""
        return below(most, self._numbers(2, update)) + 1

    def _numbers(self, part: int, update: Int[Tensor, ""]) -> Int[Tensor, "seeds batch"]:
        counter = update * self.batch + torch.arange(self.batch, device=self.keys.device)
        return bits(self.keys[part][:, None], counter)


class BitStream:
    """Fresh strings of bits for every update of several seeds.

    Row and column of a number decide what it is, not the size of the batch: the first rows or columns of a larger
    stream are the smaller one.  The keys of the streams are a digest of (name, seed).
    """

    def __init__(
        self, name: str, seeds: list[int], batch: int, longest: int, device: torch.device | str = "cpu"
    ) -> None:
        self.batch, self.longest = batch, longest
        keys = [[stream_key(name, seed, part) for seed in seeds] for part in ("lengths", "bits")]
        self.keys = torch.tensor(keys, dtype=torch.int64, device=device)

    def lengths(self, update: Int[Tensor, ""], most: int) -> Int[Tensor, "seeds batch"]:
        """Uniform lengths 1..most, for strings cut from `bits`; InputError for a `most` outside 1..longest."""
        if not 1 <= most <= self.longest:
            raise InputError(f"lengths up to {most} cannot be drawn: strings here have 1 to {self.longest} bits")
        return below(most, _table(self.keys[0], update, self.batch, 1)[..., 0]) + 1

    def bits(self, update: Int[Tensor, ""]) -> Int[Tensor, "seeds batch longest"]:
        """Fair coins, 0 or 1; a string takes as many of its row as it is long."""
        return below(2, _table(self.keys[1], update, self.batch, self.longest))


class QueryStream:
    """Fresh relation compositions for every update of several seeds, held-out compositions left out.

    `held_out` has the codes of the compositions of each length that are never drawn (`relations.held_out()`).  Where
    there are any, an update draws twice as many compositions as it needs and a few more, and keeps the first that are
    not held out, so a batch has a fixed shape.  A length whose compositions are held out to more than a third raises
    InputError: up to there, the chance of a batch with too few left is below 1e-19.

    The keys of the streams are a digest of (name, seed, length).  A query's row in the batch decides what it is, not
    the size of the batch.
    """

    SPARE = 64
    """Proposals on top of twice the batch: without them, one batch of 8 in 60 would have too few left at length 2."""

    def __init__(
        self,
        name: str,
        seeds: list[int],
        batch: int,
        longest: int,
        held_out: Mapping[int, Int[Tensor, " codes"]],
        device: torch.device | str = "cpu",
    ) -> None:
        self.batch, self.longest = batch, longest
        self.held_out = {length: codes.unique().to(device) for length, codes in held_out.items()}
        for length, codes in self.held_out.items():
            there_are = relations.ENTITIES * relations.RELATIONS**length
            if 3 * len(codes) > there_are:
                most = f"of the {there_are} there are, at most a third can be"
                raise InputError(f"{len(codes)} compositions of length {length} cannot be held out: {most}")
        keys = [[stream_key(name, seed, f"queries {n}") for seed in seeds] for n in range(1, longest + 1)]
        self.keys = torch.tensor(keys, dtype=torch.int64, device=device)

    def queries(self, update: Int[Tensor, ""], length: int) -> relations.Queries:
        """Uniform starts [seeds, batch] and relations [seeds, batch, length], other ones for every length.

        Raises InputError for a length outside 1..longest.
        """
        if not 1 <= length <= self.longest:
            raise InputError(f"queries of length {length} cannot be drawn: lengths here are 1 to {self.longest}")
        held_out = self.held_out.get(length)
        rows = self.batch if held_out is None else 2 * self.batch + self.SPARE
        random = _table(self.keys[length - 1], update, rows, 1 + length)
        start, followed = below(relations.ENTITIES, random[..., :1]), below(relations.RELATIONS, random[..., 1:])
        queries = torch.cat([start, followed], dim=-1)
        if held_out is not None:
            codes = relations.codes_of(queries[..., 0], queries[..., 1:])
            queries = _first_kept(queries, is_listed(codes, held_out), self.batch)
        return relations.Queries(queries[..., 0], queries[..., 1:])
