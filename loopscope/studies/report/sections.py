"""The report: records and verdicts become sections, figures and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loopscope.studies import parts
from loopscope.studies.claims import Verdict
from loopscope.studies.evidence import Evidence, in_short
from loopscope.studies.language.records import LANGUAGE
from loopscope.studies.records import Record
from loopscope.studies.registry import COHORTS
from loopscope.studies.report.contents import BOTH, NOW, STORED, Cost, LedgerRow, Report, Section
from loopscope.studies.report.ledger import asides, interval

TITLE = "Shared weights, selected computations: measured again"
LEAD = (
    "A looped transformer applies the same block F again and again. Does every loop then do the same thing? On graph "
    "walks it need not: loops advance by one node, by two, or stay. A learned affine map J on the state that enters a "
    "loop makes the same frozen block take another step, and attention patterns carry that choice. The last "
    "sections ask how far maps lead that are used again and again, beyond the loops and lengths of their training.",
    "Everything below was measured on backbones that were trained by this library. Shares are per cent; intervals are "
    "95 % and resample graphs, unless a row says otherwise; fits of a map are averaged first, then backbones. The "
    "paper's number stands beside ours where it printed one for the same population.",
)


def report_of(evidence: Evidence, verdicts: Sequence[Verdict], log: Callable[[str], None] = lambda _: None) -> Report:
    """The whole page.  Sections without records are left out."""
    made = []
    for name, section in SECTIONS.items():
        log(f"working out {name}")
        if (found := section(evidence)) is not None:
            made.append(replace(found, text=(*found.text, evidence.origin(*EXPERIMENTS_OF.get(name, (name,))))))
    lead = (*LEAD, *_who(evidence), *_spoken(evidence))
    return Report(TITLE, lead, made, [_ledger_row(each) for each in verdicts], _costs(evidence))


def _who(evidence: Evidence) -> list[str]:
    """Which backbones the mechanism experiments were done on, and why."""
    chosen, cohort = evidence.selection, COHORTS["mechanism"]
    if not chosen.names:
        return []
    main, *rest = (f"`{name}`" for name in chosen.names)
    these = f"These are {', '.join([f'{main}, the main one', *rest])}." if rest else f"The main one is {main}."
    besides = "zero and, as too few walk so, three" if chosen.threes else "zero"
    return [
        f"Mechanism backbones are chosen by their native walk alone, before any map is fitted: the first three seeds "
        f"from {cohort.seeds[0]} on whose increments to loops 2 to 6 contain one and two and nothing else but "
        f"{besides}. {these}"
    ]


def _spoken(evidence: Evidence) -> list[str]:
    """That there are language models, too; nothing where there are none."""
    if not any(record.experiment in LANGUAGE for record in evidence.records):
        return []
    return [
        "Looped language models stand at the end, each named with its size; the paper's numbers beside theirs are of "
        "the paper's own models. Their intervals are over independent pairs, sequences or requests."
    ]


def _ledger_row(verdict: Verdict) -> LedgerRow:
    claim = verdict.claim
    origin = ""
    if verdict.fresh or verdict.stored:
        origin = NOW if not verdict.stored else STORED if not verdict.fresh else BOTH
    named = "" if claim.experiment in LANGUAGE else in_short(verdict.backbones)  # whose scale says which
    return LedgerRow(
        claim.id, claim.where, f"{claim.text} (holds if {claim.holds_if})", claim.paper, verdict.verdict, verdict.ours,
        interval(verdict), verdict.n, named, verdict.scale, origin, verdict.command,
        asides(verdict), verdict.protocol or "", verdict.changed, verdict.numerics, claim.kind == "paper",
    )  # fmt: skip


def _costs(evidence: Evidence) -> list[Cost]:
    """What the records measured just now took, or, where there are none, the stored ones."""
    shown = list(evidence.fresh) or evidence.records
    return [
        Cost(
            f"{_asked(record)} on {record.facts.name}", float(record.cost["seconds"]), record.cost["device"],
            record.cost.get("forwards"), record.cost.get("plain"),
        )
        for record in shown
        if record.cost
    ]  # fmt: skip


def _asked(record: Record) -> str:
    """The experiment and, of the letter walk, which part of it."""
    part = record.settings.get("set", record.settings.get("supervision")) if record.experiment in LANGUAGE else None
    return record.experiment if part is None else f"{record.experiment}, {part},"


SECTIONS: Mapping[str, Callable[[Evidence], Section | None]] = {
    name: section for part in parts("report") for name, section in part.SECTIONS.items()
}
"""The sections of all studies, by their anchors."""

EXPERIMENTS_OF: Mapping[str, Sequence[str]] = {
    name: asked for part in parts("report") for name, asked in getattr(part, "EXPERIMENTS_OF", {}).items()
}
"""Of sections that put several experiments together."""
