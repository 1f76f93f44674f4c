"""The sections of the page on graph walks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loopscope.studies.evidence import Evidence
from loopscope.studies.graph_walk.experiments import (
    CONTINUATION,
    CROSSING,
    LASTING,
    MATCHED,
    SWITCHING,
    TARGETS,
    TRAJECTORIES,
)
from loopscope.studies.graph_walk.report.composing import ASKED, composition_section
from loopscope.studies.graph_walk.report.continuation import continuation_section
from loopscope.studies.graph_walk.report.lasting import lasting_section
from loopscope.studies.graph_walk.report.mechanism import matched_section, mechanism_section
from loopscope.studies.graph_walk.report.walking import opening, targets_section, trajectories_section
from loopscope.studies.report.contents import Section

SECTIONS: Mapping[str, Callable[[Evidence], Section | None]] = {
    TRAJECTORIES: trajectories_section,
    TARGETS: targets_section,
    "composition": composition_section,
    "mechanism": mechanism_section,
    MATCHED: matched_section,
    LASTING: lasting_section,
    CONTINUATION: continuation_section,
}

OPENING = opening
"""The figures of the first screen."""

EXPERIMENTS_OF = {"composition": ASKED, "mechanism": (CROSSING, SWITCHING)}
"""Of sections that put several experiments together."""
