"""Requests of the five iteration tasks, as text: apply a rule k times, say where it ends.

    request = Request("doubling", start=8, k=3, template=0)
    request.prompt, request.answer         # two texts, "... Answer:" and "64"; tokens are somebody else's business

**What the split cannot hold out.**  A test start is one step from other states, and those are starts or intermediate
states of training.  Every weekday comes up in training; the successor of a test start is mostly a training start, and
then a test request for k is, after one step, a training request for k - 1.  `overlaps` counts test requests that lie
inside a training request and those that run into one.  With training up to 8 steps and the longer half of the test, 5
to 8, that is, of (start, k): successor 59 and 99 of 100, weekday 6 and 8 of 8, doubling 3 and 4 of 8, Fibonacci 6 and 8
of 8, Collatz 40 and 85 of 96.  A new start is therefore a new question, but seldom a new computation.

**What comes without iterating on.**  A model trained to 4 steps that goes no further on a longer request answers with
the state after 4 steps; another may repeat the start, or always say the same.  `tally` counts, per task and k, how many
requests each of them gets right: the zero line of a run that stops after 4 steps.  Of the 640 longer requests of the
test bank: stopping after 4 steps 0, repeating the start 32 (weekday, k = 7), saying one thing per task and k 225,
because two test starts leave two answers.
"""

from loopscope.tasks.iterations.prompts import (
    LONGEST,
    SEED,
    TRAINED_DEPTH,
    Request,
    Score,
    Tally,
    bank,
    dense_requests,
    overlaps,
    parsed_answer,
    requests,
    score,
    tally,
)
from loopscope.tasks.iterations.rules import DAYS, TASKS, TEMPLATES, starts_of, wider_starts

__all__ = [
    "DAYS", "LONGEST", "SEED", "TASKS", "TEMPLATES", "TRAINED_DEPTH", "Request", "Score", "Tally", "bank",
    "dense_requests", "overlaps", "parsed_answer", "requests", "score", "starts_of", "tally", "wider_starts",
]  # fmt: skip
