"""Iterations as a task: where a rule ends after 1, 2, ... steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from loopscope.errors import InputError
from loopscope.tasks.iterations.prompts import SEED, Request, bank, dense_requests, is_right, requests
from loopscope.tasks.iterations.rules import TASKS
from loopscope.tasks.task import Asked, Draw, Task, Turn


@dataclass(frozen=True)
class Iterations(Task):
    """Five rules.  `starts`: published ones that are for training, or as often wider ones (`rules`).

    A text asks `per_text` times for every rule and depth.
    """

    name = "iterations"
    key = "iterations"
    in_every_recipe = True

    starts: Literal["published", "wider"] = "published"

    def check(self, draw: Draw, chat: bool) -> None:
        """InputError for questions that are no multiple of five."""
        super().check(draw, chat)
        if chat and draw.examples % len(TASKS):
            raise InputError(f"an update has one question for each of five tasks, or several; not {draw.examples}")

    @property
    def wider(self) -> bool:
        """Whether there are wider starts."""
        return self.starts == "wider"

    def questions(self, draw: Draw) -> Iterator[Asked]:
        """Rounds of five, one for each rule."""
        rounds = draw.examples // len(TASKS)
        for number in range(rounds * draw.update, rounds * (draw.update + 1)):
            yield from map(_asked, requests(number, deepest=draw.deepest, seed=draw.seed, wider=self.wider))

    def texts(self, draw: Draw) -> Iterator[Iterator[Turn]]:
        """Every rule is asked for each depth."""
        for seed in range(draw.seed + draw.examples * draw.update, draw.seed + draw.examples * (draw.update + 1)):
            yield _turns(dense_requests(seed, longest=draw.deepest, rounds=draw.per_text, wider=self.wider))

    def checks(self, deepest: int, count: int) -> Iterator[Asked]:
        """From training starts: a run that ends by its accuracy must not see the test's."""
        return map(_asked, bank("train", cases=count, deepest=deepest, seed=SEED + 1000))

    def right(self, reply: str, answer: str) -> bool:
        """As `is_right`."""
        return is_right(reply, answer)


def _asked(request: Request) -> Asked:
    return Asked(request.prompt, _stages(request), request.task)


def _turns(asked: tuple[Request, ...]) -> Iterator[Turn]:
    for number, each in enumerate(asked):
        yield Turn((each.task, each.start), ("\n\n" if number else "") + each.prompt + " ", _stages(each))


def _stages(request: Request) -> list[str]:
    return [request.answer_after(steps) for steps in range(1, request.k + 1)]
