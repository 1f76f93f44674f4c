"""The drill as tests: one for each class, which fails with the cases that did what must not happen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drill.classes import GROUPS

HERE = Path(__file__)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, str]]]:
    """The outcomes of all classes that are asked for, by class, from one process: run-time type checks of the test
    suite would answer before the library does, and importing everything takes seconds."""
    wanted = [item.callspec.params["group"] for item in request.session.items if item.path == HERE]  # type: ignore[attr-defined]
    file = tmp_path_factory.mktemp("drill") / "outcomes.json"
    parts = [part for name in wanted for part in ("--class", name)]
    asked = [sys.executable, "-m", "tests.drill", "--json", str(file), *parts]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=HERE.parents[2])
    assert file.is_file(), done.stdout + done.stderr
    found: dict[str, list[dict[str, str]]] = {name: [] for name in wanted}
    for row in json.loads(file.read_text(encoding="utf-8"))["cases"]:
        found[row["class"]].append(row)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_nothing_is_silently_wrong(group: str, outcomes: dict[str, list[dict[str, str]]]) -> None:
    bad = [row for row in outcomes[group] if row["verdict"] not in ("refused", "harmless")]
    lines = [f"{row['verdict']}: {row['id']}\n    {row['command']}\n    {row['why']}" for row in bad]
    assert outcomes[group]
    assert not bad, f"{len(bad)} of {len(outcomes[group])} cases, seed 0:\n" + "\n".join(lines)
