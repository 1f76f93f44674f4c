"""How language models and maps of records came about: the stages of training that a store keeps, found by SHA-256.

A record names the SHA-256 of the weights and of the map that it was measured with.  Beside records, a store keeps how
models were trained (artefacts of kind `lm-training`: the recipe, the weights before and after) and the maps (`lm-map`:
the recipe, the weights that the map was fitted to).  From these the stages of training and the first weights are looked
up; nobody types them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal, get_args, get_origin

from loopscope.bounds import is_finite
from loopscope.errors import InputError
from loopscope.maps import CONFIG_FILE, WEIGHTS_FILE, saved_map_key
from loopscope.store.files import damaged
from loopscope.store.manifest import MANIFEST
from loopscope.store.store import Artefact, Store
from loopscope.training.lm.jobs import KIND as MAP
from loopscope.training.lm.jobs import TRAINING
from loopscope.training.lm.recipe import settings_of, task_written

Recipe = Mapping[str, Any]
"""The settings of a recipe, as a manifest has them."""


@dataclass(frozen=True)
class Stage:
    """One training of a model's weights: its recipe, the weights it began with, and what it was done on."""

    recipe: Recipe
    start: str
    device: str


@dataclass(frozen=True)
class Lineage:
    """Stages by the SHA-256 of the weights that they made, recipes of maps by that of the map."""

    stages: Mapping[str, Stage] = field(default_factory=dict)
    maps: Mapping[str, Recipe] = field(default_factory=dict)

    def of_weights(self, weights: str) -> list[Stage]:
        """The stages that led to these weights, the first one first; none where they are not kept."""
        found: list[Stage] = []
        while weights in self.stages and len(found) <= len(self.stages):
            found.insert(0, self.stages[weights])
            weights = found[0].start
        return found

    def of_map(self, key: str) -> Recipe | None:
        """The recipe of a map; None where it is not kept."""
        return self.maps.get(key)


def lineage(stores: Iterable[Store]) -> Lineage:
    """All that the stores keep; DamagedError for an artefact that is not as written."""
    stages: dict[str, Stage] = {}
    maps: dict[str, Recipe] = {}
    for store in stores:
        for artefact in store.every(TRAINING):
            start, made = (artefact.manifest.inputs.get(name) for name in ("weights", "made"))
            if start is None or made is None:
                raise damaged(artefact.folder / MANIFEST, "the weights before and after a training", "something else")
            stages[made] = Stage(_recipe(artefact), start, artefact.manifest.device)
        for artefact in store.every(MAP):
            maps[_map_key(artefact)] = _recipe(artefact)
    return Lineage(stages, maps)


def _map_key(artefact: Artefact) -> str:
    """What records call a map that a store keeps."""
    try:
        return saved_map_key(artefact.bytes(CONFIG_FILE), artefact.manifest.files[WEIGHTS_FILE].sha256)
    except (InputError, KeyError, RecursionError, ValueError):
        raise damaged(artefact.folder / MANIFEST, "the files of a map", "something else") from None


def _recipe(artefact: Artefact) -> Recipe:
    """The settings of a recipe; one from before there was a setting has that setting's default.

    A setting that there is no more decides nothing that is told.
    """
    where, recipe = artefact.folder / MANIFEST, artefact.manifest.config.get("recipe")
    if not isinstance(recipe, dict) or "task" not in recipe:
        raise damaged(where, "the recipe of a training", "something else")
    try:
        known = settings_of(task_written(recipe["task"]))
    except InputError:
        raise damaged(where, "a recipe with settings that can be", f"task = {recipe['task']!r}") from None
    whole = {name: each.default for name, each in known.items() if each.default is not MISSING} | recipe
    if not known.keys() <= whole.keys():
        raise damaged(where, "the recipe of a training", "something else")
    wrong = sorted(name for name, each in known.items() if not _is_of(whole[name], each.kind))
    if wrong:
        raise damaged(where, "a recipe with settings that can be", f"{wrong[0]} = {whole[wrong[0]]!r}")
    return whole


def _is_of(value: object, kind: Any) -> bool:
    """Whether a JSON value is of the type of a setting."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if options := get_args(kind):  # one type or another
        return any(_is_of(value, option) for option in options)
    if kind is float:
        return is_finite(value)
    return type(value) is kind
