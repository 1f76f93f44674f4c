"""Sections on antonyms and iterations in language models: depths, native readouts, four ways on from h4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product, zip_longest

import numpy as np
from jaxtyping import Float

from loopscope.measure.replies import answers_name
from loopscope.quantity import Quantity, one
from loopscope.stats import Estimate, wilson
from loopscope.studies.antonyms import tests as antonym_tests
from loopscope.studies.antonyms.tables import PAPER_DEPTHS, PAPER_READOUTS, PAPER_SEQUENCES, PAPER_WAY, at_depths
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.iterations.tables import ALL, LONG, PARTS, part_name, requested, scored
from loopscope.studies.language.layouts import ANTONYMS, ITERATIONS
from loopscope.studies.language.names import identity
from loopscope.studies.language.records import LANGUAGE
from loopscope.studies.records import Record
from loopscope.studies.report.contents import Figure, Grid, Section
from loopscope.studies.report.dots import Spot, dots
from loopscope.studies.report.figures import Line, lines_in_panels
from loopscope.studies.report.heat import matrices
from loopscope.studies.report.models import (
    INTERVALS,
    bare,
    by_depth,
    labels,
    measured_on,
    models,
    published,
)
from loopscope.tasks.antonyms import LONGEST, TRAINED
from loopscope.tasks.iterations import TASKS, Tally, tally

SHADED = (0.7, TRAINED + 0.5)
"""Grey: steps that backbones were trained on."""

Labelled = Mapping[str, Record]


def _labelled(records: Sequence[Record]) -> dict[str, Record]:
    named = labels(records)
    return {label: each for who, label in named.items() for each in records if identity(each) == who}


# ---- antonyms --------------------------------------------------------------------------------------------------------

WORDINGS = {template: "" if template == 0 else ", held-out wording" for template in antonym_tests.TEMPLATES}
DEEP = range(TRAINED + 1, LONGEST + 1)

ANTONYM_HOW = (
    "Antonyms that stand side by side are deleted one pair at a time; asked is which pair goes at deletion k. "
    "Backbones were trained on deletions 1 to 4, maps on 1 to 8, and J stands after every loop. A final-only backbone "
    "learned the answer after its last loop, a stepwise one deletion t after t loops. Both are asked for depths in the "
    f"form that maps are fitted in; a reply is right as a whole. {INTERVALS.format('sequences')}"
)


def antonyms_section(evidence: Evidence) -> Section | None:
    """Depths with and without J, and native readouts, of whatever models were measured; None without any."""
    records = evidence.every(ANTONYMS)
    if not records:
        return None
    found = by_form(records)
    mine: dict[str, list[Record]] = {}
    for label, _, record in found:
        mine.setdefault(label, []).append(record)
    more = [table.under(label) for label, _, record in found for table in evidence.tables(record)]
    return Section(
        ANTONYMS, "Language models: antonyms", LANGUAGE[ANTONYMS].question,
        [measured_on(ANTONYMS, mine), ANTONYM_HOW], [_depths(evidence, found), _readouts(evidence, found)],
        [models(ANTONYMS, mine), *depth_tables(found)], decided_by(ANTONYMS), more,
    )  # fmt: skip


def by_form(records: Sequence[Record]) -> list[tuple[str, str, Record]]:
    """Name, supervision and record of all models: final-only and stepwise ones by turns, the largest first.

    Two backbones of one model may have one name: supervision tells them apart.  They stand together, before models that
    have one of them alone.
    """
    alike = {form: [each for each in records if each.settings["supervision"] == form] for form in antonym_tests.FORMS}
    named = {form: _labelled(some) for form, some in alike.items()}
    both = set.intersection(*map(set, named.values()))
    forms = [
        [(label, form, found[label]) for label in sorted(found, key=lambda each: each not in both)]
        for form, found in named.items()
    ]
    return [each for some in zip_longest(*forms) for each in some if each is not None]


def _depths(evidence: Evidence, found: Sequence[tuple[str, str, Record]]) -> Figure:
    panels = {}
    for label, form, record in found:
        quantities = evidence.quantities(record)
        panels[f"{form}: {label}"] = by_depth(quantities, "antonyms.right", antonym_tests.TEMPLATES)
    caption = (
        "Right replies by the deletion that was asked for, with 95 % intervals; without a map, after the four loops "
        "that backbones were trained in. Dashed: a wording that neither backbone nor map was trained on. Diamonds: the "
        "paper's, in the trained wording. Grey: deletions that backbones were trained on."
    )
    return lines_in_panels("antonyms-depths", "How deep J leads", caption, panels, "deletion k", SHADED)


def _readouts(evidence: Evidence, found: Sequence[tuple[str, str, Record]]) -> Figure:
    forms = list(dict.fromkeys(form for _, form, _ in found))
    panels = {f"{form}, {published(ANTONYMS)}": np.array(PAPER_READOUTS[form]) / PAPER_SEQUENCES for form in forms}
    for label, form, record in found:
        panels[f"{form}, {label}"] = readout_matrix(evidence, record, form)
    caption = (
        "Without J, right readouts after every loop, as the paper reads them: of stepwise backbones, which deletion a "
        "run of so many loops says when four are asked for; of final-only ones, whether loop t of a whole run says the "
        "deletion that is asked for. The other way to read is in the folded tables."
    )
    return matrices("antonyms-readouts", "What each loop says", caption, panels, "loop", "deletion")


def readout_matrix(evidence: Evidence, record: Record, form: str) -> Float[np.ndarray, "deletions loops"]:
    """Right readouts by deletion and loop, in the way that the paper reads this form."""
    there = evidence.quantities(record)

    def right(loop: int, deletion: int) -> float:
        return one(there, "antonyms.readouts", way=PAPER_WAY[form], loop=loop, deletion=deletion).estimate.value

    loops = range(1, record.facts.loops + 1)
    return np.array([[right(loop, deletion) for loop in loops] for deletion in range(1, TRAINED + 1)])


def depth_tables(found: Sequence[tuple[str, str, Record]]) -> list[Grid]:
    """By supervision, a line for every wording, J or none, and model; columns are depths, untrained ones together."""
    depths = {**{f"k = {k}": (k,) for k in range(1, LONGEST + 1)}, f"{DEEP[0]}-{DEEP[-1]}": tuple(DEEP)}
    note = "Wilson's intervals, which in the last column take the depths of one sequence as independent."
    made = []
    for form in dict.fromkeys(form for _, form, _ in found):
        mine = {label: record for label, which, record in found if which == form}
        lines: dict[str, dict[str, Quantity]] = {}
        for template, steered in product(WORDINGS, (False, True)):
            said = f"{'J' if steered else 'no map'}{WORDINGS[template]}"
            for label, record in mine.items():
                lines[f"{said}, {label}"] = {
                    name: at_depths(record, template, steered, asked, label=name, unit="sequence")
                    for name, asked in depths.items()
                }
            counts = PAPER_DEPTHS[form].get(answers_name(template, steered))
            if counts is not None:
                lines[f"{said}, {published(ANTONYMS)}"] = {
                    name: bare(
                        "antonyms.published",
                        sum(counts[k - 1] for k in asked) / PAPER_SEQUENCES / len(asked),
                        PAPER_SEQUENCES,
                    )
                    for name, asked in depths.items()
                }
        made.append(Grid(f"Right replies by depth, {form}", list(depths), lines, note, "model"))
    return made


# ---- iterations ------------------------------------------------------------------------------------------------------

BRANCHES = {"J+F": "J and F", "F": "F alone", "J": "J alone", "stop": "stop"}
BASELINES = {
    "stops_early": "stops after 4 steps",
    "repeats_start": "repeats the start",
    "says_one_thing": "says one thing",
}
BASELINE = "best baseline"

ITERATION_HOW = (
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
    found = _labelled(records)
    asked = _asked(found)
    figures = [_by_steps(number, *each) for number, each in enumerate(asked.items(), 1)]
    figures.append(_short_and_long(evidence, asked))
    apart = [label for label, record in found.items() if not record.notes.get("same_h4")]
    same = "h4 was the same in all branches, bit by bit" + (f", but not in {'; '.join(apart)}." if apart else ".")
    more = [table.under(label) for label, record in found.items() for table in evidence.tables(record)]
    return Section(
        ITERATIONS, "Language models: iterations", LANGUAGE[ITERATIONS].question,
        [measured_on(ITERATIONS, found), *ITERATION_HOW, same], figures,
        [models(ITERATIONS, {label: [record] for label, record in found.items()}), branches_table(evidence, asked)],
        decided_by(ITERATIONS), more,
    )  # fmt: skip


Asked = Mapping[str, tuple[Record, str]]
"""Records with a split of starts, by the name of the model and of the starts."""


def _asked(found: Labelled) -> Asked:
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
    mine = [each for each in counted if (each.k > TRAINED) == (length == LONG) and task in (ALL, each.task)]
    of = sum(each.requests for each in mine)
    return {
        said: bare("iterations.baseline", sum(getattr(each, name) for each in mine) / of, of)
        for name, said in BASELINES.items()
    }
