"""What follows from records of iterations: which replies are right in each branch, and what is right without iterating.

The quantities by id, with their coordinates:

    iterations.whole       answers that are right as a whole: split, task (or all), length (long or short), branch
    iterations.parsed      answers that are right once read out of what stands around them: the same
    iterations.baseline    long requests that are right without iterating on: split, task, length, baseline
    iterations.gain        J and F minus F alone on long requests, paired, in no table: split
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from loopscope.measure.replies import as_texts
from loopscope.quantity import Quantity, QuantityTable
from loopscope.stats import wilson
from loopscope.store.files import damaged
from loopscope.studies.iterations.tests import REPLIES, STARTS, branches, requests
from loopscope.studies.language.shares import Right, difference, share
from loopscope.studies.records import Record
from loopscope.tasks.iterations import TASKS, TRAINED_DEPTH, Request, Score, score, tally

PAPER_LONG = {
    "J+F": (128, 128, 128, 128, 62), "F": (96, 79, 5, 0, 3), "J": (91, 100, 6, 0, 3), "stop": (90, 67, 4, 0, 3)
}  # fmt: skip
"""Whole answers that were right of 128 long requests each, by branch and task in the order of TASKS."""

PAPER_SHORT = {"J+F": 636, "F": 640, "J": 640, "stop": 640}

LONG, SHORT = "long", "short"
"""Requests for more steps than backbones are trained on, and the others."""

ALL = "all"
"""In place of a task: all of them."""

PARTS = (*((task, LONG) for task in TASKS), (ALL, LONG), (ALL, SHORT))
"""The parts of the requests that are counted, by task and length."""

BASELINES = ("stops_early", "repeats_start", "says_one_thing")
"""Ways to be right without iterating on, as `iterations.Tally` counts them."""


def part_name(task: str, length: str) -> str:
    """What a part of the requests is called."""
    return f"{task} {length}" if task == ALL else f"{task}, {length}"


def is_long(request: Request) -> bool:
    """Whether a request is for more steps than a backbone is trained on."""
    return request.k > TRAINED_DEPTH


def requested(record: Record, split: str) -> tuple[Request, ...]:
    """The requests of a record from the starts of a split."""
    return requests(int(record.settings["cases"]), split)


def scored(record: Record, split: str, branch: str) -> list[tuple[Request, Score]]:
    """Every request from the starts of a split with the score of its reply in a branch.

    DamagedError for a record that has no replies to them.
    """
    if REPLIES[split] not in record.predictions:
        raise damaged(f"record of {record.facts.name}", f"replies from {STARTS[split]}", "none")
    said = as_texts(record.predictions[REPLIES[split]][branch])
    return [(request, score(request, text)) for request, text in zip(requested(record, split), said, strict=True)]


def iterated(record: Record, split: str, branch: str, kept: Callable[[Request], bool]) -> Right:
    """Whether the replies of a branch are right as a whole, of the requests from these starts that are kept."""
    return _right(scored(record, split, branch), kept)


def _right(scores: Sequence[tuple[Request, Score]], kept: Callable[[Request], bool], parsed: bool = False) -> Right:
    return np.array([each.parsed if parsed else each.whole for request, each in scores if kept(request)])


def iteration_tables(record: Record) -> list[QuantityTable]:
    """The tables of a record of iterations, from held-out and from trained starts, the published numbers beside ours.

    DamagedError for a record that lacks replies from one of them.
    """
    same = "the same, bit by bit" if record.notes.get("same_h4") else "not the same"
    notes = {
        "test": f"Starts are held out, which the paper's are not. h4 of the four branches is {same}.",
        "train": "The paper's setting: its starts are not held out.",
    }
    return [table for split, note in notes.items() for table in _from_starts(record, split, note)]


def _from_starts(record: Record, split: str, note: str) -> list[QuantityTable]:
    """Whole and parsed answers to requests from the starts of a split, and what is right without iterating on."""
    whole, parsed = [], []
    scores = {branch: scored(record, split, branch) for branch in branches()}
    for task, length in PARTS:
        kept = _kept(task, length)
        for branch, found in scores.items():
            label, paper = f"{part_name(task, length)}: {branch}", _published(task, length, branch)
            at = {"split": split, "task": task, "length": length, "branch": branch}
            whole.append(share("iterations.whole", label, _right(found, kept), at, paper, "request"))
            parsed.append(share("iterations.parsed", label, _right(found, kept, parsed=True), at, unit="request"))
    zero = []
    counts = [each for each in tally(requested(record, split)) if each.k > TRAINED_DEPTH]
    for task, what in product(TASKS, BASELINES):
        mine = [each for each in counts if each.task == task]
        of, right = sum(each.requests for each in mine), sum(int(getattr(each, what)) for each in mine)
        at = {"split": split, "task": task, "length": LONG, "baseline": what}
        label = f"{task}: {what.replace('_', ' ')}"
        zero.append(Quantity("iterations.baseline", label, wilson(right, of, unit="request"), of, at=at))
    starts = "Iterations" if split == "test" else f"Iterations from {STARTS[split]}"
    return [
        QuantityTable("iterations.whole", f"{starts}: whole answers", whole, note),
        QuantityTable("iterations.parsed", f"{starts}: parsed answers", parsed),
        QuantityTable("iterations.baseline", f"{starts}: long requests that are right without iterating on", zero),
    ]


def _kept(task: str, length: str) -> Callable[[Request], bool]:
    return lambda request: task in (ALL, request.task) and is_long(request) == (length == LONG)


def _published(task: str, length: str, branch: str) -> float:
    if length == SHORT:
        return PAPER_SHORT[branch] / 640
    if task == ALL:
        return sum(PAPER_LONG[branch]) / 640
    return PAPER_LONG[branch][list(TASKS).index(task)] / 128


def gain(record: Record, split: str) -> Quantity:
    """How many more long requests J and F get right than F alone; equal prompts are resampled together."""
    both, alone = (iterated(record, split, branch, is_long) for branch in ("J+F", "F"))
    prompts = [request.prompt for request in requested(record, split) if is_long(request)]
    value = difference(both, alone, prompts, unit="prompt")
    return Quantity("iterations.gain", "J+F - F", value, len(both), at={"split": split})
