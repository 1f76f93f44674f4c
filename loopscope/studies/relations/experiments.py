"""The experiment on chains of relations, and the backbone it is done on."""

from __future__ import annotations

from typing import Any

import torch

from loopscope.bounds import shown
from loopscope.quantity import QuantityTable
from loopscope.studies.experiment import Cohort, Experiment, Profile
from loopscope.studies.records import ModelFacts, Predictions, Record
from loopscope.studies.relations import chains
from loopscope.studies.relations.recipes import relations_curriculum
from loopscope.studies.schema import FEW, Kept, Layout, MisfitError, fits_of, int32, only, truth, whole, wholes
from loopscope.studies.selection import Role
from loopscope.studies.trained import TrainedModel


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


CHAINS = "chains"

COHORTS: tuple[Cohort, ...] = (
    Cohort(
        "relations",
        "relation chains of 1-3 steps; J trained on chains of 4-16",
        ("relations",),
        (0,),
        ("relations-curriculum",),
        fits=(1, 2, 3),
        task="relations",
    ),
)  # fmt: skip

QUICK_QUERIES = 64
"""Queries of relation chains in the quick profile, of 1,024."""


def _chains(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [{}] if profile == "paper" else [{"queries": QUICK_QUERIES, "cut": True}]


def _measure_chains(trained: TrainedModel, **queries: Any) -> Predictions:
    """With every map that a fit passed through in its last stage, or, where these were not kept, with the fit alone."""
    recipe = relations_curriculum()
    last = recipe.stages[-1].updates
    fits = trained.trails.get(recipe.name) or [{last: step} for step in trained.maps.get(recipe.name, [])]
    return chains.measure(trained.model, fits, **queries)


def _tables(found: Predictions, facts: ModelFacts, paper: bool) -> list[QuantityTable]:
    return chains.tables(found, paper=True)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        CHAINS, "Does J let chains of relations grow beyond the trained length?", ("relations",),
        _measure_chains, _chains, ("relations-curriculum",), _tables, raw=True,
        layout=of_chains,
    ),
)  # fmt: skip
