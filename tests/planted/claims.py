"""Records with planted answers: every judgement of them is known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from loopscope.studies.claims import Verdict, decide
from loopscope.studies.evidence import Evidence
from loopscope.studies.records import ModelFacts, Record
from loopscope.studies.trained import Walks, instances
from loopscope.tasks.graph_walk import advance

CPU = torch.device("cpu")
MAIN = ("d8l6-3", "d8l6-4", "d8l6-5")


@cache
def walks(where: str, rule: str = "three") -> Walks:
    return instances(where, 8, CPU, rule)


def right_on(count: int, node: Tensor, at: Walks, otherwise: Tensor | None = None) -> Tensor:
    """This node in the first `count` instances that count, and elsewhere u, or what is given."""
    return torch.where(at.kept & (at.kept.cumsum(0) <= count), node, at.current if otherwise is None else otherwise)


def record(experiment: str, name: str, predictions: Mapping[str, Mapping[str, Tensor]], fits: int = 2) -> Record:
    facts = ModelFacts(
        name, "0" * 64, int(name[3]) if name.startswith("d8l") else 8, 8, 10, 4, {"one": fits, "two": fits}
    )
    as_bytes = {w: {each: nodes.to(torch.uint8) for each, nodes in found.items()} for w, found in predictions.items()}
    return Record(experiment, facts, as_bytes)


ONES, BOTH = [0, 1, 2, 3, 4, 5, 8], [0, 1, 3, 5, 6, 7, 8]
IN_ONES, IN_TWOS = [0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 2, 4, 6, 8, 8, 8, 8]


def native(name: str, steps: list[int], last: int = 8, wrong: int = 0) -> Record:
    """A walker on 60 rings that is so many steps from s after loop 0, 1, ...; then it stays at `last`, until loop 16.

    From the last of `steps` on, the first `wrong` instances answer s.
    """
    at = walks("rings", "all")
    taken = [*steps, *[last] * (17 - len(steps))]
    nodes = torch.stack([advance(at.graphs, at.starts, each) for each in taken])
    nodes[len(steps) - 1 :, :wrong] = at.starts[:wrong]
    return record("trajectories", name, {"rings": {"native": nodes[:, :600]}}, fits=1)


CHOSEN = [native(name, BOTH) for name in MAIN]
"""What makes the first three seeds the mechanism backbones."""


def verdict(claim: str, *found: Record, stored: tuple[Record, ...] = ()) -> Verdict:
    """On one claim, when `found` was measured just now and `stored`, with the native walks, before."""
    return next(each for each in decide(Evidence([*CHOSEN, *stored], found)) if each.claim.id == claim)
