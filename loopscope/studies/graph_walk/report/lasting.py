"""The section on control that lasts: how far maps lead that were fitted on their own states, and what ends it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loopscope.quantity import Quantity, every
from loopscope.studies.evidence import Evidence, at_least
from loopscope.studies.graph_walk import lasting
from loopscope.studies.graph_walk.composition import COPY, INDEPENDENT, long_strings
from loopscope.studies.graph_walk.experiments import LASTING
from loopscope.studies.graph_walk.lasting import AIM, KINDS, PUBLISHED, Counted
from loopscope.studies.records import Record
from loopscope.studies.registry import EXPERIMENTS
from loopscope.studies.report.contents import Figure, Grid, Listing, Section, percent
from loopscope.studies.report.figures import Line, lines_in_panels
from loopscope.studies.report.traces import Panel, Trace, traces
from loopscope.studies.selection import MECHANISM
from loopscope.tasks.populations import population

SHOWN = (1, 2, 4, 8, 16, 32, 64)
"""Calls that tables show."""

TOLD = {"one": "one hop", "two": "two hops", "mixed": "mixed strings"}
MAPPED = (0.93, 8.6)
"""Grey: calls that `rollout` and `strings` maps were trained through."""

LEVEL, TOLD_LEVEL = 0.95, "95 %"
"""Control is kept as long as so many answers are right."""

HOW = (
    "A map that was fitted for one more call meets, at its second call, states that its fit never saw. Other fits of "
    "the same kind of map to the same frozen backbone meet them: `rollout` maps are trained through eight of their own "
    "calls, `pool` maps then on states that they have led through up to 64, `strings` maps for one hop and for two "
    "together, through random strings of both. `published` are the maps of the sections above.",
    "Answers are judged by the walk from u, whatever was answered before, and nothing is reset. A walk comes around to "
    "u now and then, so that copying u is right at some calls: a baseline that is counted, not measured.",
)


@dataclass(frozen=True)
class Measured:
    """One backbone's record and what follows from it."""

    record: Record
    counted: Counted
    evidence: Evidence

    @property
    def name(self) -> str:
        """The backbone's."""
        return self.record.facts.name

    def families(self, kind: str) -> list[str]:
        """The families of maps that were run on strings of a kind."""
        return [family for family, which in self.counted.measured if which == kind]

    def reach(self, family: str, kind: str) -> int:
        """For how many calls a family keeps control."""
        return lasting.reach(self.counted, family, kind, LEVEL)

    def row(self, family: str, kind: str, call: int) -> Quantity:
        """The share right at a call."""
        at = {"family": family, "kind": kind, "counted": "right"}
        return self.evidence.one(self.record, "lasting.call", call=call, **at)

    def copy(self, kind: str, call: int) -> Quantity:
        """The share for which u itself is right."""
        return self.evidence.one(self.record, "lasting.copy", kind=kind, call=call)


def measured(evidence: Evidence) -> list[Measured]:
    """Every backbone that was measured, by number of the seed; the main one has the lowest."""
    return [
        Measured(record, Counted.of(record.predictions, record.facts), evidence)
        for record in evidence.of(LASTING, INDEPENDENT).values()
    ]


def lasting_section(evidence: Evidence) -> Section | None:
    """Control by call, its cost at the first call and its limits, of whatever backbones were measured; None without."""
    found = measured(evidence)
    if not found:
        return None
    figures = [drawn for each in found for drawn in (_by_call(each), _limits(each))]
    kinds = [kind for kind in KINDS if any(each.families(kind) for each in found)]
    first, *others = (limiting(found, kind) for kind in kinds)
    more = [table.under(each.name) for each in found for table in evidence.tables(each.record)]
    text = [aim(found), *HOW, graphs_and_fits(found), reaches(found), *checks(found, evidence)]
    return Section(
        LASTING, "Control that lasts", EXPERIMENTS[LASTING].question, text, figures,
        [*(accuracy(found, kind) for kind in kinds), *costs(found), first], more=[*others, *more],
        finding=finding(found[0]),
    )  # fmt: skip


# ---- in words --------------------------------------------------------------------------------------------------------


def finding(each: Measured) -> str:
    """For how many calls the published maps keep control of one hop, and those that keep it longest."""
    reach = {family: each.reach(family, "one") for family in each.families("one")}
    if not reach:
        return ""
    best = max(reach, key=lambda family: reach[family])
    plain = f"; maps fitted as `{PUBLISHED}`, for {reach[PUBLISHED]}" if PUBLISHED in reach else ""
    return (
        f"On `{each.name}`, maps fitted as `{best}` lead one hop in at least {TOLD_LEVEL} of walks for "
        f"{reach[best]} calls in a row{plain}."
    )


