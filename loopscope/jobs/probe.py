"""Whether a store can be shared with an engine's workers: locks, renaming, and how soon one sees what another wrote.

Where locks are not shared, two writers may both believe that they are alone, and a clean-up may take a draft away from
somebody who is at work on it.  So a campaign on other machines begins with this, once for a store and an engine.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loopscope.errors import InputError
from loopscope.jobs.engine import Engine, Ticket
from loopscope.jobs.job import Job, Needs
from loopscope.jobs.journal import FOLDER, Journal
from loopscope.jobs.outcome import Outcome
from loopscope.jobs.task import Keys, Place, Task, text_of
from loopscope.log import Log, silent
from loopscope.store.files import locked, make_folder, reporting, write_synced
from loopscope.store.store import Store

SEEN, HELD, ANSWER, RENAMED = "seen", "held.lock", "answer", "renamed"
PATIENCE = 60.0
"""Seconds within which one side must see what the other wrote."""


@dataclass(frozen=True)
class Checked:
    """What a worker found; seconds until each side saw what the other had written."""

    driver: str
    worker: str
    worker_saw: float
    driver_saw: float

    @property
    def same_machine(self) -> bool:
        """Whether nothing was said about other machines."""
        return self.driver == self.worker


class _Probe(Task):
    looks = False

    def found(self, job: Job, store: Store) -> Keys | None:
        return None

    def run(self, job: Job, at: Place) -> Keys:
        folder = at.store.root / FOLDER / text_of(job, "folder")
        host, token = socket.gethostname(), text_of(job, "token")
        seconds = _until(lambda: _content(folder / SEEN) == token)
        if seconds is None:
            return {"worker": host, "wrong": f"does not see {folder / SEEN}, so the store is not on its file system"}
        with locked(folder / HELD, wait=False) as held:
            if held:
                return {"worker": host, "wrong": "got a lock that another process holds, so locks are not shared there"}
        draft = folder / f"draft-{token}"
        draft.mkdir()
        write_synced(draft / "content", token.encode())
        draft.rename(folder / RENAMED)
        try:
            os.mkdir(draft)
            draft.rename(folder / RENAMED)  # where something is, nothing may be put
        except OSError:
            write_synced(folder / ANSWER, token.encode())
            return {"worker": host, "saw": f"{seconds:.3f}"}
        return {"worker": host, "wrong": "could rename a folder over one that is not empty"}


PROBE = _Probe()


def check(engine: Engine, store: Store) -> Checked:
    """Ask a worker of an engine; InputError, in one line, where the store cannot be shared with it."""
    token = secrets.token_hex(8)
    folder = store.root / FOLDER / f"probe-{token}"
    with reporting("write to", folder):
        make_folder(folder)
    try:
        with locked(folder / HELD):
            write_synced(folder / SEEN, token.encode())
            job = Job("probe", "probe", {"folder": folder.name, "token": token}, needs=Needs(minutes=2 * PATIENCE / 60))
            ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
            engine.start(Ticket(job, store.root), ended.put)
            outcome = ended.get()
        if outcome.state != "done":
            raise InputError(f"no worker could look at {store.root}: {outcome.line}")
        worker, wrong = outcome.keys["worker"], outcome.keys.get("wrong")
        seconds = None if wrong else _until(lambda: _content(folder / RENAMED / "content") == token)
        if not wrong and seconds is None:
            wrong = "wrote what is not seen here"
        if wrong or seconds is None:
            raise InputError(
                f"{store.root} cannot be shared: a worker on {worker} {wrong}; put the store on a file system that all "
                "machines share with its locks (NFS without nolock, Lustre with flock)"
            )
        return Checked(socket.gethostname(), worker, float(outcome.keys["saw"]), seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(Journal(store.root, job.key).folder, ignore_errors=True)


def check_once(engine: Engine, store: Store, name: str, say: Log = silent) -> None:
    """As `check`, unless this store and engine were found well before; says so first, as a queue may be long."""
    note = store.root / FOLDER / f"checked-{name.replace(':', '-').replace('/', '-')}.json"
    if note.is_file():
        return
    say(f"asking a worker of {name} whether it shares {store.root}")
    found = check(engine, store)
    with suppress(OSError):
        note.write_text(json.dumps(vars(found)) + "\n", encoding="utf-8")


def _content(path: Path) -> str | None:
    with suppress(OSError):
        os.listdir(path.parent)  # which makes NFS look again
        return path.read_text(encoding="utf-8")
    return None


def _until(seen: Callable[[], bool]) -> float | None:
    """Seconds until something is so; None if it never is."""
    started = time.monotonic()
    while not seen():
        if time.monotonic() - started > PATIENCE:
            return None
        time.sleep(0.1)
    return time.monotonic() - started
