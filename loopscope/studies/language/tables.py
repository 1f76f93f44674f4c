"""What follows from records of antonyms and iterations: which replies are right; and the tables of every record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loopscope.measure.replies import answers_name, as_texts
from loopscope.stats import wilson
from loopscope.store.files import damaged
from loopscope.studies.antonyms import tests as antonym_tests
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.language.layouts import ANTONYMS, LETTERS, REPLIES
from loopscope.studies.language.shares import Right, by_depth, share
from loopscope.studies.letters.tables import letter_tables
from loopscope.studies.records import Record, Row, Table
from loopscope.tasks.antonyms import LONGEST, TRAINED, is_read_right, is_right
from loopscope.tasks.iterations import TASKS, Request, Score, score, tally

# ---- antonyms --------------------------------------------------------------------------------------------------------

PAPER_DEPTHS = {
    "final-only": {
        "template 0, no map": (64, 64, 64, 64, 0, 0, 0, 0), "template 0, J": (64, 64, 64, 64, 64, 62, 62, 63),
        "template 5, J": (64, 64, 64, 64, 64, 64, 62, 62),
    },
    "stepwise": {
        "template 0, no map": (0, 0, 0, 64, 0, 0, 0, 0), "template 0, J": (14, 8, 9, 19, 6, 6, 6, 2),
        "template 5, J": (16, 8, 10, 16, 8, 6, 2, 2),
    },
}  # fmt: skip
PAPER_SEQUENCES = 64

PAPER_WAY = {"final-only": "chosen", "stepwise": "truncated"}
PAPER_READOUTS = {
    "final-only": ((57, 63, 64, 64), (19, 1, 64, 64), (4, 27, 64, 64), (1, 21, 63, 64)),
    "stepwise": ((64, 0, 0, 0), (0, 64, 0, 0), (0, 0, 64, 0), (0, 0, 0, 64)),
}
"""Right of 64 native readouts, by deletion and loop, in the way that each supervision was read in."""


def depth_right(record: Record, template: int, steered: bool, depths: Sequence[int]) -> Right:
    """Whether whole replies are the deletions asked for, at these depths, sequence by sequence."""
    sequences = int(record.settings["sequences"])
    said = as_texts(record.predictions[antonym_tests.DEPTHS][answers_name(template, steered)])
    asked = antonym_tests.depth_requests(template, sequences)
    pairs = zip(asked, said, strict=True)
    return np.array([is_right(text, request.answer) for request, text in pairs if request.k in depths])


def readout_right(record: Record, way: str, loop: int, deletion: int) -> Right:
    """Whether the reply after a loop is this deletion: of requests for it (final-only), or of requests for 4."""
    form, sequences = str(record.settings["supervision"]), int(record.settings["sequences"])
    said = as_texts(record.predictions[antonym_tests.READOUTS][antonym_tests.readout_name(way, loop)])
    pairs = zip(antonym_tests.readout_requests(form, sequences), said, strict=True)
    kept = [(request, text) for request, text in pairs if form == "stepwise" or request.k == deletion]
    return np.array([is_read_right(text, request.stages[deletion - 1]) for request, text in kept])


def _antonyms(record: Record) -> list[Table]:
    form = str(record.settings["supervision"])
    rows = by_depth(
        PAPER_DEPTHS[form], PAPER_SEQUENCES, "sequence", antonym_tests.TEMPLATES, LONGEST,
        lambda template, steered, k: depth_right(record, template, steered, [k]),
    )  # fmt: skip
    note = (
        "Whole replies, in the stepwise form that maps are fitted in; with J after the last loop, without it after as "
        "many as backbones are trained in, at most."
    )
    tables = [Table(f"Antonyms, {form}: depths", rows, note)]
    for way in antonym_tests.WAYS:
        cells = [
            share(
                f"loop {loop}: deletion {k}", readout_right(record, way, loop, k), _read(form, way, loop, k), "sequence"
            )
            for loop in range(1, record.facts.loops + 1)
            for k in range(1, TRAINED + 1)
        ]
        how = "so many loops are made" if way == "truncated" else "all loops are made, and this one is read"
        tables.append(Table(f"Antonyms, {form}: native readouts, {way}", cells, f"No map; {how}."))
    return tables


def _read(form: str, way: str, loop: int, deletion: int) -> float | None:
    """What was published of a native readout."""
    if way != PAPER_WAY[form] or loop > TRAINED:
        return None
    return PAPER_READOUTS[form][deletion - 1][loop - 1] / PAPER_SEQUENCES


# ---- iterations ------------------------------------------------------------------------------------------------------

PAPER_LONG = {
    "J+F": (128, 128, 128, 128, 62), "F": (96, 79, 5, 0, 3), "J": (91, 100, 6, 0, 3), "stop": (90, 67, 4, 0, 3)
}  # fmt: skip
"""Whole answers that were right of 128 long requests each, by branch and task in the order of TASKS."""

PAPER_SHORT = {"J+F": 636, "F": 640, "J": 640, "stop": 640}


def is_long(request: Request) -> bool:
    """Whether a request is for more steps than a backbone is trained on."""
    return request.k > TRAINED


def requested(record: Record, split: str) -> tuple[Request, ...]:
    """The requests of a record from the starts of a split."""
    return iteration_tests.requests(int(record.settings["cases"]), split)


def scored(record: Record, split: str, branch: str) -> list[tuple[Request, Score]]:
    """Every request from the starts of a split with the score of its reply in a branch.

    DamagedError for a record that has no replies to them.
    """
    if REPLIES[split] not in record.predictions:
        raise damaged(f"record of {record.facts.name}", f"replies from {iteration_tests.STARTS[split]}", "none")
    said = as_texts(record.predictions[REPLIES[split]][branch])
    return [(request, score(request, text)) for request, text in zip(requested(record, split), said, strict=True)]


def iterated(record: Record, split: str, branch: str, kept: Callable[[Request], bool]) -> Right:
    """Whether the replies of a branch are right as a whole, of the requests from these starts that are kept."""
    return _right(scored(record, split, branch), kept)


def _right(scores: Sequence[tuple[Request, Score]], kept: Callable[[Request], bool], parsed: bool = False) -> Right:
    return np.array([each.parsed if parsed else each.whole for request, each in scores if kept(request)])


def long_prompts(record: Record, split: str) -> list[str]:
    """The prompts of the long requests; those that come up several times are one cluster."""
    return [request.prompt for request in requested(record, split) if is_long(request)]


def titled(split: str) -> str:
    """How the titles of tables on requests from the starts of a split begin."""
    return "Iterations" if split == "test" else f"Iterations from {iteration_tests.STARTS[split]}"


def _iterations(record: Record) -> list[Table]:
    same = "the same, bit by bit" if record.notes.get("same_h4") else "not the same"
    notes = {
        "test": f"Starts are held out, which the paper's are not. h4 of the four branches is {same}.",
        "train": "The paper's setting: its starts are not held out.",
    }
    return [table for split, note in notes.items() for table in _from_starts(record, split, note)]


def _from_starts(record: Record, split: str, note: str) -> list[Table]:
    """Whole and parsed answers to requests from the starts of a split, and what is right without iterating on."""

    def parts() -> dict[str, Callable[[Request], bool]]:
        by_task = {f"{task}, long": _of_task(task) for task in TASKS}
        return {**by_task, "all long": is_long, "all short": lambda request: not is_long(request)}

    whole, parsed = [], []
    scores = {branch: scored(record, split, branch) for branch in iteration_tests.branches()}
    for part, kept in parts().items():
        for branch, found in scores.items():
            paper = _published(part, branch)
            whole.append(share(f"{part}: {branch}", _right(found, kept), paper, "request"))
            parsed.append(share(f"{part}: {branch}", _right(found, kept, parsed=True), None, "request"))
    zero = []
    counts = [each for each in tally(requested(record, split)) if each.k > TRAINED]
    for task in TASKS:
        mine = [each for each in counts if each.task == task]
        of = sum(each.requests for each in mine)
        for what in ("stops_early", "repeats_start", "says_one_thing"):
            right = sum(int(getattr(each, what)) for each in mine)
            zero.append(Row(f"{task}: {what.replace('_', ' ')}", wilson(right, of, unit="request"), of))
    return [
        Table(f"{titled(split)}: whole answers", whole, note),
        Table(f"{titled(split)}: parsed answers", parsed),
        Table(f"{titled(split)}: long requests that are right without iterating on", zero),
    ]


def _of_task(task: str) -> Callable[[Request], bool]:
    return lambda request: request.task == task and is_long(request)


def _published(part: str, branch: str) -> float | None:
    if part == "all long":
        return sum(PAPER_LONG[branch]) / 640
    if part == "all short":
        return PAPER_SHORT[branch] / 640
    task = part.removesuffix(", long")
    return PAPER_LONG[branch][list(TASKS).index(task)] / 128


# ---- all -------------------------------------------------------------------------------------------------------------


def tables(record: Record) -> list[Table]:
    """The tables of a record of a language model, the published numbers beside ours."""
    if record.experiment == LETTERS:
        return letter_tables(record)
    return _antonyms(record) if record.experiment == ANTONYMS else _iterations(record)
