"""A recipe: what is trained, on what, with which numbers, as a value.

A recipe is made of parts, each with its own rules, and of a task, which has settings of its own.  It goes as JSON into
the manifest of what it makes, all settings side by side, the task's among them.  `changed` gives one with others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

from loopscope.bounds import whole
from loopscope.errors import InputError, nearest
from loopscope.models.passes import Boundary
from loopscope.tasks import TASKS, Draw, Task
from loopscope.training.recipe import FOR_READERS, Schedule

FAR = 10**9
"""Far beyond what anybody trains: a number with too many digits is refused before anything is made of it."""


# ---- parts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OptimiserSettings:
    """The optimiser: AdamW, or Adafactor as in the paper; gradients are clipped to norm `clip`.

    The learning rate rises for `warmup` updates to `rate` and falls by a cosine to a tenth at update `horizon` (0:
    stays).
    """

    optimiser: Literal["adafactor", "adamw"] = "adamw"
    rate: float
    warmup: int = 50
    horizon: int
    beta1: float = 0.9
    beta2: float = 0.999
    decay: float = 0.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        whole("warmup", self.warmup, 0, FAR)
        whole("horizon", self.horizon, 0, FAR)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is from 0 to below 1, not {getattr(self, name)}")
        if not 0 < self.rate < math.inf or not self.clip > 0 or not 0 <= self.decay < math.inf:
            raise InputError(
                f"rate and clip must be positive, decay finite and not negative, not {self.rate}, {self.clip}, "
                f"{self.decay}"
            )
        if 0 < self.horizon <= self.warmup:
            raise InputError(f"the horizon, update {self.horizon}, must come after {self.warmup} updates of warm-up")

    @property
    def schedule(self) -> Schedule:
        """The learning rate by update."""
        return Schedule(self.rate, self.warmup, decay=max(0, self.horizon - self.warmup), floor=0.1)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """What an update has, and how its loss is averaged.

    - `text`: "questions" in the chat template, of which the answers are learned, with the newline after them or
      without; or "look-ups", texts with many questions and answers, of which every token is.
    - There are `examples` questions or texts, drawn from `seed`, `micro` of them in one pass.  `per_text` is how much
      is asked in a text, in a unit of the task's choice.  Questions may be several to what they are about as well,
      where the task has such, each as if it stood alone.
    - `averaging` of a token's loss: "micro-batch": the mean over tokens of each pass, then of passes; "sequence": over
      each answer, then of answers; "token": over all tokens of the update.  In the latter two, `micro` changes nothing
      but memory and speed.  In a mean over all tokens of look-up texts, the first token of an answer counts `emphasis`
      times: most others are wording that is soon learned, or names that nobody could know.
    - `general`: text "beside" the task in every update, with this `share` of the loss and a fifth of the tokens; or
      "instead" of it, in this share of the updates.
    """

    text: Literal["questions", "look-ups"] = "questions"
    examples: int
    micro: int
    seed: int
    per_text: int = 1
    newline: bool = True
    averaging: Literal["micro-batch", "sequence", "token"] = "micro-batch"
    emphasis: float = 1.0
    general: Literal["beside", "instead"] = "beside"
    general_seed: int
    share: float = 0.2

    def __post_init__(self) -> None:
        for name, least, most in (
            ("examples", 1, 10**5), ("micro", 1, 10**5), ("per_text", 1, 1000), ("seed", 0, 2**62),
            ("general_seed", 0, 2**62),
        ):  # fmt: skip
            whole(name, getattr(self, name), least, most)
        if not 0 <= self.share < 1:
            raise InputError(f"the share of general text is from 0 to below 1, not {self.share}")
        if not 0 < self.emphasis < math.inf or (
            self.emphasis != 1 and (self.text, self.averaging) != ("look-ups", "token")
        ):
            raise InputError(
                f"emphasis is positive, and 1 unless tokens of look-up texts are averaged: {self.emphasis}"
            )


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """How deep questions are, and what a loop is taught.

    - `deepest` is the largest depth asked for, reached from `grow_from` in levels of one every `grow_every` updates
      (0: at once).  With `grow_at`, the next level is taken only if in those updates this share of the answers at the
      present deepest depth began right, each looked at before it was learned from; otherwise the level stays for as
      many updates more.
    - `stepwise`: a loop is taught a step, not only a whole run all of its steps:
        - Questions: a run of t loops learns the answer after step t.  A question is run once and learned after every
          loop, or by a run for every step where the task is `run_by_run`.
        - Maps: learned after every loop that has a map before or after it, with the answer after at most `pace` steps a
          loop.
        - Look-ups: half of the texts are run for all loops of their level, the others for 1, 2, ... of them in turn.
          Every answer in a text is the one after at most as many steps; general text is run for all loops.
        - Loops: a level with fewer steps has as many loops fewer; in loops beyond the steps, answers must stay.
    - `pace`: of look-ups, it grows by a half at each level once depth has grown, from 1: at pace p a run of t loops
      learns the answer after p t steps, halves left out, so that a loop is not bound to a single step.
    """

    deepest: int
    grow_every: int = 0
    grow_at: float | None = None
    grow_from: int = 1
    stepwise: bool = False
    pace: float = 1.0

    def __post_init__(self) -> None:
        whole("deepest", self.deepest, 1, 1000)
        whole("grow_every", self.grow_every, 0, FAR)
        if self.grow_at is not None and not (0 < self.grow_at <= 1 and self.grow_every):
            raise InputError(
                f"grow_at is above 0 to 1 and looked at every grow_every updates, not {self.grow_at} every "
                f"{self.grow_every}"
            )
        if not 1 <= self.grow_from <= self.deepest or (self.grow_from > 1 and not self.grow_every):
            raise InputError(
                f"depth grows from 1 to {self.deepest} every grow_every updates, not from {self.grow_from} every "
                f"{self.grow_every}"
            )
        if not 1 <= self.pace <= self.deepest or 2 * self.pace % 1:
            raise InputError(f"pace grows by halves, from 1 to {self.deepest} steps a loop at most, not to {self.pace}")


@dataclass(frozen=True, kw_only=True)
class Steering:
    """A map: its family and rank, and whether it stands "between" loops or "after-each".  `init` seeds its start."""

    placement: Literal["between", "after-each"] = "between"
    family: Literal["dense", "residual-low-rank", "diagonal-low-rank"] = "dense"
    rank: int | None = None
    init: int = 20_260_915


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """When training ends, and what is looked at on the way: `checked` questions a cell, every `check_every` updates.

    It ends after `updates`, perhaps before the horizon; or, with a `gate`, when all cells of two checks in a row have
    at least this accuracy at the highest level, and that level is learned by `grow_at`, too.
    """

    updates: int
    check_every: int = 100
    checked: int = 16
    gate: float | None = None

    def __post_init__(self) -> None:
        for name, most in (("updates", FAR), ("check_every", FAR), ("checked", 10**5)):
            whole(name, getattr(self, name), 1, most)


# ---- the whole -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Recipe(Stopping, Steering, Curriculum, Batches, OptimiserSettings):
    """What is trained, on what, how.  InputError for numbers that cannot be.

    - `trains`: all weights but Ouro's exit gate, or a map alone.  `loops` is how often F is called; `boundary` what
      ends a call (None: as the folder has it).
    - All is trained in fp32 and `saved` in that or, rounded, in half of it: a map in fp16, a model in bf16.  What comes
      next takes what was saved.
    - `deviations` and `numerics` are for readers, as of every recipe.
    """

    name: str
    about: str = ""
    trains: Literal["weights", "map"]
    task: Task
    loops: int
    boundary: Boundary | None = None
    saved: Literal["fp32", "fp16", "bf16"] = "fp32"
    deviations: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        whole("loops", self.loops, 1, 1000)
        OptimiserSettings.__post_init__(self)
        Batches.__post_init__(self)
        Curriculum.__post_init__(self)
        Stopping.__post_init__(self)
        for name in self.task.settings().keys() & {each.name for each in fields(self)}:
            raise InputError(f"a setting of {self.task.name} cannot be called {name!r}: every recipe has one")
        self.task.check(self.draw(0, self.levels), chat=self.text == "questions")
        steered = self.trains == "map"
        if self.stepwise and self.deepest > self.loops * (self.pace if steered else 1):
            raise InputError(f"stepwise learning takes a loop per step, not {self.deepest} steps in {self.loops} loops")
        if self.stepwise and self.text == "look-ups" and self.general != "beside":
            raise InputError("stepwise learning of look-ups takes general text beside them, not instead")
        if self.pace > 1 and not (self.stepwise and (steered or (self.text == "look-ups" and self.grow_every))):
            raise InputError(
                f"a pace of {self.pace:g} steps is for stepwise learning of maps, or of look-ups that grow"
            )
        if self.saved == {"weights": "fp16", "map": "bf16"}[self.trains]:
            raise InputError(
                f"rounded, a map is in fp16, a model in bf16; {self.trains} cannot be saved in {self.saved}"
            )

    @property
    def levels(self) -> int:
        """How many levels there are: depths to the deepest, then, of look-ups, paces."""
        return self.deepest + (round(2 * (self.pace - 1)) if self.text == "look-ups" else 0)

    @property
    def run_by_run(self) -> bool:
        """Whether each question is learned as often as it has steps, by runs of 1, 2, ... loops."""
        return self.stepwise and (self.text, self.trains) == ("questions", "weights") and self.task.run_by_run

    @property
    def first_read(self) -> int:
        """The first loop after which a question is learned stepwise: of a map, the first that it acts in or after."""
        return 2 if (self.trains, self.placement) == ("map", "between") else 1

    def read_after(self, level: int) -> range:
        """Loops after which a question is learned stepwise at a level."""
        return range(self.first_read, self.loops_at(level) + 1)

    @property
    def first_level(self) -> int:
        """The level that training begins with."""
        return self.grow_from if self.grow_every else self.levels

    def level_at(self, update: int) -> int:
        """The level of an update, counted from 0; with `grow_at`, the highest that it could be."""
        grown = update // self.grow_every if self.grow_every else 0
        return min(self.levels, self.first_level + grown)

    def depth_at(self, level: int) -> int:
        """The largest depth asked for at a level."""
        return min(self.deepest, level)

    def pace_at(self, level: int) -> float:
        """How many steps a loop is taught at a level."""
        return 1 + max(0, level - self.deepest) / 2

    def loops_at(self, level: int) -> int:
        """The most often that F is called in an update at a level."""
        if not self.stepwise:
            return self.loops
        pace = 1 if self.text == "look-ups" else self.pace  # that of look-ups grows after their depth
        fewer = math.ceil(self.deepest / pace) - math.ceil(self.depth_at(level) / pace)
        return max(self.first_read, self.loops - fewer)

    def draw(self, turn: int, level: int) -> Draw:
        """What the task is asked for in the update that is number `turn` of those with the task."""
        return Draw(self.seed, turn, self.examples, self.depth_at(level), self.per_text, self.run_by_run)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, all settings side by side; what is only for the reader is left out."""
        mine = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in FOR_READERS}
        of_tasks = {name: each.default for name, each in settings_of(type(self.task)).items() if name not in mine}
        return {**mine, **of_tasks, "task": self.task.key, **asdict(self.task)}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Recipe:
        """The recipe that `to_dict` wrote; what is left out has its default.

        InputError for a task that there is not, and for settings that a recipe of this task has not.
        """
        task = task_written(written.get("task"))
        known = settings_of(task)
        own, mine = dict[str, Any](), dict[str, Any]()
        for name, value in written.items():
            if name not in known:
                raise InputError(f"a recipe has no setting {name!r}; it has {', '.join(known)}{nearest(name, known)}")
            if name in task.settings():
                own[name] = value
            elif known[name].task is None:
                mine[name] = value
            elif value != known[name].default:
                raise InputError(f"{name} is a setting of {known[name].task}, not of {task.name}")
        return cls(**mine | {"task": task(**own)})


