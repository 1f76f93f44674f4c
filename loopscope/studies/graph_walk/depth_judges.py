"""Judges of depth extrapolation: continuation, parity, chains of relations, by the predicates fixed for them.

As elsewhere, a claim is judged when all the backbones that it speaks of were measured, or as soon as those that were
leave no choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from loopscope.quantity import Quantity
from loopscope.studies.evidence import ROUNDING, Evidence, Finding, at_least, at_most, listed, mean_of
from loopscope.studies.graph_walk import continuation_curves
from loopscope.studies.graph_walk.continuation import WITHHELD
from loopscope.studies.graph_walk.experiments import CONTINUATION
from loopscope.studies.parity import exact as parity_exact
from loopscope.studies.parity import lengths as parity_lengths
from loopscope.studies.parity.counts import FAR, NATIVE, WITH_J
from loopscope.studies.parity.experiments import PARITY, PARITY_EXACT
from loopscope.studies.parity.lengths import GAIN, GAINED, LIMIT
from loopscope.studies.records import Facts, Predictions, Record, apart, percent
from loopscope.studies.registry import COHORTS
from loopscope.studies.relations import chains
from loopscope.studies.relations.experiments import CHAINS

T = TypeVar("T")


def _of_cohort(found: Mapping[str, T], cohort: str) -> tuple[dict[str, T], bool]:
    """What belongs to a cohort, by backbone, and whether that is all of it."""
    names = COHORTS[cohort].backbones
    mine = {name: found[name] for name in names if name in found}
    return mine, len(mine) == len(names)


# ---- eight nodes -----------------------------------------------------------------------------------------------------

_Counted = tuple[dict[str, Predictions], dict[str, Facts]]


def _continued(evidence: Evidence) -> tuple[list[Record], _Counted, bool] | None:
    """The records with graphs withheld from training, what they counted, and whether all backbones are there."""
    found, complete = _of_cohort(evidence.of(CONTINUATION, WITHHELD), "eight")
    if not found:
        return None
    return list(found.values()), apart(found), complete


def continue_inside(evidence: Evidence) -> Finding | None:
    """J F on single cycles, loops 9-16: at least 90 % in the mean of the twelve backbones."""
    found = _continued(evidence)
    if found is None:
        return None
    records, counted, complete = found
    row = continuation_curves.claim_inside(*counted)
    if row is None:
        return None
    ours = f"{percent(row.estimate.value)} (cycles, loops 9-16)"
    return Finding(at_least(row.estimate.value, 0.90) if complete else None, ours, row.estimate, row.n, records)


def continue_beyond(evidence: Evidence) -> Finding | None:
    """The same at loops 17-32: lower than inside in every backbone."""
    found = _continued(evidence)
    if found is None:
        return None
    records, counted, complete = found
    claimed = continuation_curves.claim_beyond(*counted)
    if claimed is None:
        return None
    row, each = claimed
    lower = sum(beyond < inside - ROUNDING for inside, beyond in each.values())
    ours = f"{percent(row.estimate.value)} (17-32); lower than inside in {lower} of {len(each)}"
    holds = False if lower < len(each) else True if complete else None
    return Finding(holds, ours, row.estimate, row.n, records)


# ---- parity ----------------------------------------------------------------------------------------------------------

NEEDED = 2
"""Backbones that must gain, of three."""


def _gains(records: Mapping[str, Record]) -> dict[str, Quantity]:
    """J minus native over lengths 101-500, of the records that have both."""
    bands = {name: parity_lengths.measured(record.predictions, *GAINED) for name, record in records.items()}
    both = [name for name, band in bands.items() if band is not None and WITH_J in band.conditions]
    return parity_lengths.claim_gain({name: records[name].predictions for name in both})


def parity_gain(evidence: Evidence) -> Finding | None:
    """J above native over lengths 101-500 in at least two of the three backbones."""
    records = evidence.of(PARITY)
    gains, _ = _of_cohort(_gains(records), "parity")
    if not gains:
        return None
    values = [row.estimate.value for row in gains.values()]
    higher, backbones = sum(value > ROUNDING for value in values), len(COHORTS["parity"].backbones)
    ours = f"{higher} of {len(gains)} seeds; J minus native {listed(values)}"
    lost = len(gains) - higher > backbones - NEEDED
    holds = True if higher >= NEEDED else False if lost else None
    n = min(row.n for row in gains.values())
    used = [records[name] for name in gains]
    return Finding(holds, ours, mean_of(list(gains.values())), n, used, of="J minus native")


def parity_limit(evidence: Evidence) -> Finding | None:
    """J not above native over lengths 505-1000, in the backbone that gains most over 101-500.

    Records that have those lengths come before such as do not, also before fresh ones.
    """
    records = evidence.of(PARITY) | evidence.of(PARITY, FAR)
    gains, complete = _of_cohort(_gains(records), "parity")
    if not gains:
        return None
    used = [records[name] for name in gains]
    most = max(gains, key=lambda name: gains[name].estimate.value)
    if parity_lengths.measured(records[most].predictions, *LIMIT) is None:
        ours = f"{most} gains most; lengths {LIMIT[0]}-{LIMIT[1]} not measured"
        return Finding(None, ours, None, gains[most].n, used)
    rows = parity_lengths.at_exit(records[most].predictions, *LIMIT)
    ours = f"{most}: {percent(rows[NATIVE].estimate.value)} vs {percent(rows[WITH_J].estimate.value)}"
    gain = rows[GAIN]
    holds = at_most(gain.estimate.value, 0.0) if complete else None
    shares = {name: row.estimate for name, row in gains.items()}
    gained = ", ".join(
        f"{name} {percent(each.value)} [{percent(each.low)}, {percent(each.high)}]" for name, each in shares.items()
    )
    far = [name for name in gains if parity_lengths.measured(records[name].predictions, *LIMIT) is not None]
    beside = [f"gains over 101-500: {gained}; beyond 500 only {', '.join(far)} was measured"]
    exact = evidence.of(PARITY_EXACT).get(most)
    if exact is not None:
        beside += _in_fp32(parity_exact.compared(exact.predictions, records[most].predictions))
    return Finding(holds, ours, gain.estimate, gain.n, used, of="J minus native", beside=tuple(beside))


def _in_fp32(compared: Sequence[parity_exact.Compared]) -> list[str]:
    """Strings that were run in fp32, too, beside the same ones in fp16."""
    return [
        f"of {each.exact.strings} strings of {each.length} bits, {each.condition}, {each.exact.right} are right in "
        f"fp32 and {each.counted.right} in fp16"
        for each in compared
        if each.counted is not None and each.same
    ]


# ---- chains of relations ---------------------------------------------------------------------------------------------


def chained(evidence: Evidence) -> Record | None:
    """The record of the cohort's backbone with the most fits; of equals the best, as `Evidence.records` has it."""
    (name,) = COHORTS["relations"].backbones
    found = [record for record in evidence.every(CHAINS) if record.facts.name == name]
    return max(reversed(found), key=lambda record: len(chains.outcomes(record.predictions).steered), default=None)


