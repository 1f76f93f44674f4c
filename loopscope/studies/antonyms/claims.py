"""The claims on cancelling antonyms, each with the predicate that was fixed before our models were trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from loopscope.quantity import Quantity
from loopscope.store.zoo import by_number
from loopscope.studies.antonyms.tables import at_depths, at_loop
from loopscope.studies.antonyms.tests import FORMS
from loopscope.studies.claim import Claim
from loopscope.studies.closeness import rank
from loopscope.studies.evidence import Control, Evidence, Finding, at_least, at_most
from loopscope.studies.language.judges import CONTROLLED, counted, deciding, ranked
from loopscope.studies.language.layouts import ANTONYMS
from loopscope.studies.language.names import parameters_of
from loopscope.studies.records import Record, percent
from loopscope.tasks.antonyms import LONGEST, TRAINED_DEPTH

Supervised = dict[str, Record]
"""Records by supervision: one, or two to be compared."""


def _supervised(evidence: Evidence) -> list[Supervised]:
    """What is compared, that which counts first: records of one model, or at least of one size and as many loops.

    A claim compares how models were trained, so it is not judged on a large model here and a small one there.
    """
    runs: dict[tuple[object, ...], dict[str, dict[str, list[Record]]]] = {}
    for each in ranked(evidence, evidence.every(ANTONYMS)):
        run = parameters_of(each), *(each.settings.get(name) for name in ("boundary", "loops", "loop"))
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


def _native(evidence: Evidence, both: Supervised) -> Finding:
    stepwise, final = both.get("stepwise"), both.get("final-only")
    if any(each.facts.loops < TRAINED_DEPTH for each in both.values()):
        return Finding(None, f"fewer than {TRAINED_DEPTH} loops were made", None, 0, [*both.values()])
    found: list[Quantity] = []
    said, told = [], {}
    if stepwise is not None:
        steps = [
            evidence.one(stepwise, "antonyms.readouts", way="truncated", loop=loop, deletion=loop)
            for loop in range(1, TRAINED_DEPTH + 1)
        ]
        found.append(min(steps, key=lambda each: each.estimate.value))
        said.append(f"stepwise {counted(found[-1])} in the worst loop")
        told["stepwise"] = percent(found[-1].estimate.value)
    if final is not None:
        found.append(at_loop(final, 3))
        said.append(f"final-only {counted(found[-1])} at loop 3")
        told["final"] = percent(found[-1].estimate.value)
    worst = min(found, key=lambda each: each.estimate.value)
    holds = at_least(worst.estimate.value, 0.90)
    verdict = False if not holds else True if len(both) == len(FORMS) else None
    return Finding(verdict, "; ".join(said), worst.estimate, worst.n, [*both.values()], told=told)


def native(evidence: Evidence) -> Finding | None:
    """Stepwise: deletion t after t loops, in the worst loop; final-only: the answer at loop 3.  At least 90 % each."""
    return deciding(_native(evidence, both) for both in _supervised(evidence))


def _steer(both: Supervised) -> Finding:
    deep = range(TRAINED_DEPTH + 1, LONGEST + 1)
    with_j = {form: at_depths(record, 0, True, deep) for form, record in both.items()}
    final, stepwise = (with_j.get(form) for form in ("final-only", "stepwise"))
    verdicts = [
        final is None or at_least(final.estimate.value, 0.70),
        stepwise is None or at_most(stepwise.estimate.value, 0.30),
    ]
    found = {"final": final, "stepwise": stepwise}
    told = {name: percent(each.estimate.value) for name, each in found.items() if each is not None}
    said = [told.get(name, "not run") for name in found]
    shown = final or stepwise
    assert shown is not None
    verdict = False if not all(verdicts) else True if len(both) == len(FORMS) else None
    controls = tuple(
        Control(at_depths(record, 0, False, deep, label=f"{form} without J", published=0.0), CONTROLLED)
        for form, record in both.items()
    )
    ours = " vs ".join(said)
    return Finding(verdict, ours, shown.estimate, shown.n, [*both.values()], controls=controls, told=told)


def steer(evidence: Evidence) -> Finding | None:
    """With J at depths 5 to 8: final-only at least 70 %, stepwise at most 30 %."""
    return deciding(map(_steer, _supervised(evidence)))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "antonym.native", "6", "stepwise: one deletion per loop; final-only: answers by loop 3", "64/64; 255/256",
        ">= 90 % each", ANTONYMS, native,
        finding="Without J, the backbone that was supervised after every loop says its deletion right in {stepwise} % "
                "in its worst loop, the one supervised after the last loop alone in {final} % at loop 3.",
    ),
    Claim(
        "antonym.steer", "6", "with J at depths 5-8", "98.0 vs 7.8", "final-only >= 70 %, stepwise <= 30 %",
        ANTONYMS, steer,
        finding="With J, deletions 5 to 8 are right in {final} % on the backbone that was supervised after the last "
                "loop alone, in {stepwise} % on that supervised after every loop.",
    ),
)  # fmt: skip
