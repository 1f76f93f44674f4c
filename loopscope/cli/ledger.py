"""The ledger of claims as commands print it: sentences, a table, one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loopscope.cli.app import print_table, prose, say

if TYPE_CHECKING:
    from loopscope.stats import Estimate
    from loopscope.studies.claims import Verdict
    from loopscope.studies.evidence import Control


def print_ledger(verdicts: Sequence[Verdict], as_table: bool = False) -> None:
    """A sentence for every claim, with controls that fail, by study, then the tally; or all of it as a table."""
    if as_table:
        return _print_table(verdicts)
    from loopscope.studies.measured import study_of
    from loopscope.studies.report.ledger import failing, summary

    groups: dict[str, list[Verdict]] = {}
    for each in verdicts:
        groups.setdefault(study_of(each.claim.experiment) if each.claim.experiment else "other", []).append(each)
    for study, members in groups.items():
        say(study)
        for each in members:
            prose(sentence(each), "    ", "  ")
            for failed in failing(each):
                prose(f"{failed}.", "      ", "    ")
        say("")
    if any(each.claim.kind == "paper" for each in verdicts):
        prose(f"{summary(verdicts)}.")
    prose(
        "Shares in %, with 95 % intervals or ± SD over backbones. `--table` also has what other records say and what "
        "was changed."
    )


def sentence(verdict: Verdict) -> str:
    """A claim, whether it holds, our number and the published one."""
    from loopscope.studies.closeness import CHANGED
    from loopscope.studies.report.ledger import interval

    claim = verdict.claim
    changed = ", at a changed protocol" if verdict.protocol == CHANGED else ""
    ours = " (a row of ours, not counted)" if claim.kind == "ours" else ""
    first = f"{verdict.verdict.capitalize()}{changed}: {claim.text}{ours}."
    found = ", ".join(filter(None, (verdict.ours, interval(verdict))))
    return f"{first} {f'Here {found}; published' if found else 'Published'}: {claim.paper}. [{claim.id}]"


def _print_table(verdicts: Sequence[Verdict]) -> None:
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
            prose(f"{each.claim.id}: {said}", "  ", "")
    for changed, number in lists.items():
        prose(f"changed ({number}): {'; '.join(changed)}", "  ", "")


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
        "name": row.label, "gives": each.gives, "estimate": _estimate(row.estimate), "n": row.n, "paper": row.published,
        "at least" if each.keeps else "at most": each.bound, "failed": each.failed,
    }  # fmt: skip


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {name: None if value != value else value for name, value in asdict(estimate).items()}
