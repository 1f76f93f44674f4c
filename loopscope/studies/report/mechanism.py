"""Sections on how they do it: what patterns carry, which part of a call decides, what supervision allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loopscope.stats import Estimate
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.graph_walk import crossing, learning, matched, switching
from loopscope.studies.graph_walk.experiments import CROSSING, MATCHED, SWITCHING
from loopscope.studies.records import Record, Table, apart
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.report.contents import Figure, Grid, Section
from loopscope.studies.report.dots import rates
from loopscope.studies.report.figures import components, curves, paired, subsets
from loopscope.tasks.populations import population

# ---- mechanism -------------------------------------------------------------------------------------------------------


def mechanism_section(evidence: Evidence) -> Section | None:
    """Crossing and switching; None without records of the main backbone."""
    crossed, switched = evidence.of(CROSSING), evidence.of(SWITCHING)
    main, exchanged = evidence.main(CROSSING), evidence.main(SWITCHING)
    if main is None and exchanged is None:
        return None
    figures, tables, more = [], [], []
    if crossed:
        shown = {name: record for name, record in crossed.items() if name in evidence.selection.names}
        if shown:
            figures.append(_crossings(evidence, shown))
        found = {name: _crossing_rows(evidence, name, record) for name, record in crossed.items()}
        lines = {table.title: {row.name: row for row in table.rows} for table in found.values()}
        columns = [name for names in SHOWN.values() for name in names]
        note = f"Over the instances that count; {crossing.FITS}"
        tables.append(Grid("Patterns and outputs, every backbone", columns, lines, note))
        for name, record in shown.items():
            more += [table.under(name) for table in evidence.tables(record)]
    for name, record in switched.items():
        figures += [_parts(evidence, name, record), _subsets(evidence, name, record)]
        more += [table.under(name) for table in _switch_tables(evidence, record)]
    text = [
        "All patches act in the one extra call, at its second layer unless another is named. The head is chosen on 32 "
        "pairs of graphs, by how often its pattern leads to E, and tested on other pairs.",
        *_costly_parts(switched),
    ]
    return Section(
        "mechanism", "Mechanism", EXPERIMENTS[CROSSING].question, text, figures, tables,
        decided_by(CROSSING, SWITCHING), more,
    )  # fmt: skip


SHOWN = {
    "Pattern and output": ("pattern -> E", "pattern -> D", "output -> D", "output -> E"),
    "Steering": ("unsteered", "steered", "J->0", "0->J"),
    "Restoration": ("restored, selected", "restored, comparison", "restored, all"),
}


def _crossings(evidence: Evidence, records: Mapping[str, Record]) -> Figure:
    caption = (
        "B: the receiver's own target, D: the giver's, E: the giver's place looked up in the receiver's graph. "
        "Diamonds: the paper, where it printed the number for one backbone."
    )
    panels = [_crossing_rows(evidence, name, record) for name, record in records.items()]
    return rates("crossing", "What patterns and outputs carry", caption, panels)


def _crossing_rows(evidence: Evidence, name: str, record: Record) -> Table:
    rows = [
        row
        for title, names in SHOWN.items()
        for table in evidence.tables(record)
        if table.title.startswith(title)
        for row in table.rows
        if row.name in names
    ]
    head = crossing.head_of(record.predictions, record.facts)
    return Table(f"{name}, head {head}", rows)


def _costly_parts(records: Mapping[str, Record]) -> list[str]:
    """On how many graphs they were exchanged: answers are as long as there were instances."""
    counts = {
        f"{min(map(len, found.values())) // record.facts.nodes} of {len(population(where).rows)}"
        for record in records.values()
        for where, found in record.predictions.items()
    }
    if not counts:
        return []
    said = " or ".join(sorted(counts))
    return [f"Parts outside ANSWER's row of layer 2 need whole layers again; they were exchanged on {said} graphs."]


BETWEEN_MAPS = {"two -> one": "f^2(u)", "one -> two": "f(u)"}
"""Giver and receiver, and the giver's target."""


