"""Where a job stands, by the notes on it: done, failed, skipped, stopped, running, waiting, or lost without a word."""

from __future__ import annotations

import time
from typing import Any

from loopscope.errors import LoopscopeError
from loopscope.jobs.job import Job
from loopscope.jobs.journal import ALIVE, Journal
from loopscope.jobs.task import task_of
from loopscope.store.store import Store


def status_of(job: Job, journal: Journal) -> dict[str, Any]:
    """State, place, since when, how far; of a failure the last lines of its log.  The store has the last word."""
    outcome, running = journal.read("outcome"), journal.read("running")
    state, notes = "waiting", {**(running or {}), **{name: each for name, each in (outcome or {}).items() if each}}
    if outcome is not None:
        state = str(outcome.get("state", "failed"))
    elif running is not None:
        state = "running" if time.time() - float(running.get("at", 0)) < ALIVE else "lost"
    else:
        notes = journal.read("waiting") or notes
    if state != "done" and _in_store(job, journal):
        state = "done"
    return {
        "job": job.name, "key": job.key, "state": state, "place": notes.get("place", ""),
        "since": None if running is None else running.get("since"), "done": notes.get("done", 0),
        "total": notes.get("total", 0), "line": notes.get("line", ""), "seconds": notes.get("seconds", 0.0),
        "threads": notes.get("threads", job.needs.cpus), "device": notes.get("device", ""),
        "log_file": str(journal.log), "log": journal.said() if state == "failed" else [],
    }  # fmt: skip


def _in_store(job: Job, journal: Journal) -> bool:
    try:
        return task_of(job.what).found(job, Store(journal.folder.parent.parent)) is not None
    except LoopscopeError:
        return False
