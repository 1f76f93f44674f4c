"""SHA256SUMS: what the files of a model folder were when Loopscope wrote it, as `sha256sum -c` reads it.

Whoever uses such a folder is told when a file is not what it was: changed, gone, or added among those that decide what
is computed.  Released folders have no such list and are taken as they are; so is a folder whose list was removed, which
is how a file is changed on purpose.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from loopscope.errors import DamagedError
from loopscope.store.files import check_size, damaged, read, reporting, sha256_of, write_synced
from loopscope.store.manifest import JSON_LIMIT

SUMS = "SHA256SUMS"

SETTLED = 2_000_000_000
"""Nanoseconds after which a file's times tell it from a later one: clocks of file systems tick coarsely."""

_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)", re.DOTALL)
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}


def write_sums(folder: Path) -> dict[str, str]:
    """List every file in a folder; gives the SHA-256 of each by name.  StoreError where the disk refuses."""
    with reporting("read", folder):
        files = sorted(each for each in folder.iterdir() if each.is_file() and each.name != SUMS)
    found = {file.name: sha256(file) for file in files}
    write_synced(folder / SUMS, sums_text(found))
    return found


def sums_text(hashes: Mapping[str, str]) -> bytes:
    """The list, from SHA-256s by name."""
    lines = []
    for name, found in sorted(hashes.items()):
        escaped = "".join(_ESCAPES.get(each, each) for each in name)
        lines.append(f"{'' if escaped == name else chr(92)}{found}  {escaped}\n")
    return os.fsencode("".join(lines))


def check_files(folder: Path, names: Iterable[str], every: bool = False) -> None:
    """DamagedError where one of the named files is not what the folder's list says, or is there without being listed.

    `every`: also where another listed file is not.  Names may be of files that are not there.  Nothing is checked in a
    folder without a list.
    """
    if not os.path.lexists(folder / SUMS):
        return
    listed = _listed(folder / SUMS)
    for name in dict.fromkeys((*names, *(listed if every else ()))):
        if name not in listed:
            if os.path.lexists(folder / name):
                raise _changed(folder / name, "added", f"{SUMS} does not list it")
            continue
        if not (folder / name).is_file():
            raise _changed(folder / name, "removed", f"{SUMS} lists it")
        if (found := sha256(folder / name)) != listed[name]:
            raise _changed(folder / name, "changed", f"expected SHA-256 {listed[name]}, found {found}")


def sha256(file: Path) -> str:
    """The SHA-256 of a regular file; one that has not changed since this process hashed it is not read again."""
    check_size(file, None)
    with reporting("read", file):
        status = file.stat()
        latest = max(status.st_mtime_ns, status.st_ctime_ns)
        if time.time_ns() - latest < SETTLED:
            return _hashed.__wrapped__(file, ())
        mark = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        return _hashed(file.absolute(), mark)


@lru_cache(maxsize=256)
def _hashed(file: Path, mark: tuple[int, ...]) -> str:
    return sha256_of(file)


def _listed(file: Path) -> dict[str, str]:
    """The SHA-256s in a list by the names of files; DamagedError for anything but such lines."""
    found: dict[str, str] = {}
    for line in os.fsdecode(read(file, limit=JSON_LIMIT)).split("\n"):
        if not line:
            continue
        parts = _LINE.fullmatch(line)
        name = parts and (_unescaped(parts[3]) if parts[1] else parts[3])
        if not parts or not name or "/" in name or name in ("..", ".", *found):
            raise damaged(file, "lines of a SHA-256 and the name of a file beside it, each once", repr(line)[:80])
        found[name] = parts[2]
    return found


def _unescaped(name: str) -> str:
    back = {escaped: plain for plain, escaped in _ESCAPES.items()}
    return re.sub(r"\\.", lambda found: back.get(found[0], found[0]), name)


def _changed(file: Path, how: str, why: str) -> DamagedError:
    return DamagedError(
        f"{file} was {how} since Loopscope wrote the folder: {why}; whoever did that on purpose removes {SUMS}"
    )
