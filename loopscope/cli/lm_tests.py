"""Tests of looped language models with a map: letters, antonyms, iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.bounds import BATCH, whole
from loopscope.cli.app import AsJson, print_json, print_table, say
from loopscope.cli.display import spinner
from loopscope.cli.lm import Ending, Precision, ending_named, lm_app, quiet_transformers
from loopscope.cli.stores import StoreFolder, store_to_be
from loopscope.cli.threads import choose_threads, weights_in
from loopscope.cli.training import Device

if TYPE_CHECKING:
    from loopscope.quantity import Quantity
    from loopscope.store.store import Store
    from loopscope.studies.language.records import LanguageSubject
    from loopscope.studies.records import Record

test_app = typer.Typer(
    no_args_is_help=True,
    help="Test a language model with its map; records go to a store, for `loopscope claims`.",
)
lm_app.add_typer(test_app, name="test")

Folder = Annotated[Path, typer.Argument(help="A model folder (with tokenizer and chat template), or a zoo name.")]
MapFolder = Annotated[Path, typer.Option("--map", help="A saved map J, or one of the zoo.")]
Name = Annotated[str | None, typer.Option(help="What the model is called in tables; default: its folder's name.")]
Loops = Annotated[int | None, typer.Option(help="Calls of the stack; default: those of the map's fit, or the model's.")]
Batch = Annotated[int, typer.Option(help="Questions at a time.")]
AnyMap = Annotated[
    bool, typer.Option("--any-map", help="Take a map that was fitted to another model or boundary; no claim does.")
]


@test_app.command("letters")
def lm_test_letters(
    folder: Folder,
    step: MapFolder,
    store: StoreFolder = Path("store"),
    test: Annotated[
        list[str] | None,
        typer.Option(help="walks, steering, pattern-vs-output or restoration (repeatable); default: all."),
    ] = None,
    pairs: Annotated[int | None, typer.Option(help="Only the first so many of the 256 pairs.")] = None,
    heads: Annotated[
        str | None, typer.Option(help="Patch these instead of searching: '42.2,10 44.1' (layers from 1).")
    ] = None,
    name: Name = None,
    loops: Loops = None,
    boundary: Ending = None,
    batch: Batch = 16,
    device: Device = "auto",
    dtype: Precision = "fp32",
    any_map: AnyMap = False,
    as_json: AsJson = False,
) -> None:
    """How far each loop walks; the heads that carry the steering of eight steps, and patches of them on 256 pairs."""
    from loopscope.measure.heads import Heads
    from loopscope.studies.language.records import LETTER_TESTS, check_letters, measure_letters

    asked = tuple(dict.fromkeys(test or LETTER_TESTS))
    check_letters(asked, pairs)
    chosen = None if heads is None else Heads.parse(heads)
    check_batch(batch)
    with _at_work(folder, step, store, name, loops, boundary, device, dtype, any_map) as (subject, target, log):
        made = measure_letters(subject, target, tests=asked, heads=chosen, count=pairs, batch=batch, log=log)
    _show(made, as_json)


@test_app.command("antonyms")
def lm_test_antonyms(
    folder: Folder,
    step: MapFolder,
    supervision: Annotated[str, typer.Option(help="How the backbone was trained: final-only or stepwise.")],
    store: StoreFolder = Path("store"),
    sequences: Annotated[int, typer.Option(help="Only the first so many of the 64 sequences.")] = 64,
    name: Name = None,
    loops: Loops = None,
    boundary: Ending = None,
    batch: Batch = 32,
    device: Device = "auto",
    dtype: Precision = "fp32",
    any_map: AnyMap = False,
    as_json: AsJson = False,
) -> None:
    """Ask for deletions 1-8 with and without J, and read every loop of the bare model."""
    from loopscope.studies.antonyms.tests import readout_requests
    from loopscope.studies.language.records import measure_antonyms

    readout_requests(supervision, sequences)
    check_batch(batch)
    with _at_work(folder, step, store, name, loops, boundary, device, dtype, any_map) as (subject, target, log):
        made = measure_antonyms(subject, target, supervision, sequences=sequences, batch=batch, log=log)
    _show([made], as_json)


@test_app.command("iterations")
def lm_test_iterations(
    folder: Folder,
    step: MapFolder,
    store: StoreFolder = Path("store"),
    cases: Annotated[int, typer.Option(help="Requests for each task, k and set of starts; there are 32.")] = 32,
    name: Name = None,
    boundary: Ending = None,
    batch: Batch = 32,
    device: Device = "auto",
    dtype: Precision = "fp32",
    any_map: AnyMap = False,
    as_json: AsJson = False,
) -> None:
    """Go on from a common h4 with J and F, F, J, or stop: five tasks, 1-8 steps, held-out and trained starts."""
    from loopscope.studies.iterations.tests import requests
    from loopscope.studies.language.records import measure_iterations

    requests(cases)
    check_batch(batch)
    with _at_work(folder, step, store, name, None, boundary, device, dtype, any_map) as (subject, target, log):
        made = measure_iterations(subject, target, cases=cases, batch=batch, log=log)
    _show([made], as_json)


def check_batch(batch: int) -> None:
    """InputError for a number of questions at a time that cannot be."""
    whole("--batch", batch, 1, BATCH)


@contextmanager
def _at_work(
    folder: Path, step: Path, store: Path, name: str | None, loops: int | None, boundary: str | None, device: str,
    dtype: str, any_map: bool,
) -> Iterator[tuple[LanguageSubject, Store, Callable[[str], None]]]:  # fmt: skip
    """The model with its map, the store, and a spinner; InputError before anything is loaded where they do not fit."""
    quiet_transformers()
    from loopscope.loading import language_folder, map_folder
    from loopscope.models.passes import precision_named
    from loopscope.studies.language.records import load_language
    from loopscope.training.job import pick_device

    ending = ending_named(boundary)
    precision = precision_named(dtype)
    place = language_folder(folder)
    called = folder.name if name is None and place != folder else name  # the folder of a zoo's model is called by a key
    target = store_to_be(store)
    with spinner() as log:
        log("loading")
        choose_threads(weights_in(place))
        subject = load_language(
            place, map_folder(step), name=called, loops=loops, boundary=ending, device=pick_device(device),
            dtype=precision, any_map=any_map,
        )  # fmt: skip
        yield subject, target, log


def _show(made: list[Record], as_json: bool) -> None:
    if as_json:
        return print_json({"records": [record_json(record) for record in made]})
    for record in made:
        print_record(record)


def print_record(record: Record) -> None:
    """The tables of a record."""
    from loopscope.studies.language.names import scale_of
    from loopscope.studies.language.tables import tables

    for table in tables(record):
        if rows := [(row.label, *_numbers(row)) for row in table.rows]:
            print_table(f"{table.title} ({scale_of(record)})", ("", "%", "interval", "n", "paper"), rows)
        if table.note:
            say(table.note)
    if provenance := record.notes.get("map", {}).get("provenance"):
        say(f"The map is {provenance}.")


def _numbers(row: Quantity) -> tuple[str, str, str, str]:
    each = row.estimate
    paper = "" if row.published is None else f"{100 * row.published:.1f}"
    return f"{100 * each.value:.1f}", f"{100 * each.low:.1f}..{100 * each.high:.1f}", f"{row.n:,}", paper


def record_json(record: Record) -> dict[str, Any]:
    """A record with its tables, for --json."""
    from dataclasses import asdict

    from loopscope.studies.language.names import identity_of, scale_of
    from loopscope.studies.language.tables import tables

    return {
        "experiment": record.experiment, "model": record.facts.name, "identity": dict(identity_of(record)),
        "scale": scale_of(record),
        "settings": dict(record.settings), "cost": dict(record.cost), "notes": dict(record.notes),
        "tables": [asdict(table) for table in tables(record)],
    }  # fmt: skip
