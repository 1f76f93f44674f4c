"""What an update of a recipe is about, as text, and what a model is asked at a check.

All of it is a function of (recipe, update) alone, and of nothing that is evaluated on: the task modules hold that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from loopscope.lm import antonyms, iterations, letter_training, letters
from loopscope.lm.tuning.recipes import Recipe


@dataclass(frozen=True)
class Example:
    """A question with its answer, by a run of how many loops it is learned, and its depth."""

    prompt: str
    answer: str
    loops: int
    depth: int


@dataclass(frozen=True)
class Text:
    """A text full of look-ups, and of every answer in it the first character's place and the depth."""

    text: str
    answers: tuple[tuple[int, int], ...]


def joined(turns: Iterable[tuple[str, str, int]], end: str = "") -> Text:
    """The text of turns: (what comes before an answer, the answer, its depth), one after another."""
    text, answers = "", []
    for before, answer, depth in turns:
        answers.append((len(text) + len(before), depth))
        text += before + answer
    return Text(text + end, tuple(answers))


@dataclass(frozen=True)
class Question:
    """A question of a check: `right` judges a reply, `cell` is what it is counted under, such as a depth."""

    prompt: str
    loops: int
    cell: str
    right: Callable[[str], bool]


def examples(recipe: Recipe, turn: int, deepest: int | None = None) -> tuple[Example, ...]:
    """The questions of the update that is number `turn` of those with questions, counted from 0.

    `deepest` is the largest depth asked for (default: by the recipe's schedule).
    """
    deepest = recipe.deepest_at(turn) if deepest is None else deepest
    if recipe.task == "letter":
        stage = letter_training.Stage(recipe.seed, recipe.examples, deepest)
        drawn = letter_training.training(stage, turn)
        return tuple(Example(letters.prompt(each), letters.answer(each), recipe.loops, each.k) for each in drawn)
    if recipe.task == "antonym":
        depths = [deepest if recipe.stepwise else 1 + j % deepest for j in range(recipe.examples)]
        asked = antonyms.requests(turn, recipe.seed, depths, recipe.form)
        if not recipe.stepwise:
            return tuple(Example(each.prompt, each.answer, recipe.loops, each.k) for each in asked)
        return tuple(
            Example(each.prompt, answer, loops=stage, depth=stage)
            for each in asked
            for stage, answer in enumerate(each.stages, start=1)
        )
    rounds = recipe.examples // len(iterations.TASKS)
    several = [iterations.requests(rounds * turn + i, deepest=deepest, seed=recipe.seed) for i in range(rounds)]
    return tuple(Example(each.prompt, each.answer, recipe.loops, each.k) for five in several for each in five)


def texts(recipe: Recipe, turn: int, deepest: int | None = None) -> tuple[Text, ...]:
    """The texts full of look-ups of an update; arguments as of `examples`."""
    deepest = recipe.deepest_at(turn) if deepest is None else deepest
    if recipe.task == "letter":
        drawn = letter_training.adaptation(
            turn,
            texts=recipe.examples,
            questions=recipe.per_text * deepest,
            deepest=deepest,
            first_seed=recipe.seed,
        )
        return tuple(
            joined((*turn, letter.k) for turn, letter in zip(each.turns, each.letters, strict=True)) for each in drawn
        )
    seeds = [recipe.seed + recipe.examples * turn + j for j in range(recipe.examples)]
    if recipe.task == "antonym":
        asked = {"longest": deepest, "sequences": recipe.per_text}
        found = [antonyms.dense_turns(seed, **asked, form=recipe.form, order="shuffled") for seed in seeds]
        return tuple(joined(each, end="\n") for each in found)
    several = [iterations.dense_requests(seed, longest=deepest, rounds=recipe.per_text) for seed in seeds]
    return tuple(joined(_asked(each), end="\n") for each in several)


def _asked(requests: Iterable[iterations.Request]) -> Iterator[tuple[str, str, int]]:
    for number, each in enumerate(requests):
        yield ("\n\n" if number else "") + each.prompt + " ", each.answer, each.k


def questions(recipe: Recipe) -> tuple[Question, ...]:
    """What is asked at a check: up to `recipe.checked` questions for every depth, none of them for final results.

    After look-ups they are plain texts as in those, to be gone on with.
    """
    asked = {"letter": _letters, "antonym": _antonyms, "iterations": _iterations}[recipe.task]
    return tuple(asked(recipe))


def _letters(recipe: Recipe) -> Iterator[Question]:
    for k in range(1, recipe.deepest + 1):
        for each in letters.evaluation(k)[: recipe.checked]:
            ((before, _),) = letter_training.Lookups((each,)).turns
            prompt = letters.prompt(each) if recipe.text == "questions" else before
            yield Question(prompt, recipe.loops, str(k), partial(letters.correct, each))


def _antonyms(recipe: Recipe) -> Iterator[Question]:
    for k in range(1, recipe.deepest + 1):
        for words in antonyms.quick_sequences()[: recipe.checked]:
            request = antonyms.Request(words, recipe.deepest if recipe.stepwise else k, form=recipe.form)
            loops = k if recipe.stepwise else recipe.loops
            yield Question(request.prompt, loops, str(k), partial(_says_pair, request.stages[k - 1]))


def _says_pair(answer: str, reply: str) -> bool:
    return antonyms.is_right(reply, answer)


def _iterations(recipe: Recipe) -> Iterator[Question]:
    """From training starts: a run that ends by its accuracy must not see the test's."""
    seed = iterations.SEED + 1000
    for request in iterations.bank("train", cases=recipe.checked, deepest=recipe.deepest, seed=seed):
        yield Question(request.prompt, recipe.loops, f"{request.task} {request.k}", partial(_says_answer, request))


def _says_answer(request: iterations.Request, reply: str) -> bool:
    return all(iterations.score(request, reply))
