"""Write `loopscope/view/tour.json`: the numbers of the explorer's tour, from the stored records.

    python packaging/tour.py

The package has no records, so the numbers travel in it; a test compares the file with what this gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loopscope.cli.reproducing import evidence_of
from loopscope.studies.measured import rows
from loopscope.view.tour import FILE, STOPS

HERE = Path(__file__).parents[1] / "loopscope" / "view" / FILE


def numbers(found: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The numbers of every stop among all that was measured; ValueError where one is not there exactly once."""
    every = list(found)
    return {
        stop.id: {name: _number(every, stop.of, *asked) for name, asked in stop.numbers.items()} for stop in STOPS
    }  # fmt: skip


def _number(every: list[Mapping[str, Any]], model: str, quantity: str, at: Mapping[str, Any]) -> dict[str, Any]:
    together = quantity.startswith("matched.")
    mine = [
        row
        for row in every
        if row["id"] == quantity
        and (together or row["model"] == model)
        and at.items() <= json.loads(row["coordinates"]).items()
    ]
    if len(mine) != 1:
        raise ValueError(f"{quantity} of {model} at {dict(at)} was measured {len(mine)} times")
    row = mine[0]
    kept = {key: row[key] for key in ("label", "value", "low", "high", "n", "model")}
    kept |= {"quantity": quantity, "at": row["at"], "text": f"{100 * row['value']:.1f} %"}
    kept["title"] = (
        f"{row['label']}: {kept['text']} [{100 * row['low']:.1f}, {100 * row['high']:.1f}], n = {row['n']:,}"
    )
    return kept


def text() -> str:
    """The file."""
    return json.dumps(numbers(rows(evidence_of(None, None), "graph_walk")), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    HERE.write_text(text(), encoding="utf-8")
