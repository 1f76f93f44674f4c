"""How language models and maps of records came about: the stages of training that a store keeps, found by SHA-256.

A record names the SHA-256 of the weights and of the map it was measured with.  A store keeps, beside records, how
models were trained (`lm-training`: recipe, from which weights, to which) and the maps (`lm-map`: recipe, fitted to
which weights).  So what was trained, in which stages and from which start, is looked up and never typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from loopscope.files import damaged
from loopscope.lm.tuning.jobs import KIND as MAP
from loopscope.lm.tuning.jobs import TRAINING
from loopscope.lm.tuning.recipe import Recipe as Settings
from loopscope.manifest import MANIFEST
from loopscope.maps import CONFIG_FILE, WEIGHTS_FILE, files_key
from loopscope.store import Artefact, Store
from loopscope.training.recipe import FOR_READERS

Recipe = Mapping[str, Any]
"""The settings of a recipe, as a manifest has them."""


DEFAULTS = {each.name: each.default for each in fields(Settings) if each.default is not MISSING}
NEEDED = {each.name for each in fields(Settings)} - DEFAULTS.keys() - {*FOR_READERS}
"""Settings that every recipe has had from the beginning."""


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
            files = {name: artefact.manifest.files[name].sha256 for name in (WEIGHTS_FILE, CONFIG_FILE)}
            maps[files_key(files)] = _recipe(artefact)
    return Lineage(stages, maps)


def _recipe(artefact: Artefact) -> Recipe:
    """The settings of a recipe; one from before there was a setting has that setting's default."""
    match artefact.manifest.config:
        case {"recipe": dict(recipe)} if recipe.keys() >= NEEDED:
            return DEFAULTS | recipe
    raise damaged(artefact.folder / MANIFEST, "the recipe of a training", "something else")
