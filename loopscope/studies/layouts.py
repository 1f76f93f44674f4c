"""The layouts of all experiments: the names, types, shapes and bounds of the tensors that its records keep.

A record whose tensors are not what it says of itself is refused when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from loopscope.store.artefacts import BACKBONE
from loopscope.store.manifest import artefact_key
from loopscope.studies.experiment import Experiment
from loopscope.studies.recipes import RECIPES
from loopscope.studies.records import LayoutOf, ModelFacts, Record
from loopscope.studies.registry import EXPERIMENTS
from loopscope.studies.schema import Layout, MisfitError, only
from loopscope.training.recipe import BackboneRecipe


def layout_of(experiment: Experiment) -> LayoutOf | None:
    """The layout of an experiment's records, after what must be so in all records; None where it names none."""
    if experiment.layout is None:
        return None
    own = experiment.layout

    def layout(record: Record) -> Layout:
        if record.raw != experiment.raw:
            raise MisfitError("counts" if experiment.raw else "answers, two to a byte", f"raw: {record.raw}")
        if experiment.notes is None:
            only(record.notes, (), "notes")
        _check_recipe(record.facts)
        return own(record)

    return layout


LAYOUTS: Mapping[str, LayoutOf] = {
    name: layout for name, each in EXPERIMENTS.items() if (layout := layout_of(each)) is not None
}
"""By experiment on backbones."""


def _check_recipe(facts: ModelFacts) -> None:
    """A key is that of recipe and seed: where the recipe is known by it, so are the model's numbers."""
    name, _, seed = facts.name.rpartition("-")
    found = _trained(name, int(seed)) if seed.isdecimal() and len(seed) < 9 else None
    if found is not None and found[0] == facts.key:
        for what, expected in found[1].items():
            if (there := getattr(facts, what)) != expected:
                raise MisfitError(f"{expected} {what}, as its recipe has them", str(there))


@cache
def _trained(name: str, seed: int) -> tuple[str, dict[str, int]] | None:
    """The key of a backbone of this recipe, and what records say of it; None for a recipe that there is not."""
    recipe = RECIPES.get(name)
    if not isinstance(recipe, BackboneRecipe):
        return None
    model, plain = recipe.model, recipe.to_dict()
    numbers = {"loops": model.loops, "nodes": model.classes, "heads": model.heads}
    numbers["depth"] = plain["data"].get("depth", 0)
    return artefact_key(BACKBONE, {"recipe": plain, "seed": seed}), numbers
