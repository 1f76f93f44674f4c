"""Everything that was measured, as one long table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loopscope.cli.app import AsJson, app, print_json, print_table, say
from loopscope.cli.display import spinner
from loopscope.cli.options import FirstStore, Results
from loopscope.errors import InputError


@app.command()
def quantities(
    study: Annotated[str | None, typer.Argument(help="graph_walk, parity, letters, ...; default: all.")] = None,
    store: FirstStore = None,
    results: Results = None,
    out: Annotated[
        Path | None, typer.Option(help="A .csv, .parquet or .safetensors file to write; it must not exist.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print everything that was measured: id, coordinates, estimate, interval, n, published value, model, protocol."""
    from loopscope.cli.reproducing import evidence_of
    from loopscope.studies.measured import rows
    from loopscope.table import check_output

    if out is not None and as_json:
        raise InputError("--out and --json are two ways to give the quantities; give one")
    if out is not None:
        check_output(out, "quantities")
    with spinner() as log:
        log("reading records")
        evidence = evidence_of(results, store)
        log("counting")
        found = list(rows(evidence, study))
    if as_json:
        return print_json({"quantities": found})
    if out is None:
        return _print(found)
    _save(found, out)
    say(f"{out}: {len(found):,} quantities")


def _save(found: Sequence[dict[str, Any]], out: Path) -> None:
    import numpy as np

    from loopscope.studies.measured import COLUMNS, NUMBERS
    from loopscope.table import Table

    types = {"n": np.int64, **dict.fromkeys(NUMBERS, np.float64)}
    columns = {name: np.array([row[name] for row in found], types.get(name, object)) for name in COLUMNS}
    Table("quantities", columns).save(out)


def _print(found: Sequence[dict[str, Any]]) -> None:
    """A table for each experiment, the coordinates in words."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault((row["study"], row["experiment"]), []).append(row)
    for (study, experiment), members in groups.items():
        print_table(
            f"{study}: {experiment}",
            ("model", "id", "at", "value", "interval", "n", "published"),
            (
                (r["model"], r["id"], r["at"], _number(r["value"]), f"{_number(r['low'])}..{_number(r['high'])}",
                 f"{r['n']:,}", _number(r["published"], ""))
                for r in members
            ),
            left=3,
        )  # fmt: skip
    say(f"{len(found):,} quantities")


def _number(value: float | None, none: str = "-") -> str:
    return none if value is None else f"{value:.4g}"
