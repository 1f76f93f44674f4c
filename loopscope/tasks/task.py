"""What a language task is: questions to learn from, questions of a check, what is right.

A task is a value: a frozen dataclass whose fields are its own settings.  It is one module or folder in `tasks`, and one
line in `tasks.TASKS`.  Everything is text, for any tokenizer; how a model is trained on it is no business of a task.

    @dataclass(frozen=True)
    class Counting(Task):
        name = key = "counting"
        by: Literal["one", "two"] = "one"  # a setting

        def questions(self, draw):
            source = random.Random(f"{draw.seed} {draw.update}")
            return (self._asked(source.randrange(50), 1 + j % draw.deepest) for j in range(draw.examples))
        ...

`tests/test_tasks.py` has all of this one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

from loopscope.errors import InputError, nearest


class Asked(NamedTuple):
    """A question and its answers after 1, 2, ... steps: the last is the one asked for, and their number is its depth.

    `group`: at a check, what it is counted under beside its depth, where a task asks about several things.
    """

    prompt: str
    stages: Sequence[str]
    group: str = ""


class Turn(NamedTuple):
    """A part of a text: what is asked about, what comes before an answer, and the answers after 1, 2, ... steps.

    The last of these is the one asked for.
    """

    subject: Hashable
    before: str
    stages: Sequence[str]


class Draw(NamedTuple):
    """What an update learns from; with the task's settings, it decides every question.

    Updates are counted from 0.  `examples` are questions or texts; `per_text` is how much is asked in one text, in a
    unit of the task's choice.  Depths are 1 to `deepest`, or, with `only_deepest`, that one alone.
    """

    seed: int
    update: int
    examples: int
    deepest: int
    per_text: int = 1
    only_deepest: bool = False


@dataclass(frozen=True)
class Task(ABC):
    """A task; its fields are settings, which have defaults.  InputError for a word that a setting cannot be.

    - `name`: what people call it.  `key`: what recipes call it, and so part of what artefacts are known by.
    - `in_every_recipe`: whether its settings are written into the recipes of all tasks.  So it is with the first tasks,
      and keys of artefacts hang on it; a new task's settings are written into its own recipes alone.
    - `run_by_run`: whether weights that learn step by step make a run of t loops for the answer after step t, instead
      of one run that is read after every loop.  Its questions then ask for the deepest alone (`Draw.only_deepest`).
    - `before_answer`, `after_text`: what stands before the answer and at the end of a text that is not a chat.
    """

    name: ClassVar[str]
    key: ClassVar[str]
    in_every_recipe: ClassVar[bool] = False
    run_by_run: ClassVar[bool] = False
    before_answer: ClassVar[str] = ""
    after_text: ClassVar[str] = "\n"

    def __post_init__(self) -> None:
        for name, kind in self.settings().items():
            check_word(name, getattr(self, name), kind)

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """The type of each setting."""
        hints = get_type_hints(cls)
        return {field.name: hints[field.name] for field in fields(cls)}

    @classmethod
    def words(cls) -> Iterable[str]:
        """Texts with every word of the task, for a tokenizer that knows no others; none where there is no such."""
        return ()

    def check(self, draw: Draw, chat: bool) -> None:
        """InputError for an update that the task cannot give, of questions in a chat or of texts."""
        if chat and draw.per_text > 1:
            raise InputError(f"every question of {self.name} stands alone: per_text is 1, not {draw.per_text}")

    @abstractmethod
    def questions(self, draw: Draw) -> Iterable[Asked]:
        """The questions of an update, none of which is ever evaluated on."""

    @abstractmethod
    def texts(self, draw: Draw) -> Iterable[Iterable[Turn]]:
        """The texts of an update, each full of questions with their answers."""

    @abstractmethod
    def checks(self, deepest: int, count: int) -> Iterable[Asked]:
        """Up to `count` questions for every depth (and group), always the same, no final result among them."""

    @abstractmethod
    def right(self, reply: str, answer: str) -> bool:
        """Whether a reply is this answer."""


def check_word(name: str, value: object, kind: Any) -> None:
    """InputError where a setting can be one of several words and is none of them."""
    words = get_args(kind) if get_origin(kind) is Literal else (value,)
    if value not in words:
        raise InputError(f"{name} is one of {', '.join(words)}, not {value!r}{nearest(str(value), words)}")
