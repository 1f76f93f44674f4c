"""A child that may write to its own folder and nowhere else, as far as the machine lets us arrange that.

Cases name outputs that must not be replaced.  Where the drill runs as root, a defect would replace what it likes, so
every child gets a view of the file system in which all but its own folder is read-only.  A user who may not do that is
kept from harm by ordinary permissions.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NEW_NAMESPACE, READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18
GUARDED = ("/dev/null", "/dev/zero", "/dev/full")


def confine(folder: Path) -> bool:
    """Make everything but this folder read-only for this process; False where that is not allowed."""
    system = ctypes.CDLL(None, use_errno=True)

    def mount(source: str | None, target: str, flags: int) -> bool:
        given = None if source is None else os.fsencode(source)
        return system.mount(given, os.fsencode(target), None, ctypes.c_ulong(flags), None) == 0

    if os.geteuid() != 0 or system.unshare(NEW_NAMESPACE) != 0:
        return False
    if not mount(None, "/", RECURSIVE | PRIVATE) or not mount(str(folder), str(folder), BIND):
        return False
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    done = [mount(None, place, REMOUNT | BIND | READ_ONLY) for place in places if place != str(folder)]
    return done[0]


def guarded() -> tuple[tuple[int, int], ...]:
    """What the devices are that careless commands write to; it must not change."""
    found = [os.lstat(path) for path in GUARDED if os.path.lexists(path)]
    return tuple((each.st_mode, each.st_rdev) for each in found)
