"""The notebooks of `examples/` run from beginning to end, in less than three minutes each, and are light files."""

from __future__ import annotations

import json
import runpy
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent.parent / "examples"
BOOKS = sorted(HERE.glob("*.ipynb"))
SMOLLM2 = "smollm2-looped"
"""This one takes the weights: `network_smollm2.py` runs it."""

MOST_SECONDS = 180


def cells(file: Path) -> list[dict[str, Any]]:
    return [each for each in json.loads(file.read_text(encoding="utf-8"))["cells"] if each["cell_type"] == "code"]


@pytest.mark.parametrize("file", BOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_light_and_has_what_it_gave(file: Path) -> None:
    assert file.stat().st_size < 300_000
    assert [each["execution_count"] for each in cells(file)] == list(range(1, len(cells(file)) + 1))
    kinds = {out["output_type"] for each in cells(file) for out in each["outputs"]}
    assert "error" not in kinds
    text = file.read_text(encoding="utf-8")
    assert "/tmp" not in text
    assert "/home" not in text


def test_the_notebooks_are_those_of_the_pages() -> None:
    assert {file.stem for file in BOOKS} == {"first-steps", SMOLLM2, "your-model", "your-task"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [file.stem for file in BOOKS if file.stem != SMOLLM2])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_runs(name: str) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    execute = runpy.run_path(str(HERE / "run_notebooks.py"))["executed"]
    begun = time.monotonic()
    book = execute(HERE / f"{name}.ipynb")
    assert time.monotonic() - begun < MOST_SECONDS
    assert sum("image/png" in out.get("data", {}) for each in book.cells for out in each.get("outputs", ())) >= 2
