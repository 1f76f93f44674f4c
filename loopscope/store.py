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
import fcntl
import hashlib
import json
import math
import os
import platform
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

import loopscope
from loopscope.errors import DamagedError, InputError, LoopscopeError, nearest

SCHEMA = 1  # of the layout above; the manifest's text form and its own digest stay the same in every version
MANIFEST = "manifest.json"

_KIND = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_KEY = re.compile(r"[0-9a-f]{64}")
_KEY_OR_PREFIX = re.compile(r"[0-9a-f]{4,64}")


class StoreError(LoopscopeError):
    """The file system refused: disk full, no permission, read-only.  Nothing half-written is visible."""


@dataclass(frozen=True)
class FileRecord:
    """What the manifest promises about one file."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """Where an artefact comes from (`inputs`: role -> key) and what it must contain (`files`: name -> record)."""

    schema: int
    kind: str
    key: str
    config: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, FileRecord]
    versions: dict[str, str]
    device: str
    created: str


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
        """The tensors of a `.safetensors` file, on the CPU; `only` selects some and insists that they are there."""
        _check_file_name(name, ".safetensors")
        tensors = parse_tensors(self.bytes(name), self.folder / name)
        wanted = list(tensors if only is None else only)
        for tensor in wanted:
            if tensor not in tensors:
                raise InputError(f"{self.folder / name} has no tensor {tensor!r}{nearest(tensor, tensors)}")
        return {tensor: tensors[tensor] for tensor in wanted}

    def json(self, name: str) -> Any:
        """The value in a `.json` file."""
        _check_file_name(name, ".json")
        data = self.bytes(name)
        try:
            return json.loads(data)
        except (RecursionError, ValueError) as error:
            raise _damaged(self.folder / name, "JSON", _first_line(error)) from error

    def bytes(self, name: str) -> builtins.bytes:
        """The content of any file of the artefact."""
        if name not in self.manifest.files:
            known = ", ".join(self.manifest.files) or "no files"
            raise InputError(f"{self.folder} has no file {name!r}; it has {known}{nearest(name, self.manifest.files)}")
        path, record = self.folder / name, self.manifest.files[name]
        data = _read(path, record.size)
        if (found := hashlib.sha256(data).hexdigest()) != record.sha256:
            raise _damaged(path, f"SHA-256 {record.sha256}", found)
        return data

    def verify(self) -> None:
        """Read every file; `DamagedError` for the first that is not what the manifest promises."""
        for name in self.manifest.files:
            self.bytes(name)


Inputs = Mapping[str, Artefact | str]
"""What an artefact is made from: role ("backbone") -> artefact, or -> SHA-256 of something outside the store."""


class Draft:
    """An artefact being written, given by `Store.write`.  `artefact` is there once the `with` block has ended."""

    artefact: Artefact

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self.manifest = manifest

    def tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors of any device and layout as `.safetensors`; equal tensors give equal bytes.

        Values are stored, not memory: tensors that share storage are written one by one.
        """
        _check_file_name(name, ".safetensors")
        try:
            if "__metadata__" in tensors:  # safetensors writes it, and then cannot read the file
                raise ValueError("'__metadata__' cannot be a tensor's name")
            copies = {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in tensors.items()}
            data = safetensors.torch.save(copies)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError, safetensors.SafetensorError) as error:
            raise InputError(f"{name}: these tensors do not fit safetensors: {_first_line(error)}") from error
        self.bytes(name, data)

    def json(self, name: str, value: object) -> None:
        """Write a JSON value as `.json`.  NaN and infinities are kept, in Python's spelling."""
        _check_file_name(name, ".json")
        self.bytes(name, _canonical(value, name, finite=False) + b"\n")

    def bytes(self, name: str, data: builtins.bytes) -> None:
        """Write any file.  `name` is a plain file name: no folders, not `manifest.json`, not written before."""
        _check_file_name(name)
        if name.casefold() in map(str.casefold, self.manifest.files):
            raise InputError(f"{name} is already written in this {self.manifest.kind}")
        record = FileRecord(hashlib.sha256(data).hexdigest(), len(data))
        _write_synced(self._folder / name, data)
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
        identity = _identity(kind, config, inputs)
        manifest = Manifest(key=_digest(identity), files={}, **identity, **_circumstances(torch.device(device)))
        with self._scratch(kind, manifest.key) as scratch:
            draft = Draft(scratch / "artefact", manifest)
            yield draft
            _write_synced(draft._folder / MANIFEST, _manifest_text(asdict(manifest)))
            draft.artefact = self._commit(draft, scratch)

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
        if not _KEY_OR_PREFIX.fullmatch(key):
            raise InputError(f"{kind} {key!r}: a key or prefix is 4 to 64 of the digits 0-9a-f, such as {keys[0][:12]}")
        found = [each for each in keys if each.startswith(key)]
        if len(found) > 1:
            raise InputError(f"{kind} {key!r} is ambiguous: {', '.join(found)}")
        if not found:
            close = difflib.get_close_matches(key, keys, n=3, cutoff=0.0)
            raise InputError(f"{self.root} has no {kind} {key!r} among {len(keys)} (nearest: {', '.join(close)})")
        return self._load(kind, found[0])

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
            with _reporting("clean", folder), _locked(folder / ".lock"):
                for draft in sorted(folder.glob(".draft-*")):
                    with _locked(draft / "writer.lock", wait=False) as dead:
                        if not dead:
                            live += 1
                            continue
                        removed.append(Removed(str(draft), _size_on_disk(draft), "left by a dead writer"))
                        if not dry_run:
                            shutil.rmtree(draft)
        for each in self.verify() if damaged else ():
            if each.state == "damaged" and (dry_run or self._discard(each.kind, each.key)):
                removed.append(Removed(str(self.root / each.kind / each.key), each.size, each.reason))
        return GcReport(tuple(removed), sum(each.size for each in removed), live, dry_run)

    def _kinds(self) -> tuple[str, ...]:
        return tuple(name for name in _names_in(self.root) if _KIND.fullmatch(name) and os.path.isdir(self.root / name))

    def _keys(self, kind: str) -> tuple[str, ...]:
        names = _names_in(self.root / kind) if kind in self._kinds() else []
        return tuple(name for name in names if _KEY.fullmatch(name))

    def _load(self, kind: str, key: str, hashing: bool = False) -> Artefact:
        artefact = Artefact(self.root / kind / key, _read_manifest(self.root / kind / key))
        for name, record in artefact.manifest.files.items():
            _check_size(artefact.folder / name, record.size)
        if hashing:
            artefact.verify()
        return artefact

    def _status(self, kind: str, key: str, hashing: bool = False) -> Status:
        size = _size_on_disk(self.root / kind / key)
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
            with _reporting("write to", folder.parent):
                _make_folder(folder.parent)
                with _locked(folder.parent / ".lock"):
                    folder.mkdir()
                    stack.callback(_remove_quietly, folder)
                    stack.enter_context(_locked(folder / "writer.lock"))
            stack.callback(_remove_quietly, folder)  # runs before the lock is let go: `gc` never sees a finished writer
            with _reporting("write to", folder):
                (folder / "artefact").mkdir()
            yield folder

    def _commit(self, draft: Draft, scratch: Path) -> Artefact:
        folder = self.root / draft.manifest.kind / draft.manifest.key
        with _reporting("write", folder), _locked(folder.parent / ".lock"):
            whole = self._whole_or_moved(draft.manifest.kind, draft.manifest.key, scratch)
            if whole is not None:
                return whole
            _sync_folder(draft._folder)
            draft._folder.rename(folder)
            _sync_folder(folder.parent)
        return Artefact(folder, draft.manifest)

    def _discard(self, kind: str, key: str) -> bool:
        """Remove an artefact if it is still damaged; first out of sight, so that it is never half removed."""
        folder = self.root / kind
        with self._scratch(kind, key) as scratch, _reporting("remove", folder / key), _locked(folder / ".lock"):
            return os.path.lexists(folder / key) and self._whole_or_moved(kind, key, scratch) is None

    def _whole_or_moved(self, kind: str, key: str, scratch: Path) -> Artefact | None:
        """The artefact if it is there and whole; a damaged one moves into `scratch`."""
        folder = self.root / kind / key
        try:
            return self._load(kind, key, hashing=True) if os.path.lexists(folder) else None
        except DamagedError:
            folder.rename(scratch / "damaged")
            return None


