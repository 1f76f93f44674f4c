"""Letter-walk as a task: who holds the letter after 1, 2, ... transfers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loopscope.tasks.letters.prompts import NAMES, ONLY_THE_NAME, RULE, TEMPLATES, Letter, evaluation, is_right, prompt
from loopscope.tasks.letters.training import Lookups, Stage, adaptation, training
from loopscope.tasks.task import Asked, Draw, Task, Turn


@dataclass(frozen=True)
class Letters(Task):
    """Letter-walk.  A text has one set of rules and `per_text` questions; so may questions in a chat."""

    name = "letters"
    key = "letter"
    in_every_recipe = True
    before_answer = "\n"
    after_text = ""

    @classmethod
    def words(cls) -> Iterator[str]:
        """Every name in every place, every wording and every digit."""
        for name, giver in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True):
            yield RULE.format(giver=giver, taker=name)
        for wording in TEMPLATES:
            yield "\n".join([wording.intro, wording.question.format(start=NAMES[0], k="00")])
        yield ONLY_THE_NAME

    def check(self, draw: Draw, chat: bool) -> None:
        """Every update can be had; InputError comes from `adaptation` where questions are too many."""

    def questions(self, draw: Draw) -> Iterator[Asked]:
        """A graph for every question, or several questions about each."""
        if draw.per_text == 1:
            drawn = training(Stage(draw.seed, draw.examples, draw.deepest), draw.update)
        else:
            drawn = tuple(letter for text in _lookups(draw) for letter in text.letters)
        return map(_asked, drawn)

    def texts(self, draw: Draw) -> Iterator[Iterator[Turn]]:
        """One set of rules a text."""
        for text in _lookups(draw):
            yield (
                Turn(letter.start, before, _takers(letter))
                for (before, _), letter in zip(text.turns, text.letters, strict=True)
            )

    def checks(self, deepest: int, count: int) -> Iterator[Asked]:
        """The test graphs, in the first wording."""
        return (_asked(each) for k in range(1, deepest + 1) for each in evaluation(k)[:count])

    def right(self, reply: str, answer: str) -> bool:
        """As `is_right`."""
        return is_right(reply, answer)


def _lookups(draw: Draw) -> tuple[Lookups, ...]:
    return adaptation(
        draw.update, texts=draw.examples, questions=draw.per_text, deepest=draw.deepest, first_seed=draw.seed
    )


def _asked(letter: Letter) -> Asked:
    return Asked(prompt(letter), _takers(letter))


def _takers(letter: Letter) -> list[str]:
    return [letter.taker(letter.start, steps) for steps in range(1, letter.k + 1)]
