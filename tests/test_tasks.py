"""What a language task is: one of ours, and one that somebody brings along as one class and one registry line."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from loopscope.errors import InputError
from loopscope.models.text import load_tokenizer
from loopscope.studies.language.recipes import recipe
from loopscope.tasks import TASKS, Antonyms, Asked, Draw, Task, Turn
from loopscope.training.lm.questions import Earlier, examples, questions, texts
from loopscope.training.lm.recipe import Recipe, changed
from loopscope.training.lm.words import write_words
from tests.tuning_tiny import tuning_data, tuning_folder


@dataclass(frozen=True)
class Counting(Task):
    """Count on from a number."""

    name = key = "counting"
    by: Literal["one", "two"] = "one"

    @classmethod
    def words(cls) -> list[str]:
        return ["Count on from"]

    def _asked(self, start: int, k: int) -> Asked:
        step = {"one": 1, "two": 2}[self.by]
        return Asked(f"Count on from {start}, {k} times.", [str(start + step * (1 + each)) for each in range(k)])

    def questions(self, draw: Draw) -> Iterator[Asked]:
        source = random.Random(f"{draw.seed} {draw.update}")
        return (self._asked(source.randrange(50), 1 + j % draw.deepest) for j in range(draw.examples))

    def texts(self, draw: Draw) -> Iterator[Iterator[Turn]]:
        for prompt, stages, _ in self.questions(draw):
            yield iter([Turn(prompt, f"{prompt} ", stages)])

    def checks(self, deepest: int, count: int) -> Iterator[Asked]:
        return (self._asked(50 + case, k) for k in range(1, deepest + 1) for case in range(count))

    def right(self, reply: str, answer: str) -> bool:
        return reply.strip() == answer


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe of a new task that is registered."""
    monkeypatch.setitem(TASKS, "counting", Counting)  # type: ignore[misc]
    return Recipe(
        name="count", trains="weights", task=Counting(by="two"), loops=3, updates=4, examples=6, micro=3, rate=1e-4,
        horizon=0, seed=1, general_seed=2, deepest=3,
    )  # fmt: skip


def test_a_task_of_ones_own_is_learned_and_checked(counting: Recipe, tmp_path: Path) -> None:
    asked = examples(counting, 5)
    assert asked == examples(counting, 5) != examples(counting, 6)
    assert [each.depth for each in asked] == [1, 2, 3, 1, 2, 3]
    start = int(asked[2].prompt.split()[3].rstrip(","))
    assert (asked[2].answer, asked[2].loops) == (str(start + 6), 3)
    by_steps = examples(changed(counting, ["stepwise=true"]), 5)[2]
    assert by_steps.earlier == (Earlier(str(start + 2), 1, 1), Earlier(str(start + 4), 2, 2))
    (first, *_) = texts(changed(counting, ["text=look-ups"]), 5)
    assert first.text.endswith(f"{asked[0].answer}\n")
    checks = questions(counting)
    assert [each.cell for each in checks] == ["1"] * 16 + ["2"] * 16 + ["3"] * 16
    assert (checks[-1].right(" 71 "), checks[-1].right("70")) == (True, False)
    folder = tuning_folder(tmp_path / "model")
    (unit, *_) = tuning_data(counting, folder)(0)
    assert asked[0].answer not in checks[0].prompt
    assert examples(counting, 0)[0].prompt in load_tokenizer(folder).decode(unit.tokens[0].tolist())


def test_settings_of_a_new_task_are_written_into_its_own_recipes_alone(
    counting: Recipe, refused: Callable[..., str]
) -> None:
    written = counting.to_dict()
    assert (written["task"], written["by"]) == ("counting", "two")
    assert Recipe.from_dict(written) == counting
    assert "by" not in recipe("letter").to_dict()
    assert changed(counting, ["by=one"]).task == Counting()
    assert "by is one of one, two, not 'three'" in refused(InputError, changed, counting, ["by=three"])
    assert "no setting 'by'" in refused(InputError, changed, recipe("letter"), ["by=one"])
    assert "starts is a setting of iterations, not of counting" in refused(
        InputError, changed, counting, ["starts=wider"]
    )


def test_a_task_has_no_setting_of_a_name_that_recipes_have(counting: Recipe, refused: Callable[..., str]) -> None:
    @dataclass(frozen=True)
    class Seeded(Counting):
        seed: int = 0

    message = refused(InputError, lambda: replace(counting, task=Seeded()))
    assert message == "a setting of counting cannot be called 'seed': every recipe has one"


def test_there_is_a_tokenizer_of_its_words(counting: Recipe, tmp_path: Path, refused: Callable[..., str]) -> None:
    write_words(tmp_path / "words", counting.task.name)
    assert len(load_tokenizer(tmp_path / "words").encode("Count on from 7")) == 4
    assert "there are those of letters, counting" in refused(InputError, write_words, tmp_path / "no", "iterations")


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_registered_by_its_name(name: str) -> None:
    assert TASKS[name].name == name
    assert TASKS[name]() == TASKS[name]()


def test_a_setting_is_one_of_its_words(refused: Callable[..., str]) -> None:
    assert "form is one of final-only, stepwise, not 'both'" in refused(InputError, Antonyms, "both")
