"""What records of antonyms keep: replies by depth, and native readouts after every loop."""

from __future__ import annotations

from itertools import product

from loopscope.measure.replies import answers_name
from loopscope.studies.antonyms.tests import (
    DEPTHS,
    READOUTS,
    SEQUENCES,
    TEMPLATES,
    WAYS,
    readout_name,
    readout_requests,
)
from loopscope.studies.language.layouts import RUN, Replies, check_run
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
