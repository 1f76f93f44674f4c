"""Judges of language models: what records of the letter walk, antonyms and iterations say on the claims.

Where several models were measured, those measured just now come first, and of these the largest counts; of several as
large, one whose loops end as the published model's do, then one that makes as many loops, then the one asked most, and
then the first by name.  A claim on two ways to supervise is judged on models of one size, the largest that has both.  A
claim about what destroys or repairs an answer is not judged where there is nothing to destroy or repair.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loopscope.experiments.evidence import Evidence, Finding, Judge, at_least, at_most
from loopscope.experiments.language import ANTONYMS, ITERATIONS, LANGUAGE, LETTERS, parameters_of
from loopscope.experiments.language_shares import difference, share
from loopscope.experiments.language_tables import depth_right, is_long, iterated, long_prompts, readout_right
from loopscope.experiments.letter_tables import broken, gives, repaired
from loopscope.experiments.records import Record, Row, percent
from loopscope.lm.antonym_tests import FORMS
from loopscope.lm.antonyms import LONGEST, TRAINED
from loopscope.lm.letter_tests import CONTENT, RESTORATION, STEERING

CONTROLS = ("values", "unrelated", "wrong loop", "comparison")
"""What must do nothing."""

DAMAGED = 0.20
"""What damage and controls may leave; a steered run must be above it, or there is nothing to damage."""


def _largest(evidence: Evidence, records: Iterable[Record]) -> Record | None:
    """The record that counts."""

    def rank(record: Record) -> tuple[bool, int, bool, bool, int]:
        published, settings = LANGUAGE[record.experiment], record.settings
        alike = settings.get("boundary") == published.boundary, settings.get("loops") == published.loops
        answers = sum(len(each) for found in record.predictions.values() for each in found.values())
        return evidence.is_fresh(record), parameters_of(record), *alike, answers

    return max(sorted(records, key=lambda each: each.facts.name), key=rank, default=None)


def _letters(evidence: Evidence, test: str) -> Record | None:
    return _largest(evidence, (each for each in evidence.every(LETTERS) if test in each.predictions))


def _counted(row: Row) -> str:
    return f"{round(row.estimate.value * row.n)}/{row.n}"


def _right(record: Record, test: str, condition: str, which: str = "B") -> Row | None:
    """A condition's share of B, D or E; None where it was not run, as heads were not chosen."""
    if condition not in record.predictions[test]:
        return None
    return share(condition, gives(record, test, condition, which))


def steer(evidence: Evidence) -> Finding | None:
    """Eight transfers: at most 15 % without J, at least 80 % with it."""
    record = _letters(evidence, STEERING)
    if record is None:
        return None
    without, with_j = (share(name, gives(record, STEERING, name)) for name in ("unsteered", "steered"))
    holds = at_most(without.estimate.value, 0.15) and at_least(with_j.estimate.value, 0.80)
    return Finding(holds, f"{_counted(without)} -> {_counted(with_j)}", with_j.estimate, with_j.n, [record])


def _steering(judge_row: str) -> Judge:
    """Claims on one condition of the steering test; not judged where the steered run has nothing to be damaged."""

    def judge(evidence: Evidence) -> Finding | None:
        record = _letters(evidence, STEERING)
        if record is None:
            return None
        steered = share("steered", gives(record, STEERING, "steered"))
        row = _right(record, STEERING, judge_row)
        if row is None:
            return Finding(None, "no heads were chosen", None, steered.n, [record])
        ours = f"{_counted(row)} (steered {_counted(steered)})"
        if at_most(steered.estimate.value, DAMAGED):
            return Finding(None, ours, row.estimate, row.n, [record])
        if judge_row == "rescue":
            holds = at_least(row.estimate.value, 0.70 * steered.estimate.value)
        else:
            holds = at_most(row.estimate.value, DAMAGED)
        return Finding(holds, ours, row.estimate, row.n, [record])

    return judge


rescue, damage = _steering("rescue"), _steering("damage")


def controls(evidence: Evidence) -> Finding | None:
    """Values, an unrelated graph, the wrong loop and comparison heads: at most 20 % each."""
    record = _letters(evidence, STEERING)
    if record is None:
        return None
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


