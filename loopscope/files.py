"""Files and folders that are written whole, read with their size checked, and locked against other processes.

Every failure of the file system is told in one line as a `StoreError`; a file that is not what it should be as a
`DamagedError`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loopscope.errors import DamagedError, LoopscopeError


class StoreError(LoopscopeError):
    """The file system refused: disk full, no permission, read-only.  Nothing half-written is visible."""


def damaged(path: str | os.PathLike[str], expected: str, found: str) -> DamagedError:
    """The error for a file that is not what was promised."""
    return DamagedError(f"{os.fspath(path)}: expected {expected}, found {found}")


def first_line(error: Exception) -> str:
    """What an exception says, cut to one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def reporting(action: str, path: Path) -> Iterator[None]:
    """Turn a refusal of the file system inside the block into one line: cannot ACTION PATH."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {action} {path}: {error.strerror or error}") from error


def check_size(path: Path, size: int | None) -> None:
    """`DamagedError` unless `path` is a regular file of `size` bytes (None: of any size)."""
    with reporting("read", path):
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise damaged(path, "a file", "none") from None
    if not stat.S_ISREG(status.st_mode):
        raise damaged(path, "a file", "something else")
    if size is not None and status.st_size != size:
        raise damaged(path, f"{size} bytes", f"{status.st_size}")


def read(path: Path, size: int | None = None) -> bytes:
    """The bytes of a regular file of `size` bytes (None: of any size); `DamagedError` when it is not."""
    check_size(path, size)
    with reporting("read", path):
        return path.read_bytes()


def names_in(folder: Path) -> list[str]:
    """Names in a folder, sorted; none when there is no such folder."""
    with reporting("read", folder), suppress(FileNotFoundError):
        return sorted(os.listdir(folder))
    return []


def size_on_disk(folder: Path) -> int:
    """Bytes in all files below a folder."""
    size = 0
    for path in [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]:
        with suppress(FileNotFoundError):  # removed by another process meanwhile
            size += os.lstat(path).st_size
    return size


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and sync it to the disk; nothing is left of it when that fails."""
    with reporting("write", path):
        try:
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last: the sync of a file keeps its content only."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents so that their names last."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when the block ends: whole, or after an exception not at all.

    Files put there should be synced (`write_synced`).  Missing parents are made.
    """
    with reporting("write", out):
        parent = out.absolute().parent
        make_folder(parent)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=parent))
        try:
            yield draft
            draft.chmod(0o755)
            sync_folder(draft)
            draft.rename(out)
            sync_folder(parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def remove_quietly(draft: Path) -> None:
    """Remove a draft, whatever happens; the lock beside it is held meanwhile."""
    with suppress(OSError), locked(draft.parent / ".lock"):
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file `path` until the block ends or the process dies; gives False if another has it (no `wait`)."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    held = True
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            held = False
        yield held
    finally:
        if held:  # not left to the close: a forked child may have a copy of the handle
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
