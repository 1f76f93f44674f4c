"""Sections on how they do it: what patterns carry, which part of a call decides, what supervision allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loopscope.quantity import At, QuantityTable, every
from loopscope.stats import Estimate
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.graph_walk import crossing, learning, matched_tables, switching
from loopscope.studies.graph_walk.experiments import CROSSING, MATCHED, SWITCHING
from loopscope.studies.records import Record, apart
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
        first = {name: record for name, record in shown.items() if record is main}
        rest = {name: record for name, record in shown.items() if record is not main}
        figures += [
            _crossings(evidence, these, name, title)
            for these, name, title in (
                (first, "crossing", "What patterns and outputs carry"),
                (rest, "crossing-others", "What patterns and outputs carry in other backbones"),
            )
            if these
        ]
        found = [_crossing_rows(evidence, name, record) for name, record in crossed.items()]
        lines = {table.title: {row.label: row for row in table.rows} for table in found}
        columns = list(dict.fromkeys(column for rows in lines.values() for column in rows))
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


SHOWN: Sequence[tuple[str, At]] = (
    *(
        ("crossing.patch", {"part": part, "answer": answer})
        for part, answer in (("pattern", "E"), ("pattern", "D"), ("output", "D"), ("output", "E"))
    ),
    *(("crossing.steering", {"run": run}) for run in ("unsteered", "steered", "J->0", "0->J")),
    *(("crossing.restored", {"heads": heads}) for heads in ("selected", "comparison", "all")),
)
"""What is shown of every backbone, by id and coordinates."""


def _crossings(evidence: Evidence, records: Mapping[str, Record], name: str, title: str) -> Figure:
    caption = (
        "B: the receiver's own target, D: the giver's, E: the giver's place looked up in the receiver's graph. "
        "J->0: the run without a map takes the pattern of the one with it; 0->J: the reverse. "
        "Diamonds: the paper, where it printed the number for one backbone."
    )
    return rates(name, title, caption, [_crossing_rows(evidence, *each) for each in records.items()])


def _crossing_rows(evidence: Evidence, name: str, record: Record) -> QuantityTable:
    rows = [evidence.one(record, id, **at) for id, at in SHOWN]
    head = crossing.head_of(record.predictions, record.facts)
    return QuantityTable("crossing.shown", f"{name}, head {head}", rows)


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


BETWEEN_MAPS = {("two", "one"): "f^2(u)", ("one", "two"): "f(u)"}
"""Giver and receiver, and the giver's target."""


def _parts(evidence: Evidence, name: str, record: Record) -> Figure:
    panels: dict[str, dict[str, dict[str, Estimate]]] = {}
    for (giver, receiver), target in BETWEEN_MAPS.items():
        panel = panels.setdefault(f"{giver} -> {receiver}", {})
        for row in every(evidence.quantities(record), "switching.part", giver=giver, receiver=receiver, answer=target):
            panel.setdefault(str(row.at["part"]), {})[str(row.at["layers"])] = row.estimate
    caption = (
        "The receiver takes one part of the extra call from the run with the other map; how often it then gives the "
        "giver's target. Queries+keys are the pattern, head outputs the attention output, and the entering state is "
        "everything: three checks that patches do what they say."
    )
    return components(f"switching-{name}", f"Target switching, part by part, {name}", caption, panels)


def _subsets(evidence: Evidence, name: str, record: Record) -> Figure:
    heads = record.facts.heads
    panels: dict[str, dict[tuple[int, ...], Estimate]] = {}
    for giver, receiver in BETWEEN_MAPS:
        at = {"giver": giver, "receiver": receiver, "target": "giver"}
        panels[f"{giver} -> {receiver}"] = {
            each: evidence.one(record, "switching.heads", heads=" ".join(map(str, each)), **at).estimate
            for each in switching.subsets(heads)
        }
    caption = "Patterns of these heads of layer 2 are taken from the other run; how often the giver's target comes out."
    return subsets(f"heads-{name}", f"Target switching by subsets of heads, {name}", caption, panels, heads)


def _switch_tables(evidence: Evidence, record: Record) -> list[QuantityTable]:
    """Between the two maps: clean runs and the giver's target for every part."""
    found = []
    for table in evidence.tables(record):
        first = table.rows[0].at
        target = BETWEEN_MAPS.get((str(first["giver"]), str(first["receiver"])))
        if table.id == "switching.direction" and target is not None:
            rows = [row for row in table.rows if row.at.get("answer", target) == target and "fit" not in row.at]
            found.append(replace(table, rows=rows))
    return found


# ---- matched supervision ---------------------------------------------------------------------------------------------


def matched_section(evidence: Evidence) -> Section | None:
    """Matched supervision, whatever backbones of the pairs were measured; None without any."""
    records = evidence.of(MATCHED)
    if not records:
        return None
    predictions, facts = apart(records)
    found = matched_tables.tables(predictions, facts, paper=len(records) == len(COHORTS["matched"].backbones))
    pairs = matched_tables.pairs(predictions, facts)
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
    first, *others = found
    longer = [table for table in others if table.id == "matched.longer"]
    if longer:
        text.append(
            "The protocol fits every map with 8,000 updates, and where the loss is final-only maps are still learning "
            "then. Some were fitted once more with 32,000."
        )
    return Section(
        MATCHED, "Matched supervision", EXPERIMENTS[MATCHED].question, text, figures, [first, *longer],
        decided_by(MATCHED), [table for table in others if table not in longer],
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
