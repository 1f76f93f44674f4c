"""Antonym cancellation of a backbone and its map, by generation: how deep it answers, and what each loop would say.

**Depths.**  The 64 panel sequences, asked for deletions 1 to 8 with and without J, in a trained and in the held-out
wording.  Both backbones are asked in the stepwise form, in which their maps are fitted.  J stands after every loop, the
last included; a map may be for more loops than the four that backbones are trained in.  Without J those four are made:
beyond them a backbone forgets what it has.

**Native readouts.**  Without J, each backbone in the form it was trained on.  A final-only backbone is asked for
deletion k = 1 to 4 and should say it; a stepwise backbone is asked for 4 and should say deletion t after loop t.  The
answer after loop t is generated in two ways: `truncated` makes t loops and no more; `chosen` makes all loops and reads
loop t.  Their first tokens agree; later ones may not, as a cache of fewer loops is another cache.

A generation has 16 tokens, where the reference study has up to 160: an answer has about four, and a longer text is
wrong by either score.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from jaxtyping import UInt8
from torch import Tensor

from loopscope.bounds import taken
from loopscope.errors import InputError, nearest
from loopscope.log import Log, silent
from loopscope.measure.replies import ChatTokenizer, answers_name, replies_of_runs
from loopscope.models.passes import LanguageModel
from loopscope.models.placement import after_each
from loopscope.program import F
from loopscope.protocol import TokenMap
from loopscope.tasks.antonyms import HELD_OUT_TEMPLATE, LONGEST, QUESTIONS, TRAINED_DEPTH, Request, Words, panel

NEW = 16
"""Tokens that an answer is generated with."""

FORMS = tuple(QUESTIONS)
"""How a backbone was supervised, which is also the form of its own requests: final-only or stepwise."""

MAP_FORM = "stepwise"
"""The form of the requests that maps are fitted and evaluated on."""

TEMPLATES = (0, HELD_OUT_TEMPLATE)
WAYS = ("truncated", "chosen")
STEP = "flip"

DEPTHS, READOUTS = "depths", "readouts"
"""The two parts of the test."""


@cache
def depth_requests(template: int, sequences: int) -> tuple[Request, ...]:
    """Deletions 1 to 8 of the first panel sequences, depth by depth."""
    return tuple(Request(words, k, template, MAP_FORM) for k in range(1, LONGEST + 1) for words in _panel(sequences))


@cache
def readout_requests(form: str, sequences: int) -> tuple[Request, ...]:
    """The native requests: final-only for deletions 1 to 4, depth by depth; stepwise for 4.

    InputError for an unknown form.
    """
    check_form(form)
    depths = range(1, TRAINED_DEPTH + 1) if form == "final-only" else (TRAINED_DEPTH,)
    return tuple(Request(words, k, 0, form) for k in depths for words in _panel(sequences))


def check_form(form: str) -> None:
    """InputError for a way to supervise that does not exist."""
    if form not in FORMS:
        raise InputError(f"no backbone is supervised {form!r}; there are {', '.join(FORMS)}{nearest(form, FORMS)}")


SEQUENCES = 64
"""Sequences of the panel."""


def _panel(sequences: int) -> tuple[Words, ...]:
    """The first of the panel; InputError for more, or none."""
    every = panel()
    return every[: taken(sequences, len(every), "sequences")]


@torch.no_grad()
def measure_depths(
    model: LanguageModel,
    tokenizer: ChatTokenizer,
    step: TokenMap,
    *,
    sequences: int = SEQUENCES,
    batch: int = 32,
    log: Log = silent,
) -> dict[str, UInt8[Tensor, "requests bytes"]]:
    """Replies to `depth_requests`, by `replies.answers_name`, as `replies.as_bytes` writes them."""
    maps: Mapping[str, TokenMap] = {STEP: step}
    found: dict[str, Tensor] = {}
    for template in TEMPLATES:
        questions = [request.prompt for request in depth_requests(template, sequences)]
        runs = {
            answers_name(template, False): (F ** min(TRAINED_DEPTH, model.loops), "last"),
            answers_name(template, True): (after_each(STEP, model.loops), "last"),
        }
        found |= replies_of_runs(model, tokenizer, questions, runs, new=NEW, maps=maps, batch=batch, log=log)
    return found


@torch.no_grad()
def measure_readouts(
    model: LanguageModel,
    tokenizer: ChatTokenizer,
    form: str,
    *,
    sequences: int = SEQUENCES,
    batch: int = 32,
    log: Log = silent,
) -> dict[str, UInt8[Tensor, "requests bytes"]]:
    """Replies to `readout_requests` after every loop in both ways, by `readout_name`."""
    questions = [request.prompt for request in readout_requests(form, sequences)]
    runs = {
        readout_name(way, loop): (F**loop, "last") if way == "truncated" else (F**model.loops, f"h{loop}")
        for way in WAYS
        for loop in range(1, model.loops + 1)
    }
    return replies_of_runs(model, tokenizer, questions, runs, new=NEW, batch=batch, log=log)


def readout_name(way: str, loop: int) -> str:
    """What the replies after one loop are called."""
    return f"{way}, loop {loop}"
