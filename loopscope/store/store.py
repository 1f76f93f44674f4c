"""Artefacts on disk, addressed by inputs and checked by content: whole or absent, found again by what made them.

An artefact is a folder `<root>/<kind>/<key>/` of data files and a `manifest.json`.  Its key is the digest of (kind,
config, keys of its inputs, schema version): a finished step is found again, an interrupted one leaves nothing visible.
The manifest has the SHA-256 of every file.  The same key on another device or with another number of threads may have
other bits; `differences.py` tells where.

    with store.write("map", {"rank": 8}, inputs={"backbone": backbone}) as draft:
        draft.tensors("map.safetensors", {"A": A, "b": b})
        draft.json("metrics.json", {"loss": 0.1})
    artefact = draft.artefact                       # or, in a later run: store.find("map", {"rank": 8}, inputs=...)
    A = artefact.tensors("map.safetensors")["A"]

How a write survives a crash: all files, the manifest last, are written and synced in `<root>/<kind>/.draft-*/artefact`,
and one rename makes them visible.  The writer holds an flock on `.draft-*/writer.lock`, which the kernel drops however
the process dies, so `gc` knows the drafts of dead writers.  `<root>/<kind>/.lock` is held while names change.

The root may be a link.  Below it nothing is read, written or removed through one: a link there is damage, told by name.
"""

from __future__ import annotations

import difflib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from loopscope.bounds import cut
from loopscope.errors import DamagedError, InputError, LoopscopeError, nearest
from loopscope.store import compression, inventory
from loopscope.store.contents import Artefact, Draft
from loopscope.store.files import (
    WRITER,
    check_size,
    locked,
    make_folder,
    refuse_link,
    remove_dead_drafts,
    remove_quietly,
    reporting,
    size_on_disk,
    sync_folder,
    write_synced,
)
from loopscope.store.manifest import (
    KEY,
    KEY_OR_PREFIX,
    MANIFEST,
    Inputs,
    Manifest,
    artefact_key,
    circumstances,
    digest,
    identity,
    keys_in,
    kinds_in,
    manifest_text,
    read_manifest,
)

__all__ = ["Artefact", "Draft", "GcReport", "Removed", "Status", "Store"]


@dataclass(frozen=True)
class Status:
    """One visible artefact.  `state`: "ok", "damaged" or "unreadable" (newer schema, no permission); `reason`: why."""

    kind: str
    key: str
    state: str
    reason: str
    size: int
    created: str


@dataclass(frozen=True)
class Removed:
    """One thing that `gc` removed, or would remove."""

    path: str
    size: int
    reason: str


@dataclass(frozen=True)
class GcReport:
    """What `gc` did: `freed` bytes; `live` counts the drafts it left because their writer is at work."""

    removed: tuple[Removed, ...]
    freed: int
    live: int
    dry_run: bool


