"""The zoo's language models: letter walk, head patches and controls, recomputed on a CPU, as their weights are there.

Every map of letters in the zoo is tested with its model, on as many pairs as a minute allows, unless all are asked
for.  Of what is stored in `results/` on all pairs, this is a part, measured anew.
"""

from __future__ import annotations

from typing import NamedTuple

from loopscope.models.passes import Boundary, boundary_named
from loopscope.store.artefacts import LM_MAP, model_of, name_of
from loopscope.store.store import Artefact, Store
from loopscope.studies.language.experiment import Amount
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.language.steps import LanguageStep
from loopscope.studies.registry import LANGUAGE

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
        ending = self.step.manifest.config.get("boundary")
        return None if ending is None else boundary_named(ending)


def walkers(there: Store) -> list[Walker]:
    """The letter walkers of a store whose model is there, too, by name."""
    maps = [each for each in there.every(LM_MAP) if each.manifest.config.get("recipe", {}).get("task") == "letter"]
    found = [Walker(model, step) for step in maps if (model := model_of(step, [there])) is not None]
    return sorted(found, key=lambda each: (each.name, each.step.key))


def letter_steps(there: Store, pairs: int | None = None) -> list[LanguageStep]:
    """The letter tests of every walker of a store, of the first `pairs` of each test (None: all)."""
    experiment, amount = LANGUAGE[LETTERS], Amount(pairs, BATCH)
    return [
        LanguageStep(experiment, experiment.arms[0], amount, each.name, each.model, each.step, each.boundary)
        for each in walkers(there)
    ]
