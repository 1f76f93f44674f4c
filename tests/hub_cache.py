"""A cache of the Hugging Face hub on disk, as its own library lays it out, filled from model folders."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "some-lab/Tiny-Ouro.v1"


def put_snapshot(
    cache: Path, source: Path, name: str = NAME, commit: str = COMMIT, ref: str | None = "main", links: bool = True
) -> Path:
    """The files of a folder as a snapshot, known by a ref; contents are blobs and links to them, or files without."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot, blobs = repository / "snapshots" / commit, repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir(exist_ok=True)
    for file in sorted(source.iterdir()):
        content = file.read_bytes()
        blob = blobs / hashlib.sha256(content).hexdigest()
        if links:
            blob.write_bytes(content)
            (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
        else:
            (snapshot / file.name).write_bytes(content)
    if ref is not None:
        place = repository / "refs" / ref
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(commit, encoding="utf-8")
    return snapshot
