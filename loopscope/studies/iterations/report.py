"""The section on iterations in language models: four ways on from h4, by task and number of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loopscope.quantity import Quantity, one
from loopscope.stats import Estimate, wilson
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.iterations.tables import ALL, LONG, PARTS, part_name, requested, scored
from loopscope.studies.language.layouts import ITERATIONS
from loopscope.studies.records import Record
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.report.contents import Figure, Grid, Section
from loopscope.studies.report.dots import Spot, dots
from loopscope.studies.report.figures import Line, lines_in_panels
from loopscope.studies.report.models import INTERVALS, bare, labelled, measured_on, models, published
from loopscope.tasks.iterations import LONGEST, TASKS, TRAINED_DEPTH, Tally, tally

SHADED = (0.7, TRAINED_DEPTH + 0.5)
"""Grey: steps that backbones were trained on."""

BRANCHES = {"J+F": "J and F", "F": "F alone", "J": "J alone", "stop": "stop"}
BASELINES = {
    "stops_early": "stops after 4 steps",
    "repeats_start": "repeats the start",
    "says_one_thing": "says one thing",
}
BASELINE = "best baseline"

HOW = (
    "A rule is to be applied k times: successor, weekday, doubling, Fibonacci, Collatz. Backbones were trained on one "
    "to four steps in four loops, J on one to eight in eight. All runs have the same h4, made with J before loops 2 to "
    "4; from there four more calls with J before each, four calls alone, four maps alone, or nothing. "
    f"{INTERVALS.format('requests')}",
    "Requests are asked from held-out starts, which neither backbone nor map was trained on, and as many from trained "
    "ones. The paper does not hold starts out: its numbers are to be compared with those from trained starts.",
    "Baselines are counted, not measured: stopping after four steps, repeating the start, and the answer that is right "
    "most often. They are right now and then: weekdays come round after seven steps, Collatz walks end in a cycle, and "
    "weekday, doubling and Fibonacci have few starts: two that are held out, five or seven that are trained.",
)


def iterations_section(evidence: Evidence) -> Section | None:
    """Four branches by task and number of steps, of whatever models were measured; None without any."""
    records = evidence.every(ITERATIONS)
    if not records:
        return None
    found = labelled(records)
    asked = _asked(found)
    figures = [_by_steps(number, *each) for number, each in enumerate(asked.items(), 1)]
    figures.append(_short_and_long(evidence, asked))
    apart = [label for label, record in found.items() if not record.notes.get("same_h4")]
    same = "h4 was the same in all branches, bit by bit" + (f", but not in {'; '.join(apart)}." if apart else ".")
    more = [table.under(label) for label, record in found.items() for table in evidence.tables(record)]
    return Section(
        ITERATIONS, "Language models: iterations", LANGUAGE[ITERATIONS].question,
        [measured_on(ITERATIONS, found), *HOW, same], figures,
        [models(ITERATIONS, {label: [record] for label, record in found.items()}), branches_table(evidence, asked)],
        decided_by(ITERATIONS), more,
    )  # fmt: skip


Asked = Mapping[str, tuple[Record, str]]
"""Records with a split of starts, by the name of the model and of the starts."""


def _asked(found: Mapping[str, Record]) -> Asked:
    return {
        f"{label}, {starts}": (record, split)
        for label, record in found.items()
        for split, starts in iteration_tests.STARTS.items()
    }


def _by_steps(number: int, label: str, asked: tuple[Record, str]) -> Figure:
    record, split = asked
    counted = {(each.task, each.k): each for each in tally(requested(record, split))}
    cells: dict[tuple[str, str, int], list[bool]] = {}
    for branch in BRANCHES:
        for request, each in scored(record, split, branch):
            cells.setdefault((branch, request.task, request.k), []).append(each.whole)
    panels: dict[str, list[Line]] = {}
    for title, mine in {**{task: [task] for task in TASKS}, "all tasks": [*TASKS]}.items():
        lines = []
        for branch, said in BRANCHES.items():
            by_k = [np.concatenate([cells[branch, task, k] for task in mine]) for k in range(1, LONGEST + 1)]
            lines.append(Line(said, [wilson(int(each.sum()), len(each), unit="request") for each in by_k]))
        best = [_best([counted[task, k] for task in mine]) for k in range(1, LONGEST + 1)]
        lines.append(Line(BASELINE, best, control=True))
        panels[title] = lines
    caption = (
        f"Whole answers that are right by the steps asked for, {record.settings['cases']} requests from "
        f"{iteration_tests.STARTS[split]} for each task and k, with 95 % intervals. Dashed: the best of three "
        "baselines. Grey: steps that the backbone was trained on."
    )
    title = f"Four ways on from h4, {label}"
    return lines_in_panels(f"iterations-{number}", title, caption, panels, "steps k", SHADED)


def _best(counted: Sequence[Tally]) -> Estimate:
    """The share that the best baseline has right, chosen for each task; counted, so without an interval."""
    requests = sum(each.requests for each in counted)
    right = sum(max(getattr(each, name) for name in BASELINES) for each in counted) / requests
    return Estimate(right, right, right, requests, "request", 0)


def _whole(evidence: Evidence, asked: tuple[Record, str], task: str, length: str) -> dict[str, Quantity]:
    """Whole answers to one part of the requests, by branch."""
    record, split = asked
    there = evidence.quantities(record)
    return {
        branch: one(there, "iterations.whole", split=split, task=task, length=length, branch=branch)
        for branch in BRANCHES
    }


def _short_and_long(evidence: Evidence, asked: Asked) -> Figure:
    groups = {}
    for task, length in PARTS:
        by_branch = {label: _whole(evidence, each, task, length) for label, each in asked.items()}
        groups[part_name(task, length)] = [
            Spot(said, {label: found[branch].estimate for label, found in by_branch.items()},
                 next(iter(by_branch.values()))[branch].published)
            for branch, said in BRANCHES.items()
        ]  # fmt: skip
    caption = (
        "Whole answers that are right with 95 % intervals; long requests are for 5 to 8 steps, short ones for 1 to 4. "
        "Diamonds: the paper's numbers, from trained starts."
    )
    return dots("iterations-long", "Long and short requests", caption, groups, list(asked))


def branches_table(evidence: Evidence, asked: Asked) -> Grid:
    """A line for every part of the requests and every model and set of starts, columns for branches and baselines."""
    lines: dict[str, dict[str, Quantity]] = {}
    counted = {label: tally(requested(*each)) for label, each in asked.items()}
    for task, length in PARTS:
        part = part_name(task, length)
        for label, each in asked.items():
            mine = _whole(evidence, each, task, length)
            ours = {said: mine[branch] for branch, said in BRANCHES.items()}
            lines[f"{part}, {label}"] = {**ours, **_baselines(task, length, counted[label])}
        lines[f"{part}, {published(ITERATIONS)}"] = {
            said: bare(mine[branch].id, paper, mine[branch].n)
            for branch, said in BRANCHES.items()
            if (paper := mine[branch].published) is not None
        }
    note = (
        "Whole answers. Baselines are counted on the same requests; says one thing: for each task and k, the best one. "
        "The paper's requests have trained starts."
    )
    return Grid("Four ways on, by task", [*BRANCHES.values(), *BASELINES.values()], lines, note, "requests")


def _baselines(task: str, length: str, counted: Sequence[Tally]) -> dict[str, Quantity]:
    """What is right without iterating on, of one part of the requests."""
    mine = [each for each in counted if (each.k > TRAINED_DEPTH) == (length == LONG) and task in (ALL, each.task)]
    of = sum(each.requests for each in mine)
    return {
        said: bare("iterations.baseline", sum(getattr(each, name) for each in mine) / of, of)
        for name, said in BASELINES.items()
    }


SECTIONS = {ITERATIONS: iterations_section}
