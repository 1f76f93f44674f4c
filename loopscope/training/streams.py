"""Random numbers and batches that are a pure function of (seed, update).

A generator with state must be saved, restored and kept in step on every device.  Here there is none: number i of a
stream is a hash of (key, i), made of 64-bit integer operations that give the same integers on every device.  A killed
run resumes by counting on, and a seed's data does not depend on which seeds are trained beside it.

The hash is SplitMix64 (Steele, Lea, Flood 2014): its i-th output is `mix(key + i * GOLDEN)`.
"""

from __future__ import annotations

import hashlib

import torch
from jaxtyping import Int
from torch import Tensor

from loopscope.tasks.graph_walk import is_held_out

GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def _signed(value: int) -> int:
    """The int64 with the same bits as an unsigned 64-bit number."""
    return value - 2**64 if value >= 2**63 else value


def _shifted(x: Int[Tensor, "*shape"], places: int) -> Int[Tensor, "*shape"]:
    """Logical shift to the right; torch's own shift of int64 keeps the sign."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def bits(key: Int[Tensor, "*keys"], counter: Int[Tensor, "*counters"]) -> Int[Tensor, "*both"]:
    """Number `counter` of stream `key`: 64 random bits as int64, element by element, shapes broadcast."""
    x = key + (counter + 1) * _signed(GOLDEN)
    for places, factor in _MIX:
        x = (x ^ _shifted(x, places)) * _signed(factor)
    return x ^ _shifted(x, 31)


def stream_key(*names: int | str) -> int:
    """The key of a stream, from whatever tells it from others: a digest, so that near seeds share nothing."""
    digest = hashlib.sha256("\x1f".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def below(n: int, random: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Integers 0..n-1 from random bits.  The bias is below n / 2^32."""
    return (_shifted(random, 32) * n) >> 32


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
        rejected = is_held_out(graphs.flatten(0, 1), self.held_out).view(-1, proposals)
        first = rejected.to(torch.int8).argsort(dim=1, stable=True)[:, : self.batch]
        return graphs.gather(1, first[..., None].expand(-1, -1, self.nodes))

    def starts(self, update: Int[Tensor, ""]) -> Int[Tensor, "seeds batch"]:
        """Uniform start nodes."""
        return below(self.nodes, self._numbers(1, update))

    def depths(self, update: Int[Tensor, ""], most: int) -> Int[Tensor, "seeds batch"]:
        """Uniform requested depths 1..most."""
        return below(most, self._numbers(2, update)) + 1

    def _numbers(self, part: int, update: Int[Tensor, ""]) -> Int[Tensor, "seeds batch"]:
        counter = update * self.batch + torch.arange(self.batch, device=self.keys.device)
        return bits(self.keys[part][:, None], counter)
