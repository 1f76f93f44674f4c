"""What follows from records of the letter walk: who was named how often in each test, and after every loop.

The quantities by id, with their coordinates:

    letters.steering               right answers of the steering test: condition
    letters.steering.difference    right in one condition minus right in another, paired: condition, minus
    letters.steering.along         runs that name after a loop whom the steered run names there: condition, loop
    letters.steering.ahead         runs with patterns of the wrong loop that are a loop ahead of the steered run: loop
    letters.content                answers of the test of patterns against outputs: condition, answer (B, D or E)
    letters.content.difference     an answer in one condition minus the same in another, paired: condition, minus,
                                   answer
    letters.content.short          who has the letter one transfer before the end is named: condition, run (receiver
                                   or donor)
    letters.restoration            right answers of the restoration test: condition, layer where one layer is put back
    letters.restoration.repaired   the same, of the answers that were right until queries were replaced
    letters.walks                  right answers by the transfers asked for: template, steered, k
    letters.walks.loops            whom a loop names most often, as the transfers after which that person has the
                                   letter: steered, k, loop, transfers
    letters.heads                  right answers with J on the pairs that heads are searched on: condition
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product

import numpy as np
from jaxtyping import Int, UInt8

from loopscope.measure.replies import answers_name
from loopscope.quantity import Coordinate, Quantity, QuantityTable
from loopscope.stats import sign_test, wilson
from loopscope.studies.language.shares import Right, by_depth, difference, share
from loopscope.studies.letters import walks as letter_walks
from loopscope.studies.letters.layouts import BY_LOOP, HEADS, WHOLE
from loopscope.studies.letters.records import selection_of
from loopscope.studies.letters.tests import CONTENT, RESTORATION, STEERING, first_pairs, in_order, layer_of
from loopscope.studies.records import Record
from loopscope.tasks.letters import NAMES

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
PAPER_REPAIRED = {"selected": 1.0, "comparison": 0.0, "all": 1.0}
PAPER_PAIRS = 256


def named(record: Record, test: str, condition: str, whole: bool = False) -> Int[np.ndarray, " pairs"]:
    """Who was named in a condition, as indices into NAMES; what is no name is larger."""
    return record.predictions[f"{test}{WHOLE}" if whole else test][condition].numpy().astype(np.int64)


@cache
def _truth(test: str, pairs: int, which: str) -> Int[np.ndarray, " pairs"]:
    """An answer of the first pairs of a test, such as B, D or E."""
    return np.array([NAMES.index(getattr(pair, which)) for pair in first_pairs(test, pairs)])


def gives(record: Record, test: str, condition: str, which: str = "B") -> Right:
    """In which pairs a condition names B, D, E or whom else a pair knows."""
    return named(record, test, condition) == _truth(test, int(record.settings["pairs"]), which)


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


def _of_pairs(count: int | None) -> float | None:
    """The share that a published count is."""
    return None if count is None else count / PAPER_PAIRS


def _steering(record: Record) -> list[QuantityTable]:
    rows = []
    for name in in_order(STEERING, record.predictions[STEERING]):
        right, paper = gives(record, STEERING, name), _of_pairs(PAPER_STEERING.get(name))
        rows.append(share("letters.steering", name, right, {"condition": name}, paper))
    note = _agreement(record, STEERING) + _errors(record)
    tables = [QuantityTable("letters.steering", "Letters, steering: right answers", rows, note)]
    if "rescue" in record.predictions[STEERING]:
        steered, rescue = (gives(record, STEERING, name) for name in ("steered", "rescue"))
        p = sign_test(int((steered & ~rescue).sum()), int((rescue & ~steered).sum()))
        gap = Quantity(
            "letters.steering.difference", "steered - rescue", difference(steered, rescue), len(steered),
            3 / PAPER_PAIRS, {"condition": "steered", "minus": "rescue"},
        )  # fmt: skip
        note = (
            f"Paired; right only when steered {int((steered & ~rescue).sum())}, only when patched "
            f"{int((rescue & ~steered).sum())}, sign test p = {p:.2g}."
        )
        tables.append(
            QuantityTable("letters.steering.difference", "Letters, steering: what the pattern leaves", [gap], note)
        )
    if f"{STEERING}{BY_LOOP}" in record.predictions:
        tables.append(_along(record))
        if len(record.settings.get("patched", ())) > 1:
            tables.append(_ahead(record))
    return tables


def _ahead(record: Record) -> QuantityTable:
    said = record.predictions[f"{STEERING}{BY_LOOP}"]
    ahead = (said["wrong loop"][:, :-1] == said["steered"][:, 1:]).numpy()
    rows = [
        share("letters.steering.ahead", f"loop {loop}", right, {"loop": loop}) for loop, right in enumerate(ahead.T, 1)
    ]
    note = "Whether the run with the next loop's patterns names, after each loop, whom the steered run names after it."
    return QuantityTable("letters.steering.ahead", "Letters, steering: the wrong loop, a loop ahead", rows, note)


def _along(record: Record) -> QuantityTable:
    said = record.predictions[f"{STEERING}{BY_LOOP}"]
    rows = []
    for name in in_order(STEERING, said):
        if name != "steered":
            same = (said[name] == said["steered"]).numpy()
            rows += [
                share("letters.steering.along", f"{name}, loop {loop}", right, {"condition": name, "loop": loop})
                for loop, right in enumerate(same.T, 1)
            ]
    note = "Whether a run names, after each loop, whom the steered run names there."
    return QuantityTable("letters.steering.along", "Letters, steering: as the steered run, by loop", rows, note)


def _content(record: Record) -> list[QuantityTable]:
    rows = []
    for name in in_order(CONTENT, record.predictions[CONTENT]):
        for place, which in enumerate("BDE"):
            paper = PAPER_CONTENT[name][place] / PAPER_PAIRS if name in PAPER_CONTENT else None
            at = {"condition": name, "answer": which}
            rows.append(share("letters.content", f"{name}: {which}", gives(record, CONTENT, name, which), at, paper))
    note = (
        "B is the receiving run's own answer, D the donor's, E the donor's last transfer by the receiver's rules. "
        f"{_agreement(record, CONTENT)}{_errors(record)}"
    )
    tables = [QuantityTable("letters.content", "Letters, pattern against output: what is answered", rows, note)]
    if "pattern" in record.predictions[CONTENT]:
        gaps = []
        for one, other, which, paper in (("pattern", "output", "E", 175), ("output", "pattern", "D", 240)):
            value = difference(gives(record, CONTENT, one, which), gives(record, CONTENT, other, which))
            at = {"condition": one, "minus": other, "answer": which}
            label = f"{one} - {other}: {which}"
            gaps.append(Quantity("letters.content.difference", label, value, value.n, paper / PAPER_PAIRS, at))
        tables.append(
            QuantityTable("letters.content.difference", "Letters, pattern against output: paired differences", gaps)
        )
        tables.append(_short(record))
    return tables


def _short(record: Record) -> QuantityTable:
    rows = []
    for name in in_order(CONTENT, record.predictions[CONTENT]):
        for run, which in (("receiver", "before_B"), ("donor", "before_D")):
            label, right = f"{name}: {run}'s last but one", gives(record, CONTENT, name, which)
            rows.append(share("letters.content.short", label, right, {"condition": name, "run": run}))
    note = (
        "Who has the letter before a run's last transfer: named where that transfer is not made. The donor's last but "
        "one can be B."
    )
    return QuantityTable("letters.content.short", "Letters, pattern against output: one transfer short", rows, note)


def _restoration(record: Record) -> list[QuantityTable]:
    rows, mended = [], []
    there = in_order(RESTORATION, record.predictions[RESTORATION])
    for name in there:
        right, paper = gives(record, RESTORATION, name), _of_pairs(PAPER_RESTORATION.get(name))
        rows.append(share("letters.restoration", name, right, _restored_at(name), paper))
    if "replaced" in there and broken(record).any():
        for name in there:
            if name not in ("clean", "reference", "replaced"):
                again = repaired(record, name)
                mended.append(
                    share("letters.restoration.repaired", name, again, _restored_at(name), PAPER_REPAIRED.get(name))
                )
    note = _agreement(record, RESTORATION) + _errors(record)
    tables = [QuantityTable("letters.restoration", "Letters, restoration: right answers", rows, note)]
    if mended:
        tables.append(
            QuantityTable(
                "letters.restoration.repaired",
                "Letters, restoration: repaired of those broken by other queries",
                mended,
            )
        )
    return tables


def _restored_at(condition: str) -> dict[str, Coordinate]:
    layer = layer_of(condition)
    return {"condition": condition} if layer is None else {"condition": condition, "layer": layer}


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
    return said[:, -1] if steered else said[:, min(said.shape[1], letter_walks.TRAINED_DEPTH) - 1]


def _walks(record: Record) -> list[QuantityTable]:
    rows = by_depth(
        "letters.walks", PAPER_WALKS, PAPER_GRAPHS, "graph", letter_walks.TEMPLATES, letter_walks.LONGEST,
        lambda template, steered, k: answered(record, template, steered, k) == k,
    )  # fmt: skip
    note = "First tokens; with J after the last loop, without it after as many as backbones are trained in, at most."
    tables = [QuantityTable("letters.walks", "Letters, walks: right answers", rows, note)]
    for steered in (False, True):
        cells = []
        for k, loop in product(range(1, letter_walks.LONGEST + 1), range(1, record.facts.loops + 1)):
            said = walked(record, 0, steered, k)[:, loop - 1]
            counts = np.bincount(said[said < len(NAMES)], minlength=len(NAMES))
            steps = int(counts.argmax())
            at = {"steered": steered, "k": k, "loop": loop, "transfers": steps}
            cells.append(
                share("letters.walks.loops", f"k = {k}, loop {loop}: {steps}", said == steps, at, unit="graph")
            )
        how = "with J" if steered else "without J"
        note = "Whom each loop would name most often: the person who has the letter after so many transfers."
        tables.append(QuantityTable("letters.walks.loops", f"Letters, walks: what loops say, {how}", cells, note))
    return tables


def _heads(record: Record) -> list[QuantityTable]:
    found = selection_of(record)
    if found is None:
        return [
            QuantityTable(
                "letters.heads",
                "Letters, heads",
                [],
                "The map brings no right answers, so there is nothing that heads carry.",
            )
        ]
    note = (
        f"Chosen: {found.heads} (layers from 1) in loops {', '.join(map(str, found.loops))}; "
        f"{'every step passed' if found.passed else 'not every step passed'}; {found.forwards:,.0f} forwards."
    )
    right = wilson(found.steered, found.pairs, unit="pair")
    steered = Quantity("letters.heads", "steered", right, found.pairs, at={"condition": "steered"})
    last = found.tried[-1]
    return [
        QuantityTable(
            "letters.heads",
            "Letters, heads: discovery",
            [steered],
            f"{note} Last tried: {last.step}, rescue {last.rescued}.",
        )
    ]


_PARTS: Mapping[str, Callable[[Record], list[QuantityTable]]] = {
    letter_walks.WALKS: _walks, HEADS: _heads, STEERING: _steering, CONTENT: _content, RESTORATION: _restoration
}  # fmt: skip


def letter_tables(record: Record) -> list[QuantityTable]:
    """The tables of a record of the letter walk, the published numbers beside ours."""
    return [table for part, make in _PARTS.items() if part in record.predictions for table in make(record)]
