"""Changes of files, by kind; each gives a function on the folder that a case runs in."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.drill.cases import Change

GONE = object()
"""In place of a value: the key is removed."""


def flip(file: Path | str, byte: int, bit: int) -> Change:
    """One bit of a file, the byte counted from the end where it is negative."""

    def change(work: Path) -> None:
        data = bytearray((work / file).read_bytes())
        data[byte] ^= 1 << bit
        (work / file).write_bytes(data)

    return change


def flips(file: Path | str, size: int, count: int, draw: random.Random) -> Iterator[tuple[int, Change]]:
    """Up to `count` places of a file of this size, drawn, each with the flip of a bit there."""
    for at in sorted(draw.sample(range(size), min(count, size))):
        yield at, flip(file, at, draw.randrange(8))


def cut(file: Path | str, size: int) -> Change:
    """A file's first bytes, or all but the last ones where the number is negative."""

    def change(work: Path) -> None:
        (work / file).write_bytes((work / file).read_bytes()[:size])

    return change


def append(file: Path | str, data: bytes) -> Change:
    """More at the end of a file."""

    def change(work: Path) -> None:
        with (work / file).open("ab") as content:
            content.write(data)

    return change


def replace(file: Path | str, data: bytes) -> Change:
    """Another content, in a file that may not be there yet."""

    def change(work: Path) -> None:
        (work / file).parent.mkdir(parents=True, exist_ok=True)
        (work / file).write_bytes(data)

    return change


def remove(file: Path | str) -> Change:
    """A file or folder less."""

    def change(work: Path) -> None:
        path = work / file
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return change


def copy(source: Path | str, target: Path | str) -> Change:
    """One file or folder in the place of another."""

    def change(work: Path) -> None:
        if (work / source).is_dir():
            shutil.rmtree(work / target, ignore_errors=True)
            shutil.copytree(work / source, work / target)
        else:
            (work / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(work / source, work / target)

    return change


def link(file: Path | str, target: str) -> Change:
    """A symbolic link in a file's place; a missing place is made."""

    def change(work: Path) -> None:
        path = work / file
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    return change


def moved_and_linked(file: Path | str) -> Change:
    """A link to where the file or folder now is, outside."""

    def change(work: Path) -> None:
        target = work.parent / "outside" / "moved"
        shutil.move(work / file, target)
        (work / file).symlink_to(target)

    return change


def fifo(file: Path | str) -> Change:
    """A FIFO that nobody writes to, in a file's place."""

    def change(work: Path) -> None:
        _clear(work / file)
        os.mkfifo(work / file)

    return change


def device(file: Path | str, minor: int) -> Change:
    """A device of our own in a file's place: 3 is null, 5 zero, 7 full; a FIFO for a user who may not make one."""

    def change(work: Path) -> None:
        _clear(work / file)
        try:
            os.mknod(work / file, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        except PermissionError:
            os.mkfifo(work / file)

    return change


def folder(file: Path | str) -> Change:
    """A folder in a file's place."""

    def change(work: Path) -> None:
        _clear(work / file)
        (work / file).mkdir()

    return change


def sparse(file: Path | str, size: int) -> Change:
    """A file as long as this, of zeros, that takes no room."""

    def change(work: Path) -> None:
        _clear(work / file)
        with (work / file).open("wb") as content:
            content.truncate(size)

    return change


def mode(file: Path | str, bits: int) -> Change:
    """Other permissions."""
    return lambda work: os.chmod(work / file, bits)


def edit(file: Path | str, change_value: Callable[[Any], Any]) -> Change:
    """A JSON file with another value; what the function gives, or the given value changed in place."""

    def change(work: Path) -> None:
        value = json.loads((work / file).read_text(encoding="utf-8"))
        changed = change_value(value)
        (work / file).write_text(json.dumps(value if changed is None else changed), encoding="utf-8")

    return change


def put(file: Path | str, path: tuple[str | int, ...], value: object) -> Change:
    """A JSON file with one value replaced, or removed (`GONE`)."""

    def inside(whole: Any) -> None:
        at = whole
        for name in path[:-1]:
            at = at[name]
        if value is GONE:
            del at[path[-1]]
        else:
            at[path[-1]] = value

    return edit(file, inside)


def each(*parts: Change) -> Change:
    """Several changes, one after the other."""

    def change(work: Path) -> None:
        for part in parts:
            part(work)

    return change


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
