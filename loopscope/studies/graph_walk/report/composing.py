"""The section on composition: which nodes two calls answer, how long maps keep control, and on how many backbones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from loopscope.quantity import Quantity, QuantityTable, every
from loopscope.stats import Estimate
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.graph_walk import composition, independent
from loopscope.studies.graph_walk.experiments import EIGHT_CALLS, INDEPENDENT, TWO_CALLS
from loopscope.studies.records import Record
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.report.contents import Figure, Grid, Section, percent
from loopscope.studies.report.dots import rates
from loopscope.studies.report.figures import Line, lines_by_call, lines_in_panels, stacked_answers

ASKED = (TWO_CALLS, EIGHT_CALLS, INDEPENDENT)
"""The experiments of the section."""


def composition_section(evidence: Evidence) -> Section | None:
    """Two calls and eight; None without records of the main backbone."""
    two, main = evidence.of(TWO_CALLS), evidence.main(TWO_CALLS)
    eight = {where: evidence.main(EIGHT_CALLS, where) for where in (composition.INDEPENDENT, composition.ORIGINAL)}
    if main is None and not any(eight.values()):
        return None
    figures: list[Figure] = []
    tables: list[Grid] = []
    more: list[QuantityTable] = []
    if main is not None:
        found = {table.id: table for table in evidence.tables(main)}
        alone = every(found["compose.added"].rows, "compose.first_alone")
        figures.append(
            rates(
                "two-calls", f"Two calls, {main.facts.name}",
                "Targets count from u. Diamonds: the paper's backbone. Below: the same targets without the second map.",
                [found["compose.two"], replace(found["compose.added"], rows=alone)],
            )
        )  # fmt: skip
        for where in main.predictions:
            landed = _landed(every(evidence.quantities(main), "compose.landed", where=where))
            figures.append(_answers(main, landed, where))
            tables.append(_by_node(main, landed, where))
        more += [table.under(main.facts.name) for table in evidence.tables(main)]
    pairs = {composition.spelled(pair): pair for pair in composition.PAIRS}
    lines = {
        name: {label: evidence.one(record, "compose.two", string=pair) for label, pair in pairs.items()}
        for name, record in two.items()
    }
    if lines:
        tables.append(Grid("Two maps in a row, every backbone", list(pairs), lines, composition.NOTE))
    text = [
        "A string such as one-two asks for J_one, F, J_two, F. Targets count from u; nothing is reset between calls."
    ]
    for where, record in eight.items():
        if record is not None:
            figures.append(_by_call(evidence, record, where))
            more += [table.under(record.facts.name) for table in evidence.tables(record)]
            graphs = len(next(iter(record.predictions[where].values()))) // record.facts.nodes
            text.append(f"Eight calls were run on {graphs} of 512 graphs of `{where}`.")
    counted = _counted(evidence)
    if counted:
        figures += [_on_backbones(counted)] if len(counted) > 1 else []
        tables.append(_beside_the_paper(counted))
        text.append(_which(evidence, counted))
        more += [
            table.under(record.facts.name)
            for record in evidence.of(INDEPENDENT).values()
            for table in evidence.tables(record)
        ]
    return Section(
        "composition", "Composition", EXPERIMENTS[EIGHT_CALLS].question, text, figures, tables, decided_by(*ASKED), more
    )


# ---- two calls -------------------------------------------------------------------------------------------------------

NODES = dict(zip(composition.NODES, ("u", "f(u)", "f\u00b2(u)", "f\u00b3(u)", "f\u2074(u)", "other"), strict=True))
"""What the answers are called in a drawing."""

PUBLISHED = "the paper's backbone"


Landed = Mapping[str, Mapping[str, Quantity]]
"""How often each string of two calls ends at each node."""


def _landed(rows: Iterable[Quantity]) -> Landed:
    found: dict[str, dict[str, Quantity]] = {}
    for row in rows:
        found.setdefault(str(row.at["string"]), {})[str(row.at["answer"])] = row
    return found


def _answers(record: Record, landed: Landed, where: str) -> Figure:
    bars = {
        composition.spelled(string): {node: row.estimate for node, row in rows.items()}
        for string, rows in landed.items()
    }
    n = next(iter(next(iter(landed.values())).values())).n
    caption = (
        f"Answers after two calls on `{where}`, {n:,} instances in which the five nodes differ; mean of the fits. Each "
        "row names the map before the first call and the one before the second."
    )
    said = [
        f"{composition.spelled(string)} {percent(row.published)} % {node}"
        for string, rows in landed.items()
        for node, row in rows.items()
        if row.published is not None
    ]
    beside = f" The paper's backbone: {', '.join(said)}." if said else ""
    title = f"Which node is answered after two calls, {record.facts.name}"
    return stacked_answers("two-calls-answers", title, caption + beside, bars, NODES)


def _by_node(record: Record, landed: Landed, where: str) -> Grid:
    """A line for each string and, below it, what is published of it."""
    lines: dict[str, Mapping[str, Quantity]] = {}
    for string, rows in landed.items():
        lines[composition.spelled(string)] = rows
        known = {node: _published(row) for node, row in rows.items() if row.published is not None}
        if known:
            lines[f"{composition.spelled(string)}, {PUBLISHED}"] = known
    title = f"Which node is answered after two calls, {record.facts.name} (`{where}`)"
    return Grid(title, composition.NODES, lines, composition.NOTE, head="maps before the calls")


def _published(row: Quantity) -> Quantity:
    """The published value in the place of ours."""
    value = math.nan if row.published is None else row.published
    return replace(row, estimate=Estimate(value, math.nan, math.nan, 0, "published", 0), published=None)


# ---- eight calls -----------------------------------------------------------------------------------------------------

CONTROLS = (composition.WITHOUT, composition.FIRST, composition.NONE, composition.READ_BEFORE, composition.COPY)


def _by_call(evidence: Evidence, record: Record, where: str) -> Figure:
    def line(kind: str, condition: str) -> list[Quantity]:
        calls = range(1, 1 + composition.CALLS)
        at = {"kind": kind, "condition": condition, "where": where}
        return [evidence.one(record, "compose.long", call=call, **at) for call in calls]

    every = {kind: line(kind, composition.EVERY) for kind in ("one", "two", "mixed")}
    lines = [Line(kind, _estimates(rows)) for kind, rows in every.items()]
    lines += [Line(each, _estimates(line("mixed", each)), control=True) for each in CONTROLS]
    caption = (
        f"Right answers at each call on `{where}`; {every['mixed'][0].n:,} instances with five distinct labels. "
        "Mixed: 32 fixed strings. Dashed: controls and the baseline for the mixed strings."
    )
    return lines_by_call(f"eight-calls-{where}", f"Eight calls, {record.facts.name}", caption, lines)


def _estimates(rows: Iterable[Quantity]) -> list[Estimate]:
    return [row.estimate for row in rows]


# ---- independent graphs, several backbones ---------------------------------------------------------------------------


def _asked(evidence: Evidence) -> list[str]:
    """The backbones that independent graphs are for, by the rule."""
    return evidence.selection.first(independent.BACKBONES, COHORTS["mechanism"].every)


def _counted(evidence: Evidence) -> dict[str, independent.Counted]:
    """What was measured of these, the main one first, whose answers are those of its own experiment."""
    records = evidence.of(INDEPENDENT)
    main = evidence.main(EIGHT_CALLS, composition.INDEPENDENT)
    if main is not None:
        records = {main.facts.name: main} | records
    return {
        name: independent.Counted.of(records[name].predictions, records[name].facts)
        for name in _asked(evidence)
        if name in records
    }


def _which(evidence: Evidence, counted: Mapping[str, independent.Counted]) -> str:
    asked = _asked(evidence)
    missing = [name for name in asked if name not in counted]
    graphs = sorted({each.at.many for each in counted.values()})
    said = (
        f"Backbones differ, so the strings were also run on {len(counted)} of {len(asked)} that a rule names "
        f"beforehand: those that are taken apart, then the first others in the order of seeds. Graphs of "
        f"`{composition.INDEPENDENT}`: {' or '.join(map(str, graphs))} of 512."
    )
    return f"{said} Not measured: {', '.join(missing)}." if missing else said


def _on_backbones(counted: Mapping[str, independent.Counted]) -> Figure:
    panels = {
        f"{name}, {each.n:,} instances": [Line(kind, _estimates(each.long(kind))) for kind in independent.KINDS]
        for name, each in counted.items()
    }
    caption = (
        f"The same strings on `{composition.INDEPENDENT}`, each backbone with maps of its own. Mean of the fits; bands "
        "resample graphs."
    )
    return lines_in_panels("independent", "Eight calls on independent graphs, by backbone", caption, panels, "call")


def _beside_the_paper(counted: Mapping[str, independent.Counted]) -> Grid:
    """Ours, then the published ones, which are other backbones."""
    lines: dict[str, Mapping[str, Quantity]] = {name: independent.headline(each) for name, each in counted.items()}
    n = max(each.n for each in counted.values())
    for seed, shares in independent.PAPER.items():
        lines[f"the paper's seed {seed}"] = {
            column: Quantity("compose.published", column, Estimate(share, math.nan, math.nan, 0, "published", 0), n)
            for column, share in zip(independent.COLUMNS, shares, strict=True)
        }
    note = f"The paper's seeds are other weights: compare the spread, not the lines. {composition.NOTE}"
    return Grid("Composition on independent graphs, by backbone", independent.COLUMNS, lines, note)