def content(evidence: Evidence) -> Finding | None:
    """Between graphs: the pattern gives E in at least 50 %, the output D in at least 70 %."""
    record = _letters(evidence, CONTENT)
    if record is None:
        return None
    pattern, output = _right(record, CONTENT, "pattern", "E"), _right(record, CONTENT, "output", "D")
    if pattern is None or output is None:
        return Finding(None, "no heads were chosen", None, int(record.settings["pairs"]), [record])
    holds = at_least(pattern.estimate.value, 0.50) and at_least(output.estimate.value, 0.70)
    ours = f"{percent(pattern.estimate.value)} / {percent(output.estimate.value)}"
    return Finding(holds, ours, pattern.estimate, pattern.n, [record])


def restore(evidence: Evidence) -> Finding | None:
    """Of answers that other queries break, selected heads repair at least 80 %, comparison heads at most 10 %."""
    record = _letters(evidence, RESTORATION)
    if record is None:
        return None
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


# ---- antonyms --------------------------------------------------------------------------------------------------------


def _supervised(evidence: Evidence) -> dict[str, Record]:
    """By supervision, the record that counts: two of models of one size, where some size has both.

    A claim compares how models were trained, so it is not judged on a large model here and a small one there.
    """

    def of_size(size: int) -> dict[str, Record]:
        alike = [each for each in evidence.every(ANTONYMS) if parameters_of(each) == size]
        by_form = {form: [each for each in alike if each.settings["supervision"] == form] for form in FORMS}
        return {form: found for form, some in by_form.items() if (found := _largest(evidence, some)) is not None}

    sizes = {parameters_of(each) for each in evidence.every(ANTONYMS)}
    found = [(size, of_size(size)) for size in sizes]
    return max(
        found, key=lambda each: (any(map(evidence.is_fresh, each[1].values())), len(each[1]), each[0]), default=(0, {})
    )[1]


def native(evidence: Evidence) -> Finding | None:
    """Stepwise: deletion t after t loops, in the worst loop; final-only: the answer at loop 3.  At least 90 % each."""
    both = _supervised(evidence)
    stepwise, final = both.get("stepwise"), both.get("final-only")
    used = [record for record in (stepwise, final) if record is not None]
    if not used:
        return None
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
    verdict = False if not holds else True if len(used) == 2 else None
    return Finding(verdict, "; ".join(said), worst.estimate, worst.n, used)


def antonym_steer(evidence: Evidence) -> Finding | None:
    """With J at depths 5 to 8: final-only at least 70 %, stepwise at most 30 %."""
    both = _supervised(evidence)
    final, stepwise = both.get("final-only"), both.get("stepwise")
    used = [record for record in (final, stepwise) if record is not None]
    if not used:
        return None
    deep = range(TRAINED + 1, LONGEST + 1)
    row, low = (
        None if each is None else share("J", depth_right(each, 0, True, deep), unit="request")
        for each in (final, stepwise)
    )
    verdicts = [
        row is None or at_least(row.estimate.value, 0.70),
        low is None or at_most(low.estimate.value, 0.30),
    ]
    said = [percent(each.estimate.value) if each is not None else "not run" for each in (row, low)]
    shown = row or low
    assert shown is not None
    verdict = False if not all(verdicts) else True if len(used) == 2 else None
    return Finding(verdict, " vs ".join(said), shown.estimate, shown.n, used)


# ---- iterations ------------------------------------------------------------------------------------------------------


def continued(evidence: Evidence) -> Finding | None:
    """Long requests from held-out starts: J+F at least 30 points above F alone, and above J alone and stopping."""
    record = _largest(evidence, evidence.every(ITERATIONS))
    if record is None:
        return None
    right, trained = (
        {branch: iterated(record, split, branch, is_long) for branch in ("J+F", "F", "J", "stop")}
        for split in ("test", "train")
    )
    shares = {branch: float(found.mean()) for branch, found in right.items()}
    gain = difference(right["J+F"], right["F"], long_prompts(record, "test"), unit="prompt")
    above = all(shares["J+F"] > shares[other] for other in ("J", "stop"))
    holds = at_least(gain.value, 0.30) and above
    with_j, *others = (percent(float(found.mean())) for found in trained.values())
    ours = (
        f"{percent(shares['J+F'])} vs {percent(shares['F'])} (F only), {percent(shares['J'])} (J only), "
        f"{percent(shares['stop'])} (stop) from held-out starts; {with_j} vs {', '.join(others)} from trained starts, "
        "as in the paper"
    )
    return Finding(holds, ours, gain, len(right["F"]), [record])
