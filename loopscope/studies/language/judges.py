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

from loopscope.quantity import Quantity, every, one
from loopscope.store.zoo import by_number
from loopscope.studies.antonyms.tables import at_depths, at_loop
from loopscope.studies.antonyms.tests import FORMS
from loopscope.studies.closeness import rank
from loopscope.studies.evidence import Control, Evidence, Finding, Judge, at_least, at_most
from loopscope.studies.iterations.tables import ALL, LONG, gain
from loopscope.studies.iterations.tests import STARTS
from loopscope.studies.language.layouts import ANTONYMS, HEADS, ITERATIONS, LETTERS
from loopscope.studies.language.names import identity, parameters_of, site
from loopscope.studies.language.records import selection_of
from loopscope.studies.letters.tests import CONTENT, RESTORATION, STEERING
from loopscope.studies.letters.walks import LONGEST as WALKED
from loopscope.studies.letters.walks import WALKS
from loopscope.studies.records import Record, percent
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
    found = tuple(findings)
    if not found:
        return None
    first = next((each for each in found if each.holds is not None), found[0])
    return replace(first, others=tuple(each for each in found if each is not first))


def _on_letters(test: str, judge: Callable[[Record, Sequence[Quantity]], Finding]) -> Judge:
    """A claim on one test of letters, which `judge` decides by one record and its quantities.

    It is told where patches acted, and where the search for those heads did not pass all of its steps.
    """

    def on_all(evidence: Evidence) -> Finding | None:
        letters = evidence.every(LETTERS)
        unpassed = {identity(each) for each in letters if HEADS in each.predictions and not _passed(each)}

        def judged(record: Record) -> Finding:
            said, where = judge(record, evidence.quantities(record)), site(record)
            if not where:
                return said
            beside = (NOT_PASSED,) if identity(record) in unpassed else ()
            return replace(said, ours=f"{said.ours} ({where})", beside=beside)

        return _told(map(judged, _ranked(evidence, [each for each in letters if test in each.predictions])))

    return on_all


def _passed(search: Record) -> bool:
    found = selection_of(search)
    return found is not None and found.passed


def _counted(found: Quantity) -> str:
    return f"{round(found.estimate.value * found.n)}/{found.n}"


def _without_heads(record: Record) -> Finding:
    return Finding(None, "no heads were chosen", None, int(record.settings["pairs"]), [record])


def _patched(condition: str) -> Callable[[Record, Sequence[Quantity]], Finding]:
    """Claims on one condition of the steering test; not judged where the steered run has nothing to be damaged."""

    def judge(record: Record, quantities: Sequence[Quantity]) -> Finding:
        if condition not in record.predictions[STEERING]:
            return _without_heads(record)
        steered, found = (one(quantities, "letters.steering", condition=each) for each in ("steered", condition))
        ours = f"{_counted(found)} (steered {_counted(steered)})"
        holds: bool | None = None
        if not at_most(steered.estimate.value, DAMAGED):
            rescued = at_least(found.estimate.value, 0.70 * steered.estimate.value)
            holds = rescued if condition == "rescue" else at_most(found.estimate.value, DAMAGED)
        controls = _rescue_controls(quantities) if condition == "rescue" else _damage_controls(quantities, steered)
        return Finding(holds, ours, found.estimate, found.n, [record], controls=controls)

    return judge


def _each(quantities: Sequence[Quantity], conditions: Iterable[str]) -> list[Quantity]:
    """These conditions of the steering test, those that were run."""
    return [found for name in conditions for found in every(quantities, "letters.steering", condition=name)]


def _rescue_controls(quantities: Sequence[Quantity]) -> tuple[Control, ...]:
    return tuple(Control(found, DAMAGED) for found in _each(quantities, CONTROLS))


def _damage_controls(quantities: Sequence[Quantity], steered: Quantity) -> tuple[Control, ...]:
    left = (1 - DAMAGED) * steered.estimate.value
    return tuple(
        Control(replace(found, label=where), left, keeps=True)
        for condition, where in UNDAMAGED.items()
        for found in _each(quantities, [condition])
    )


def _controls(record: Record, quantities: Sequence[Quantity]) -> Finding:
    found = _each(quantities, CONTROLS)
    if not found:
        return _without_heads(record)
    worst = max(found, key=lambda each: each.estimate.value)
    ours = ", ".join(f"{each.label} {_counted(each)}" for each in found)
    holds: bool | None = at_most(worst.estimate.value, DAMAGED)
    steered = one(quantities, "letters.steering", condition="steered")
    if holds and (len(found) < len(CONTROLS) or at_most(steered.estimate.value, DAMAGED)):
        holds = None
    return Finding(holds, ours, worst.estimate, worst.n, [record])


def _content(record: Record, quantities: Sequence[Quantity]) -> Finding:
    if not {"pattern", "output"} <= record.predictions[CONTENT].keys():
        return _without_heads(record)
    pattern = one(quantities, "letters.content", condition="pattern", answer="E")
    output = one(quantities, "letters.content", condition="output", answer="D")
    holds = at_least(pattern.estimate.value, 0.50) and at_least(output.estimate.value, 0.70)
    ours = f"E {percent(pattern.estimate.value)}, D {percent(output.estimate.value)}"
    controls = tuple(
        Control(replace(found, label=condition), DAMAGED, answer)
        for condition, answer in CONTENT_CONTROLS.items()
        for found in every(quantities, "letters.content", condition=condition, answer=answer)
    )
    return Finding(holds, ours, pattern.estimate, pattern.n, [record], of="E", controls=controls)


