"""How backbones and maps came about: manifest and training history of each, kept where their weights are too large.

A campaign exports a history beside its records.  It is an artefact of kind `history` whose input is the backbone or map
itself, so a history is found by that key, and a record's inputs lead to the histories of what it was measured on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loopscope.store.artefacts import BACKBONE, MAP, RESULT, name_of
from loopscope.store.files import damaged
from loopscope.store.manifest import MANIFEST
from loopscope.store.store import Artefact, Store

HISTORY = "history"
FILE = "history.json.xz"


@dataclass(frozen=True)
class History:
    """`manifest`: config, inputs, circumstances and hashes of the artefact `key`; `result`: all that training noted."""

    name: str
    kind: str
    key: str
    manifest: Mapping[str, Any]
    result: Mapping[str, Any]


def keep(trained: Store, results: Store) -> int:
    """Write the history of every backbone and map of a store to another; how many there are.

    Weights that came without one, made elsewhere, have none.
    """
    found = [each for kind in (BACKBONE, MAP) for each in trained.every(kind) if each.has(RESULT)]
    for artefact in found:
        manifest = artefact.manifest
        with results.write(HISTORY, {"name": name_of(artefact)}, {manifest.kind: artefact.key}) as draft:
            draft.json(FILE, {"manifest": asdict(manifest), "result": artefact.json(RESULT)})
    return len(found)


def histories(results: Store) -> list[History]:
    """Every history of a store, backbones first, by name; DamagedError for one that is not as written."""
    return sorted(map(_load, results.every(HISTORY)), key=lambda each: (each.kind, each.name))


def named(artefact: Artefact) -> tuple[str, str, str]:
    """Name, kind and key of what a history is of; DamagedError where it does not say."""
    match artefact.manifest.config, artefact.manifest.inputs:
        case {"name": str(name)}, {**inputs} if len(inputs) == 1:
            (kind, key), *_ = inputs.items()
            return name, kind, key
    raise damaged(artefact.folder / MANIFEST, "the history of one backbone or map", "something else")


def _load(artefact: Artefact) -> History:
    name, kind, key = named(artefact)
    match artefact.json(FILE):
        case {"manifest": dict(manifest), "result": dict(result)}:
            if (manifest.get("kind"), manifest.get("key")) == (kind, key):
                return History(name, kind, key, manifest, result)
    raise damaged(artefact.folder / FILE, f"manifest and result of the {kind} {key}", "something else")
