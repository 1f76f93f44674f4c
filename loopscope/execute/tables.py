"""Results of runs as tables: what every program answers, and what patches at many addresses do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.address import Address, Row
from loopscope.errors import InputError
from loopscope.estimates import DRAWS, means
from loopscope.execute.metrics import SHARES
from loopscope.program import Program
from loopscope.resampling import Seed, generator
from loopscope.table import Table

AT_ONCE = 1 << 26
"""Logits that are made probabilities at a time."""


@dataclass(frozen=True)
class Resampled:
    """What the intervals of a table resample: the clusters of examples, by default each its own, from a seed.

    InputError, with `of`, for clusters that are not one id for each of so many examples.
    """

    clusters: tuple[Any, ...] | None = None
    seed: Seed = 0

    @classmethod
    def of(cls, clusters: ArrayLike | None, seed: Seed, examples: int) -> Resampled:
        """Of clusters as a user gives them."""
        generator(seed)
        if clusters is None:
            return cls(None, seed)
        ids = np.asarray(clusters)
        if ids.shape != (examples,):
            raise InputError(f"{examples} examples need as many cluster ids, not {list(ids.shape)}")
        return cls(tuple(ids.tolist()), seed)


EXAMPLES = Resampled()
"""Every example alone."""


def answers_table(
    read: Sequence[tuple[Program, Sequence[Row], Mapping[str, Float[Tensor, "examples rows classes"]]]],
) -> Table:
    """The likeliest class of every program, point, example and row, and its probability."""
    columns: dict[str, list[Any]] = {name: [] for name in ("program", "point", "example", "row", "answer")}
    likely: list[float] = []
    for program, rows, logits_at in read:
        names = row_names(rows)
        for point, logits in logits_at.items():
            answers, probabilities = _best(logits)
            examples, count = answers.shape
            columns["program"] += [str(program)] * answers.numel()
            columns["point"] += [point] * answers.numel()
            columns["example"] += np.repeat(np.arange(examples), count).tolist()
            columns["row"] += names * examples
            columns["answer"] += answers.flatten().tolist()
            likely += probabilities.flatten().tolist()
    return Table("answers", {**columns, "probability": likely})


def row_names(rows: Sequence[Row]) -> list[Any]:
    """Rows as a column has them: numbers, or texts where any is named by what stands there."""
    return [*rows] if all(isinstance(row, int) for row in rows) else [str(row) for row in rows]


def _best(
    logits: Float[Tensor, "examples rows classes"],
) -> tuple[Int[Tensor, "examples rows"], Float[Tensor, "examples rows"]]:
    parts = [
        part.detach().double().softmax(-1).max(-1)
        for part in logits.split(max(1, AT_ONCE // max(1, logits[:1].numel())))
    ]
    return torch.cat([part.indices for part in parts]).cpu(), torch.cat([part.values for part in parts]).cpu()


def sweep_table(
    program: Program,
    source: object,
    addresses: Sequence[Address],
    measured: Mapping[str, Shaped[Tensor, "addresses examples rows"]],
    about: Mapping[str, Any],
    rows: Sequence[Row],
    draws: int = DRAWS,
    resampled: Resampled = EXAMPLES,
) -> Table:
    """Means over examples of what was measured, with intervals: a line for every address and row that was read.

    Where several rows were read, `row` says which.  `resampled` is what intervals resample, by default the examples.
    """
    columns: dict[str, Any] = {
        name: [value for value in values for _ in rows]
        for name, values in columns_of_addresses(program, addresses).items()
    }
    if len(rows) > 1:
        columns["row"] = row_names(rows) * len(addresses)
    n = None
    clusters = None if resampled.clusters is None else np.asarray(resampled.clusters)
    for name, values in measured.items():
        share = values.dtype == torch.bool or about.get("metric") in SHARES
        array = values.detach().double().cpu().numpy().swapaxes(0, 1)
        columns[name] = means(array, clusters=clusters, seed=resampled.seed, draws=draws, share=share).flat()
        n = columns[name].n
    return Table("sweep", {**columns, "n": n}, {"program": str(program), "source": str(source), **about})


def columns_of_addresses(program: Program, addresses: Sequence[Address]) -> dict[str, list[Any]]:
    """Where addresses are, in columns: the address itself, and what it is made of as far as it names one.

    - `place`: the address, "loop[3].layer[2].head[0].z";
    - `stage`: "loop", "prelude", "coda", or a stack by which the address counts; `loop` is the call of F, 0 in a
      prelude;
    - `layer`, `component`, and `head`: NaN where it is not one head;
    - `at`: the rows of the place, "-1"; None where it is all.
    """
    sites = [each.site for each in addresses]
    return {
        "place": [str(each) for each in addresses],
        "stage": [each.stage for each in addresses],
        "loop": [e.loop if e.stage in ("prelude", "coda") else program.loop_at(e) for e in addresses],
        "layer": [site.layer for site in sites],
        "component": [site.part for site in sites],
        "head": [site.heads[0] if site.heads and len(site.heads) == 1 else None for site in sites],
        "at": [None if site.rows is None else ",".join(map(str, site.rows)) for site in sites],
    }