def _parts(evidence: Evidence, name: str, record: Record) -> Figure:
    panels = {
        arrow: {
            part: {
                place: evidence.row(record, f"Target switching, {arrow}", f"{part}, {place}: {target}").estimate
                for place in switching.LAYERS
            }
            for part in switching.PARTS
        }
        for arrow, target in BETWEEN_MAPS.items()
    }
    caption = (
        "The receiver takes one part of the extra call from the run with the other map; how often it then gives the "
        "giver's target. Queries+keys are the pattern, head outputs the attention output, and the entering state is "
        "everything: three checks that patches do what they say."
    )
    return components(f"switching-{name}", f"Target switching, part by part, {name}", caption, panels)


def _subsets(evidence: Evidence, name: str, record: Record) -> Figure:
    heads = record.facts.heads
    panels: dict[str, dict[tuple[int, ...], Estimate]] = {}
    for arrow in BETWEEN_MAPS:
        title = f"Patterns of some heads of layer 2, {arrow}"
        names = {each: f"heads {' '.join(map(str, each))}: giver's target" for each in switching.subsets(heads)}
        panels[arrow] = {each: evidence.row(record, title, row).estimate for each, row in names.items()}
    caption = "Patterns of these heads of layer 2 are taken from the other run; how often the giver's target comes out."
    return subsets(f"heads-{name}", f"Target switching by subsets of heads, {name}", caption, panels, heads)


def _switch_tables(evidence: Evidence, record: Record) -> list[Table]:
    """Between the two maps: clean runs and the giver's target for every part."""
    found = []
    for table in evidence.tables(record):
        for arrow, target in BETWEEN_MAPS.items():
            if table.title.startswith(f"Target switching, {arrow}"):
                wanted = (f": {target}", "giver's target", "minus clean")
                found.append(replace(table, rows=[row for row in table.rows if row.name.endswith(wanted)]))
    return found


# ---- matched supervision ---------------------------------------------------------------------------------------------


def matched_section(evidence: Evidence) -> Section | None:
    """Matched supervision, whatever backbones of the pairs were measured; None without any."""
    records = evidence.of(MATCHED)
    if not records:
        return None
    predictions, facts = apart(records)
    found = matched.tables(predictions, facts, paper=len(records) == len(COHORTS["matched"].backbones))
    pairs = matched.pairs(predictions, facts)
    figures = []
    panels = {
        f"J_{target}": [(pair.final, pair.stepwise) for pair in pairs if pair.target == target]
        for target in ("one", "two")
    }
    if all(panels.values()):
        figures.append(
            paired(
                "matched", "Final-only and stepwise backbones of the same seeds",
                "Target accuracy after J and one more call; a line joins the two backbones of a seed.", panels,
            )
        )  # fmt: skip
    if (learned := _learned(records)) is not None:
        figures.append(learned)
    text = [
        "Backbones of a pair share their start and every batch and differ in their loss alone: after loop 8, or after "
        f"every loop. Measured: {len(records)} of {len(COHORTS['matched'].backbones)} backbones."
    ]
    longer = [table for table in found if table.title == matched.LONGER and table.rows]
    if longer:
        text.append(
            "The protocol fits every map with 8,000 updates, and where the loss is final-only maps are still learning "
            "then. Some were fitted once more with 32,000."
        )
    rest = [table for table in found[1:] if table.title != matched.LONGER]
    return Section(
        MATCHED, "Matched supervision", EXPERIMENTS[MATCHED].question, text, figures, [*found[:1], *longer],
        decided_by(MATCHED), rest,
    )  # fmt: skip


def _learned(records: Mapping[str, Record]) -> Figure | None:
    """How the maps learned, mean of the fits; None where no record says."""
    titles = {"one": "J_one", "two": "J_two", "one-long": "J_one, longer", "two-long": "J_two, longer"}
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, record in records.items():
        fits = learning.noted(record.notes)
        for target, panel in titles.items():
            mine = [fit for fit in fits if fit.target == target]
            if mine:
                shares = [sum(scores) / len(mine) for scores in zip(*(fit.scores for fit in mine), strict=True)]
                points = list(zip(mine[0].updates, shares, strict=True))
                panels.setdefault(panel, {})[name.removeprefix("matched-")] = points
    if not panels:
        return None
    caption = "Accuracy on the selection graphs, mean of the fits. Where curves still rise, the budget decides."
    return curves("matched-curves", "How the maps learned", caption, panels, "updates")
