"""Judges of continuation, by the predicates fixed for them.

As elsewhere, a claim is judged when all the backbones that it speaks of were measured, or as soon as those that were
leave no choice.
"""

from __future__ import annotations

from loopscope.studies.evidence import ROUNDING, Evidence, Finding, at_least, of_cohort
from loopscope.studies.graph_walk import continuation_curves
from loopscope.studies.graph_walk.continuation import WITHHELD
from loopscope.studies.graph_walk.experiments import CONTINUATION
from loopscope.studies.records import Facts, Predictions, Record, apart, percent

_Counted = tuple[dict[str, Predictions], dict[str, Facts]]


def _continued(evidence: Evidence) -> tuple[list[Record], _Counted, bool] | None:
    """The records with graphs withheld from training, what they counted, and whether all backbones are there."""
    found, complete = of_cohort(evidence.of(CONTINUATION, WITHHELD), "eight")
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
