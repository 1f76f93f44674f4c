"""How far a letter walker goes: whom each loop would name, for every number of transfers asked for, with J and without.

The questions are those of the steering pairs' receiving graphs, which nothing was trained on, each asked for 1 to 8
transfers, in a trained and in the held-out wording.  A run makes all loops, and is read after each: by its likeliest
first token, as the number of transfers after which the named person has the letter, counted from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import UInt8
from torch import Tensor

from loopscope.log import Log, silent
from loopscope.measure.replies import ChatTokenizer, answers_name
from loopscope.measure.searching import MAP_NAME
from loopscope.models.passes import LanguageModel, one_pass
from loopscope.models.placement import between
from loopscope.program import F
from loopscope.protocol import TokenMap, device_of
from loopscope.studies.letters.tests import OTHER, STEERING, answer_tokens, first_pairs, names_of, question_tokens
from loopscope.tasks.letters import HELD_OUT_TEMPLATE, NAMES, Letter
from loopscope.tasks.letters.training import BACKBONE, MAP

WALKS = "walks"
LONGEST, TRAINED_DEPTH = MAP.deepest, BACKBONE.deepest
"""Transfers that are asked for, and those that backbones were trained on, in as many loops."""

TEMPLATES = (0, HELD_OUT_TEMPLATE)
GRAPHS = 64
"""Graphs that are asked about."""


def walk_letters(template: int, count: int) -> list[Letter]:
    """1 to 8 transfers on the first graphs, depth by depth; InputError for a number of graphs that there is not."""
    base = [pair.base for pair in first_pairs(STEERING, count)]
    return [replace(letter, k=k, template=template) for k in range(1, LONGEST + 1) for letter in base]


@torch.no_grad()
def measure_walks(
    model: LanguageModel,
    tokenizer: ChatTokenizer,
    step: TokenMap,
    *,
    count: int = GRAPHS,
    batch: int = 32,
    log: Log = silent,
) -> dict[str, UInt8[Tensor, "letters loops"]]:
    """By `answers_name`, for `walk_letters`: after how many transfers the person named has the letter, or OTHER."""
    programs = {False: F**model.loops, True: between(MAP_NAME, model.loops)}
    first = answer_tokens(tokenizer)
    found: dict[str, Tensor] = {}
    for template in TEMPLATES:
        asked = walk_letters(template, count)
        parts: dict[bool, list[Tensor]] = {steered: [] for steered in programs}
        for start in range(0, len(asked), batch):
            log(f"template {template}: {start} of {len(asked)} questions")
            some = asked[start : start + batch]
            tokens, away = question_tokens(tokenizer, some).to(device_of(model)), _away(some)
            for steered, program in programs.items():
                seen = one_pass(model, tokens, program, maps={MAP_NAME: step})
                likeliest = [seen.read(f"h{loop}", -1).argmax(-1) for loop in range(1, model.loops + 1)]
                named = torch.stack([names_of(each, first) for each in likeliest], 1)
                parts[steered].append(away.gather(1, named.long()))
        found |= {answers_name(template, steered): torch.cat(several) for steered, several in parts.items()}
    return found


def _away(letters: Sequence[Letter]) -> UInt8[Tensor, "letters names"]:
    """After how many transfers each of the NAMES has the letter; OTHER in the place of OTHER, which names nobody."""
    table = torch.full((len(letters), OTHER + 1), OTHER, dtype=torch.uint8)
    for row, letter in zip(table, letters, strict=True):
        for steps in range(len(NAMES)):
            row[NAMES.index(letter.taker(letter.start, steps))] = steps
    return table
