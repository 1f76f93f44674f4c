"""Judges: what the evidence says on each claim, by the predicate that was fixed for it.

A claim is judged when all the backbones that it speaks of were measured, or as soon as one of them contradicts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from loopscope.quantity import Coordinate, Quantity, every, of_tables, one
from loopscope.stats import Estimate
from loopscope.studies.evidence import (
    ROUNDING,
    Control,
    Evidence,
    Finding,
    Judge,
    at_least,
    at_most,
    listed,
    mean_of,
    of_cohort,
)
from loopscope.studies.graph_walk import (
    composition,
    continuation_curves,
    matched,
    matched_tables,
    targets,
    trajectories,
)
from loopscope.studies.graph_walk.continuation import WITHHELD
from loopscope.studies.graph_walk.continuation_curves import BEYOND, INSIDE, RINGS, STEERED
from loopscope.studies.graph_walk.experiments import (
    CONTINUATION,
    CROSSING,
    EIGHT_CALLS,
    MATCHED,
    SWITCHING,
    TARGETS,
    TRAJECTORIES,
    TWO_CALLS,
)
from loopscope.studies.records import Record, apart, percent
from loopscope.studies.registry import COHORTS
from loopscope.studies.selection import MECHANISM

MOST = 0.20
"""The share of a target that a control may give."""


def _each(evidence: Evidence, records: Sequence[Record], id: str, **at: Coordinate) -> list[Quantity]:
    """A quantity of every record."""
    return [evidence.one(record, id, **at) for record in records]


# ---- native trajectories ---------------------------------------------------------------------------------------------


def _native(evidence: Evidence) -> tuple[list[Record], bool]:
    """The records of D8L6 and D8L8 backbones, and whether all were measured."""
    cohorts = COHORTS["mechanism"], COHORTS["walkers"]
    known = {name for cohort in cohorts for name in cohort.every}
    found = {name: record for name, record in evidence.of(TRAJECTORIES).items() if name in known}
    wanted = {name for cohort in cohorts for name in cohort.backbones}
    return list(found.values()), wanted <= found.keys()


PAPER_SCOPE = (*(f"d8l6-{seed}" for seed in range(3, 8)), *(f"d8l8-{seed}" for seed in range(12)))
"""The backbones whose walks the paper shows."""


def worst(which: str, holds: Callable[[trajectories.Trajectory], bool]) -> Judge:
    """A claim about every native walk, shown by the one with the lowest accuracy: `endpoint` or `retained`."""

    def judge(evidence: Evidence) -> Finding | None:
        records, complete = _native(evidence)
        if not records:
            return None
        walks = {record.facts.name: trajectories.walk_of(record.predictions, record.facts) for record in records}
        rows = {record.facts.name: evidence.one(record, f"native.{which}") for record in records}
        against = [each for each, walk in walks.items() if not holds(walk)]
        lowest = min(rows, key=lambda each: rows[each].estimate.value)
        row = rows[lowest]
        ours = f"lowest {percent(row.estimate.value)} ({lowest}); {len(walks) - len(against)} of {len(walks)} hold"
        verdict = False if against else True if complete else None
        theirs = [each for each in PAPER_SCOPE if each in walks]
        held = sum(each not in against for each in theirs)
        beside = (f"of the paper's own scope, D8L6 3-7 and D8L8 0-11, {held} of {len(theirs)} hold",) if theirs else ()
        return Finding(verdict, ours, row.estimate, row.n, records, beside=beside)

    return judge


def variety(evidence: Evidence) -> Finding | None:
    """How many D8L8 backbones walk mainly in ones and how many in twos; both must occur."""
    cohort = COHORTS["walkers"]
    records = [record for name, record in evidence.of(TRAJECTORIES).items() if name in cohort.backbones]
    if not records:
        return None
    walks = [trajectories.walk_of(record.predictions, record.facts).walk for record in records]
    both = {"one", "two"} <= set(walks)
    complete = len(records) >= len(cohort.seeds)
    verdict = True if both else False if complete else None
    beside = (f"the paper's own increments give {_walkers(trajectories.published_walks())} by the same rule",)
    told = {"all": str(len(walks)), **{each: str(walks.count(each)) for each in get_args(trajectories.Walk)}}
    return Finding(verdict, _walkers(walks), None, len(walks), records, beside=beside, told=told)


def _walkers(walks: Sequence[trajectories.Walk]) -> str:
    return f"{walks.count('one')} of {len(walks)} one, {walks.count('two')} two, {walks.count('neither')} neither"


# ---- the main backbone -----------------------------------------------------------------------------------------------


def target_one(evidence: Evidence) -> Finding | None:
    """J_one on the main backbone: at least 95 % one-hop answers, 20 points above the call without a map."""
    record = evidence.main(TARGETS)
    if record is None:
        return None
    row, gain = _target(evidence, record, "one", targets.AFTER_F), targets.gain(record.predictions, record.facts)
    ours = f"{percent(row.estimate.value - gain.estimate.value)} -> {percent(row.estimate.value)}"
    holds = at_least(row.estimate.value, 0.95) and at_least(gain.estimate.value, 0.20)
    return Finding(holds, ours, row.estimate, row.n, [record], controls=_before(evidence, record, "one"))


def target_two(evidence: Evidence) -> Finding | None:
    """J_two on the main backbone: at least 90 % two-hop answers."""
    record = evidence.main(TARGETS)
    if record is None:
        return None
    row = _target(evidence, record, "two", targets.AFTER_F)
    holds, ours = at_least(row.estimate.value, 0.90), percent(row.estimate.value)
    return Finding(holds, ours, row.estimate, row.n, [record], controls=_before(evidence, record, "two"))


def _target(evidence: Evidence, record: Record, steered: str, read: str) -> Quantity:
    """How often a map gives its own target."""
    answer = {"one": "f(u)", "two": "f^2(u)"}[steered]
    return evidence.one(record, "targets.answer", map=steered, read=read, answer=answer, where=targets.WHERE)


def _before(evidence: Evidence, record: Record, steered: str) -> tuple[Control, ...]:
    """What J alone reads out, and what it does to the state of another graph: neither should give the target."""
    called = {targets.BEFORE_F: "read before F", targets.MOVED: "state of another graph"}
    return tuple(
        Control(replace(_target(evidence, record, steered, read), label=label), MOST, "the target")
        for read, label in called.items()
    )


def one_one(evidence: Evidence) -> Finding | None:
    """J_one twice: at least 80 %, 20 points above leaving out the second."""
    record = evidence.main(TWO_CALLS)
    if record is None:
        return None
    at = {"string": "11", "where": composition.ORIGINAL}
    row, gain = (evidence.one(record, id, **at) for id in ("compose.two", "compose.second_gain"))
    without = row.estimate.value - gain.estimate.value
    ours = f"{percent(row.estimate.value)} ({percent(without)} without the second map)"
    holds = at_least(row.estimate.value, 0.80) and at_least(gain.estimate.value, 0.20)
    return Finding(holds, ours, row.estimate, row.n, [record])


def order(evidence: Evidence) -> Finding | None:
    """one-two against two-one: the interval of their paired difference must exclude 0."""
    record = evidence.main(TWO_CALLS)
    if record is None:
        return None
    where = composition.ORIGINAL
    row = evidence.one(record, "compose.order", where=where)
    pairs = [evidence.one(record, "compose.two", string=pair, where=where) for pair in ("12", "21")]
    ours = " vs ".join(percent(pair.estimate.value) for pair in pairs)
    spans_zero = at_most(row.estimate.low, 0.0) and at_least(row.estimate.high, 0.0)
    return Finding(not spans_zero, ours, row.estimate, row.n, [record], of="difference")


def decay(evidence: Evidence) -> Finding | None:
    """Repeated J_one below 60 % at call 4, mixed strings at call 8 at most 5 points above answering u."""
    where = composition.INDEPENDENT
    record = evidence.main(EIGHT_CALLS, where)
    if record is None:
        return None
    fourth = evidence.one(record, "compose.long", kind="one", condition=composition.EVERY, call=4, where=where)
    above = composition.above_copying(record.predictions, record.facts, where)
    ours = (
        f"one at call 4: {percent(fourth.estimate.value)}; mixed at call 8 minus copy-u: "
        f"{percent(above.estimate.value)} [{percent(above.estimate.low)}, {percent(above.estimate.high)}]"
    )
    holds = not at_least(fourth.estimate.value, 0.60) and at_most(above.estimate.value, 0.05)
    return Finding(holds, ours, fourth.estimate, fourth.n, [record], of="one at call 4")


# ---- three backbones -------------------------------------------------------------------------------------------------


def _if_all(records: Sequence[Record], holds: bool) -> bool | None:
    """A mean over mechanism backbones decides nothing before all three were measured."""
    return holds if len(records) == MECHANISM else None


def patched(part: str, expected: str, other: str) -> Judge:
    """A patch between graphs: at least 60 % of what is expected of it and at most 10 % of the other, in the mean."""

    def judge(evidence: Evidence) -> Finding | None:
        records = evidence.mechanism(CROSSING)
        if not records:
            return None
        rows, against = (
            _each(evidence, records, "crossing.patch", part=part, answer=answer) for answer in (expected, other)
        )
        mean, wrong = mean_of(rows), mean_of(against)
        ours = f"{expected} {percent(mean.value)} ({listed(r.estimate.value for r in rows)}); {other} "
        ours += percent(wrong.value)
        holds = at_least(mean.value, 0.60) and at_most(wrong.value, 0.10)
        return Finding(_if_all(records, holds), ours, mean, min(row.n for row in rows), records)

    return judge


def steered(run: str, clean: str, sign: int) -> Judge:
    """Patterns exchanged with the unsteered run: a mean change of at least 10 points, up or down by `sign`."""

    def judge(evidence: Evidence) -> Finding | None:
        records = evidence.mechanism(CROSSING)
        if not records:
            return None
        rows, base = (_each(evidence, records, "crossing.steering", run=each) for each in (run, clean))
        change = mean_of(_each(evidence, records, "crossing.steering.gain", run=run))
        ours = f"{percent(mean_of(base).value)} -> {_spread(mean_of(rows))} ({listed(r.estimate.value for r in rows)})"
        ours += f", a change of {percent(change.value)}"
        holds = _if_all(records, at_least(sign * change.value, 0.10))
        return Finding(holds, ours, change, min(row.n for row in rows), records, of="change")

    return judge


def _spread(mean: Estimate) -> str:
    """A mean over backbones with its SD, where there are several."""
    return f"{percent(mean.value)} ± {percent(mean.high - mean.value)}" if "SD" in mean.unit else percent(mean.value)


def switched(giver: str, receiver: str, least: float) -> Judge:
    """Target switching: a mean of at least `least`, and 20 % in each backbone."""

    def judge(evidence: Evidence) -> Finding | None:
        records = evidence.mechanism(SWITCHING)
        if not records:
            return None
        rows, gains = (
            _each(evidence, records, id, giver=giver, receiver=receiver)
            for id in ("switching.target", "switching.target.gain")
        )
        values, mean = [row.estimate.value for row in rows], mean_of(rows)
        clean = mean.value - mean_of(gains).value
        ours = f"{percent(clean)} -> {percent(mean.value)} ({listed(values)})"
        holds = at_least(mean.value, least) and at_least(min(values), 0.20)
        return Finding(_if_all(records, holds), ours, mean, min(row.n for row in rows), records)

    return judge


def restored(evidence: Evidence) -> Finding | None:
    """The selected head repairs at least 50 %, the comparison head at most 5 %, all heads everything."""
    records = evidence.mechanism(CROSSING)
    if not records:
        return None
    selected, comparison, every_head = (
        _each(evidence, records, "crossing.restored", heads=heads) for heads in ("selected", "comparison", "all")
    )
    mean, other = mean_of(selected), mean_of(comparison)
    ours = f"{percent(mean.value)} ({listed(row.estimate.value for row in selected)}) vs "
    ours += f"{percent(other.value)}; all heads {percent(mean_of(every_head).value)}"
    whole = all(row.estimate.value == 1.0 for row in every_head)
    holds = at_least(mean.value, 0.50) and at_most(other.value, 0.05) and whole
    return Finding(_if_all(records, holds), ours, mean, min(row.n for row in selected), records)


# ---- matched supervision ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pairs:
    """Both backbones of every seed, complete, and all that follows from them."""

    records: list[Record]
    quantities: list[Quantity]

    @classmethod
    def of(cls, evidence: Evidence, *targets: str) -> _Pairs | None:
        """None unless every backbone of the cohort was measured, with maps for these targets."""
        known, names = evidence.of(MATCHED), COHORTS["matched"].backbones
        found = {name: known[name] for name in names if name in known and set(targets) <= known[name].facts.fits.keys()}
        if len(found) < len(names):
            return None
        records = list(found.values())
        return evidence.kept(
            MATCHED, records, lambda: cls(records, list(of_tables(matched_tables.tables(*apart(found)))))
        )

    def controls(self, target: str) -> tuple[Control, ...]:
        """What J alone reads out of final-only and of stepwise backbones: the target should come with F."""
        named = {matched.FINAL: "final-only", matched.STEPWISE: "stepwise"}
        before = {regime: one(self.quantities, "matched.before", group=regime, condition=target) for regime in named}
        return tuple(
            Control(replace(before[regime], label=f"J alone on {which} backbones"), MOST, "the target")
            for regime, which in named.items()
        )

    def rows(self, regime: str, condition: str, answer: str) -> list[Quantity]:
        """How often each backbone of a regime gives an answer under a condition."""
        found = every(self.quantities, "matched.accuracy", regime=regime, condition=condition, answer=answer)
        return [row for row in found if row.at["group"] != regime]


def matched_native(evidence: Evidence) -> Finding | None:
    """Without a map, final-only backbones stay and stepwise ones advance: 99 % in each of them."""
    found = _Pairs.of(evidence)
    if found is None:
        return None
    stays, advances = (
        found.rows(regime, matched.UNSTEERED, answer)
        for regime, answer in ((matched.FINAL, "stay"), (matched.STEPWISE, "one"))
    )
    worst = min((*stays, *advances), key=lambda row: row.estimate.value)
    ours = (
        f"{percent(mean_of(stays).value)} / {percent(mean_of(advances).value)}; lowest {percent(worst.estimate.value)}"
    )
    return Finding(at_least(worst.estimate.value, 0.99), ours, worst.estimate, worst.n, found.records, of="the lowest")


def matched_one(evidence: Evidence) -> Finding | None:
    """One hop with J: stepwise at least 99 %, final-only at least 10 points lower."""
    found = _Pairs.of(evidence, "one")
    if found is None:
        return None
    rows = [found.rows(regime, "one", "one") for regime in (matched.FINAL, matched.STEPWISE)]
    final, stepwise = map(mean_of, rows)
    ours = f"{percent(final.value)} vs {percent(stepwise.value)}"
    holds = at_least(stepwise.value, 0.99) and at_least(stepwise.value - final.value, 0.10)
    return Finding(
        holds, ours, final, rows[0][0].n, found.records, of="final-only", controls=found.controls("one"),
        told={"stepwise": percent(stepwise.value)},
    )  # fmt: skip


def matched_two(evidence: Evidence) -> Finding | None:
    """Two hops with J: final-only higher in every pair."""
    found = _Pairs.of(evidence, "two")
    if found is None:
        return None
    final, stepwise = (mean_of(found.rows(regime, "two", "two")) for regime in (matched.FINAL, matched.STEPWISE))
    gaps = every(found.quantities, "matched.gap", condition="two")
    mean = one(found.quantities, "matched.gap.mean", condition="two")
    higher = sum(gap.estimate.value > ROUNDING for gap in gaps)
    ours = f"{percent(final.value)} vs {percent(stepwise.value)}; higher in {higher} of {len(gaps)} pairs"
    return Finding(
        higher == len(gaps), ours, mean.estimate, mean.n, found.records, of="final-only minus stepwise",
        controls=found.controls("two"),
    )  # fmt: skip


# ---- continuation ----------------------------------------------------------------------------------------------------


def _continued(evidence: Evidence) -> tuple[list[Record], list[Quantity], bool] | None:
    """The records with graphs withheld from training, what J F has right on single cycles, whether all are there."""
    found, complete = of_cohort(evidence.of(CONTINUATION, WITHHELD), "eight")
    if not found:
        return None
    counted = continuation_curves.plain(*apart(found), WITHHELD)
    rings = [row for row in counted if row.at["group"] == RINGS and row.at["condition"] == STEERED]
    return list(found.values()), rings, complete


def _over(rings: Sequence[Quantity], loops: tuple[int, int], id: str = "continuation.accuracy") -> list[Quantity]:
    return every(rings, id, first=loops[0], last=loops[1])


def continue_inside(evidence: Evidence) -> Finding | None:
    """J F on single cycles, loops 9-16: at least 90 % in the mean of the twelve backbones."""
    found = _continued(evidence)
    if found is None or not (rows := _over(found[1], INSIDE)):
        return None
    (row,), (records, _, complete) = rows, found
    ours = f"{percent(row.estimate.value)} (cycles, loops 9-16)"
    return Finding(at_least(row.estimate.value, 0.90) if complete else None, ours, row.estimate, row.n, records)


def continue_beyond(evidence: Evidence) -> Finding | None:
    """The same at loops 17-32: lower than inside in every backbone."""
    found = _continued(evidence)
    if found is None or not (rows := _over(found[1], BEYOND)):
        return None
    (row,), (records, rings, complete) = rows, found
    inside, beyond = (_over(rings, loops, "continuation.backbone") for loops in (INSIDE, BEYOND))
    falls = [one.estimate.value - two.estimate.value for one, two in zip(inside, beyond, strict=True)]
    lower = sum(fall > ROUNDING for fall in falls)
    ours = f"{percent(row.estimate.value)} (17-32); lower than inside in {lower} of {len(falls)}"
    holds = False if lower < len(falls) else True if complete else None
    return Finding(holds, ours, row.estimate, row.n, records)
