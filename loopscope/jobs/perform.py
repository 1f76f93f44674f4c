"""Doing one job in this process: threads, device, errors as outcomes, notes on how far it is."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

from loopscope.errors import BusyError, LoopscopeError
from loopscope.jobs.job import Job
from loopscope.jobs.journal import Journal
from loopscope.jobs.outcome import Outcome
from loopscope.jobs.task import Place, task_of
from loopscope.store.store import Store
from loopscope.training.job import Progress

BUSY_AGAIN = 2.0
"""Seconds until an artefact that another process is writing is asked for again."""


def perform(
    job: Job,
    root: Path,
    save_every: float = 30.0,
    stop: Callable[[], bool] = lambda: False,
    log: Callable[[str], None] | None = None,
    node: str = "",
) -> Outcome:
    """Do a job with the threads it asks for; every error of the library, and any other, becomes an outcome.

    Where another process is at work on the same artefact, this one waits for it: it finishes, or dies and lets go.
    `node` is what the engine calls this machine: a job that is lost here is tried on another one.
    """
    started = time.perf_counter()
    say = log or _print
    journal = Journal(root, job.key)
    where = f"{socket.gethostname()}:{os.getpid()}"
    notes = {
        "place": where, "node": node, "since": time.time(), "threads": job.needs.cpus, "device": "",
        "done": 0, "total": 0, "stage": "", "told": "",
    }  # fmt: skip
    first = os.environ.get("RANK", "0") == "0"  # of several processes, started by torchrun, one takes notes

    def watch(now: Progress) -> None:
        notes.update(done=now.done, total=now.total, stage=now.stage, told=str(now))

    def ended(state: str, line: str = "", code: int = 0, keys: dict[str, str] | None = None) -> Outcome:
        seconds = time.perf_counter() - started
        given = {"keys": keys or {}, "line": line, "code": code, "place": where, "seconds": seconds}
        outcome = Outcome.from_json({**notes, **given, "state": state})
        if first:
            journal.end(outcome)
        return outcome

    try:
        import torch

        from loopscope.threads import fixed_threads
        from loopscope.training.job import pick_device

        with fixed_threads(job.needs.cpus), journal.pulse(notes) if first else nullcontext():
            device = pick_device("cuda" if job.needs.gpus > 0 else "cpu")
            notes["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
            place = Place(Store(root), device, save_every, say, watch, stop)
            task = task_of(job.what)
            while True:
                try:
                    return ended("done", keys=dict(task.run(job, place)))
                except BusyError as error:
                    say(f"{error}; waiting")
                    if stop():
                        raise KeyboardInterrupt from None
                    time.sleep(BUSY_AGAIN)
                finally:
                    if device.type == "cuda":
                        torch.cuda.empty_cache()
    except KeyboardInterrupt:
        return ended("stopped", "stopped with a checkpoint, or before one was due", 130)
    except LoopscopeError as error:
        return ended("failed", str(error), error.exit_code)
    except OSError as error:
        return ended("failed", f"{error.filename or 'the system'}: {error.strerror or error}", 1)
    except MemoryError:
        return ended("failed", "out of memory", 1)
    except Exception as error:  # a defect: told in one line, with all of it in the log
        with suppress(OSError):
            say(traceback.format_exc())
        return ended("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", 1)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
