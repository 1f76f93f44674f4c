"""The ledger in words: how many claims hold at which protocol, and all of it as a Markdown table.

`docs/ledger.md` shows what `markdown` gives, word for word.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from loopscope.studies.claims import FAILS, HOLDS, NOT_RUN, Verdict
from loopscope.studies.closeness import CHANGED
from loopscope.studies.evidence import Control
from loopscope.studies.records import percent

COUNTED = 1e-6
"""A share times n is a count up to float rounding."""


def summary(verdicts: Iterable[Verdict]) -> str:
    """How many of the paper's claims hold, and not, at its own protocol and at a changed one."""
    every = [each for each in verdicts if each.claim.kind == "paper"]
    said = []
    for which, words in ((HOLDS, "hold"), (FAILS, "do not hold")):
        found = [each for each in every if each.verdict == which]
        changed = sum(each.protocol == CHANGED for each in found)
        said.append(f"{len(found) - changed} {words} at the paper's protocol, {changed} at a changed one")
    if missing := sum(each.verdict == NOT_RUN for each in every):
        said.append(f"{missing} not run")
    return f"{len(every)} claims: {'; '.join(said)}"


def interval(verdict: Verdict) -> str:
    """The interval of a verdict's estimate or the SD over backbones, and what it is of where `ours` shows more."""
    each = verdict.estimate
    if each is None or math.isnan(each.low):
        return ""
    found = f"[{percent(each.low)}, {percent(each.high)}]"
    if "SD" in each.unit:
        found = f"± {percent(each.high - each.value)} SD over {each.n} {each.unit.split(',')[0]}s"
    return f"{verdict.of} {found}" if verdict.of else found


def control(each: Control) -> str:
    """A failed control: what it gives, beside the paper's."""
    row = each.row
    paper = "" if row.published is None else f" (paper {_times(row.published, row.n)})"
    count = _times(row.estimate.value, row.n)
    if each.keeps:
        return f"control fails: the same at {row.label} leaves {count}{paper}"
    return f"control fails: {row.label} gives {each.gives} in {count}{paper}"


def failing(verdict: Verdict) -> list[str]:
    """The controls that failed, a line for each record: those of the effect itself, and of what other records gave."""
    own = ["; ".join(map(control, verdict.failed))] if verdict.failed else []
    return own + [
        f"beside, {', '.join(each.models)}: {each.ours}; {'; '.join(map(control, each.failed))}"
        for each in verdict.others
        if each.failed
    ]


def _times(share: float, n: int) -> str:
    """How often, as a count where it is one; a mean over fits or backbones is told in per cent."""
    count = round(share * n)
    return f"{count:,} of {n:,}" if abs(share * n - count) < COUNTED else f"{percent(share)} %"


Lists = Mapping[tuple[str, ...], int]
"""Lists of what was changed, by their numbers in a ledger that prints them below."""


def asides(verdict: Verdict, lists: Lists = MappingProxyType({})) -> list[str]:
    """What stands in the row beside its number: failed controls, remarks, what other records gave by which protocol."""
    found = [*map(control, verdict.failed), *verdict.beside]
    for each in verdict.others:
        fails = "".join(f"; {control(failed)}" for failed in each.failed)
        found.append(f"{', '.join(each.models)}: {each.ours}, {each.verdict}, {protocol(each, lists)}{fails}")
    return found


def known_changes(verdicts: Iterable[Verdict]) -> dict[tuple[str, ...], int]:
    """The lists of what was changed, numbered as they come."""
    every = [each for verdict in verdicts for each in (verdict, *verdict.others)]
    return {changed: number for number, changed in enumerate(_once(each.changed for each in every), 1)}


def protocol(verdict: Verdict, lists: Lists) -> str:
    """The label of a verdict, with the number of its list of changes, where that has one."""
    number = f" ({lists[verdict.changed]})" if verdict.changed in lists else ""
    return f"{verdict.protocol}{number}" if verdict.protocol else ""


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The sum, the table of claims, that of our own rows, what was changed, and the numerics."""
    lists = known_changes(verdicts)
    papers, ours = ([each for each in verdicts if each.claim.kind == kind] for kind in ("paper", "ours"))
    parts = [f"{summary(verdicts)}.", _table(papers, lists)]
    if ours:
        parts += ["Rows of ours, not counted among these:", _table(ours, lists)]
    if lists:
        parts += ["What was changed:", "\n".join(f"{number}. {'; '.join(each)}." for each, number in lists.items())]
    if known := _once((each,) for verdict in verdicts for each in verdict.numerics):
        lines = (f"- {text} ({_claims(verdicts, text)})" for (text,) in known)
        parts += ["Numerics, which change no label:", "\n".join(lines)]
    return "\n\n".join(parts)


def _table(verdicts: Iterable[Verdict], lists: Lists) -> str:
    lines = ["| claim | paper | ours | verdict | protocol |", "|---|---|---|---|---|"]
    for each in verdicts:
        who = f"{', '.join(each.models)}: " if each.models else ""
        number = [who + each.ours, interval(each), "" if each.n is None else f"n = {each.n:,}"]
        ours = "<br>".join([", ".join(filter(None, number)), *asides(each, lists)])
        claim = f"`{each.claim.id}`: {each.claim.text}"
        lines.append(f"| {claim} | {each.claim.paper} | {ours} | {each.verdict} | {protocol(each, lists)} |")
    return "\n".join(lines)


def _claims(verdicts: Sequence[Verdict], text: str) -> str:
    """The rows that a text of numerics is about, a group as a whole where it is: `letter.*`."""
    groups: dict[str, list[Verdict]] = {}
    for each in verdicts:
        groups.setdefault(each.claim.id.partition(".")[0], []).append(each)
    said = []
    for group, members in groups.items():
        mine = [each.claim.id for each in members if text in each.numerics]
        said += [f"`{group}.*`"] if len(mine) == len(members) > 1 else [f"`{each}`" for each in mine]
    return ", ".join(said)


def _once(lists: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return list(dict.fromkeys(each for each in lists if each))
