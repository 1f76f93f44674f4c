"""Continuing from a common state: does it take the map, the block, or both to iterate beyond the trained steps?

Every run begins with four calls of F and J before calls 2 to 4.  From that h4, four ways to go on:

    J+F    J F J F J F J F     four more calls, J before each
    F      F F F F             four more calls
    J      J J J J             the map alone
    stop   -                   nothing

Each branch is a program, holds for the prompt and for every new token, and feeds its own tokens.  In each, 1,280
requests are asked from held-out starts and 1,280 from trained ones, as in the reference study: 10,240 generations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
from jaxtyping import UInt8
from torch import Tensor

from loopscope.bounds import taken
from loopscope.log import Log, silent
from loopscope.measure.replies import ChatTokenizer, asked, replies_of_runs
from loopscope.models.decoding import pad_left
from loopscope.models.passes import LanguageModel, states
from loopscope.models.placement import between
from loopscope.program import F, J, Program, Step
from loopscope.protocol import TokenMap, device_of
from loopscope.studies.language.layouts import ITERATIONS
from loopscope.tasks.iterations import LONGEST, TRAINED_DEPTH, Request, bank

NEW = 12
"""Tokens that an answer is generated with."""

STEP = "step"
COMMON = "h4"
"""Where the branches part."""

LOOPS, MORE = TRAINED_DEPTH, LONGEST - TRAINED_DEPTH


def branches() -> dict[str, Program]:
    """The four programs by name."""
    common = between(STEP, LOOPS)
    suffixes: dict[str, tuple[Step, ...]] = {"J+F": (J(STEP), F), "F": (F,), "J": (J(STEP),), "stop": ()}
    return {name: replace(common, steps=common.steps + suffix * MORE) for name, suffix in suffixes.items()}


CASES = 32
"""Requests of each set of starts for each task and k."""

STARTS = {"test": "held-out starts", "train": "trained starts"}
"""What the starts of each split are called, in the order they are asked from."""

REPLIES = {"test": ITERATIONS, "train": "trained-starts"}
"""Where a record has the replies to requests from the starts of each split."""


@cache
def requests(cases: int = CASES, split: str = "test") -> tuple[Request, ...]:
    """The bank of a split of starts: the first so many cases for each task and k = 1 to 8.

    InputError for more cases than it has, or none, and for an unknown split.
    """
    return bank(split, cases=taken(cases, CASES, "cases for each task and k"))


@torch.no_grad()
def common_states(
    model: LanguageModel, tokenizer: ChatTokenizer, step: TokenMap, questions: Sequence[str]
) -> dict[str, Tensor]:
    """h4 of each branch on the same padded prompts, to be compared bit by bit."""
    tokens, mask = pad_left([asked(tokenizer, question) for question in questions])
    tokens, mask = (each.to(device_of(model)) for each in (tokens, mask))
    maps: Mapping[str, TokenMap] = {STEP: step}
    return {name: states(model, tokens, program, maps=maps, mask=mask)[COMMON] for name, program in branches().items()}


@torch.no_grad()
def measure(
    model: LanguageModel,
    tokenizer: ChatTokenizer,
    step: TokenMap,
    *,
    cases: int = CASES,
    split: str = "test",
    batch: int = 32,
    log: Log = silent,
) -> dict[str, UInt8[Tensor, "requests bytes"]]:
    """Replies to all `requests` from the starts of a split in every branch, as `replies.as_bytes` writes them."""
    questions = [request.prompt for request in requests(cases, split)]
    runs = {name: (program, "last") for name, program in branches().items()}
    return replies_of_runs(model, tokenizer, questions, runs, new=NEW, maps={STEP: step}, batch=batch, log=log)
