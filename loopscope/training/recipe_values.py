"""Recipes of small models back from JSON: what `to_dict` gave, wherever it has been since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from loopscope.errors import InputError, nearest
from loopscope.model import ModelConfig
from loopscope.training.recipe import (
    FOR_READERS,
    BackboneRecipe,
    ControlFit,
    GraphData,
    LastingFit,
    MapRecipe,
    Optimiser,
    ParityData,
    ParityFit,
    Recipe,
    RelationData,
    RelationFit,
    Schedule,
    Stage,
    WalkFit,
)

DATA: Mapping[str, type] = {"graph-walk": GraphData, "parity": ParityData, "relations": RelationData}
FITS: Mapping[str, tuple[type, ...]] = {
    "graph-walk": (WalkFit, LastingFit, ControlFit), "parity": (ParityFit,), "relations": (RelationFit,)
}  # fmt: skip


def recipe_from(value: object) -> Recipe:
    """The recipe of a value as `to_dict` gives it; what is only for readers is empty.

    InputError for a setting that is missing, unknown, or that does not come back as it went in.
    """
    if not isinstance(value, Mapping):
        raise InputError("a recipe is an object with name, data and stages")
    kind = BackboneRecipe if "model" in value else MapRecipe
    readers: dict[str, Any] = {"about": "", "made_for": ""} if kind is MapRecipe else {"about": ""}
    given = _settings(kind, value, "a recipe", leave_out=FOR_READERS)
    try:
        given["data"] = _data(kind, given["data"])
        given["stages"] = tuple(_stage(each) for each in given["stages"])
        if kind is BackboneRecipe:
            given["model"] = ModelConfig.from_dict(dict(given["model"]))
        made: Recipe = kind(**readers, **given)
        same = json.loads(json.dumps(made.to_dict())) == json.loads(json.dumps(value))
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"recipe {value.get('name')!r}: {error}") from None
    if not same:
        raise InputError(f"recipe {value.get('name')!r} does not come back as it was given")
    return made


def _data(kind: type, value: Mapping[str, Any]) -> Any:
    task = str(value.get("task"))
    choices: tuple[type, ...] = (DATA[task],) if kind is BackboneRecipe and task in DATA else FITS.get(task, ())
    for each in choices:
        if {field.name for field in fields(each)} == value.keys():
            return each(**_tuples(value))
    raise ValueError(f"no data of task {task!r} has the settings {', '.join(map(str, value))}")


def _stage(value: Mapping[str, Any]) -> Stage:
    stage = _settings(Stage, value, "a stage")
    optimiser = _settings(Optimiser, stage["optimiser"], "an optimiser")
    optimiser["schedule"] = Schedule(**_settings(Schedule, optimiser["schedule"], "a schedule"))
    return Stage(**{**_tuples(stage), "optimiser": Optimiser(**_tuples(optimiser))})


def _settings(kind: type, value: Mapping[str, Any], what: str, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The settings of a dataclass, all of them and no others."""
    names = [each.name for each in fields(kind) if each.name not in leave_out]
    for name in value:
        if name not in names:
            raise InputError(f"{what} has no setting {name!r}; there are {', '.join(names)}{nearest(str(name), names)}")
    if missing := [name for name in names if name not in value]:
        raise InputError(f"{what} lacks {', '.join(missing)}")
    return dict(value)


def _tuples(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuple(each) for name, each in value.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list | tuple) else value
