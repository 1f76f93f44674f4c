"""The rules of the five iteration tasks, where they start, and the words for them.

    task        starts           one step                               answer
    successor   0 to 99          n + 1                                  the number
    weekday     the seven days   the next day                           the day
    doubling    1 to 9           2 n                                    the number
    fibonacci   pairs 0 to 8     (a, b) becomes (b, a + b)              b of the last pair
    collatz     2 to 99          n / 2 if n is even, 3 n + 1 if odd     the number

**What the paper leaves out, and what is decided here.**  Pair i of Fibonacci is (F_i, F_i+1) with F_0 = 0, F_1 = 1, and
is written out in the prompt.  Collatz does not stop at 1: 1 becomes 4.  The wordings are ours, five templates for each
task, all of them trained and tested on.  k is written with two digits.

**Starts are split**, which the reference study does not do: sorted by the SHA-256 of "task start", the first quarter,
rounded, is for testing: 25 of 100, 2 of 7, 2 of 9, 2 of 9 and 24 of 98 starts.  Two test starts and five templates make
ten different prompts for one k, so 32 cases repeat some of them three or four times: `tally` tells how many differ.
Requests from the other starts, which are as the study's, are asked beside them.

**Wider starts.**  Five weekdays, seven numbers to double and seven pairs can be learned by heart, and then a new start
is answered wrongly, however well J does.  So a small model may be trained from more starts than the published ones:
successor to 999, doubling to 49, Collatz to 299, and any two numbers below 20 as a pair.  Half of the requests have
one of these.  None of them is where a test start is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from loopscope.errors import InputError, nearest

State = int | tuple[int, int]
"""Where an iteration stands: a number, the index of a weekday, or a pair of numbers."""

SPLITS = ("train", "test")
"""What a start is for."""

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Rule:
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

    @property
    def wider(self) -> range:
        """The starts beyond the published ones."""
        return range(self.starts.stop, self.starts.stop + self.more)

    def state(self, start: int, steps: int) -> State:
        """The state after so many steps; InputError for a start that is none or a negative number of steps."""
        if start not in self.starts and start not in self.wider:
            inside = f"{self.starts.start} to {self.wider.stop - 1}"
            raise InputError(f"{start} is no start of {self.name}, the starts are {inside}")
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
        Rule(
            "successor",
            range(100),
            lambda state: _number(state) + 1,
            opening="Starting with {start}, count up by one exactly {k} times. Which number do you get to?",
            rule="go to the next whole number",
            more=900,
        ),
        Rule(
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
        Rule(
            "doubling",
            range(1, 10),
            lambda state: 2 * _number(state),
            opening="Starting with {start}, double what you have exactly {k} times. How much is it then?",
            rule="multiply the number by two",
            more=40,
        ),
        Rule(
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
        Rule(
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


def task_named(name: str) -> Rule:
    """The task of this name; InputError if there is none."""
    if name not in TASKS:
        raise InputError(f"there is no iteration task {name!r}, only {', '.join(TASKS)}{nearest(name, TASKS)}")
    return TASKS[name]


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
    return tuple(start for start in each.wider if each.state(start, 0) not in tested)
