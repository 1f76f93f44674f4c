"""What a store must have: every artefact by kind and key, and the SHA-256 of its manifest, which hashes its files.

A verdict rests on all records that were published, so a record that is gone, changed or new changes it without a word.
The stores that come with a checkout (`results/graph-walks`, `results/language-models`, `zoo`) therefore have an
`inventory.json` at their root.  Whoever judges compares it first, which reads manifests and nothing else.  A store
without one promises nothing, and whatever is in it counts.

What is written to a store with an inventory, by whatever command, is listed in the same operation.  What comes or goes
in another way is not: `loopscope store inventory --write` lists it, after hashing every file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from loopscope.errors import DamagedError
from loopscope.store.files import damaged, locked, read, reporting, sync_folder, write_synced
from loopscope.store.manifest import (
    KEY,
    KIND,
    MANIFEST,
    MANIFEST_LIMIT,
    keys_in,
    kinds_in,
    manifest_text,
    read_digested,
)

INVENTORY = "inventory.json"
SCHEMA = 1
NAMED = 5
"""Artefacts that an error names, at most; of the others it says how many there are."""

Entries = dict[str, str]
"""By kind and key ("record/0d3a..."): the SHA-256 of the manifest."""


def has_inventory(root: Path) -> bool:
    """Whether the store in this folder says what it must have, in whatever state that file is."""
    return os.path.lexists(root / INVENTORY)


def listed(root: Path) -> Entries | None:
    """What the store in this folder must have; None where it does not say.

    DamagedError for a file of another form, or of a newer schema.
    """
    path = root / INVENTORY
    if not has_inventory(root):
        return None
    body = read_digested(path, "an inventory")
    if body["schema"] > SCHEMA:
        raise damaged(path, f"an inventory of schema {SCHEMA}", f"one of schema {body['schema']}, of a newer version")
    match body:
        case {"artefacts": dict(entries)} if all(map(_is_entry, entries, entries.values())):
            return entries
    raise damaged(path, "kinds, keys and SHA-256 of manifests", "something else")


def there(root: Path) -> Entries:
    """What the store in this folder has; an artefact without a readable manifest has an empty digest."""
    return {f"{kind}/{key}": _digest(root / kind / key) for kind in kinds_in(root) for key in keys_in(root / kind)}


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Where a store is not as its inventory says, an artefact each, by kind and key."""
    said = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            said.append(f"{name} is missing")
        elif name not in expected:
            said.append(f"{name} is not listed")
        elif found[name] != expected[name]:
            said.append(f"{name} has another manifest")
    return said


def check(root: Path, needed: bool = False) -> int | None:
    """How many artefacts the store in this folder must have, if it has just these; None where it does not say.

    DamagedError that names what is missing, changed or not listed; with `needed` also where there is no inventory.
    """
    expected = listed(root)
    if expected is None:
        if needed:
            raise damaged(root / INVENTORY, "the inventory of what comes with a checkout", "none")
        return None
    if differences(expected, there(root)) and (wrong := _settled(root)):
        more = [f"and {len(wrong) - NAMED} more"] if len(wrong) > NAMED else []
        text = "; ".join([*wrong[:NAMED], *more])
        raise DamagedError(f"{root} is not as its {INVENTORY} says: {text}")
    return len(expected)


def _settled(root: Path) -> list[str]:
    """The differences once no writer is between an artefact and its listing; as they are where no lock can be had."""
    with ExitStack() as stack, suppress(OSError):
        for kind in kinds_in(root):
            stack.enter_context(locked(root / kind / ".lock"))
        return differences(listed(root) or {}, there(root))
    return differences(listed(root) or {}, there(root))


def write(root: Path, names: Iterable[str]) -> Entries:
    """List these artefacts of the store in this folder, by kind and key, and no others; what was written.

    DamagedError for one whose manifest cannot be read.
    """
    entries: Entries = {}
    for name in names:
        entries[name] = _digest(root / name)
        if not entries[name]:
            raise damaged(root / name / MANIFEST, "a manifest", "none that can be read")
    with reporting("write", root / INVENTORY), locked(root / ".lock"):
        _replace(root, entries)
    return entries


def note(artefact: Path, draft: Path | None = None) -> None:
    """List an artefact, given by its folder, if its store has an inventory; DamagedError where that cannot be read.

    `draft` is where its files are before they become that folder: what is new replaces what was listed under its key.
    Without one, an artefact that is there is added where it is missing, and otherwise stays as it is listed.
    """
    root, name = artefact.parent.parent, f"{artefact.parent.name}/{artefact.name}"
    if has_inventory(root):
        with reporting("write", root / INVENTORY), locked(root / ".lock"):
            entries = listed(root) or {}
            if draft is not None or name not in entries:
                _replace(root, entries | {name: _digest(artefact if draft is None else draft)})


def forget(artefact: Path) -> None:
    """Take an artefact that was removed on purpose, given by its folder, out of its store's inventory, if any."""
    root, name = artefact.parent.parent, f"{artefact.parent.name}/{artefact.name}"
    if has_inventory(root):
        with reporting("write", root / INVENTORY), locked(root / ".lock"):
            entries = listed(root) or {}
            if entries.pop(name, None) is not None:
                _replace(root, entries)


def _replace(root: Path, entries: Entries) -> None:
    """Whole or not at all; under the lock, so that a draft of a dead writer is simply written over."""
    draft = root / f".{INVENTORY}.draft"
    write_synced(draft, manifest_text({"schema": SCHEMA, "artefacts": entries}))
    draft.replace(root / INVENTORY)
    sync_folder(root)


def _digest(artefact: Path) -> str:
    try:
        return hashlib.sha256(read(artefact / MANIFEST, limit=MANIFEST_LIMIT)).hexdigest()
    except DamagedError:
        return ""


def _is_entry(name: str, digest: object) -> bool:
    kind, _, key = name.partition("/")
    return bool(KIND.fullmatch(kind) and KEY.fullmatch(key) and isinstance(digest, str) and KEY.fullmatch(digest))
