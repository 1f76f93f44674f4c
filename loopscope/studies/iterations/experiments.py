"""Iterations: does it take J, F or both to go on beyond the trained steps?"""

from __future__ import annotations

import torch

from loopscope.log import Log, silent, under
from loopscope.store.store import Store
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.iterations.tables import iteration_tables
from loopscope.studies.iterations.tests import CASES, REPLIES, branches, requests
from loopscope.studies.language.experiment import Amount, Arm, Asked, LanguageExperiment
from loopscope.studies.language.layouts import ITERATIONS, RUN, Replies, check_run
from loopscope.studies.language.records import SteeredModel, recorded
from loopscope.studies.recording import Outcome
from loopscope.studies.records import Record
from loopscope.studies.schema import Layout, only, truth, whole


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


def measure_iterations(
    trained: SteeredModel,
    store: Store,
    *,
    cases: int = iteration_tests.CASES,
    batch: int = 32,
    log: Log = silent,
) -> Record:
    """The four branches from a common h4, asked from held-out and from trained starts.

    The record notes whether h4 was the same, bit by bit.
    """
    first = [request.prompt for request in iteration_tests.requests(cases)[: min(batch, 8)]]

    def measure() -> Outcome:
        one, *others = iteration_tests.common_states(trained.model, trained.tokenizer, trained.steering, first).values()
        same = all(torch.equal(one, other) for other in others)
        said = {
            group: iteration_tests.measure(
                trained.model, trained.tokenizer, trained.steering, cases=cases, split=split, batch=batch,
                log=under(iteration_tests.STARTS[split], log),
            )
            for split, group in REPLIES.items()
        }  # fmt: skip
        return Outcome(said, {"same_h4": same})

    return recorded(trained, store, ITERATIONS, {"cases": cases}, measure, iteration_layout)


def _measure(trained: SteeredModel, store: Store, _: Arm, amount: Amount, log: Log) -> list[Record]:
    return [measure_iterations(trained, store, cases=amount.of(CASES), batch=amount.batch, log=log)]


def _asked(record: Record) -> Asked:
    whole = "2,560 requests, half of them from held-out starts"
    return Asked(record.settings["cases"], CASES, "cases for each task, k and set of starts", whole)


LANGUAGE = (
    LanguageExperiment(
        ITERATIONS, "Does it take J, F or both to iterate beyond the trained steps?",
        "Qwen3-8B", 8_190_735_360, 8, "none",
        {"layers": "36", "heads": "32", "width": "4,096", "loops": "8", "boundary": "none", "J": "dense"},
        "iterations", (Arm("iterations", "iterations-map"),),
        _measure, lambda amount: requests(amount.of(CASES)),
        iteration_layout, iteration_tables, _asked,
    ),
)  # fmt: skip