# ---- settings by name ------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """The type of a setting, its default (MISSING where every recipe has it) and the task that it is of, if any."""

    kind: Any
    default: Any
    task: str | None = None


def settings_of(task: type[Task]) -> dict[str, Setting]:
    """What a recipe of this task has written, by name."""
    hints = {**_hints(), "task": str}
    found = {each.name: Setting(hints[each.name], each.default) for each in fields(Recipe)}
    for each in (*(each for each in TASKS.values() if each.in_every_recipe), task):
        kinds = each.settings()
        found |= {field.name: Setting(kinds[field.name], field.default, each.name) for field in fields(each)}
    return {name: each for name, each in found.items() if name not in FOR_READERS}


@cache
def _hints() -> Mapping[str, Any]:
    """The types of a recipe's settings: every annotation is a text that is compiled, and many recipes are written."""
    return get_type_hints(Recipe)


def task_written(key: object) -> type[Task]:
    """The task that recipes call so; InputError where there is none."""
    for each in TASKS.values():
        if key == each.key:
            return each
    keys = [each.key for each in TASKS.values()]
    raise InputError(f"there is no task {key!r}; there are {', '.join(keys)}{nearest(str(key), keys)}")


def changed(given: Recipe, changes: Iterable[str]) -> Recipe:
    """A recipe with other settings, written "name=value"; InputError for one that it has not, or a value of no use."""
    known = settings_of(type(given.task))
    names = [name for name in known if name not in ("name", "trains", "task")]
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"a change of a recipe is written name=value, not {change!r}")
        if name not in names:
            raise InputError(f"a recipe has no setting {name!r}; it has {', '.join(names)}{nearest(name, names)}")
        values[name] = value_of(name, text, known[name].kind)
    for_readers = {each.name: getattr(given, each.name) for each in fields(given) if each.name in FOR_READERS}
    return replace(Recipe.from_dict({**given.to_dict(), **values}), **for_readers)


def value_of(name: str, text: str, kind: Any) -> Any:
    """A text as a value of this type: a word where words are listed, else a JSON number, true, false or null."""
    words = [word for each in (kind, *get_args(kind)) for word in get_args(each) if isinstance(word, str)]
    if text in words:
        return text
    if words and type(None) not in get_args(kind):
        raise InputError(f"{name} is one of {', '.join(words)}, not {text!r}{nearest(text, words)}")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    allowed = [each for each in (kind, *get_args(kind)) if isinstance(each, type)]
    if type(value) is int and float in allowed:
        value = float(value)
    if type(value) not in allowed:  # not isinstance: true is no number here
        raise InputError(f"{name}={text} is none of the values it can have")
    return value
