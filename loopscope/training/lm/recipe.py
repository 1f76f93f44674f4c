"""A recipe: what is trained, on what, with which numbers, as a value; `recipes` has those that there are.

A recipe goes as JSON into the manifest of what it makes.  `changed` gives one with other numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from loopscope.errors import InputError, nearest
from loopscope.models.passes import Boundary
from loopscope.tasks import iterations
from loopscope.training.recipe import FOR_READERS, Schedule

MOST = {
    "loops": 1000, "updates": 10**9, "examples": 10**5, "micro": 10**5, "deepest": 1000, "per_text": 1000,
    "check_every": 10**9, "checked": 10**5, "warmup": 10**9, "horizon": 10**9, "grow_every": 10**9, "seed": 2**62,
    "general_seed": 2**62,
}  # fmt: skip
"""Far beyond what anybody trains: a number with too many digits is refused before anything is made of it."""


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what, how.  InputError for numbers that cannot be.

    - `trains`: all weights but Ouro's exit gate, or a map alone.  `loops` is how often F is called; `boundary` what
      ends a call (None: as the folder has it).
    - `text`: "questions" in the chat template, of which the answers are learned; or "look-ups", texts with many
      questions and answers (`per_text` questions, sequences or rounds), of which every token is.  Of letters, questions
      in the chat template may be several to a set of rules as well, each as if it stood alone; half of them or more are
      then of the largest depth asked for.
    - `deepest` is the largest depth asked for, reached from `grow_from` in levels of one every `grow_every` updates
      (0: at once).  With `grow_at`, the next level is taken only if in those updates this share of the answers at the
      present deepest depth began right, each looked at before it was learned from; otherwise the level stays for as
      many updates more.
    - `stepwise`: a run of t loops learns the answer after step t.  A question is run once and learned after every loop,
      or, if a map is fitted, after every loop that has a map before or after it: after loop t with the answer of at
      most `pace` t steps.  So weights or a map are told what each loop must do, not only what all must.  A level
      with fewer steps has as many loops fewer; where there are more loops than steps, answers must stay in the others.
      A question of antonyms that weights are trained on is run `deepest` times instead, as in the paper.
      Of look-ups, half of the texts are run for all loops of their level, the others for 1, 2, ... of them in turn, and
      every answer in a text is the one after at most as many steps; the general text beside is run for all loops.
      So a loop is taught a step, not only a whole run all of its steps, and a model which was never looped begins with
      what it can do in one pass.  When depth has grown, the pace does, by a half at each level from 1 to `pace`: at
      pace p a run of t loops learns the answer after p t steps, halves left out, so that a loop is not bound to a
      single step.
    - `starts` of iterations: published ones that are for training, or as often wider ones.
    - An update has `examples` questions or texts, `micro` of them in one pass.  `averaging` of a token's loss:
      "micro-batch": the mean over tokens of each pass, then of passes; "sequence": over each answer, then of answers;
      "token": over all tokens of the update.  In the latter two, `micro` changes nothing but memory and speed.
      In a mean over all tokens of look-up texts, the first token of an answer counts `emphasis` times: most others are
      wording that is soon learned, or names that nobody could know.
    - `general`: text "beside" the task in every update, with this `share` of the loss and a fifth of the tokens; or
      "instead" of it, in this share of the updates.
    - The learning rate rises for `warmup` updates to `rate` and falls by a cosine to a tenth at update `horizon`
      (0: stays).  Training ends after `updates`, perhaps before the horizon; or, with a `gate`, when all cells of two
      checks in a row (every `check_every` updates) have at least this accuracy at the highest level, and that level is
      learned by `grow_at`, too.
    - Of a map: `family`, `rank`, and whether it stands "between" loops or "after-each".  `init` seeds its start.
    - All is trained in fp32 and `saved` in that or, rounded, in half of it: a map in fp16, a model in bf16.  What comes
      next takes what was saved.
    """

    name: str
    about: str
    trains: Literal["weights", "map"]
    task: Literal["letter", "antonym", "iterations"]
    loops: int
    updates: int
    examples: int
    micro: int
    rate: float
    horizon: int
    seed: int
    general_seed: int
    deepest: int
    warmup: int = 50
    optimiser: Literal["adafactor", "adamw"] = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    decay: float = 0.0
    clip: float = 1.0
    grow_every: int = 0
    grow_at: float | None = None
    grow_from: int = 1
    text: Literal["questions", "look-ups"] = "questions"
    per_text: int = 1
    form: Literal["final-only", "stepwise"] = "final-only"
    stepwise: bool = False
    pace: float = 1.0
    starts: Literal["published", "wider"] = "published"
    newline: bool = True
    averaging: Literal["micro-batch", "sequence", "token"] = "micro-batch"
    emphasis: float = 1.0
    general: Literal["beside", "instead"] = "beside"
    share: float = 0.2
    boundary: Boundary | None = None
    placement: Literal["between", "after-each"] = "between"
    family: Literal["dense", "residual-low-rank", "diagonal-low-rank"] = "dense"
    rank: int | None = None
    init: int = 20_260_915
    saved: Literal["fp32", "fp16", "bf16"] = "fp32"
    check_every: int = 100
    checked: int = 16
    gate: float | None = None
    deviations: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("loops", "updates", "examples", "micro", "deepest", "per_text", "check_every", "checked"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise InputError(f"{name} must be at most {most:,}, not {getattr(self, name)} (nearest: {most})")
        for name in ("warmup", "horizon", "grow_every", "seed", "general_seed", "decay"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} cannot be negative: {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is from 0 to below 1, not {getattr(self, name)}")
        if not 0 < self.rate < math.inf or not self.clip > 0 or not self.decay < math.inf:
            raise InputError(
                f"rate and clip must be positive and decay finite, not {self.rate}, {self.clip}, {self.decay}"
            )
        if not 0 <= self.share < 1:
            raise InputError(f"the share of general text is from 0 to below 1, not {self.share}")
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
        if self.per_text > 1 and self.text == "questions" and self.task != "letter":
            raise InputError(f"several questions have the same rules in letters, not in {self.task}")
        if not 0 < self.emphasis < math.inf or (
            self.emphasis != 1 and (self.text, self.averaging) != ("look-ups", "token")
        ):
            raise InputError(
                f"emphasis is positive, and 1 unless tokens of look-up texts are averaged: {self.emphasis}"
            )
        if 0 < self.horizon <= self.warmup:
            raise InputError(f"the horizon, update {self.horizon}, must come after {self.warmup} updates of warm-up")
        steered = self.trains == "map"
        if self.stepwise and self.deepest > self.loops * (self.pace if steered else 1):
            raise InputError(f"stepwise learning takes a loop per step, not {self.deepest} steps in {self.loops} loops")
        if self.stepwise and self.text == "look-ups" and self.general != "beside":
            raise InputError("stepwise learning of look-ups takes general text beside them, not instead")
        if not 1 <= self.pace <= self.deepest or 2 * self.pace % 1:
            raise InputError(f"pace grows by halves, from 1 to {self.deepest} steps a loop at most, not to {self.pace}")
        if self.pace > 1 and not (self.stepwise and (steered or (self.text == "look-ups" and self.grow_every))):
            raise InputError(
                f"a pace of {self.pace:g} steps is for stepwise learning of maps, or of look-ups that grow"
            )
        if self.saved == {"weights": "fp16", "map": "bf16"}[self.trains]:
            raise InputError(
                f"rounded, a map is in fp16, a model in bf16; {self.trains} cannot be saved in {self.saved}"
            )
        if self.starts == "wider" and self.task != "iterations":
            raise InputError(f"wider starts are there for iterations, not for {self.task}")
        if self.task == "iterations" and self.text == "questions" and self.examples % len(iterations.TASKS):
            raise InputError(f"an update has one question for each of five tasks, or several; not {self.examples}")

    @property
    def schedule(self) -> Schedule:
        """The learning rate by update."""
        return Schedule(self.rate, self.warmup, decay=max(0, self.horizon - self.warmup), floor=0.1)

    @property
    def levels(self) -> int:
        """How many levels there are: depths to the deepest, then, of look-ups, paces."""
        return self.deepest + (round(2 * (self.pace - 1)) if self.text == "look-ups" else 0)

    @property
    def every_stage(self) -> bool:
        """Whether each question is learned as often as it has steps, by runs of 1, 2, ... loops."""
        return self.stepwise and (self.text, self.trains, self.task) == ("questions", "weights", "antonym")

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

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; what is only for the reader is left out."""
        return {name: value for name, value in asdict(self).items() if name not in FOR_READERS}


def changed(given: Recipe, changes: Iterable[str]) -> Recipe:
    """A recipe with other settings, written "name=value"; InputError for one that it has not, or a value of no use."""
    hints = get_type_hints(Recipe)
    fixed = (*FOR_READERS, "name", "trains", "task")
    names = [field.name for field in fields(Recipe) if field.name not in fixed]
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"a change of a recipe is written name=value, not {change!r}")
        if name not in names:
            raise InputError(f"a recipe has no setting {name!r}; it has {', '.join(names)}{nearest(name, names)}")
        values[name] = _value(name, text, hints[name])
    return replace(given, **values)


def _value(name: str, text: str, kind: Any) -> Any:
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
