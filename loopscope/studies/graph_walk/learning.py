"""How maps learned: selection accuracy at every check of a fit, from what training noted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loopscope.store.artefacts import BACKBONE, MAP, RESULT, recipe_of
from loopscope.store.files import damaged
from loopscope.store.store import Artefact, Store
from loopscope.store.zoo import find


@dataclass(frozen=True)
class Curve:
    """Selection accuracy of one fit at every check; `kept` is the update whose map was kept."""

    backbone: str
    target: str
    fit: int
    updates: list[int]
    scores: list[float]
    kept: int


def curves(store: Store, names: Iterable[str], prefix: str = "") -> list[Curve]:
    """The curves of all maps of these backbones, from what training noted; InputError for a backbone not there."""
    fits = store.every(MAP)
    found = []
    for name in names:
        backbone = find(store, name, BACKBONE)
        mine = [fit for fit in fits if fit.manifest.inputs.get(BACKBONE) == backbone.key]
        found += [_curve(fit, name, prefix) for fit in mine]
    return sorted(found, key=lambda curve: (curve.backbone, curve.target, curve.fit))


def notes(store: Store, name: str, prefix: str) -> dict[str, Any]:
    """What a record keeps of how a backbone's maps learned: their curves."""
    return {"curves": [asdict(curve) for curve in curves(store, [name], prefix)]}


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
