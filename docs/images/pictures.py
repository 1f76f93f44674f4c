"""Draws `sweep.svg` and `trajectories.svg`, the pictures of docs/pictures.md, from its own Python.

    python docs/images/pictures.py

The page makes the tables; this draws them with text that stays text, so that the files are small.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from loopscope.plot.canvas import LIGHT, rc_context

HERE = Path(__file__).parent
PAGE = HERE.parent / "pictures.md"
TABLES = {"sweep": "found", "trajectories": "moved"}
"""Which picture shows which name of the page."""


def tables() -> dict[str, Any]:
    """What the first two blocks of the page find."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks[:2]:
        exec(compile(block, PAGE.name, "exec"), names)
    return {picture: names[name] for picture, name in TABLES.items()}


def draw(found: dict[str, Any], folder: Path) -> None:
    """Write the pictures as SVG, the same bytes for the same numbers."""
    for name, table in found.items():
        figure = table.plot()
        file = io.StringIO()
        with rc_context({**LIGHT.settings, "svg.hashsalt": name}):
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": "loopscope"})
        (folder / f"{name}.svg").write_text(compact(file.getvalue()), encoding="utf-8")


def compact(svg: str) -> str:
    """A drawing with numbers of a hundredth of a pixel and without indents."""
    rounded = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), svg)
    return re.sub(r"\s*\n\s*", "\n", rounded)


if __name__ == "__main__":
    draw(tables(), HERE)
