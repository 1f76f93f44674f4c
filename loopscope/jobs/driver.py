"""The driver: begins jobs when what they wait for is done, retries what was lost, and tells how far it is.

It holds the graph, because what comes next may depend on results.  It decides nothing by its own notes: a job whose
outcome is in the store is done, so the same call after any end goes on where things are.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loopscope.errors import LoopscopeError
from loopscope.jobs.engine import Engine, Ticket
from loopscope.jobs.engines import engine_of
from loopscope.jobs.job import Graph, Job, Later
from loopscope.jobs.journal import Journal
from loopscope.jobs.outcome import Outcome
from loopscope.jobs.plan import ahead
from loopscope.jobs.probe import check_once
from loopscope.jobs.task import Task, task_of
from loopscope.store.store import Store

TRIES = 3
"""Times that a job whose process or machine was lost is begun again."""

VISIBLE = 60.0
"""Seconds within which an outcome must be seen in the store; a shared file system may take a few to show it."""

LOOK_EVERY = 2.0
"""Seconds between two looks at how far running jobs are."""


@dataclass(frozen=True)
class Event:
    """Something that happened: a job is found, waiting, begun, on its way, done, failed, lost, or skipped.

    Before the first, `probing` tells of the probe of an engine, which waits in its queue as jobs do; after the last,
    `stopping` of what becomes of those at work where all ends early.
    """

    what: Literal[
        "probing", "stopping", "found", "waiting", "begun", "on", "done", "failed", "lost", "stopped", "skipped"
    ]
    job: str
    text: str = ""
    place: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Standing:
    """How many jobs are where, and about how many minutes are left (None: nobody knows).

    `running` are at work somewhere; those in an engine's own queue are `waiting`, too.
    """

    done: int
    running: int
    waiting: int
    failed: int
    left: float | None = None

    @property
    def total(self) -> int:
        """All that are known by now."""
        return self.done + self.running + self.waiting + self.failed


OnEvent = Callable[[Event, Standing], None]


@dataclass(frozen=True)
class Report:
    """How a graph of jobs ended: outcomes by name, and what was not begun with the failure that it waited for."""

    outcomes: Mapping[str, Outcome]
    skipped: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """A line for each job that failed, and one for those that were not begun because of them."""
        lines = [
            f"{name}: {outcome.line}" + (f" ({outcome.place})" if outcome.state == "lost" and outcome.place else "")
            for name, outcome in self.outcomes.items()
            if outcome.state != "done"
        ]
        if self.skipped:
            first = next(iter(self.skipped))
            more = f" and {len(self.skipped) - 1} more" if len(self.skipped) > 1 else ""
            lines.append(f"not begun, as they wait for what failed: {first}{more}")
        return lines


class JobsFailedError(LoopscopeError):
    """Some jobs failed; the others are done.  The message has a line's part for each failure."""


def run(
    graph: Graph,
    store: Store | str | Path,
    on: str | Engine = "local:1",
    *,
    save_every: float = 30.0,
    tell: OnEvent = lambda event, now: None,
    leave: Callable[[], bool] = lambda: True,
) -> Report:
    """Do all jobs of a graph on an engine and give their outcomes; what the store has is not done again.

    A lost job is begun again up to three times.  What fails keeps only those from beginning that wait for it.
    InputError, before anything is begun, where the store cannot be shared with the engine's workers (`probe.check`).
    Where the engine can do that, running jobs go on when this ends early; after an interrupt `leave` is asked first.
    """
    place = store if isinstance(store, Store) else Store(store)
    engine = engine_of(on) if isinstance(on, str) else on
    left = False  # as a probe is not
    try:
        if engine.elsewhere:
            name = on if isinstance(on, str) else type(on).__name__
            check_once(engine, place, name, lambda line: tell(Event("probing", "probe", line), Standing(0, 0, 0, 0)))
        driver = _Driver(graph, place, engine, save_every, tell)
        try:
            return driver.run()
        except BaseException as error:
            left = engine.leaves and (not isinstance(error, KeyboardInterrupt) or leave())
            driver.stopping(left)
            raise
    finally:
        engine.close(left)


