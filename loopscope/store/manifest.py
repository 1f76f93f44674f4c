"""What identifies an artefact and what its manifest promises: canonical JSON, keys, digests, tensors read with care."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

import loopscope
from loopscope.errors import InputError, NewerError
from loopscope.store.files import damaged, first_line, names_in, read, refuse_link

SCHEMA = 1  # of the layout above; the manifest's text form and its own digest stay the same in every version
MANIFEST = "manifest.json"

MANIFEST_LIMIT = 4 << 20
"""Bytes of a manifest; those of real artefacts have up to 7,000."""

JSON_LIMIT = 64 << 20
"""Bytes of a JSON file; as Python objects they may take thirty times as much."""

HEADER_LIMIT = 16 << 20
"""Bytes of the header of a safetensors file: over 100,000 tensors."""

KIND = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
KEY = re.compile(r"[0-9a-f]{64}")
KEY_OR_PREFIX = re.compile(r"[0-9a-f]{4,64}")


@dataclass(frozen=True)
class FileRecord:
    """What the manifest promises about one file."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        if not (isinstance(self.sha256, str) and KEY.fullmatch(self.sha256)):
            raise InputError(f"a file of SHA-256 {self.sha256!r}; it has 64 hexadecimal digits")
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 0:
            raise InputError(f"a file of {self.size!r} bytes")


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return f"<manifest of {self.kind} {self.key[:12]}: {len(self.files):,} files, {self.created}>"


@runtime_checkable
class HasKey(Protocol):
    """Anything with an artefact's key."""

    @property
    def key(self) -> str:
        """64 hexadecimal digits."""
        ...


Inputs = Mapping[str, HasKey | str]
"""What an artefact is made from: role ("backbone") -> artefact, or -> SHA-256 of something outside the store."""


def artefact_key(kind: str, config: dict[str, Any], inputs: Inputs | None = None) -> str:
    """The key: SHA-256 of the canonical JSON of (kind, config, input keys, schema version).

    The order of dictionary keys and tuple against list do not matter; 1 and 1.0 are different configs.
    """
    return digest(identity(kind, config, inputs))


