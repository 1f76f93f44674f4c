"""What follows from records of language models: who was named how often, which replies are right, how sure that is.

Shares are of independent pairs, sequences or requests, with Wilson intervals.  Differences between two conditions are
paired: pairs (or prompts) are resampled 10,000 times, and pairs have the exact sign test beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from jaxtyping import Bool, Int, UInt8

from loopscope.experiments.language import ANTONYMS, HEADS, LETTERS, REPLIES, WHOLE, selection_of
from loopscope.experiments.records import Record, Row, Table
from loopscope.files import damaged
from loopscope.lm import antonym_tests, iteration_tests, letter_walks
from loopscope.lm.antonyms import LONGEST, TRAINED, is_read_right, is_right
from loopscope.lm.asking import answers_name, as_texts
from loopscope.lm.iteration_tasks import TASKS
from loopscope.lm.iterations import Request, Score, score, tally
from loopscope.lm.letter_tests import CONTENT, RESTORATION, STEERING, first_pairs
from loopscope.lm.letters import NAMES
from loopscope.stats import Estimate, cluster_bootstrap, sign_test, wilson
from loopscope.stats import tally as by_cluster

DRAWS, SEED = 10_000, 0

Right = Bool[np.ndarray, " examples"]


def share(name: str, right: Right, paper: float | None = None, unit: str = "pair") -> Row:
    """How many are right, with a Wilson interval."""
    return Row(name, wilson(int(right.sum()), len(right), unit=unit), len(right), paper)


def difference(one: Right, other: Right, clusters: Sequence[object] | None = None, unit: str = "pair") -> Estimate:
    """One share minus another on the same examples, by a bootstrap over pairs, or over clusters of equal examples."""
    ids = (
        np.arange(len(one)) if clusters is None else np.unique([str(each) for each in clusters], return_inverse=True)[1]
    )
    return cluster_bootstrap(by_cluster(one, ids), by_cluster(other, ids), seed=SEED, draws=DRAWS, unit=unit)


def _by_depth(
    published: Mapping[str, Sequence[int]], of: int, unit: str, templates: Sequence[int], longest: int,
    right: Callable[[int, bool, int], Right],
) -> list[Row]:  # fmt: skip
    """What is right at every depth in each wording, without J and with it; the paper counts right ones `of` so many."""
    rows = []
    for template, steered in product(templates, (False, True)):
        name = answers_name(template, steered)
        for k in range(1, longest + 1):
            paper = published[name][k - 1] / of if name in published else None
            rows.append(share(f"{name}, k = {k}", right(template, steered, k), paper, unit))
    return rows


# ---- letters ---------------------------------------------------------------------------------------------------------

PAPER_STEERING = {
    "unsteered": 0, "steered": 251, "rescue": 248, "damage": 0, "values": 0, "unrelated": 0, "wrong loop": 0,
    "comparison": 0, "self-pattern": 0, "self-output": 0,
}  # fmt: skip
PAPER_CONTENT = {
    "base": (252, 0, 0), "source": (0, 252, 2), "reference": (0, 4, 251), "pattern": (37, 0, 182),
    "output": (5, 240, 7), "values": (221, 0, 24), "comparison pattern": (251, 0, 0), "comparison output": (252, 0, 0),
    "wrong loop": (137, 3, 0),
}  # fmt: skip
PAPER_RESTORATION = {"clean": 251, "replaced": 2, "selected": 251, "comparison": 2, "all": 251}
PAPER_PAIRS = 256


def named(record: Record, test: str, condition: str, whole: bool = False) -> Int[np.ndarray, " pairs"]:
    """Who was named in a condition, as indices into NAMES; what is no name is larger."""
    return record.predictions[f"{test}{WHOLE}" if whole else test][condition].numpy().astype(np.int64)


def truths(record: Record, test: str) -> dict[str, Int[np.ndarray, " pairs"]]:
    """The answers B, D and E of the pairs that were asked."""
    pairs = first_pairs(test, int(record.settings["pairs"]))
    return {which: np.array([NAMES.index(getattr(pair, which)) for pair in pairs]) for which in "BDE"}


def gives(record: Record, test: str, condition: str, which: str = "B") -> Right:
    """In which pairs a condition names B, D or E."""
    return named(record, test, condition) == truths(record, test)[which]


def broken(record: Record) -> Right:
    """Pairs of the restoration test that were right and are not, once queries are replaced."""
    return gives(record, RESTORATION, "clean") & ~gives(record, RESTORATION, "replaced")


def repaired(record: Record, condition: str) -> Right:
    """Of the broken pairs, which are right again."""
    return gives(record, RESTORATION, condition)[broken(record)]


def _agreement(record: Record, test: str) -> str:
    """How often first tokens and whole generations name the same."""
    wholes = record.predictions[f"{test}{WHOLE}"]
    same = [named(record, test, name) == named(record, test, name, whole=True) for name in wholes]
    agree, of = int(sum(each.sum() for each in same)), sum(map(len, same))
    return f"First token and whole name agree in {agree:,} of {of:,} generations."


def _errors(record: Record) -> str:
    said = ", ".join(f"{name} {value:.2g}" for name, value in record.notes.get("errors", {}).items())
    return f" Largest difference of logits where there should be none: {said}." if said else ""


def _steering(record: Record) -> list[Table]:
    rows = []
    for name in record.predictions[STEERING]:
        paper = PAPER_STEERING.get(name)
        rows.append(share(name, gives(record, STEERING, name), None if paper is None else paper / PAPER_PAIRS))
    note = _agreement(record, STEERING) + _errors(record)
    tables = [Table("Letters, steering: right answers", rows, note)]
    if "rescue" in record.predictions[STEERING]:
        steered, rescue = (gives(record, STEERING, name) for name in ("steered", "rescue"))
        p = sign_test(int((steered & ~rescue).sum()), int((rescue & ~steered).sum()))
        gap = Row("steered - rescue", difference(steered, rescue), len(steered), 3 / PAPER_PAIRS)
        note = (
            f"Paired; right only when steered {int((steered & ~rescue).sum())}, only when patched "
            f"{int((rescue & ~steered).sum())}, sign test p = {p:.2g}."
        )
        tables.append(Table("Letters, steering: what the pattern leaves", [gap], note))
    return tables


def _content(record: Record) -> list[Table]:
    rows = []
    for name in record.predictions[CONTENT]:
        for place, which in enumerate("BDE"):
            paper = PAPER_CONTENT[name][place] / PAPER_PAIRS if name in PAPER_CONTENT else None
            rows.append(share(f"{name}: {which}", gives(record, CONTENT, name, which), paper))
    note = (
        "B is the receiving run's own answer, D the donor's, E the donor's last transfer by the receiver's rules. "
        f"{_agreement(record, CONTENT)}{_errors(record)}"
    )
    tables = [Table("Letters, pattern against output: what is answered", rows, note)]
    if "pattern" in record.predictions[CONTENT]:
        gaps = []
        for one, other, which, paper in (("pattern", "output", "E", 175), ("output", "pattern", "D", 240)):
            value = difference(gives(record, CONTENT, one, which), gives(record, CONTENT, other, which))
            gaps.append(Row(f"{one} - {other}: {which}", value, value.n, paper / PAPER_PAIRS))
        tables.append(Table("Letters, pattern against output: paired differences", gaps))
    return tables


def _restoration(record: Record) -> list[Table]:
    rows, mended = [], []
    for name in record.predictions[RESTORATION]:
        paper = PAPER_RESTORATION.get(name)
        rows.append(share(name, gives(record, RESTORATION, name), None if paper is None else paper / PAPER_PAIRS))
    if "replaced" in record.predictions[RESTORATION] and broken(record).any():
        published = {"selected": 1.0, "comparison": 0.0, "all": 1.0}
        for name in record.predictions[RESTORATION]:
            if name not in ("clean", "reference", "replaced"):
                mended.append(share(name, repaired(record, name), published.get(name)))
    note = _agreement(record, RESTORATION) + _errors(record)
    tables = [Table("Letters, restoration: right answers", rows, note)]
    if mended:
        tables.append(Table("Letters, restoration: repaired of those broken by other queries", mended))
    return tables


PAPER_WALKS = {
    "template 0, no map": (16, 16, 16, 16, 0, 0, 0, 0), "template 0, J": (16, 16, 16, 16, 16, 15, 16, 16),
    "template 5, J": (16, 16, 16, 16, 16, 15, 16, 13),
}  # fmt: skip
PAPER_GRAPHS = 16


def walked(record: Record, template: int, steered: bool, k: int) -> UInt8[np.ndarray, "letters loops"]:
    """After how many transfers the person has the letter whom each loop names when asked for k; OTHER for nobody."""
    said = record.predictions[letter_walks.WALKS][answers_name(template, steered)].numpy()
    return said.reshape(letter_walks.LONGEST, -1, said.shape[1])[k - 1]


def answered(record: Record, template: int, steered: bool, k: int) -> UInt8[np.ndarray, " letters"]:
    """Whom a run names when asked for k, counted as `walked`: with J after all loops, without it after four at most.

    Backbones are trained in four; a map may be for more, and there a backbone alone forgets what it has.
    """
    said = walked(record, template, steered, k)
    return said[:, -1] if steered else said[:, min(said.shape[1], letter_walks.TRAINED) - 1]


def _walks(record: Record) -> list[Table]:
    rows = _by_depth(
        PAPER_WALKS, PAPER_GRAPHS, "graph", letter_walks.TEMPLATES, letter_walks.LONGEST,
        lambda template, steered, k: answered(record, template, steered, k) == k,
    )  # fmt: skip
    note = "First tokens; with J after the last loop, without it after as many as backbones are trained in, at most."
    tables = [Table("Letters, walks: right answers", rows, note)]
    for steered in (False, True):
        cells = []
        for k, loop in product(range(1, letter_walks.LONGEST + 1), range(1, record.facts.loops + 1)):
            said = walked(record, 0, steered, k)[:, loop - 1]
            counts = np.bincount(said[said < len(NAMES)], minlength=len(NAMES))
            steps = int(counts.argmax())
            cells.append(share(f"k = {k}, loop {loop}: {steps}", said == steps, unit="graph"))
        how = "with J" if steered else "without J"
        note = "Whom each loop would name most often: the person who has the letter after so many transfers."
        tables.append(Table(f"Letters, walks: what loops say, {how}", cells, note))
    return tables


def _heads(record: Record) -> list[Table]:
    found = selection_of(record)
    if found is None:
        return [Table("Letters, heads", [], "The map brings no right answers, so there is nothing that heads carry.")]
    note = (
        f"Chosen: {found.heads} (layers from 1) in loops {', '.join(map(str, found.loops))}; "
        f"{'every step passed' if found.passed else 'not every step passed'}; {found.forwards:,.0f} forwards."
    )
    steered = Row("steered", wilson(found.steered, found.pairs, unit="pair"), found.pairs)
    last = found.tried[-1]
    return [Table("Letters, heads: discovery", [steered], f"{note} Last tried: {last.step}, rescue {last.rescued}.")]


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
    rows = _by_depth(
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

_LETTERS: Mapping[str, Callable[[Record], list[Table]]] = {
    letter_walks.WALKS: _walks, HEADS: _heads, STEERING: _steering, CONTENT: _content, RESTORATION: _restoration
}  # fmt: skip


def tables(record: Record) -> list[Table]:
    """The tables of a record of a language model, the published numbers beside ours."""
    if record.experiment == LETTERS:
        return [table for part, make in _LETTERS.items() if part in record.predictions for table in make(record)]
    return _antonyms(record) if record.experiment == ANTONYMS else _iterations(record)
