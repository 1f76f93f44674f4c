"""The section on continuation: how far maps lead beyond the loops of their training."""

from __future__ import annotations

from collections.abc import Sequence

from loopscope.quantity import Quantity, QuantityTable
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import ROUNDING, Evidence
from loopscope.studies.graph_walk import continuation, continuation_curves
from loopscope.studies.graph_walk.experiments import CONTINUATION
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.report.contents import Figure, Grid, Section
from loopscope.studies.report.figures import Line, lines_in_panels
from loopscope.tasks.populations import population

WALKED = range(9, 41)
"""Loops beyond the trained ones that the broad sample is shown for."""

MAPPED = (8.5, 16.5)
"""Grey: loops that maps were trained for, beyond the backbone's own."""


def continuation_section(evidence: Evidence) -> Section | None:
    """Eight-node continuation of whatever backbones were measured; None without any."""
    records = evidence.of(CONTINUATION)
    if not records:
        return None
    whole = set(COHORTS["eight"].backbones) <= records.keys()
    facts = {name: record.facts for name, record in records.items()}
    figures, more, text = [], [], []
    tables: list[QuantityTable | Grid] = []
    for where in (continuation.BROAD, continuation.WITHHELD):
        found = {name: record.predictions for name, record in records.items() if where in record.predictions}
        if not found:
            continue
        made = continuation_curves.tables(found, facts, where, paper=whole)
        counts = sorted({int(each[where][continuation.INSTANCES].sum()) // facts[name].nodes
                         for name, each in found.items()})  # fmt: skip
        text.append(
            f"{len(found)} of {len(COHORTS['eight'].backbones)} backbones were asked about "
            f"{' or '.join(f'{count:,}' for count in counts)} of {len(population(where).rows):,} graphs of `{where}`."
        )
        if where == continuation.BROAD:
            curve = continuation_curves.curves(found, facts, where)
            figures.append(_continued(curve))
            text += _above(curve)
        else:
            figures.append(_strict(continuation_curves.strict_curves(found, facts, where)))
            tables += [_by_backbone(table) for table in made if table.id == "continuation.backbone"]
        shown = ["continuation.accuracy", "continuation.strict"]
        tables += [table for each in shown for table in made if table.id == each]
        shown += ["continuation.backbone"] if where == continuation.WITHHELD else []
        more += [table for table in made if table.id not in shown]
    how = (
        "Maps stand before every call and were trained to make loop t answer f^t(s) up to t = 16. The walk goes around "
        "the cycle of the start, so an answer that never moves is right now and then: holding f^8(s) is a baseline "
        "that is counted, not measured. Strict accuracy counts only starts for which it is wrong."
    )
    return Section(
        CONTINUATION, "Eight-node continuation", EXPERIMENTS[CONTINUATION].question, [how, *text], figures, tables,
        decided_by(CONTINUATION), more,
    )  # fmt: skip


def _continued(found: Sequence[continuation_curves.Curve]) -> Figure:
    panels: dict[str, list[Line]] = {}
    for curve in found:
        points = [(loop, each) for loop, each in zip(curve.loops, curve.estimates, strict=True) if loop in WALKED]
        line = Line(
            curve.condition, [each for _, each in points], curve.condition == continuation_curves.HOLD,
            [loop for loop, _ in points],
        )  # fmt: skip
        panels.setdefault(f"{curve.group}, {curve.n:,} instances", []).append(line)
    caption = (
        "Loop t is judged by f^t(s). Mean over maps, then backbones; bands resample backbones (of one alone: from its "
        "lowest run to its highest). Grey: loops that maps were trained for."
    )
    return lines_in_panels("continuation", "Beyond the trained loops", caption, panels, "loop", MAPPED)


def _strict(found: Sequence[continuation_curves.Curve]) -> Figure:
    controls = (continuation_curves.J_ALONE, continuation_curves.J_MOVED)
    lines = []
    for curve in found:
        points = [each for each in zip(curve.loops, curve.estimates, strict=True) if each[0] >= WALKED.start]
        lines.append(
            Line(curve.condition, [each for _, each in points], curve.condition in controls, [at for at, _ in points])
        )
    caption = (
        "Only starts with f^t(s) other than f^8(s) count. Bands resample backbones, one map for each, and graphs. J "
        "alone never calls F; J moved hands F what J made of another graph. Grey: loops that maps were trained for."
    )
    panel = {f"strict accuracy, up to {max(curve.n for curve in found)} graphs": lines}
    return lines_in_panels("continuation-strict", "Strict accuracy", caption, panel, "loop", MAPPED)


def _above(found: Sequence[continuation_curves.Curve]) -> list[str]:
    """Up to which loop the map is better than holding still, in words, for each group of graphs."""
    curve = {(each.group, each.condition): each for each in found}
    said = []
    for group in dict.fromkeys(each.group for each in found):
        steered, held = (curve[group, each] for each in (continuation_curves.STEERED, continuation_curves.HOLD))
        last = WALKED.start - 1
        for loop, ours, base in zip(steered.loops, steered.estimates, held.estimates, strict=True):
            if loop == last + 1 and (ours.low > base.value + ROUNDING or base.value == 1):  # nothing is above all
                last = loop
        said.append(f"{last} on {group}" if last in WALKED else f"none on {group}")
    return [f"From loop 9 on, J F is above holding, interval and all, up to loop {', '.join(said)}."]


def _by_backbone(table: QuantityTable) -> Grid:
    """A line for each backbone."""
    lines: dict[str, dict[str, Quantity]] = {}
    for row in table.rows:
        column = f"{row.at['group']}, loops {row.at['first']}-{row.at['last']}"
        lines.setdefault(str(row.at["backbone"]), {})[column] = row
    columns = list(dict.fromkeys(column for rows in lines.values() for column in rows))
    return Grid(table.title, columns, lines, table.note)
