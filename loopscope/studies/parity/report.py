"""The section of the page on parity."""

from __future__ import annotations

from loopscope.studies.parity.experiments import PARITY, PARITY_EXACT
from loopscope.studies.report.parity import parity_section

SECTIONS = {PARITY: parity_section}
EXPERIMENTS_OF = {PARITY: (PARITY, PARITY_EXACT)}
