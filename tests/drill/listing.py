"""What lies in a folder, so that two moments can be compared: kinds, permissions, contents; times do not count."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import stat
from pathlib import Path
from typing import Any

Listing = dict[str, tuple[str, str]]
"""By path from the folder: what is there, exactly and as far as it counts when two runs are compared."""

VOLATILE = {
    "created", "digest", "seconds", "tokens_per_second", "cost", "versions", "device", "folder", "page", "out",
    "metrics", "root", "time", "peak_bytes", "memory", "sha256", "size",
}  # fmt: skip
"""Keys of JSON that may differ between two runs of the same command: times, places, the machine."""

LARGEST = 64 << 20


def listing(root: Path) -> Listing:
    """Everything below a folder; nothing but regular files is opened."""
    found: Listing = {}
    for parent, folders, names in os.walk(os.fsencode(root)):
        for name in [*folders, *names]:
            path = os.path.join(parent, name)
            told = os.path.relpath(path, os.fsencode(root)).decode(errors="backslashreplace")
            found[told] = _entry(path)
    return found


def _entry(path: bytes) -> tuple[str, str]:
    status = os.lstat(path)
    mode = stat.filemode(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return (f"{mode} -> {os.readlink(path)!r}",) * 2
    if not stat.S_ISREG(status.st_mode):
        return mode, mode
    if status.st_size > LARGEST:
        return (f"{mode} {status.st_size} bytes",) * 2
    try:
        with open(path, "rb") as file:
            data = file.read()
    except PermissionError:
        return (f"{mode} unreadable",) * 2
    exact, counted = (hashlib.sha256(each).hexdigest() for each in (data, content(os.fsdecode(path), data)))
    return f"{mode} {exact}", f"{mode} {counted}"


def content(name: str, data: bytes) -> bytes:
    """What of a file counts: of JSON, compressed or not, everything but volatile keys."""
    try:
        if name.endswith(".json.xz"):
            name, data = name.removesuffix(".xz"), lzma.LZMADecompressor().decompress(data, 1 << 24)
        if name.endswith(".json"):
            return json.dumps(without(json.loads(data)), sort_keys=True).encode()
        if name.endswith("SHA256SUMS"):  # of files that hold times
            return b"".join(sorted(line.split()[-1] for line in data.splitlines() if line.split()))
    except (ValueError, RecursionError, lzma.LZMAError):
        pass
    return data


def without(value: Any) -> Any:
    """A JSON value without its volatile keys."""
    if isinstance(value, dict):
        return {name: without(each) for name, each in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [without(each) for each in value]
    return value


def changes(before: Listing, after: Listing) -> list[str]:
    """Paths that are new, gone or other, exactly."""
    gone = ("", "")
    return sorted(path for path in {**before, **after} if before.get(path, gone)[0] != after.get(path, gone)[0])
