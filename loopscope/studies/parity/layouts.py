"""What records of parity keep: names, types, shapes and bounds of their tensors."""

from __future__ import annotations

import torch

from loopscope.bounds import shown
from loopscope.studies.parity import counts, exact
from loopscope.studies.records import Record
from loopscope.studies.schema import FEW, Kept, Layout, MisfitError, asked, int32, only, whole


def of_parity(record: Record) -> Layout:
    """Right answers by length and loop."""
    settings = record.settings
    plan = asked(lambda: counts.Plan(**settings), "settings of parity")
    for name in ("strings", "far_strings", "heat_strings"):
        whole(vars(plan), name, 1, FEW)
    whole(vars(plan), "heat", 0, FEW)
    if plan.products not in counts.PRODUCTS:
        raise MisfitError(f"products in {', '.join(counts.PRODUCTS)}", shown(plan.products))
    ways = 1 + bool(record.facts.fits.get("parity-staged"))
    layout = {}
    for name in ("near", "far", "check"):
        if (grid := getattr(plan, name)) is not None and (not isinstance(grid, list | tuple) or max(grid[1:2]) > FEW):
            raise MisfitError(f"{name} as first, last, step up to {FEW}", shown(grid))
    for part, lengths, strings, _ in asked(lambda: plan.bands, "lengths of parity"):
        halves = [strings // 2, strings - strings // 2]
        offsets = 2 * counts.REACH + 1
        loop = torch.tensor(lengths)[:, None] + torch.arange(offsets) - counts.REACH
        most = torch.where(loop >= 1, torch.tensor(halves)[:, None, None], -1)
        layout[part] = {
            "lengths": int32(lengths), "strings": int32(halves),
            "right": Kept((ways, 2, len(lengths), offsets), torch.int32, low=-1, high=most),
        }  # fmt: skip
    if plan.heat:
        layout[counts.HEAT] = {
            "lengths": int32(range(1, plan.heat + 1)), "strings": int32([plan.heat_strings]),
            "right": Kept((ways, plan.heat, plan.heat), torch.int32, high=plan.heat_strings),
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
