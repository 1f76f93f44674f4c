"""The experiments on parity, and the cohort of backbones they are done on."""

from __future__ import annotations

from typing import Any

from loopscope.maps import AffineMap
from loopscope.quantity import Table
from loopscope.studies.experiment import Cohort, Experiment, Pieces, Profile
from loopscope.studies.graph_walk.selection import Role
from loopscope.studies.parity import counts, exact, layouts, lengths, timing
from loopscope.studies.records import Facts, Predictions
from loopscope.studies.subject import Subject

PARITY, PARITY_EXACT = "parity", "parity-fp32"

COHORTS: tuple[Cohort, ...] = (
    Cohort(
        "parity",
        "parity of 1-20 bits, n loops for n bits; J before calls 2..n, trained on 20-40 bits",
        ("parity",),
        tuple(range(3)),
        ("parity-staged",),
        fits=(1,),
        task="parity",
    ),
)  # fmt: skip

PARITY_CHECK = [100, 500, 100]
"""Lengths of parity that are run with products in fp32, too, where all are run in fp16."""


def _parity(role: Role, profile: Profile) -> list[dict[str, Any]]:
    if profile == "quick":
        return [dict(counts.QUICK)]
    near = {"products": "fp16", "check": PARITY_CHECK}
    return [near if role == "main" else near | {"far": None}]


def _paper_only(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [{}] if profile == "paper" else []


def _measure_parity(subject: Subject, **grid: Any) -> Predictions:
    """Without J and, where there is one, with it."""
    return counts.measure(subject.model, _staged(subject), int(subject.name.rpartition("-")[2]), **grid)


def _measure_parity_exact(subject: Subject, **strings: Any) -> Predictions:
    """The same, in fp32 and string by string."""
    return exact.measure(subject.model, _staged(subject), **strings)


def _staged(subject: Subject) -> AffineMap | None:
    return next(iter(subject.maps.get("parity-staged", [])), None)


def _tables(found: Predictions, facts: Facts, paper: bool) -> list[Table]:
    return timing.tables(found, int(facts.name.rpartition("-")[2]))


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        PARITY, "Does J improve parity beyond the trained lengths, or its timing?", ("parity",),
        _measure_parity, _parity, ("parity-staged",), _tables, raw=True,
        pieces=Pieces(counts.pieces, counts.whole), lead=lengths.gains_most,
        layout=layouts.of_parity,
    ),
    Experiment(
        PARITY_EXACT, "Beyond 500 bits, do products in fp32 say what products in fp16 say?", ("parity",),
        _measure_parity_exact, _paper_only, ("parity-staged",), raw=True,
        pieces=Pieces(exact.pieces, exact.whole),
        layout=layouts.of_parity_exact,
    ),
)  # fmt: skip
