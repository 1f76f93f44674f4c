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

from loopscope.lm.asking import Speaks, Tell
from loopscope.lm.heads import STEP
from loopscope.lm.letter_tests import OTHER, STEERING, answer_tokens, first_pairs, question_tokens
from loopscope.lm.letters import HELD_OUT_TEMPLATE, NAMES, Letter
from loopscope.lm.passes import LanguageModel, states
from loopscope.lm.placement import between
from loopscope.program import F, Program
from loopscope.protocol import TokenMap, device_of

WALKS = "walks"
LONGEST, TRAINED = 8, 4
"""Transfers that are asked for, and those that backbones were trained on."""

TEMPLATES = (0, HELD_OUT_TEMPLATE)
LETTERS = 64
"""Graphs that are asked about."""


def walk_name(template: int, steered: bool) -> str:
    """What the readouts of one wording are called, with J or without."""
    return f"template {template}, {'J' if steered else 'no map'}"


def walk_letters(template: int, count: int) -> list[Letter]:
    """1 to 8 transfers on the first graphs, depth by depth; InputError for a number of graphs that there is not."""
    base = [pair.base for pair in first_pairs(STEERING, count)]
    return [replace(letter, k=k, template=template) for k in range(1, LONGEST + 1) for letter in base]


@torch.no_grad()
def measure_walks(
    model: LanguageModel,
    tokenizer: Speaks,
    step: TokenMap,
    *,
    count: int = LETTERS,
    batch: int = 32,
    tell: Tell = lambda _: None,
) -> dict[str, UInt8[Tensor, "letters loops"]]:
    """By `walk_name`, for `walk_letters`: after how many transfers the person named has the letter, or OTHER."""
    programs = {False: F**model.loops, True: between(STEP, model.loops)}
    found = {}
    for template in TEMPLATES:
        asked = walk_letters(template, count)
        for steered, program in programs.items():
            name, parts = walk_name(template, steered), []
            for start in range(0, len(asked), batch):
                tell(f"{name}: {start} of {len(asked)} questions")
                parts.append(_read(model, tokenizer, program, step, asked[start : start + batch]))
            found[name] = torch.cat(parts)
    return found


def _read(
    model: LanguageModel, tokenizer: Speaks, program: Program, step: TokenMap, letters: Sequence[Letter]
) -> UInt8[Tensor, "letters loops"]:
    tokens = question_tokens(tokenizer, letters).to(device_of(model))
    at = states(model, tokens, program, maps={STEP: step})
    named = dict(zip(answer_tokens(tokenizer), NAMES, strict=True))
    steps = [{letter.taker(letter.start, t): t for t in range(len(NAMES))} for letter in letters]
    loops = []
    for loop in range(1, model.loops + 1):
        likeliest = model.read(at[f"h{loop}"][:, -1]).argmax(-1).tolist()
        said = [mine[named[token]] if token in named else OTHER for mine, token in zip(steps, likeliest, strict=True)]
        loops.append(torch.tensor(said, dtype=torch.uint8))
    return torch.stack(loops, 1)
