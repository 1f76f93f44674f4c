"""Sections on depth: how far maps lead beyond their training, on graph walks, parity and chains of relations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from loopscope.experiments import (
    chains,
    continuation,
    continuation_curves,
    parity_counts,
    parity_lengths,
    parity_timing,
)
from loopscope.experiments.claims import decided_by
from loopscope.experiments.depth_judges import chained
from loopscope.experiments.evidence import ROUNDING, Evidence, scale, split
from loopscope.experiments.records import Record, Row, Table
from loopscope.experiments.suite import CHAINS, COHORTS, CONTINUATION, EXPERIMENTS, PARITY
from loopscope.report.contents import Figure, Grid, Section
from loopscope.report.figures import Line, curves, lines_in_panels
from loopscope.report.images import Square, loop_maps
from loopscope.stats import Estimate
from loopscope.tasks.populations import population


def _titled(tables: Iterable[Table], beginning: str) -> list[Table]:
    return [table for table in tables if table.title.startswith(beginning)]


# ---- eight nodes -----------------------------------------------------------------------------------------------------

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
    tables: list[Table | Grid] = []
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
            tables += map(_by_backbone, _titled(made, "Continuation: accuracy of J F by backbone"))
        shown = [*_titled(made, "Continuation: accuracy over ranges"), *_titled(made, "Continuation: strict")]
        tables += shown
        known = {table.title for table in tables}
        more += [table for table in made if table.title not in known]
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


def _by_backbone(table: Table) -> Grid:
    """The rows `n8-d8l8-100, all graphs, loops 9-16` as a line for each backbone."""
    lines: dict[str, dict[str, Row]] = {}
    for row in table.rows:
        name, _, column = row.name.partition(", ")
        lines.setdefault(name, {})[column] = row
    columns = list(dict.fromkeys(column for rows in lines.values() for column in rows))
    return Grid(table.title, columns, lines, table.note)


# ---- parity ----------------------------------------------------------------------------------------------------------

STAGED = (20.0, 40.0)
"""Grey: lengths that maps were trained on."""

SMOOTH, SMOOTH_FAR = 10, 2
"""Neighbouring lengths whose mean the dark curves show, up to 500 and beyond."""

EXITS = (
    *(
        f"{condition}, {way}"
        for condition in (*parity_counts.CONDITIONS, parity_lengths.GAIN)
        for way in (parity_timing.AT_N, parity_timing.SHIFTED, parity_timing.CHOSEN)
    ),
    f"native, {parity_timing.SHIFTED}, minus J, {parity_timing.AT_N}",
)
"""The last is what moving the exit without J gains over J."""


def parity_section(evidence: Evidence) -> Section | None:
    """Parity beyond the trained lengths, whatever backbones were measured; None without any."""
    records = evidence.of(PARITY)
    if not records:
        return None
    made = {name: parity_timing.tables(record.predictions, split(name)[1]) for name, record in records.items()}
    timings = {name: _timings(record) for name, record in records.items()}
    lying = {name: [each for each in found if each.lies_somewhere] for name, found in timings.items()}
    panels = {name: _by_length(record) for name, record in records.items()}
    panels = {name: lines for name, lines in panels.items() if lines}
    caption = (
        f"Faint points: one length each. Dark: mean of {SMOOTH} neighbouring lengths, beyond 500 of {SMOOTH_FAR} "
        "measured ones; where few lengths were measured, as they are. Grey: lengths that maps were trained on."
    )
    figures = []
    if panels:
        figures.append(lines_in_panels("parity", "Parity read after t = n loops", caption, panels, "length n", STAGED))
    figures += _heat(records)
    text = [
        "A string of n bits is read after n loops; J acts before loops 2 to n. It is right if its parity and the PAD "
        "behind it are. The paper's numbers are those of its seed of the same number, which has other weights.",
        "Where right answers lie can drift with the length. Read on the line means: at the loop nearest to a straight "
        "line through that drift, fitted on one half of the strings and scored on the other. What J adds there is "
        "better computation; what it adds at t = n alone is better timing.",
        *_sizes(records.values()),
        *_precision(records),
        *_nowhere(timings),
        *_slips(lying),
    ]
    tables: list[Table | Grid] = [_at_n(made), _drift(lying), *_exits(made)]
    more = [table.under(name) for name, each in made.items() for table in each]
    return Section(
        PARITY, "Parity", EXPERIMENTS[PARITY].question, text, figures,
        [table for table in tables if (table.lines if isinstance(table, Grid) else table.rows)], decided_by(PARITY),
        more,
    )  # fmt: skip


def _sizes(records: Iterable[Record]) -> list[str]:
    """What was not measured at paper scale."""
    small = [f"{each.facts.name}: {said}" for each in records if (said := scale([each])) != "paper scale"]
    return [f"Measured at less than paper scale: {'; '.join(small)}."] if small else []


def _precision(records: Mapping[str, Record]) -> list[str]:
    """What products of lower precision change, where that was measured."""
    said = {name: parity_lengths.agreement(record.predictions) for name, record in records.items()}
    return [
        f"{name} was measured with products in {records[name].settings.get('products', 'fp32')}. The same strings in "
        f"fp32, {found}"
        for name, found in said.items()
        if found is not None
    ]


def _by_length(record: Record) -> list[Line]:
    """Accuracy at t = n, native and with J, smoothed, with a dot for each length."""
    near = parity_lengths.measured(record.predictions, 1, 500)
    far = parity_lengths.measured(record.predictions, *parity_lengths.LIMIT)
    lines = []
    for condition in parity_counts.CONDITIONS:
        dots, curve = [], []
        for band, window in ((near, SMOOTH), (far, SMOOTH_FAR)):
            if band is not None and condition in band.conditions:
                shares = band.at_n(condition)
                few = len(shares) < 4 * window
                x, y = parity_lengths.smoothed(band.lengths, shares, 1 if few else window)
                dots += list(zip(map(float, band.lengths), map(float, shares), strict=True))
                curve += list(zip(map(float, x), map(float, y), strict=True))
        if curve:
            points = [Estimate(share, share, share, 1, "length", 0) for _, share in curve]
            lines.append(Line(condition, points, at=[at for at, _ in curve], dots=dots))
    return lines


def _heat(records: Mapping[str, Record]) -> list[Figure]:
    """Accuracy by length and loop; nothing where it was not measured."""
    panels = {
        f"{name}, {condition}": Square(shares, parity_lengths.best_nearby(shares))
        for name, record in records.items()
        if parity_counts.HEAT in record.predictions
        for condition, shares in parity_lengths.heat_map(record.predictions).items()
    }
    caption = (
        "Colour: share of strings that are right, from none to all. The diagonal is t = n; dots mark the only best "
        "loop among n - 1, n, n + 1. Dotted: the longest strings that maps were trained on."
    )
    title = "Parity by length and loop"
    return [loop_maps("parity-heat", title, caption, panels, int(STAGED[1]))] if panels else []


def _at_n(made: Mapping[str, Sequence[Table]]) -> Grid:
    lines: dict[str, dict[str, Row]] = {name: {} for name in made}
    for name, tables in made.items():
        for table in _titled(tables, "Right at t = n, lengths "):
            lengths = table.title.rpartition(" ")[2]
            lines[name] |= {f"{lengths}, {row.name}": row for row in table.rows}
    columns = list(dict.fromkeys(column for rows in lines.values() for column in rows))
    note = f"At t = n; {parity_lengths.RESAMPLED}."
    return Grid("Right at t = n by range of lengths", columns, {k: v for k, v in lines.items() if v}, note)


def _timings(record: Record) -> list[parity_timing.Timing]:
    """Drift and deviation by both estimators; nothing where there is no phase."""
    there = parity_lengths.measured(record.predictions, *parity_timing.FITTED, parity_counts.NEAR)
    return [] if there is None else parity_timing.timings(record.predictions, split(record.facts.name)[1])


def _drift(timings: Mapping[str, Sequence[parity_timing.Timing]]) -> Table:
    rows = []
    for name, found in timings.items():
        for each in found:
            label = f"{name}, {each.condition}"
            how = "the paper's estimator" if each.estimator == "unwrapped" else "robust"
            drift, mae = (None, None) if each.paper is None else each.paper
            rows += [
                Row(f"{label}: drift, {how}", each.drift, each.drift.n, drift),
                Row(f"{label}: deviation, {how}", each.mae, each.mae.n, mae),
            ]
    note = (
        "In per cent of a loop: drift for every 100 tokens, deviation as the mean distance from the line. Blocks of "
        "neighbouring lengths are resampled; n counts lengths."
    )
    first, last = parity_timing.FITTED
    return Table(f"Where right answers lie: drift over lengths {first}-{last}", rows, note)


def _nowhere(timings: Mapping[str, Sequence[parity_timing.Timing]]) -> list[str]:
    """Conditions without any drift to tell."""
    said = [
        f"{name}, {each.condition}: {each.coherence:.2f}, where random phases give up to {each.by_chance:.2f}"
        for name, found in timings.items()
        for each in found
        if each.estimator == "robust" and not each.lies_somewhere
    ]
    told = "No line says where right answers lie, and no drift is given, for (coherence, 1 at most)"
    return [f"{told} {'; '.join(said)}."] if said else []


def _slips(timings: Mapping[str, Sequence[parity_timing.Timing]]) -> list[str]:
    """Lengths that the paper's unwrapping puts a period off."""
    said = [
        f"{each.slips} in {name}, {each.condition}"
        for name, found in timings.items()
        for each in found
        if each.estimator == "robust" and each.slips
    ]
    told = "The paper's estimator puts lengths on another period than the robust one:"
    return [f"{told} {'; '.join(said)}."] if said else []


