"""Counts of walks that go on, with planted answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopscope.studies.records import ModelFacts, Predictions, Record
from loopscope.tasks.graph_walk import all_starts, cycle_lengths, walk
from loopscope.tasks.populations import population


def planted(
    where: str, walks: Sequence[int], loops: int = 40, graphs: int = 64, strict: bool = False
) -> dict[str, Tensor]:
    """Maps that walk for so many calls and then hold f^8(s); without one it is held from the beginning."""
    rows, starts = all_starts(population(where).graphs[:graphs])
    path = walk(rows, starts, loops).T
    lengths = cycle_lengths(rows).gather(1, starts[:, None])[:, 0]
    targets, held = path[1:], path[8]
    found = {"instances": torch.tensor([int((lengths == length).sum()) for length in range(1, 9)]).int()}

    def add(name: str, answers: Tensor) -> None:
        right = answers == targets
        found[name] = torch.stack([right[:, lengths == length].sum(1) for length in range(1, 9)]).int()
        if strict:
            right &= targets != held
            found[f"{name} strict"] = right.view(loops, graphs, 8).sum(-1).to(torch.uint8)

    add("native", held.expand(loops, -1))
    for fit, last in enumerate(walks, 1):
        name = f"continue16-{fit}"
        add(name, torch.where(torch.arange(1, loops + 1)[:, None] <= last, targets, held))
        if strict:
            found |= {f"{name} moved": found[f"{name} strict"] // 2, f"{name} alone": torch.zeros(loops).byte()}
    return found


def raw(experiment: str, name: str, predictions: Predictions, **settings: object) -> Record:
    fits = {"continuation": {"continue16": 2}, "parity": {"parity-staged": 1}, "chains": {"relations-curriculum": 3}}
    facts = ModelFacts(name, "0" * 64, loops=8, depth=8, nodes=8, heads=4, fits=fits.get(experiment, {}))
    return Record(experiment, facts, predictions, settings, {"seconds": 1.5, "device": "CPU, 1 threads"}, raw=True)
