"""Cases run in children forked from one warm process: everything is imported, nothing is loaded, one thread.

A child gets its own folder with copies of its inputs, a clean environment, limits on memory and time, and a session of
its own so that nothing it starts outlives it.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.drill.cases import Case, Command, World
from tests.drill.confining import confine
from tests.drill.listing import Listing, listing

SECONDS = 30.0
"""Of a processor: a command that takes more hangs, and one that sleeps for `PATIENCE` times as many on a clock."""

PATIENCE = 5
PLAIN_ENVIRONMENT = {
    "LANG": "C.UTF-8", "TERM": "dumb", "COLUMNS": "200", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "LOOPSCOPE_ZOO": "zoo",
    "MPLBACKEND": "Agg",
}  # fmt: skip
CAPTURED = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """How one command ended: `code` is negative for a signal; `late` if it had to be ended."""

    code: int
    late: bool
    peak: int
    seconds: float
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Played:
    """A case with how its commands ended, round by round, and what lay in its folder before and after.

    `fault`: why it could not even be set up, which is a mistake of the case.
    """

    case: Case
    outcomes: tuple[tuple[Outcome, ...], ...]
    before: Listing
    after: Listing
    root: str
    fault: str = ""


def play(cases: Sequence[Case], world: World, scratch: Path, at_once: int = 2) -> Iterator[Played]:
    """Run cases, several at once, in the order in which they end."""
    waiting, running = list(reversed(cases)), []
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(_Playing(waiting.pop(), world, scratch))
        for each in [each for each in running if each.step()]:
            running.remove(each)
            yield each.end()
        _wait(running)


class _Playing:
    """A case at work."""

    def __init__(self, case: Case, world: World, scratch: Path) -> None:
        self.case = case
        self.root = Path(tempfile.mkdtemp(prefix="case-", dir=scratch))
        self.work = self.root / "work"
        for name in ("work", "tmp", "home", "outside"):
            (self.root / name).mkdir()
        (self.root / "outside" / "kept").write_text("not Loopscope's\n", encoding="utf-8")
        self.fault, self.rounds = "", list(case.played())
        try:
            for name in case.scene.needs:
                put(world.base / name, self.work / name)
            case.change(self.work)
        except Exception as error:
            self.fault, self.rounds = f"could not be set up: {error!r}", []
        self.before = listing(self.root)
        self.children: list[_Child] = []
        self.outcomes: list[tuple[Outcome, ...]] = []
        if self.rounds:
            self._begin()

    def _begin(self) -> None:
        number = len(self.outcomes)
        self.children = [
            _Child(command, self.work, f"{self.root}.{number}.{index}")
            for index, command in enumerate(self.rounds[number])
        ]

    def step(self) -> bool:
        """Look at the children; True when all rounds are over."""
        if not self.rounds:
            return True
        if not all([child.over() for child in self.children]):
            return False
        self.outcomes.append(tuple(child.outcome() for child in self.children))
        if len(self.outcomes) == len(self.rounds):
            return True
        self._begin()
        return False

    def end(self) -> Played:
        """What is to be judged; the case's folder is gone then."""
        after = listing(self.root)
        _remove(self.root)
        return Played(self.case, tuple(self.outcomes), self.before, after, str(self.root), self.fault)


