"""Files and folders that are written whole, read with their size checked, and locked against other processes.

Every failure of the file system is told in one line as a `StoreError`; a file that is not what it should be as a
`DamagedError`.  Nothing is written, locked or removed through a link, and nothing that is no regular file (a pipe, a
socket, a device) is waited for.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from loopscope.errors import DamagedError, InputError, LoopscopeError

WRITER = "writer.lock"
"""In a draft: whoever fills it holds this lock, which the kernel drops however the process dies."""

DRAFT = re.compile(r"\.draft-loopscope-[0-9a-f]{16}")
"""What drafts beside folders of the user's are called; those of a store are its own."""

FILLED = "folder"
"""In such a draft: what becomes the new folder."""


class StoreError(LoopscopeError):
    """The file system refused: disk full, no permission, read-only.  Nothing half-written is visible."""


def damaged(path: str | os.PathLike[str], expected: str, found: str) -> DamagedError:
    """The error for a file that is not what was promised."""
    return DamagedError(f"{os.fspath(path)}: expected {expected}, found {found}")


def first_line(error: BaseException) -> str:
    """What an exception says, cut to one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def reporting(action: str, path: Path) -> Iterator[None]:
    """Turn a refusal of the file system inside the block into one line: cannot ACTION PATH."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {action} {path}: {error.strerror or error}") from error


def refuse_link(path: Path, expected: str) -> None:
    """`DamagedError`, which names both ends, if `path` is a link; `expected` says what should stand there."""
    with reporting("look at", path), suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise damaged(path, expected, f"a link to {os.readlink(path)!r}, which is not followed")


@contextmanager
def opened(
    path: Path, size: int | None = None, *, limit: int | None = None, links: bool = True
) -> Iterator[BufferedReader]:
    """A regular file of `size` bytes (None: of any size), at most `limit`, for reading; `DamagedError` when it is not.

    What is checked is what is open; a pipe, a socket or a device is refused at once, and without `links` a link is too.
    """
    with reporting("read", path), ExitStack() as stack:
        if not links:
            refuse_link(path, "a file")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
        try:
            handle = os.open(path, flags)
        except (FileNotFoundError, NotADirectoryError):
            raise damaged(path, "a file", "none") from None
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ELOOP):  # a socket; links in a circle
                raise damaged(path, "a file", "something else") from None
            raise
        stack.callback(os.close, handle)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise damaged(path, "a file", "something else")
        if size is not None and status.st_size != size:
            raise damaged(path, f"{size} bytes", f"{status.st_size}")
        if limit is not None and status.st_size > limit:
            raise damaged(path, f"at most {limit:,} bytes", f"{status.st_size:,}")
        yield stack.enter_context(open(handle, "rb", closefd=False))


def check_size(path: Path, size: int | None, *, links: bool = True) -> None:
    """`DamagedError` unless `path` is a regular file of `size` bytes (None: of any size)."""
    with opened(path, size, links=links):
        pass


def read(path: Path, size: int | None = None, *, limit: int | None = None, links: bool = True) -> bytes:
    """The bytes of a regular file of `size` bytes (None: of any size), at most `limit`; `DamagedError` when it is not.

    Without `links` a link is refused.  StoreError where the memory does not hold it.
    """
    with opened(path, size, limit=limit, links=links) as file:
        try:
            data = file.read()
        except MemoryError:
            raise StoreError(f"cannot read {path}: the memory does not hold its content") from None
    if size is not None and len(data) != size:  # it changed while it was read
        raise damaged(path, f"{size} bytes", f"{len(data)}")
    return data


def sha256_of(path: Path, size: int | None = None, *, links: bool = True) -> str:
    """SHA-256 of a file as `read` would give it, in hexadecimal digits; takes little memory."""
    with opened(path, size, links=links) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def names_in(folder: Path) -> list[str]:
    """Names in a folder, sorted; none when there is no such folder."""
    with reporting("read", folder), suppress(FileNotFoundError):
        return sorted(os.listdir(folder))
    return []


