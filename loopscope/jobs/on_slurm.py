"""Jobs on a Slurm cluster (`pip install loopscope[slurm]`), through submitit.

A job is a batch job called `loopscope-KEY-STORE`, so that a later command finds it again, pending or running, whatever
became of the one that submitted it.  `squeue` says whether it is still there; what it gave back is in a file beside its
notes.
Options of a site (account, quality of service, memory) are taken from sbatch's own variables, such as SBATCH_ACCOUNT.
"""

from __future__ import annotations

import getpass
import importlib
import math
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopscope.errors import InputError, LoopscopeError, nearest
from loopscope.jobs.engine import Ended, Engine, Ticket
from loopscope.jobs.journal import DIGITS, FOLDER, Journal
from loopscope.jobs.outcome import Outcome, lost
from loopscope.jobs.perform import perform
from loopscope.jobs.together import run_together
from loopscope.jobs.worker import logged, ticket_of, ticket_text
from loopscope.models.extras import extra
from loopscope.store.manifest import digest

LOOK_EVERY = 2.0
"""Seconds between two looks at the queue; more where there are many jobs."""

LATE = 20.0
"""Seconds that a result may be late on a shared file system, once its job has left the queue."""

DAY = 24 * 60
"""Minutes that are asked for a job of unknown length, if the partition gives so many."""

ENDINGS = {
    "OUT_OF_MEMORY": "out of memory; SBATCH_MEM_PER_NODE asks for more",
    "CANCELLED": "cancelled",
    "DEADLINE": "its deadline passed",
}
"""States after which trying again would not help, and how they are told."""

PLAIN = ("None", "Resources", "Priority", "BeginTime", "Dependency", "Cleaning", "Prolog", "")
"""Reasons to wait that are worth no word: a job of them begins by itself."""


