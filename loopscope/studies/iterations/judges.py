"""What records of iterations say on the claims: does it take J and F to go beyond the trained steps?"""

from __future__ import annotations

from loopscope.studies.evidence import Evidence, Finding, Judge, at_least
from loopscope.studies.iterations.tables import ALL, LONG, gain
from loopscope.studies.iterations.tests import STARTS
from loopscope.studies.language.judges import deciding, ranked
from loopscope.studies.language.layouts import ITERATIONS
from loopscope.studies.records import Record, percent


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
        closest = ranked(evidence, evidence.every(ITERATIONS))
        return deciding(_continued(evidence, record, split) for record in closest)

    return on_all
