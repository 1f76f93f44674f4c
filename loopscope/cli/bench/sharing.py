"""What two worker processes on one device gain over one: the same jobs one at a time, then side by side.

A worker's first job, for which it loads libraries and captures graphs for the first time, is not timed; the others are,
each with whatever it has to load, capture and write, as in a campaign.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from loopscope.jobs.driver import Event, JobsFailedError, Standing, run
from loopscope.jobs.job import Graph, Job, Later, Needs
from loopscope.log import Log, silent
from loopscope.models.folders import outline
from loopscope.store.artefacts import BACKBONE
from loopscope.store.store import Store
from loopscope.store.zoo import find, open_zoo
from loopscope.studies.language.jobs import WHAT
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.language.recipes import recipe
from loopscope.studies.recipes import map_recipe

WORKERS = (1, 2)
LEAST, MOST = 2, 8
"""Jobs that are timed; the time of the first decides how many."""


@dataclass(frozen=True)
class Sharing:
    """One way of doing so many equal jobs; `ratio` is how many times faster than by one worker it was."""

    case: str
    about: str
    workers: int
    jobs: int
    seconds: float
    ratio: float


@dataclass(frozen=True)
class Case:
    """Jobs of equal work: `job` gives any number of them, which need what `prepare` puts into their store."""

    name: str
    about: str
    prepare: Callable[[Store], object]
    job: Callable[[int, Needs], Job]


def bench_sharing(
    device: torch.device, folder: Path | None = None, seconds: float = 40.0, log: Log = silent
) -> Iterator[Sharing]:
    """Map fits of the paper's size (on a CPU tiny ones) and, with a folder of a looped language model, tests of it.

    Each case takes about so many seconds with one worker and at most as many with two, besides a job that is not timed.
    InputError for a folder that is no model; JobsFailedError where a job fails.
    """
    gpu = device.type == "cuda"
    for case in [_fits(gpu), *([] if folder is None else [_tests(folder, gpu)])]:
        alone, count = 0.0, None
        for workers in WORKERS:
            log(f"{case.name}, {workers} at once")
            count, took = _timed(case, workers, Needs(gpus=1 / workers if gpu else 0.0), count, seconds)
            alone = alone or took
            yield Sharing(case.name, case.about, workers, count, took, alone / took)


def _timed(case: Case, workers: int, needs: Needs, count: int | None, seconds: float) -> tuple[int, float]:
    """How many jobs, and how long they took; so many that one worker has about `seconds` to do, unless told."""
    first = tuple(case.job(number, needs) for number in range(workers))
    began: dict[str, float] = {}
    ended: dict[str, float] = {}

    def tell(event: Event, _: Standing) -> None:
        if event.what in ("begun", "done"):
            (began if event.what == "begun" else ended)[event.job] = time.monotonic()

    def timed() -> Graph:
        each = max(ended[job.name] - began[job.name] for job in first)
        many = count or max(LEAST, min(MOST, 2 * round(seconds / each / 2)))
        return Graph(tuple(case.job(number, needs) for number in range(workers, workers + many)))

    with tempfile.TemporaryDirectory() as place:
        store = Store(place)
        case.prepare(store)
        later = Later(tuple(job.name for job in first), timed, timed)
        report = run(Graph(first, (later,)), store, f"local:{workers}", tell=tell)
    if report.failures:
        raise JobsFailedError("; ".join(report.failures))
    mine = report.outcomes.keys() - {job.name for job in first}
    return len(mine), max(ended[name] for name in mine) - min(began[name] for name in mine)


def _fits(gpu: bool) -> Case:
    """Four maps of a backbone side by side, as one job of the campaign has them, for fewer updates."""
    backbone, names, updates = ("d8l6-5", ("one", "two"), 500) if gpu else ("tiny-0", ("tiny-one", "tiny-stay"), 40)
    chosen = [map_recipe(each) for each in names]
    short = [
        replace(each, stages=(replace(each.stages[0], updates=updates, check_every=0),), keep="last") for each in chosen
    ]
    there = find(open_zoo(None), backbone, BACKBONE)

    def job(number: int, needs: Needs) -> Job:
        settings = {"recipes": [each.to_dict() for each in short], "fits": [2 * number + 1, 2 * number + 2]}
        return Job(f"fits {number}", "fit", settings, {BACKBONE: there.key}, needs)

    about = f"{'+'.join(names)} on {backbone}, 4 maps, {updates} updates"
    return Case("map fits", about, lambda store: store.adopt(there), job)


def _tests(folder: Path, gpu: bool) -> Case:
    """The letter tests of a language model with a map that has hardly learned, on a few pairs."""
    shape, pairs = outline(folder), 16 if gpu else 2
    step = recipe("letter-map", ["updates=1", "examples=4", "micro=4", "checked=1"])

    def job(number: int, needs: Needs) -> Job:
        settings = {
            "folder": str(folder.absolute()), "recipe": step.to_dict(), "experiment": LETTERS, "arm": "letter",
            "name": f"model {number}", "boundary": step.boundary, "cases": pairs, "batch": 32,
        }  # fmt: skip
        return Job(f"test {number}", WHAT, settings, needs=needs)

    return Case("tests of a language model", f"letters, {pairs} pairs, width {shape.width}", lambda store: None, job)
