"""The report: records and verdicts become sections, figures and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from string import Formatter

from loopscope.log import Log, silent
from loopscope.studies import parts
from loopscope.studies.claims import Verdict
from loopscope.studies.evidence import Evidence, in_short
from loopscope.studies.records import Record
from loopscope.studies.registry import COHORTS, LANGUAGE
from loopscope.studies.report.contents import BOTH, NOW, STORED, Cost, LedgerRow, Report, Section, percent
from loopscope.studies.report.ledger import asides, failing, interval

TITLE = "Shared weights, selected computations: measured again"
LEAD = (
    "A [[looped transformer]] applies one block of layers, [[F]], again and again; each time is a [[loop]]. Does every "
    "loop do the same thing, and can a small learned map [[J]], put before a loop, choose what the same frozen block "
    "does next? A trained model without a map is a [[backbone]]; `d8l6-5` learned walks of 8 hops in 6 loops, seed 5.",
    "The paper says that on graph walks loops advance by one node, by two, or stay; that J makes the block take "
    "another step, and that attention patterns carry that choice. The later sections ask how far maps lead that are "
    "used again and again, beyond the loops and lengths of their training.",
    "Everything here was measured on backbones that were trained by this library. Shares are per cent; intervals are "
    "95 % and resample graphs, unless a row says otherwise; fits of a map are averaged first, then backbones. The "
    "paper's number stands beside ours where it printed one for the same population.",
)

TERMS = {
    "F": "the block of transformer layers that is applied in every loop, always with the same weights",
    "loop, call": "one application of F; the state after loop 6 is h6",
    "budget": "the number of loops that a backbone was trained with",
    "J": "an affine map on the state, fitted while F stays frozen; J_one is fitted for one hop, J_two for two",
    "s, f, u": "the start of a walk, the step along an edge, and the node u that the walk has reached: f(u) is one hop "
    "on, f^2(u) two",
    "backbone": "a trained looped model without any map; d8l6-5 was trained on walks of 8 hops with 6 loops, seed 5",
    "cohort": "backbones of one recipe that differ in their seed alone",
    "native": "of a backbone without map and without patch",
    "pattern, output": "where an attention head looks, and what it brings back",
    "patch": "putting a part of one run, the giver's, into another, the receiver's",
    "B, D, E": "answers after a patch: the receiver's own, the giver's, and the giver's place looked up in the "
    "receiver's graph",
    "protocol": "how a claim was measured: as published, scaled to a smaller model, or changed",
}
"""Words of the pages and what they mean."""


def report_of(evidence: Evidence, verdicts: Sequence[Verdict], log: Log = silent) -> Report:
    """All pages.  Sections without records are left out."""
    made, by_id = [], {each.claim.id: each for each in verdicts}
    for name, section in SECTIONS.items():
        log(f"working out {name}")
        if (found := section(evidence)) is not None:
            text = (*found.text, evidence.origin(*EXPERIMENTS_OF.get(name, (name,))))
            made.append(replace(found, text=text, finding=found.finding or finding(found.claims, by_id)))
    lead = (*LEAD, *_who(evidence), *_language_models(evidence))
    opening = [figure for part in parts("report") if hasattr(part, "OPENING") for figure in part.OPENING(evidence)]
    rows = [_ledger_row(each) for each in verdicts]
    return Report(TITLE, lead, made, rows, _costs(evidence), opening, TERMS, answer(by_id))


def answer(verdicts: Mapping[str, Verdict]) -> str:
    """What the first screen says of what came out: the sentences of claims in short that have their numbers."""
    return " ".join(filter(None, (_sentence(each, each.claim.in_short) for each in verdicts.values())))


UNDECIDED = "The records that are here do not decide it."


def finding(claims: Sequence[str], verdicts: Mapping[str, Verdict]) -> str:
    """The sentences of those of these claims that were measured, or that there are none.

    Where no claim has a sentence with its numbers, the texts of all are told, with what was measured.
    """
    rows = [verdicts[claim] for claim in claims]
    said = list(filter(None, (_sentence(each, each.claim.finding) for each in rows)))
    return " ".join(said or [f"{each.claim.text}: {each.ours}." for each in rows if each.ours]) or UNDECIDED


def _sentence(verdict: Verdict, text: str) -> str:
    """A sentence with the numbers of a verdict; nothing where one is missing."""
    share = math.nan if verdict.estimate is None else verdict.estimate.value
    numbers = {**verdict.told, **({} if math.isnan(share) else {"share": percent(share)})}
    asked = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    return text.format(**numbers) if asked <= numbers.keys() else ""


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


def _language_models(evidence: Evidence) -> list[str]:
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
        asides(verdict), verdict.protocol or "", verdict.changed, verdict.numerics, claim.kind == "paper", claim.text,
        failing(verdict),
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