def aim(found: Sequence[Measured]) -> str:
    """Whether the aim is reached on some backbone by some family of maps, by their shares."""
    wanted = " and ".join(f"{100 * share:.0f} % at call {call}" for call, share in AIM.items())
    said = f"The aim, which is ours and no claim of the paper: on at least one backbone, one hop right in {wanted}."
    tried = {
        (each.name, family): {call: each.row(family, "one", call) for call in AIM}
        for each in found
        if each.counted.calls >= max(AIM)
        for family in each.families("one")
    }
    if not tried:
        return f"{said} Not decided: {max(AIM)} calls of one hop were not run."
    margin = {which: min(row.estimate.value - AIM[call] for call, row in rows.items()) for which, rows in tried.items()}
    there = [which for which in tried if at_least(margin[which], 0.0)]
    if there:
        return f"{said} Reached: {'; '.join(_numbers(*which, tried[which]) for which in there)}."
    nearest = max(margin, key=lambda which: margin[which])
    so_far = "" if len(found) >= MECHANISM else f" so far, on {len(found)} of {MECHANISM} backbones"
    return f"{said} Not reached{so_far}; nearest: {_numbers(*nearest, tried[nearest])}."


def _numbers(name: str, family: str, rows: Mapping[int, Quantity]) -> str:
    numbers = (
        f"{percent(row.estimate.value)} [{percent(row.estimate.low)}, {percent(row.estimate.high)}] % at call {call}"
        for call, row in rows.items()
    )
    return f"`{family}` on `{name}`, {', '.join(numbers)}"


def graphs_and_fits(found: Sequence[Measured]) -> str:
    """On how many graphs, strings and fits each backbone was measured."""
    there, strings = len(population(INDEPENDENT).rows), len(long_strings()["mixed"])
    parts = []
    for each in found:
        counted = each.counted
        fits: dict[str, int] = {}
        for family, kind in counted.measured:
            fits[family] = max(fits.get(family, 0), len(counted.found[f"{family} {kind} right"]))
        parts.append(
            f"`{each.name}`: {counted.at.many} of {there} graphs of `{INDEPENDENT}` ({counted.kept:,} instances with "
            f"five distinct labels), {len(counted.strings('mixed'))} of {strings} mixed strings, fits: "
            + ", ".join(f"{family} {number}" for family, number in fits.items())
        )
    return f"Measured on {'; '.join(parts)}."


def reaches(found: Sequence[Measured]) -> str:
    """Up to which call each family keeps control."""
    parts = []
    for each in found:
        families = dict.fromkeys(family for family, _ in each.counted.measured)
        reach = {
            family: [str(each.reach(family, kind)) if family in each.families(kind) else "-" for kind in KINDS]
            for family in families
        }
        parts.append(f"`{each.name}`: " + ", ".join(f"{family} {'/'.join(calls)}" for family, calls in reach.items()))
    kinds = "/".join(TOLD.values())
    return f"Calls for which accuracy stays at {TOLD_LEVEL} or above ({kinds}): {'; '.join(parts)}."


def checks(found: Sequence[Measured], evidence: Evidence) -> list[str]:
    """How what was measured just now on a part agrees with the records that are shown."""
    parts = {record.facts.name: record for record in evidence.in_part if record.experiment == LASTING}
    sentences = []
    for each in found:
        if (record := parts.get(each.name)) is not None:
            part = Counted.of(record.predictions, record.facts)
            same, there = lasting.same_counts(part, each.counted)
            sentences.append(
                f"A check: on the first {part.at.many} graphs, `{each.name}` was measured again. Of {there:,} counts "
                f"of right answers on a graph at a call, {same:,} are those of the stored record; where control is "
                "lost, rounding decides."
            )
    return sentences


# ---- figures ---------------------------------------------------------------------------------------------------------


def _by_call(each: Measured) -> Figure:
    counted, panels = each.counted, {}
    for kind in KINDS:
        lines = [_line(each, family, kind) for family in each.families(kind)]
        if lines:
            panels[TOLD[kind]] = [*lines, _line(each, COPY, kind)]
    caption = (
        f"Right answers at each call after the trained loops, {counted.kept:,} instances. Lines join the calls whose "
        "intervals (bands, over graphs) are known; faint points: every call. Dashed: copying u. Grey: calls that "
        "`rollout` and `strings` maps were trained through."
    )
    title = f"Control by call, {each.name}"
    return lines_in_panels(f"lasting-{each.name}", title, caption, panels, "call", MAPPED, doublings=True)


def _line(each: Measured, family: str, kind: str) -> Line:
    """Of a family of maps, or of copying u."""
    counted, copies = each.counted, family == COPY
    rows = [each.copy(kind, call) if copies else each.row(family, kind, call) for call in counted.marks]
    every = counted.copy_curve(kind) if copies else counted.curve(family, kind)
    dots = [(float(call), share) for call, share in enumerate(every, 1)]
    return Line(family, [row.estimate for row in rows], copies, counted.marks, dots)