def _outcomes(evidence: Evidence, *ranges: str) -> tuple[Record, bool] | None:
    """That record, if it has lengths of these ranges, and whether it has all fits."""
    record = chained(evidence)
    if record is None:
        return None
    seen = chains.outcomes(record.predictions)
    there = all(seen.places(chains.RANGES[each]) for each in ranges)
    return (record, len(seen.steered) >= len(COHORTS["relations"].fits)) if there else None


def chains_inside(evidence: Evidence) -> Finding | None:
    """Lengths 4-16: at most 10 % without a map and at least 95 % with J, in the mean of three fits."""
    found = _outcomes(evidence, chains.INSIDE)
    if found is None:
        return None
    record, complete = found
    native, steered = chains.claim_inside(record.predictions)
    ours = f"{percent(native.estimate.value)} -> {percent(steered.estimate.value)}"
    holds = at_most(native.estimate.value, 0.10) and at_least(steered.estimate.value, 0.95)
    return Finding(holds if complete else None, ours, steered.estimate, steered.n, [record], of="with J")


def chains_beyond(evidence: Evidence) -> Finding | None:
    """With J, lengths 17-24 below 4-16, and 25-32 at most 10 %."""
    found = _outcomes(evidence, chains.INSIDE, chains.BEYOND, chains.FAR)
    if found is None:
        return None
    record, complete = found
    near, decline, far = chains.claim_beyond(record.predictions)
    ours = f"{percent(near.estimate.value)} (17-24), {percent(far.estimate.value)} (25-32)"
    holds = decline.estimate.value > ROUNDING and at_most(far.estimate.value, 0.10)
    return Finding(holds if complete else None, ours, near.estimate, near.n, [record], of="17-24")
