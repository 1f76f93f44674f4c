"""Tests of looped language models with a map: letters, antonyms, iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.bounds import BATCH, whole
from loopscope.cli.app import AsJson, print_json, print_table, prose
from loopscope.cli.display import spinner
from loopscope.cli.lm import lm_app, quiet_transformers
from loopscope.cli.options import AnyMap, LanguageModel, MapFolder, StoreFolder, bundled
from loopscope.cli.stores import store_to_be
from loopscope.cli.threads import choose_threads, weights_in

if TYPE_CHECKING:
    from loopscope.quantity import Quantity
    from loopscope.store.store import Store
    from loopscope.studies.language.records import SteeredModel
    from loopscope.studies.records import Record

test_app = typer.Typer(
    no_args_is_help=True,
    help="Test a language model with its map; records go to a store, for `loopscope claims`.",
)
lm_app.add_typer(test_app, name="test")

Loops = Annotated[int | None, typer.Option(help="Calls of the stack; default: those of the map's fit, or the model's.")]
Batch = Annotated[int, typer.Option(help="Questions at a time.")]


@dataclass(frozen=True, kw_only=True)
class Tested(LanguageModel):
    """A language model that is tested with a map, what records call it, and where they go."""

    steering: MapFolder
    store: StoreFolder = Path("store")
    name: Annotated[
        str | None, typer.Option(help="What the model is called in tables; default: as its folder or on the hub.")
    ] = None
    any_map: AnyMap = False
    as_json: AsJson = False


@test_app.command("letters")
@bundled
def lm_test_letters(
    asked: Tested,
    test: Annotated[
        list[str] | None,
        typer.Option(help="walks, steering, pattern-vs-output or restoration (repeatable); default: all."),
    ] = None,
    pairs: Annotated[int | None, typer.Option(help="Only the first so many of the 256 pairs.")] = None,
    heads: Annotated[
        str | None, typer.Option(help="Patch these instead of searching: '42.2,10 44.1' (layers from 1).")
    ] = None,
    loops: Loops = None,
    batch: Batch = 16,
) -> None:
    """How far each loop walks; the heads that carry the steering of eight steps, and patches of them on 256 pairs."""
    from loopscope.measure.heads import Heads
    from loopscope.studies.letters.records import LETTER_TESTS, check_letters, measure_letters

    tests = tuple(dict.fromkeys(test or LETTER_TESTS))
    check_letters(tests, pairs)
    chosen = None if heads is None else Heads.parse(heads)
    check_batch(batch)
    with _at_work(asked, loops) as (trained, target, log):
        made = measure_letters(trained, target, tests=tests, heads=chosen, count=pairs, batch=batch, log=log)
    _show(made, asked.as_json)


@test_app.command("antonyms")
@bundled
def lm_test_antonyms(
    asked: Tested,
    supervision: Annotated[str, typer.Option(help="How the backbone was trained: final-only or stepwise.")],
    sequences: Annotated[int, typer.Option(help="Only the first so many of the 64 sequences.")] = 64,
    loops: Loops = None,
    batch: Batch = 32,
) -> None:
    """Ask for deletions 1-8 with and without J, and read every loop of the bare model."""
    from loopscope.studies.antonyms.experiments import measure_antonyms
    from loopscope.studies.antonyms.tests import readout_requests

    readout_requests(supervision, sequences)
    check_batch(batch)
    with _at_work(asked, loops) as (trained, target, log):
        made = measure_antonyms(trained, target, supervision, sequences=sequences, batch=batch, log=log)
    _show([made], asked.as_json)


@test_app.command("iterations")
@bundled
def lm_test_iterations(
    asked: Tested,
    cases: Annotated[int, typer.Option(help="Requests for each task, k and set of starts; there are 32.")] = 32,
    batch: Batch = 32,
) -> None:
    """Go on from a common h4 with J and F, F, J, or stop: five tasks, 1-8 steps, held-out and trained starts."""
    from loopscope.studies.iterations.experiments import measure_iterations
    from loopscope.studies.iterations.tests import requests

    requests(cases)
    check_batch(batch)
    with _at_work(asked) as (trained, target, log):
        made = measure_iterations(trained, target, cases=cases, batch=batch, log=log)
    _show([made], asked.as_json)


def check_batch(batch: int) -> None:
    """InputError for a number of questions at a time that cannot be."""
    whole("--batch", batch, 1, BATCH)


@contextmanager
def _at_work(asked: Tested, loops: int | None = None) -> Iterator[tuple[SteeredModel, Store, Callable[[str], None]]]:
    """The model with its map, the store, and a spinner; InputError before anything is loaded where they do not fit."""
    quiet_transformers()
    from loopscope.studies.language.records import load_language

    ending, precision, target = asked.ending, asked.precision, store_to_be(asked.store)
    with spinner() as log:
        log("loading")
        choose_threads(weights_in(asked.folder))
        trained = load_language(
            asked.folder, asked.steering, name=asked.name or _kept_as(asked.folder), loops=loops, boundary=ending,
            loop=asked.loop, device=asked.place, dtype=precision, any_map=asked.any_map,
        )  # fmt: skip
        yield trained, target, log


def _kept_as(folder: Path) -> str | None:
    """The name under which a store has this folder; None of any other."""
    from loopscope.store.artefacts import name_of
    from loopscope.store.contents import Artefact
    from loopscope.store.manifest import MANIFEST, read_manifest

    return name_of(Artefact(folder, read_manifest(folder))) if (folder / MANIFEST).is_file() else None


def _show(made: list[Record], as_json: bool) -> None:
    if as_json:
        return print_json({"records": [record_json(record) for record in made]})
    for record in made:
        print_record(record)


def print_record(record: Record) -> None:
    """The tables of a record."""
    from loopscope.studies.language.names import scale_of
    from loopscope.studies.registry import LANGUAGE

    for table in LANGUAGE[record.experiment].tables(record):
        if rows := [(row.label, *_numbers(row)) for row in table.rows]:
            print_table(f"{table.title} ({scale_of(record)})", ("", "%", "interval", "n", "paper"), rows)
        if table.note:
            prose(table.note)
    if provenance := record.notes.get("map", {}).get("provenance"):
        prose(f"The map is {provenance}.")


def _numbers(row: Quantity) -> tuple[str, str, str, str]:
    each = row.estimate
    paper = "" if row.published is None else f"{100 * row.published:.1f}"
    return f"{100 * each.value:.1f}", f"{100 * each.low:.1f}..{100 * each.high:.1f}", f"{row.n:,}", paper


def record_json(record: Record) -> dict[str, Any]:
    """A record with its tables, for --json."""
    from dataclasses import asdict

    from loopscope.studies.language.names import identity_of, scale_of
    from loopscope.studies.registry import LANGUAGE

    return {
        "experiment": record.experiment, "model": record.facts.name, "identity": dict(identity_of(record)),
        "scale": scale_of(record),
        "settings": dict(record.settings), "cost": dict(record.cost), "notes": dict(record.notes),
        "tables": [asdict(table) for table in LANGUAGE[record.experiment].tables(record)],
    }  # fmt: skip