def _limits(each: Measured) -> Figure:
    """Of the first kind that was measured, one hop unless there is none."""
    counted = each.counted
    kind = next(kind for kind in KINDS if each.families(kind))
    found = {family: lasting.limits(counted, family, kind) for family in each.families(kind)}
    ring = {family: each.reach(family, kind) for family in found}
    sizes = {
        "length of the ANSWER row": {family: _relative(of.answer) for family, of in found.items()},
        "mean length of graph rows": {family: _relative(of.graph) for family, of in found.items()},
        "how far graph rows have moved": {family: of.drift[1:] for family, of in found.items()},
    }
    panels = [
        Panel(title, "call", [Trace(family, points, ring[family]) for family, points in by_family.items()])
        for title, by_family in sizes.items()
    ]
    spectra = [
        Trace(family, lasting.eigenvalues(counted, family, kind))
        for family in found
        if f"{family} {kind} spectrum" in counted.found
    ]
    if spectra:
        panels.append(Panel("size of J's eigenvalues", "rank", spectra))
    caption = (
        f"{TOLD[kind].capitalize()}. Lengths and distances are shares of the length before the first map; graph rows "
        f"are BOS and the arrows. Rings: the last call up to which {TOLD_LEVEL} or more were right. Above the dotted "
        "line, which is 1, lengths have grown and J stretches."
    )
    return traces(f"lasting-limits-{each.name}", f"What may end control, {each.name}", caption, panels)


def _relative(lengths: Sequence[float]) -> list[float]:
    """Lengths after the first call, the second, ... as shares of the one before."""
    return [length / lengths[0] for length in lengths[1:]]


# ---- tables ----------------------------------------------------------------------------------------------------------


def accuracy(found: Sequence[Measured], kind: str) -> Grid:
    """The share right at the calls of `SHOWN`, a line for each backbone and family, and for copying u."""
    lines: dict[str, dict[str, Quantity]] = {}
    for each in found:
        calls = [call for call in SHOWN if call in each.counted.marks]
        rows = {
            family: {f"call {call}": each.row(family, kind, call) for call in calls} for family in each.families(kind)
        }
        if rows:
            rows[COPY] = {f"call {call}": each.copy(kind, call) for call in calls}
        lines |= {f"{each.name}, {family}": of for family, of in rows.items()}
    columns = list(dict.fromkeys(column for rows in lines.values() for column in rows))
    return Grid(f"Right answers by call, {TOLD[kind]}", columns, lines, "Mean of strings and fits; graphs resampled.")


def costs(found: Sequence[Measured]) -> list[Grid]:
    """The first call of every family less that of the published maps."""
    lines: dict[str, dict[str, Quantity]] = {}
    for each in found:
        for row in every(each.evidence.quantities(each.record), "lasting.cost"):
            lines.setdefault(f"{each.name}, {row.at['family']}", {})[TOLD[str(row.at["kind"])]] = row
    note = "Share right at the first call, less that of the published maps: paired differences; graphs resampled."
    columns = [TOLD[kind] for kind in ("one", "two")]
    return [Grid("What lasting costs at the first call", columns, lines, note)] if lines else []


def limiting(found: Sequence[Measured], kind: str) -> Listing:
    """How far control reaches, beside what may end it: lengths, distances, eigenvalues."""
    lines: dict[str, dict[str, str]] = {}
    for each in found:
        counted = each.counted
        for family in each.families(kind):
            of = lasting.limits(counted, family, kind)
            cells = {f"calls at {TOLD_LEVEL}": str(each.reach(family, kind))}
            for call in sorted({min(8, counted.calls), counted.calls}):
                cells |= {
                    f"ANSWER, call {call}": _size(of.answer[call] / of.answer[0]),
                    f"graph rows, call {call}": _size(of.graph[call] / of.graph[0]),
                    f"moved, call {call}": _size(of.drift[call]),
                }
            if f"{family} {kind} spectrum" in counted.found:
                seen = lasting.spectrum(counted, family, kind)
                cells |= {
                    "largest eigenvalue": _size(seen.radius), "above 1": _size(seen.above_one),
                    "median eigenvalue": _size(seen.median),
                }  # fmt: skip
            lines[f"{each.name}, {family}"] = cells
    columns = list(dict.fromkeys(column for cells in lines.values() for column in cells))
    note = (
        f"Lengths and distances of rows as shares of their length before the first map, on up to {lasting.LOOKED_AT} "
        "graphs with one start each; eigenvalues of J's linear part by size; mean of fits."
    )
    return Listing(f"What may end control, {TOLD[kind]}", columns, lines, note)


def _size(size: float) -> str:
    return f"{size:.3g}" if math.isfinite(size) else "overflow"
