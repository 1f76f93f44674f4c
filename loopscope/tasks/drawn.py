"""The paper's language tasks as examples, like those of any file: drawn ones to learn from, fixed ones held out.

    drawn(Letters(), count=400, deepest=4)       Examples('letters', 480 examples)

What is held out are the task's questions of a check, of which no final result comes; its final questions are not here.
"""

from __future__ import annotations

from loopscope.bounds import whole
from loopscope.errors import InputError
from loopscope.tasks.examples import Example, Examples
from loopscope.tasks.task import Asked, Draw, Task

MOST = 100_000
AT_ONCE = 20
"""Questions that are drawn together; a multiple of the five rules of iterations."""

FEWEST_NEW = 100
"""Draws after which a task that has given no new question has no more."""


def drawn(task: Task, count: int = 400, deepest: int = 4, seed: int = 0, checked: int = 20) -> Examples:
    """So many questions of up to `deepest` steps to learn from, and up to `checked` of every depth held out.

    The same arguments give the same examples.  InputError for numbers out of range, and where the task has fewer.
    """
    whole("the number of examples", count, 1, MOST)
    whole("the number of steps", deepest, 1, 100)
    whole("the number that is held out", checked, 1, MOST)
    held = [_example(each, "test") for each in task.checks(deepest, checked)]
    seen, idle, update = {each.prompt for each in held}, 0, 0
    found: list[Example] = []
    while len(found) < count:
        before = len(found)
        for asked in task.questions(Draw(seed, update, AT_ONCE, deepest)):
            if asked.prompt not in seen and len(found) < count:
                seen.add(asked.prompt)
                found.append(_example(asked, "train"))
        update, idle = update + 1, idle + 1 if len(found) == before else 0
        if idle == FEWEST_NEW:
            raise InputError(f"{task.name} has {len(found)} questions of up to {deepest} steps, not {count}")
    return Examples(task.name, (*found, *held))


def _example(asked: Asked, side: str) -> Example:
    columns = {"group": asked.group} if asked.group else {}
    return Example(asked.prompt, asked.stages[-1], len(asked.stages), split=side, columns=columns)
