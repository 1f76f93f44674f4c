"""The experiment on selecting or creating: maps for any number of hops, under controls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from loopscope.bounds import shown
from loopscope.store.store import Store
from loopscope.studies.experiment import Experiment, everywhere
from loopscope.studies.records import Record
from loopscope.studies.schema import Kept, Layout, MisfitError, graphs_of, only, sha256, word
from loopscope.studies.selecting import hops as selecting
from loopscope.studies.trained import digest_of
from loopscope.training.cohort.hops import BUDGETS, CONTROLS, HOPS

SELECTING = "selecting"


def trained(store: Store, inputs: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """The digest of a backbone's own weights, which another training of the same seed would not have."""
    return {"selected": digest_of(store, inputs)}


def layout(record: Record) -> Layout:
    """Right answers and where wrong ones lie, for every number of hops and control; the walk without a map."""
    facts = record.facts
    only(record.settings, ("where",), "settings")
    only(record.notes, ("selected",), "notes")
    where = word(record.settings, "where", selecting.WHERE)
    graphs, kept = graphs_of(where, facts.nodes), dict[str, dict[str, Kept]]()
    at = selecting.counted_walks(where, facts.depth, torch.device("cpu"))
    most = at.kept.view(graphs, -1).sum(-1)
    for budget in BUDGETS:
        for target in (control.target(k, budget) for control in CONTROLS for k in HOPS):
            if fits := facts.fits.get(target, 0):
                found = kept.setdefault(selecting.place(where, budget), {})
                found[f"{target} right"] = Kept((fits, graphs), high=most)
                found[f"{target} answers"] = Kept((fits, len(HOPS) + 1), torch.int32, high=int(most.sum()))
    if where in kept:
        sha256(record.notes.get("selected"), "the digest of the selected weights")
        reads, rings = facts.loops + 2, graphs_of(selecting.RINGS, facts.nodes)
        kept[selecting.RINGS] = {selecting.POSITIONS: Kept((reads, facts.nodes), torch.int32, high=rings * facts.nodes)}
    if not kept:
        raise MisfitError("a fit for some number of hops", shown(dict(facts.fits)))
    return kept


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        SELECTING, "Does J select what the backbone has learned, or does it create?", ("mechanism", "walkers"),
        selecting.measure, everywhere, selecting.TARGETS, selecting.tables, notes=trained, raw=True,
        apart=selecting.TARGETS, layout=layout,
    ),
)  # fmt: skip
