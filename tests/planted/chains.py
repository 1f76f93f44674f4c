"""Counts of chains with planted answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopscope.studies.records import Predictions
from loopscope.studies.relations import chains
from loopscope.studies.relations.chains import LENGTHS


def planted(
    native: Tensor,
    fits: Sequence[Tensor],
    lengths: Sequence[int] = LENGTHS,
    updates: Sequence[int] = (0, 10_000),
    cut: bool = False,
) -> Predictions:
    """What `measure` would give for these outcomes."""
    found = {
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "updates": torch.tensor(updates, dtype=torch.int32),
        "F only": chains.pack_bits(native),
    }
    found |= {f"fit {number}": chains.pack_bits(fit) for number, fit in enumerate(fits, 1)}
    return {"cut-queries" if cut else "own-queries": found}


def first(counts: Sequence[int], queries: int = 1024) -> Tensor:
    """At each length, so many of the first queries right."""
    return torch.arange(queries) < torch.tensor(counts)[:, None]
