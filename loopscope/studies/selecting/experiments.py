"""The experiment on selecting or creating: maps for any number of hops, under controls."""

from __future__ import annotations

import torch

from loopscope.bounds import shown
from loopscope.studies.experiment import Experiment, everywhere
from loopscope.studies.records import Record
from loopscope.studies.schema import Kept, Layout, MisfitError, graphs_of, only, word
from loopscope.studies.selecting import hops as selecting
from loopscope.training.cohort.hops import BUDGETS, CONTROLS, HOPS

SELECTING = "selecting"


def layout(record: Record) -> Layout:
    """Right answers and where wrong ones lie, for every number of hops and control."""
    facts = record.facts
    only(record.settings, ("where",), "settings")
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
    if not kept:
        raise MisfitError("a fit for some number of hops", shown(dict(facts.fits)))
    return kept


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        SELECTING, "Does J select what the backbone has learned, or does it create?", ("mechanism", "walkers"),
        selecting.measure, everywhere, selecting.TARGETS, selecting.tables, raw=True, apart=True, layout=layout,
    ),
)  # fmt: skip
