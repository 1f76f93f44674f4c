"""One artefact's files: read with every check, written once.  `store.py` says how artefacts appear and are found."""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from loopscope.bounds import line
from loopscope.errors import InputError, nearest
from loopscope.store.compression import XZ, compress, expand
from loopscope.store.files import damaged, first_line, names_in, read, sha256_of, write_synced
from loopscope.store.manifest import (
    HEADER_LIMIT,
    JSON_LIMIT,
    MANIFEST,
    FileRecord,
    Manifest,
    canonical,
    check_file_name,
    parse_tensors,
)


@dataclass(frozen=True, repr=False)
class Artefact:
    """A finished artefact.  Every read checks size and SHA-256 and raises `DamagedError` if they do not fit.

    The bytes that were checked are the bytes that are parsed.  A file the artefact never had is an `InputError`.
    """

    folder: Path
    manifest: Manifest

    def __repr__(self) -> str:
        return f"<{self.manifest.kind} {self.key[:12]}: {line(', '.join(self.manifest.files)) or 'no files'}>"

    @property
    def key(self) -> str:
        """64 hexadecimal digits; a unique prefix of them opens the artefact again."""
        return self.manifest.key

    def tensors(self, name: str, only: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The tensors of a `.safetensors` or `.safetensors.xz` file, on the CPU; the first may be stored as the second.

        `only` selects some and insists that they are there.
        """
        check_file_name(name.removesuffix(XZ), ".safetensors")
        tensors = parse_tensors(self.content(name), self.folder / name)
        wanted = list(tensors if only is None else only)
        for tensor in wanted:
            if tensor not in tensors:
                raise InputError(f"{self.folder / name} has no tensor {tensor!r}{nearest(tensor, tensors)}")
        return {tensor: tensors[tensor] for tensor in wanted}

    def json(self, name: str) -> Any:
        """The value in a `.json` or `.json.xz` file; the first may be stored as the second."""
        check_file_name(name.removesuffix(XZ), ".json")
        data = self.content(name)
        try:
            if len(data) > JSON_LIMIT:
                raise ValueError(f"{len(data):,} bytes, which may be {JSON_LIMIT:,}")
            return json.loads(data)
        except (RecursionError, ValueError) as error:
            raise damaged(self.folder / name, "JSON", first_line(error)) from error

    def bytes(self, name: str) -> builtins.bytes:
        """Any file of the artefact, as it is stored."""
        if name not in self.manifest.files:
            known = ", ".join(self.manifest.files) or "no files"
            raise InputError(f"{self.folder} has no file {name!r}; it has {known}{nearest(name, self.manifest.files)}")
        path, record = self.folder / name, self.manifest.files[name]
        data = read(path, record.size, links=False)
        if (found := hashlib.sha256(data).hexdigest()) != record.sha256:
            raise damaged(path, f"SHA-256 {record.sha256}", found)
        return data

    def has(self, name: str) -> bool:
        """Whether there is a file of this name, compressed or not."""
        return self.stored(name) in self.manifest.files

    def stored(self, name: str) -> str:
        """What a file is called in the folder: `name`, or that with `.xz` where it is stored compressed."""
        compressed = name not in self.manifest.files and name + XZ in self.manifest.files
        return name + XZ if compressed else name

    def content(self, name: str) -> builtins.bytes:
        """The content of a file, decompressed if it is stored compressed."""
        name = self.stored(name)
        data = self.bytes(name)
        return expand(data, self.folder / name) if name.endswith(XZ) else data

    def verify(self) -> None:
        """Read every file; `DamagedError` for the first that is not what the manifest promises."""
        for name, record in self.manifest.files.items():
            path = self.folder / name
            if (found := sha256_of(path, record.size, links=False)) != record.sha256:
                raise damaged(path, f"SHA-256 {record.sha256}", found)

    def verify_alone(self) -> None:
        """`DamagedError` for anything in the folder that the manifest does not list."""
        if added := [name for name in names_in(self.folder) if name not in (MANIFEST, *self.manifest.files)]:
            raise damaged(self.folder, "only what its manifest lists", f"also {', '.join(map(repr, added[:3]))}")


class Draft:
    """An artefact being written, given by `Store.write`.  `artefact` is there once the `with` block has ended."""

    artefact: Artefact

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
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
        if int.from_bytes(data[:8], "little") > HEADER_LIMIT:
            raise InputError(f"{name}: {len(copies):,} tensors are too many for one file")
        self._compressed(name, data)

    def json(self, name: str, value: object) -> None:
        """Write a JSON value as `.json` or, compressed, `.json.xz`.  NaN and infinities stay, in Python's spelling."""
        check_file_name(name.removesuffix(XZ), ".json")
        data = canonical(value, name, finite=False) + b"\n"
        if len(data) > JSON_LIMIT:
            raise InputError(f"{name}: {len(data):,} bytes of JSON, which may be {JSON_LIMIT:,}")
        self._compressed(name, data)

    def _compressed(self, name: str, data: builtins.bytes) -> None:
        self.bytes(name, compress(data, name) if name.endswith(XZ) else data)

    def bytes(self, name: str, data: builtins.bytes) -> None:
        """Write any file.  `name` is a plain file name: no folders, not `manifest.json`, not written before."""
        check_file_name(name)
        if name.casefold() in map(str.casefold, self.manifest.files):
            raise InputError(f"{name} is already written in this {self.manifest.kind}")
        record = FileRecord(hashlib.sha256(data).hexdigest(), len(data))
        write_synced(self.folder / name, data)
        self.manifest.files[name] = record