class Work:
    """What runs on the node; submitit keeps it in a file, and asks for its `checkpoint` before the job is requeued."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self) -> dict[str, Any]:
        """Do the try.  After a warning of preemption or the time limit: a checkpoint, and then back into the queue."""
        submitit: Any = importlib.import_module("submitit")
        ticket, env = ticket_of(self.text), submitit.JobEnvironment()
        if ticket.job.needs.processes > 1:
            port = 20_000 + int(re.sub(r"\D", "", env.job_id)) % 20_000
            return run_together(ticket, env.global_rank, env.hostnames[0], port).to_json()
        warned, number = threading.Event(), getattr(signal, f"SIG{env.USR_SIG}")
        requeue = signal.signal(number, lambda *_: warned.set())
        with logged(ticket):
            node = os.environ.get("SLURMD_NODENAME", "")
            outcome = perform(ticket.job, ticket.root, ticket.save_every, warned.is_set, node=node)
        if outcome.state == "stopped" and callable(requeue):
            requeue(number, None)
        return outcome.to_json()

    def checkpoint(self) -> Any:
        """The same again: where it goes on, the store says."""
        submitit: Any = importlib.import_module("submitit")
        return submitit.helpers.DelayedSubmission(self)


@dataclass
class _Queued:
    """A job as the queue shows it; `reason` says why it does not run."""

    name: str
    state: str
    reason: str


@dataclass
class _Followed:
    """A job in the queue, or just out of it since `gone`; `why` is what was last noted of its wait."""

    id: str
    job: Any
    ended: Ended
    journal: Journal
    gone: float | None = None
    why: str = ""


class Slurm(Engine):
    """A partition; InputError where there is no Slurm, no such partition or no package `submitit`."""

    leaves = True

    def __init__(self, partition: str) -> None:
        submitit: Any = extra("submitit", "--on slurm", of="slurm")
        if shutil.which("sbatch") is None:
            raise InputError("there is no Slurm here: no `sbatch` among the programs (nearest: --on local:2)")
        self._submitit, self._failed, self.partition = submitit, submitit.core.utils.FailedJobError, partition
        self._most = self._limit()
        self._followed: dict[str, _Followed] = {}
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ticket: Ticket, ended: Ended) -> None:
        """Submit a job, or follow the one of the same name that is in the queue."""
        # Another store's job of the same key is another job.
        name = f"loopscope-{ticket.job.key[:DIGITS]}-{digest(str(ticket.root.resolve()))[:8]}"
        folder = ticket.root / FOLDER / "slurm"
        # One that is being ended, such as by who cancelled it a moment ago, gives nothing any more.
        queue = self._queue().items()
        there = [number for number, each in queue if each.name == name and each.state != "COMPLETING"]
        if there:
            tasks = list(range(ticket.job.needs.nodes))
            job: Any = self._submitit.SlurmJob(folder=folder, job_id=there[0], tasks=tasks)
        else:
            job = self._submit(ticket, name, folder)
        with self._lock:
            journal = Journal(ticket.root, ticket.job.key)
            self._followed[str(job.job_id)] = _Followed(str(job.job_id), job, ended, journal)
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()

    def close(self, leave: bool = False) -> None:
        """Leave the jobs in the queue, or cancel them."""
        self._closing.set()
        with self._lock:
            left = [*self._followed]
        if left and not leave:
            _cancel(left)
        if self._thread is not None:
            self._thread.join(60)

    def _submit(self, ticket: Ticket, name: str, folder: Path) -> Any:
        needs = ticket.job.needs
        minutes = DAY if needs.minutes is None else math.ceil(3 * needs.minutes + 15)
        executor = self._submitit.SlurmExecutor(folder=folder, max_num_timeout=20)
        # GPUs are given whole: a part of one is not shared between batch jobs.
        gpus = {"gpus_per_node": math.ceil(needs.gpus)} if needs.gpus else {}
        executor.update_parameters(
            job_name=name, partition=self.partition, time=min(minutes, self._most), nodes=needs.nodes,
            ntasks_per_node=1, cpus_per_task=needs.cpus, stderr_to_stdout=True, **gpus,
        )  # fmt: skip
        # Not where it was lost before, if there is another node; else there again.
        said = ""
        for avoided in dict.fromkeys((",".join(ticket.avoid) or None, None)):
            executor.update_parameters(exclude=avoided)
            try:
                return executor.submit(Work(ticket_text(ticket)))
            except (OSError, RuntimeError, subprocess.SubprocessError, self._failed) as error:
                said = " ".join(str(error).split())
                said = said.rpartition("sbatch: error:")[2].strip() or said
        raise InputError(f"Slurm takes no job for {ticket.job.name!r}: {said[:300]}")

    # ---- the queue ---------------------------------------------------------------------------------------------------

    def _limit(self) -> int:
        """The minutes that a job of the partition may take; InputError where there is no such partition."""
        there = _lines(["sinfo", "-a", "-h", "-o", "%R|%l"])
        if there is None:
            raise InputError("Slurm does not answer: `sinfo` failed")
        limits = dict(line.split("|", 1) for line in there)
        if self.partition not in limits:
            names = ", ".join(limits) or "none"
            raise InputError(f"no partition {self.partition!r}; there are {names}{nearest(self.partition, limits)}")
        return _minutes(limits[self.partition])

    def _queue(self) -> dict[str, _Queued]:
        """This user's jobs by number; a controller that does not answer is asked again."""
        for _ in range(30):
            found = _lines(["squeue", "-a", "-h", "-u", getpass.getuser(), "-o", "%i|%j|%T|%r"])
            if found is not None:
                parts = (line.split("|") for line in found)
                return {each[0]: _Queued(*each[1:]) for each in parts if len(each) == 4}
            if self._closing.wait(2.0):
                break
        raise LoopscopeError("Slurm does not answer: `squeue` failed for a minute")

    def _follow(self) -> None:
        """Look for results and at the queue until this is closed."""
        while not self._closing.wait(max(LOOK_EVERY, len(self._followed) / 50)):
            with self._lock:
                followed = [*self._followed.values()]
            if not followed:
                continue
            try:
                queue = self._queue()
            except LoopscopeError:
                continue  # a controller that is away for long; jobs go on without it
            for each in followed:
                outcome = None
                with suppress(OSError):  # a shared file system that stumbles is asked again; jobs go on
                    outcome = self._stuck(each, queue[each.id]) if each.id in queue else None
                    outcome = outcome or self._outcome(each, each.id in queue)
                if outcome is not None:
                    with self._lock:
                        self._followed.pop(each.id, None)
                    each.ended(outcome)

    def _stuck(self, each: _Followed, now: _Queued) -> Outcome | None:
        """The outcome of a job that would pend for ever; None for others, whose unusual reasons to wait are noted."""
        why = reason_to_wait(now.reason) if now.state == "PENDING" else ""
        if why != each.why:
            each.why = why
            each.journal.wait(why and f"Slurm job {each.id} pends: {why}")
        outcome = never_begins(each.id, why)
        if outcome is not None and not is_held(why):
            _cancel([each.id])
        return outcome

    def _outcome(self, each: _Followed, queued: bool) -> Outcome | None:
        """The outcome of a job that has left the queue; None while it is there, or its result may be late."""
        if queued:
            each.gone = None
            return None
        if each.gone is None:
            each.gone = time.monotonic()
        if all(each.job.task(number).paths.result_pickle.exists() for number in range(each.job.num_tasks)):
            try:
                return Outcome.from_json(each.job.results()[0])
            except Exception as error:  # what submitit caught on the node, or could not read
                return lost(f"Slurm job {each.id}: {' '.join(str(error).split())[:300]}")
        state, nodes = _state(each.id)
        for known, line in ENDINGS.items():
            if state.startswith(known):
                return Outcome("failed", line=f"Slurm job {each.id}: {line}", code=1, place=nodes)
        if time.monotonic() - each.gone < LATE and not state.startswith("NODE_FAIL"):
            return None
        return lost(f"Slurm job {each.id} ended {state or 'without a word'}", nodes)


