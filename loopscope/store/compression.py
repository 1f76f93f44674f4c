"""Compressed files: xz, with a limit to what they may expand to, so that a small file never fills the memory."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopscope.errors import InputError
from loopscope.store.files import damaged, first_line

XZ = ".xz"
"""The end of the name of a compressed file."""

EXPANDED, TIMES = 256 << 20, 16
"""A file may expand to this many bytes, or to so many times its own size if that is more.

What comes with a checkout expands to at most 3.2 MB; weights hardly shrink, and predictions are small.
"""

MEMORY = 256 << 20
"""Bytes that decompressing may take besides; the highest preset takes 65 MiB."""

STRONG: Mapping[str, Any] = {"id": lzma.FILTER_LZMA2, "preset": 9}
"""How files are compressed."""

DENSE: Mapping[str, Any] = {**STRONG, "lc": 3, "lp": 1, "pb": 1}
"""How weights in 16 bits are compressed, of which every other byte is alike: a third is saved."""

LEAST, MOST = 4096, 64 << 20
"""Bytes that are looked back at, at least and at most.  Memory for more than there are shortens nothing."""


def compress(data: bytes, name: str, how: Mapping[str, Any] = STRONG) -> bytes:
    """`data` as an xz file; InputError where `expand` would refuse it, since it shrinks too well for its size."""
    small = lzma.compress(data, filters=[{**how, "dict_size": min(max(len(data), LEAST), MOST)}])
    if len(data) > _limit(small):
        raise InputError(
            f"{name}: {len(data):,} bytes shrink to {len(small):,}, which is not expanded again; store it without {XZ}"
        )
    return small


def expand(data: bytes, path: Path) -> bytes:
    """The content of an xz file of one stream; DamagedError, which names `path`, if it is none or expands too far."""
    limit = _limit(data)
    try:
        reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
        content = reader.decompress(data, max_length=limit + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise damaged(path, "an xz file", first_line(error)) from error
    if len(content) > limit:
        raise damaged(path, f"an xz file of at most {limit:,} bytes", f"more, from {len(data):,}")
    if not reader.eof:
        raise damaged(path, "an xz file", "the beginning of one")
    if reader.unused_data:
        raise damaged(path, "one xz file", f"{len(reader.unused_data):,} bytes behind it")
    return content


def _limit(compressed: bytes) -> int:
    return max(EXPANDED, TIMES * len(compressed))