# Below: keys, manifests and the content of files.


def artefact_key(kind: str, config: dict[str, Any], inputs: Inputs | None = None) -> str:
    """The key: SHA-256 of the canonical JSON of (kind, config, input keys, schema version).

    The order of dictionary keys and tuple against list do not matter; 1 and 1.0 are different configs.
    """
    return _digest(_identity(kind, config, inputs))


def parse_tensors(data: bytes, source: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file; `source` names it in errors.

    Anything else, a pickle for one, is refused unopened; so is a tensor named twice, which safetensors lets pass.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        if length > len(data) - 8:
            raise ValueError(f"{len(data)} bytes that start {data[:8]!r}")
        json.loads(data[8 : 8 + length], object_pairs_hook=_once_each)
        return safetensors.torch.load(data)
    except (KeyError, RecursionError, RuntimeError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise _damaged(source, "a safetensors file", _first_line(error)) from error


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name, value in pairs:
        if name in names:
            raise ValueError(f"{name!r} twice in the header")
        names[name] = value
    return names


def _identity(kind: str, config: dict[str, Any], inputs: Inputs | None, schema: int = SCHEMA) -> dict[str, Any]:
    """What the key is the digest of, as plain JSON; a copy, so that changing `config` later changes nothing."""
    if not (isinstance(kind, str) and _KIND.fullmatch(kind)):
        raise InputError(f"kind {kind!r}: a kind is up to 64 of a-z, 0-9 and '-', such as 'figure-data'")
    if not isinstance(config, dict):
        raise InputError(f"config is a {type(config).__name__}; a config is a dict of JSON values")
    keys = {role: source.key if isinstance(source, Artefact) else source for role, source in (inputs or {}).items()}
    for role, key in keys.items():
        if not (isinstance(key, str) and _KEY.fullmatch(key)):
            raise InputError(f"input {role!r} is {key!r}; an input is an artefact or 64 hexadecimal digits")
    plain = {"config": json.loads(_canonical(config, "config")), "inputs": json.loads(_canonical(keys, "inputs"))}
    return {"kind": kind, "schema": schema, **plain}


def _circumstances(device: torch.device) -> dict[str, Any]:
    versions = {module.__name__: str(module.__version__) for module in (loopscope, np, safetensors, torch)}
    versions["python"] = platform.python_version()
    cpu = f"{platform.machine()}, {torch.get_num_threads()} threads"
    words = f"{device.type} {torch.cuda.get_device_name(device) if device.type == 'cuda' else cpu}"
    return {"versions": versions, "device": words, "created": datetime.now(UTC).isoformat(timespec="seconds")}


def _manifest_text(body: dict[str, Any]) -> bytes:
    """`body` and its digest, so that a flipped bit anywhere in the manifest is noticed."""
    whole = {**body, "digest": _digest(body)}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _read_manifest(folder: Path) -> Manifest:
    """The manifest in an artefact's folder, after checking that it is intact and belongs to this folder."""
    path = folder / MANIFEST
    raw = _read(path)
    try:
        body = json.loads(raw)
        digest = body.pop("digest")
        intact, newer = raw == _manifest_text(body), body["schema"] > SCHEMA
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _damaged(path, "a manifest", f"{type(error).__name__}: {_first_line(error)}") from error
    if not intact:
        raise _damaged(path, f"content of digest {digest}", _digest(body))
    if newer:
        raise InputError(f"{path} was written by a newer schema {body['schema']}; this version reads up to {SCHEMA}")
    try:
        files = {_check_file_name(name): FileRecord(**record) for name, record in body["files"].items()}
        manifest = Manifest(**{**body, "files": files})
        key = _digest(_identity(manifest.kind, manifest.config, manifest.inputs, manifest.schema))
    except (AttributeError, InputError, KeyError, TypeError) as error:
        raise _damaged(path, f"the fields of schema {SCHEMA}", _first_line(error)) from error
    expected = f"{folder.parent.name}/{folder.name}"
    for found in (f"{manifest.kind}/{manifest.key}", f"{manifest.kind}/{key}"):  # what it says, what its config gives
        if found != expected:
            raise _damaged(path, f"the manifest of {expected}", f"that of {found}")
    return manifest


def _canonical(value: object, where: str, finite: bool = True) -> bytes:
    """JSON with sorted keys, no spaces, in UTF-8; `InputError` for what would not come back as it went in."""
    try:
        _check_json(value, where, finite)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except InputError:
        raise
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where} cannot be written as JSON: {_first_line(error)}") from None


def _check_json(value: object, where: str, finite: bool) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise InputError(f"{where} has the key {name!r}; keys are text")
            _check_json(item, f"{where}.{name}", finite)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_json(item, f"{where}[{i}]", finite)
    elif isinstance(value, float) and finite and not math.isfinite(value):
        raise InputError(f"{where} is {value}; numbers must be finite")
    elif not isinstance(value, bool | int | float | str | None):
        raise InputError(f"{where} is a {type(value).__name__}; JSON has dict, list, str, int, float, bool and None")


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value, "value")).hexdigest()