class _Child:
    """One command in a process of its own."""

    def __init__(self, command: Command, work: Path, name: str) -> None:
        self.files = [Path(f"{name}.out"), Path(f"{name}.err")]
        self.started = time.monotonic()
        self.late, self.result = False, None
        # A limit on the length of files would cut what is said, so that it goes through pipes then.
        pairs = [os.pipe() for _ in self.files] if command.limits.file_size is not None else []
        self.pipes = [reading for reading, _ in pairs]
        outputs = [writing for _, writing in pairs]
        self.pid = fork(lambda: _inside(command, work, self.files, outputs))
        for writing in outputs:
            os.close(writing)
        self.handle = os.pidfd_open(self.pid)

    def over(self) -> bool:
        if self.result is None:
            pid, status, used = os.wait4(self.pid, os.WNOHANG)
            if not pid and self._hangs():
                self.late = True
                _end_group(self.pid)
                pid, status, used = os.wait4(self.pid, 0)
            if pid:
                _end_group(self.pid)
                os.close(self.handle)
                self.result = (os.waitstatus_to_exitcode(status), used.ru_maxrss << 10, time.monotonic() - self.started)
        return self.result is not None

    def _hangs(self) -> bool:
        """Whether it took too long, however busy the machine is."""
        waited = time.monotonic() - self.started
        if waited <= SECONDS:
            return False
        # Behind the name, in parentheses, come the state and 10 numbers, then ticks as a user and in the system.
        numbers = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        worked = (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
        return worked > SECONDS or waited > PATIENCE * SECONDS

    def outcome(self) -> Outcome:
        assert self.result is not None
        code, peak, seconds = self.result
        texts = ["", ""]
        for at, file in enumerate(self.files):
            if self.pipes:
                texts[at] = _drained(self.pipes[at])
            elif file.exists():
                with file.open("rb") as content:
                    texts[at] = content.read(CAPTURED).decode(errors="backslashreplace")
                file.unlink()
        return Outcome(code, self.late, peak, seconds, *texts)


def _drained(handle: int) -> str:
    with os.fdopen(handle, "rb") as content:
        return content.read(CAPTURED).decode(errors="backslashreplace")


def fork(work: Callable[[], int]) -> int:
    """The id of a child that does this in a session of its own and ends with its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def warm() -> None:
    """Import everything a command imports when it runs; the process keeps one thread."""
    import importlib
    import pkgutil

    import torch

    torch.set_num_threads(1)
    import loopscope

    for found in pkgutil.walk_packages(loopscope.__path__, "loopscope."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    late = ("transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3", "accelerate")
    for name in (*late, "pydantic", "rich.live", "rich.progress"):
        importlib.import_module(name)
    torch.randn(2, 2) @ torch.randn(2, 2)
    gc.collect()
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads would not survive a fork"


def put(source: Path, target: Path) -> None:
    """A copy of a file or a folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def _inside(command: Command, work: Path, files: Sequence[Path], pipes: Sequence[int]) -> int:
    """What a child does; gives the exit code that Python would end with.  What it says goes to pipes or else files."""
    os.chdir(work)
    os.environ.clear()
    places = {"HOME": str(work.parent / "home"), "TMPDIR": str(work.parent / "tmp"), "PATH": os.defpath}
    wanted = {**PLAIN_ENVIRONMENT, **places, **command.env}
    os.environ.update({name: value for name, value in wanted.items() if value is not None})
    tempfile.tempdir = None
    flags = os.O_WRONLY | os.O_CREAT
    out, err = pipes or (os.open(file, flags, 0o600) for file in files)
    if command.stdout is not None:
        out = os.open(command.stdout, os.O_WRONLY)
    for handle, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(handle, number)
    confine(work.parent)
    os.chdir(work)  # anew: by the way into the folder that can be written to
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), encoding) for number in (1, 2))
    sys.stderr.reconfigure(errors="backslashreplace", line_buffering=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _limit(command)
    sys.argv = ["loopscope", *command.argv]
    if command.death is not None:
        _die_at(command.death.number, command.death.event)
    code = _code(_main)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        traceback.print_exc()
        code = 120
    return code


def _main() -> None:
    from loopscope.cli.app import main

    main()


def _code(work: Callable[[], None]) -> int:
    try:
        work()
    except SystemExit as error:
        return 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _limit(command: Command) -> None:
    limits = command.limits
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + limits.memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.file_size is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails with EFBIG instead
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_size, limits.file_size))
    if limits.powerless and os.geteuid() == 0:
        _drop_powers()


def _drop_powers() -> None:
    """Root without its powers: permissions then hold for it as for everybody."""

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    powers = (ctypes.c_uint32 * 6)()  # none effective, permitted or inheritable
    capset = ctypes.CDLL(None, use_errno=True).capset
    if capset(ctypes.byref(Header(0x20080522, 0)), powers):
        raise OSError(ctypes.get_errno(), "capset")


def _die_at(number: int, event: int) -> None:
    """Send this process a signal before the `event`-th thing it does to files."""
    count = 0

    def watch(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if name == "open" or name.startswith(("os.", "fcntl.", "shutil.")):
            count += 1
            if count == event + 1:
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)


def _wait(running: Sequence[_Playing]) -> None:
    """Until a child ends, for half a second at most."""
    poll = select.poll()
    alive = [child.handle for each in running for child in each.children if child.result is None]
    for handle in alive:
        poll.register(handle, select.POLLIN)
    if alive:
        poll.poll(500)


def _end_group(pid: int) -> None:
    """End what a child started, and itself; it leads a session of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _remove(root: Path) -> None:
    for parent, _, _ in os.walk(root):
        with suppress(OSError):
            os.chmod(parent, 0o700)
    shutil.rmtree(root, ignore_errors=True)
