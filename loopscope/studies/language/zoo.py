"""The zoo's language models: letter walk, head patches and controls, recomputed on a CPU, as their weights are there.

Every map of letters in the zoo is tested with its model, on as many pairs as a minute allows.  Of what is stored in
`results/` on all pairs, this is a part, measured anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from loopscope.measure.replies import Log, under
from loopscope.models.kept import opened
from loopscope.models.passes import Boundary, boundary_named
from loopscope.store.artefacts import LM_MAP, model_of, name_of
from loopscope.store.store import Artefact, Store
from loopscope.studies.language.records import load_language
from loopscope.studies.letters.records import measure_letters
from loopscope.studies.records import Record

PAIRS = 32
"""Pairs of each test, and graphs of the walks, that a quick run takes."""

BATCH = 16


class Walker(NamedTuple):
    """A language model of a store and its map, which was fitted to letters."""

    model: Artefact
    step: Artefact

    @property
    def name(self) -> str:
        """What records call it."""
        return name_of(self.model)

    @property
    def boundary(self) -> Boundary | None:
        """What ended a loop when the map was fitted, where it says so."""
        told = self.step.manifest.config.get("boundary")
        return None if told is None else boundary_named(told)


def walkers(there: Store) -> list[Walker]:
    """The letter walkers of a store whose model is there, too, by name."""
    maps = [each for each in there.every(LM_MAP) if each.manifest.config.get("recipe", {}).get("task") == "letter"]
    found = [Walker(model, step) for step in maps if (model := model_of(step, [there])) is not None]
    return sorted(found, key=lambda each: (each.name, each.step.key))


def walked(
    weights: Store, store: Store, device: torch.device, pairs: int | None, log: Log = lambda _: None
) -> Iterator[Record]:
    """The records of letters of every walker in `weights`: from the store, or measured and written to it.

    `pairs`: of each test, the first so many; None: all.  DamagedError for files that are not as they were written.
    """
    for each in walkers(weights):
        log(f"letters on {each.name}: loading")
        subject = load_language(
            opened(each.model), opened(each.step), name=each.name, boundary=each.boundary, device=device
        )
        yield from measure_letters(subject, store, count=pairs, batch=BATCH, log=under(f"letters on {each.name}", log))
