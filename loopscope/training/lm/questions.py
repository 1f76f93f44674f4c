"""What an update of a recipe is about, as text, and what a model is asked at a check.

All of it is a function of (recipe, update) alone; the recipe's task draws and judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from loopscope.tasks import Turn
from loopscope.training.lm.recipe import Recipe


class Earlier(NamedTuple):
    """What a question is answered on the way: after fewer loops, the answer of a smaller depth, or the same."""

    answer: str
    loops: int
    depth: int


@dataclass(frozen=True)
class Example:
    """A question with its answer, by a run of how many loops it is learned, its depth, and answers on the way."""

    prompt: str
    answer: str
    loops: int
    depth: int
    earlier: tuple[Earlier, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """All of its answers, each once."""
        return tuple(dict.fromkeys((self.answer, *(each.answer for each in self.earlier))))


@dataclass(frozen=True)
class Text:
    """A text full of look-ups, how many loops it is run for, and of every answer its first place and its depth."""

    text: str
    loops: int
    answers: tuple[tuple[int, int], ...]


def joined(turns: Iterable[Turn], loops: int, most: int, end: str = "") -> Text:
    """The text of turns, one after another, every answer given after at most `most` steps, which are its depth.

    Where several turns ask about one subject for more steps than that, they have one answer: the first of them alone is
    in the text, as in the others it could be copied.
    """
    text, answers, given = "", [], set()
    for subject, before, stages in turns:
        depth = min(most, len(stages))
        if (subject, depth) in given:
            continue
        given.add((subject, depth))
        answers.append((len(text) + len(before), depth))
        text += before + stages[depth - 1]
    return Text(text + end, loops, tuple(answers))


@dataclass(frozen=True)
class Question:
    """A question of a check: `right` judges a reply, `cell` is what it is counted under, such as a depth."""

    prompt: str
    loops: int
    cell: str
    right: Callable[[str], bool]


def examples(recipe: Recipe, turn: int, level: int | None = None) -> tuple[Example, ...]:
    """The questions of the update that is number `turn` of those with questions, counted from 0.

    `level` says how deep they ask (default: by the recipe's schedule).
    """
    level = recipe.level_at(turn) if level is None else level
    asked = recipe.task.questions(recipe.draw(turn, level))
    if not recipe.stepwise:
        return tuple(Example(each.prompt, each.stages[-1], recipe.loops, len(each.stages)) for each in asked)
    if recipe.run_by_run:
        return tuple(
            Example(each.prompt, answer, loops=stage, depth=stage)
            for each in asked
            for stage, answer in enumerate(each.stages, start=1)
        )
    made = []
    for prompt, stages, _ in asked:
        steps = {loops: min(len(stages), int(recipe.pace * loops)) for loops in recipe.read_after(level)}
        *earlier, (answer, loops, depth) = (Earlier(stages[depth - 1], loops, depth) for loops, depth in steps.items())
        made.append(Example(prompt, answer, loops, depth, tuple(earlier)))
    return tuple(made)


def texts(recipe: Recipe, turn: int, level: int | None = None) -> tuple[Text, ...]:
    """The texts full of look-ups of an update; arguments as of `examples`.

    In stepwise learning, the depth of an answer is the number of steps that it is given after.
    """
    level = recipe.level_at(turn) if level is None else level
    deepest, pace, most = recipe.depth_at(level), recipe.pace_at(level), recipe.loops_at(level)
    made = []
    for j, turns in enumerate(recipe.task.texts(recipe.draw(turn, level))):
        loops = 1 + j // 2 % most if recipe.stepwise and j % 2 == 0 else most
        steps = int(pace * loops) if recipe.stepwise else deepest
        made.append(joined(turns, loops, steps, recipe.task.after_text))
    return tuple(made)


def questions(recipe: Recipe) -> tuple[Question, ...]:
    """What is asked at a check: up to `recipe.checked` questions for every depth, none of them for final results.

    After look-ups they are plain texts as in those, to be gone on with.
    """
    task = recipe.task
    asked = [(each, recipe.loops) for each in task.checks(recipe.deepest, recipe.checked)]
    if recipe.run_by_run:  # the deepest, again and again: a run of t loops must say the answer after step t
        deepest = [each for each, _ in asked if len(each.stages) == recipe.deepest]
        runs = range(1, recipe.deepest + 1)
        asked = [(each._replace(stages=each.stages[:loops]), loops) for loops in runs for each in deepest]
    before = "" if recipe.text == "questions" else task.before_answer
    return tuple(
        Question(prompt + before, loops, f"{group} {len(stages)}".strip(), partial(task.right, answer=stages[-1]))
        for (prompt, stages, group), loops in asked
    )
