"""The claims on iterated functions, each with the predicate that was fixed before our models were trained."""

from __future__ import annotations

from loopscope.studies.claim import Claim
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


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "iterate.continue", "H", "continuing with J and F, five task families", "89.69 vs 28.59 (F only)",
        "long requests: J+F at least 30 points above F only, and above J only and stop",
        ITERATIONS, continued("train"),
        finding="Beyond the trained steps, J and F in turn are right {share} points more often than F alone, from "
                "starts that were trained on.",
    ),
)  # fmt: skip

OURS: tuple[Claim, ...] = (
    Claim(
        "iterate.strict", "H", "the same from starts that neither the backbone nor the map has seen",
        "no starts held out", "as iterate.continue", ITERATIONS, continued("test"), kind="ours",
        finding="From new starts, {share} points more often.",
    ),
)  # fmt: skip
