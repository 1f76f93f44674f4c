"""Artefacts on disk: any store, and the zoo of trained backbones and maps."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopscope.cli.app import AsJson, app, fail, print_json, print_table, say
from loopscope.cli.display import spinner
from loopscope.cli.options import On, StoreFolder, ZooFolder
from loopscope.errors import InputError

if TYPE_CHECKING:
    from loopscope.store.store import Status, Store
    from loopscope.store.zoo import Entry

store_app = typer.Typer(no_args_is_help=True, help="Artefacts on disk: list, verify, clean up.")
zoo_app = typer.Typer(no_args_is_help=True, help="The zoo of trained models and maps: list, verify, add.")
app.add_typer(store_app, name="store")
app.add_typer(zoo_app, name="zoo")

BAD = {"damaged": "are damaged", "unreadable": "cannot be read"}
"""States of artefacts that are not as they should be, and how they are told."""


@store_app.command("list")
def store_list(store: StoreFolder = Path("store"), as_json: AsJson = False) -> None:
    """List the artefacts of a store; exit code 3 when one cannot be read."""
    found = open_store(store).list()
    _show_store(found, as_json)
    _refuse_bad(found)


@store_app.command("verify")
def store_verify(
    store: StoreFolder = Path("store"),
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Another store to compare with; may be repeated. Default: zoo and results of the checkout."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hash every file of every artefact; exit code 3 when one is damaged or cannot be read.

    An artefact that another store has under the same key with other bits is whole; its reason says where and why.
    """
    from loopscope.store import inventory
    from loopscope.store.differences import differing

    here = open_store(store)
    others = _shipped() if against is None else [open_store(folder) for folder in against]
    reasons: dict[tuple[str, str], list[str]] = {}
    found = here.verify()
    for each in differing(here, others):
        reasons.setdefault((each.kind, each.key), []).append(str(each))
    found = tuple(
        replace(status, reason="; ".join(reasons.get((status.kind, status.key), ())))
        if status.state == "ok"
        else status
        for status in found
    )
    _show_store(found, as_json)
    _refuse_bad(found)
    inventory.check(here.root)


def _shipped() -> list[Store]:
    """The zoo and the results of the checkout, as far as they are there."""
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.records import open_results

    zoo = []
    with suppress(InputError):
        zoo.append(open_zoo(None))
    return [*zoo, *open_results(None)]


def _refuse_bad(found: Iterable[Status]) -> None:
    """End with exit code 3 and one line if any artefact is not as it should be."""
    states = [status.state for status in found]
    wrong = [
        f"{states.count(state)} of {len(states)} artefacts {what}" for state, what in BAD.items() if state in states
    ]
    if wrong:
        fail("; ".join(wrong), 3)


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


@store_app.command("check")
def store_check(
    store: StoreFolder = Path("store"),
    on: On = None,
    as_json: AsJson = False,
) -> None:
    """Ask a worker whether a store can be shared with it: locks, renaming, visibility; exit code 2 if it cannot."""
    from loopscope.jobs.engines import engine_of
    from loopscope.jobs.probe import check

    place = store_to_be(store)
    engine = engine_of(on or "local:1")
    try:
        with spinner() as log:
            log(f"asking a worker of {on or 'local:1'}")
            found = check(engine, place)
    finally:
        engine.close()
    if as_json:
        return print_json({"store": str(place.root), **asdict(found)})
    where = f"{found.worker}, this machine: of others nothing is said" if found.same_machine else found.worker
    say(f"{place.root}: can be shared with a worker ({where})")
    say("locks: a lock that is held here is refused there; renaming: nothing is put where something is")
    say(f"seen: there after {found.worker_saw:.1f} s what is written here, here after {found.driver_saw:.1f} s")


@store_app.command("push")
def store_push(
    url: Annotated[str, typer.Argument(help="Where to: s3://BUCKET/FOLDER, or any place that fsspec knows.")],
    store: StoreFolder = Path("store"),
    as_json: AsJson = False,
) -> None:
    """Copy finished artefacts to an object store, each with its manifest last; what is there stays as it is."""
    from loopscope.store.pushing import push
    from loopscope.training.checkpoints import KIND

    with spinner() as log:
        found = push(open_store(store), url, besides=(KIND,), log=log)
    if as_json:
        return print_json({"url": url, **asdict(found)})
    say(f"{url}: {found.copied} artefacts copied, {found.size:,} bytes; {found.there} were there")


