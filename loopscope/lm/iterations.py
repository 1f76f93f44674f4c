"""Five iteration tasks as text: apply one rule k times, say where it ends.

    task        starts           one step                               answer
    successor   0 to 99          n + 1                                  the number
    weekday     the seven days   the next day                           the day
    doubling    1 to 9           2 n                                    the number
    fibonacci   pairs 0 to 8     (a, b) becomes (b, a + b)              b of the last pair
    collatz     2 to 99          n / 2 if n is even, 3 n + 1 if odd     the number

    request = Request("doubling", start=8, k=3, template=0)
    request.prompt, request.answer         # two texts, "... Answer:" and "64"; tokens are somebody else's business

**What the paper leaves out, and what is decided here.**  Pair i of Fibonacci is (F_i, F_i+1) with F_0 = 0, F_1 = 1, and
is written out in the prompt.  Collatz does not stop at 1: 1 becomes 4.  The wordings are ours, five templates for each
task, all of them trained and tested on.  k is written with two digits.

**Starts are split**, which the reference study does not do: sorted by the SHA-256 of "task start", the first quarter,
rounded, is for testing: 25 of 100, 2 of 7, 2 of 9, 2 of 9 and 24 of 98 starts.  Two test starts and five templates make
ten different prompts for one k, so 32 cases repeat some of them three or four times: `tally` tells how many differ.
Requests from the other starts, which are as the study's, are asked beside them.

**What the split cannot hold out.**  A test start is one step from other states, and those are starts or intermediate
states of training.  Every weekday comes up in training; the successor of a test start is mostly a training start, and
then a test request for k is, after one step, a training request for k - 1.  `overlaps` counts test requests that lie
inside a training request and those that run into one.  With training up to 8 steps and the longer half of the test, 5
to 8, that is, of (start, k): successor 59 and 99 of 100, weekday 6 and 8 of 8, doubling 3 and 4 of 8, Fibonacci 6 and 8
of 8, Collatz 40 and 85 of 96.  A new start is therefore a new question, but seldom a new computation.

**Wider starts.**  Five weekdays, seven numbers to double and seven pairs can be learned by heart, and then a new start
is answered wrongly, however well J does.  So a small model may be trained from more starts than the published ones:
successor to 999, doubling to 49, Collatz to 299, and any two numbers below 20 as a pair.  Half of the requests have
one of these.  None of them is where a test start is.

**What comes without iterating on.**  A model trained to 4 steps that goes no further on a longer request answers with
the state after 4 steps; another may repeat the start, or always say the same.  `tally` counts, per task and k, how many
requests each of them gets right: the zero line of a run that stops after 4 steps.  Of the 640 longer requests of the
test bank: stopping after 4 steps 0, repeating the start 32 (weekday, k = 7), saying one thing per task and k 225,
because two test starts leave two answers.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from loopscope.errors import InputError, nearest

State = int | tuple[int, int]
"""Where an iteration stands: a number, the index of a weekday, or a pair of numbers."""

SPLITS = ("train", "test")
"""What a start is for."""

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

TRAINED, LONGEST = 4, 8
"""The longest request of a backbone's training, and of a map's training and the test."""

SEED = 20_260_908
"""Seed of training; the bank that a run is stopped by takes `SEED + 1000`, the test bank `SEED + 2000`."""


# ---- the five tasks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One rule, its starts, and the words for it.

    `starts` are numbers that `enter` turns into states; as many as `more` says follow them as wider ones.  `said`
    writes a state in a prompt, `answered` in an answer.  `opening` is the first template, in words of the task's own;
    for the others, `rule` is one step as a command and `wanted` what the answer is.  `instruction` says that nothing
    else is to be said.
    """

    name: str
    starts: range
    step: Callable[[State], State]
    opening: str
    rule: str
    wanted: str = "the number you end on"
    instruction: str = "Reply with the number only."
    more: int = 0
    enter: Callable[[int], State] = int
    said: Callable[[State], str] = str
    answered: Callable[[State], str] = str

    def state(self, start: int, steps: int) -> State:
        """The state after so many steps; InputError for a start that is none or a negative number of steps."""
        wider = range(self.starts.start, self.starts.stop + self.more)
        if start not in wider:
            raise InputError(f"{start} is no start of {self.name}, the starts are {wider.start} to {wider.stop - 1}")
        if steps < 0:
            raise InputError(f"{steps} steps are asked for, the number of steps is 0 or more")
        state = self.enter(start)
        for _ in range(steps):
            state = self.step(state)
        return state

    def answer(self, start: int, steps: int) -> str:
        """What is right to say after so many steps; InputError as `state`."""
        return self.answered(self.state(start, steps))


def _number(state: State) -> int:
    assert isinstance(state, int)
    return state


def _pair(state: State) -> tuple[int, int]:
    assert isinstance(state, tuple)
    return state


def _fibonacci_step(state: State) -> State:
    a, b = _pair(state)
    return b, a + b


PAIRS, BELOW = 9, 20
"""Published pairs; and wider ones are any two numbers below this."""


def _fibonacci_pair(index: int) -> State:
    if index >= PAIRS:
        return divmod(index - PAIRS, BELOW)
    state: State = (0, 1)
    for _ in range(index):
        state = _fibonacci_step(state)
    return state


def _collatz_step(state: State) -> State:
    n = _number(state)
    return 3 * n + 1 if n % 2 else n // 2


