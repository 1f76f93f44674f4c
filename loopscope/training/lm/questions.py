"""What an update of a recipe is about, as text, and what a model is asked at a check.

All of it is a function of (recipe, update) alone, and of nothing that is evaluated on: the task modules hold that out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from loopscope.tasks import antonyms, iterations, letters
from loopscope.tasks.letters import training as letter_training
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


class Turn(NamedTuple):
    """A part of a text: what is asked about, what comes before an answer, and the answers after 1, 2, ... steps.

    The last of these is the one asked for.
    """

    subject: Hashable
    before: str
    stages: Sequence[str]


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
    asked = list(_asked_for(recipe, turn, recipe.depth_at(level)))
    if not recipe.stepwise:
        return tuple(Example(prompt, stages[-1], recipe.loops, len(stages)) for prompt, stages in asked)
    if recipe.every_stage:
        return tuple(
            Example(prompt, answer, loops=stage, depth=stage)
            for prompt, stages in asked
            for stage, answer in enumerate(stages, start=1)
        )
    made = []
    for prompt, stages in asked:
        steps = {loops: min(len(stages), int(recipe.pace * loops)) for loops in recipe.read_after(level)}
        *earlier, (answer, loops, depth) = (Earlier(stages[depth - 1], loops, depth) for loops, depth in steps.items())
        made.append(Example(prompt, answer, loops, depth, tuple(earlier)))
    return tuple(made)


def _asked_for(recipe: Recipe, turn: int, deepest: int) -> Iterator[tuple[str, Sequence[str]]]:
    """Every question's prompt, and the answers after 1, 2, ... steps to the one that it asks for."""
    if recipe.task == "letter":
        for letter in _letters_of(recipe, turn, deepest):
            yield letters.prompt(letter), _takers(letter)
    elif recipe.task == "antonym":
        depths = [deepest if recipe.every_stage else 1 + j % deepest for j in range(recipe.examples)]
        for request in antonyms.requests(turn, recipe.seed, depths, recipe.form):
            yield request.prompt, request.stages
    else:
        rounds = recipe.examples // len(iterations.TASKS)
        for number in range(rounds * turn, rounds * (turn + 1)):
            for each in iterations.requests(number, deepest=deepest, seed=recipe.seed, wider=recipe.starts == "wider"):
                yield each.prompt, _iterated(each)


def _letters_of(recipe: Recipe, turn: int, deepest: int) -> list[letters.Letter]:
    """A graph for every question, or several questions about each."""
    if recipe.per_text == 1:
        return list(letter_training.training(letter_training.Stage(recipe.seed, recipe.examples, deepest), turn))
    return [letter for text in _lookups(recipe, turn, deepest) for letter in text.letters]


def _lookups(recipe: Recipe, turn: int, deepest: int) -> tuple[letter_training.Lookups, ...]:
    return letter_training.adaptation(
        turn, texts=recipe.examples, questions=recipe.per_text, deepest=deepest, first_seed=recipe.seed
    )


def _takers(letter: letters.Letter) -> list[str]:
    return [letter.taker(letter.start, steps) for steps in range(1, letter.k + 1)]


def _iterated(request: iterations.Request) -> list[str]:
    return [request.answer_after(steps) for steps in range(1, request.k + 1)]


def texts(recipe: Recipe, turn: int, level: int | None = None) -> tuple[Text, ...]:
    """The texts full of look-ups of an update; arguments as of `examples`.

    In stepwise learning, the depth of an answer is the number of steps that it is given after.
    """
    level = recipe.level_at(turn) if level is None else level
    deepest, pace, most = recipe.depth_at(level), recipe.pace_at(level), recipe.loops_at(level)
    end = "" if recipe.task == "letter" else "\n"
    made = []
    for j, turns in enumerate(_turns(recipe, turn, deepest)):
        loops = 1 + j // 2 % most if recipe.stepwise and j % 2 == 0 else most
        made.append(joined(turns, loops, int(pace * loops) if recipe.stepwise else deepest, end))
    return tuple(made)


def _turns(recipe: Recipe, turn: int, deepest: int) -> Iterator[Iterator[Turn]]:
    """The turns of every text of an update."""
    if recipe.task == "letter":
        for text in _lookups(recipe, turn, deepest):
            yield (
                Turn(letter.start, before, _takers(letter))
                for (before, _), letter in zip(text.turns, text.letters, strict=True)
            )
        return
    for seed in range(recipe.seed + recipe.examples * turn, recipe.seed + recipe.examples * (turn + 1)):
        if recipe.task == "antonym":
            asked = {"longest": deepest, "sequences": recipe.per_text}
            yield (Turn(*turn) for turn in antonyms.dense_turns(seed, **asked, form=recipe.form))
        else:
            wider = recipe.starts == "wider"
            yield _asked(iterations.dense_requests(seed, longest=deepest, rounds=recipe.per_text, wider=wider))


def _asked(requests: Iterable[iterations.Request]) -> Iterator[Turn]:
    for number, each in enumerate(requests):
        before = ("\n\n" if number else "") + each.prompt + " "
        yield Turn((each.task, each.start), before, _iterated(each))


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
            request = antonyms.Request(words, recipe.deepest if recipe.every_stage else k, form=recipe.form)
            loops = k if recipe.every_stage else recipe.loops
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
