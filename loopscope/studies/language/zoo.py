"""The zoo's language models, tested anew on a CPU, as their weights are there.

Every map of the zoo is tested with its model, on as much as a minute allows, unless all is asked for.  Of what is
stored in `results/`, this is a part, measured anew.
"""

from __future__ import annotations

from typing import NamedTuple

from loopscope.models.passes import Boundary, boundary_named
from loopscope.store.artefacts import LM_MAP, model_of, name_of
from loopscope.store.store import Artefact, Store
from loopscope.studies.language.experiment import LanguageExperiment
from loopscope.studies.language.steps import LanguageStep


class Kept(NamedTuple):
    """A language model of a store and a map that was fitted to it."""

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


def kept(there: Store, experiment: LanguageExperiment) -> list[Kept]:
    """The models of a store with maps of an experiment's task, by name; none for one that is not done on the zoo's."""
    if experiment.in_zoo is None:
        return []
    tasks = ((each, each.manifest.config.get("recipe", {}).get("task")) for each in there.every(LM_MAP))
    maps = [each for each, task in tasks if task == experiment.task]
    found = [Kept(model, step) for step in maps if (model := model_of(step, [there])) is not None]
    return sorted(found, key=lambda each: (each.name, each.step.key))


def zoo_steps(there: Store, experiment: LanguageExperiment, whole: bool = False) -> list[LanguageStep]:
    """An experiment on every such model of a store, as much of it as `in_zoo` says or the whole of it."""
    if experiment.in_zoo is None:
        return []
    amount = experiment.in_zoo._replace(cases=None) if whole else experiment.in_zoo
    return [
        LanguageStep(experiment, experiment.arms[0], amount, each.name, each.model, each.step, each.boundary)
        for each in kept(there, experiment)
    ]
