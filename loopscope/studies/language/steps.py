"""Steps of the runner on language models: one experiment on a model and its map, wherever the two were made or kept."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from loopscope.log import Log, under
from loopscope.models.kept import opened
from loopscope.models.passes import Boundary
from loopscope.store.store import Artefact, Store
from loopscope.studies.language.experiment import Amount, Arm, LanguageExperiment
from loopscope.studies.language.records import SteeredModel, load_language
from loopscope.studies.records import Record


@dataclass(frozen=True)
class LanguageStep:
    """The records of an experiment on one model with the map of an arm; a step of `runner`.

    Records call the model `name`; `boundary` is what ended a loop when the map was fitted, None for what the folder
    says.  Folders are read as they are, artefacts only as they were written.
    """

    experiment: LanguageExperiment
    arm: Arm
    amount: Amount
    name: str
    folder: Path | Artefact
    map: Path | Artefact
    boundary: Boundary | None = None

    def __str__(self) -> str:
        return f"{self.experiment.name} on {self.name}"

    @property
    def model(self) -> Hashable:
        """A model is loaded with one map."""
        return tuple(str(each.folder if isinstance(each, Artefact) else each) for each in (self.folder, self.map))

    def load(self, weights: Store, device: torch.device) -> SteeredModel:
        """The model and its map; DamagedError for an artefact that is not as it was written."""
        folder, step = (opened(each) if isinstance(each, Artefact) else each for each in (self.folder, self.map))
        return load_language(folder, step, name=self.name, boundary=self.boundary, device=device)

    def records(self, loaded: SteeredModel, weights: Store, store: Store, log: Log) -> Iterable[Record]:
        """From the store, or measured and written to it."""
        return self.experiment.measure(loaded, store, self.arm, self.amount, under(str(self), log))
