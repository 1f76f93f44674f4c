"""Measuring antonyms: depths with and without the map, native readouts, and the record of both."""

from __future__ import annotations

from typing import Any

from loopscope.measure.replies import Log, under
from loopscope.store.store import Store
from loopscope.studies.antonyms.layouts import antonym_layout
from loopscope.studies.antonyms.tests import (
    DEPTHS,
    READOUTS,
    SEQUENCES,
    measure_depths,
    measure_readouts,
    readout_requests,
)
from loopscope.studies.language.layouts import ANTONYMS
from loopscope.studies.language.records import LanguageSubject, recorded
from loopscope.studies.records import Predictions, Record


def measure_antonyms(
    subject: LanguageSubject,
    store: Store,
    supervision: str,
    *,
    sequences: int = SEQUENCES,
    batch: int = 32,
    log: Log = lambda _: None,
) -> Record:
    """Depths with and without the map, and native readouts, of a backbone that was supervised in this way."""
    readout_requests(supervision, sequences)  # refuse before anything is computed

    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        at = {"sequences": sequences, "batch": batch}
        depths = measure_depths(subject.model, subject.tokenizer, subject.steering, **at, log=under("depths", log))
        readouts = measure_readouts(subject.model, subject.tokenizer, supervision, **at, log=under("readouts", log))
        return {DEPTHS: depths, READOUTS: readouts}, {}, None

    settings = {"supervision": supervision, "sequences": sequences}
    return recorded(subject, store, ANTONYMS, settings, measure, antonym_layout)
