"""Measuring iterations: the four branches, from both sets of starts, and their record."""

from __future__ import annotations

from typing import Any

import torch

from loopscope.measure.replies import Log, under
from loopscope.store.store import Store
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.iterations.layouts import REPLIES, iteration_layout
from loopscope.studies.language.layouts import ITERATIONS
from loopscope.studies.language.records import LanguageSubject, recorded
from loopscope.studies.records import Predictions, Record


def measure_iterations(
    subject: LanguageSubject,
    store: Store,
    *,
    cases: int = iteration_tests.CASES,
    batch: int = 32,
    log: Log = lambda _: None,
) -> Record:
    """The four branches from a common h4, asked from held-out and from trained starts.

    The record notes whether h4 was the same, bit by bit.
    """
    first = [request.prompt for request in iteration_tests.requests(cases)[: min(batch, 8)]]

    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        one, *others = iteration_tests.common_states(subject.model, subject.tokenizer, subject.steering, first).values()
        same = all(torch.equal(one, other) for other in others)
        said = {
            group: iteration_tests.measure(
                subject.model, subject.tokenizer, subject.steering, cases=cases, split=split, batch=batch,
                log=under(iteration_tests.STARTS[split], log),
            )
            for split, group in REPLIES.items()
        }  # fmt: skip
        return said, {"same_h4": same}, None

    return recorded(subject, store, ITERATIONS, {"cases": cases}, measure, iteration_layout)
