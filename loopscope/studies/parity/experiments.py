"""The experiments on parity, and the cohort of backbones they are done on."""

from __future__ import annotations

from typing import Any

import torch

from loopscope.bounds import shown
from loopscope.maps import AffineMap
from loopscope.quantity import QuantityTable
from loopscope.studies.experiment import Cohort, Experiment, Pieces, Profile
from loopscope.studies.parity import counts, exact, lengths, timing
from loopscope.studies.records import ModelFacts, Predictions, Record
from loopscope.studies.schema import FEW, Kept, Layout, MisfitError, asked, int32, only, whole
from loopscope.studies.selection import Role
from loopscope.studies.trained import TrainedModel


def of_parity(record: Record) -> Layout:
    """Right answers by length and loop."""
    settings = record.settings
    scope = asked(lambda: counts.Scope(**settings), "settings of parity")
    for name in ("strings", "far_strings", "heat_strings"):
        whole(vars(scope), name, 1, FEW)
    whole(vars(scope), "heat", 0, FEW)
    if scope.products not in counts.PRODUCTS:
        raise MisfitError(f"products in {', '.join(counts.PRODUCTS)}", shown(scope.products))
    ways = 1 + bool(record.facts.fits.get("parity-staged"))
    layout = {}
    for name in ("near", "far", "check"):
        if (grid := getattr(scope, name)) is not None and (not isinstance(grid, list | tuple) or max(grid[1:2]) > FEW):
            raise MisfitError(f"{name} as first, last, step up to {FEW}", shown(grid))
    for part, band, strings, _ in asked(lambda: scope.bands, "lengths of parity"):
        halves = [strings // 2, strings - strings // 2]
        offsets = 2 * counts.REACH + 1
        loop = torch.tensor(band)[:, None] + torch.arange(offsets) - counts.REACH
        most = torch.where(loop >= 1, torch.tensor(halves)[:, None, None], -1)
        layout[part] = {
            "lengths": int32(band), "strings": int32(halves),
            "right": Kept((ways, 2, len(band), offsets), torch.int32, low=-1, high=most),
        }  # fmt: skip
    if scope.heat:
        layout[counts.HEAT] = {
            "lengths": int32(range(1, scope.heat + 1)), "strings": int32([scope.heat_strings]),
            "right": Kept((ways, scope.heat, scope.heat), torch.int32, high=scope.heat_strings),
        }  # fmt: skip
    return layout


def of_parity_exact(record: Record) -> Layout:
    """Right answers, string by string."""
    only(record.settings, ("strings",), "settings")
    strings = record.settings.get("strings", exact.STRINGS)
    layout = {}
    for length, first, end in asked(lambda: exact.strings_of(strings), "strings of parity"):
        whole({"bits": length}, "bits", counts.REACH + 1, FEW)
        ways = 1 + bool(record.facts.fits.get("parity-staged"))
        shape = (ways, 2 * counts.REACH + 1, whole({"strings": end - first}, "strings", 1, FEW))
        layout[str(length)] = {exact.RIGHT: Kept(shape, high=1), exact.FIRST: int32([first])}
    return layout


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


def _measure_parity(trained: TrainedModel, **grid: Any) -> Predictions:
    """Without J and, where there is one, with it."""
    return counts.measure(trained.model, _staged(trained), int(trained.name.rpartition("-")[2]), **grid)


def _measure_parity_exact(trained: TrainedModel, **strings: Any) -> Predictions:
    """The same, in fp32 and string by string."""
    return exact.measure(trained.model, _staged(trained), **strings)


def _staged(trained: TrainedModel) -> AffineMap | None:
    return next(iter(trained.maps.get("parity-staged", [])), None)


def _tables(found: Predictions, facts: ModelFacts, paper: bool) -> list[QuantityTable]:
    return timing.tables(found, int(facts.name.rpartition("-")[2]))


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        PARITY, "Does J improve parity beyond the trained lengths, or its timing?", ("parity",),
        _measure_parity, _parity, ("parity-staged",), _tables, raw=True,
        pieces=Pieces(counts.pieces, counts.whole), lead=lengths.gains_most,
        layout=of_parity,
    ),
    Experiment(
        PARITY_EXACT, "Beyond 500 bits, do products in fp32 say what products in fp16 say?", ("parity",),
        _measure_parity_exact, _paper_only, ("parity-staged",), raw=True,
        pieces=Pieces(exact.pieces, exact.whole),
        layout=of_parity_exact,
    ),
)  # fmt: skip
