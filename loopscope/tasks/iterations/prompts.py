"""Requests of the five iteration tasks as text: what is asked, what is learned from, what is right."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from loopscope.errors import InputError
from loopscope.tasks.iterations.rules import DAYS, TASKS, TEMPLATES, starts_of, task_named, wider_starts

TRAINED_DEPTH, LONGEST = 4, 8
"""The longest request of a backbone's training, and of a map's training and the test."""

SEED = 20_260_908
"""Seed of training; the bank that a run is stopped by takes `SEED + 1000`, the test bank `SEED + 2000`."""


# ---- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A question: a task, the number of its start, how many steps, in which wording.

    `start` is a number from `Rule.starts`, or a wider one: the index of the weekday (Monday is 0) or of the Fibonacci
    pair.  InputError for a task, start or template that does not exist, or a k that is not 1 to 99.
    """

    task: str
    start: int
    k: int
    template: int = 0

    def __post_init__(self) -> None:
        task_named(self.task).state(self.start, 0)
        if not 1 <= self.k <= 99:
            raise InputError(f"{self.k} steps are asked for, a request has 1 to 99")
        if not 0 <= self.template < len(TEMPLATES):
            raise InputError(f"template {self.template} does not exist, there are 0 to {len(TEMPLATES) - 1}")

    @property
    def prompt(self) -> str:
        """What the user says; its last word is "Answer:"."""
        task = TASKS[self.task]
        facts = {"start": task.said(task.enter(self.start)), "k": f"{self.k:02d}"}
        opening = task.opening.format(**facts)
        question = TEMPLATES[self.template].format(opening=opening, rule=task.rule, wanted=task.wanted, **facts)
        return f"{question}\n{task.instruction}\nAnswer:"

    @cached_property
    def answer(self) -> str:
        """The right answer."""
        return self.answer_after(self.k)

    def answer_after(self, steps: int) -> str:
        """The answer of a model that takes another number of steps than asked: 0 repeats the start."""
        return TASKS[self.task].answer(self.start, steps)


def _start(source: random.Random, task: str, wider: bool) -> int:
    """A training start; if there may be wider ones, one of these as often as not."""
    more = wider_starts(task) if wider and source.random() < 0.5 else ()
    return source.choice(more or starts_of(task, "train"))


def requests(
    update: int, *, deepest: int = TRAINED_DEPTH, seed: int = SEED, wider: bool = False
) -> tuple[Request, ...]:
    """The five requests of one training update, one per task, each from its training starts, or from wider ones, too.

    k comes from a shuffled deck per task that holds 1 to `deepest` once and lasts for `deepest` updates: after whole
    decks every (task, k) is equally frequent.  Start and template are uniform.  The same arguments give the same
    requests.  InputError for a negative update or no depth.
    """
    if update < 0 or deepest < 1:
        raise InputError(f"update {update} to depth {deepest} is asked for: updates start at 0, depths at 1")
    drawn = []
    for task in TASKS:
        number, place = divmod(update, deepest)
        deck = random.Random(f"{seed} {task} deck {deepest} {number}").sample(range(1, deepest + 1), deepest)
        source = random.Random(f"{seed} {task} update {deepest} {update}")
        start = _start(source, task, wider)
        drawn.append(Request(task, start, deck[place], source.randrange(len(TEMPLATES))))
    return tuple(drawn)


def bank(split: str, *, cases: int = 32, deepest: int = LONGEST, seed: int = SEED + 2000) -> tuple[Request, ...]:
    """A fixed set of requests: `cases` for every task and k = 1 to `deepest`, task by task and k by k.

    Case i has template i mod 5; each template goes through all starts in a shuffled order of its own before any comes
    again, so as many prompts differ as can.  The test bank is `bank("test")`, 1,280 requests; a run that is stopped
    by its accuracy must be judged on training starts, as `bank("train", cases=16, deepest=4, seed=SEED + 1000)`.
    `bank("train")` asks as much from training starts as the test bank does from its own.
    """
    if cases < 1 or deepest < 1:
        raise InputError(f"a bank of {cases} cases to depth {deepest} is asked for: both are at least 1")
    chosen = []
    for task in TASKS:
        starts = starts_of(task, split)
        for k in range(1, deepest + 1):
            source = random.Random(f"{seed} {task} {split} {k}")
            orders = [source.sample(starts, len(starts)) for _ in TEMPLATES]
            for case in range(cases):
                turn, template = divmod(case, len(TEMPLATES))
                chosen.append(Request(task, orders[template][turn % len(starts)], k, template))
    return tuple(chosen)


