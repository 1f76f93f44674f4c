"""The recipes of all studies of language models by name: how weights are trained and maps are fitted, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loopscope.errors import InputError, nearest
from loopscope.studies import parts
from loopscope.studies.language.scales import SCALES, scale_of
from loopscope.training.lm.recipe import Recipe, changed

_ALL: list[Recipe] = [each for part in parts("recipes") for each in getattr(part, "LANGUAGE", ())]

RECIPES: Mapping[str, Recipe] = {each.name: each for scale in SCALES for each in _ALL if scale_of(each) == scale}
"""Every recipe by name, the paper's first."""


def recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """The recipe with this name, with changes such as "rate=3e-4"; InputError names the nearest where there is none."""
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}; there are {', '.join(RECIPES)}{nearest(name, RECIPES)}")
    return changed(RECIPES[name], changes)
