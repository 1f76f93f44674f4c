"""Artefacts whose content was changed by somebody who also changed every checksum: only the content gives it away."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from tests.drill.cases import Change

MANIFEST = "manifest.json"


def digest(value: object) -> str:
    """As the manifest's own, but of any value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def forged(artefact: Path, change_body: Callable[[dict[str, Any]], Any], rename: bool = False) -> Change:
    """The manifest with another body and the digest of that; with `rename` also the key that follows from it."""

    def change(work: Path) -> None:
        _forge(work / artefact, change_body, rename)

    return change


def refilled(artefact: Path, name: str, content: bytes | Callable[[bytes], bytes]) -> Change:
    """One file of an artefact with another content, and a manifest that says so."""

    def change(work: Path) -> None:
        file = work / artefact / name
        data = content if isinstance(content, bytes) else content(file.read_bytes())
        file.write_bytes(data)
        record = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        _forge(work / artefact, lambda body: body["files"].update({name: record}), False)

    return change


def in_json(inside: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """A change of a JSON value, as one of bytes."""

    def change(data: bytes) -> bytes:
        value = json.loads(data)
        changed = inside(value)
        return json.dumps(value if changed is None else changed).encode()

    return change


def in_tensors(inside: Callable[[dict[str, Tensor]], Any]) -> Callable[[bytes], bytes]:
    """A change of compressed tensors, as one of bytes."""

    def change(data: bytes) -> bytes:
        tensors = load(lzma.decompress(data))
        inside(tensors)
        return lzma.compress(save({name: tensor.contiguous() for name, tensor in tensors.items()}))

    return change


def bomb(gigabytes: int) -> bytes:
    """A small xz file, of many streams one after the other, that expands to this much."""
    return lzma.compress(bytes(1 << 24), preset=0) * (gigabytes * 64)


def _forge(folder: Path, change_body: Callable[[dict[str, Any]], Any], rename: bool) -> None:
    body = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    body.pop("digest")
    changed = change_body(body)
    body = changed if isinstance(changed, dict) and "schema" in changed else body
    if rename:
        told = {name: body.get(name) for name in ("kind", "config", "inputs", "schema")}
        body["key"] = digest(told)
    text = json.dumps({**body, "digest": digest(body)}, indent=1, sort_keys=True, ensure_ascii=False)
    (folder / MANIFEST).write_bytes(text.encode(errors="surrogatepass") + b"\n")
    if rename:
        folder.rename(folder.parent / body["key"])
