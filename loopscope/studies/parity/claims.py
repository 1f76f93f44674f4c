"""The claims on parity, each with the predicate that was fixed before our models were trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopscope.quantity import Quantity
from loopscope.studies.claim import Claim
from loopscope.studies.evidence import ROUNDING, Evidence, Finding, at_most, listed, mean_of, of_cohort
from loopscope.studies.parity import exact as parity_exact
from loopscope.studies.parity import lengths as parity_lengths
from loopscope.studies.parity.counts import FAR, NATIVE, WITH_J
from loopscope.studies.parity.experiments import PARITY, PARITY_EXACT
from loopscope.studies.parity.lengths import GAIN, GAINED, LIMIT
from loopscope.studies.records import Record, percent
from loopscope.studies.registry import COHORTS

NEEDED = 2
"""Backbones that must gain, of three."""


def _gains(records: Mapping[str, Record]) -> dict[str, Quantity]:
    """J minus native over lengths 101-500, of the records that have both."""
    bands = {name: parity_lengths.measured(record.predictions, *GAINED) for name, record in records.items()}
    both = [name for name, band in bands.items() if band is not None and WITH_J in band.conditions]
    return parity_lengths.gains_of({name: records[name].predictions for name in both})


def parity_gain(evidence: Evidence) -> Finding | None:
    """J above native over lengths 101-500 in at least two of the three backbones."""
    records = evidence.of(PARITY)
    gains, _ = of_cohort(_gains(records), "parity")
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
    gains, complete = of_cohort(_gains(records), "parity")
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


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "parity.gain", "A", "J improves lengths 101-500", "3 of 3 seeds", "at least 2 of 3", PARITY,
        parity_gain,
        finding="At lengths of 101 to 500, beyond those trained, J adds {share} points on average.",
    ),
    Claim(
        "parity.limit", "A", "the gain does not last beyond 500", "47.55 vs 36.40",
        "J not above native over 505-1000 for the seed with the largest gain", PARITY, parity_limit,
        finding="Beyond 500 it adds {share} points.",
    ),
)  # fmt: skip
