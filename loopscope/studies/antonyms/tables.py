"""What follows from records of antonyms: which replies are right, by depth and by loop.

The quantities by id, with their coordinates beside `supervision`:

    antonyms.right                right replies by the deletion asked for: template, steered, k
    antonyms.right.together       the same at several depths together, in no table: template, steered, first, last
    antonyms.readouts             native readouts: way, loop, deletion
    antonyms.readouts.together    the same for all deletions together, in no table: loop
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopscope.measure.replies import answers_name, as_texts
from loopscope.quantity import Coordinate, Quantity, QuantityTable
from loopscope.studies.antonyms.tests import (
    DEPTHS,
    READOUTS,
    TEMPLATES,
    WAYS,
    depth_requests,
    readout_name,
    readout_requests,
)
from loopscope.studies.language.shares import Right, by_depth, share
from loopscope.studies.records import Record
from loopscope.tasks.antonyms import LONGEST, TRAINED_DEPTH, is_read_right, is_right

PAPER_DEPTHS = {
    "final-only": {
        "template 0, no map": (64, 64, 64, 64, 0, 0, 0, 0), "template 0, J": (64, 64, 64, 64, 64, 62, 62, 63),
        "template 5, J": (64, 64, 64, 64, 64, 64, 62, 62),
    },
    "stepwise": {
        "template 0, no map": (0, 0, 0, 64, 0, 0, 0, 0), "template 0, J": (14, 8, 9, 19, 6, 6, 6, 2),
        "template 5, J": (16, 8, 10, 16, 8, 6, 2, 2),
    },
}  # fmt: skip
PAPER_SEQUENCES = 64

PAPER_WAY = {"final-only": "chosen", "stepwise": "truncated"}
PAPER_READOUTS = {
    "final-only": ((57, 63, 64, 64), (19, 1, 64, 64), (4, 27, 64, 64), (1, 21, 63, 64)),
    "stepwise": ((64, 0, 0, 0), (0, 64, 0, 0), (0, 0, 64, 0), (0, 0, 0, 64)),
}
"""Right of 64 native readouts, by deletion and loop, in the way that each supervision was read in."""


def depth_right(record: Record, template: int, steered: bool, depths: Sequence[int]) -> Right:
    """Whether whole replies are the deletions asked for, at these depths, sequence by sequence."""
    sequences = int(record.settings["sequences"])
    said = as_texts(record.predictions[DEPTHS][answers_name(template, steered)])
    asked = depth_requests(template, sequences)
    pairs = zip(asked, said, strict=True)
    return np.array([is_right(text, request.answer) for request, text in pairs if request.k in depths])


def readout_right(record: Record, way: str, loop: int, deletion: int) -> Right:
    """Whether the reply after a loop is this deletion: of requests for it (final-only), or of requests for 4."""
    form, sequences = str(record.settings["supervision"]), int(record.settings["sequences"])
    said = as_texts(record.predictions[READOUTS][readout_name(way, loop)])
    pairs = zip(readout_requests(form, sequences), said, strict=True)
    kept = [(request, text) for request, text in pairs if form == "stepwise" or request.k == deletion]
    return np.array([is_read_right(text, request.stages[deletion - 1]) for request, text in kept])


def antonym_tables(record: Record) -> list[QuantityTable]:
    """The tables of a record of antonyms, the published numbers beside ours."""
    form = str(record.settings["supervision"])
    rows = by_depth(
        "antonyms.right", PAPER_DEPTHS[form], PAPER_SEQUENCES, "sequence", TEMPLATES, LONGEST,
        lambda template, steered, k: depth_right(record, template, steered, [k]), {"supervision": form},
    )  # fmt: skip
    note = (
        "Whole replies, in the stepwise form that maps are fitted in; with J after the last loop, without it after as "
        "many as backbones are trained in, at most."
    )
    made = [QuantityTable("antonyms.right", f"Antonyms, {form}: depths", rows, note)]
    for way in WAYS:
        cells = [
            share("antonyms.readouts", f"loop {loop}: deletion {k}", readout_right(record, way, loop, k),
                  {"supervision": form, "way": way, "loop": loop, "deletion": k}, _read(form, way, loop, k), "sequence")
            for loop in range(1, record.facts.loops + 1)
            for k in range(1, TRAINED_DEPTH + 1)
        ]  # fmt: skip
        how = "so many loops are made" if way == "truncated" else "all loops are made, and this one is read"
        made.append(
            QuantityTable("antonyms.readouts", f"Antonyms, {form}: native readouts, {way}", cells, f"No map; {how}.")
        )
    return made


def _read(form: str, way: str, loop: int, deletion: int) -> float | None:
    """What was published of a native readout."""
    if way != PAPER_WAY[form] or loop > TRAINED_DEPTH:
        return None
    return PAPER_READOUTS[form][deletion - 1][loop - 1] / PAPER_SEQUENCES


def at_depths(
    record: Record, template: int, steered: bool, depths: Sequence[int], *, label: str = "",
    published: float | None = None, unit: str = "request",
) -> Quantity:  # fmt: skip
    """Right replies at some depths together, as no table has them."""
    right = depth_right(record, template, steered, depths)
    at: dict[str, Coordinate] = {
        "supervision": str(record.settings["supervision"]), "template": template, "steered": steered,
        "first": min(depths), "last": max(depths),
    }  # fmt: skip
    return share("antonyms.right.together", label, right, at, published, unit)


def at_loop(record: Record, loop: int, published: float | None = None) -> Quantity:
    """What a final-only backbone has right at one loop of a whole run, of requests for all deletions together."""
    right = np.concatenate([readout_right(record, "chosen", loop, k) for k in range(1, TRAINED_DEPTH + 1)])
    at: dict[str, Coordinate] = {"supervision": str(record.settings["supervision"]), "loop": loop}
    return share("antonyms.readouts.together", f"loop {loop}", right, at, published, "request")
