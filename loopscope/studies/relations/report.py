"""The section on chains of relations: how far maps lead beyond the lengths of their training."""

from __future__ import annotations

from collections.abc import Sequence

from loopscope.quantity import QuantityTable, every, of_tables
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.records import Record
from loopscope.studies.registry import COHORTS, EXPERIMENTS
from loopscope.studies.relations import chains
from loopscope.studies.relations.claims import chained
from loopscope.studies.relations.experiments import CHAINS
from loopscope.studies.report.contents import Figure, Grid, Section
from loopscope.studies.report.figures import Line, curves, lines_in_panels

GROWN_ON = (3.5, 16.5)
"""Grey: lengths that maps were trained on."""


def chains_section(evidence: Evidence) -> Section | None:
    """Chains of relations; None without a record of the cohort's backbone."""
    record = chained(evidence)
    if record is None:
        return None
    seen = chains.outcomes(record.predictions)
    tables = chains.tables(record.predictions, paper=True)
    figures = [_by_chain(record, tables), *_checks(seen)]
    shown = [table for table in tables if table.id != "chains.length"]
    every = [each for each in evidence.every(CHAINS) if each.facts.name == record.facts.name]
    text = [
        "The backbone learned chains of one to three relations, one loop for each. A map between all loops is trained "
        "through lengths 4, 5, ..., 16 and then on all of them. Beyond 16, its reach may differ from fit to fit, and "
        "from check to check within a fit.",
        f"Measured on {seen.size}, with {len(seen.steered)} of {len(COHORTS['relations'].fits)} fits.",
    ]
    grids = [_by_record(evidence, every)] if len(every) > 1 else []
    return Section(
        CHAINS, "Chains of relations", EXPERIMENTS[CHAINS].question, text, figures, [*shown, *grids],
        decided_by(CHAINS), [table for table in tables if table not in shown],
    )  # fmt: skip


def _by_chain(record: Record, tables: Sequence[QuantityTable]) -> Figure:
    lines = []
    for condition in chains.CONDITIONS:
        if rows := every(of_tables(tables), "chains.length", condition=condition):
            at = [float(row.at["length"]) for row in rows]
            lines.append(Line(condition, [row.estimate for row in rows], condition == chains.NATIVE, at))
    caption = (
        "Every length has queries of its own or, where they were cut, the same ones. Mean over fits; bands resample "
        "queries. Grey: lengths that maps were trained on."
    )
    panels = {f"{record.facts.name}, {chains.outcomes(record.predictions).size}": lines}
    return lines_in_panels("chains", "Chains of relations by length", caption, panels, "length", GROWN_ON)


def _checks(seen: chains.Outcomes) -> list[Figure]:
    """How every fit went through the continuation; nothing for a single map of each."""
    ranges = {f"lengths {name}": chains.RANGES[name] for name in (chains.INSIDE, chains.BEYOND)}
    ranges[f"length {chains.NOISY}"] = range(chains.NOISY, chains.NOISY + 1)
    panels = {
        label: {
            f"fit {fit}": list(zip(seen.updates, map(float, shares), strict=True))
            for fit, shares in enumerate(seen.course(lengths), 1)
        }
        for label, lengths in ranges.items()
        if seen.places(lengths)
    }
    if len(seen.updates) < 2 or not panels:
        return []
    caption = "Right answers with every map that a fit passed through, from the end of its curriculum (update 0) on."
    return [curves("chains-checks", "Maps along their continuation", caption, panels, "updates")]


def _by_record(evidence: Evidence, records: Sequence[Record]) -> Grid:
    """The ranges of all records of a backbone: other queries, other fits."""
    lines = {}
    for record in records:
        seen = chains.outcomes(record.predictions)
        origin = "recomputed now" if evidence.is_fresh(record) else "results/"
        fits = f"{len(seen.steered)} fit{'s' * (len(seen.steered) > 1)}"
        ranges = {row.label: row for row in every(chains.by_range(seen).rows, "chains.range")}
        lines[f"{record.facts.name}, {origin}: {seen.size}, {fits}"] = ranges
    columns = list(dict.fromkeys(column for rows in lines.values() for column in rows))
    return Grid("Right answers by range, every record", columns, lines, "Queries are resampled.")


SECTIONS = {CHAINS: chains_section}
