"""Which experiments and cohorts there are: those of all studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from loopscope.errors import InputError, nearest
from loopscope.studies import STUDIES, part, parts
from loopscope.studies.experiment import Cohort, Experiment
from loopscope.studies.language.experiment import LanguageExperiment
from loopscope.studies.selection import Selection

EXPERIMENTS: Mapping[str, Experiment] = {
    each.name: each for part in parts("experiments") for each in getattr(part, "EXPERIMENTS", ())
}
"""Every experiment on backbones by name."""

LANGUAGE: Mapping[str, LanguageExperiment] = {
    each.name: each for part in parts("experiments") for each in getattr(part, "LANGUAGE", ())
}
"""Every experiment on language models by name."""

COHORTS: Mapping[str, Cohort] = {
    each.name: each for part in parts("experiments") for each in getattr(part, "COHORTS", ())
}
"""Every cohort of backbones by name."""

_CHOOSING = next(part for part in parts("experiments") if hasattr(part, "selection"))
"""Of the study that has the rule by which the mechanism backbones are chosen."""

selection: Callable[..., Selection] = _CHOOSING.selection
"""The mechanism backbones by the rule, given records and, where it is not the mechanism's own, a cohort."""

DECIDING: str = _CHOOSING.DECIDING
"""The experiment whose records the rule looks at."""

STUDY_OF: Mapping[str, str] = {
    each.name: study for study in STUDIES for each in getattr(part(study, "experiments"), "EXPERIMENTS", ())
}
"""The study of every experiment."""


def chosen(names: Iterable[str]) -> list[Experiment]:
    """The experiments of these names, all of them for none; InputError for an unknown one."""
    asked = list(dict.fromkeys(names)) or list(EXPERIMENTS)
    for name in asked:
        if name not in EXPERIMENTS:
            raise InputError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}{nearest(name, EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in EXPERIMENTS if name in asked]
