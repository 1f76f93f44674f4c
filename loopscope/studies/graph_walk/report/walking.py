"""Sections on what backbones do: native trajectories, target selection."""

from __future__ import annotations

from collections.abc import Mapping

from loopscope.quantity import At, QuantityTable, every
from loopscope.stats import Estimate
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence, split
from loopscope.studies.graph_walk import targets, trajectories
from loopscope.studies.graph_walk.counting import OTHER
from loopscope.studies.graph_walk.experiments import TARGETS, TRAJECTORIES
from loopscope.studies.records import Record
from loopscope.studies.registry import EXPERIMENTS
from loopscope.studies.report.contents import Figure, Grid, Section, percent
from loopscope.studies.report.figures import stacked_answers
from loopscope.studies.report.heat import Walk, heat_maps, label_heat
from loopscope.studies.report.task import task_figure

# ---- native trajectories ---------------------------------------------------------------------------------------------

ACCURACIES = ("endpoint", "retained")
COLOURS = (
    "Colour: how often each position on the path is read out after each loop, over 512 rings and all starts. "
    "Red dashes: the trained budget. White dots: the only position read most often."
)


def walk_figure(evidence: Evidence) -> Figure | None:
    """The native walk of the main backbone alone; None where it was not read."""
    main = evidence.main(TRAJECTORIES)
    if main is None:
        return None
    title = f"How {main.facts.name} walks: the node that each loop answers"
    return heat_maps("walk", title, COLOURS, [_walk(main.facts.name, main)])


def opening(evidence: Evidence) -> list[Figure]:
    """The task, and how the main backbone walks; nothing where it was not read."""
    walk = walk_figure(evidence)
    return [] if walk is None else [task_figure(), walk]


def trajectories_section(evidence: Evidence) -> Section | None:
    """Native walks of every backbone that was read; None without any."""
    records = evidence.of(TRAJECTORIES)
    if not records:
        return None
    figures = []
    for recipe in sorted({split(name)[0] for name in records}, reverse=True):
        mine = {name: record for name, record in records.items() if split(name)[0] == recipe}
        walks = [_walk(name, record) for name, record in mine.items()]
        figures.append(heat_maps(f"native-{recipe}", f"Native walks of {recipe.upper()} backbones", COLOURS, walks))
    lines = {
        f"{name}: {_steps(record)}": {which: evidence.one(record, f"native.{which}") for which in ACCURACIES}
        for name, record in records.items()
    }
    note = (
        "All 512 rings and ten starts; graphs are resampled. Beside each name: increments of the most-read position to "
        "loops 2, 3, ... up to the budget (- at a tie). Retained: the answer is still right after 16 loops."
    )
    tables = [Grid("Steps and right answers of native loops", ACCURACIES, lines, note)]
    more: list[QuantityTable] = []
    if (main := evidence.main(TRAJECTORIES)) is not None:
        figures.append(_labels(main))
        more = [table.under(main.facts.name) for table in evidence.tables(main) if table.id != "native.accuracy"]
    text = [
        "Every loop's state at ANSWER is read with the model's own readout. On a ring a node is a position on the "
        "path, so the readouts show a walk. No map, no patch."
    ]
    return Section(
        TRAJECTORIES, "Native trajectories", EXPERIMENTS[TRAJECTORIES].question, text, figures, tables,
        decided_by(TRAJECTORIES), more,
    )  # fmt: skip


def _walk(name: str, record: Record) -> Walk:
    native = record.predictions["rings"][trajectories.NATIVE]
    shares = trajectories.frequencies(trajectories.positions(native), record.facts.nodes)
    return Walk(name, shares.numpy(), record.facts.loops, trajectories.modes(shares))


def _steps(record: Record) -> str:
    walk = trajectories.walk_of(record.predictions, record.facts)
    return " ".join("-" if step is None else f"+{step}" for step in walk.increments[1 : walk.loops])


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
    explained = f"Share of the variance of who is ahead that labels explain: {said}."
    caption = f"Rows: label of the start. {explained if said else 'Nobody is ahead of anybody at these loops.'}"
    return label_heat(
        "native-labels", f"Does the label of the start decide the pace? {record.facts.name}", caption, panels,
        "position", "start",
    )  # fmt: skip


# ---- target selection ------------------------------------------------------------------------------------------------


def targets_section(evidence: Evidence) -> Section | None:
    """What one more call answers; None without the main backbone."""
    records, main = evidence.of(TARGETS), evidence.main(TARGETS)
    if main is None:
        return None
    tables, called = evidence.tables(main), {targets.UNSTEERED: "no map", "one": "J_one", "two": "J_two"}
    bars: dict[str, dict[str, Estimate]] = {}
    for each in every(evidence.quantities(main), "targets.answer"):
        bar = _condition(called[str(each.at["map"])], str(each.at["read"]))
        bars.setdefault(bar, {})[str(each.at["answer"])] = each.estimate
    labels = {"u": "u (stay)", "f(u)": "one hop", "f^2(u)": "two hops", OTHER: "other"}
    figure = stacked_answers(
        "targets", f"One more call from h6, {main.facts.name}",
        "Answers of one more call of the same frozen block. Before F: the mapped state is read before the call. Moved: "
        "the mapped state of the next graph in its place.", bars, labels,
    )  # fmt: skip
    lines = {
        name: {
            column: row
            for column, at in HEADLINE.items()
            for row in every(evidence.quantities(record), "targets.answer", **at)
        }
        for name, record in records.items()
    }
    others = Grid("The target of each map, every backbone", list(HEADLINE), lines, targets.NOTE)
    text = ["From one and the same h6, the frozen block runs once more: without a map, after J_one, after J_two."]
    return Section(
        TARGETS, "Target selection", EXPERIMENTS[TARGETS].question, text, [figure], [others], decided_by(TARGETS),
        [table.under(main.facts.name) for table in tables],
    )  # fmt: skip


def _condition(name: str, read: str) -> str:
    """What is steered so and read there."""
    return name if read == targets.AFTER_F else f"{name} {read}"


HEADLINE: Mapping[str, At] = {
    f"{_condition(which, read)}: {answer}": {"map": which, "read": read, "answer": answer}
    for which, read, answer in (
        (targets.UNSTEERED, targets.AFTER_F, "u"),
        (targets.UNSTEERED, targets.AFTER_F, "f(u)"),
        ("one", targets.AFTER_F, "f(u)"),
        ("two", targets.AFTER_F, "f^2(u)"),
        ("one", targets.BEFORE_F, "u"),
        ("two", targets.BEFORE_F, "u"),
    )
}
"""Columns, with their coordinates."""
