"""Heads of some layers as a value, and what a search for those that matter found.

    Heads.parse("42.2,10 44.1")      two heads of layer 42 and one of layer 44

Layers are counted from 1 and heads from 0, as in all addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from loopscope.address import Site
from loopscope.errors import InputError
from loopscope.program import Call, Patch, Program, Source
from loopscope.protocol import LoopedModel
from loopscope.results import Tabular, numbered
from loopscope.table import Table

_WORD = re.compile(r"([0-9]{1,9})\.([0-9]{1,9}(?:,[0-9]{1,9})*)")


@dataclass(frozen=True, repr=False)
class Heads(Tabular):
    """Heads of some layers, in order; layers from 1, heads from 0.  As text: `42.2,10,12 44.1`."""

    chosen: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "chosen", tuple(sorted(set(self.chosen))))

    @classmethod
    def parse(cls, text: str) -> Heads:
        """Read the text form; InputError for anything else, and for no heads at all."""
        found = [_WORD.fullmatch(word) for word in text.split()]
        if not found or not all(found):
            raise InputError(f"cannot read heads {text!r}; the form is layer.head,head, such as '42.2,10 44.1'")
        return cls(tuple((int(m[1]), int(head)) for m in found if m for head in m[2].split(",")))

    @classmethod
    def every(cls, layers: Iterable[int], heads: int) -> Heads:
        """All heads of these layers."""
        return cls(tuple((layer, head) for layer in layers for head in range(heads)))

    def __str__(self) -> str:
        return " ".join(f"{layer}.{','.join(map(str, heads))}" for layer, heads in self.by_layer.items())

    def table(self) -> Table:
        """A row for every head."""
        return Table("heads", {"layer": [layer for layer, _ in self], "head": [head for _, head in self]})

    def _words(self) -> str:
        return str(self) or "none"

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    def __sub__(self, others: Heads) -> Heads:
        return Heads(tuple(each for each in self if each not in others.chosen))

    @property
    def by_layer(self) -> dict[int, tuple[int, ...]]:
        """The heads of each layer."""
        found: dict[int, tuple[int, ...]] = {}
        for layer, head in self:
            found[layer] = (*found.get(layer, ()), head)
        return found

    def of_layer(self, layer: int) -> Heads:
        """Those of one layer."""
        return Heads(tuple(each for each in self if each[0] == layer))

    def check(self, model: LoopedModel) -> None:
        """InputError for a head that the model has not."""
        for layer, head in self:
            Site(layer, "z", (head,)).resolve(layers=len(model.layers), heads=model.heads, rows=1)

    def comparison(self, heads: int) -> Heads:
        """As many of each layer: the lowest-numbered that are not among these, fewer where not enough are left."""
        found = []
        for layer, mine in self.by_layer.items():
            others = [head for head in range(heads) if head not in mine]
            found += [(layer, head) for head in others[: len(mine)]]
        return Heads(tuple(found))

    def patch(self, program: Program, component: str, source: Source, loops: Iterable[int]) -> Program:
        """The program with this component of these heads, in all rows, taken from a source in each of these loops."""
        more = tuple(Patch(Site(layer, component, heads), source) for layer, heads in self.by_layer.items())
        steps = list(program.steps)
        for index in map(program.index_of, loops):
            call = steps[index]
            assert isinstance(call, Call)
            steps[index] = replace(call, patches=(*call.patches, *more))
        return replace(program, steps=tuple(steps))


@dataclass(frozen=True)
class Tried:
    """One scope that was tried in a step of the search.

    `rescued` and `damaged` count right answers after each patch; `rescue` and `damage` are mean probabilities of the
    right answer.
    """

    step: str
    heads: str
    loops: tuple[int, ...]
    rescued: int
    damaged: int
    rescue: float
    damage: float
    passed: bool


@dataclass(frozen=True, repr=False)
class Selection(Tabular):
    """The heads, the loops they are patched in, and how they were found.

    `late` are the layers that were searched.  `passed`: every step had a scope that passed.  `pairs`, `unsteered` and
    `steered` are counts on discovery; `forwards` is what the search took, in plain runs of one prompt.
    """

    heads: Heads
    loops: tuple[int, ...]
    late: tuple[int, ...]
    passed: bool
    pairs: int
    unsteered: int
    steered: int
    forwards: float
    tried: tuple[Tried, ...]

    def table(self) -> Table:
        """Every scope that was tried, with shares of right answers after both patches; `taken` are the last ones."""
        columns: dict[str, Any] = {
            name: [getattr(each, name) for each in self.tried]
            for name in ("step", "heads", "rescued", "damaged", "rescue", "damage", "passed")
        }
        columns["loops"] = [" ".join(map(str, each.loops)) for each in self.tried]
        return Table("search", columns, {
            "heads": str(self.heads), "loops": list(self.loops), "pairs": self.pairs, "steered": self.steered,
            "unsteered": self.unsteered,
        })  # fmt: skip

    def _words(self) -> str:
        loops = f"{'loop' if len(self.loops) == 1 else 'loops'} {', '.join(map(str, self.loops))}"
        passed = "every step passed" if self.passed else "not every step passed"
        tried = numbered(len(self.tried), "scope")
        return f"{numbered(len(self.heads), 'head')} in {loops}, {passed}, {tried} tried: {self.heads}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "heads": str(self.heads)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Selection:
        """What `to_dict` gave; KeyError or TypeError for anything else."""
        tried = tuple(Tried(**{**each, "loops": tuple(each["loops"])}) for each in values["tried"])
        plain = {"heads": Heads.parse(values["heads"]), "loops": tuple(values["loops"]), "late": tuple(values["late"])}
        return cls(**{**values, **plain, "tried": tried})


def late_layers(layers: int, share: int = 3) -> tuple[int, ...]:
    """The last third (half, all: `share` 2, 1) of the layers, at least one."""
    return tuple(range(layers - max(1, layers // share) + 1, layers + 1))
