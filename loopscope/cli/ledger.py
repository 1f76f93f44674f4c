"""The ledger of claims as commands print it: a table for a terminal, one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loopscope.cli.app import print_table, say

if TYPE_CHECKING:
    from loopscope.stats import Estimate
    from loopscope.studies.claims import Verdict
    from loopscope.studies.evidence import Control


def print_ledger(verdicts: Sequence[Verdict]) -> None:
    """The table, then what stands beside its rows, and what was changed of the protocol."""
    from loopscope.studies.report.ledger import asides, known_changes, protocol, summary

    lists = known_changes(verdicts)
    print_table(
        f"{summary(verdicts)} (shares in %, intervals 95 % over graphs or ± SD over backbones)",
        ("claim", "paper", "ours", "verdict"),
        ((each.claim.id, each.claim.paper, _ours(each), (each.verdict, protocol(each, lists))) for each in verdicts),
        left=4,
    )
    for each in verdicts:
        for said in asides(each, lists):
            say(f"{each.claim.id}: {said}")
    for changed, number in lists.items():
        say(f"changed ({number}): {'; '.join(changed)}")


def _ours(verdict: Verdict) -> tuple[str, ...]:
    """Our number, its interval, and how many instances it is of, a line each."""
    from loopscope.studies.report.ledger import interval

    counted = "" if verdict.n is None else f"n = {verdict.n:,}"
    return tuple(filter(None, (verdict.ours, interval(verdict), counted)))


def as_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict; JSON has no NaN, so a number that could not be estimated is null."""
    claim = verdict.claim
    return {
        "id": claim.id, "kind": claim.kind, "section": claim.where, "claim": claim.text, "paper": claim.paper,
        "holds_if": claim.holds_if, **_found(verdict), "others": [_found(each) for each in verdict.others],
        "command": verdict.command,
    }  # fmt: skip


def _found(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.verdict, "ours": verdict.ours, "estimate": _estimate(verdict.estimate), "of": verdict.of,
        "n": verdict.n, "protocol": verdict.protocol, "changed": list(verdict.changed),
        "numerics": list(verdict.numerics), "controls": list(map(_control, verdict.controls)),
        "beside": list(verdict.beside), "backbones": verdict.backbones, "scale": verdict.scale,
        "records": {"measured now": verdict.fresh, "results": verdict.stored},
    }  # fmt: skip


def _control(each: Control) -> dict[str, Any]:
    row = each.row
    return {
        "name": row.name, "gives": each.gives, "estimate": _estimate(row.estimate), "n": row.n, "paper": row.paper,
        "at least" if each.keeps else "at most": each.bound, "failed": each.failed,
    }  # fmt: skip


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {name: None if value != value else value for name, value in asdict(estimate).items()}
