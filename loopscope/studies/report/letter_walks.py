"""Figures by depth and loop for the section on the letter walk: how far walkers go, and how far patterns lead them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopscope.quantity import Quantity, every
from loopscope.studies.evidence import Evidence
from loopscope.studies.letters.walks import TEMPLATES, TRAINED
from loopscope.studies.records import Record
from loopscope.studies.report.contents import Figure
from loopscope.studies.report.figures import Line, lines_in_panels
from loopscope.studies.report.models import by_depth

SHADED = (0.7, TRAINED + 0.5)
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