def dense_requests(seed: int, *, longest: int, rounds: int = 1, wider: bool = False) -> tuple[Request, ...]:
    """The requests of a text with many questions and their answers, to be learned from first token to last.

    Every task is asked for every depth from 1 to `longest`, `rounds` times, from starts as in `requests`, in any
    template, all in a random order: where a question stands tells nothing of its depth, and any can be the first, as in
    a prompt.  InputError for a longest depth outside 1 to 99 or no rounds.
    """
    if not 1 <= longest <= 99 or rounds < 1:
        raise InputError(f"depths to {longest} in {rounds} rounds are asked for: depths are 1 to 99, rounds at least 1")
    source = random.Random(seed)
    cells = [(task, k) for k in range(1, longest + 1) for task in TASKS for _ in range(rounds)]
    source.shuffle(cells)
    return tuple(Request(task, _start(source, task, wider), k, source.randrange(len(TEMPLATES))) for task, k in cells)


# ---- scoring ---------------------------------------------------------------------------------------------------------


class Score(NamedTuple):
    """Whether a generated text is the answer as a whole, and whether the first thing in it that could be one is."""

    whole: bool
    parsed: bool


def parsed_answer(task: str, text: str) -> str | None:
    """The first whole number in a text, or for weekdays the first weekday, as an answer is written; None without one.

    A number is a run of digits, perhaps with a minus sign right before it; leading zeros do not count, and digits
    grouped by commas are several numbers.
    """
    if task_named(task) is TASKS["weekday"]:
        day = re.search(rf"\b({'|'.join(DAYS)})\b", text, flags=re.IGNORECASE)
        return day and day[0].capitalize()
    number = re.search(r"(-?)0*([0-9]+)", text)
    return number and number[1] + number[2]


def is_right(reply: str, answer: str) -> bool:
    """Whether a whole text is the answer, blanks around it and case left out."""
    return reply.strip().casefold() == answer.casefold()


def score(request: Request, text: str) -> Score:
    """The score of a generated text: by `is_right`, and by `parsed_answer`."""
    return Score(is_right(text, request.answer), parsed_answer(request.task, text) == request.answer)


# ---- what a score must be compared with ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """Of the requests of one task and k: how many there are, and how many are right without doing what is asked.

    `prompts` and `answers` are how many different ones there are.  `repeats_start` are right if the start is repeated,
    `stops_early` if no step is taken beyond the trained ones, `says_one_thing` if always the most frequent answer is
    given.
    """

    task: str
    k: int
    requests: int
    prompts: int
    answers: int
    repeats_start: int
    stops_early: int
    says_one_thing: int


def tally(asked: Iterable[Request], *, trained: int = TRAINED_DEPTH) -> tuple[Tally, ...]:
    """Counts for every (task, k) in the requests, in the order they first come up."""
    cells: dict[tuple[str, int], list[Request]] = {}
    for request in asked:
        cells.setdefault((request.task, request.k), []).append(request)
    return tuple(
        Tally(
            task,
            k,
            requests=len(cell),
            prompts=len({request.prompt for request in cell}),
            answers=len({request.answer for request in cell}),
            repeats_start=sum(request.answer_after(0) == request.answer for request in cell),
            stops_early=sum(request.answer_after(min(k, trained)) == request.answer for request in cell),
            says_one_thing=max(Counter(request.answer for request in cell).values()),
        )
        for (task, k), cell in cells.items()
    )


@dataclass(frozen=True)
class Overlap:
    """Of the test starts of one task at one k: how many requests training has been through, wholly or in part.

    Requests are compared as (state, steps left): two that agree in both have the same rest and the same answer.
    `inside`: a training request passes through this start with k steps left, so all of this request is part of it.
    `joins`: after at least one step, with at least one left, it is where some training request is too.  `asked`: the
    same, where that training request begins, so that training asks for the rest by itself.
    """

    task: str
    k: int
    starts: int
    inside: int
    joins: int
    asked: int


def overlaps(*, deepest: int = LONGEST, trained: int = LONGEST) -> tuple[Overlap, ...]:
    """What test requests for k = 1 to `deepest` share with all training requests for 1 to `trained` steps."""
    counted = []
    for name, task in TASKS.items():
        passed = {
            (task.state(start, done), steps - done)
            for start in starts_of(name, "train")
            for steps in range(1, trained + 1)
            for done in range(steps)
        }
        begun = {(task.enter(start), steps) for start in starts_of(name, "train") for steps in range(1, trained + 1)}
        tests = starts_of(name, "test")
        for k in range(1, deepest + 1):
            rests = [{(task.state(start, done), k - done) for done in range(1, k)} for start in tests]
            counted.append(
                Overlap(
                    name,
                    k,
                    starts=len(tests),
                    inside=sum((task.enter(start), k) in passed for start in tests),
                    joins=sum(not rest.isdisjoint(passed) for rest in rests),
                    asked=sum(not rest.isdisjoint(begun) for rest in rests),
                )
            )
    return tuple(counted)
