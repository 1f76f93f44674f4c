"""Answers as tables for other tools: a sweep or a trajectory as Parquet."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from loopscope.errors import InputError
from loopscope.table import Table
from loopscope.view.contract import Request, unpack


def table_of(request: Request, answer: bytes) -> Table:
    """The table of a sweep or a trajectory; InputError for another answer, or one that is an error."""
    head, arrays = unpack(answer)
    if "error" in head:
        raise InputError(head["error"]["message"])
    about = {"program": request.program, "read": dict(request.read), "model": request.model}
    if head["kind"] == "sweep":
        each = 1 if request.read["by"] == "layer" else head["heads"]
        columns = {
            "address": head["addresses"],
            "loop": np.repeat(head["loops"], each),
            "layer": np.repeat(head["layers"], each),
            "recovered": arrays["recovered"].reshape(-1),
        }
        if each > 1 or request.read["by"] == "head":
            columns["head"] = np.tile(np.arange(each), len(head["loops"]))
        return Table("sweep", columns, about)
    if head["kind"] == "trajectory":
        rows, loops = head["rows"], head["loops"]
        columns = {"place": ["state"] * (len(loops) * len(rows))}
        columns |= {"loop": np.repeat(loops, len(rows)), "row": np.tile(rows, len(loops))}
        return Table("trajectories", columns | {name: each.reshape(-1) for name, each in arrays.items()}, about)
    raise InputError(f"{head['kind']} is no table; there are sweep and trajectory (nearest: sweep)")


def parquet_of(request: Request, answer: bytes) -> bytes:
    """The bytes of a Parquet file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.parquet"
        table_of(request, answer).save(file)
        return file.read_bytes()
