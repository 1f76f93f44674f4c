"""The task of antonyms: questions, texts full of look-ups, checks, right answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from loopscope.tasks.antonyms.prompts import Request, dense_turns, is_right, requests
from loopscope.tasks.antonyms.sequences import quick_sequences
from loopscope.tasks.task import Asked, Draw, Task, Turn


@dataclass(frozen=True)
class Antonyms(Task):
    """Antonyms; `form` is what is asked (`QUESTIONS`).  A text has `per_text` sequences."""

    name = "antonyms"
    key = "antonym"
    in_every_recipe = True
    run_by_run = True

    form: Literal["final-only", "stepwise"] = "final-only"

    def questions(self, draw: Draw) -> Iterator[Asked]:
        """A sequence for every question."""
        first = draw.deepest if draw.only_deepest else 1
        depths = [first + j % (1 + draw.deepest - first) for j in range(draw.examples)]
        return map(_asked, requests(draw.update, draw.seed, depths, self.form))

    def texts(self, draw: Draw) -> Iterator[Iterator[Turn]]:
        """Every sequence is asked about for each depth."""
        for seed in range(draw.seed + draw.examples * draw.update, draw.seed + draw.examples * (draw.update + 1)):
            yield iter(dense_turns(seed, longest=draw.deepest, sequences=draw.per_text, form=self.form))

    def checks(self, deepest: int, count: int) -> Iterator[Asked]:
        """Validation sequences that no final number comes from."""
        for k in range(1, deepest + 1):
            yield from (_asked(Request(words, k, form=self.form)) for words in quick_sequences()[:count])

    def right(self, reply: str, answer: str) -> bool:
        """As `is_right`."""
        return is_right(reply, answer)


def _asked(request: Request) -> Asked:
    return Asked(request.prompt, request.stages)
