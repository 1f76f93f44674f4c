"""Records as verdicts need them: all that a store must have, each what its experiment keeps, of the backbone it names.

Whoever judges reads through here.  A record that is damaged, missing, foreign or not what it says is an error that
names it, so that there is no verdict and no page from the others alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from loopscope.store import inventory
from loopscope.store.artefacts import BACKBONE
from loopscope.store.files import damaged
from loopscope.store.manifest import MANIFEST
from loopscope.store.store import Store
from loopscope.store.zoo import VARIABLE, open_zoo
from loopscope.studies.antonyms.layouts import antonym_layout
from loopscope.studies.iterations.layouts import iteration_layout
from loopscope.studies.language.layouts import ANTONYMS, ITERATIONS, LETTERS
from loopscope.studies.layouts import LAYOUTS
from loopscope.studies.letters.layouts import letter_layout
from loopscope.studies.records import RECORD, LayoutOf, Record, open_results, records
from loopscope.studies.training_logs import HISTORY, named

EVERY_LAYOUT: Mapping[str, LayoutOf] = {
    **LAYOUTS,
    LETTERS: letter_layout,
    ANTONYMS: antonym_layout,
    ITERATIONS: iteration_layout,
}
"""What every experiment keeps."""


def read(store: Store, shipped: bool = False) -> list[Record]:
    """Every record of a store, by experiment and name.

    DamagedError names what is missing or not listed where the store has an inventory, as one that is `shipped` with a
    checkout must; or the first record that cannot be read, is not what its experiment keeps, or calls its backbone
    otherwise than the store's history of it.
    """
    inventory.check(store.root, needed=shipped)
    found = records(store, layouts=EVERY_LAYOUT)
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
                each for each, told in of if facts.key in told.inputs.values() and told.config["subject"] == facts.name
            )
            raise damaged(made.folder / MANIFEST, f"a record of {known}, as the history of its backbone", facts.name)
