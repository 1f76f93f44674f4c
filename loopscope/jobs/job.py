"""Jobs and graphs of jobs, as values.

    {"jobs": [
      {"name": "backbones", "what": "train", "settings": {"recipe": {...}, "seeds": [0, 1]}},
      {"name": "map", "what": "fit", "settings": {...}, "inputs": {"backbone": "<key>"}, "after": ["backbones"]}
    ]}

A job says what is done, with which settings, on which artefacts (by key) and what it needs.  It holds no path but
those of its settings, so it means the same on every machine that sees the store.  What comes out is in the store.
"""

from __future__ import annotations

import graphlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from loopscope.bounds import whole
from loopscope.errors import InputError, nearest
from loopscope.store.manifest import JSON_LIMIT, KEY, canonical, digest, parse_json

MOST_MINUTES = 60 * 24 * 365.0


@dataclass(frozen=True)
class Needs:
    """What a job needs on each of `nodes` machines.

    `gpus`: a fraction lets jobs share one.  `cpus`: the threads it computes with, which decide its last bits.
    `minutes`: how long it is expected to take, None where nobody knows.
    """

    gpus: float = 0.0
    nodes: int = 1
    cpus: int = 1
    minutes: float | None = None

    def __post_init__(self) -> None:
        whole("needs.nodes", self.nodes, 1, 4096)
        whole("needs.cpus", self.cpus, 1, 1024)
        _number("needs.gpus", self.gpus, 1024)
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise InputError(f"needs.gpus is {self.gpus}: a part of one GPU, or whole ones (nearest: {int(self.gpus)})")
        if self.minutes is not None:
            _number("needs.minutes", self.minutes, MOST_MINUTES)

    @property
    def processes(self) -> int:
        """How many processes work together on the job."""
        return self.nodes * max(1, int(self.gpus))


@dataclass(frozen=True)
class Job:
    """One thing to do.  `what` names a task (`task.task_of`); `after` the jobs that must be done before.

    `name` is for people and unique in a graph; `key` is the digest of what decides the outcome, threads included.
    """

    name: str
    what: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plain = json.loads(canonical(dict(self.settings), f"job {self.name!r}: settings"))  # tuples are lists
        object.__setattr__(self, "settings", plain)
        for role, key in self.inputs.items():
            if not (isinstance(key, str) and KEY.fullmatch(key)):
                raise InputError(f"job {self.name!r}: input {role!r} is {key!r}; an input is 64 hexadecimal digits")

    @property
    def key(self) -> str:
        """64 hexadecimal digits."""
        threads = self.needs.cpus
        return digest({
            "what": self.what, "settings": dict(self.settings), "inputs": dict(self.inputs), "threads": threads
        })  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """As it stands in a file of jobs."""
        return {**asdict(self), "settings": dict(self.settings), "inputs": dict(self.inputs), "after": [*self.after]}

    @classmethod
    def from_json(cls, value: object, where: str = "job") -> Job:
        """The job of such a value; InputError names what is missing, unknown or of the wrong type."""
        given = _only(value, [each.name for each in fields(cls)], where)
        for name in ("name", "what"):
            if not isinstance(given.get(name), str) or not given[name] or len(given[name]) > 300:
                raise InputError(f"{where}: {name!r} must be a text of 1 to 300 characters")
        where = f"job {given['name']!r}"
        for name in ("settings", "inputs"):
            if not isinstance(given.setdefault(name, {}), dict):
                raise InputError(f"{where}: {name!r} must be an object")
        after = given.get("after", [])
        if not isinstance(after, list | tuple) or not all(isinstance(each, str) for each in after):
            raise InputError(f"{where}: 'after' must be a list of names of jobs")
        needs = _only(given.get("needs", {}), [each.name for each in fields(Needs)], f"{where}, needs")
        return cls(given["name"], given["what"], given["settings"], given["inputs"], Needs(**needs), tuple(after))


@dataclass(frozen=True)
class Later:
    """Jobs that depend on results: once the jobs `after` are done, `make` gives them; `expected` does for a plan."""

    after: tuple[str, ...]
    make: Callable[[], Graph]
    expected: Callable[[], Graph]


@dataclass(frozen=True)
class Graph:
    """Jobs with what comes before what, and what is only known later."""

    jobs: tuple[Job, ...]
    later: tuple[Later, ...] = ()

    def __post_init__(self) -> None:
        names: set[str] = set()
        for each in self.jobs:
            if each.name in names:
                raise InputError(f"two jobs are called {each.name!r}; names are unique")
            names.add(each.name)

    def __or__(self, other: Graph) -> Graph:
        """Both, side by side."""
        return Graph((*self.jobs, *other.jobs), (*self.later, *other.later))

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def checked(self, known: Iterable[str] = ()) -> Graph:
        """This graph; InputError where a job waits for one that is not there, or for itself."""
        names = {*known, *(each.name for each in self.jobs)}
        for job in self.jobs:
            for each in job.after:
                if each not in names:
                    raise InputError(f"job {job.name!r} waits for {each!r}, which is not there{nearest(each, names)}")
        try:
            graphlib.TopologicalSorter({job.name: job.after for job in self.jobs}).prepare()
        except graphlib.CycleError as error:
            raise InputError(f"these jobs wait for each other: {', '.join(dict.fromkeys(error.args[1]))}") from None
        return self

    def expected(self) -> Graph:
        """All jobs, as far as can be told before any is done; what comes later waits for what it follows from."""
        jobs, later = {job.name: job for job in self.jobs}, [*self.later]
        while later:
            each = later.pop(0)
            more = each.expected()
            jobs |= {job.name: _behind(job, each.after) for job in more.jobs if job.name not in jobs}
            later += more.later
        return Graph(tuple(jobs.values())).checked()

    def to_json(self) -> dict[str, Any]:
        """As it stands in a file; what comes later is not in it."""
        return {"jobs": [each.to_json() for each in self.jobs]}


def _behind(job: Job, after: tuple[str, ...]) -> Job:
    return Job(job.name, job.what, job.settings, job.inputs, job.needs, tuple(dict.fromkeys((*job.after, *after))))


def graph_of(value: object) -> Graph:
    """The graph of a value {"jobs": [...]}; InputError where it is none."""
    given = _only(value, ["jobs"], "a file of jobs")
    jobs = given.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise InputError('a file of jobs is an object {"jobs": [...]} with at least one job')
    return Graph(tuple(Job.from_json(each, f"job {number}") for number, each in enumerate(jobs, 1))).checked()


def read_value(file: Path) -> Any:
    """The JSON value in a file that a user names; InputError where there is none."""
    try:
        if file.stat().st_size > JSON_LIMIT:
            raise ValueError(f"more than {JSON_LIMIT:,} bytes")
        return parse_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is no JSON: {error}") from None


def _only(value: object, known: list[str], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is no object")
    for name in value:
        if name not in known:
            raise InputError(f"{where} has no {name!r}; there are {', '.join(known)}{nearest(str(name), known)}")
    return dict(value)


def _number(name: str, value: object, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InputError(f"{name} must be a number from 0 to {most:g}, not {value!r}")
