"""How a map is fitted, or a model fine-tuned, on examples of one's own: a recipe, as a value.

It has the optimiser and the ends of every recipe (`recipe.py`); in place of loops and placement it has a program, and
in place of a task, which would draw its questions, it takes examples as they come (`task_data.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, get_type_hints

from loopscope.bounds import whole
from loopscope.errors import InputError, nearest
from loopscope.maps import FAMILIES, AffineMap, make_map
from loopscope.models.placement import names_in
from loopscope.program import Call, Map, Program
from loopscope.tasks.task import check_word
from loopscope.training.lm.recipe import OptimiserSettings, Stopping, value_of

RANK = 8
"""Of a low-rank map that nobody said the rank of."""

FIXED = ("name", "trains", "program", "fitted", "deepest")
"""What `--set` does not change: it follows from the program and the examples."""


@dataclass(frozen=True, kw_only=True)
class TaskRecipe(Stopping, OptimiserSettings):
    """A program on examples, of which a map is fitted or all weights are trained.  InputError for what cannot be.

    - `fitted` is the name of the map in the program that is fitted; "" where weights are trained.
    - `supervision`: an answer is learned after the "last" loop, or "per-loop": after every loop from the first on that
      the map has acted in, so that no loop behind it may lose what it brought.
    - `examples` of them make an update, `micro` go through the model in one pass; `seed` shuffles them, anew for every
      time that all have come.
    - `family`, `rank` and `init` are of a new map.  `chat` puts prompts into the chat template.
    """

    name: str = "task"
    trains: Literal["weights", "map"] = "map"
    program: Program
    fitted: str = ""
    supervision: Literal["last", "per-loop"] = "last"
    family: str = "dense"
    rank: int | None = None
    init: int = 20_261_119
    examples: int = 32
    micro: int = 32
    seed: int = 0
    chat: bool = False
    saved: Literal["fp32", "fp16", "bf16"] = "fp32"
    deepest: int = 1
    updates: int = 500
    rate: float = 1e-3
    warmup: int = 20
    horizon: int = 500
    check_every: int = 50
    checked: int = 200

    # What training asks of every recipe; depth does not grow here.
    grow_at: ClassVar[float | None] = None
    grow_every: ClassVar[int] = 0
    levels: ClassVar[int] = 1
    first_level: ClassVar[int] = 1

    def __post_init__(self) -> None:
        OptimiserSettings.__post_init__(self)
        Stopping.__post_init__(self)
        for name, least, most in (("examples", 1, 10**5), ("micro", 1, 10**5), ("seed", 0, 2**62), ("init", 0, 2**62)):
            whole(name, getattr(self, name), least, most)
        for name in ("supervision", "saved"):
            check_word(name, getattr(self, name), get_type_hints(TaskRecipe)[name])
        program = self.program
        if program != program.skeleton:
            raise InputError(f"'{program}' has patches; training takes programs without (nearest: {program.skeleton})")
        if program.given:
            raise InputError(f"'{program}' starts from a given state; examples have none (leave out h{program.start})")
        if program.calls == 0:
            raise InputError(f"'{program}' calls F nowhere, so that nothing could be learned (nearest: {program} F)")
        if self.trains == "map" and self.fitted not in names_in(program):
            near = nearest(self.fitted, names_in(program))
            raise InputError(f"'{program}' has no map {self.fitted!r} to be fitted{near}")
        if self.saved == {"weights": "fp16", "map": "bf16"}[self.trains]:
            raise InputError(f"rounded, a map is in fp16, a model in bf16; not {self.trains} in {self.saved}")

    @property
    def loops(self) -> int:
        """How often F is called."""
        return self.program.calls

    def level_at(self, update: int) -> int:
        """There is one level."""
        return 1

    def depth_at(self, level: int) -> int:
        """The largest number of steps."""
        return self.deepest

    def after(self, loops: int) -> Program:
        """How the program begins, up to what is read after so many calls of F.

        Maps right behind a call belong to what is read there if the whole program ends with a map.
        """
        steps = list(self.program.steps)
        end = self.program.index_of(loops) + 1
        while isinstance(steps[-1], Map) and end < len(steps) and isinstance(steps[end], Map):
            end += 1
        return replace(self.program, steps=tuple(steps[:end]))

    @property
    def read_after(self) -> list[int]:
        """The numbers of calls after which an answer is learned, the last among them."""
        if self.supervision == "last":
            return [self.loops]
        maps = (self.fitted,) if self.trains == "map" else ()
        acted = [loops for loops in range(1, self.loops + 1) if set(maps) <= set(names_in(self.after(loops)))]
        return acted or [self.loops]

    def new_map(self, width: int) -> AffineMap:
        """The map that the fit begins with, for states of this width."""
        if self.family not in FAMILIES:
            near = nearest(self.family, FAMILIES)
            raise InputError(f"no map family {self.family!r}; there are {', '.join(FAMILIES)}{near}")
        shape: dict[str, Any] = {} if self.rank is None else {"rank": self.rank, "seed": self.init}
        if self.family != "dense" and self.rank is None:
            shape = {"rank": min(RANK, width), "seed": self.init}
        try:
            return make_map(self.family, width=width, **shape)
        except TypeError:
            raise InputError(f"a {self.family} map takes no rank") from None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `loops` is among it, as in what any fitted map says of itself."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**own, "program": str(self.program), "loops": self.loops}


def fitted_name(program: Program, given: Mapping[str, object]) -> str:
    """The map that a program names and nobody gave; InputError unless there is one."""
    open_names = [name for name in names_in(program) if name not in given]
    if len(open_names) == 1:
        return open_names[0]
    if open_names:
        raise InputError(f"'{program}' names maps {', '.join(open_names)}; give all but the one that is fitted")
    first = next(step for step in program.steps if isinstance(step, Call))
    here = f"'{program}' names no map that could be fitted"
    raise InputError(f"{here} (nearest: {program} J:mine {first})" if not given else f"{here}: all are given")


def changed(given: TaskRecipe, changes: Iterable[str]) -> TaskRecipe:
    """A recipe with other settings, written "name=value"; the schedule ends with the updates unless it is set, too."""
    return with_settings(given, settings_in(changes))


def settings_in(changes: Iterable[str]) -> dict[str, Any]:
    """Settings written "name=value", by name; InputError for one that there is not, or given twice."""
    kinds, values = get_type_hints(TaskRecipe), dict[str, Any]()
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise InputError(f"a change of a recipe is written name=value, not {change[:60]!r}")
        if name in values:
            raise InputError(f"the recipe's {name!r} is set twice; give it once")
        _check_name(name)
        values[name] = value_of(name, text, kinds[name])
    return values


def with_settings(given: TaskRecipe, values: Mapping[str, Any]) -> TaskRecipe:
    """A recipe with other settings by name, as `changed`; InputError for one that it has not."""
    for name in values:
        _check_name(name)
    follow: dict[str, Any] = {}
    updates = values.get("updates", given.updates)
    if "horizon" not in values and type(updates) is int:
        follow["horizon"] = updates
        if "warmup" not in values:
            follow["warmup"] = min(given.warmup, max(0, updates // 2))
    if "micro" not in values and "examples" in values:
        follow["micro"] = values["examples"]
    return replace(given, **{**follow, **values})


def _check_name(name: str) -> None:
    known = [each.name for each in fields(TaskRecipe) if each.name not in FIXED]
    if name not in known:
        raise InputError(
            f"a recipe of examples has no setting {name!r}; it has {', '.join(known)}{nearest(name, known)}"
        )
