"""Files of jobs as people write them: recipes by name, a backbone by recipe and seed, in the place of values and keys.

{"name": "map", "what": "fit", "settings": {"recipes": ["tiny-one"], "fits": [1]}, "inputs": {"backbone": "tiny-0"}}
"""

from __future__ import annotations

import re
from typing import Any

from loopscope.errors import InputError
from loopscope.jobs.cohort import backbone_keys
from loopscope.store.artefacts import BACKBONE
from loopscope.store.manifest import KEY
from loopscope.studies.recipes import backbone_recipe, map_recipe


def resolved(value: Any) -> Any:
    """The same value with recipes and keys for their names; what is otherwise wrong is left to `graph_of`.

    InputError names what there is not.
    """
    if not isinstance(value, dict) or not isinstance(value.get("jobs"), list):
        return value
    return {**value, "jobs": [_job(each) if isinstance(each, dict) else each for each in value["jobs"]]}


def _job(job: dict[str, Any]) -> dict[str, Any]:
    settings, inputs = job.get("settings", {}), job.get("inputs", {})
    if not isinstance(settings, dict) or not isinstance(inputs, dict) or job.get("what") not in ("train", "fit"):
        return job
    settings, inputs = dict(settings), dict(inputs)
    if isinstance(settings.get("recipe"), str):
        settings["recipe"] = backbone_recipe(settings["recipe"]).to_dict()
    if isinstance(settings.get("recipes"), list):
        named = settings["recipes"]
        settings["recipes"] = [map_recipe(each).to_dict() if isinstance(each, str) else each for each in named]
    name = inputs.get(BACKBONE)
    if isinstance(name, str) and not KEY.fullmatch(name):
        inputs[BACKBONE] = _key(name)
    return {**job, "settings": settings, "inputs": inputs}


def _key(name: str) -> str:
    match = re.fullmatch(r"(.+)-([0-9]{1,9})", name)
    if match is None:
        raise InputError(f"a backbone is named by recipe and seed, such as tiny-0, or by its whole key; not {name!r}")
    return backbone_keys(backbone_recipe(match[1]), [int(match[2])])[name]
