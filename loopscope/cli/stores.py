"""Artefacts on disk: any store, and the zoo of trained backbones and maps."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopscope.cli.app import AsJson, app, fail, print_json, print_table
from loopscope.errors import InputError

if TYPE_CHECKING:
    from loopscope.store import Status, Store
    from loopscope.zoo import Entry

store_app = typer.Typer(no_args_is_help=True, help="Artefacts on disk: list, verify, clean up.")
zoo_app = typer.Typer(no_args_is_help=True, help="The zoo of trained models and maps: list, verify, add.")
app.add_typer(store_app, name="store")
app.add_typer(zoo_app, name="zoo")

StoreFolder = Annotated[Path, typer.Option("--store", help="Folder of the artefact store.")]
ZooFolder = Annotated[Path | None, typer.Option("--zoo", help="Folder of the zoo; default: that of the checkout.")]


@store_app.command("list")
def store_list(store: StoreFolder = Path("store"), as_json: AsJson = False) -> None:
    """List the artefacts of a store."""
    _show_store(open_store(store).list(), as_json)


@store_app.command("verify")
def store_verify(store: StoreFolder = Path("store"), as_json: AsJson = False) -> None:
    """Hash every file of every artefact; exit code 3 when one is damaged."""
    found = open_store(store).verify()
    _show_store(found, as_json)
    damaged = sum(status.state == "damaged" for status in found)
    if damaged:
        fail(f"{damaged} of {len(found)} artefacts are damaged", 3)


@store_app.command("gc")
def store_gc(
    store: StoreFolder = Path("store"),
    dry_run: Annotated[bool, typer.Option(help="Say what would be removed, remove nothing.")] = False,
    damaged: Annotated[bool, typer.Option(help="Also remove artefacts that fail their hashes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what interrupted writers left behind."""
    report = open_store(store).gc(dry_run=dry_run, damaged=damaged)
    if as_json:
        return print_json(asdict(report))
    title = f"{'would free' if dry_run else 'freed'} {report.freed:,} bytes; {report.live} writers at work"
    print_table(title, ("path", "reason", "bytes"), ((r.path, r.reason, f"{r.size:,}") for r in report.removed), left=2)


@zoo_app.command("list")
def zoo_list(zoo: ZooFolder = None, as_json: AsJson = False) -> None:
    """List the backbones, language models and maps of the zoo."""
    from loopscope.zoo import entries, open_zoo

    store = open_zoo(zoo)
    _show_entries(entries(store), as_json)
    unread = sum(status.state != "ok" for status in store.list())
    if unread:
        print(f"loopscope: {unread} more cannot be read; `loopscope zoo verify` says why", file=sys.stderr)


@zoo_app.command("verify")
def zoo_verify(zoo: ZooFolder = None, as_json: AsJson = False) -> None:
    """Hash every file, load every entry, find every map's backbone; exit code 3 when anything cannot be used."""
    from loopscope.zoo import entries, open_zoo, verify

    store = open_zoo(zoo)
    names = {entry.key: entry.name for entry in entries(store)}
    rows = [{"name": names.get(status.key, status.key[:8]), **asdict(status)} for status in verify(store)]
    if as_json:
        print_json({"entries": rows})
    else:
        lines = ((row["name"], row["kind"], row["state"], row["reason"]) for row in rows)
        print_table(f"{len(rows)} entries", ("name", "kind", "state", "reason"), lines, left=4)
    bad = sum(row["state"] != "ok" for row in rows)
    if bad:
        fail(f"{bad} of {len(rows)} entries of {store.root} cannot be used", 3)


@zoo_app.command("add")
def zoo_add(
    names: Annotated[list[str], typer.Argument(help="Names or keys of models and maps, such as d8l6-3.")],
    store: StoreFolder = Path("store"),
    zoo: ZooFolder = None,
    as_json: AsJson = False,
) -> None:
    """Copy backbones, language models and maps from a store into the zoo; a map brings its model."""
    from loopscope.store import Store
    from loopscope.zoo import add, zoo_folder

    _show_entries(add(Store(zoo_folder(zoo)), open_store(store), names), as_json)


def store_to_be(folder: Path) -> Store:
    """The store that a command writes to, there or not yet; InputError where a file stands in its place."""
    from loopscope.store import Store

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is no folder, so no store")
    return Store(folder)


def open_store(folder: Path) -> Store:
    """The store in a folder that is there; InputError if it is not."""
    from loopscope.store import Store

    if not folder.is_dir():
        raise InputError(f"there is no store at {folder}; name one with --store")
    return Store(folder)


def _show_store(found: Iterable[Status], as_json: bool) -> None:
    rows = [asdict(status) for status in found]
    if as_json:
        return print_json({"artefacts": rows})
    columns = ("kind", "key", "state", "created", "reason", "bytes")
    lines = ((r["kind"], r["key"][:16], r["state"], r["created"], r["reason"], f"{r['size']:,}") for r in rows)
    print_table(f"{len(rows)} artefacts", columns, lines, left=5)


def _show_entries(found: list[Entry], as_json: bool) -> None:
    if as_json:
        return print_json({"entries": [asdict(entry) for entry in found]})
    rows = ((entry.name, entry.kind, entry.key[:8], entry.about, f"{entry.bytes:,}") for entry in found)
    print_table(f"{len(found)} entries", ("name", "kind", "key", "about", "bytes"), rows, left=4, whole=False)
