"""The report on graph walks: records and verdicts become sections, figures and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from loopscope.experiments import composition, crossing, matched, switching, targets, trajectories
from loopscope.experiments.claims import CLAIMS, Verdict
from loopscope.experiments.evidence import Evidence, split
from loopscope.experiments.records import Record, Row, Table
from loopscope.experiments.suite import (
    COHORTS,
    CROSSING,
    EIGHT_CALLS,
    EXPERIMENTS,
    MATCHED,
    SWITCHING,
    TARGETS,
    TRAJECTORIES,
    TWO_CALLS,
)
from loopscope.report.contents import BOTH, NOW, STORED, Cost, Figure, LedgerRow, Report, Section, percent
from loopscope.report.figures import Line, components, lines_by_call, paired, rates, stacked_answers, subsets
from loopscope.report.heat import Walk, heat_maps, label_heat
from loopscope.stats import Estimate

TITLE = "Shared weights, selected computations: graph walks, measured again"
LEAD = (
    "A looped transformer applies the same block F again and again. Does every loop then do the same thing? On graph "
    "walks it need not: loops advance by one node, by two, or stay. A learned affine map J on the state that enters a "
    "loop makes the same frozen block take another step, and attention patterns carry that choice.",
    "Everything below was measured on backbones that were trained by this library. Shares are per cent; intervals are "
    "95 % and resample graphs, unless a row says otherwise; fits of a map are averaged first, then backbones. The "
    "paper's number stands beside ours where it printed one for the same population.",
)


def report_of(evidence: Evidence, verdicts: Sequence[Verdict], tell: Callable[[str], None] = lambda _: None) -> Report:
    """The whole page.  Sections without records are left out."""
    made = []
    for name, section in SECTIONS.items():
        tell(f"drawing {name}")
        if (found := section(evidence)) is not None:
            made.append(found)
    return Report(TITLE, (*LEAD, *_who(evidence)), made, [_ledger_row(each) for each in verdicts], _costs(evidence))


def _who(evidence: Evidence) -> list[str]:
    """Which backbones the mechanism experiments were done on, and why."""
    names, cohort = evidence.selection.names, COHORTS["mechanism"]
    if not names:
        return []
    rest = "".join(f", `{name}`" for name in names[1:])
    return [
        f"Mechanism backbones are chosen by their native walk alone, before any map is fitted: the first three seeds "
        f"from {cohort.seeds[0]} on whose increments to loops 2 to 6 contain one and two and nothing else but zero. "
        f"These are `{names[0]}`, the main one{rest}." if rest else f"The main one is `{names[0]}`."
    ]


def _ledger_row(verdict: Verdict) -> LedgerRow:
    claim, each = verdict.claim, verdict.estimate
    interval = "" if each is None else f"[{percent(each.low)}, {percent(each.high)}]"
    if each is not None and "SD" in each.unit:
        interval = f"± {percent(each.high - each.value)} SD over {each.n} {each.unit.split(',')[0]}s"
    origin = ""
    if verdict.fresh or verdict.stored:
        origin = NOW if not verdict.stored else STORED if not verdict.fresh else BOTH
    profile = "" if verdict.fresh and not verdict.stored else "--profile paper "
    return LedgerRow(
        claim.id, claim.where, f"{claim.text} (holds if {claim.holds_if})", claim.paper, verdict.verdict, verdict.ours,
        interval, verdict.n, _names(verdict.backbones), verdict.scale, origin,
        f"loopscope reproduce {profile}{claim.experiment}" if claim.experiment else "",
    )  # fmt: skip


def _names(backbones: Iterable[str]) -> str:
    """d8l6-3, d8l6-4, d8l8-0 -> d8l6: 3 4; d8l8: 0."""
    found: dict[str, list[int]] = {}
    for name in backbones:
        recipe, seed = split(name)
        found.setdefault(recipe, []).append(seed)
    return "; ".join(f"{recipe}: {' '.join(map(str, sorted(seeds)))}" for recipe, seeds in found.items())


def _costs(evidence: Evidence) -> list[Cost]:
    """What the records measured just now took, or, where there are none, the stored ones."""
    shown = list(evidence.fresh) or evidence.records
    return [
        Cost(
            f"{record.experiment} on {record.facts.name}", float(record.cost["seconds"]), record.cost["device"],
            record.cost["forwards"], record.cost["plain"],
        )
        for record in shown
    ]  # fmt: skip


def _claims(*experiments: str) -> list[str]:
    return [claim.id for claim in CLAIMS if claim.experiment in experiments]


def _with(tables: Iterable[Table], name: str) -> list[Table]:
    return [replace(table, title=f"{name}: {table.title}") for table in tables]


# ---- native trajectories ---------------------------------------------------------------------------------------------


def _trajectories(evidence: Evidence) -> Section | None:
    records = evidence.of(TRAJECTORIES)
    if not records:
        return None
    figures = []
    for recipe in dict.fromkeys(split(name)[0] for name in records):
        mine = {name: record for name, record in records.items() if split(name)[0] == recipe}
        walks = [_walk(name, record) for name, record in mine.items()]
        caption = (
            "Colour: how often each position on the path is read out after each loop, over 512 rings and all starts. "
            "Red dashes: the trained budget. White dots: the only position read most often."
        )
        figures.append(heat_maps(f"native-{recipe}", f"Native walks of {recipe.upper()} backbones", caption, walks))
    rows = [
        replace(row, name=f"{name}, {row.name}")
        for name, record in records.items()
        for row in evidence.tables(record)[0].rows
    ]
    note = "All 512 rings and ten starts; graphs are resampled. Retained: the answer is still right after 16 loops."
    tables = [Table("Right answers of native loops", rows, note)]
    more: list[Table] = []
    if (main := evidence.main(TRAJECTORIES)) is not None:
        figures.append(_labels(main))
        more = _with(evidence.tables(main)[1:], main.facts.name)
    text = [
        "Every loop's state at ANSWER is read with the model's own readout. On a ring a node is a position on the "
        "path, so the readouts show a walk. No map, no patch.",
        _walks_in_words(records),
    ]
    return Section(
        TRAJECTORIES, "Native trajectories", EXPERIMENTS[TRAJECTORIES].question, text, figures, tables,
        _claims(TRAJECTORIES), more,
    )  # fmt: skip


def _walk(name: str, record: Record) -> Walk:
    native = record.predictions["rings"][trajectories.NATIVE]
    shares = trajectories.frequencies(trajectories.positions(native), record.facts.nodes)
    return Walk(name, shares.numpy(), record.facts.loops, trajectories.modes(shares))


def _walks_in_words(records: Mapping[str, Record]) -> str:
    said = []
    for name, record in records.items():
        walk = trajectories.walk_of(record.predictions, record.facts)
        steps = " ".join("-" if step is None else f"+{step}" for step in walk.increments[1 : walk.loops])
        said.append(f"{name}: {steps}")
    return f"Increments of the most-read position to loops 2, 3, ... ({'-'} after a tie): {'; '.join(said)}."


def _labels(record: Record) -> Figure:
    native = record.predictions["rings"][trajectories.NATIVE]
    loops = range(1, record.facts.loops)
    by_start = trajectories.by_label(native)
    panels = {f"loop {loop}": by_start[:, loop].numpy() for loop in loops}
    at = {each.loop: each for each in trajectories.labels(native)}
    said = "; ".join(
        f"loop {loop}: {percent(at[loop].by_step[0])} % by the start, {percent(at[loop].passed)} % by the best label "
        f"on the path"
        for loop in loops
        if loop in at
    )
    caption = f"Rows: label of the start. Share of the variance of who is ahead that labels explain: {said}."
    return label_heat(
        "native-labels", f"Does the label of the start decide the pace? {record.facts.name}", caption, panels,
        "position", "start",
    )  # fmt: skip


# ---- target selection ------------------------------------------------------------------------------------------------


def _targets(evidence: Evidence) -> Section | None:
    records, main = evidence.of(TARGETS), evidence.main(TARGETS)
    if main is None:
        return None
    tables = evidence.tables(main)
    called = {"unsteered": "no map", "one": "J_one", "two": "J_two"}
    bars = {}
    for table in tables:
        condition = table.title.removeprefix("Answers, ").partition(" (")[0]
        target, _, rest = condition.partition(" ")
        bars[f"{called[target]} {rest}".strip()] = {row.name: row.estimate for row in table.rows}
    labels = {"u": "u (stay)", "f(u)": "one hop", "f^2(u)": "two hops", "other": "other"}
    figure = stacked_answers(
        "targets", f"One more call from h6, {main.facts.name}",
        "Answers of one more call of the same frozen block. Before F: the mapped state is read before the call. Moved: "
        "the mapped state of the next graph in its place.", bars, labels,
    )  # fmt: skip
    rows = []
    for name, record in records.items():
        found = {row.name: row for table in evidence.tables(record) for row in _called(table)}
        rows += [replace(found[key], name=f"{name}, {key}") for key in HEADLINE if key in found]
    others = Table("The target of each map, every backbone", rows, targets.NOTE)
    text = ["From one and the same h6, the frozen block runs once more: without a map, after J_one, after J_two."]
    return Section(
        TARGETS, "Target selection", EXPERIMENTS[TARGETS].question, text, [figure], [others], _claims(TARGETS),
        _with(tables, main.facts.name),
    )  # fmt: skip


HEADLINE = ("unsteered: u", "unsteered: f(u)", "one: f(u)", "two: f^2(u)", "one before F: u", "two before F: u")


def _called(table: Table) -> list[Row]:
    condition = table.title.removeprefix("Answers, ").partition(" (")[0]
    return [replace(row, name=f"{condition}: {row.name}") for row in table.rows]


# ---- composition -----------------------------------------------------------------------------------------------------


def _composition(evidence: Evidence) -> Section | None:
    two, main = evidence.of(TWO_CALLS), evidence.main(TWO_CALLS)
    if main is None:
        return None
    figures, tables, more = [], [], []
    found = evidence.tables(main)
    figures.append(
        rates(
            "two-calls", f"Two calls, {main.facts.name}",
            "Targets count from u. Diamonds: the paper's backbone. Below: the same targets without the second map.",
            [found[0], replace(found[1], rows=[row for row in found[1].rows if "asked for" in row.name])],
        )
    )  # fmt: skip
    more += _with(found, main.facts.name)
    rows = [
        replace(row, name=f"{name}, {row.name}")
        for name, record in two.items()
        for row in evidence.tables(record)[0].rows
        if row.name in {composition.spelled(pair) for pair in composition.PAIRS}
    ]
    tables.append(Table("Two maps in a row, every backbone", rows, composition.NOTE))
    text = [
        "A string such as one-two asks for J_one, F, J_two, F. Targets count from u; nothing is reset between calls."
    ]
    for where in (composition.INDEPENDENT, composition.ORIGINAL):
        record = evidence.main(EIGHT_CALLS, where)
        if record is not None:
            figures.append(_by_call(record, where))
            more += _with(evidence.tables(record), record.facts.name)
            graphs = len(next(iter(record.predictions[where].values()))) // record.facts.nodes
            text.append(f"Eight calls were run on {graphs} of 512 graphs of `{where}`.")
    return Section(
        "composition", "Composition", EXPERIMENTS[EIGHT_CALLS].question, text, figures, tables,
        _claims(TWO_CALLS, EIGHT_CALLS), more,
    )  # fmt: skip


CONTROLS = (composition.WITHOUT, composition.FIRST, composition.NONE, composition.READ_BEFORE, composition.COPY)


def _by_call(record: Record, where: str) -> Figure:
    answers = composition.Answers.of(record.predictions, record.facts, where)
    lines = []
    for kind in ("one", "two", "mixed"):
        found = composition.curves(answers, kind, {})
        lines.append(Line(kind, _estimates(found[composition.EVERY])))
        if kind == "mixed":
            shown = (
                composition.WITHOUT,
                composition.FIRST,
                composition.NONE,
                composition.READ_BEFORE,
                composition.COPY,
            )
            lines += [Line(each, _estimates(found[each]), control=True) for each in shown]
    caption = (
        f"Right answers at each call on `{where}`; {int(answers.at.kept.sum()):,} instances with five distinct labels. "
        "Mixed: 32 fixed strings. Dashed: controls and the baseline for the mixed strings."
    )
    return lines_by_call(f"eight-calls-{where}", f"Eight calls, {record.facts.name}", caption, lines)


def _estimates(rows: Iterable[Row]) -> list[Estimate]:
    return [row.estimate for row in rows]


# ---- mechanism -------------------------------------------------------------------------------------------------------


def _mechanism(evidence: Evidence) -> Section | None:
    crossed, switched = evidence.of(CROSSING), evidence.of(SWITCHING)
    main, exchanged = evidence.main(CROSSING), evidence.main(SWITCHING)
    if main is None and exchanged is None:
        return None
    figures, tables, more = [], [], []
    if crossed:
        shown = {name: record for name, record in crossed.items() if name in evidence.selection.names}
        panels = [_crossing_rows(evidence, name, record) for name, record in shown.items()]
        figures.append(
            rates(
                "crossing", "What patterns and outputs carry",
                "B: the receiver's own target, D: the giver's, E: the giver's place looked up in the receiver's graph. "
                "Diamonds: the paper, where it printed the number for one backbone.", panels,
            )
        )  # fmt: skip
        rows = [
            replace(row, name=f"{name}, {row.name}")
            for name, record in crossed.items()
            for row in _crossing_rows(evidence, name, record).rows
        ]
        tables.append(Table("Patterns and outputs, every backbone", rows, crossing.FITS))
        for name, record in shown.items():
            more += _with(evidence.tables(record), name)
    for name, record in switched.items():
        answers = switching.Answers.of(record.predictions, record.facts, next(iter(record.predictions)))
        figures += [_parts(name, answers), _subsets(name, answers, record.facts.heads)]
        more += _with(_switch_tables(evidence, record), name)
    text = [
        "All patches act in the one extra call, at its second layer unless another is named. The head is chosen on 32 "
        "pairs of graphs, by how often its pattern leads to E, and tested on other pairs.",
        "Parts outside ANSWER's row of layer 2 need whole layers again; they may be shown for fewer graphs (see n).",
    ]
    return Section(
        "mechanism", "Mechanism", EXPERIMENTS[CROSSING].question, text, figures, tables, _claims(CROSSING, SWITCHING),
        more,
    )  # fmt: skip


SHOWN = {
    "Pattern and output": ("pattern -> E", "pattern -> D", "output -> D", "output -> E"),
    "Steering": ("unsteered", "steered", "J->0", "0->J"),
    "Restoration": ("restored, selected", "restored, comparison", "restored, all"),
}


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


def _parts(name: str, answers: switching.Answers) -> Figure:
    panels: dict[str, dict[str, dict[str, Estimate]]] = {}
    for giver, receiver in (("two", "one"), ("one", "two")):
        panels[f"{giver} -> {receiver}"] = {
            part: {place: _given(answers, giver, receiver, f"{part}, {place}") for place in switching.LAYERS}
            for part in switching.PARTS
        }
    caption = (
        "The receiver takes one part of the extra call from the run with the other map; how often it then gives the "
        "giver's target. Queries+keys are the pattern, head outputs the attention output, and the entering state is "
        "everything: three checks that patches do what they say."
    )
    return components(f"switching-{name}", f"Target switching, part by part, {name}", caption, panels)


def _given(answers: switching.Answers, giver: str, receiver: str, what: str) -> Estimate:
    given = answers.patched(giver, receiver, what)
    at = answers.walks(given)
    return targets.share(what, given == at.ahead(switching.HOPS[giver]), at).estimate


def _subsets(name: str, answers: switching.Answers, heads: int) -> Figure:
    panels = {
        f"{giver} -> {receiver}": {
            each: _given(answers, giver, receiver, switching.of_heads(each)) for each in switching.subsets(heads)
        }
        for giver, receiver in (("two", "one"), ("one", "two"))
    }
    caption = "Patterns of these heads of layer 2 are taken from the other run; how often the giver's target comes out."
    return subsets(f"heads-{name}", f"Target switching by subsets of heads, {name}", caption, panels, heads)


def _switch_tables(evidence: Evidence, record: Record) -> list[Table]:
    """Between the two maps: clean runs and the giver's target for every part."""
    found = []
    for table in evidence.tables(record):
        if table.title.startswith(("Target switching, two -> one", "Target switching, one -> two")):
            goal = "f^2(u)" if "two -> one" in table.title else "f(u)"
            rows = [row for row in table.rows if row.name.endswith((f": {goal}", "giver's target", "minus clean"))]
            found.append(replace(table, rows=rows))
    return found


# ---- matched supervision ---------------------------------------------------------------------------------------------


def _matched(evidence: Evidence) -> Section | None:
    records = evidence.of(MATCHED)
    if not records:
        return None
    predictions = {name: record.predictions for name, record in records.items()}
    facts = {name: record.facts for name, record in records.items()}
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
    seeds = sorted({split(name)[1] for name in records})
    text = [
        "Backbones of a pair share their start and every batch and differ in their loss alone: after loop 8, or after "
        f"every loop. Measured: seeds {', '.join(map(str, seeds))}; {len(records)} of "
        f"{len(COHORTS['matched'].backbones)} backbones."
    ]
    return Section(
        MATCHED, "Matched supervision", EXPERIMENTS[MATCHED].question, text, figures, found[:1], _claims(MATCHED),
        found[1:],
    )  # fmt: skip


SECTIONS: Mapping[str, Callable[[Evidence], Section | None]] = {
    TRAJECTORIES: _trajectories, TARGETS: _targets, "composition": _composition, "mechanism": _mechanism,
    MATCHED: _matched,
}  # fmt: skip
