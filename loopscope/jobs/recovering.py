"""`lm sweep` cut by texts: how far patches move the answers of some of them, a part a job (`sweeping`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopscope.address import Address, Row, parse_rows
from loopscope.jobs.job import Graph, Job, Needs
from loopscope.jobs.sweeping import TENSORS, Chunk, cut, loaded
from loopscope.jobs.task import Place, text_of
from loopscope.measure.patching import Recovery, recover
from loopscope.models.steering import FullPrecisionMap
from loopscope.models.text import TOKENIZER, load_tokenizer
from loopscope.program import Program, as_program
from loopscope.store.store import Artefact


@dataclass(frozen=True)
class Asked:
    """What is recovered: `program` patched at `cells`, in a model folder with saved maps by name."""

    folder: Path
    maps: Mapping[str, Path]
    program: Program
    cells: Sequence[Address]
    row: Row
    dtype: str
    how: Mapping[str, Any]

    def graph(self, tokens: Sequence[list[int]], other: Sequence[list[int]], each: int, needs: Needs) -> Graph:
        """A job for every `each` texts."""
        begin = {
            "program": str(self.program), "addresses": [str(cell) for cell in self.cells],
            "row": self.row if isinstance(self.row, int) else str(self.row),
        }  # fmt: skip

        def part(first: int, last: int) -> dict[str, Any]:
            return {**begin, "tokens": list(tokens[first:last]), "other": list(other[first:last])}

        return cut("recover", len(tokens), each, part, self.folder, self.maps, needs, self.dtype, self.how)

    def joined(self, parts: Sequence[Artefact]) -> Recovery:
        """What the parts gave, in order."""
        found = [part.tensors(TENSORS) for part in parts]
        whole = {name: torch.cat([each[name] for each in found], at) for name, at in AXES.items()}
        return Recovery(
            self.program, tuple(self.cells), whole["answers"], whole["before"], whole["after"], whole["recovered"],
            whole["named"],
        )  # fmt: skip


AXES = {"answers": 0, "before": 0, "after": 0, "recovered": 1, "named": 1}
"""The axis of the texts."""


def _recover(job: Job, at: Place) -> tuple[dict[str, Tensor], dict[str, Any]]:
    asked = job.settings
    model, steps = loaded(job, at)
    folder = Path(text_of(job, "model"))
    tokenizer = load_tokenizer(folder) if (folder / TOKENIZER).is_file() else None
    row = asked["row"] if isinstance(asked["row"], int) else (parse_rows(asked["row"]) or (-1,))[0]
    name: Callable[[int], str] = str if tokenizer is None else tokenizer.name
    found = recover(
        model, asked["tokens"], asked["other"], as_program(asked["program"]),
        [Address.parse(text) for text in asked["addresses"]],
        maps={name: FullPrecisionMap(step.float()) for name, step in steps.items()},
        row=row, tokenizer=tokenizer, name=name, log=at.log,
    )  # fmt: skip
    return {each: getattr(found, each).to("cpu", copy=True) for each in AXES}, {}


RECOVER = Chunk(_recover)
