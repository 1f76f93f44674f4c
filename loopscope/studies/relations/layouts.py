"""What records of relation chains keep: names, types, shapes and bounds of their tensors."""

from __future__ import annotations

import torch

from loopscope.bounds import shown
from loopscope.studies.records import Record
from loopscope.studies.relations import chains
from loopscope.studies.schema import FEW, Kept, Layout, MisfitError, fits_of, int32, only, truth, whole, wholes


def of_chains(record: Record) -> Layout:
    """Right answers by length, of the backbone and of each fit, a bit each."""
    settings = record.settings
    only(settings, ("lengths", "queries", "cut"), "settings")
    lengths = wholes(settings, "lengths", 1, FEW) if "lengths" in settings else chains.LENGTHS
    queries = whole(settings, "queries", 8, chains.QUERIES, chains.QUERIES)
    where = chains.CUT if truth(settings, "cut", False) else chains.OWN
    if queries % 8:
        raise MisfitError("a multiple of 8 queries", str(queries))
    updates = record.predictions.get(where, {}).get(chains.WHEN, torch.zeros(1))
    found = {
        chains.WHICH: int32(lengths),
        chains.WHEN: Kept((None,), torch.int32, high=10**9),
        chains.NATIVE: Kept((len(lengths), queries // 8), high=255),
    }
    if updates.dim() != 1 or not bool((updates.diff() > 0).all()) or not bool((updates > 0).any()):
        raise MisfitError("growing updates, one of them after 0", shown(updates.flatten()[:8].tolist()))
    for fit in range(1, 1 + fits_of(record.facts.fits, chains.FIT)):
        found[f"fit {fit}"] = Kept((len(updates), len(lengths), queries // 8), high=255)
    return {where: found}
