"""A run is a program, and a program is a value.

    F**6 | J("one") | F                                   in Python
    F6 J:one F                                            as text: on the command line, in manifests, in table rows
    F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]          the last call uses the pattern of a steered run

A program is a sequence of calls of F and maps J.  It starts from tokens, or from a given state: `h6 J:one F` continues
a state that has been through six calls, so its first call is loop 7.  Interventions are part of the call they act in: a
patch replaces a component at a site by a source,

    (F6 J:one F)             the same place in another run on the same input
    (F6 J:one F)@other       ... on the aligned input named `other`
    (F6 J:one F).loop[3]     ... at another loop of that run (wrong-loop control)
    $name                    a given tensor

Maps, inputs and tensors are named here and handed over when the program is run, so programs stay small and hashable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TypeAlias

from loopscope import bounds
from loopscope.address import Address, Site
from loopscope.bounds import (
    MOST_CALLS,
    MOST_MAPS,
    MOST_NESTED,
    MOST_PATCHES,
    MOST_SIZE,
    MOST_STEPS,
    MOST_TEXT,
    cut,
    shown,
)
from loopscope.errors import InputError, nearest

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def _named(kind: str, name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > bounds.SHOWN:
        most = f"letters, digits, '-' and '_', at most {bounds.SHOWN} of them"
        raise InputError(f"{kind} name {shown(name)} may hold only {most}")


@dataclass(frozen=True)
class Given:
    """Source: a tensor handed over under this name.  Its shape must broadcast to [batch, (heads,) rows, ...]."""

    name: str

    def __post_init__(self) -> None:
        _named("tensor", self.name)

    def __str__(self) -> str:
        return f"${self.name}"


@dataclass(frozen=True)
class Run:
    """Source: the same site in another run; `input=None` is the receiver's input, `loop=None` the receiver's loop."""

    program: Program
    input: str | None = None
    loop: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.program, Program):
            raise InputError(f"the source of a patch is a run of a program, not of {self.program!r}")
        if self.input is not None:
            _named("input", self.input)
        if self.program.depth >= MOST_NESTED:
            raise InputError(f"source programs may stand at most {MOST_NESTED} deep inside each other")
        if self.loop is not None:
            self.program.index_of(self.loop)  # raises where the program has no such loop

    def __str__(self) -> str:
        where = "" if self.input is None else f"@{self.input}"
        when = "" if self.loop is None else f".loop[{self.loop}]"
        return f"({self.program}){where}{when}"


Source: TypeAlias = Given | Run


@dataclass(frozen=True)
class Patch:
    """Replace the component at `site` by `source`."""

    site: Site
    source: Source

    def __post_init__(self) -> None:
        if not isinstance(self.site, Site):
            raise InputError(f"a patch inside a call names a site such as layer[1].z, not {self.site}")
        if not isinstance(self.source, Given | Run):
            raise InputError(
                f"a patch takes its value from a program, a Run or a Given, not {type(self.source).__name__}"
            )

    def __str__(self) -> str:
        return f"{self.site}<-{self.source}"


def _in_order(patches: tuple[Patch, ...]) -> tuple[Patch, ...]:
    """The one order that stands for all orders which differ only by swapping patches that do not overlap."""
    ordered: list[Patch] = []
    for patch in patches:
        # Behind the last patch it overlaps; from there on, in front of the first that ranks after it.
        at = 1 + max((i for i, other in enumerate(ordered) if other.site.overlaps(patch.site)), default=-1)
        while at < len(ordered) and ordered[at].site.order < patch.site.order:
            at += 1
        ordered.insert(at, patch)
    return tuple(ordered)


@dataclass(frozen=True)
class Call:
    """One call of F with its patches.

    Patches are kept in one order, that of computation and then of place, so that the same patches make the same call in
    whichever order they were given.  Where two overlap, their order is kept and the later one wins.
    """

    patches: tuple[Patch, ...] = ()

    def __post_init__(self) -> None:
        if len(self.patches) > MOST_PATCHES:
            raise InputError(f"a call has at most {MOST_PATCHES} patches, not {len(self.patches)}")
        object.__setattr__(self, "patches", _in_order(self.patches))

    def __str__(self) -> str:
        return "F" + (f"[{'; '.join(map(str, self.patches))}]" if self.patches else "")

    def patch(self, site: Site | str, source: Source | Program | Step | str) -> Call:
        """This call with one more patch.  A program as source means that program on the same input."""
        where = Site.parse(site) if isinstance(site, str) else site
        return Call((*self.patches, Patch(where, _source(source))))

    def __pow__(self, calls: int) -> Program:
        if not isinstance(calls, int) or not 1 <= calls <= MOST_CALLS:
            near = f"F{MOST_CALLS}" if isinstance(calls, int) and calls > 1 else "F"
            raise InputError(
                f"F{shown(calls)} does not exist: F may be called 1 to {MOST_CALLS} times (nearest: {near})"
            )
        return Program((self,) * calls)

    def __or__(self, other: Call | Map | Program) -> Program:
        return Program((self,)) | other


@dataclass(frozen=True)
class Map:
    """The token-wise map J of this name, applied to the state between calls."""

    name: str

    def __post_init__(self) -> None:
        _named("map", self.name)

    def __str__(self) -> str:
        return f"J:{self.name}"

    def __or__(self, other: Call | Map | Program) -> Program:
        return Program((self,)) | other


Step: TypeAlias = Call | Map
F = Call()
J = Map


@dataclass(frozen=True)
class Program:
    """Steps in order; `start=None` starts from tokens, `start=t` from a given state that is called h_t."""

    steps: tuple[Step, ...]
    start: int | None = None

    def __post_init__(self) -> None:
        if self.start is not None and not (isinstance(self.start, int) and self.start >= 0):
            raise InputError(f"h{shown(self.start)} does not exist: states are counted from h0 (nearest: h0)")
        if self.start is not None:
            bounds.whole("the number of a given state", self.start, 0, bounds.POSITIONS)
        if len(self.steps) > MOST_STEPS:
            raise InputError(f"a program has at most {MOST_STEPS} steps, not {len(self.steps)}")
        for step in self.steps:
            if not isinstance(step, Call | Map):
                raise InputError(f'{shown(step)} is no step of a program; a step is F, F.patch(...) or J("name")')
        if self.start is None and not self.steps:
            raise InputError("a program that starts from tokens has at least one step (nearest: F)")
        if self.calls > MOST_CALLS:
            raise InputError(f"a program has at most {MOST_CALLS} calls, not {self.calls} (nearest: F{MOST_CALLS})")
        maps = max((len(list(run)) for is_map, run in groupby(self.steps, _is_map) if is_map), default=0)
        if maps > MOST_MAPS:
            raise InputError(f"at most {MOST_MAPS} maps follow each other, not {maps}")
        if self.size > MOST_SIZE:
            raise InputError(
                f"a program has at most {MOST_SIZE} steps and patches with those of its sources, not {self.size}"
            )

    def __str__(self) -> str:
        words, run = [] if self.start is None else [f"h{self.start}"], 0
        for step in (*self.steps, None):
            if step == F:
                run += 1
                continue
            if run:
                words.append("F" if run == 1 else f"F{run}")
                run = 0
            if step is not None:
                words.append(str(step))
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> Program:
        """Read the text form; raises InputError with the place and what may stand there."""
        reader = _Reader(text)
        program = reader.program()
        reader.end()
        return program

    def __or__(self, other: Step | Program) -> Program:
        if isinstance(other, Program):
            if other.start is not None:
                raise InputError(
                    f"'{other}' starts from a given state and cannot follow '{self}' (leave out h{other.start})"
                )
            return replace(self, steps=self.steps + other.steps)
        return replace(self, steps=(*self.steps, other))

    def patch(self, address: Address | str, source: Source | Program | Step | str) -> Program:
        """This program with one more patch, in the call that the address's loop names."""
        where = Address.parse(address) if isinstance(address, str) else address
        index = self.index_of(where.loop)
        call = self.steps[index]
        assert isinstance(call, Call)
        return replace(self, steps=(*self.steps[:index], call.patch(where.site, source), *self.steps[index + 1 :]))

    @cached_property
    def depth(self) -> int:
        """How deep sources stand inside each other: 0 without patches from runs."""
        return max((1 + source.program.depth for source in self._sources()), default=0)

    @cached_property
    def size(self) -> int:
        """Steps and patches, with those of all sources written out: what its text and its hash take."""
        return len(self.steps) + sum(1 + source.program.size for source in self._sources())

    def _sources(self) -> Iterator[Run]:
        for step in self.steps:
            if isinstance(step, Call):
                yield from (patch.source for patch in step.patches if isinstance(patch.source, Run))

    @cached_property
    def skeleton(self) -> Program:
        """The same steps without patches."""
        return replace(self, steps=tuple(F if isinstance(step, Call) else step for step in self.steps))

    @property
    def calls(self) -> int:
        """How often F is called."""
        return sum(isinstance(step, Call) for step in self.steps)

    def loop_of(self, index: int) -> int:
        """Which loop step `index` is, or, for a map, the number of calls before it."""
        return (self.start or 0) + sum(isinstance(step, Call) for step in self.steps[: index + 1])

    def index_of(self, loop: int) -> int:
        """Index of the step that is this loop; raises InputError when the program has no such loop."""
        first = (self.start or 0) + 1
        last = first + self.calls - 1
        if self.calls == 0 or not first <= loop <= last:
            near = f"loops {first}..{last} (nearest: loop[{max(first, min(last, loop))}])" if self.calls else "no calls"
            raise InputError(f"loop {shown(loop)} does not exist in '{cut(str(self))}': it has {near}")
        calls = [index for index, step in enumerate(self.steps) if isinstance(step, Call)]
        return calls[loop - first]

    @cached_property
    def points(self) -> tuple[str, ...]:
        """Names of the states along the program, before the first step and after each: h0 .. h6, "h6 J:one", h7."""
        calls, label = self.start or 0, f"h{self.start or 0}"
        names = [label]
        for step in self.steps:
            calls, label = (calls + 1, f"h{calls + 1}") if isinstance(step, Call) else (calls, f"{label} {step}")
            names.append(label)
        return tuple(names)