def _check_file_name(name: str, suffix: str = "") -> str:
    """`name` if it is one plain path component with this suffix, and not the manifest's even on a case-blind disk."""
    plain = isinstance(name, str) and name.isprintable() and name not in ("", ".", "..") and not {*"/\\"} & {*name}
    if not plain or len(name.encode()) > 255 or name.casefold() == MANIFEST:
        raise InputError(f"file name {name!r}: a plain name of 1 to 255 bytes is needed, and not {MANIFEST}")
    if not name.endswith(suffix):
        raise InputError(f"file name {name!r} does not end in {suffix}")
    return name


# Below: the file system.


def _damaged(path: str | os.PathLike[str], expected: str, found: str) -> DamagedError:
    return DamagedError(f"{os.fspath(path)}: expected {expected}, found {found}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def _reporting(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {action} {path}: {error.strerror or error}") from error


def _check_size(path: Path, size: int | None) -> None:
    """`DamagedError` unless `path` is a regular file of `size` bytes (None: of any size)."""
    with _reporting("read", path):
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise _damaged(path, "a file", "none") from None
    if not stat.S_ISREG(status.st_mode):
        raise _damaged(path, "a file", "something else")
    if size is not None and status.st_size != size:
        raise _damaged(path, f"{size} bytes", f"{status.st_size}")


def _read(path: Path, size: int | None = None) -> bytes:
    _check_size(path, size)
    with _reporting("read", path):
        return path.read_bytes()


def _names_in(folder: Path) -> list[str]:
    with _reporting("read", folder), suppress(FileNotFoundError):
        return sorted(os.listdir(folder))
    return []


def _size_on_disk(folder: Path) -> int:
    size = 0
    for path in [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]:
        with suppress(FileNotFoundError):  # removed by another process meanwhile
            size += os.lstat(path).st_size
    return size


def _write_synced(path: Path, data: bytes) -> None:
    with _reporting("write", path):
        try:
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise


def _sync_folder(folder: Path) -> None:
    """Make the names in `folder` last: the sync of a file keeps its content only."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _remove_quietly(draft: Path) -> None:
    with suppress(OSError), _locked(draft.parent / ".lock"):
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file `path` until the block ends or the process dies; gives False if another has it (no `wait`)."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    held = True
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            held = False
        yield held
    finally:
        if held:  # not left to the close: a forked child may have a copy of the handle
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