def _day(state: State) -> str:
    return DAYS[_number(state)]


TASKS = {
    task.name: task
    for task in (
        Task(
            "successor",
            range(100),
            lambda state: _number(state) + 1,
            opening="Starting with {start}, count up by one exactly {k} times. Which number do you get to?",
            rule="go to the next whole number",
            more=900,
        ),
        Task(
            "weekday",
            range(7),
            lambda state: (_number(state) + 1) % 7,
            opening="Starting with {start}, let the following day come exactly {k} times. Which day of the week is it?",
            rule="go to the next day of the week",
            wanted="the day you end on",
            instruction="Reply with the name of the day only.",
            said=_day,
            answered=_day,
        ),
        Task(
            "doubling",
            range(1, 10),
            lambda state: 2 * _number(state),
            opening="Starting with {start}, double what you have exactly {k} times. How much is it then?",
            rule="multiply the number by two",
            more=40,
        ),
        Task(
            "fibonacci",
            range(PAIRS),
            _fibonacci_step,
            opening="Starting with the pair {start}, turn (a, b) into (b, a + b) exactly {k} times. What is the second "
            "number of the last pair?",
            rule="replace the pair (a, b) by (b, a + b)",
            wanted="the second number of the pair you end on",
            more=BELOW**2,
            enter=_fibonacci_pair,
            answered=lambda state: str(_pair(state)[1]),
        ),
        Task(
            "collatz",
            range(2, 100),
            _collatz_step,
            opening="Starting with {start}, do this exactly {k} times: halve an even number, but triple an odd one and "
            "add one. Which number comes out?",
            rule="divide the number by two if it is even, otherwise multiply it by three and add one",
            more=200,
        ),
    )
}
"""The five tasks by name."""

TEMPLATES = (
    "{opening}",
    "Begin at {start} and repeat {k} times: {rule}. Give {wanted}.",
    "Take {start} as the initial state. An update means: {rule}. After {k} updates, give {wanted}.",
    "Perform {k} iterations from {start} on, where one iteration is: {rule}. Give {wanted}.",
    "Initial state: {start}\nStep: {rule}\nNumber of steps: {k}\nWanted: {wanted}",
)
"""The question in five wordings; the first is the task's own."""


def task_named(name: str) -> Task:
    """The task of this name; InputError if there is none."""
    if name not in TASKS:
        raise InputError(f"there is no iteration task {name!r}, only {', '.join(TASKS)}{nearest(name, TASKS)}")
    return TASKS[name]


# ---- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A question: a task, the number of its start, how many steps, in which wording.

    `start` is a number from `Task.starts`, or a wider one: the index of the weekday (Monday is 0) or of the Fibonacci
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

    @property
    def answer(self) -> str:
        """The right answer."""
        return self.answer_after(self.k)

    def answer_after(self, steps: int) -> str:
        """The answer of a model that takes another number of steps than asked: 0 repeats the start."""
        return TASKS[self.task].answer(self.start, steps)


@cache
def starts_of(task: str, split: str) -> tuple[int, ...]:
    """The starts of a task that are for training or for testing, in increasing order; InputError for an unknown one."""
    if split not in SPLITS:
        raise InputError(f"there is no split {split!r} of starts, only {', '.join(SPLITS)}{nearest(split, SPLITS)}")
    every = task_named(task).starts
    hashed = sorted(every, key=lambda start: hashlib.sha256(f"{task} {start}".encode()).digest())
    tested = round(len(every) / 4)
    return tuple(sorted(hashed[:tested] if split == "test" else hashed[tested:]))


@cache
def wider_starts(task: str) -> tuple[int, ...]:
    """Starts beyond the published ones that are not where a test start is; none for weekdays."""
    each = task_named(task)
    tested = {each.state(start, 0) for start in starts_of(task, "test")}
    beyond = range(each.starts.stop, each.starts.stop + each.more)
    return tuple(start for start in beyond if each.state(start, 0) not in tested)


def _start(source: random.Random, task: str, wider: bool) -> int:
    """A training start; if there may be wider ones, one of these as often as not."""
    more = wider_starts(task) if wider and source.random() < 0.5 else ()
    return source.choice(more or starts_of(task, "train"))


def requests(update: int, *, deepest: int = TRAINED, seed: int = SEED, wider: bool = False) -> tuple[Request, ...]:
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


def dense_text(seed: int, *, longest: int, rounds: int = 1, wider: bool = False) -> str:
    """A text of many questions with their answers, to be learned from first token to last before any fine-tuning.

    The requests of `dense_requests`, one after another.
    """
    asked = dense_requests(seed, longest=longest, rounds=rounds, wider=wider)
    return "\n\n".join(f"{request.prompt} {request.answer}" for request in asked) + "\n"


def dense_requests(seed: int, *, longest: int, rounds: int = 1, wider: bool = False) -> tuple[Request, ...]:
    """The requests of a dense text.

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


def score(request: Request, text: str) -> Score:
    """The score of a generated text: whole, blanks around it and case left out; and by `parsed_answer`."""
    whole = text.strip().casefold() == request.answer.casefold()
    return Score(whole, parsed_answer(request.task, text) == request.answer)


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


def tally(asked: Iterable[Request], *, trained: int = TRAINED) -> tuple[Tally, ...]:
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
