"""Everything measured as one long table: a row for each quantity of each record, of whichever study.

for row in rows(evidence, study="letters"):
    row["id"], row["at"], row["value"]
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from loopscope.errors import InputError, nearest
from loopscope.quantity import Quantity
from loopscope.studies.closeness import label_of
from loopscope.studies.evidence import Evidence
from loopscope.studies.language.records import LANGUAGE
from loopscope.studies.registry import COHORTS, EXPERIMENTS

COLUMNS = (
    *("study", "experiment", "model", "id", "at", "coordinates", "label", "value", "low", "high", "n", "unit"),
    *("published", "protocol"),
)
"""`at` is for people, `loop=3 condition=rescue`, and `coordinates` the same as JSON.  `unit` is what was resampled,
`protocol` the label of the record's protocol."""

NUMBERS = ("value", "low", "high", "published")
"""Columns of floats."""


def study_of(experiment: str) -> str:
    """The study that an experiment belongs to: the task its models were trained for."""
    if experiment in LANGUAGE:
        return experiment
    return COHORTS[EXPERIMENTS[experiment].cohorts[0]].task


def studies() -> list[str]:
    """The names of all studies."""
    return list(dict.fromkeys(study_of(each) for each in (*EXPERIMENTS, *LANGUAGE)))


def rows(evidence: Evidence, study: str | None = None) -> Iterator[dict[str, Any]]:
    """A row with `COLUMNS` for every quantity of every record, of one study or of all; InputError for one unknown.

    A number that could not be estimated is None.
    """
    known = studies()
    if study is not None and study not in known:
        raise InputError(f"no study {study!r}; there are {', '.join(known)}{nearest(study, known)}")
    for record in evidence.records:
        of = study_of(record.experiment)
        if study is not None and of != study:
            continue
        protocol = label_of([record], evidence.lineage)
        about = {"study": of, "experiment": record.experiment, "model": record.facts.name}
        for each in evidence.quantities(record):
            if isinstance(each, Quantity):
                yield {**about, **_row(each), "protocol": protocol}


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
