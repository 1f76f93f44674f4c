"""Processes that write to a store and die at a chosen moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.store.store import Artefact, Store


def say(tag: str, value: object = None) -> None:
    """One short line to the test, in a single write so that lines of several children never mix."""
    os.write(1, json.dumps([os.getpid(), tag, value]).encode() + b"\n")


def content(config: dict[str, int]) -> tuple[torch.Tensor, bytes]:
    """What an artefact of this config contains: megabytes for every other one, a few bytes else."""
    draw = torch.Generator().manual_seed(config["i"])
    return torch.randn(750_000 if config["i"] % 2 else 3, generator=draw), b"%d" % config["i"]


def write_one(store: Store, config: dict[str, int]) -> Artefact:
    weights, note = content(config)
    with store.write("checkpoint", config) as draft:
        draft.tensors("model.safetensors", {"weights": weights})
        draft.json("metrics.json", {"i": config["i"]})
        draft.bytes("note.txt", note)
    return draft.artefact


def die_before(event: int) -> Callable[[], int]:
    """SIGKILL this process just before its `event`-th file operation from now on; gives how many there were so far."""
    count = 0

    def count_and_die(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if name == "open" or name.startswith(("os.", "fcntl.", "shutil.")):
            count += 1
            if count == event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_and_die)
    return lambda: count


def outcome_of(action: Any) -> list[Any]:
    try:
        action()
    except LoopscopeError as error:
        return [type(error).__name__, error.exit_code, str(error)]
    return ["done", 0, ""]


def serve(jobs: Mapping[str, Any]) -> None:
    """Per line [function, arguments] fork a child that calls it; for ["wait", [pid]] give its exit status."""
    for line in sys.stdin:
        job, arguments = json.loads(line)
        if job == "wait":
            say("exit", os.waitstatus_to_exitcode(os.waitpid(arguments[0], 0)[1]))
        elif child := os.fork():
            say("forked", child)
        else:
            try:
                say("result", jobs[job](*arguments))
            except BaseException:
                say("failed", traceback.format_exc())
            os._exit(0)


class Nursery:
    """The test's end of the helper process."""

    def __init__(self, *module: str) -> None:
        command = [sys.executable, *module]
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # a process with threads must not fork
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=alone, cwd=Path(__file__).parent.parent
        )
        self.heard: list[list[Any]] = []

    def hear(self, tag: str, pid: int) -> Any:
        """The next line of `pid` with this tag, whatever others say meanwhile."""
        while True:
            for line in self.heard:
                if line[:2] == [pid, tag]:
                    self.heard.remove(line)
                    return line[2]
                assert line[1] != "failed", line[2]
            text = self.process.stdout.readline()
            assert text, "the helper process died"
            self.heard.append(json.loads(text))

    def tell(self, job: str, *arguments: object) -> None:
        self.process.stdin.write(json.dumps([job, arguments]) + "\n")
        self.process.stdin.flush()

    def start(self, job: Any, *arguments: object) -> int:
        self.tell(job.__name__, *arguments)
        return self.hear("forked", self.process.pid)

    def exit_status(self, pid: int) -> int:
        self.tell("wait", pid)
        return self.hear("exit", self.process.pid)

    def result(self, pid: int) -> Any:
        assert self.exit_status(pid) == 0
        return self.hear("result", pid)

    @classmethod
    @contextmanager
    def running(cls, *module: str) -> Iterator[Nursery]:
        """A helper process of this module, until the block ends."""
        nursery = cls(*module)
        yield nursery
        nursery.process.stdin.close()
        assert nursery.process.wait() == 0
        nursery.process.stdout.close()


@contextmanager
def gate_at(path: Path) -> Iterator[Callable[[int], object]]:
    """A FIFO at `path` and a function that lets `n` waiting children pass."""
    os.mkfifo(path)
    handle = os.open(path, os.O_RDWR)
    try:
        yield lambda n: os.write(handle, b"x" * n)
    finally:
        os.close(handle)


def drafts(store: Store) -> list[Path]:
    return sorted(store.root.glob("*/.draft-*"))


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users can enter, which pytest's own folders do not allow."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
