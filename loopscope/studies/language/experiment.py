"""What an experiment on language models is: the model it was published on, its records, and how its models are trained.

Values only, as `studies.experiment` is for small backbones.  A study lists its own in `experiments.LANGUAGE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loopscope.log import Log
from loopscope.models.passes import Boundary
from loopscope.quantity import QuantityTable
from loopscope.store.store import Store
from loopscope.studies.language.records import SteeredModel
from loopscope.studies.records import LayoutOf, Record


class Amount(NamedTuple):
    """How much a test asks: the first `cases` of its pairs, sequences or requests (None: all), `batch` at a time."""

    cases: int | None = None
    batch: int = 32

    def of(self, most: int) -> int:
        """The number of cases where there are `most`."""
        return most if self.cases is None else self.cases


ALL = Amount()


class Asked(NamedTuple):
    """How much of a test a record has: `cases` of `every`, and what these are; `whole` tells all of it in words."""

    cases: int
    every: int
    what: str
    whole: str


@dataclass(frozen=True)
class Arm:
    """A backbone and its map, by the names of the paper's recipes; `settings` are those of its records alone."""

    backbone: str
    step: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LanguageExperiment:
    """One kind of test of language models.

    - `published_on`, `parameters`, `loops`, `boundary`: the model it was published on, what ends a loop of that one;
      `published` tells more of it, as a report does.
    - `task`: the stage of training that a model which was never looped needs first; `arms`: what is trained then.
    - `measure` gives the records of a model of one arm; `check` is an InputError for a number of cases that is none.
    - `layout`, `tables`: what a record keeps, and what follows from it; `asked`: how much of the test it has.
    - `ours`: the populations among those it keeps that the paper does not have, and what each changes, in words.
    - `in_zoo`: how much of it `reproduce` asks the zoo's models, with the map of its first arm, unless all is asked
      for; None: nothing.
    """

    name: str
    question: str
    published_on: str
    parameters: int
    loops: int
    boundary: Boundary
    published: Mapping[str, str]
    task: str
    arms: tuple[Arm, ...]
    measure: Callable[[SteeredModel, Store, Arm, Amount, Log], Iterable[Record]]
    check: Callable[[Amount], object]
    layout: LayoutOf
    tables: Callable[[Record], list[QuantityTable]]
    asked: Callable[[Record], Asked]
    ours: Mapping[str, str] = field(default_factory=dict)
    in_zoo: Amount | None = None

    @property
    def command(self) -> str:
        """What measures it."""
        return f"loopscope lm test {self.name} FOLDER --map MAP"

    def arm_of(self, record: Record) -> Arm:
        """The arm that a record is of."""
        return next(arm for arm in self.arms if all(record.settings[each] == of for each, of in arm.settings.items()))
