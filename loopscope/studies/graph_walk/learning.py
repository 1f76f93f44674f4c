"""How maps learned: selection accuracy at every check of a fit, from what training noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loopscope.store.artefacts import BACKBONE, MAP, RESULT, name_of, recipe_of
from loopscope.store.files import damaged
from loopscope.store.store import Artefact, Store


@dataclass(frozen=True)
class Curve:
    """Selection accuracy of one fit at every check; `kept` is the update whose map was kept."""

    backbone: str
    target: str
    fit: int
    updates: list[int]
    scores: list[float]
    kept: int


def curves(store: Store, inputs: Mapping[str, str], prefix: str = "") -> list[Curve]:
    """The curves of the maps among the inputs of a record, from what training noted; InputError for what is not there.

    Whatever other maps the backbone has by then: a record does not depend on the order in which things are made.
    """
    name = name_of(store.open(BACKBONE, inputs[BACKBONE]))
    found = [_curve(store.open(MAP, key), name, prefix) for role, key in inputs.items() if role != BACKBONE]
    return sorted(found, key=lambda curve: (curve.target, curve.fit))


def notes(store: Store, inputs: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """What a record keeps of how its maps learned: their curves."""
    return {"curves": [asdict(curve) for curve in curves(store, inputs, prefix)]}


def noted(notes: Mapping[str, Any]) -> list[Curve]:
    """The curves that a record keeps."""
    return [Curve(**curve) for curve in notes.get("curves", ())]


def _curve(fit: Artefact, backbone: str, prefix: str) -> Curve:
    target, number = recipe_of(fit)["name"].removeprefix(prefix), fit.manifest.config["fit"]
    try:
        result = fit.json(RESULT)
        checks = {int(row["update"]): float(row["score"][0]) for row in result["history"] if "score" in row}
        return Curve(backbone, target, number, list(checks), list(checks.values()), int(result["selected"]["update"]))
    except (IndexError, KeyError, TypeError, ValueError):
        raise damaged(fit.folder / RESULT, "the checks of a fit", "something else") from None
