"""Exchanges between graphs with planted answers."""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.studies.graph_walk.crossing import (
    Pairs,
)

GRAPHS, HEAD = 12, 2


def planted(at: Pairs) -> dict[str, Tensor]:
    """A backbone whose head 2 does everything: its pattern gives E and its output D, and only its output repairs."""
    B, D, E = at.labels.T
    u = at.receiver.current
    found = {"unsteered": u}
    for fit in (1, 2):
        runs = {"steered": B, "before F": u, "giver": D, "giver before F": at.other, "broken": E}
        runs |= {"J->0 all": B, "0->J all": u, "restored all": B}
        for head in range(4):
            mine = head == HEAD
            runs |= {f"pattern {head}": E if mine else B, f"output {head}": D if mine else B}
            runs |= {f"J->0 {head}": B if mine else u, f"0->J {head}": u if mine else B}
            runs[f"restored {head}"] = B if mine else E
        found |= {f"one-{fit}/{name}": nodes for name, nodes in runs.items()}
    return {name: nodes.to(torch.uint8) for name, nodes in found.items()}
