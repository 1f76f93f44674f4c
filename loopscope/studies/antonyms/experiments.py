"""Antonyms: what each loop says, and what J can reach, of backbones that were supervised in two ways."""

from __future__ import annotations

from itertools import product

from loopscope.log import Log, silent, under
from loopscope.measure.replies import answers_name
from loopscope.store.store import Store
from loopscope.studies.antonyms.tables import antonym_tables
from loopscope.studies.antonyms.tests import (
    DEPTHS,
    FORMS,
    READOUTS,
    SEQUENCES,
    TEMPLATES,
    WAYS,
    measure_depths,
    measure_readouts,
    readout_name,
    readout_requests,
)
from loopscope.studies.language.experiment import Amount, Arm, Asked, LanguageExperiment
from loopscope.studies.language.layouts import ANTONYMS, RUN, Replies, check_run
from loopscope.studies.language.records import SteeredModel, recorded
from loopscope.studies.recording import Outcome
from loopscope.studies.records import Record
from loopscope.studies.schema import Layout, asked, only, whole, word
from loopscope.tasks.antonyms import LONGEST


def antonym_layout(record: Record) -> Layout:
    """The tensors of a record of antonyms, given what it says of itself; MisfitError where that cannot be."""
    check_run(record)
    only(record.settings, ("supervision", "sequences", *RUN), "settings")
    form, sequences = (
        word(record.settings, "supervision"),
        whole(record.settings, "sequences", 1, SEQUENCES),
    )
    depths = Replies((LONGEST * sequences, None))
    native = asked(lambda: readout_requests(form, sequences), "a way to supervise")
    read = Replies((len(native), None))
    ways = product(WAYS, range(1, record.facts.loops + 1))
    return {
        DEPTHS: {answers_name(template, steered): depths for template in TEMPLATES for steered in (False, True)},
        READOUTS: {readout_name(*each): read for each in ways},
    }


def measure_antonyms(
    trained: SteeredModel,
    store: Store,
    supervision: str,
    *,
    sequences: int = SEQUENCES,
    batch: int = 32,
    log: Log = silent,
) -> Record:
    """Depths with and without the map, and native readouts, of a backbone that was supervised in this way."""
    readout_requests(supervision, sequences)  # refuse before anything is computed

    def measure() -> Outcome:
        at = {"sequences": sequences, "batch": batch}
        depths = measure_depths(trained.model, trained.tokenizer, trained.steering, **at, log=under("depths", log))
        readouts = measure_readouts(trained.model, trained.tokenizer, supervision, **at, log=under("readouts", log))
        return Outcome({DEPTHS: depths, READOUTS: readouts})

    settings = {"supervision": supervision, "sequences": sequences}
    return recorded(trained, store, ANTONYMS, settings, measure, antonym_layout)


def _measure(trained: SteeredModel, store: Store, arm: Arm, amount: Amount, log: Log) -> list[Record]:
    sequences, supervision = amount.of(SEQUENCES), arm.settings["supervision"]
    return [measure_antonyms(trained, store, supervision, sequences=sequences, batch=amount.batch, log=log)]


def _asked(record: Record) -> Asked:
    count = record.settings["sequences"]
    return Asked(count, SEQUENCES, "sequences", f"{count} sequences")


LANGUAGE = (
    LanguageExperiment(
        ANTONYMS, "How does supervision decide what each loop says, and what J can reach?",
        "Ouro-2.6B", 2_667_974_657, 4, "norm",
        {"layers": "48", "heads": "16", "width": "2,048", "loops": "4", "boundary": "norm", "J": "residual, rank 128"},
        "antonym",
        tuple(Arm(f"antonym-{form.removesuffix('-only')}", "antonym-map", {"supervision": form}) for form in FORMS),
        _measure, lambda amount: readout_requests(FORMS[0], amount.of(SEQUENCES)),
        antonym_layout, antonym_tables, _asked,
    ),
)  # fmt: skip