def size_on_disk(folder: Path) -> int:
    """Bytes in all files below a folder, as far as they may be looked at."""
    size = 0
    for path in [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]:
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # removed meanwhile, or another user's
            size += os.lstat(path).st_size
    return size


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and sync it to the disk; nothing is left of it when that fails.  A link is refused."""
    refuse_link(path, "a file")
    with reporting("write", path), open(path, "wb", opener=_regular) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise


def new_file(path: Path) -> None:
    """An empty file at `path`, where a regular file may have been; `DamagedError` for a link or anything else there.

    The old file is let go rather than emptied, so that other names of it keep its content.
    """
    refuse_link(path, "a file")
    with reporting("write", path):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise damaged(path, "a file", "something else")
            path.unlink()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))


def append(path: Path, data: bytes) -> None:
    """Write `data` at the end of a file; `DamagedError` for a link, StoreError for a pipe, a socket or a device."""
    refuse_link(path, "a file")
    with reporting("write", path), open(path, "ab", opener=_regular) as file:
        file.write(data)


def _regular(path: str, flags: int) -> int:
    """Open a file for writing, neither through a link nor waiting for whoever is at the other end of a pipe."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file")
    return handle


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
def draft_beside(out: Path) -> Iterator[Path]:
    """A folder beside `out` for what is to be renamed there; it goes with all that is left in it when the block ends.

    What a process that was killed here left beside `out` is removed first.
    """
    parent = out.absolute().parent
    with reporting("write", out), ExitStack() as stack:
        remove_dead_drafts(parent)
        filled = _locked_draft(parent, stack) / FILLED
        filled.mkdir()
        yield filled


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when the block ends: whole, or after an exception not at all.

    Files put there should be synced (`write_synced`).  Missing parents are made.  InputError if something has come
    there meanwhile.
    """
    with reporting("write", out):
        make_folder(out.absolute().parent)
        with draft_beside(out) as filled:
            yield filled
            sync_folder(filled)
            try:
                filled.rename(out)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
                raise InputError(f"{out} exists already; it came while this was made") from None
            sync_folder(out.absolute().parent)


def _locked_draft(parent: Path, stack: ExitStack) -> Path:
    """A new draft, locked and in the end removed by `stack`.

    Until it is locked, another process may take it for one that was left behind, and remove it: then the next is tried.
    """
    while True:
        draft = _draft_in(parent)
        draft.mkdir(mode=0o700)
        with ExitStack() as mine, suppress(FileNotFoundError):
            mine.callback(shutil.rmtree, draft, ignore_errors=True)
            mine.enter_context(locked(draft / WRITER))
            if os.path.lexists(draft / WRITER):
                mine.callback(shutil.rmtree, draft, ignore_errors=True)  # runs before the lock is let go
                stack.push(mine.pop_all())
                return draft


def remove_dead_drafts(parent: Path, dry_run: bool = False) -> list[tuple[Path, int]]:
    """Remove drafts of `draft_beside` whose writers are dead from a folder; path and bytes of each.

    Nothing else is touched: such a draft has a name of its own and holds nothing but what a writer makes.  Those of
    other users, which cannot be looked into, stay.
    """
    found = []
    for draft in (parent / name for name in names_in(parent) if DRAFT.fullmatch(name)):
        out_of_sight: Path | None = None
        with suppress(OSError, StoreError), ExitStack() as stack:
            if draft.is_symlink() or (held := set(os.listdir(draft))) - {WRITER, FILLED}:
                continue
            if WRITER in held:
                dead = stack.enter_context(locked(draft / WRITER, wait=False, make=False))
            else:  # its writer died before the lock was made, or somebody while removing it
                dead = not os.path.lexists(draft / WRITER)
            if dead:
                found.append((draft, size_on_disk(draft)))
            if dead and not dry_run:
                # An empty one may be a living writer's, who has yet to make the lock: then rmdir refuses or he retries.
                if held:
                    out_of_sight = draft.rename(_draft_in(parent))
                else:
                    draft.rmdir()
        if out_of_sight is not None:  # with its lock closed: NFS keeps a file that is open, under another name
            shutil.rmtree(out_of_sight, ignore_errors=True)
    return found


def _draft_in(parent: Path) -> Path:
    """A name for a draft that nothing has."""
    return parent / f".draft-loopscope-{secrets.token_hex(8)}"


def remove_quietly(draft: Path) -> None:
    """Remove a draft, whatever happens; the lock beside it is held meanwhile."""
    with suppress(OSError), locked(draft.parent / ".lock"):
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def locked(path: Path, wait: bool = True, make: bool = True) -> Iterator[bool]:
    """Hold the lock file `path` until the block ends or the process dies; gives False if another has it (no `wait`).

    The file is made if it is not there, unless told otherwise.  `DamagedError` where it is a link.
    """
    refuse_link(path, "a lock file")
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    handle = os.open(path, flags, 0o666)
    held = False
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise damaged(path, "a lock file", "something else")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except BlockingIOError:
            pass
        yield held
    finally:
        if held:  # not left to the close: a forked child may have a copy of the handle
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
