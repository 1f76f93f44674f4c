"""Files and folders that a user names to be written (`--out`): what may stand there before, and how they appear.

Nothing that is there is replaced: no file, folder, link, pipe or device.  With `force` a file is that Loopscope wrote,
known by a mark in it.  What is written appears whole or not at all, and never through a link.  A writer that is killed
leaves a hidden folder beside, which the next writer there removes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loopscope.errors import InputError
from loopscope.store.files import StoreError, draft_beside, reporting, sync_folder

MARK = "loopscope"
"""The one key in the metadata of every safetensors file that a command writes for a user: what it is about, as JSON.

Several keys would come in another order every time, and equal contents give other bytes.
"""

KINDS = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link"}


def found_at(path: Path) -> str | None:
    """What stands at a path, "a file", "a folder", "a link" or "something else"; None where nothing does."""
    with reporting("look at", path):
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
    return KINDS.get(stat.S_IFMT(mode), "something else, such as a device")


def parent_of(out: Path) -> Path:
    """The folder that something is to be put into; InputError where there is none."""
    parent = out.absolute().parent
    if not parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {parent}")
    return parent


def check_folder(out: Path, ours: str = "") -> None:
    """InputError unless a folder can be made at `out`: nothing may be there but a folder with a file named `ours`."""
    found = found_at(out)
    if found is None or (ours and found == "a folder" and found_at(out / ours) == "a file"):
        return
    raise InputError(f"{out} exists already, as {found}; give a folder that does not")


def check_file(out: Path, force: bool = False) -> None:
    """InputError unless a file can be put at `out`: nothing may be there but, with `force`, a file with our mark."""
    parent_of(out)
    found = found_at(out)
    if found is None:
        return
    if found != "a file":
        raise InputError(f"{out} exists already, as {found}, which is never replaced; give a file that does not")
    if not is_ours(out):
        raise InputError(f"{out} exists already and is no file that Loopscope wrote; give a file that does not")
    if not force:
        raise InputError(f"{out} exists already; give a file that does not, or --force to replace it")


def is_ours(file: Path) -> bool:
    """Whether a regular file is a safetensors file with our mark."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as content:
            metadata = content.metadata() or {}
    except (OSError, SafetensorError):
        return False
    return MARK in metadata


def write_file(out: Path, fill: Callable[[Path], None], force: bool = False) -> None:
    """Let `fill` write a file under another name, then put it at `out`, where it appears whole or not at all.

    Checked as by `check_file`, before and, as files may come meanwhile, at the end.  StoreError where the file system
    refuses.
    """
    check_file(out, force)
    with draft_beside(out) as drafts:
        draft = drafts / "content"
        fill(draft)
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        check_file(out, force)
        if force:
            draft.replace(out)
        else:
            _put(draft, out)
        sync_folder(out.absolute().parent)


def _put(draft: Path, out: Path) -> None:
    """Give a file its name; InputError where something has it meanwhile."""
    try:
        os.link(draft, out)
    except FileExistsError:
        check_file(out)
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        draft.rename(out)  # a file system without second names; it was looked at a moment ago


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder; StoreError where another does."""
    with reporting("write to", folder):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"cannot write to {folder}: another process is writing to it") from None
        yield
    finally:
        os.close(handle)
