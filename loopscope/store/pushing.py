"""Artefacts copied to an object store, or any place that fsspec knows: s3://bucket/folder, gs://..., /a/folder.

The layout is that of a store, so what is brought back into a folder is one.  The manifest of an artefact is written
last: whoever finds one there finds all of it, whenever a push was interrupted, and the same push goes on.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from loopscope.errors import InputError
from loopscope.log import Log, silent
from loopscope.store.contents import Artefact
from loopscope.store.files import StoreError, first_line
from loopscope.store.manifest import MANIFEST
from loopscope.store.store import Store


@dataclass(frozen=True)
class Pushed:
    """How many artefacts were copied and how many bytes they have; how many had been there."""

    copied: int
    there: int
    size: int


def push(store: Store, url: str, besides: Collection[str] = (), log: Log = silent) -> Pushed:
    """Copy all artefacts of a store but those of some kinds; what is there under its key stays as it is.

    Every file is checked on the way: DamagedError where an artefact is not whole.  InputError for an address that
    fsspec does not know, StoreError where the other side refuses.
    """
    files: Any = importlib.import_module("fsspec.core")  # which PyTorch brings
    try:
        place, root = files.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"nothing can be written to {url!r}: {first_line(error)} (nearest: s3://BUCKET/FOLDER)"
        ) from None
    found = [each for kind in store.kinds() if kind not in besides for each in store.every(kind)]
    copied = size = 0
    for number, each in enumerate(found, 1):
        log(f"{each.manifest.kind} {each.key[:12]}, {number} of {len(found)}")
        there = _copied(each, place, f"{root.rstrip('/')}/{each.manifest.kind}/{each.key}")
        copied, size = copied + (there is not None), size + (there or 0)
    return Pushed(copied, len(found) - copied, size)


def _copied(artefact: Artefact, place: Any, folder: str) -> int | None:
    """The bytes of an artefact that was copied; None for one that is there."""
    if _asked(place.exists, f"{folder}/{MANIFEST}"):
        return None
    _asked(place.makedirs, folder, exist_ok=True)
    for name in artefact.manifest.files:
        _asked(place.pipe_file, f"{folder}/{name}", artefact.bytes(name))
    _asked(place.pipe_file, f"{folder}/{MANIFEST}", (artefact.folder / MANIFEST).read_bytes())
    return sum(each.size for each in artefact.manifest.files.values())


def _asked(do: Any, path: str, *given: Any, **how: Any) -> Any:
    try:
        return do(path, *given, **how)
    except Exception as error:  # each kind of store has errors of its own
        raise StoreError(f"cannot write to {path}: {type(error).__name__}: {first_line(error)}") from error
