"""Everything measured as one long table: a row for each quantity of each record, of whichever study.

for row in rows(evidence, study="letters"):
    row["id"], row["at"], row["value"]
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from loopscope.errors import InputError, nearest
from loopscope.quantity import Quantity, of_tables
from loopscope.studies import STUDIES
from loopscope.studies.closeness import label_of
from loopscope.studies.evidence import Evidence, in_short
from loopscope.studies.records import Record
from loopscope.studies.registry import EXPERIMENTS, STUDY_OF

COLUMNS = (
    *("study", "experiment", "model", "id", "at", "coordinates", "label", "value", "low", "high", "n", "unit"),
    *("published", "protocol"),
)
"""`at` is for people, `loop=3 condition=rescue`, and `coordinates` the same as JSON.  `unit` is what was resampled,
`protocol` the label of the record's protocol."""

NUMBERS = ("value", "low", "high", "published")
"""Columns of floats."""


def study_of(experiment: str) -> str:
    """The study that an experiment belongs to; each one on language models is a study of its own."""
    return STUDY_OF.get(experiment, experiment)


def rows(evidence: Evidence, study: str | None = None) -> Iterator[dict[str, Any]]:
    """A row with `COLUMNS` for every quantity of every record, of one study or of all; InputError for one unknown.

    What follows from all records of an experiment together has them all as its model.  A number that could not be
    estimated is None.
    """
    study = None if study is None else study.replace("-", "_")
    if study is not None and study not in STUDIES:
        raise InputError(f"no study {study!r}; there are {', '.join(STUDIES)}{nearest(study, STUDIES)}")
    for record in evidence.records:
        yield from _rows(evidence, study, [record], evidence.quantities(record))
    for name, experiment in EXPERIMENTS.items():
        records = evidence.of(name)
        if experiment.together is not None and records:
            yield from _rows(evidence, study, list(records.values()), of_tables(experiment.together(records)))


def _rows(
    evidence: Evidence, study: str | None, records: Sequence[Record], quantities: Iterable[Quantity]
) -> Iterator[dict[str, Any]]:
    of = study_of(records[0].experiment)
    if study in (None, of):
        names = in_short(record.facts.name for record in records)
        about = {"study": of, "experiment": records[0].experiment, "model": names}
        protocol = label_of(records, evidence.lineage)
        yield from ({**about, **_row(each), "protocol": protocol} for each in quantities)


def _row(each: Quantity) -> dict[str, Any]:
    estimate = each.estimate
    return {
        "id": each.id, "at": " ".join(f"{name}={value}" for name, value in each.at.items()),
        "coordinates": json.dumps(dict(each.at)), "label": each.label, "value": _number(estimate.value),
        "low": _number(estimate.low), "high": _number(estimate.high), "n": each.n, "unit": estimate.unit,
        "published": each.published,
    }  # fmt: skip


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
