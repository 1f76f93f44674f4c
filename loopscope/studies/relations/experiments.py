"""The experiment on chains of relations, and the backbone it is done on."""

from __future__ import annotations

from typing import Any

from loopscope.quantity import Table
from loopscope.studies.experiment import Cohort, Experiment, Profile
from loopscope.studies.graph_walk.selection import Role
from loopscope.studies.records import Facts, Predictions
from loopscope.studies.relations import chains, layouts
from loopscope.studies.relations.recipes import relations_curriculum
from loopscope.studies.subject import Subject

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


def _measure_chains(subject: Subject, **queries: Any) -> Predictions:
    """With every map that a fit passed through in its last stage, or, where these were not kept, with the fit alone."""
    recipe = relations_curriculum()
    last = recipe.stages[-1].updates
    fits = subject.trails.get(recipe.name) or [{last: step} for step in subject.maps.get(recipe.name, [])]
    return chains.measure(subject.model, fits, **queries)


def _tables(found: Predictions, facts: Facts, paper: bool) -> list[Table]:
    return chains.tables(found, paper=True)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        CHAINS, "Does J let chains of relations grow beyond the trained length?", ("relations",),
        _measure_chains, _chains, ("relations-curriculum",), _tables, raw=True,
        layout=layouts.of_chains,
    ),
)  # fmt: skip