class Store:
    """The artefacts under one folder, which the first write creates.  Safe for many processes at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"Store({cut(str(self.root))!r})"

    @contextmanager
    def write(
        self, kind: str, config: dict[str, Any], inputs: Inputs | None = None, device: torch.device | str = "cpu"
    ) -> Iterator[Draft]:
        """Write an artefact: it appears when the block ends, and an exception inside the block leaves nothing.

        If a whole artefact of the same key is there by then, that one is kept and given; a damaged one is replaced.
        `device` is where the content was computed; the manifest says it in words.
        """
        what = identity(kind, config, inputs)
        with self._draft(Manifest(key=digest(what), files={}, **what, **circumstances(torch.device(device)))) as draft:
            yield draft

    def adopt(self, artefact: Artefact, compress: Iterable[str] = ()) -> Artefact:
        """Copy an artefact of another store, where it came from included: same key, same content; whole or not at all.

        Files named in `compress` are stored compressed, with `.xz` behind their names; they are read by their own names
        all the same.  Every file is checked on the way: `DamagedError` if the original is not whole.  If a whole
        artefact of the same key is here, that one is kept and given; a damaged one is replaced.
        """
        smaller = set(compress)
        with self._draft(replace(artefact.manifest, files={})) as draft:
            for name in artefact.manifest.files:
                data = artefact.bytes(name)
                if name in smaller:
                    draft.bytes(name + compression.XZ, compression.compress(data, name, compression.DENSE))
                else:
                    draft.bytes(name, data)
        return draft.artefact

    def remove(self, kind: str, key: str) -> bool:
        """Take out the artefact with this whole key, in whatever state it is; False if it is not there.

        It goes out of sight at once and is deleted then, so that half of it is never visible.  Whoever still has it
        open may get a `DamagedError` from the next read.
        """
        if not (isinstance(key, str) and KEY.fullmatch(key)):
            raise InputError(f"{kind} {key!r}: to remove an artefact, give all 64 hexadecimal digits of its key")
        folder = self.root / kind
        if key not in self._keys(kind):
            return False
        with self._scratch(kind, key) as scratch, reporting("remove", folder / key), locked(folder / ".lock"):
            if not os.path.lexists(folder / key):  # another process was faster
                return False
            (folder / key).rename(scratch / "removed")
            sync_folder(folder)  # a machine that stops half-way through the deletion must not show it again
            inventory.forget(folder / key)
            return True

    def find(self, kind: str, config: dict[str, Any], inputs: Inputs | None = None) -> Artefact | None:
        """The artefact made from exactly this, or None if it has to be made.

        A damaged one raises `DamagedError`: it is never used, and writing it again replaces it.
        """
        key = artefact_key(kind, config, inputs)
        return self._there(kind, key) if key in self._keys(kind) else None

    def has(self, kind: str, key: str) -> bool:
        """Whether the artefact with this whole key is there, after the quick check of `list`; errors as `find`."""
        return key in self._keys(kind) and self._there(kind, key) is not None

    def open(self, kind: str, key: str) -> Artefact:
        """The artefact with this key, or with the only key that starts so (at least 4 characters)."""
        keys = self._keys(kind)
        if not keys:
            kinds = [each for each in self.kinds() if self._keys(each)]
            there = ", ".join(kinds) or "nothing"
            raise InputError(f"{self.root} has no artefact of kind {kind!r}; it has {there}{nearest(kind, kinds)}")
        if not KEY_OR_PREFIX.fullmatch(key):
            raise InputError(f"{kind} {key!r}: a key or prefix is 4 to 64 of the digits 0-9a-f, such as {keys[0][:12]}")
        found = [each for each in keys if each.startswith(key)]
        if len(found) > 1:
            raise InputError(f"{kind} {key!r} is ambiguous: {', '.join(found)}")
        artefact = self._there(kind, found[0]) if found else None
        if artefact is None:
            close = difflib.get_close_matches(key, keys, n=3, cutoff=0.0)
            raise InputError(f"{self.root} has no {kind} {key!r} among {len(keys)} (nearest: {', '.join(close)})")
        return artefact

    def every(self, kind: str) -> tuple[Artefact, ...]:
        """Every artefact of a kind, by key, after the quick check of `list`.

        The error of the first that cannot be read, so that none is passed over.
        """
        found, errors = self.readable(kind)
        for error in errors:
            raise error
        return found

    def readable(self, kind: str) -> tuple[tuple[Artefact, ...], tuple[LoopscopeError, ...]]:
        """The artefacts of a kind that can be read, and the errors of the others: for who can go on without."""
        found, errors = [], []
        for key in self._keys(kind):
            try:
                artefact = self._there(kind, key)
            except LoopscopeError as error:
                errors.append(error)
            else:
                found += [artefact] if artefact is not None else []
        return tuple(found), tuple(errors)

    def list(self) -> tuple[Status, ...]:
        """Every visible artefact, by kind and key, after a quick check: manifest and file sizes, no hashing."""
        return self._statuses(hashing=False)

    def verify(self) -> tuple[Status, ...]:
        """Every visible artefact after hashing all its files.  Damage is reported, never raised.

        So is whatever else is in its folder.
        """
        return self._statuses(hashing=True)

    def gc(self, *, dry_run: bool = False, damaged: bool = False) -> GcReport:
        """Remove what dead writers left behind and, if asked, damaged artefacts.  Drafts of live writers stay.

        An artefact of a newer schema or without read permission is not damaged.  `dry_run` removes nothing.
        """
        left = remove_dead_drafts(self.root, dry_run)
        removed = [Removed(str(draft), size, "left by a dead writer") for draft, size in left]
        live = 0
        for folder in (self.root / kind for kind in self.kinds()):
            with reporting("clean", folder), locked(folder / ".lock"):
                for draft in sorted(folder.glob(".draft-*")):
                    refuse_link(draft, "a draft")
                    if not draft.is_dir():
                        continue  # which no writer left
                    with locked(draft / WRITER, wait=False) as dead:
                        live += not dead
                    # Closed by now: NFS keeps a file that is open, under another name, and the folder would never be
                    # empty.  Nobody else can have taken the lock: for that, one holds that of the kind.
                    if dead:
                        removed.append(Removed(str(draft), size_on_disk(draft), "left by a dead writer"))
                    if dead and not dry_run:
                        shutil.rmtree(draft)
        for each in self.verify() if damaged else ():
            if each.state == "damaged" and (dry_run or self._discard(each.kind, each.key)):
                removed.append(Removed(str(self.root / each.kind / each.key), each.size, each.reason))
        return GcReport(tuple(removed), sum(each.size for each in removed), live, dry_run)

    def kinds(self) -> tuple[str, ...]:
        """The kinds of artefacts that there are, sorted; `DamagedError` where a link stands for one."""
        return kinds_in(self.root)

    def _keys(self, kind: str) -> tuple[str, ...]:
        return keys_in(self.root / kind) if kind in self.kinds() else ()

    def _load(self, kind: str, key: str, hashing: bool = False, alone: bool = False) -> Artefact:
        """The artefact, its sizes checked and if asked its hashes, and that nothing else is in its folder."""
        folder = self.root / kind / key
        refuse_link(folder, "a folder")
        artefact = Artefact(folder, read_manifest(folder))
        for name, record in artefact.manifest.files.items():
            check_size(folder / name, record.size, links=False)
        if hashing:
            artefact.verify()
        if alone:
            artefact.verify_alone()
        return artefact

    def _there(self, kind: str, key: str, thorough: bool = False) -> Artefact | None:
        """As `_load`; None if the artefact is gone.  Other processes may remove or replace it meanwhile."""
        folder = self.root / kind / key
        while (before := _instance(folder)) is not None:
            try:
                return self._load(kind, key, hashing=thorough, alone=thorough)
            except LoopscopeError:
                if _instance(folder) == before:
                    raise
        return None

    def _statuses(self, hashing: bool) -> tuple[Status, ...]:
        found = (self._status(kind, key, hashing) for kind in self.kinds() for key in self._keys(kind))
        return tuple(each for each in found if each is not None)

    def _status(self, kind: str, key: str, hashing: bool) -> Status | None:
        size = size_on_disk(self.root / kind / key)
        try:
            artefact = self._there(kind, key, thorough=hashing)
        except LoopscopeError as error:
            state = "damaged" if isinstance(error, DamagedError) else "unreadable"
            return Status(kind, key, state, str(error), size, created="")
        return None if artefact is None else Status(kind, key, "ok", "", size, artefact.manifest.created)

    @contextmanager
    def _scratch(self, kind: str, key: str) -> Iterator[Path]:
        """A temporary folder beside the artefacts, locked as long as it is in use, and gone afterwards."""
        folder = self.root / kind / f".draft-{key[:12]}-{secrets.token_hex(6)}"
        with ExitStack() as stack:
            with reporting("write to", folder.parent):
                refuse_link(folder.parent, "a folder of artefacts")
                make_folder(folder.parent)
                with locked(folder.parent / ".lock"):
                    folder.mkdir()
                    stack.callback(remove_quietly, folder)
                    stack.enter_context(locked(folder / WRITER))
            stack.callback(remove_quietly, folder)  # runs before the lock is let go: `gc` never sees a finished writer
            with reporting("write to", folder):
                (folder / "artefact").mkdir()
            yield folder

    @contextmanager
    def _draft(self, manifest: Manifest) -> Iterator[Draft]:
        """A draft with this manifest, to which the block adds the files; committed when the block ends."""
        with self._scratch(manifest.kind, manifest.key) as scratch:
            draft = Draft(scratch / "artefact", manifest)
            yield draft
            write_synced(draft.folder / MANIFEST, manifest_text(asdict(draft.manifest)))
            draft.artefact = self._commit(draft, scratch)

    def _commit(self, draft: Draft, scratch: Path) -> Artefact:
        folder = self.root / draft.manifest.kind / draft.manifest.key
        with reporting("write", folder), locked(folder.parent / ".lock"):
            whole = self._whole_or_moved(draft.manifest.kind, draft.manifest.key, scratch)
            if whole is not None:
                inventory.note(folder)
                return whole
            sync_folder(draft.folder)
            inventory.note(folder, draft.folder)
            draft.folder.rename(folder)
            sync_folder(folder.parent)
        return Artefact(folder, draft.manifest)

    def _discard(self, kind: str, key: str) -> bool:
        """Remove an artefact if it is still damaged; first out of sight, so that it is never half removed."""
        folder = self.root / kind
        with self._scratch(kind, key) as scratch, reporting("remove", folder / key), locked(folder / ".lock"):
            return os.path.lexists(folder / key) and self._whole_or_moved(kind, key, scratch, alone=True) is None

    def _whole_or_moved(self, kind: str, key: str, scratch: Path, alone: bool = False) -> Artefact | None:
        """The artefact if it is there and whole, with nothing beside its files if asked; a damaged one is moved."""
        folder = self.root / kind / key
        try:
            return self._load(kind, key, hashing=True, alone=alone) if os.path.lexists(folder) else None
        except DamagedError:
            folder.rename(scratch / "damaged")
            return None


def _instance(folder: Path) -> tuple[int, int, int] | None:
    """What tells a folder from one that replaced it; None if there is none."""
    try:
        status = os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # what cannot be looked at does not change for us
        return (0, 0, 0)
    return (status.st_dev, status.st_ino, status.st_ctime_ns)
