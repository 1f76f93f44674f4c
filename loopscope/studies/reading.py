"""Reading records for verdicts: every record that a store must have, each checked against its experiment and backbone.

Judges and the page read through here.  A record that is damaged, missing, of an unknown experiment, or not what it says
is an error that names it: without it, the others might give another verdict.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from loopscope.store import inventory
from loopscope.store.artefacts import BACKBONE
from loopscope.store.files import damaged
from loopscope.store.manifest import MANIFEST
from loopscope.store.store import Store
from loopscope.store.zoo import VARIABLE, open_zoo
from loopscope.studies.layouts import LAYOUTS
from loopscope.studies.records import RECORD, LayoutOf, Record, open_results, records
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.training_logs import HISTORY, named

EVERY_LAYOUT: Mapping[str, LayoutOf] = {**LAYOUTS, **{each.name: each.layout for each in LANGUAGE.values()}}
"""What every experiment keeps."""


def read(store: Store, shipped: bool = False, besides: Collection[str] = ()) -> list[Record]:
    """Every record of a store besides those with these keys, which were read before; by experiment and name.

    DamagedError names what is missing or not listed where the store has an inventory, as one that is `shipped` with a
    checkout must; or the first record that cannot be read, is not what its experiment keeps, or calls its backbone
    otherwise than the store's history of it.
    """
    inventory.check(store.root, needed=shipped)
    found = records(store, layouts=EVERY_LAYOUT, besides=besides)
    _check_names(store, found)
    return found


def read_results(folder: Path | None = None) -> list[Record]:
    """The records that come with a checkout, or those in a folder; none without a checkout.  Raises as `read`."""
    return [record for store in open_results(folder) for record in read(store, shipped=folder is None)]


def check_zoo(folder: Path | None = None) -> None:
    """DamagedError where the zoo is not as its inventory says, which that of the checkout must have."""
    inventory.check(open_zoo(folder).root, needed=folder is None and not os.environ.get(VARIABLE))


def _check_names(store: Store, found: Iterable[Record]) -> None:
    """Histories say what backbones are called, by key."""
    names = {key: name for name, kind, key in map(named, store.every(HISTORY)) if kind == BACKBONE}
    for facts in (record.facts for record in found):
        known = names.get(facts.key, facts.name)
        if known != facts.name:
            of = ((each, each.manifest) for each in store.every(RECORD))
            made = next(
                each
                for each, manifest in of
                if facts.key in manifest.inputs.values() and manifest.config["subject"] == facts.name
            )
            raise damaged(made.folder / MANIFEST, f"a record of {known}, as the history of its backbone", facts.name)
