"""How far letter walkers go, for the section on them: right answers by the transfers asked for, with J and without."""

from __future__ import annotations

from collections.abc import Mapping

from loopscope.experiments.evidence import Evidence
from loopscope.experiments.records import Record
from loopscope.lm.letter_walks import TEMPLATES, TRAINED
from loopscope.report.contents import Figure
from loopscope.report.figures import lines_in_panels
from loopscope.report.models import by_depth, rows_of

SHADED = (0.7, TRAINED + 0.5)
"""Grey: transfers that backbones were trained on."""


def walks_figure(evidence: Evidence, found: Mapping[str, Record]) -> Figure:
    """A panel for every model: right answers by transfers, in the trained wording and, with J, in the held-out one."""
    panels = {
        label: by_depth(rows_of(evidence, record, "Letters, walks: right"), TEMPLATES)
        for label, record in found.items()
    }
    caption = (
        "Right answers by the transfers that were asked for, with 95 % intervals; without a map, after the four loops "
        "that backbones were trained in. Dashed: a wording that neither backbone nor map was trained on. Diamonds: the "
        "paper's, in the trained wording, of 16 graphs. Grey: transfers that backbones were trained on."
    )
    return lines_in_panels("letters-walks", "How far J leads", caption, panels, "transfers k", SHADED)
