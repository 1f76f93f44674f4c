"""Judges of language models: what records of the letter walk, antonyms and iterations say on the claims.

Where several records could decide, the one closest to the published protocol does (`closeness.rank`); what the others
say is told beside, each with its own verdict.  A claim on two ways to supervise takes models of one size and as many
loops.  A claim about what destroys or repairs an answer takes a model that has answers to destroy or repair.  Whether J
leads to eight transfers is judged on pairs, or where a model was asked for none, on the graphs of its walks.

A control of a patch should not do what the patch does.  It fails if it does so in more than 20 %, the bound of
`letter.controls`; one of damage, if it leaves less than 80 % of what is steered right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from loopscope.store.zoo import by_number
from loopscope.studies.antonyms.tests import FORMS
from loopscope.studies.closeness import rank
from loopscope.studies.evidence import Control, Evidence, Finding, Judge, at_least, at_most
from loopscope.studies.iterations.tests import STARTS
from loopscope.studies.language.layouts import ANTONYMS, HEADS, ITERATIONS, LETTERS
from loopscope.studies.language.names import identity, parameters_of, site
from loopscope.studies.language.records import selection_of
from loopscope.studies.language.shares import difference, share
from loopscope.studies.language.tables import depth_right, is_long, iterated, long_prompts, readout_right
from loopscope.studies.letters.tables import (
    PAPER_CONTENT,
    PAPER_PAIRS,
    PAPER_STEERING,
    answered,
    broken,
    gives,
    repaired,
)
from loopscope.studies.letters.tests import CONTENT, RESTORATION, STEERING
from loopscope.studies.letters.walks import LONGEST as WALKED
from loopscope.studies.letters.walks import WALKS
from loopscope.studies.records import Record, Row, percent
from loopscope.tasks.antonyms import LONGEST, TRAINED

CONTROLS = ("values", "unrelated", "wrong loop", "comparison")
"""What must do nothing."""

DAMAGED = 0.20
"""What damage and controls may leave; a steered run must be above it, or there is nothing to damage."""

UNDAMAGED = {"comparison damage": "comparison heads", "complement damage": "the other heads of the same layers"}
"""Where else unsteered patterns are put, which should leave the steered run as it is."""

CONTENT_CONTROLS = {"wrong loop": "E", "comparison pattern": "E", "comparison output": "D", "values": "D"}
"""What should not give the answer that the patch it is beside gives: E of patterns, D of outputs."""


NOT_PASSED = "the search for these heads did not pass all of its steps"


def _ranked(evidence: Evidence, records: Iterable[Record], patches: bool = True) -> list[Record]:
    """The closest to the published protocol first; then by name, and what was there before what is measured now."""

    def order(each: Record) -> tuple[object, ...]:
        rest = by_number(each.facts.name), evidence.is_fresh(each), str(each.settings.get("heads"))
        return *rank(each, evidence.lineage, patches), *rest

    return sorted(records, key=order)


def _told(findings: Iterable[Finding]) -> Finding | None:
    """The finding that counts, of those that come closest first: the first that decides; the others beside it."""
    every = tuple(findings)
    if not every:
        return None
    first = next((each for each in every if each.holds is not None), every[0])
    return replace(first, others=tuple(each for each in every if each is not first))


def _on_letters(test: str, judge: Callable[[Record], Finding]) -> Judge:
    """A claim on one test of letters, which `judge` decides for one record.

    It is told where patches acted, and where the search for those heads did not pass all of its steps.
    """

    def on_all(evidence: Evidence) -> Finding | None:
        every = evidence.every(LETTERS)
        unpassed = {identity(each) for each in every if HEADS in each.predictions and not _passed(each)}

        def judged(record: Record) -> Finding:
            said, where = judge(record), site(record)
            if not where:
                return said
            beside = (NOT_PASSED,) if identity(record) in unpassed else ()
            return replace(said, ours=f"{said.ours} ({where})", beside=beside)

        return _told(map(judged, _ranked(evidence, [each for each in every if test in each.predictions])))

    return on_all


def _passed(search: Record) -> bool:
    found = selection_of(search)
    return found is not None and found.passed


def _counted(row: Row) -> str:
    return f"{round(row.estimate.value * row.n)}/{row.n}"


def _right(record: Record, test: str, condition: str, which: str = "B") -> Row | None:
    """A condition's share of B, D or E beside the paper's; None where it was not run, as heads were not chosen."""
    if condition not in record.predictions[test]:
        return None
    if test == CONTENT:
        counts = PAPER_CONTENT.get(condition)
        paper = None if counts is None else counts["BDE".index(which)]
    else:
        paper = PAPER_STEERING.get(condition)
    published = None if paper is None else paper / PAPER_PAIRS
    return share(condition, gives(record, test, condition, which), published)


def _steer(record: Record) -> Finding:
    if STEERING in record.predictions:
        without, with_j = (share(name, gives(record, STEERING, name)) for name in ("unsteered", "steered"))
    else:
        without, with_j = (
            share(name, answered(record, 0, steered, WALKED) == WALKED, unit="graph")
            for name, steered in (("unsteered", False), ("steered", True))
        )
    holds = at_most(without.estimate.value, 0.15) and at_least(with_j.estimate.value, 0.80)
    ours = f"{_counted(without)} -> {_counted(with_j)}"
    return Finding(holds, ours, with_j.estimate, with_j.n, [record], patches=False)


def _patched(condition: str) -> Callable[[Record], Finding]:
    """Claims on one condition of the steering test; not judged where the steered run has nothing to be damaged."""

    def judge(record: Record) -> Finding:
        steered = share("steered", gives(record, STEERING, "steered"))
        row = _right(record, STEERING, condition)
        if row is None:
            return Finding(None, "no heads were chosen", None, steered.n, [record])
        ours = f"{_counted(row)} (steered {_counted(steered)})"
        holds: bool | None = None
        if not at_most(steered.estimate.value, DAMAGED):
            rescued = at_least(row.estimate.value, 0.70 * steered.estimate.value)
            holds = rescued if condition == "rescue" else at_most(row.estimate.value, DAMAGED)
        controls = _steering_controls(record, condition, steered)
        return Finding(holds, ours, row.estimate, row.n, [record], controls=controls)

    return judge


def _steering_controls(record: Record, condition: str, steered: Row) -> tuple[Control, ...]:
    if condition == "rescue":
        found = (_right(record, STEERING, name) for name in CONTROLS)
        return tuple(Control(row, DAMAGED) for row in found if row is not None)
    left = (1 - DAMAGED) * steered.estimate.value
    kept = ((_right(record, STEERING, name), where) for name, where in UNDAMAGED.items())
    return tuple(Control(replace(row, name=where), left, keeps=True) for row, where in kept if row is not None)


def _controls(record: Record) -> Finding:
    steered = share("steered", gives(record, STEERING, "steered"))
    rows = [_right(record, STEERING, name) for name in CONTROLS]
    found = [row for row in rows if row is not None]
    if not found:
        return Finding(None, "no heads were chosen", None, steered.n, [record])
    worst = max(found, key=lambda row: row.estimate.value)
    ours = ", ".join(f"{row.name} {_counted(row)}" for row in found)
    holds: bool | None = at_most(worst.estimate.value, DAMAGED)
    if holds and (len(found) < len(CONTROLS) or at_most(steered.estimate.value, DAMAGED)):
        holds = None
    return Finding(holds, ours, worst.estimate, worst.n, [record])


def _content(record: Record) -> Finding:
    pattern, output = _right(record, CONTENT, "pattern", "E"), _right(record, CONTENT, "output", "D")
    if pattern is None or output is None:
        return Finding(None, "no heads were chosen", None, int(record.settings["pairs"]), [record])
    holds = at_least(pattern.estimate.value, 0.50) and at_least(output.estimate.value, 0.70)
    ours = f"E {percent(pattern.estimate.value)}, D {percent(output.estimate.value)}"
    rows = ((_right(record, CONTENT, name, which), which) for name, which in CONTENT_CONTROLS.items())
    controls = tuple(Control(row, DAMAGED, which) for row, which in rows if row is not None)
    return Finding(holds, ours, pattern.estimate, pattern.n, [record], of="E", controls=controls)


def _restore(record: Record) -> Finding:
    there = record.predictions[RESTORATION]
    if "selected" not in there:
        return Finding(None, "no heads were chosen", None, int(record.settings["pairs"]), [record])
    if not broken(record).any():
        return Finding(None, "no answer was broken", None, 0, [record])
    selected = share("selected", repaired(record, "selected"))
    if "comparison" not in there:
        ours = f"{_counted(selected)}; too many were chosen to leave heads to compare"
        return Finding(None, ours, selected.estimate, selected.n, [record])
    comparison = share("comparison", repaired(record, "comparison"))
    holds = at_least(selected.estimate.value, 0.80) and at_most(comparison.estimate.value, 0.10)
    ours = f"{_counted(selected)} vs {_counted(comparison)}"
    return Finding(holds, ours, selected.estimate, selected.n, [record])


def steer(evidence: Evidence) -> Finding | None:
    """Eight transfers: at most 15 % without J, at least 80 % with it."""
    every = evidence.every(LETTERS)
    paired = {identity(each) for each in every if STEERING in each.predictions}
    records = [
        each
        for each in every
        if STEERING in each.predictions or (WALKS in each.predictions and identity(each) not in paired)
    ]
    return _told(map(_steer, _ranked(evidence, records, patches=False)))


rescue = _on_letters(STEERING, _patched("rescue"))
"""Steered patterns in the unsteered run: at least 70 % of what is steered right."""
damage = _on_letters(STEERING, _patched("damage"))
"""Unsteered patterns in the steered run: at most 20 %."""
controls = _on_letters(STEERING, _controls)
"""Values, an unrelated graph, the wrong loop and comparison heads: at most 20 % each."""
content = _on_letters(CONTENT, _content)
"""Between graphs: the pattern gives E in at least 50 %, the output D in at least 70 %."""
restore = _on_letters(RESTORATION, _restore)
"""Of answers that other queries break, selected heads repair at least 80 %, comparison heads at most 10 %."""


# ---- antonyms --------------------------------------------------------------------------------------------------------


Supervised = dict[str, Record]
"""Records by supervision: one, or two to be compared."""


def _supervised(evidence: Evidence) -> list[Supervised]:
    """What is compared, that which counts first: records of one model, or at least of one size and as many loops.

    A claim compares how models were trained, so it is not judged on a large model here and a small one there.
    """
    runs: dict[tuple[object, ...], dict[str, dict[str, list[Record]]]] = {}
    for each in _ranked(evidence, evidence.every(ANTONYMS)):
        run = parameters_of(each), each.settings.get("boundary"), each.settings.get("loops")
        named = runs.setdefault(run, {}).setdefault(each.facts.name, {form: [] for form in FORMS})
        named[each.settings["supervision"]].append(each)
    found: list[Supervised] = []
    for models in runs.values():
        paired = [_paired(named) for named in models.values()]
        found += [both for pairs in paired for both in pairs if len(both) == len(FORMS)]
        alone = [both for pairs in paired for both in pairs if len(both) < len(FORMS)]
        found += _paired({form: [each[form] for each in alone if form in each] for form in FORMS})

    def order(some: Supervised) -> tuple[object, ...]:
        names = sorted({by_number(each.facts.name) for each in some.values()})
        return len(some) < len(FORMS), *max(rank(each, evidence.lineage) for each in some.values()), len(names), names

    return sorted(found, key=order)


def _paired(records: Mapping[str, Sequence[Record]]) -> list[Supervised]:
    """The first of each supervision, the second of each, ...; what has no partner stands alone."""
    pairs = zip_longest(*(records[form] for form in FORMS))
    return [{form: each for form, each in zip(FORMS, pair, strict=True) if each is not None} for pair in pairs]


def _native(both: Supervised) -> Finding:
    stepwise, final = both.get("stepwise"), both.get("final-only")
    if any(each.facts.loops < TRAINED for each in both.values()):
        return Finding(None, f"fewer than {TRAINED} loops were made", None, 0, [*both.values()])
    rows: list[Row] = []
    said = []
    if stepwise is not None:
        steps = [share(f"loop {t}", readout_right(stepwise, "truncated", t, t), unit="sequence")
                 for t in range(1, TRAINED + 1)]  # fmt: skip
        rows.append(min(steps, key=lambda row: row.estimate.value))
        said.append(f"stepwise {_counted(rows[-1])} in the worst loop")
    if final is not None:
        third = [readout_right(final, "chosen", 3, k) for k in range(1, TRAINED + 1)]
        rows.append(share("loop 3", np.concatenate(third), unit="request"))
        said.append(f"final-only {_counted(rows[-1])} at loop 3")
    worst = min(rows, key=lambda row: row.estimate.value)
    holds = at_least(worst.estimate.value, 0.90)
    verdict = False if not holds else True if len(both) == len(FORMS) else None
    return Finding(verdict, "; ".join(said), worst.estimate, worst.n, [*both.values()])


def native(evidence: Evidence) -> Finding | None:
    """Stepwise: deletion t after t loops, in the worst loop; final-only: the answer at loop 3.  At least 90 % each."""
    return _told(map(_native, _supervised(evidence)))


def _antonym_steer(both: Supervised) -> Finding:
    deep = range(TRAINED + 1, LONGEST + 1)
    row, low = (
        None if each is None else share("J", depth_right(each, 0, True, deep), unit="request")
        for each in (both.get("final-only"), both.get("stepwise"))
    )
    verdicts = [
        row is None or at_least(row.estimate.value, 0.70),
        low is None or at_most(low.estimate.value, 0.30),
    ]
    said = [percent(each.estimate.value) if each is not None else "not run" for each in (row, low)]
    shown = row or low
    assert shown is not None
    verdict = False if not all(verdicts) else True if len(both) == len(FORMS) else None
    without = (share(f"{form} without J", depth_right(each, 0, False, deep), 0.0, unit="request")
               for form, each in both.items())  # fmt: skip
    controls = tuple(Control(row, DAMAGED) for row in without)
    return Finding(verdict, " vs ".join(said), shown.estimate, shown.n, [*both.values()], controls=controls)


def antonym_steer(evidence: Evidence) -> Finding | None:
    """With J at depths 5 to 8: final-only at least 70 %, stepwise at most 30 %."""
    return _told(map(_antonym_steer, _supervised(evidence)))


# ---- iterations ------------------------------------------------------------------------------------------------------


def _continued(split: str) -> Callable[[Record], Finding]:
    """Requests for 5 to 8 steps from the starts of one split, of one record."""

    def judge(record: Record) -> Finding:
        right = {branch: iterated(record, split, branch, is_long) for branch in ("J+F", "F", "J", "stop")}
        shares = {branch: float(found.mean()) for branch, found in right.items()}
        gain = difference(right["J+F"], right["F"], long_prompts(record, split), unit="prompt")
        above = all(shares["J+F"] > shares[other] for other in ("J", "stop"))
        ours = (
            f"{percent(shares['J+F'])} vs {percent(shares['F'])} (F only), {percent(shares['J'])} (J only), "
            f"{percent(shares['stop'])} (stop), from {STARTS[split]}"
        )
        holds = at_least(gain.value, 0.30) and above
        return Finding(holds, ours, gain, len(right["F"]), [record], of="J+F minus F")

    return judge


def continued(split: str) -> Judge:
    """Long requests: J+F at least 30 points above F alone, and above J alone and stopping."""

    def on_all(evidence: Evidence) -> Finding | None:
        return _told(map(_continued(split), _ranked(evidence, evidence.every(ITERATIONS))))

    return on_all
