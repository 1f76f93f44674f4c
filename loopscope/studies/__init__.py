"""The paper, study by study: what was measured, the claims, the report.  Only `cli` imports this.

A study is a folder.  What it has is found by the names of its modules: `experiments` (what is measured, on which
backbones), `recipes` (how these are trained), `claims` (what the paper says, with its judges), `report` (sections of
the page).
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

STUDIES = (
    "graph_walk",
    "parity",
    "relations",
    "letters",
    "antonyms",
    "iterations",
    "selecting",
    "failures",
)
"""One line for each study: the name of its folder, in the order in which claims and sections are shown."""


def part(study: str, name: str) -> ModuleType | None:
    """The module of this name of a study; None where it has none."""
    full = f"{__name__}.{study}.{name}"
    return importlib.import_module(full) if importlib.util.find_spec(full) is not None else None


def parts(name: str) -> list[ModuleType]:
    """The modules of this name, of all studies that have one."""
    return [found for study in STUDIES if (found := part(study, name)) is not None]
