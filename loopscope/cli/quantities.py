"""Everything that was measured, as one long table."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loopscope.cli.app import AsJson, app, print_json, print_table, say
from loopscope.cli.display import spinner
from loopscope.cli.options import FirstStore, Results
from loopscope.errors import InputError
from loopscope.store.outputs import check_file, write_file


@app.command()
def quantities(
    study: Annotated[str | None, typer.Argument(help="graph-walk, parity, letters, ...; default: all.")] = None,
    store: FirstStore = None,
    results: Results = None,
    out: Annotated[Path | None, typer.Option(help="A .csv or .parquet file to write; it must not exist.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print everything that was measured: id, coordinates, estimate, interval, n, published value, model, protocol."""
    from loopscope.cli.reproducing import evidence_of
    from loopscope.studies.measured import rows

    if out is not None and as_json:
        raise InputError("--out and --json are two ways to give the quantities; give one")
    write = None if out is None else _writer(out)
    with spinner() as log:
        log("reading records")
        evidence = evidence_of(results, store)
        log("counting")
        found = list(rows(evidence, study))
    if as_json:
        return print_json({"quantities": found})
    if out is None or write is None:
        return _print(found)
    write_file(out, lambda draft: write(draft, found))
    say(f"{out}: {len(found):,} quantities")


Writer = Callable[[Path, Sequence[dict[str, Any]]], None]


def _writer(out: Path) -> Writer:
    """What writes a file of this name; InputError where nothing does, or not there."""
    check_file(out)
    if out.suffix == ".csv":
        return _write_csv
    if out.suffix != ".parquet":
        raise InputError(f"quantities are written as .csv or .parquet, not to {out.name}")
    from loopscope.models.extras import extra

    extra("pyarrow", "a .parquet file", "tables")
    return _write_parquet


def _write_csv(out: Path, found: Sequence[dict[str, Any]]) -> None:
    from loopscope.studies.measured import COLUMNS

    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(found)


def _write_parquet(out: Path, found: Sequence[dict[str, Any]]) -> None:
    from loopscope.models.extras import extra
    from loopscope.studies.measured import COLUMNS, NUMBERS

    arrow = extra("pyarrow", "a .parquet file", "tables")
    types = {"n": arrow.int64(), **dict.fromkeys(NUMBERS, arrow.float64())}
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in COLUMNS])
    table = arrow.Table.from_pylist(list(found), schema=schema)
    extra("pyarrow.parquet", "a .parquet file", "tables").write_table(table, out)


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