@zoo_app.command("list")
def zoo_list(
    zoo: ZooFolder = None,
    long: Annotated[bool, typer.Option("--long", help="Also when each was selected, and its score.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the models of the zoo, each with its maps; exit code 3 when some cannot be read."""
    from loopscope.store.zoo import open_zoo, readable_entries

    store = open_zoo(zoo)
    found, errors = readable_entries(store)
    _show_entries(store, found, as_json, long)
    if errors:
        fail(f"{len(errors)} more cannot be read; `loopscope zoo verify` says why; the first: {errors[0]}", 3)


@zoo_app.command("verify")
def zoo_verify(zoo: ZooFolder = None, as_json: AsJson = False) -> None:
    """Hash every file, load every entry, find every map's backbone; exit code 3 when anything cannot be used."""
    from loopscope.store import inventory
    from loopscope.store.zoo import open_zoo, readable_entries, verify

    store = open_zoo(zoo)
    names = {entry.key: entry.name for entry in readable_entries(store)[0]}
    rows = [{"name": names.get(status.key, status.key[:8]), **asdict(status)} for status in verify(store)]
    if as_json:
        print_json({"entries": rows})
    else:
        lines = ((row["name"], row["kind"], row["state"], row["reason"]) for row in rows)
        print_table(f"{len(rows)} entries", ("name", "kind", "state", "reason"), lines, left=4)
    bad = sum(row["state"] != "ok" for row in rows)
    if bad:
        fail(f"{bad} of {len(rows)} entries of {store.root} cannot be used", 3)
    inventory.check(store.root)


@zoo_app.command("add")
def zoo_add(
    names: Annotated[list[str], typer.Argument(help="Names or keys of models and maps, such as d8l6-3.")],
    store: StoreFolder = Path("store"),
    zoo: ZooFolder = None,
    as_json: AsJson = False,
) -> None:
    """Copy backbones, language models and maps from a store into the zoo; a map brings its model."""
    from loopscope.store.store import Store
    from loopscope.store.zoo import add, zoo_folder

    target = Store(zoo_folder(zoo))
    _show_entries(target, add(target, open_store(store), names), as_json)


def store_to_be(folder: Path) -> Store:
    """The store that a command writes to, there or not yet; InputError where a file stands in its place."""
    from loopscope.store.store import Store

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is no folder, so no store")
    return Store(folder)


def open_store(folder: Path) -> Store:
    """The store in a folder that is there; InputError if it is not."""
    from loopscope.store.store import Store

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


def _show_entries(store: Store, found: list[Entry], as_json: bool, long: bool = False) -> None:
    """Every model with its maps below it, a line each; `long` with what is known of each besides its size."""
    if as_json:
        return print_json({"entries": [asdict(entry) for entry in found]})
    from loopscope.store.zoo import owners

    owner = owners(store)
    models = [entry for entry in found if entry.key not in owner or owner[entry.key] not in {e.key for e in found}]
    rows: list[tuple[str, ...]] = []
    for model in models:
        for entry in (model, *(each for each in found if owner.get(each.key) == model.key)):
            name = entry.name if entry is model else f"  {entry.name}"
            about = (entry.about,) if long else ()
            rows.append((name, entry.kind, entry.key[:8], *about, f"{entry.bytes:,}"))
    columns = ("name", "kind", "key", *(["about"] if long else []), "bytes")
    print_table(f"{len(found)} entries", columns, rows, left=len(columns) - 1)


# ---- what a store must have ------------------------------------------------------------------------------------------


@store_app.command("inventory")
def store_inventory(
    store: StoreFolder = Path("store"),
    write: Annotated[bool, typer.Option("--write", help="List all that is there now, after hashing it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a store with the list of what it must have; exit code 3 for what is missing, changed or not listed."""
    from loopscope.store.inventory import INVENTORY, check

    place = open_store(store)
    if write:
        _write_inventory(place)
    many = check(place.root)
    if many is None:
        raise InputError(f"{place.root} has no {INVENTORY}, so nothing need be there; --write lists all that is")
    if as_json:
        return print_json({"inventory": str(place.root / INVENTORY), "artefacts": many})
    say(f"{place.root / INVENTORY}: {many} artefacts, all there and no others")


def _write_inventory(store: Store) -> None:
    """DamagedError, and nothing is written, where an artefact is not whole."""
    from loopscope.errors import DamagedError
    from loopscope.store import inventory

    found = store.verify()
    for each in found:
        if each.state != "ok":
            raise DamagedError(each.reason)
    inventory.write(store.root, [f"{each.kind}/{each.key}" for each in found])
