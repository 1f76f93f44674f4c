"""One thread that has the model, and everybody's questions in a row.

    worker = Worker(explorer)
    job = worker.ask(request, tab="a1b2c3d4")
    job.wait(1.0)

Long jobs go a piece at a time, and what is quick has its turn in between; tabs take turns.  The same question asked
twice is computed once.  A job that nobody wants any more is dropped between two pieces.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field

from loopscope.errors import LoopscopeError
from loopscope.threads import threads_for
from loopscope.view.contract import Json, Request
from loopscope.view.explorer import LONG, Explorer
from loopscope.view.kept import Kept
from loopscope.view.runs import Steps

FORGOTTEN = 15.0
"""Seconds after which a job that nobody asked for again is dropped."""

QUICK_FIRST = 4
"""Quick pieces that may come before a long job has its turn."""

MOST_JOBS = 64
"""Jobs that may wait; a page has a few."""


class BusyError(LoopscopeError):
    """More is asked for than can be kept waiting."""


@dataclass
class Job:
    """One question that is being answered.  `wanted` are the tabs that want it, and when they last asked."""

    request: Request
    steps: Steps[bytes]
    wanted: dict[str, float] = field(default_factory=dict)
    done: int = 0
    total: int = 0
    answer: bytes | None = None
    error: str | None = None
    dropped: bool = False
    served: int = 0
    _changed: threading.Event = field(default_factory=threading.Event)
    _heard: list[Callable[[], None]] = field(default_factory=list)

    @property
    def long(self) -> bool:
        """Whether others go first."""
        return self.request.kind in LONG

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._changed.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until it is finished, or so long; whether it is."""
        return self._changed.wait(seconds)

    def when_finished(self, call: Callable[[], None]) -> None:
        """Call this when it is finished, from the model's thread, or at once."""
        self._heard.append(call)
        if self.finished:
            call()

    def finish(self) -> None:
        """Tell everybody who waits."""
        self._changed.set()
        for call in self._heard:
            with suppress(RuntimeError):  # whoever waited has gone, and its event loop with it
                call()

    def progress(self, ahead: int) -> dict[str, Json]:
        """How far it is, as JSON."""
        return {
            "name": self.request.name, "what": self.request.kind, "done": self.done, "total": self.total, "ahead": ahead
        }  # fmt: skip


class Worker:
    """Answers requests one after the other in a thread of its own; `answers` bounds the bytes of answers kept."""

    def __init__(self, explorer: Explorer, answers: int = 64 * 2**20) -> None:
        self.explorer = explorer
        self._answers: Kept[bytes] = Kept(answers)
        self._jobs: dict[str, Job] = {}
        self._served: dict[str, int] = {}
        self._turn = self._quick = 0
        self._lock = threading.Condition()
        self._closed = False
        context = copy_context()  # a number of threads that was asked for holds in there, too
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="loopscope-model", daemon=True)
        self._thread.start()

    def ask(self, request: Request, tab: str) -> Job:
        """The job of a request, new or under way; finished at once where the answer is known.

        BusyError where too many wait.
        """
        with self._lock:
            if (known := self._answers.get(request.name)) is not None:
                job = Job(request, self.explorer.answer(request), answer=known)
                job.finish()
                return job
            self._forget(time.monotonic())
            job = self._jobs.get(request.name) or self._new(request)
            job.wanted[tab] = time.monotonic()
            self._lock.notify()
            return job

    def _new(self, request: Request) -> Job:
        if len(self._jobs) >= MOST_JOBS:
            raise BusyError(f"{MOST_JOBS} questions are waiting; ask again when some are answered")
        job = self._jobs[request.name] = Job(request, self.explorer.answer(request))
        return job

    def still(self, job: Job, tab: str) -> None:
        """A tab still wants a job."""
        with self._lock:
            if not job.finished:
                job.wanted[tab] = time.monotonic()

    def cancel(self, tab: str, name: str | None = None) -> int:
        """A tab no longer wants a job, or none of its own; how many that were."""
        with self._lock:
            mine = [job for job in self._jobs.values() if tab in job.wanted and name in (None, job.request.name)]
            for job in mine:
                del job.wanted[tab]
                if not job.wanted:
                    self._drop(job)
            return len(mine)

    def ahead(self, job: Job) -> int:
        """How many others are before a job."""
        with self._lock:
            return sum(1 for each in self._jobs.values() if each is not job and (job.long or not each.long))

    def close(self) -> None:
        """Stop: what is under way is dropped between two pieces."""
        with self._lock:
            self._closed = True
            for job in list(self._jobs.values()):
                self._drop(job)
            self._lock.notify()
        self._thread.join(10)

    # ---- in the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        with threads_for(_numbers(self.explorer)):
            while True:
                with self._lock:
                    while not self._closed and (job := self._next()) is None:
                        self._lock.wait(1.0)
                    if self._closed:
                        return
                    assert job is not None
                self._piece(job)

    def _piece(self, job: Job) -> None:
        try:
            progress = next(job.steps)
            if progress is not None:
                job.done, job.total = progress
        except StopIteration as stop:
            job.answer = stop.value
        except LoopscopeError as error:
            job.error = str(error)
        except MemoryError:
            job.error = self._no_memory()
        except RuntimeError as error:
            if "memory" not in str(error).lower():
                job.error = f"the model could not answer: {' '.join(str(error).split())[:200]}"
            else:
                job.error = self._no_memory()
        except Exception as error:  # a model of somebody's own may raise anything, and the others go on
            job.error = f"the model could not answer: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if job.answer is None and job.error is None:
            return
        with self._lock:
            if job.answer is not None:
                self._answers.put(job.request.name, job.answer, len(job.answer))
            if self._jobs.get(job.request.name) is job:
                del self._jobs[job.request.name]
        job.finish()

    def _no_memory(self) -> str:
        self.explorer.runs.kept.clear()
        self._answers.clear()
        return "there is not enough memory for this; a shorter input or rows 'last' take less"

    def _next(self) -> Job | None:
        """Whose turn it is: what is quick before what is long, and of these who had a turn longest ago."""
        self._forget(time.monotonic())
        waiting = list(self._jobs.values())
        quick, long = [job for job in waiting if not job.long], [job for job in waiting if job.long]
        if quick and (not long or self._quick < QUICK_FIRST):
            self._quick += 1
            chosen = quick
        else:
            self._quick = 0
            chosen = long
        if not chosen:
            return None
        job = min(chosen, key=lambda each: (min(self._served.get(tab, 0) for tab in each.wanted), each.served))
        self._turn += 1
        job.served = self._turn
        for tab in job.wanted:
            self._served[tab] = self._turn
        if len(self._served) > 10 * MOST_JOBS:
            self._served = dict(sorted(self._served.items(), key=lambda item: item[1])[-MOST_JOBS:])
        return job

    def _forget(self, now: float) -> None:
        for job in list(self._jobs.values()):
            job.wanted = {tab: asked for tab, asked in job.wanted.items() if now - asked < FORGOTTEN}
            if not job.wanted:
                self._drop(job)

    def _drop(self, job: Job) -> None:
        self._jobs.pop(job.request.name, None)
        job.dropped, job.error = True, "nobody asked for this any more"
        job.finish()


def _numbers(explorer: Explorer) -> int:
    """How many numbers an operation of the model touches: the weights of a large one, little of a small one."""
    parameters = getattr(explorer.subject.model, "parameters", None)
    weights = sum(each.numel() for each in parameters()) if parameters is not None else 0
    return weights if weights > 2**24 else 0
