"""What letter-walk models are trained on: questions, long texts full of look-ups, and rules told again and again.

`training` gives the questions of an update; `adaptation` texts in which one set of rules is followed by many questions
with their answers, so that every token can be learned from and looking a name up is learned first; `retold` rules
alone, in which a taker can be looked up every eight tokens.  No graph of `held` occurs in any.  The reference study
held out only the graphs of `letters.evaluation`; those of its pairs could occur in training.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from loopscope.errors import InputError
from loopscope.tasks.letters.pairs import SETS, pairs
from loopscope.tasks.letters.prompts import (
    NAMES,
    RULE,
    TRAIN_TEMPLATES,
    Held,
    Letter,
    answer,
    draw,
    draw_from,
    evaluated,
    prompt,
    question,
    shuffled,
)


@cache
def held() -> Held:
    """Every graph of `letters.evaluation` and of every set of pairs."""
    letters = [letter for name in SETS for pair in pairs(name) for letter in pair.letters]
    return evaluated().with_those_of(letters)


class Stage(NamedTuple):
    """A stage of training: its first seed, how many examples an update has, and the largest k."""

    first_seed: int
    examples: int
    deepest: int


BACKBONE = Stage(100_000_000, 8, 4)
MAP = Stage(300_000_000, 16, 8)
ADAPTATION_SEED, RETOLD_SEED = 500_000_000, 700_000_000
UPDATE_STRIDE = 100
"""Seeds of one update are this far from those of the next, or farther where an update has more examples."""


def training(stage: Stage, update: int) -> tuple[Letter, ...]:
    """The examples of an update: example j has depth 1 + j mod `deepest`, and the templates 0-4 take turns.

    A function of (stage, update) alone.  No graph of `held` occurs.
    """
    seeds = _seeds(stage.first_seed, update, stage.examples)
    return tuple(
        draw(held().free_seed(seed), k=1 + j % stage.deepest, template=_turn(update, stage.examples, j))
        for j, seed in enumerate(seeds)
    )


def _seeds(first: int, update: int, count: int) -> range:
    if update < 0:
        raise InputError(f"updates are counted from 0, not {update}")
    if count < 1:
        raise InputError(f"an update has at least 1 text, not {count}")
    start = first + max(UPDATE_STRIDE, count) * update
    return range(start, start + count)


def _turn(update: int, count: int, j: int) -> int:
    """Which training template is next, if each update has `count` texts."""
    return TRAIN_TEMPLATES[(count * update + j) % len(TRAIN_TEMPLATES)]


@dataclass(frozen=True)
class Lookups:
    """One set of rules followed by questions with their answers.  The letters differ in start and k only.

    How to answer is said once, with the first question, so that answers lie closer together.
    """

    letters: tuple[Letter, ...]

    @property
    def turns(self) -> tuple[tuple[str, str], ...]:
        """(what comes before an answer, the answer), one after another; joined, they are the text."""
        first, *rest = self.letters
        asked = [f"{prompt(first)}\n", *(f"\n{question(letter, letter.start)}\n" for letter in rest)]
        return tuple((before, answer(letter)) for before, letter in zip(asked, self.letters, strict=True))

    @property
    def text(self) -> str:
        """The whole text.  It begins with the prompt of its first letter."""
        return "".join(before + name for before, name in self.turns)


def lookups(seed: int, template: int, deepest: int, questions: int) -> Lookups:
    """A text of `questions` questions, each from another start, with depths 1 to `deepest` in a random order.

    All depths come, the smaller ones equally often up to one, and half of the questions or more are of the largest,
    the last to be learned: there are at least as many questions as depths, and at most ten, or InputError.  So every
    depth can be the first, as in a question that stands alone, no answer can be copied, however few steps are answered
    for, and few can be had from an earlier one: of ten questions with depths to 4, a holder on the way was asked about
    before, for what is left of it, in 8 % of those of depth 3 and 11 % of those of depth 4.

    The graph is that of `held().free_seed(seed)`; the template is one of 0-4.
    """
    if template not in TRAIN_TEMPLATES:
        raise InputError(f"texts to learn from have templates 0 to {TRAIN_TEMPLATES[-1]}, not {template}")
    if not 1 <= deepest <= questions <= len(NAMES):
        most = f"{deepest} to {len(NAMES)} questions" if 1 <= deepest <= len(NAMES) else "no questions"
        raise InputError(f"depths up to {deepest} take {most}, each from another start, not {questions}")
    rng = random.Random(held().free_seed(seed))
    letter = draw_from(rng, 1, template)
    spread = max(deepest, questions // 2)
    depths = [1 + q % deepest for q in range(spread)] + [deepest] * (questions - spread)
    rng.shuffle(depths)
    asked = zip(depths, rng.sample(NAMES, questions), strict=True)
    return Lookups(tuple(replace(letter, k=k, start=start) for k, start in asked))


def adaptation(
    update: int, *, texts: int, questions: int, deepest: int, first_seed: int = ADAPTATION_SEED
) -> tuple[Lookups, ...]:
    """The texts of an update.  A curriculum gives `deepest` as a function of the update, beginning with 1.

    A function of its arguments alone; the templates 0-4 take turns.  Raises InputError as `lookups` does.
    """
    seeds = _seeds(first_seed, update, texts)
    return tuple(lookups(seed, _turn(update, texts, j), deepest, questions) for j, seed in enumerate(seeds))


TIMES = 8
"""How often rules are told: a text of so many has a chunk of general text (`general_text.CHUNK`) and no more."""


def retold(number: int) -> str:
    """The rules of one graph, eight times, in another order each time: general text for a model from nothing.

    A model of a few thousand updates learns to look a taker up from these sooner than from questions, as there is one
    every eight tokens and its giver stands before it.
    """
    seed = held().free_seed(RETOLD_SEED + number)
    letter, rng = draw(seed, 1, 0), random.Random(seed + 1)
    givers = [giver for _ in range(TIMES) for giver in shuffled(rng)]
    return "\n".join(RULE.format(giver=giver, taker=letter.taker(giver)) for giver in givers)
