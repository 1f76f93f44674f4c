"""Patches: a component at a site is replaced by a source, or changed.

    layer[2].z<-(F6 J:one F)          replaced by the same place of another run
    layer[2].z<-$name                 ... by a given tensor
    layer[2].resid+=$name             a tensor, or the same place of another run, is added
    layer[2].resid+=-0.5*(F6)@other   ... times a number
    layer[2].mlp_out*=0               every entry times a number
    layer[2].z<-J:clip                a function of the component itself, row by row
    layer[2].z<-J:clip#5f0c2a91d3e4   ... and of no other function of that name

A function is named as a map J is, and handed over with the maps when the program is run.  It sees [..., n], n the last
axis of the component (of a pattern: one entry for every row), and must treat every row, head and example alike and
alone.  The digits behind `#` are its `functions.identity`: a run with another function of that name is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from loopscope import bounds
from loopscope.address import Row, Site
from loopscope.bounds import MOST_NESTED, MOST_PATCHES, shown
from loopscope.errors import InputError
from loopscope.written import Written

if TYPE_CHECKING:
    from loopscope.program import Program

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_IDENTITY = re.compile(r"[0-9a-f]{12}")


def check_name(kind: str, name: str) -> None:
    """InputError for what cannot stand in a program as a name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > bounds.SHOWN:
        most = f"letters, digits, '-' and '_', at most {bounds.SHOWN} of them"
        raise InputError(f"{kind} name {shown(name)} may hold only {most}")


class Steps(Written):
    """What a source can be a run of: a `program.Program`, which `of` makes of a step or text."""

    of: ClassVar[Callable[[Any], Program]]


@dataclass(frozen=True)
class Given:
    """Source: a tensor handed over under this name.  Its shape must broadcast to [batch, (heads,) rows, ...]."""

    name: str

    def __post_init__(self) -> None:
        check_name("tensor", self.name)

    def __str__(self) -> str:
        return f"${self.name}"


@dataclass(frozen=True, repr=False)
class Run(Written):
    """Source: the same site in another run; `input=None` is the receiver's input, `loop=None` the receiver's loop.

    `rows=None` are the receiver's rows; else as many others, one for each of the receiver's.
    """

    program: Program
    input: str | None = None
    loop: int | None = None
    rows: tuple[Row, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.program, Steps):
            object.__setattr__(self, "program", Steps.of(self.program))
        if self.input is not None:
            check_name("input", self.input)
        if self.program.depth >= MOST_NESTED:
            raise InputError(f"source programs may stand at most {MOST_NESTED} deep inside each other")
        if self.loop is not None and self.loop != self.program.first:  # h_0 may be read, too
            self.program.index_of(self.loop)  # raises where the program has no such loop
        if self.rows is not None:
            Site(1, "resid", None, self.rows)  # raises where they are no rows

    def __str__(self) -> str:
        where = "" if self.input is None else f"@{self.input}"
        when = "" if self.loop is None else f".loop[{self.loop}]"
        rows = "" if self.rows is None else f".row[{','.join(map(str, self.rows))}]"
        return f"({self.program}){where}{when}{rows}"


@dataclass(frozen=True, repr=False)
class Add(Written):
    """Change: what a source has is added, times a number."""

    source: Given | Run
    times: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.source, Given | Run):
            raise InputError(f"what is added comes from a Run or is a Given, not a {type(self.source).__name__}")
        object.__setattr__(self, "times", _number(self.times))

    def __str__(self) -> str:
        return f"+={'' if self.times == 1 else f'{_text(self.times)}*'}{self.source}"


@dataclass(frozen=True)
class Scale:
    """Change: every entry times a number; 0 takes the component out."""

    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", _number(self.factor))

    def __str__(self) -> str:
        return f"*={_text(self.factor)}"


@dataclass(frozen=True)
class Apply:
    """Change: a function of the component, handed over under this name with the maps.

    `identity` are twelve digits that say which function it must be (`functions.identity`); None for any of that name.
    """

    name: str
    identity: str | None = None

    def __post_init__(self) -> None:
        check_name("function", self.name)
        if self.identity is not None and not (isinstance(self.identity, str) and _IDENTITY.fullmatch(self.identity)):
            raise InputError(f"a function is identified by twelve digits 0-9a-f, not by {shown(self.identity)}")

    def __str__(self) -> str:
        return f"J:{self.name}" + ("" if self.identity is None else f"#{self.identity}")


Change: TypeAlias = Add | Scale | Apply
Source: TypeAlias = Given | Run | Change
"""Where a component's new value comes from: another place, or the component itself."""


def _number(value: float) -> float:
    if not bounds.is_finite(value):
        raise InputError(f"a component is changed by a finite number, not by {shown(value)}")
    return float(value) + 0.0  # 0 for -0, as both do the same


def _text(number: float) -> str:
    return repr(number).removesuffix(".0")


@dataclass(frozen=True, repr=False)
class Patch(Written):
    """Replace or change the component at `site`."""

    site: Site
    source: Source

    def __post_init__(self) -> None:
        if not isinstance(self.site, Site):
            raise InputError(f"a patch inside a call names a site such as layer[1].z, not {self.site}")
        if not isinstance(self.source, Source):
            raise InputError(
                "a patch takes its value from a program, a Run or a Given, or is an Add, a Scale or an Apply, not"
                f" {type(self.source).__name__}"
            )

    def __str__(self) -> str:
        return f"{self.site}{'' if isinstance(self.source, Add | Scale) else '<-'}{self.source}"

    @property
    def change(self) -> Change | None:
        """How the component is changed; None where it is replaced."""
        return self.source if isinstance(self.source, Change) else None

    @property
    def giver(self) -> Given | Run | None:
        """The tensor or run that something is taken from; None where nothing is."""
        if isinstance(self.source, Add):
            return self.source.source
        return self.source if isinstance(self.source, Given | Run) else None

    def taking(self, giver: Given | Run) -> Patch:
        """The same patch with another giver in the place of its own."""
        return replace(self, source=replace(self.source, source=giver) if isinstance(self.source, Add) else giver)


def in_order(patches: tuple[Patch, ...]) -> tuple[Patch, ...]:
    """The one order that stands for all orders which differ only by swapping patches that do not overlap."""
    if len(patches) > MOST_PATCHES:
        raise InputError(f"a call has at most {MOST_PATCHES} patches, not {len(patches)}")
    ordered: list[Patch] = []
    for patch in patches:
        # Behind the last patch it overlaps; from there on, in front of the first that ranks after it.
        at = 1 + max((i for i, other in enumerate(ordered) if other.site.overlaps(patch.site)), default=-1)
        while at < len(ordered) and ordered[at].site.order < patch.site.order:
            at += 1
        ordered.insert(at, patch)
    return tuple(ordered)


def bracketed(patches: tuple[Patch, ...]) -> str:
    """Patches as they stand in a program's text."""
    return f"[{'; '.join(map(str, patches))}]" if patches else ""


@dataclass(frozen=True, repr=False)
class Coda(Written):
    """Patches in the reading of the state after call `loop`, which goes through the coda."""

    loop: int
    patches: tuple[Patch, ...]

    def __post_init__(self) -> None:
        bounds.whole("the loop that a coda reads", self.loop, 0, bounds.POSITIONS)
        if not self.patches:
            raise InputError(f"coda:{self.loop} stands in a program for its patches, and there are none")
        object.__setattr__(self, "patches", in_order(self.patches))

    def __str__(self) -> str:
        return f"coda:{self.loop}{bracketed(self.patches)}"