def reason_to_wait(reason: str) -> str:
    """Why a job pends, as `squeue` says it; empty for `PLAIN` reasons."""
    said = reason.strip("() ").replace("_", " ")
    return "" if said in PLAIN else said


def is_held(why: str) -> bool:
    """Whether somebody holds the job back, who can release it."""
    return why.startswith("JobHeld")


def never_begins(number: str, why: str) -> Outcome | None:
    """The outcome of a job that pends for such a reason, if it would for ever.

    What could not be launched is lost, as another node may do it; what is held, or asks for what no node has, failed.
    """
    if is_held(why):
        line = f"is held ({why}); `scontrol release {number}`, then the same command, goes on with it"
        return Outcome("failed", line=f"Slurm job {number} {line}", code=1)
    if why.startswith("launch failed"):
        return lost(f"Slurm job {number} could not be launched ({why})")
    if why == "BadConstraints":
        return Outcome("failed", line=f"Slurm job {number} asks for what no node has ({why})", code=1)
    return None


def _cancel(numbers: list[str]) -> None:
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scancel", *numbers], capture_output=True, timeout=60, check=False)


def _state(number: str) -> tuple[str, str]:
    """How a job ended and on which nodes, where there is accounting; empty where there is none."""
    for line in _lines(["sacct", "-n", "-X", "-P", "-o", "State,NodeList", "-j", number]) or []:
        state, _, nodes = line.partition("|")
        return state, nodes
    return "", ""


def _lines(command: list[str]) -> list[str] | None:
    """The lines that a command prints; None where it fails."""
    # What people set for their own looks at the queue, such as SQUEUE_STATES, would hide jobs.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SINFO_", "SQUEUE_", "SACCT_"))}
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=env)
        return [line for line in done.stdout.splitlines() if line.strip()]
    return None


def _minutes(limit: str) -> int:
    """Minutes of a limit as Slurm writes it: "infinite", "30:00", "2:00:00" or "1-12:00:00"."""
    match = re.fullmatch(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)", limit)
    if match is None:
        return 365 * DAY
    days, hours, minutes, _ = (int(each or 0) for each in match.groups())
    return max(1, days * DAY + hours * 60 + minutes)
