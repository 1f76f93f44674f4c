"""The section of the page on selecting or creating."""

from __future__ import annotations

from loopscope.studies.report.selecting import selecting_section
from loopscope.studies.selecting.experiments import SELECTING

SECTIONS = {SELECTING: selecting_section}