def _restore(record: Record, quantities: Sequence[Quantity]) -> Finding:
    if "selected" not in record.predictions[RESTORATION]:
        return _without_heads(record)
    repaired = "letters.restoration.repaired"
    if not every(quantities, repaired):
        return Finding(None, "no answer was broken", None, 0, [record])
    selected = one(quantities, repaired, condition="selected")
    if "comparison" not in record.predictions[RESTORATION]:
        ours = f"{_counted(selected)}; too many were chosen to leave heads to compare"
        return Finding(None, ours, selected.estimate, selected.n, [record])
    comparison = one(quantities, repaired, condition="comparison")
    holds = at_least(selected.estimate.value, 0.80) and at_most(comparison.estimate.value, 0.10)
    ours = f"{_counted(selected)} vs {_counted(comparison)}"
    return Finding(holds, ours, selected.estimate, selected.n, [record])


def _steer(record: Record, quantities: Sequence[Quantity]) -> Finding:
    if STEERING in record.predictions:
        without, with_j = (one(quantities, "letters.steering", condition=name) for name in ("unsteered", "steered"))
    else:
        without, with_j = (
            one(quantities, "letters.walks", template=0, steered=steered, k=WALKED) for steered in (False, True)
        )
    holds = at_most(without.estimate.value, 0.15) and at_least(with_j.estimate.value, 0.80)
    ours = f"{_counted(without)} -> {_counted(with_j)}"
    return Finding(holds, ours, with_j.estimate, with_j.n, [record], patches=False)


def steer(evidence: Evidence) -> Finding | None:
    """Eight transfers: at most 15 % without J, at least 80 % with it."""
    letters = evidence.every(LETTERS)
    paired = {identity(each) for each in letters if STEERING in each.predictions}
    records = [
        each
        for each in letters
        if STEERING in each.predictions or (WALKS in each.predictions and identity(each) not in paired)
    ]
    ranked = _ranked(evidence, records, patches=False)
    return _told(_steer(record, evidence.quantities(record)) for record in ranked)


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


def _native(evidence: Evidence, both: Supervised) -> Finding:
    stepwise, final = both.get("stepwise"), both.get("final-only")
    if any(each.facts.loops < TRAINED for each in both.values()):
        return Finding(None, f"fewer than {TRAINED} loops were made", None, 0, [*both.values()])
    found: list[Quantity] = []
    said = []
    if stepwise is not None:
        steps = [
            evidence.one(stepwise, "antonyms.readouts", way="truncated", loop=loop, deletion=loop)
            for loop in range(1, TRAINED + 1)
        ]
        found.append(min(steps, key=lambda each: each.estimate.value))
        said.append(f"stepwise {_counted(found[-1])} in the worst loop")
    if final is not None:
        found.append(at_loop(final, 3))
        said.append(f"final-only {_counted(found[-1])} at loop 3")
    worst = min(found, key=lambda each: each.estimate.value)
    holds = at_least(worst.estimate.value, 0.90)
    verdict = False if not holds else True if len(both) == len(FORMS) else None
    return Finding(verdict, "; ".join(said), worst.estimate, worst.n, [*both.values()])


def native(evidence: Evidence) -> Finding | None:
    """Stepwise: deletion t after t loops, in the worst loop; final-only: the answer at loop 3.  At least 90 % each."""
    return _told(_native(evidence, both) for both in _supervised(evidence))


def _antonym_steer(both: Supervised) -> Finding:
    deep = range(TRAINED + 1, LONGEST + 1)
    with_j = {form: at_depths(record, 0, True, deep) for form, record in both.items()}
    final, stepwise = (with_j.get(form) for form in ("final-only", "stepwise"))
    verdicts = [
        final is None or at_least(final.estimate.value, 0.70),
        stepwise is None or at_most(stepwise.estimate.value, 0.30),
    ]
    said = [percent(each.estimate.value) if each is not None else "not run" for each in (final, stepwise)]
    shown = final or stepwise
    assert shown is not None
    verdict = False if not all(verdicts) else True if len(both) == len(FORMS) else None
    controls = tuple(
        Control(at_depths(record, 0, False, deep, label=f"{form} without J", published=0.0), DAMAGED)
        for form, record in both.items()
    )
    return Finding(verdict, " vs ".join(said), shown.estimate, shown.n, [*both.values()], controls=controls)


def antonym_steer(evidence: Evidence) -> Finding | None:
    """With J at depths 5 to 8: final-only at least 70 %, stepwise at most 30 %."""
    return _told(map(_antonym_steer, _supervised(evidence)))


# ---- iterations ------------------------------------------------------------------------------------------------------


def _continued(evidence: Evidence, record: Record, split: str) -> Finding:
    """Requests for 5 to 8 steps from the starts of one split."""
    shares = {
        branch: evidence.one(
            record, "iterations.whole", split=split, task=ALL, length=LONG, branch=branch
        ).estimate.value
        for branch in ("J+F", "F", "J", "stop")
    }
    more = gain(record, split)
    above = all(shares["J+F"] > shares[other] for other in ("J", "stop"))
    ours = (
        f"{percent(shares['J+F'])} vs {percent(shares['F'])} (F only), {percent(shares['J'])} (J only), "
        f"{percent(shares['stop'])} (stop), from {STARTS[split]}"
    )
    holds = at_least(more.estimate.value, 0.30) and above
    return Finding(holds, ours, more.estimate, more.n, [record], of="J+F minus F")


def continued(split: str) -> Judge:
    """Long requests: J+F at least 30 points above F alone, and above J alone and stopping."""

    def on_all(evidence: Evidence) -> Finding | None:
        ranked = _ranked(evidence, evidence.every(ITERATIONS))
        return _told(_continued(evidence, record, split) for record in ranked)

    return on_all
