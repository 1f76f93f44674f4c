"""What records of iterations keep: replies in four branches, from held-out and from trained starts."""

from __future__ import annotations

from loopscope.studies.iterations.tests import CASES, branches, requests
from loopscope.studies.language.layouts import ITERATIONS, RUN, Replies, check_run
from loopscope.studies.records import Record
from loopscope.studies.schema import Layout, only, truth, whole

REPLIES = {"test": ITERATIONS, "train": "trained-starts"}
"""Where the record of iterations has the replies to requests from held-out and from trained starts."""


def iteration_layout(record: Record) -> Layout:
    """The tensors of a record of iterations, given what it says of itself; MisfitError where that cannot be."""
    check_run(record)
    only(record.settings, ("cases", *RUN), "settings")
    cases = whole(record.settings, "cases", 1, CASES)
    truth(record.notes, "same_h4")
    return {
        where: dict.fromkeys(branches(), Replies((len(requests(cases, split)), None)))
        for split, where in REPLIES.items()
    }
