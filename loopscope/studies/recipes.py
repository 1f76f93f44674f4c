"""The recipes of all studies of small models by name."""

from __future__ import annotations

from collections.abc import Mapping

from loopscope.errors import InputError, nearest
from loopscope.studies import parts
from loopscope.training.recipe import BackboneRecipe, MapRecipe, Recipe

RECIPES: Mapping[str, Recipe] = {each.name: each for part in parts("recipes") for each in getattr(part, "RECIPES", ())}
"""Every recipe by name."""


def recipe(name: str) -> Recipe:
    """The recipe with this name; InputError names the nearest when there is none."""
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}; there are {', '.join(RECIPES)}{nearest(name, RECIPES)}")
    return RECIPES[name]


def backbone_recipe(name: str) -> BackboneRecipe:
    """The backbone recipe with this name."""
    found = recipe(name)
    if not isinstance(found, BackboneRecipe):
        raise InputError(f"{name!r} fits maps; `loopscope fit {name} --backbone KEY` does that")
    return found


def map_recipe(name: str) -> MapRecipe:
    """The map recipe with this name."""
    found = recipe(name)
    if not isinstance(found, MapRecipe):
        raise InputError(f"{name!r} trains backbones; `loopscope train {name} --seeds 0` does that")
    return found
