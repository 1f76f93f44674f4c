"""Everything that was measured, as one long table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loopscope.cli.app import AsJson, app, print_json, print_table, prose, say
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
    """A table for each quantity of a model; what holds for all of its rows stands in the title."""
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault((row["study"], row["experiment"], row["model"], row["id"]), []).append(row)
    before = None
    for (study, experiment, model, id), members in groups.items():
        if (about := f"{study}: {experiment}, {model}") != before:
            prose(before := about, "  ", "")
        _print_one(id, members)
        say("")
    say(f"{len(found):,} quantities")


def _print_one(id: str, members: Sequence[dict[str, Any]]) -> None:
    places = [json.loads(row["coordinates"]) for row in members]
    fixed = {name: value for name, value in places[0].items() if all(each.get(name) == value for each in places)}
    if len(members) == 1:
        fixed = {}
    print_table(
        " ".join([id, *_said(fixed)]),
        ("at", "value", "n", "published"),
        (
            (" ".join(_said({name: value for name, value in at.items() if name not in fixed})) or row["label"],
             _estimate(row), f"{row['n']:,}", _number(row["published"], ""))
            for at, row in zip(places, members, strict=True)
        ),
        whole=0,
    )  # fmt: skip


def _said(at: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in at.items()]


def _estimate(row: Mapping[str, Any]) -> str:
    """A value with its interval, as far as there are any."""
    if row["low"] is None:
        return _number(row["value"])
    return f"{_number(row['value'])} [{_number(row['low'])}, {_number(row['high'])}]"


def _number(value: float | None, none: str = "-") -> str:
    return none if value is None else f"{value:.4g}"
