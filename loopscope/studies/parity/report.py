"""The section on parity: how far beyond trained lengths answers are right, and whether J computes or times better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loopscope.quantity import At, Quantity, QuantityTable, every, of_tables
from loopscope.stats import Estimate
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence, scale, split
from loopscope.studies.parity import counts as parity_counts
from loopscope.studies.parity import exact as parity_exact
from loopscope.studies.parity import lengths as parity_lengths
from loopscope.studies.parity import timing as parity_timing
from loopscope.studies.parity.experiments import PARITY, PARITY_EXACT
from loopscope.studies.records import Record
from loopscope.studies.registry import EXPERIMENTS
from loopscope.studies.report.contents import Figure, Grid, Section
from loopscope.studies.report.figures import Line, lines_in_panels
from loopscope.studies.report.heat import Square, loop_maps

STAGED = (20.0, 40.0)
"""Grey: lengths that maps were trained on."""

ENLARGED = (54, 60)
"""Lengths and loops that insets of the heat maps show, as the paper's do."""

SMOOTH, SMOOTH_FAR = 10, 2
"""Neighbouring lengths whose mean the dark curves show, up to 500 and beyond."""

EXITS: Mapping[str, tuple[str, At]] = {
    f"{condition}, {way}": ("parity.loop", {"condition": condition, "way": way})
    for condition in (*parity_counts.CONDITIONS, parity_lengths.GAIN)
    for way in (parity_timing.AT_N, parity_timing.SHIFTED, parity_timing.CHOSEN)
} | {f"native, {parity_timing.SHIFTED}, minus J, {parity_timing.AT_N}": ("parity.loop.shift", {})}
"""Columns, by id and coordinates; the last is what moving the exit without J gains over J."""


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
    exact = {name: record for name, record in evidence.of(PARITY_EXACT).items() if name in records}
    text = [
        "A string of n bits is read after n loops; J acts before loops 2 to n. It is right if its parity and the PAD "
        "behind it are. The paper's numbers are those of its seed of the same number, which has other weights.",
        "Where right answers lie can drift with the length. Read on the line means: at the loop nearest to a straight "
        "line through that drift, fitted on one half of the strings and scored on the other. What J adds there is "
        "better computation; what it adds at t = n alone is better timing.",
        *_sizes(records.values()),
        *_precision(records),
        *(f"{name}. {_in_fp32(records[name], each)}" for name, each in exact.items()),
        *_nowhere(timings),
        *_slips(lying),
    ]
    beside = [_exactly(name, records[name], each) for name, each in exact.items()]
    tables: list[QuantityTable | Grid] = [_at_n(made), *beside, _drift(lying), *_exits(made)]
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


def _in_fp32(record: Record, exact: Record) -> str:
    return parity_exact.in_words(exact.predictions, record.predictions)


def _exactly(name: str, record: Record, exact: Record) -> QuantityTable:
    return parity_exact.table(exact.predictions, record.predictions).under(name)


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
    if any(min(panel.shares.shape) >= ENLARGED[1] for panel in panels.values()):
        caption += f" Insets: lengths and loops {ENLARGED[0]} to {ENLARGED[1]}."
    title = "Parity by length and loop"
    return [loop_maps("parity-heat", title, caption, panels, int(STAGED[1]), ENLARGED)] if panels else []


def _at_n(made: Mapping[str, Sequence[QuantityTable]]) -> Grid:
    lines = {
        name: {
            f"{row.at['first']}-{row.at['last']}, {row.at['condition']}": row
            for row in every(of_tables(tables), "parity.exit")
        }
        for name, tables in made.items()
    }
    columns = list(dict.fromkeys(column for rows in lines.values() for column in rows))
    note = f"At t = n; {parity_lengths.RESAMPLED}."
    return Grid("Right at t = n by range of lengths", columns, {k: v for k, v in lines.items() if v}, note)


def _timings(record: Record) -> list[parity_timing.Timing]:
    """Drift and deviation by both estimators; nothing where there is no phase."""
    there = parity_lengths.measured(record.predictions, *parity_timing.FITTED, parity_counts.NEAR)
    return [] if there is None else parity_timing.timings(record.predictions, split(record.facts.name)[1])


def _drift(timings: Mapping[str, Sequence[parity_timing.Timing]]) -> QuantityTable:
    rows = []
    for name, found in timings.items():
        for each in found:
            label = f"{name}, {each.condition}"
            how = "the paper's estimator" if each.estimator == "unwrapped" else "robust"
            drift, mae = (None, None) if each.paper is None else each.paper
            at: At = {"backbone": name, "condition": each.condition, "estimator": each.estimator}
            rows += [
                Quantity("parity.drift", f"{label}: drift, {how}", each.drift, each.drift.n, drift, at),
                Quantity("parity.deviation", f"{label}: deviation, {how}", each.mae, each.mae.n, mae, at),
            ]
    note = (
        "In per cent of a loop: drift for every 100 tokens, deviation as the mean distance from the line. Blocks of "
        "neighbouring lengths are resampled; n counts lengths."
    )
    first, last = parity_timing.FITTED
    return QuantityTable("parity.drift", f"Where right answers lie: drift over lengths {first}-{last}", rows, note)


def _nowhere(timings: Mapping[str, Sequence[parity_timing.Timing]]) -> list[str]:
    """Conditions without any drift to tell."""
    said = [
        f"{name}, {each.condition}: {each.coherence:.2f}, where random phases give up to {each.by_chance:.2f}"
        for name, found in timings.items()
        for each in found
        if each.estimator == "robust" and not each.lies_somewhere
    ]
    text = "No line says where right answers lie, and no drift is given, for (coherence, 1 at most)"
    return [f"{text} {'; '.join(said)}."] if said else []


def _slips(timings: Mapping[str, Sequence[parity_timing.Timing]]) -> list[str]:
    """Lengths that the paper's unwrapping puts a period off."""
    said = [
        f"{each.slips} in {name}, {each.condition}"
        for name, found in timings.items()
        for each in found
        if each.estimator == "robust" and each.slips
    ]
    text = "The paper's estimator puts lengths on another period than the robust one:"
    return [f"{text} {'; '.join(said)}."] if said else []


def _exits(made: Mapping[str, Sequence[QuantityTable]]) -> list[Grid]:
    """What other loops than t = n give, a line for each backbone."""
    grids: dict[str, dict[str, dict[str, Quantity]]] = {}
    for name, tables in made.items():
        for table in tables:
            if table.id == "parity.loop":
                line = grids.setdefault(table.title, {}).setdefault(name, {})
                line |= {column: row for column, (id, at) in EXITS.items() for row in every(table.rows, id, **at)}
    note = f"{parity_timing.SCORED}; {parity_lengths.RESAMPLED}."
    return [Grid(title, tuple(EXITS), lines, note[:1].upper() + note[1:]) for title, lines in grids.items()]


SECTIONS = {PARITY: parity_section}
EXPERIMENTS_OF = {PARITY: (PARITY, PARITY_EXACT)}
