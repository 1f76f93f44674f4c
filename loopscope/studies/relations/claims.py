"""The claims on chains of relations, each with the predicate that was fixed before our models were trained.

As elsewhere, a claim is judged when all the backbones that it speaks of were measured, or as soon as those that were
leave no choice.
"""

from __future__ import annotations

from loopscope.quantity import Quantity
from loopscope.studies.claim import Claim
from loopscope.studies.evidence import ROUNDING, Evidence, Finding, at_least, at_most
from loopscope.studies.records import Record, percent
from loopscope.studies.registry import COHORTS
from loopscope.studies.relations import chains
from loopscope.studies.relations.experiments import CHAINS


def chained(evidence: Evidence) -> Record | None:
    """The record of the cohort's backbone with the most fits; of equals the best, as `Evidence.records` has it."""
    (name,) = COHORTS["relations"].backbones
    found = [record for record in evidence.every(CHAINS) if record.facts.name == name]
    return max(reversed(found), key=lambda record: len(chains.outcomes(record.predictions).steered), default=None)


def _chained(evidence: Evidence, *ranges: str) -> tuple[Record, bool] | None:
    """That record, if it has lengths of these ranges, and whether it has all fits."""
    record = chained(evidence)
    if record is None:
        return None
    seen = chains.outcomes(record.predictions)
    there = all(seen.places(chains.RANGES[each]) for each in ranges)
    return (record, len(seen.steered) >= len(COHORTS["relations"].fits)) if there else None


def _right(evidence: Evidence, record: Record, lengths: str, condition: str = chains.FINAL) -> Quantity:
    return evidence.one(record, "chains.range", lengths=lengths, condition=condition)


def inside(evidence: Evidence) -> Finding | None:
    """Lengths 4-16: at most 10 % without a map and at least 95 % with J, in the mean of three fits."""
    found = _chained(evidence, chains.INSIDE)
    if found is None:
        return None
    record, complete = found
    native, steered = (_right(evidence, record, chains.INSIDE, each) for each in (chains.NATIVE, chains.FINAL))
    ours = f"{percent(native.estimate.value)} -> {percent(steered.estimate.value)}"
    holds = at_most(native.estimate.value, 0.10) and at_least(steered.estimate.value, 0.95)
    return Finding(holds if complete else None, ours, steered.estimate, steered.n, [record], of="with J")


def beyond(evidence: Evidence) -> Finding | None:
    """With J, lengths 17-24 below 4-16, and 25-32 at most 10 %."""
    found = _chained(evidence, *(ranges := (chains.INSIDE, chains.BEYOND, chains.FAR)))
    if found is None:
        return None
    record, complete = found
    trained, near, far = (_right(evidence, record, each) for each in ranges)
    ours = f"{percent(near.estimate.value)} (17-24), {percent(far.estimate.value)} (25-32)"
    told = {"far": percent(far.estimate.value)}
    holds = trained.estimate.value - near.estimate.value > ROUNDING and at_most(far.estimate.value, 0.10)
    return Finding(holds if complete else None, ours, near.estimate, near.n, [record], of="17-24", told=told)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "kg.inside", "H", "relation composition at 4-16", "2.53 -> 99.92", "<= 10 % without, >= 95 % with J", CHAINS,
        inside,
        finding="With J, chains of 4 to 16 relations are right in {share} %.",
    ),
    Claim(
        "kg.beyond", "H", "declines beyond the map range", "42.87 (17-24), 1.65 (25-32)",
        "17-24 below 4-16, and 25-32 <= 10 %", CHAINS, beyond,
        finding="Beyond the lengths that maps were trained on, {share} % of chains of 17 to 24 are right, and {far} % "
                "of 25 to 32.",
    ),
)  # fmt: skip
