"""The section of the page on chains of relations."""

from __future__ import annotations

from loopscope.studies.relations.experiments import CHAINS
from loopscope.studies.report.extrapolation import chains_section

SECTIONS = {CHAINS: chains_section}
