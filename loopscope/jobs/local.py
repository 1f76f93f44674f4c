"""Worker processes on this machine: each survives the death of the others.

A worker serves one job after the other, so that libraries are loaded once.  One that dies is replaced for the next job.
With GPUs, worker i sees GPU i modulo their number, and jobs share a GPU as far as their needs allow.  A job of several
GPUs gets any that are free.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from loopscope.errors import InputError
from loopscope.jobs.engine import Ended, Engine, Ticket
from loopscope.jobs.outcome import Outcome, lost
from loopscope.jobs.together import run_together
from loopscope.jobs.worker import GRACE, ticket_text


class _Worker:
    """A place for one job at a time, with a process that is there while it is needed."""

    def __init__(self, gpu: int | None) -> None:
        self.gpu = gpu
        self.process: subprocess.Popen[bytes] | None = None
        self.busy = False

    def run(self, ticket: Ticket, gpus: Sequence[int]) -> Outcome:
        """Do one try, on these GPUs where it is one of several processes, and wait for its end."""
        if ticket.job.needs.processes > 1:
            return run_together(ticket, env=_visible(gpus), began=self._took)
        process = self.process
        if process is None or process.poll() is not None:
            process = self.process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # it is gone: so is its answer
            process.stdin.write(ticket_text(ticket).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return Outcome.from_json(json.loads(line))
        code = process.wait()
        _close(process)
        self.process = None
        return lost(f"its process ended {_how(code)}", f"{socket.gethostname()}:{process.pid}")

    def end(self) -> None:
        """Let the process make a checkpoint and end; end it where it does not."""
        process = self.process  # which `run` lets go of as soon as it has ended
        if process is None:
            return
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(GRACE + 10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close(process)

    def _took(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: an interrupt at the terminal is for the command, which then tells its workers.
        env = {} if self.gpu is None else _visible([self.gpu])
        return subprocess.Popen(
            [sys.executable, "-m", "loopscope.jobs.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **env}, start_new_session=True,
        )  # fmt: skip


class Local(Engine):
    """So many workers on this machine."""

    elsewhere = False

    def __init__(self, workers: int) -> None:
        self.places = workers
        gpus = _gpus()
        self._workers = [_Worker(number % gpus if gpus else None) for number in range(workers)]
        self._free = dict.fromkeys(range(gpus), 1.0)
        self._waiting: deque[tuple[Ticket, Ended]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def start(self, ticket: Ticket, ended: Ended) -> None:
        """Begin when a worker is free whose GPU has room for the job; InputError for what this machine has not."""
        needs = ticket.job.needs
        if needs.nodes > 1:
            raise InputError(f"{ticket.job.name!r} needs {needs.nodes} machines; local is one")
        if needs.gpus > len(self._free):
            raise InputError(f"{ticket.job.name!r} needs {needs.gpus:g} GPUs; this machine has {len(self._free)}")
        with self._lock:
            self._waiting.append((ticket, ended))
        self._begin()

    def close(self, leave: bool = False) -> None:
        """End all workers; those at work make a checkpoint first."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        enders = [threading.Thread(target=each.end) for each in self._workers]
        for each in enders:
            each.start()
        for each in enders:
            each.join()

    def _begin(self) -> None:
        with self._lock:
            for entry in list(self._waiting) if not self._closed else ():
                ticket, ended = entry
                for worker in self._workers:
                    gpus = None if worker.busy else self._gpus_for(worker, ticket.job.needs.gpus)
                    if gpus is not None:
                        self._waiting.remove(entry)
                        worker.busy = True
                        self._take(gpus, ticket, -1)
                        threading.Thread(target=self._work, args=(worker, ticket, ended, gpus), daemon=True).start()
                        break

    def _gpus_for(self, worker: _Worker, needed: float) -> list[int] | None:
        """The GPUs that a job would get with this worker; None where there is no room."""
        if worker.gpu is None or not needed:
            return []
        if needed <= 1:
            return [worker.gpu] if self._free[worker.gpu] >= needed - 1e-9 else None
        whole = [gpu for gpu, free in self._free.items() if free >= 1 - 1e-9]
        return whole[: int(needed)] if len(whole) >= needed else None

    def _take(self, gpus: Sequence[int], ticket: Ticket, sign: int) -> None:
        for gpu in gpus:
            self._free[gpu] += sign * min(1.0, ticket.job.needs.gpus)

    def _work(self, worker: _Worker, ticket: Ticket, ended: Ended, gpus: Sequence[int]) -> None:
        try:
            outcome = worker.run(ticket, gpus)
        except Exception as error:  # nobody hears a thread die, and the job would never end
            outcome = lost(f"{type(error).__name__}: {error}", socket.gethostname())
        with self._lock:
            worker.busy = False
            self._take(gpus, ticket, 1)
        ended(outcome)
        self._begin()


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdout, process.stdin):
        if pipe is not None:
            with suppress(OSError):  # what nobody reads any more
                pipe.close()


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _visible(gpus: Sequence[int]) -> dict[str, str]:
    """What tells a child which of the GPUs that this process may use are its own."""
    mine = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = mine.split(",") if mine else [str(number) for number in range(max(gpus, default=-1) + 1)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[each] for each in gpus)} if gpus else {}


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    with suppress(ValueError):
        return f"by {signal.Signals(-code).name}"
    return f"by signal {-code}"
