"""The figures of the section on the letter walk: how far walkers go, how far patterns lead them, what patches do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loopscope.quantity import Quantity, every
from loopscope.stats import Estimate, wilson
from loopscope.studies.evidence import Evidence
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.letters.tables import PAPER_CONTENT, PAPER_PAIRS
from loopscope.studies.letters.walks import TEMPLATES, TRAINED_DEPTH
from loopscope.studies.records import Record
from loopscope.studies.report.contents import Figure
from loopscope.studies.report.dots import Spot, dots
from loopscope.studies.report.figures import Line, lines_in_panels, stacked_panels
from loopscope.studies.report.models import by_depth, published

ByCondition = Mapping[str, Mapping[str, Quantity]]
"""Quantities by model and condition."""

SHADED = (0.7, TRAINED_DEPTH + 0.5)
"""Grey: transfers that backbones were trained on, and the loops they were trained in."""

ALONG = {
    "late rescue": "patterns of all late heads", "rescue": "patterns of the chosen heads",
    "outputs": "their outputs", "unsteered": "nothing",
}  # fmt: skip
"""What the unsteered run takes from the steered one, by condition."""


def walks_figure(evidence: Evidence, found: Mapping[str, Record]) -> Figure:
    """A panel for every model: right answers by transfers, in the trained wording and, with J, in the held-out one."""
    panels = {
        label: by_depth(evidence.quantities(record), "letters.walks", TEMPLATES) for label, record in found.items()
    }
    caption = (
        "Right answers by the transfers that were asked for, with 95 % intervals; without a map, after the four loops "
        "that backbones were trained in. Dashed: a wording that neither backbone nor map was trained on. Diamonds: the "
        "paper's, in the trained wording, of 16 graphs. Grey: transfers that backbones were trained on."
    )
    return lines_in_panels("letters-walks", "How far J leads", caption, panels, "transfers k", SHADED)


def along_figure(found: Mapping[str, Sequence[Quantity]]) -> Figure:
    """A panel for every model: after every loop, how often a run says what the steered run says there."""
    panels = {}
    for label, quantities in found.items():
        lines = []
        for condition, said in ALONG.items():
            if loops := every(quantities, "letters.steering.along", condition=condition):
                lines.append(Line(said, [each.estimate for each in loops], control=condition == "unsteered"))
        panels[label] = lines
    caption = (
        "Into the run without J, something of the run with J is put; how often both then name the same person, loop by "
        "loop, with 95 % intervals. All late heads are patched in loops 2 to L, chosen ones where they were chosen. "
        "Grey: loops that backbones were trained in."
    )
    return lines_in_panels("letters-along", "How far patterns lead", caption, panels, "loop", SHADED, share="alike")


# ---- the three tests -------------------------------------------------------------------------------------------------

SELF = {"self-pattern": "its own patterns", "self-output": "its own outputs"}
"""Conditions in which a run is given what it has anyway."""

STEERED: Mapping[str, Mapping[str, str]] = {
    "no patch": {"unsteered": "without J", "steered": "with J"},
    "patterns of the chosen heads": {"rescue": "rescue: steered into unsteered", "damage": "damage: the reverse"},
    "outputs of the chosen heads": {"outputs": "steered into unsteered"},
    "controls, into the unsteered run": {
        "values": "values in place of patterns", "unrelated": "patterns of another graph",
        "wrong loop": "patterns of another loop", "comparison": "comparison heads",
        "complement": "other heads of these layers",
    },
    "controls, into the steered run": {
        "comparison damage": "comparison heads", "complement damage": "other heads of these layers",
    },
    "all heads of the late layers": {"late rescue": "rescue", "late damage": "damage"},
    "what the run has anyway": SELF,
}  # fmt: skip
"""Conditions of the steering test by what they are for, with their names in the figure."""

BACK = {"selected": "at the chosen heads", "comparison": "at comparison heads", "all": "at all heads of these layers"}
RESTORED: Mapping[str, Mapping[str, str]] = {
    "right answers": {"clean": "clean run", "replaced": "other queries"},
    "right answers, clean outputs put back": BACK,
}

ANSWERS = {"B": "B, own answer", "E": "E, rerouted", "D": "D, donor's answer", "other": "other"}


def by_layer(rows: ByCondition) -> dict[str, str]:
    """Conditions that put back the chosen heads of one layer, in order."""
    layers = {int(each.at["layer"]): name for found in rows.values() for name, each in found.items()
              if "layer" in each.at}  # fmt: skip
    return {layers[layer]: f"at the chosen heads of layer {layer}" for layer in sorted(layers)}


def _spots(labels: Mapping[str, str], rows: ByCondition) -> list[Spot]:
    """A row of the figure for each of the conditions that some model was run in."""
    made = []
    for name, said in labels.items():
        there = {label: found[name] for label, found in rows.items() if name in found}
        if there:
            shares = {label: each.estimate for label, each in there.items()}
            made.append(Spot(said, shares, next(iter(there.values())).published))
    return made


def steering_figure(rows: ByCondition, series: Sequence[str]) -> Figure:
    """Right answers in every condition of the steering test, models side by side."""
    groups = {group: _spots(labels, rows) for group, labels in STEERED.items()}
    n = _often(each for found in rows.values() for each in found.values())
    caption = (
        f"Right answers of {n} independent pairs with 95 % intervals. Controls should leave the run that "
        "they are put into as it is. Diamonds: the paper's numbers."
    )
    return dots("letters-steering", "What steered patterns do", caption, {k: v for k, v in groups.items() if v}, series)


def of_itself(found: Quantity) -> bool:
    """Whether a run was given what it has anyway."""
    return found.at["condition"] in SELF


def content_figure(rows: Mapping[str, Sequence[Quantity]]) -> Figure:
    """A panel for every model and the paper: B, E, D or somebody else, in every condition."""
    panels: dict[str, dict[str, dict[str, Estimate]]] = {}
    for label, found in rows.items():
        counts: dict[str, dict[str, int]] = {}
        for each in found:
            if not of_itself(each):
                mine = counts.setdefault(str(each.at["condition"]), {})
                mine[str(each.at["answer"])] = round(each.estimate.value * each.n)
        panels[label] = {condition: _parts(each, found[0].n) for condition, each in counts.items()}
    shown = dict.fromkeys(condition for answers in panels.values() for condition in answers)
    panels[published(LETTERS)] = {
        condition: _parts(dict(zip("BDE", PAPER_CONTENT[condition], strict=True)), PAPER_PAIRS)
        for condition in shown
        if condition in PAPER_CONTENT
    }
    n = _often(each for found in rows.values() for each in found)
    caption = (
        f"Who is named in {n} shared-path pairs, with J in all runs. Base, source and reference are clean "
        "runs; below them, the source's pattern, output or values at the chosen heads of the base's run, and controls. "
        "The pattern should give E, the output D, the controls B."
    )
    return stacked_panels("letters-content", "Pattern against output between graphs", caption, panels, ANSWERS)


def _parts(counts: Mapping[str, int], n: int) -> dict[str, Estimate]:
    whole = {**counts, "other": n - sum(counts.values())}
    return {which: wilson(whole[which], n, unit="pair") for which in ANSWERS}


def restoration_figure(rows: ByCondition, repaired: ByCondition, series: Sequence[str]) -> Figure:
    """Right answers in every condition of the restoration test, and those that were repaired."""
    groups = {
        **{group: _spots(labels, rows) for group, labels in RESTORED.items()},
        "repaired of what other queries broke": _spots({**BACK, **by_layer(rows)}, repaired),
    }
    n = _often(each for found in rows.values() for each in found.values())
    caption = (
        f"{n} shared-path pairs; in the chosen heads' layers, queries of a run on the same graph that "
        "starts elsewhere. Below: of the answers that were right and are not, how many are right again. Diamonds: the "
        "paper's numbers."
    )
    filled = {group: spots for group, spots in groups.items() if spots}
    return dots("letters-restoration", "Outputs of the chosen heads repair", caption, filled, series)


def _often(quantities: Iterable[Quantity]) -> str:
    return " or ".join(str(n) for n in sorted({each.n for each in quantities}))
