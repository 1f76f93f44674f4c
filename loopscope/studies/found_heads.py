"""The report page of a search for the heads that carry what a map does on a task of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from loopscope.measure.controls import LAYER
from loopscope.measure.find_heads import FoundHeads, Swept
from loopscope.measure.heads import Selection, Tried
from loopscope.measure.side_by_side import SideBySide
from loopscope.plot.canvas import INK, PAPER, Axes, Canvas, heading
from loopscope.plot.cells import mesh, multiples, outer_labels, share_bar
from loopscope.quantity import QuantityTable
from loopscope.studies.report.contents import Figure, Listing, Report, Section, percent
from loopscope.studies.report.dots import rates
from loopscope.studies.report.drawing import draw

TOLD = {
    "unsteered": "without J", "steered": "with J", "rescue": "steered patterns into the run without J",
    "damage": "patterns of the run without J into the steered one", "outputs": "steered outputs into the run without J",
    "values": "control: steered values", "unrelated": "control: patterns of an unrelated example",
    "wrong loop": "control: patterns of another loop", "comparison": "control: comparison heads",
    "comparison damage": "control: comparison heads, damage", "complement": "control: other heads of these layers",
    "complement damage": "control: other heads of these layers, damage", "late rescue": "all late heads, rescue",
    "late damage": "all late heads, damage", "self-pattern": "must change nothing: its own pattern",
    "self-output": "must change nothing: its own output", "clean": "with J, untouched",
    "replaced": "queries of an unrelated example", "selected": "then outputs of the chosen heads put back",
    "all": "must be as untouched: all outputs put back",
}  # fmt: skip
"""What conditions are called on the page."""


def report_on(found: FoundHeads, model: str, task: str, known: str) -> Report:
    """Sweep, search and both tests as a page; `known` says what is known of the map, and how this was made."""
    parts = ", ".join(f"{count} for {name}" for name, count in found.parts.items())
    lead = [
        f"Model {model}, program `{found.program}`, task {task}. Held-out examples of {found.length} tokens: {parts}. "
        "Heads were found on the first part, confirmed on the second and tested on the third.",
        known,
        "Layers are counted from 1, heads from 0. An answer counts by its first token. Controls should leave the run "
        "that they are put into as it is; where one does not, the effect beside it is no evidence.",
    ]
    made = [_swept(found), _searched(found), _tested("steering", found.steering, _steers(found))]
    if found.restoration is not None:
        made.append(_tested("restoration", found.restoration, ""))
    return Report("Which heads carry what J does", lead, [each for each in made if each is not None])


def _swept(found: FoundHeads) -> Section | None:
    if not found.sweep:
        return None
    total = found.parts["discovery"]
    best = found.best
    low, high = (f"{100 * end:.0f}" for end in best.right_interval)
    said = (
        f"Layer {best.layer}, head {best.head} in loop {best.loop} has {best.right} of {total} right by itself "
        f"(95 %: {low} to {high} %)."
    )
    return Section("sweep", "Each head alone", "What does one head's steered pattern do in the run without J?",
                   figures=[_map(found.sweep, total)], finding=said)  # fmt: skip


def _map(sweep: Sequence[Swept], total: int) -> Figure:
    layers = sorted({each.layer for each in sweep})
    heads = 1 + max(each.head for each in sweep)
    panels: dict[str, Float[np.ndarray, "layers heads"]] = {}
    for loop in sorted({each.loop for each in sweep}):
        cells = np.full((len(layers), heads), np.nan)
        for each in sweep:
            if each.loop == loop:
                cells[layers.index(each.layer), each.head] = each.right / total
        panels[f"loop {loop}"] = cells

    def plot(width: int) -> Canvas:
        drawn, grid, legend, columns = multiples(width, len(panels))
        for index, (axes, (label, cells)) in enumerate(zip(grid, panels.items(), strict=True)):
            mesh(axes, cells)
            _write(axes, cells)
            axes.set_xticks(range(0, heads, max(1, heads // 6)))
            ticks = range(0, len(layers), max(1, len(layers) // 4))
            axes.set_yticks(ticks, [str(layers[at]) for at in ticks])
            axes.set_title(heading(label, width, columns))
            outer_labels(axes, index, len(panels), columns, "head", "layer")
        share_bar(legend, "right, %")
        return drawn

    text = " ".join(f"{label}, per cent by head: {_in_words(cells, layers)}." for label, cells in panels.items())
    caption = f"Right answers of {total} examples, a head's steered pattern in the run without J."
    return draw("sweep", "Each head alone", caption, text, plot)


def _write(axes: Axes, cells: Float[np.ndarray, "layers heads"]) -> None:
    """The numbers of cells, where there is room for them."""
    if cells.shape[1] <= 8 and cells.shape[0] <= 6:
        for (row, column), share in np.ndenumerate(cells):
            axes.text(column, row, f"{100 * share:.0f}", color=PAPER if share > 0.55 else INK, ha="center",
                      va="center_baseline")  # fmt: skip


def _in_words(cells: Float[np.ndarray, "layers heads"], layers: Sequence[int]) -> str:
    return "; ".join(f"layer {at}: {' '.join(map(percent, row))}" for at, row in zip(layers, cells, strict=True))


def _searched(found: FoundHeads) -> Section:
    question = "Which heads are the fewest that rescue the run without J and damage the steered one?"
    chosen = found.selection
    if chosen is None:
        said = (
            "J brings no more right answers on the examples for discovery, so there was nothing to search for."
            if found.restoration is None
            else "Heads were given, not searched."
        )
        return Section("search", "Search", question, finding=said)
    loops = ", ".join(map(str, chosen.loops))
    passed = "Every step had a scope that passed." if chosen.passed else "Not every step had a scope that passed."
    said = f"Heads {chosen.heads} in loop{'s' * (len(chosen.loops) > 1)} {loops}. {passed}"
    return Section("search", "Search", question, tables=[_steps(chosen)], finding=said)


def _steps(chosen: Selection) -> Listing:
    by_step: dict[str, list[Tried]] = {}
    for each in chosen.tried:
        by_step.setdefault(each.step, []).append(each)
    lines = {}
    for step, tried in by_step.items():
        best = max(tried, key=lambda each: each.rescue)
        lines[step] = {
            "tried": str(len(tried)), "passed": str(sum(each.passed for each in tried)), "best rescue": best.heads,
            "rescued": str(best.rescued), "damaged": str(best.damaged),
        }  # fmt: skip
    note = (
        f"Right answers of {chosen.pairs} examples for discovery ({chosen.unsteered} without J, {chosen.steered} with "
        "it), in steps of confirmation of those for that."
    )
    return Listing("Steps of the search", ("tried", "passed", "best rescue", "rescued", "damaged"), lines, note, "step")


def _steers(found: FoundHeads) -> str:
    share = {row.at["condition"]: row.estimate.value for row in found.steering.right().rows if "steps" not in row.at}
    said = f"With J {percent(share['steered'])} %, without it {percent(share['unsteered'])} %"
    return f"{said}; steered patterns alone: {percent(share['rescue'])} %." if "rescue" in share else f"{said}."


def _condition(condition: str) -> str:
    if condition.startswith(LAYER):
        return f"outputs of the chosen heads put back in {condition} alone"
    return TOLD.get(condition, condition)


def _tested(name: str, test: SideBySide, finding: str) -> Section:
    question = {
        "steering": "Do the patterns of these heads carry what J does?",
        "restoration": "Do the outputs of these heads bring back what J does?",
    }[name]
    table = test.right()
    rows = [row for row in table.rows if "steps" not in row.at]
    named = [replace(row, label=_condition(row.label)) for row in rows]
    shown = QuantityTable(table.id, f"{name.capitalize()} test", named, table.note)
    figure = rates(name, shown.title, f"Right answers of {len(test.examples)} examples, 95 % intervals.", [shown])
    return Section(name, shown.title, question, figures=[figure], tables=[shown], finding=finding)
