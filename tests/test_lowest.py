"""The lowest versions that are declared are those that are tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = {
    "ipykernel",
    "lm-eval",
    "nbclient",
    "nbformat",
    "hatchling",
    "mkdocs-material",
    "mkdocstrings[python]",
    "mypy",
    "playwright",
    "ray",
    "ruff",
    "submitit",
    "triton",
}
"""What builds, checks, draws and spreads jobs, and is run in the newest versions alone."""


def test_bounds_are_those_of_the_lowest_environment() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [
        *project["dependencies"],
        *(each for some in project["optional-dependencies"].values() for each in some),
    ]
    bounds = dict(each.partition(";")[0].strip().split(">=") for each in declared)
    pinned = versions("constraints-lowest.txt")
    assert pinned.pop("torch") == versions("constraints.txt")["torch"]
    assert bounds.pop("torch") == "2.11"  # the lowest that has run
    for name, lowest in bounds.items():
        if name not in TOOLS:
            assert padded(pinned.pop(name)) == padded(lowest), name
    assert pinned == {}


def versions(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if re.match(r"\w", line))


def padded(version: str) -> tuple[int, ...]:
    numbers = [int(each) for each in version.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))
