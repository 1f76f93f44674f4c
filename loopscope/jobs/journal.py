"""What is told of jobs, beside the artefacts of a store: `<store>/.jobs/<key>/`.

    job.json      the job, as a file of jobs has it
    waiting.json  why it still waits, where that is unusual
    running.json  where it runs, since when, how far it is; renewed every few seconds
    log.txt       whatever it printed, try after try
    outcome.json  how the last try ended

This is for people and for `jobs status`.  Nothing is decided by it: whether a job is done, the store says.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loopscope.errors import InputError
from loopscope.jobs.job import Job
from loopscope.jobs.outcome import Outcome
from loopscope.store.files import names_in, refuse_link, reporting

FOLDER = ".jobs"
DIGITS = 16
"""Of a job's key, in the name of its folder and wherever people see it."""

ALIVE = 60.0
"""Seconds after which a job whose notes are not renewed is taken for gone; its worker renews them more often."""

EVERY, AT_FIRST = 5.0, 1.0
"""Seconds between two notes on how far a job is, and those of its first `EARLY` seconds."""

EARLY = 15.0

LAST_LINES = 20


class Journal:
    """The notes on one job."""

    def __init__(self, root: Path, key: str) -> None:
        self.folder = root / FOLDER / key[:DIGITS]

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self.folder / "log.txt"

    def open(self, job: Job) -> None:
        """Begin: the folder with the job in it; what an earlier try left stays but for its end."""
        refuse_link(self.folder.parent, "a folder")
        refuse_link(self.folder, "a folder")
        with reporting("write to", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._put("job.json", job.to_json())
            for name in ("outcome.json", "running.json", "waiting.json"):
                (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def pulse(self, notes: Mapping[str, Any]) -> Iterator[None]:
        """Inside, note every few seconds how far the job is, whether it has something new to say or not.

        `notes` may change meanwhile.  A full disk or a folder that is gone is not worth a job's end.
        """
        over, began = threading.Event(), time.monotonic()

        def beat() -> None:
            while True:
                with suppress(OSError):
                    self._put("running.json", {**notes, "at": time.time()})
                if over.wait(AT_FIRST if time.monotonic() - began < EARLY else EVERY):
                    return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def wait(self, line: str) -> None:
        """Note why it still waits; empty, where that is nothing unusual; as `pulse`, best effort."""
        with suppress(OSError):
            self._put("waiting.json", {"line": line})

    def end(self, outcome: Outcome) -> None:
        """Note how the try ended; as `pulse`, best effort."""
        with suppress(OSError):
            self._put("outcome.json", outcome.to_json())

    def said(self) -> list[str]:
        """The last lines of its output."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 20_000))
            return file.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        return []

    def read(self, name: str) -> dict[str, Any] | None:
        """One of its notes; None where it is not there, or not whole."""
        with suppress(OSError, ValueError):
            found = json.loads((self.folder / f"{name}.json").read_bytes())
            return found if isinstance(found, dict) else None
        return None

    def _put(self, name: str, value: Mapping[str, Any]) -> None:
        draft = self.folder / f".{name}-{secrets.token_hex(4)}"
        try:
            draft.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
            draft.replace(self.folder / name)
        finally:
            draft.unlink(missing_ok=True)


def journals(root: Path) -> Iterator[tuple[Job, Journal]]:
    """The jobs that a store has notes on, by name; what cannot be read is passed over."""
    found = []
    for name in names_in(root / FOLDER):
        journal = Journal(root, name)
        known = journal.read("job")
        with suppress(InputError):
            if known is not None:
                found.append((Job.from_json(known), journal))
    yield from sorted(found, key=lambda each: each[0].name)
