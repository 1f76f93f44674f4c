"""Judges: what the evidence says on each claim, by the predicate that was fixed for it.

A claim is judged when all the backbones that it speaks of were measured, or as soon as one of them contradicts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from loopscope.stats import Estimate, mean_sd
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
)
from loopscope.studies.graph_walk import composition, matched, targets, trajectories
from loopscope.studies.graph_walk.experiments import (
    CROSSING,
    EIGHT_CALLS,
    MATCHED,
    SWITCHING,
    TARGETS,
    TRAJECTORIES,
    TWO_CALLS,
)
from loopscope.studies.graph_walk.selection import MECHANISM
from loopscope.studies.records import Facts, Predictions, Record, Row, apart, percent
from loopscope.studies.registry import COHORTS

MOST = 0.20
"""The share of a target that a control may give."""


def _rows_of(evidence: Evidence, experiment: str, title: str, name: str) -> tuple[list[Record], list[Row]] | None:
    records = evidence.mechanism(experiment)
    return (records, [evidence.row(record, title, name) for record in records]) if records else None


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


def worst(name: str, holds: Callable[[trajectories.Trajectory], bool], loop: Callable[[Facts], int]) -> Judge:
    """A claim about every native walk, shown by the one with the lowest accuracy at a loop."""

    def judge(evidence: Evidence) -> Finding | None:
        records, complete = _native(evidence)
        if not records:
            return None
        walks = {record.facts.name: trajectories.walk_of(record.predictions, record.facts) for record in records}
        rows = {
            record.facts.name: evidence.row(record, trajectories.ACCURACIES, f"{name}, loop {loop(record.facts)}")
            for record in records
        }
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
    return Finding(verdict, _walkers(walks), None, len(walks), records, beside=beside)


def _walkers(walks: Sequence[trajectories.Walk]) -> str:
    return f"{walks.count('one')} of {len(walks)} one, {walks.count('two')} two, {walks.count('neither')} neither"


# ---- the main backbone -----------------------------------------------------------------------------------------------


def target_one(evidence: Evidence) -> Finding | None:
    """J_one on the main backbone: at least 95 % one-hop answers, 20 points above the call without a map."""
    record = evidence.main(TARGETS)
    if record is None:
        return None
    steered, gain = targets.claim_one(record.predictions, record.facts)
    ours = f"{percent(steered.estimate.value - gain.estimate.value)} -> {percent(steered.estimate.value)}"
    holds = at_least(steered.estimate.value, 0.95) and at_least(gain.estimate.value, 0.20)
    return Finding(holds, ours, steered.estimate, steered.n, [record], controls=_before(record, "one"))


def target_two(evidence: Evidence) -> Finding | None:
    """J_two on the main backbone: at least 90 % two-hop answers."""
    record = evidence.main(TARGETS)
    if record is None:
        return None
    row = targets.claim_two(record.predictions, record.facts)
    holds, ours = at_least(row.estimate.value, 0.90), percent(row.estimate.value)
    return Finding(holds, ours, row.estimate, row.n, [record], controls=_before(record, "two"))


def _before(record: Record, target: str) -> tuple[Control, ...]:
    """What J alone reads out, and what it does to the state of another graph: neither should give the target."""
    found = targets.controls(record.predictions, record.facts, target)
    return tuple(Control(row, MOST, "the target") for row in found)


def one_one(evidence: Evidence) -> Finding | None:
    """J_one twice: at least 80 %, 20 points above leaving out the second."""
    record = evidence.main(TWO_CALLS)
    if record is None:
        return None
    row, gain = composition.claim_one_one(record.predictions, record.facts)
    without = row.estimate.value - gain.estimate.value
    ours = f"{percent(row.estimate.value)} ({percent(without)} without the second map)"
    holds = at_least(row.estimate.value, 0.80) and at_least(gain.estimate.value, 0.20)
    return Finding(holds, ours, row.estimate, row.n, [record])


def order(evidence: Evidence) -> Finding | None:
    """one-two against two-one: the interval of their paired difference must exclude 0."""
    record = evidence.main(TWO_CALLS)
    if record is None:
        return None
    row = composition.claim_order(record.predictions, record.facts)
    shares = [evidence.row(record, "Two calls", composition.spelled(pair)).estimate.value for pair in ("12", "21")]
    ours = f"{percent(shares[0])} vs {percent(shares[1])}"
    spans_zero = at_most(row.estimate.low, 0.0) and at_least(row.estimate.high, 0.0)
    return Finding(not spans_zero, ours, row.estimate, row.n, [record], of="difference")


def decay(evidence: Evidence) -> Finding | None:
    """Repeated J_one below 60 % at call 4, mixed strings at call 8 at most 5 points above answering u."""
    record = evidence.main(EIGHT_CALLS, composition.INDEPENDENT)
    if record is None:
        return None
    fourth, above = composition.claim_decay(record.predictions, record.facts)
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


def patched(what: str, expected: str, other: str) -> Judge:
    """A patch between graphs: at least 60 % of what is expected of it and at most 10 % of the other, in the mean."""

    def judge(evidence: Evidence) -> Finding | None:
        title = "Pattern and output patches"
        found = _rows_of(evidence, CROSSING, title, f"{what} -> {expected}")
        against = _rows_of(evidence, CROSSING, title, f"{what} -> {other}")
        if found is None or against is None:
            return None
        records, rows = found
        mean, wrong = mean_of(rows), mean_of(against[1])
        ours = f"{expected} {percent(mean.value)} ({listed(r.estimate.value for r in rows)}); {other} "
        ours += percent(wrong.value)
        holds = at_least(mean.value, 0.60) and at_most(wrong.value, 0.10)
        return Finding(_if_all(records, holds), ours, mean, min(row.n for row in rows), records)

    return judge


def steered(name: str, clean: str, sign: int) -> Judge:
    """Patterns exchanged with the unsteered run: a mean change of at least 10 points, up or down by `sign`."""

    def judge(evidence: Evidence) -> Finding | None:
        title = "Steering patterns"
        found = _rows_of(evidence, CROSSING, title, name)
        base = _rows_of(evidence, CROSSING, title, clean)
        gains = _rows_of(evidence, CROSSING, title, f"{name} minus {clean}")
        if found is None or base is None or gains is None:
            return None
        records, rows = found
        change, level = mean_of(gains[1]), mean_of(rows)
        ours = f"{percent(mean_of(base[1]).value)} -> {_spread(level)} ({listed(row.estimate.value for row in rows)})"
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
        title, name = f"Target switching, {giver} -> {receiver}", "pattern, layer 2: giver's target"
        found, gains = (_rows_of(evidence, SWITCHING, title, each) for each in (name, f"{name}, minus clean"))
        if found is None or gains is None:
            return None
        records, rows = found
        values, mean = [row.estimate.value for row in rows], mean_of(rows)
        clean = mean.value - mean_of(gains[1]).value
        ours = f"{percent(clean)} -> {percent(mean.value)} ({listed(values)})"
        holds = at_least(mean.value, least) and at_least(min(values), 0.20)
        return Finding(_if_all(records, holds), ours, mean, min(row.n for row in rows), records)

    return judge


def restored(evidence: Evidence) -> Finding | None:
    """The selected head repairs at least 50 %, the comparison head at most 5 %, all heads everything."""
    named = {
        name: _rows_of(evidence, CROSSING, "Restoration", f"restored, {name}")
        for name in ("selected", "comparison", "all")
    }
    found = {name: each[1] for name, each in named.items() if each is not None}
    if len(found) < len(named):
        return None
    means = {name: mean_of(rows) for name, rows in found.items()}
    ours = f"{percent(means['selected'].value)} ({listed(row.estimate.value for row in found['selected'])}) vs "
    ours += f"{percent(means['comparison'].value)}; all heads {percent(means['all'].value)}"
    whole = all(row.estimate.value == 1.0 for row in found["all"])
    holds = at_least(means["selected"].value, 0.50) and at_most(means["comparison"].value, 0.05) and whole
    n = min(row.n for row in found["selected"])
    records = evidence.mechanism(CROSSING)
    return Finding(_if_all(records, holds), ours, means["selected"], n, records)


# ---- matched supervision ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pairs:
    """Both backbones of every seed, complete: accuracies by regime and condition, and the gaps."""

    found: Mapping[str, Record]

    @classmethod
    def of(cls, evidence: Evidence, *targets: str) -> _Pairs | None:
        """None unless every backbone of the cohort was measured, with maps for these targets."""
        known, names = evidence.of(MATCHED), COHORTS["matched"].backbones
        found = {name: known[name] for name in names if name in known and set(targets) <= known[name].facts.fits.keys()}
        return cls(found) if len(found) == len(names) else None

    @property
    def records(self) -> list[Record]:
        return list(self.found.values())

    @property
    def _answers(self) -> tuple[dict[str, Predictions], dict[str, Facts]]:
        return apart(self.found)

    @cached_property
    def accuracy(self) -> dict[str, Row]:
        """Target accuracy of every backbone, by the name of its row."""
        return {row.name: row for row in matched.by_backbone(*self._answers).rows}

    def controls(self, target: str) -> tuple[Control, ...]:
        """What J alone reads out of final-only and of stepwise backbones: the target should come with F."""
        found = matched.read_before(*self._answers, target)
        named = {"matched-final": "final-only", "matched-stepwise": "stepwise"}
        return tuple(
            Control(replace(found[regime], name=f"J alone on {which} backbones"), MOST, "the target")
            for regime, which in named.items()
        )

    def pairs(self, target: str) -> list[matched.Pair]:
        """The gaps of one target."""
        return [pair for pair in matched.pairs(*self._answers) if pair.target == target]

    def rows(self, regime: str, ending: str) -> list[Row]:
        """The rows of a regime's backbones that end so."""
        return [row for name, row in self.accuracy.items() if name.startswith(regime) and name.endswith(ending)]