def parse_tensors(data: bytes, source: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file; `source` names it in errors.

    `DamagedError` for anything else, a pickle for one, which is refused unopened; so is a tensor named twice, which
    safetensors lets pass.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        if length > len(data) - 8:
            raise ValueError(f"{len(data)} bytes that start {data[:8]!r}")
        if length > HEADER_LIMIT:
            raise ValueError(f"a header of {length:,} bytes, which may have {HEADER_LIMIT:,}")
        parse_json(data[8 : 8 + length])
        return safetensors.torch.load(data)
    except (KeyError, RecursionError, RuntimeError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise damaged(source, "a safetensors file", first_line(error)) from error


def parse_json(data: str | bytes) -> Any:
    """The value of a JSON text; ValueError or RecursionError where there is none, or a name stands twice in an object.

    Of two such values JSON says nothing; most readers would take the last one without a word.
    """
    return json.loads(data, object_pairs_hook=_once_each)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice[:60]!r} twice")
    return names


def identity(kind: str, config: dict[str, Any], inputs: Inputs | None, schema: int = SCHEMA) -> dict[str, Any]:
    """What the key is the digest of, as plain JSON; a copy, so that changing `config` later changes nothing."""
    if not (isinstance(kind, str) and KIND.fullmatch(kind)):
        raise InputError(f"kind {kind!r}: a kind is up to 64 of a-z, 0-9 and '-', such as 'figure-data'")
    if not isinstance(config, dict):
        raise InputError(f"config is a {type(config).__name__}; a config is a dict of JSON values")
    keys = {role: getattr(source, "key", source) for role, source in (inputs or {}).items()}
    for role, key in keys.items():
        if not (isinstance(key, str) and KEY.fullmatch(key)):
            raise InputError(f"input {role!r} is {key!r}; an input is an artefact or 64 hexadecimal digits")
    plain = {"config": json.loads(canonical(config, "config")), "inputs": json.loads(canonical(keys, "inputs"))}
    return {"kind": kind, "schema": schema, **plain}


def circumstances(device: torch.device) -> dict[str, Any]:
    """When, with which libraries and on which device something is made."""
    versions = {module.__name__: str(module.__version__) for module in (loopscope, np, safetensors, torch)}
    versions["python"] = platform.python_version()
    cpu = f"{platform.machine()}, {torch.get_num_threads()} threads"
    words = f"{device.type} {torch.cuda.get_device_name(device) if device.type == 'cuda' else cpu}"
    return {"versions": versions, "device": words, "created": datetime.now(UTC).isoformat(timespec="seconds")}


def manifest_text(body: dict[str, Any]) -> bytes:
    """`body` and its digest, so that a flipped bit anywhere in the manifest is noticed.

    InputError for one that would be too large to be read again.
    """
    whole = {**body, "digest": digest(body)}
    text = json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    if len(text) > MANIFEST_LIMIT:
        raise InputError(f"a manifest of {len(text):,} bytes; config and file names may take {MANIFEST_LIMIT:,}")
    return text


def read_digested(path: Path, what: str) -> dict[str, Any]:
    """The body of a file that `manifest_text` wrote, its digest compared and taken out; it has a `schema`.

    DamagedError where it is not `what` it should be.
    """
    raw = read(path, limit=MANIFEST_LIMIT, links=False)
    try:
        body = json.loads(raw)
        promised = body.pop("digest")
        intact = raw == manifest_text(body)
        _whole(body["schema"])
    except (AttributeError, InputError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise damaged(path, what, f"{type(error).__name__}: {first_line(error)}") from error
    if not intact:
        raise damaged(path, f"content of digest {promised}", digest(body))
    return dict(body)


def kinds_in(root: Path) -> tuple[str, ...]:
    """The kinds of artefacts in a store's folder, sorted; `DamagedError` where a link stands for one."""
    kinds = [name for name in names_in(root) if KIND.fullmatch(name)]
    for kind in kinds:
        refuse_link(root / kind, "a folder of artefacts")
    return tuple(kind for kind in kinds if os.path.isdir(root / kind))


def keys_in(folder: Path) -> tuple[str, ...]:
    """The keys of artefacts in the folder of a kind, sorted."""
    return tuple(name for name in names_in(folder) if KEY.fullmatch(name))


def read_manifest(folder: Path) -> Manifest:
    """The manifest in an artefact's folder, after checking that it is intact and belongs to this folder.

    DamagedError when it is not, `NewerError` for a newer schema.
    """
    path = folder / MANIFEST
    body = read_digested(path, "a manifest")
    if body["schema"] > SCHEMA:
        raise NewerError(f"{path} was written by a newer schema {body['schema']}; this version reads up to {SCHEMA}")
    try:
        _check_fields(body)
        files = {check_file_name(name): FileRecord(**record) for name, record in body["files"].items()}
        manifest = Manifest(**{**body, "files": files})
        key = digest(identity(manifest.kind, manifest.config, manifest.inputs, manifest.schema))
    except (AttributeError, InputError, KeyError, TypeError) as error:
        raise damaged(path, f"the fields of schema {SCHEMA}", first_line(error)) from error
    expected = f"{folder.parent.name}/{folder.name}"
    for found in (f"{manifest.kind}/{manifest.key}", f"{manifest.kind}/{key}"):  # what it says, what its config gives
        if found != expected:
            raise damaged(path, f"the manifest of {expected}", f"that of {found}")
    return manifest


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"schema {value!r}")
    return value


def _check_fields(body: dict[str, Any]) -> None:
    """InputError for a field that is not what it always is; those of the identity and the files are checked apart."""
    if body["schema"] < 1:
        raise InputError(f"schema {body['schema']}")
    for field in ("device", "created"):
        if not isinstance(body[field], str):
            raise InputError(f"{field} {body[field]!r}, which is no text")
    if not (isinstance(body["versions"], dict) and all(isinstance(each, str) for each in body["versions"].values())):
        raise InputError("versions that are no texts by name")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; DamagedError if there is none."""
    try:
        content = parse_json(read(file, limit=JSON_LIMIT))
    except (ValueError, RecursionError) as error:
        raise damaged(file, "JSON", first_line(error)) from None
    if not isinstance(content, dict):
        raise damaged(file, "a JSON object", repr(content)[:60])
    return content


def canonical(value: object, where: str, finite: bool = True) -> bytes:
    """JSON with sorted keys, no spaces, in UTF-8; `InputError` for what would not come back as it went in."""
    try:
        _check_json(value, where, finite)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except InputError:
        raise
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where} cannot be written as JSON: {first_line(error)}") from None


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


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical(value, "value")).hexdigest()


def check_file_name(name: str, suffix: str = "") -> str:
    """`name` if it is one plain path component with this suffix, and not the manifest's even on a case-blind disk."""
    plain = isinstance(name, str) and name.isprintable() and name not in ("", ".", "..") and not {*"/\\"} & {*name}
    if not plain or len(name.encode()) > 255 or name.casefold() == MANIFEST:
        raise InputError(f"file name {name!r}: a plain name of 1 to 255 bytes is needed, and not {MANIFEST}")
    if not name.endswith(suffix):
        raise InputError(f"file name {name!r} does not end in {suffix}")
    return name