def _is_map(step: Step) -> bool:
    return isinstance(step, Map)


def h(t: int) -> Program:
    """The empty program on a given state h_t, to be continued: `h(6) | J("one") | F`."""
    return Program((), start=t)


def as_program(program: Program | Call | Map | str) -> Program:
    """Accept a program as a value, a single step, or text."""
    if isinstance(program, str):
        return Program.parse(program)
    return program if isinstance(program, Program) else Program((program,))  # refuses what is no step


def _source(source: Source | Program | Step | str) -> Source:
    if isinstance(source, Program | Call | Map):
        return Run(as_program(source))
    if isinstance(source, str):
        reader = _Reader(source)
        parsed = reader.source()
        reader.end()
        return parsed
    return source


class _Reader:
    """Recursive descent over the text form."""

    STEP = "a step is F, F6, F[site<-source] or J:name, and h6 may stand first"
    STEPS = ("F", "F6", "J:one", "F[layer[1].z<-$name]")
    SOURCE = "a source is (program), (program)@input, (program).loop[t] or $tensor"
    SOURCES = ("$name", "(F6).loop[6]", "(F6)@other.loop[6]")

    def __init__(self, text: str) -> None:
        if len(text) > MOST_TEXT:
            raise InputError(f"the text of a program has at most {MOST_TEXT} characters, not {len(text)}")
        self.text, self.at, self.depth = text, 0, 0

    def fail(self, expected: str, choices: tuple[str, ...] = ()) -> InputError:
        """What stands here and what may stand here; each of the choices is valid wherever one of its kind is."""
        rest = self.text[self.at : self.at + bounds.SHOWN].split(maxsplit=1)
        found = f"cannot read {rest[0]!r}" if rest else "the text ends"
        near = nearest(rest[0] if rest else "", choices)
        return InputError(f"{found} at character {self.at + 1} of program {shown(self.text)}; {expected}{near}")

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def take(self, pattern: str) -> re.Match[str] | None:
        self.skip()
        match = re.compile(pattern).match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def end(self) -> None:
        self.skip()
        if self.at < len(self.text):
            raise self.fail("nothing may follow here")

    def program(self) -> Program:
        match = self.take(r"h([0-9]{1,18})(?=[\s)]|$)")
        start = int(match[1]) if match else None
        steps: list[Step] = []
        while (more := self.step()) is not None:
            steps.extend(more)
            if len(steps) > MOST_STEPS + MOST_CALLS:  # and not what a long text of F10000 would take
                break
        if not steps and start is None:
            raise self.fail(self.STEP, self.STEPS)
        return Program(tuple(steps), start)

    def step(self) -> tuple[Step, ...] | None:
        self.skip()
        if self.at == len(self.text) or self.text[self.at] == ")":
            return None
        if match := self.take(r"J:([A-Za-z0-9_-]+)(?=[\s)]|$)"):
            return (Map(match[1]),)
        if match := self.take(r"F([0-9]{0,18})(?=[\s)]|$)"):
            return (F ** int(match[1] or 1)).steps
        if self.take(r"F\["):
            patches = [self.patch()]
            while self.take(";"):
                patches.append(self.patch())
            if not self.take(r"\](?=[\s)]|$)"):
                raise self.fail("']' or ';' must follow a patch")
            return (Call(tuple(patches)),)
        raise self.fail(self.STEP, self.STEPS)

    def patch(self) -> Patch:
        match = self.take(r"([^<;()]*)<-")
        if match is None:
            raise self.fail("a patch is site<-source", ("layer[1].z<-$name",))
        return Patch(Site.parse(match[1]), self.source())

    def source(self) -> Source:
        if match := self.take(r"\$([A-Za-z0-9_-]+)"):
            return Given(match[1])
        if not self.take(r"\("):
            raise self.fail(self.SOURCE, self.SOURCES)
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.fail(f"source programs may stand at most {MOST_NESTED} deep inside each other")
        program = self.program()
        self.depth -= 1
        if not self.take(r"\)"):
            raise self.fail("')' must close the source program")
        where, when = self.take(r"@([A-Za-z0-9_-]+)"), self.take(r"\.loop\[([0-9]{1,18})\]")
        return Run(program, where[1] if where else None, int(when[1]) if when else None)
