"""How long a graph of jobs takes: its critical path, and what so many places would need, by expected minutes."""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loopscope.jobs.job import Graph, Job

UNKNOWN = 5.0
"""Minutes that a job of unknown length counts."""


def minutes(job: Job) -> float:
    """What it is expected to take."""
    return UNKNOWN if job.needs.minutes is None else job.needs.minutes


def ahead(jobs: Iterable[Job]) -> dict[str, float]:
    """For every job the minutes of the longest chain that begins with it, among these jobs."""
    mine = {each.name: each for each in jobs}
    behind: dict[str, list[str]] = {name: [] for name in mine}
    for job in mine.values():
        for before in job.after:
            if before in mine:
                behind[before].append(job.name)
    order = graphlib.TopologicalSorter({name: [e for e in job.after if e in mine] for name, job in mine.items()})
    found: dict[str, float] = {}
    for name in reversed([*order.static_order()]):
        found[name] = minutes(mine[name]) + max((found[each] for each in behind[name]), default=0.0)
    return found


def critical_path(graph: Graph) -> list[Job]:
    """The longest chain of jobs: no number of places makes it shorter."""
    longest = ahead(graph)
    chain: list[Job] = []
    choices = [job for job in graph if not job.after]
    while choices:
        chain.append(max(choices, key=lambda job: longest[job.name]))
        choices = [job for job in graph if chain[-1].name in job.after]
    return chain


@dataclass(frozen=True)
class Projection:
    """A simulated run: its minutes, the part of all places' time that is used, when each job begins and ends."""

    places: int
    minutes: float
    busy: float
    spans: Mapping[str, tuple[float, float]]

    @property
    def limit(self) -> str:
        """What keeps it from being shorter, in words."""
        return "the number of places" if self.busy > 0.9 else "the longest chain, and how jobs fit behind each other"


def simulate(graph: Graph, places: int, share: float = 1.0, start: float = 0.0) -> Projection:
    """List scheduling: a free place takes, of the jobs that may begin, the one with the longest chain ahead.

    `share` is the part of a place that a job takes (0.5: two at once), `start` minutes that every job takes besides.
    """
    longest = ahead(graph)
    jobs = {job.name: job for job in graph}
    waits = {name: len(job.after) for name, job in jobs.items()}
    behind: dict[str, list[str]] = {name: [] for name in jobs}
    for job in jobs.values():
        for before in job.after:
            behind[before].append(job.name)
    ready = [(-longest[name], name) for name, left in waits.items() if not left]
    heapq.heapify(ready)
    free, now = places / share, 0.0
    running: list[tuple[float, str]] = []
    spans: dict[str, tuple[float, float]] = {}
    while ready or running:
        while ready and free >= 1:
            name = heapq.heappop(ready)[1]
            end = now + start + minutes(jobs[name])
            spans[name] = (now, end)
            heapq.heappush(running, (end, name))
            free -= 1
        now, name = heapq.heappop(running)
        free += 1
        for each in behind[name]:
            waits[each] -= 1
            if not waits[each]:
                heapq.heappush(ready, (-longest[each], each))
    work = sum(end - begun for begun, end in spans.values())
    return Projection(places, now, work / (now * places / share) if now else 1.0, spans)


def total(jobs: Sequence[Job]) -> float:
    """Minutes of all jobs, one after the other."""
    return sum(map(minutes, jobs))
