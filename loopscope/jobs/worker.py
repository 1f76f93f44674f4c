"""A worker process.

    python -m loopscope.jobs.worker                     serves: a try per line on standard input, its outcome on output
    python -m loopscope.jobs.worker --one TICKET        one try, perhaps beside other processes (torchrun)

Either ends when its standard input does: whoever gave it work is gone.  The job at hand then makes a checkpoint if it
can, and a measurement, which cannot, is cut off after a while.  What is printed goes to the job's log.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopscope.jobs.engine import Ticket
from loopscope.jobs.job import Job
from loopscope.jobs.journal import Journal
from loopscope.jobs.outcome import Outcome
from loopscope.jobs.perform import perform

GRACE = 20.0
"""Seconds that a job has for its last checkpoint, once its worker is to end."""


def ticket_text(ticket: Ticket) -> str:
    """A try on one line; which nodes are avoided is not the worker's business."""
    return json.dumps({"root": str(ticket.root), "save_every": ticket.save_every, "job": ticket.job.to_json()})


def ticket_of(text: str) -> Ticket:
    """What `ticket_text` gave."""
    value: dict[str, Any] = json.loads(text)
    return Ticket(Job.from_json(value["job"]), Path(value["root"]), value["save_every"])


@contextmanager
def logged(ticket: Ticket) -> Iterator[None]:
    """Inside, whatever this process prints goes to the job's log; nowhere, where that cannot be written."""
    log = Journal(ticket.root, ticket.job.key).log
    try:
        if ticket.root.is_dir():  # a machine that does not see the store shall not begin one
            log.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError:
        handle = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    kept = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(handle, number)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.close(handle)


def serve() -> None:
    """Do tries one after the other until standard input ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing but outcomes may go there, whatever a library prints
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stopping = _stopping(lines.put)
    while line := lines.get():
        ticket = ticket_of(line)
        with logged(ticket):
            outcome = perform(ticket.job, ticket.root, ticket.save_every, stopping.is_set)
        os.write(answers, (json.dumps(outcome.to_json()) + "\n").encode())
        if stopping.is_set():
            break


def one(ticket: Ticket) -> Outcome:
    """One try in this process, stopped with a checkpoint by SIGTERM or the end of standard input."""
    stopping = _stopping(lambda line: None)
    return perform(ticket.job, ticket.root, ticket.save_every, stopping.is_set)


def _stopping(heard: Callable[[str], object]) -> threading.Event:
    """Set when this process is to end: standard input does, whose lines are handed on, or SIGTERM comes.

    The last line handed on then is empty.  Who has not ended after `GRACE` seconds is cut off.
    """
    wish = threading.Event()

    def stop() -> None:
        wish.set()
        heard("")
        timer = threading.Timer(GRACE, os._exit, (143,))
        timer.daemon = True
        timer.start()

    def listen() -> None:
        # Not `sys.stdin`: Python would not end while a thread is at it.
        parts = b""
        while more := os.read(0, 2**16):
            *whole, parts = (parts + more).split(b"\n")
            for line in whole:
                heard(line.decode())
        stop()

    signal.signal(signal.SIGTERM, lambda *_: stop())
    threading.Thread(target=listen, daemon=True).start()
    return wish


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        sys.exit(one(ticket_of(sys.argv[2])).code)
    serve()