class _Driver:
    def __init__(self, graph: Graph, store: Store, engine: Engine, save_every: float, tell: OnEvent) -> None:
        self.store, self.engine, self.save_every, self.tell = store, engine, save_every, tell
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[str, Task] = {}
        self.later: list[Later] = []
        self.outcomes: dict[str, Outcome] = {}
        self.skipped: dict[str, str] = {}
        self.begun: dict[str, float] = {}
        self.at_work: dict[str, float] = {}
        self.lost: dict[str, int] = {}
        self.avoid: dict[str, tuple[str, ...]] = {}
        self.waits: dict[str, str] = {}
        self.ended: queue.SimpleQueue[tuple[str, Outcome]] = queue.SimpleQueue()
        self.looked = 0.0
        self._add(graph)

    def run(self) -> Report:
        while True:
            self._grow()
            self._begin()
            if not self.begun:
                break
            try:
                name, outcome = self.ended.get(timeout=LOOK_EVERY)
                self._end(name, outcome)
            except queue.Empty:
                pass
            self._look()
        return Report(self.outcomes, self.skipped, self.jobs)

    def stopping(self, left: bool) -> None:
        """Tell and note what becomes of those at work, as this ends early; ending them may take a while."""
        for name in () if left else self.begun:
            Journal(self.store.root, self.jobs[name].key).end(
                Outcome("stopped", line="stopped with the command", code=130)
            )
        if self.begun:
            fate = "left to go on" if left else "stopped"
            self._say("stopping", "jobs", f"jobs begun: {len(self.begun)}, {fate}; the same command goes on from there")

    # ---- what there is to do -----------------------------------------------------------------------------------------

    def _add(self, graph: Graph) -> None:
        known = graph.checked(self.jobs)
        # Some are asked for twice, by two that follow from different results.
        fresh = {job.name: job for job in known.jobs if job.name not in self.jobs}
        self.tasks |= {name: task_of(job.what) for name, job in fresh.items()}
        self.jobs |= fresh
        self.later += known.later
        for job in fresh.values():
            self._look_up(job)

    def _look_up(self, job: Job) -> None:
        """Note what is in the store already, and what can be seen to be wrong without a worker."""
        journal = Journal(self.store.root, job.key)
        try:
            keys = self.tasks[job.name].found(job, self.store)
        except LoopscopeError as error:
            self.outcomes[job.name] = Outcome("failed", line=str(error), code=error.exit_code)
            journal.open(job)
            journal.end(self.outcomes[job.name])
            return self._say("failed", job.name, str(error))
        if keys is not None:
            self.outcomes[job.name] = Outcome("done", keys)
            return self._say("found", job.name)
        journal.open(job)
        self._say("waiting", job.name)

    def _grow(self) -> None:
        """Add what follows from what is done; again, where all of that is there already."""
        while ready := [each for each in self.later if self._done(each.after)]:
            self.later = [each for each in self.later if each not in ready]
            for each in ready:
                try:
                    self._add(each.make())
                except LoopscopeError as error:  # a result that cannot be read; what else there is goes on
                    name = _follows(each)
                    self.outcomes[name] = Outcome("failed", line=str(error), code=error.exit_code)
                    self._say("failed", name, str(error))

    def _done(self, names: Sequence[str]) -> bool:
        return all(name in self.outcomes and self.outcomes[name].state == "done" for name in names)

    def _begin(self) -> None:
        self._skip()
        settled = {*self.outcomes, *self.begun, *self.skipped}
        waiting = [name for name in self.jobs if name not in settled]
        ready = [name for name in waiting if self._done(self.jobs[name].after)]
        longest = ahead([self.jobs[name] for name in waiting])
        for name in sorted(ready, key=lambda each: -longest[each]):
            if self.engine.places is not None and len(self.begun) >= self.engine.places:
                return
            self._start(name)

    def _skip(self) -> None:
        """What waits for a failure, or for what does, is not begun."""
        while True:
            bad = {name for name, each in self.outcomes.items() if each.state != "done"} | {*self.skipped}
            found = {
                name: next(each for each in job.after if each in bad)
                for name, job in self.jobs.items()
                if name not in self.outcomes and name not in self.skipped and not bad.isdisjoint(job.after)
            }
            for each in self.later:
                if not bad.isdisjoint(each.after):
                    found |= {_follows(each): next(x for x in each.after if x in bad)}
            self.later = [each for each in self.later if bad.isdisjoint(each.after)]
            if not found:
                return
            self.skipped |= found
            for name, because in found.items():
                if name in self.jobs:  # what follows from a failure is no job yet
                    outcome = Outcome("skipped", line=f"not begun, as it waits for {because}")
                    Journal(self.store.root, self.jobs[name].key).end(outcome)
                self._say("skipped", name, because)

    def _start(self, name: str) -> None:
        job = self.jobs[name]
        self.begun[name] = time.monotonic()
        if self.engine.places is not None:  # it has no queue of its own
            self.at_work[name] = self.begun[name]
        self._say("begun", name)
        ticket = Ticket(job, self.store.root, self.save_every, self.avoid.get(name, ()), name in self.lost)
        try:
            self.engine.start(ticket, lambda outcome: self.ended.put((name, outcome)))
        except LoopscopeError as error:
            self.ended.put((name, Outcome("failed", line=str(error), code=error.exit_code)))

    # ---- what has ended ----------------------------------------------------------------------------------------------

    def _end(self, name: str, outcome: Outcome) -> None:
        if outcome.state == "done" and not self._visible(name):
            line = f"its outcome is not seen in {self.store.root} here; `loopscope store check --on ...` tells why"
            outcome = Outcome("failed", line=line, code=1, place=outcome.place)
        begun = self.begun.pop(name)
        seconds = time.monotonic() - self.at_work.pop(name, begun)
        again = outcome.state in ("lost", "stopped") and self.lost.get(name, 0) < TRIES
        if again:  # whoever stopped it was not this process: a scheduler took its place
            self.lost[name] = self.lost.get(name, 0) + 1
            journal = Journal(self.store.root, self.jobs[name].key)
            node = str((journal.read("running") or {}).get("node", ""))
            if node and outcome.state == "lost":
                self.avoid[name] = (*self.avoid.get(name, ()), node)
            journal.open(self.jobs[name])
            self._say("lost", name, f"{outcome.line}; try {self.lost[name] + 1}", outcome.place, seconds)
            return
        self.outcomes[name] = outcome
        if outcome.state != "done":  # which no worker may have lived to note
            Journal(self.store.root, self.jobs[name].key).end(outcome)
        self._say(outcome.state, name, outcome.line, outcome.place, seconds)

    def _visible(self, name: str) -> bool:
        """Whether the outcome can be seen from here, soon."""
        task, job = self.tasks[name], self.jobs[name]
        until = time.monotonic() + VISIBLE
        while task.looks and task.found(job, self.store) is None:
            if time.monotonic() > until:
                return False
            time.sleep(0.5)
        return True

    # ---- what is told ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Tell how far running jobs are, by what they noted; less often where there are many."""
        if time.monotonic() - self.looked < max(LOOK_EVERY, len(self.begun) / 20):
            return
        self.looked = time.monotonic()
        for name in self.begun:
            now = Journal(self.store.root, self.jobs[name].key).read("running")
            if now is not None:
                since = self.at_work.setdefault(name, time.monotonic())
                words = " ".join(str(now[each]) for each in ("stage", "told") if now.get(each))
                event = Event(
                    "on", name, words, str(now.get("place", "")), int(now.get("done", 0)), int(now.get("total", 0)),
                    time.monotonic() - since,
                )  # fmt: skip
                self.tell(event, self._standing())
            elif name not in self.at_work:
                why = str((Journal(self.store.root, self.jobs[name].key).read("waiting") or {}).get("line", ""))
                if why and self.waits.get(name) != why:
                    self.waits[name] = why
                    self._say("waiting", name, why)

    def _say(self, what: str, name: str, text: str = "", place: str = "", seconds: float = 0.0) -> None:
        self.tell(Event(what, name, text, place, seconds=seconds), self._standing())  # type: ignore[arg-type]

    def _standing(self) -> Standing:
        done = sum(each.state == "done" for each in self.outcomes.values())
        failed = len(self.outcomes) - done + len(self.skipped)
        running = len(self.at_work)
        waiting = max(0, len(self.jobs) - len(self.outcomes) - running - len(self.skipped.keys() & self.jobs.keys()))
        return Standing(done, running, waiting, failed, self._left())

    def _left(self) -> float | None:
        """Minutes left, where all that is open says how long it takes: as many at once as are at work now."""
        left = 0.0
        for name, job in self.jobs.items():
            if name not in self.outcomes and name not in self.skipped:
                if job.needs.minutes is None:
                    return None
                since = self.at_work.get(name)
                left += max(0.0, job.needs.minutes - (0.0 if since is None else time.monotonic() - since) / 60)
        return left / len(self.at_work) if self.at_work else None


def _follows(later: Later) -> str:
    """What people are told of jobs that are not known yet."""
    return f"what follows from {', '.join(later.after[:3])}"