def _exits(made: Mapping[str, Sequence[Table]]) -> list[Grid]:
    """What other loops than t = n give, a line for each backbone."""
    grids: dict[str, dict[str, dict[str, Row]]] = {}
    notes = {}
    for name, tables in made.items():
        for table in _titled(tables, "Computation or timing?"):
            grids.setdefault(table.title, {})[name] = {row.name: row for row in table.rows if row.name in EXITS}
            said = table.note.partition("; ")[2]
            notes[table.title] = said[:1].upper() + said[1:]
    return [Grid(title, EXITS, lines, notes[title]) for title, lines in grids.items()]


# ---- chains of relations ---------------------------------------------------------------------------------------------

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
    shown = [*_titled(tables, "Right answers by range"), *_titled(tables, "Spread over")]
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


def _by_chain(record: Record, tables: Iterable[Table]) -> Figure:
    lines = []
    for table in _titled(tables, "Right answers by length, "):
        condition = table.title.removeprefix("Right answers by length, ")
        at = [float(row.name.removeprefix("length ")) for row in table.rows]
        lines.append(Line(condition, [row.estimate for row in table.rows], condition == chains.NATIVE, at))
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
        ranges = {row.name: replace(row, paper=None) for row in chains.by_range(seen).rows if "minus" not in row.name}
        lines[f"{record.facts.name}, {origin}: {seen.size}, {fits}"] = ranges
    columns = list(dict.fromkeys(column for rows in lines.values() for column in rows))
    return Grid("Right answers by range, every record", columns, lines, "Queries are resampled.")
