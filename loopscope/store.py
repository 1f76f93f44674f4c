"""Content-addressed artefacts on disk: whole or absent, found again by what they were made from, checked when read.

An artefact is a folder `<root>/<kind>/<key>/` of data files and a `manifest.json`.  Its key is the digest of (kind,
config, keys of its inputs, schema version): a finished step is found again, an interrupted one leaves nothing visible.

    with store.write("map", {"rank": 8}, inputs={"backbone": backbone}) as draft:
        draft.tensors("map.safetensors", {"A": A, "b": b})
        draft.json("metrics.json", {"loss": 0.1})
    artefact = draft.artefact                       # or, in a later run: store.find("map", {"rank": 8}, inputs=...)
    A = artefact.tensors("map.safetensors")["A"]

How a write survives a crash: all files, the manifest last, are written and synced in `<root>/<kind>/.draft-*/artefact`,
and one rename makes them visible.  The writer holds an flock on `.draft-*/writer.lock`, which the kernel drops however
the process dies, so `gc` knows the drafts of dead writers.  `<root>/<kind>/.lock` is held while names change.
"""

from __future__ import annotations

import builtins
import difflib
import hashlib
import json
import lzma
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from loopscope.errors import DamagedError, InputError, LoopscopeError, nearest
from loopscope.files import (
    check_size,
    damaged,
    first_line,
    locked,
    make_folder,
    names_in,
    read,
    remove_quietly,
    reporting,
    size_on_disk,
    sync_folder,
    write_synced,
)
from loopscope.manifest import (
    KEY,
    KEY_OR_PREFIX,
    KIND,
    MANIFEST,
    FileRecord,
    Inputs,
    Manifest,
    artefact_key,
    canonical,
    check_file_name,
    circumstances,
    digest,
    identity,
    manifest_text,
    parse_tensors,
    read_manifest,
)

XZ = ".xz"
"""The end of the name of a compressed file."""

SQUEEZED = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]
"""How whole files are compressed: of weights in 16 bits, every other byte is alike, and a third is saved."""