def matched_native(evidence: Evidence) -> Finding | None:
    """Without a map, final-only backbones stay and stepwise ones advance: 99 % in each of them."""
    found = _Pairs.of(evidence)
    if found is None:
        return None
    stays, advances = found.rows("matched-final", "no map: stay"), found.rows("matched-stepwise", "no map: one")
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
    rows = [found.rows(f"matched-{regime}", "J_one: one") for regime in ("final", "stepwise")]
    final, stepwise = map(mean_of, rows)
    ours = f"{percent(final.value)} vs {percent(stepwise.value)}"
    holds = at_least(stepwise.value, 0.99) and at_least(stepwise.value - final.value, 0.10)
    return Finding(holds, ours, final, rows[0][0].n, found.records, of="final-only", controls=found.controls("one"))


def matched_two(evidence: Evidence) -> Finding | None:
    """Two hops with J: final-only higher in every pair."""
    found = _Pairs.of(evidence, "two")
    if found is None:
        return None
    two = found.pairs("two")
    final, stepwise = (mean_sd([getattr(pair, side) for pair in two]).mean for side in ("final", "stepwise"))
    gap = mean_sd([pair.gap.value for pair in two]).estimate("pair")
    higher = sum(pair.gap.value > ROUNDING for pair in two)
    ours = f"{percent(final)} vs {percent(stepwise)}; higher in {higher} of {len(two)} pairs"
    return Finding(
        higher == len(two),
        ours,
        gap,
        two[0].n,
        found.records,
        of="final-only minus stepwise",
        controls=found.controls("two"),
    )
