"""Native trajectories: what each loop reads out, with no map and no patch, on single cycles.

On a ring every node is some number of steps from the start, so a readout after loop t is a position on the path, 0 to
N - 1.  How often each position is read, over all rings and starts, shows how a backbone walks: its *mode* at a loop is
the position read most often (none where two tie), an *increment* the step from one mode to the next around the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.execute import run
from loopscope.experiments.subject import instances
from loopscope.program import F
from loopscope.protocol import LoopedModel
from loopscope.tasks.graph_walk import DEPTHS, all_starts, path_position
from loopscope.tasks.populations import population

LOOPS = 16
"""Loops that are read; backbones are trained for six or eight."""

TIE = 1e-8
"""Frequencies closer than this are a tie."""


def read_native(
    model: LoopedModel, device: torch.device, rings: str = "rings", loops: int = LOOPS
) -> Int[Tensor, "reads instances"]:
    """The node each loop reads out at ANSWER, for every ring and start (see `all_starts`); row t is loop t."""
    trace = run(model, instances(rings, DEPTHS, device).tokens, F**loops, read="all")[F**loops]
    return torch.stack([logits[:, 0].argmax(-1) for logits in trace.logits_at.values()]).cpu()


def positions(nodes: Int[Tensor, "reads instances"], rings: str = "rings") -> Int[Tensor, "reads instances"]:
    """How many steps from its start each node that was read out is."""
    graphs, starts = all_starts(population(rings).graphs)
    return path_position(graphs, starts, nodes.T.long()).T


def frequencies(positions: Int[Tensor, "reads instances"], nodes: int) -> Float[Tensor, "reads nodes"]:
    """How often each position is read at each loop."""
    return torch.stack([(positions == place).double().mean(1) for place in range(nodes)], 1)


def modes(frequencies: Float[Tensor, "reads nodes"]) -> list[int | None]:
    """The position read most often at each loop; None where it is not the only one."""
    top, place = frequencies.topk(2, dim=1)
    alone = (top[:, 0] - top[:, 1]) > TIE
    return [int(which) if bool(sure) else None for which, sure in zip(place[:, 0], alone, strict=True)]


def increments(modes: Sequence[int | None], nodes: int) -> list[int | None]:
    """Steps around the ring from each loop's mode to the next one's; None where either is a tie."""
    return [None if a is None or b is None else (b - a) % nodes for a, b in pairwise(modes)]


@dataclass(frozen=True)
class Trajectory:
    """A backbone's walk: modes at loops 0, 1, ... and the increments to loops 1, 2, ...

    `endpoint` is the share of instances that read f^8(s) at the last trained loop, `retained` at the last loop read.
    """

    loops: int
    modes: list[int | None]
    increments: list[int | None]
    endpoint: float
    retained: float
    instances: int

    @property
    def walks_one_and_two(self) -> bool:
        """The rule that chooses the mechanism backbones: to loops 2..L, increments of 1 and of 2, else only 0."""
        taken = {step for step in self.increments[1 : self.loops] if step is not None}
        return {1, 2} <= taken <= {0, 1, 2}


def trajectory(nodes_read: Int[Tensor, "reads instances"], loops: int, rings: str = "rings") -> Trajectory:
    """Sum up what `read_native` gave, for a backbone trained for `loops` loops."""
    nodes = population(rings).nodes
    places = positions(nodes_read, rings)
    found = modes(frequencies(places, nodes))
    right = (places == DEPTHS % nodes).double().mean(1)
    return Trajectory(
        loops, found, increments(found, nodes), float(right[loops]), float(right[-1]), nodes_read.shape[1]
    )  # fmt: skip