@dataclass(frozen=True)
class Artefact:
    """A finished artefact.  Every read checks size and SHA-256 and raises `DamagedError` if they do not fit.

    The bytes that were checked are the bytes that are parsed.  A file the artefact never had is an `InputError`.
    """

    folder: Path
    manifest: Manifest

    @property
    def key(self) -> str:
        """64 hexadecimal digits; a unique prefix of them opens the artefact again."""
        return self.manifest.key

    def tensors(self, name: str, only: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The tensors of a `.safetensors` or `.safetensors.xz` file, on the CPU; the first may be stored as the second.

        `only` selects some and insists that they are there.
        """
        check_file_name(name.removesuffix(XZ), ".safetensors")
        tensors = parse_tensors(self._opened(name), self.folder / name)
        wanted = list(tensors if only is None else only)
        for tensor in wanted:
            if tensor not in tensors:
                raise InputError(f"{self.folder / name} has no tensor {tensor!r}{nearest(tensor, tensors)}")
        return {tensor: tensors[tensor] for tensor in wanted}

    def json(self, name: str) -> Any:
        """The value in a `.json` or `.json.xz` file; the first may be stored as the second."""
        check_file_name(name.removesuffix(XZ), ".json")
        data = self._opened(name)
        try:
            return json.loads(data)
        except (RecursionError, ValueError) as error:
            raise damaged(self.folder / name, "JSON", first_line(error)) from error

    def bytes(self, name: str) -> builtins.bytes:
        """The content of any file of the artefact."""
        if name not in self.manifest.files:
            known = ", ".join(self.manifest.files) or "no files"
            raise InputError(f"{self.folder} has no file {name!r}; it has {known}{nearest(name, self.manifest.files)}")
        path, record = self.folder / name, self.manifest.files[name]
        data = read(path, record.size)
        if (found := hashlib.sha256(data).hexdigest()) != record.sha256:
            raise damaged(path, f"SHA-256 {record.sha256}", found)
        return data

    def has(self, name: str) -> bool:
        """Whether there is a file of this name, compressed or not."""
        return name in self.manifest.files or name + XZ in self.manifest.files

    def _opened(self, name: str) -> builtins.bytes:
        """The content of a file, decompressed if it is stored compressed."""
        if name not in self.manifest.files and name + XZ in self.manifest.files:
            name += XZ
        data = self.bytes(name)
        if not name.endswith(XZ):
            return data
        try:
            return lzma.decompress(data)
        except lzma.LZMAError as error:
            raise damaged(self.folder / name, "an xz file", first_line(error)) from error

    def verify(self) -> None:
        """Read every file; `DamagedError` for the first that is not what the manifest promises."""
        for name in self.manifest.files:
            self.bytes(name)


class Draft:
    """An artefact being written, given by `Store.write`.  `artefact` is there once the `with` block has ended."""

    artefact: Artefact

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self.manifest = manifest

    def tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors of any device and layout as `.safetensors`; equal tensors give equal bytes.

        A name that ends in `.safetensors.xz` compresses them.  Values are stored, not memory: tensors that share
        storage are written one by one.
        """
        check_file_name(name.removesuffix(XZ), ".safetensors")
        try:
            if "__metadata__" in tensors:  # safetensors writes it, and then cannot read the file
                raise ValueError("'__metadata__' cannot be a tensor's name")
            copies = {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in tensors.items()}
            data = safetensors.torch.save(copies)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError, safetensors.SafetensorError) as error:
            raise InputError(f"{name}: these tensors do not fit safetensors: {first_line(error)}") from error
        self._squeezed(name, data)

    def json(self, name: str, value: object) -> None:
        """Write a JSON value as `.json` or, compressed, `.json.xz`.  NaN and infinities stay, in Python's spelling."""
        check_file_name(name.removesuffix(XZ), ".json")
        self._squeezed(name, canonical(value, name, finite=False) + b"\n")

    def _squeezed(self, name: str, data: builtins.bytes) -> None:
        self.bytes(name, lzma.compress(data, preset=9) if name.endswith(XZ) else data)

    def bytes(self, name: str, data: builtins.bytes) -> None:
        """Write any file.  `name` is a plain file name: no folders, not `manifest.json`, not written before."""
        check_file_name(name)
        if name.casefold() in map(str.casefold, self.manifest.files):
            raise InputError(f"{name} is already written in this {self.manifest.kind}")
        record = FileRecord(hashlib.sha256(data).hexdigest(), len(data))
        write_synced(self._folder / name, data)
        self.manifest.files[name] = record


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

    def adopt(self, artefact: Artefact, squeeze: Iterable[str] = ()) -> Artefact:
        """Copy an artefact of another store, where it came from included: same key, same content; whole or not at all.

        Files named in `squeeze` are stored compressed, with `.xz` behind their names; they are read by their own names
        all the same.  Every file is checked on the way: `DamagedError` if the original is not whole.  If a whole
        artefact of the same key is here, that one is kept and given; a damaged one is replaced.
        """
        smaller = set(squeeze)
        with self._draft(replace(artefact.manifest, files={})) as draft:
            for name in artefact.manifest.files:
                data = artefact.bytes(name)
                if name in smaller:
                    draft.bytes(name + XZ, lzma.compress(data, filters=SQUEEZED))
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
            return True

    def find(self, kind: str, config: dict[str, Any], inputs: Inputs | None = None) -> Artefact | None:
        """The artefact made from exactly this, or None if it has to be made.

        A damaged one raises `DamagedError`: it is never used, and writing it again replaces it.
        """
        key = artefact_key(kind, config, inputs)
        return self._load(kind, key) if key in self._keys(kind) else None

    def open(self, kind: str, key: str) -> Artefact:
        """The artefact with this key, or with the only key that starts so (at least 4 characters)."""
        keys = self._keys(kind)
        if not keys:
            kinds = [each for each in self._kinds() if self._keys(each)]
            there = ", ".join(kinds) or "nothing"
            raise InputError(f"{self.root} has no artefact of kind {kind!r}; it has {there}{nearest(kind, kinds)}")
        if not KEY_OR_PREFIX.fullmatch(key):
            raise InputError(f"{kind} {key!r}: a key or prefix is 4 to 64 of the digits 0-9a-f, such as {keys[0][:12]}")
        found = [each for each in keys if each.startswith(key)]
        if len(found) > 1:
            raise InputError(f"{kind} {key!r} is ambiguous: {', '.join(found)}")
        if not found:
            close = difflib.get_close_matches(key, keys, n=3, cutoff=0.0)
            raise InputError(f"{self.root} has no {kind} {key!r} among {len(keys)} (nearest: {', '.join(close)})")
        return self._load(kind, found[0])

    def all(self, kind: str) -> tuple[Artefact, ...]:
        """Every readable artefact of a kind, by key, after the quick check of `list`.

        What is damaged, of a newer schema or without permission is left out; `list` and `verify` name it.
        """
        found = []
        for key in self._keys(kind):
            with suppress(LoopscopeError):
                found.append(self._load(kind, key))
        return tuple(found)

    def every(self, kind: str) -> tuple[Artefact, ...]:
        """Every artefact of a kind, by key; the error of the first that cannot be read, so that none is passed over."""
        return tuple(self._load(kind, key) for key in self._keys(kind))

    def list(self) -> tuple[Status, ...]:
        """Every visible artefact, by kind and key, after a quick check: manifest and file sizes, no hashing."""
        return tuple(self._status(kind, key) for kind in self._kinds() for key in self._keys(kind))

    def verify(self) -> tuple[Status, ...]:
        """Every visible artefact after hashing all its files.  Damage is reported, never raised."""
        return tuple(self._status(kind, key, hashing=True) for kind in self._kinds() for key in self._keys(kind))

    def gc(self, *, dry_run: bool = False, damaged: bool = False) -> GcReport:
        """Remove what dead writers left behind and, if asked, damaged artefacts.  Drafts of live writers stay.

        An artefact of a newer schema or without read permission is not damaged.  `dry_run` removes nothing.
        """
        removed: builtins.list[Removed] = []
        live = 0
        for folder in (self.root / kind for kind in self._kinds()):
            with reporting("clean", folder), locked(folder / ".lock"):
                for draft in sorted(folder.glob(".draft-*")):
                    with locked(draft / "writer.lock", wait=False) as dead:
                        if not dead:
                            live += 1
                            continue
                        removed.append(Removed(str(draft), size_on_disk(draft), "left by a dead writer"))
                        if not dry_run:
                            shutil.rmtree(draft)
        for each in self.verify() if damaged else ():
            if each.state == "damaged" and (dry_run or self._discard(each.kind, each.key)):
                removed.append(Removed(str(self.root / each.kind / each.key), each.size, each.reason))
        return GcReport(tuple(removed), sum(each.size for each in removed), live, dry_run)

    def _kinds(self) -> tuple[str, ...]:
        return tuple(name for name in names_in(self.root) if KIND.fullmatch(name) and os.path.isdir(self.root / name))

    def _keys(self, kind: str) -> tuple[str, ...]:
        names = names_in(self.root / kind) if kind in self._kinds() else []
        return tuple(name for name in names if KEY.fullmatch(name))

    def _load(self, kind: str, key: str, hashing: bool = False) -> Artefact:
        artefact = Artefact(self.root / kind / key, read_manifest(self.root / kind / key))
        for name, record in artefact.manifest.files.items():
            check_size(artefact.folder / name, record.size)
        if hashing:
            artefact.verify()
        return artefact

    def _status(self, kind: str, key: str, hashing: bool = False) -> Status:
        size = size_on_disk(self.root / kind / key)
        try:
            return Status(kind, key, "ok", "", size, self._load(kind, key, hashing).manifest.created)
        except LoopscopeError as error:
            state = "damaged" if isinstance(error, DamagedError) else "unreadable"
            return Status(kind, key, state, str(error), size, created="")

    @contextmanager
    def _scratch(self, kind: str, key: str) -> Iterator[Path]:
        """A temporary folder beside the artefacts, locked as long as it is in use, and gone afterwards."""
        folder = self.root / kind / f".draft-{key[:12]}-{secrets.token_hex(6)}"
        with ExitStack() as stack:
            with reporting("write to", folder.parent):
                make_folder(folder.parent)
                with locked(folder.parent / ".lock"):
                    folder.mkdir()
                    stack.callback(remove_quietly, folder)
                    stack.enter_context(locked(folder / "writer.lock"))
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
            write_synced(draft._folder / MANIFEST, manifest_text(asdict(draft.manifest)))
            draft.artefact = self._commit(draft, scratch)

    def _commit(self, draft: Draft, scratch: Path) -> Artefact:
        folder = self.root / draft.manifest.kind / draft.manifest.key
        with reporting("write", folder), locked(folder.parent / ".lock"):
            whole = self._whole_or_moved(draft.manifest.kind, draft.manifest.key, scratch)
            if whole is not None:
                return whole
            sync_folder(draft._folder)
            draft._folder.rename(folder)
            sync_folder(folder.parent)
        return Artefact(folder, draft.manifest)

    def _discard(self, kind: str, key: str) -> bool:
        """Remove an artefact if it is still damaged; first out of sight, so that it is never half removed."""
        folder = self.root / kind
        with self._scratch(kind, key) as scratch, reporting("remove", folder / key), locked(folder / ".lock"):
            return os.path.lexists(folder / key) and self._whole_or_moved(kind, key, scratch) is None

    def _whole_or_moved(self, kind: str, key: str, scratch: Path) -> Artefact | None:
        """The artefact if it is there and whole; a damaged one moves into `scratch`."""
        folder = self.root / kind / key
        try:
            return self._load(kind, key, hashing=True) if os.path.lexists(folder) else None
        except DamagedError:
            folder.rename(scratch / "damaged")
            return None
