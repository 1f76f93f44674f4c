"""Matched steering with planted answers."""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.studies.graph_walk.matched import BEFORE
from loopscope.studies.records import Predictions
from loopscope.studies.trained import Walks

TINY = "tiny-test"


def elsewhere(at: Walks) -> Tensor:
    """A node that is none of u, f(u), f^2(u)."""
    labels = torch.stack([at.ahead(steps) for steps in range(3)])
    free = ~(torch.arange(at.graphs.shape[1])[:, None] == labels[:, None]).any(0)
    return free.int().argmax(0)


def right_on(count: int, hops: int, at: Walks) -> Tensor:
    """Right in the first `count` instances that count, of no kind that has a name in all others."""
    chosen = at.kept & (at.kept.cumsum(0) <= count)
    return torch.where(chosen, at.ahead(hops), elsewhere(at))


def planted(at: Walks, where: str = TINY, unsteered: int = 0, **given: list[Tensor]) -> Predictions:
    """Answers after F by target, a tensor for each fit; `two_before` and the like, where not given, are u."""
    answers = {"endpoint": at.current, "unsteered": at.ahead(unsteered)}
    for target in (target for target in given if not target.endswith("_before")):
        before = given.get(f"{target}_before", [at.current] * len(given[target]))
        for fit, (after, read) in enumerate(zip(given[target], before, strict=True), 1):
            name = f"{target.replace('_', '-')}-{fit}"
            answers |= {name: after, name + BEFORE: read}
    return {where: {name: nodes.to(torch.uint8) for name, nodes in answers.items()}}
