"""What records of the letter walk say on the claims.

A claim about what destroys or repairs an answer takes a model that has answers to destroy or repair.  Whether J leads
to eight transfers is judged on pairs, or where a model was asked for none, on the graphs of its walks.

A control of a patch should not do what the patch does.  It fails if it does so in more than 20 %; one of damage, if it
leaves less than 80 % of what is steered right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from loopscope.quantity import Quantity, every, one
from loopscope.studies.evidence import Control, Evidence, Finding, Judge, at_least, at_most
from loopscope.studies.language.judges import CONTROLLED, counted, deciding, ranked
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.language.names import identity
from loopscope.studies.letters.layouts import HEADS
from loopscope.studies.letters.names import site
from loopscope.studies.letters.records import selection_of
from loopscope.studies.letters.tests import CONTENT, RESTORATION, STEERING
from loopscope.studies.letters.walks import LONGEST, WALKS
from loopscope.studies.records import Record, percent

CONTROLS = ("values", "unrelated", "wrong loop", "comparison")
"""What must do nothing."""

DAMAGED = CONTROLLED
"""What damage may leave, as controls may; a steered run must be above it, or there is nothing to damage."""

UNDAMAGED = {"comparison damage": "comparison heads", "complement damage": "the other heads of the same layers"}
"""Where else unsteered patterns are put, which should leave the steered run as it is."""

CONTENT_CONTROLS = {"wrong loop": "E", "comparison pattern": "E", "comparison output": "D", "values": "D"}
"""What should not give the answer that the patch it is beside gives: E of patterns, D of outputs."""

NOT_PASSED = "the search for these heads did not pass all of its steps"


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

        return deciding(map(judged, ranked(evidence, [each for each in letters if test in each.predictions])))

    return on_all


def _passed(search: Record) -> bool:
    found = selection_of(search)
    return found is not None and found.passed


def _without_heads(record: Record) -> Finding:
    return Finding(None, "no heads were chosen", None, int(record.settings["pairs"]), [record])


def _patched(condition: str) -> Callable[[Record, Sequence[Quantity]], Finding]:
    """Claims on one condition of the steering test; not judged where the steered run has nothing to be damaged."""

    def judge(record: Record, quantities: Sequence[Quantity]) -> Finding:
        if condition not in record.predictions[STEERING]:
            return _without_heads(record)
        steered, found = (one(quantities, "letters.steering", condition=each) for each in ("steered", condition))
        ours = f"{counted(found)} (steered {counted(steered)})"
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
    ours = ", ".join(f"{each.label} {counted(each)}" for each in found)
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
        ours = f"{counted(selected)}; too many were chosen to leave heads to compare"
        return Finding(None, ours, selected.estimate, selected.n, [record])
    comparison = one(quantities, repaired, condition="comparison")
    holds = at_least(selected.estimate.value, 0.80) and at_most(comparison.estimate.value, 0.10)
    ours = f"{counted(selected)} vs {counted(comparison)}"
    return Finding(holds, ours, selected.estimate, selected.n, [record])


def _steer(record: Record, quantities: Sequence[Quantity]) -> Finding:
    if STEERING in record.predictions:
        without, with_j = (one(quantities, "letters.steering", condition=name) for name in ("unsteered", "steered"))
    else:
        without, with_j = (
            one(quantities, "letters.walks", template=0, steered=steered, k=LONGEST) for steered in (False, True)
        )
    holds = at_most(without.estimate.value, 0.15) and at_least(with_j.estimate.value, 0.80)
    ours = f"{counted(without)} -> {counted(with_j)}"
    told = {"without": percent(without.estimate.value)}
    return Finding(holds, ours, with_j.estimate, with_j.n, [record], patches=False, told=told)


def steer(evidence: Evidence) -> Finding | None:
    """Eight transfers: at most 15 % without J, at least 80 % with it."""
    letters = evidence.every(LETTERS)
    paired = {identity(each) for each in letters if STEERING in each.predictions}
    records = [
        each
        for each in letters
        if STEERING in each.predictions or (WALKS in each.predictions and identity(each) not in paired)
    ]
    closest = ranked(evidence, records, patches=False)
    return deciding(_steer(record, evidence.quantities(record)) for record in closest)


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
