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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from loopscope.address import COMPONENTS, Address, Site
from loopscope.errors import InputError, nearest

MOST_CALLS = 100_000
"""Repetitions that one word of a program may ask for; a guard against a slip of the finger, not a limit of the model."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def _named(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(f"{kind} name {name!r} may hold only letters, digits, '-' and '_'")


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
        if self.input is not None:
            _named("input", self.input)

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

    def __str__(self) -> str:
        return f"{self.site}<-{self.source}"


@dataclass(frozen=True)
class Call:
    """One call of F with its patches, kept in order of computation; of two on one place the later one wins."""

    patches: tuple[Patch, ...] = ()

    def __post_init__(self) -> None:
        in_order = sorted(self.patches, key=lambda p: (p.site.layer, COMPONENTS.index(p.site.component)))
        object.__setattr__(self, "patches", tuple(in_order))

    def __str__(self) -> str:
        return "F" + (f"[{'; '.join(map(str, self.patches))}]" if self.patches else "")

    def patch(self, site: Site | str, source: Source | Program | str) -> Call:
        """This call with one more patch.  A program as source means that program on the same input."""
        where = Site.parse(site) if isinstance(site, str) else site
        return Call((*self.patches, Patch(where, _source(source))))

    def __pow__(self, calls: int) -> Program:
        if calls < 1:
            raise InputError(f"F**{calls}: a program has at least one call (nearest: F)")
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
        if self.start is not None and self.start < 0:
            raise InputError(f"h{self.start} does not exist: states are counted from h0 (nearest: h0)")
        for index, step in enumerate(self.steps):
            for patch in step.patches if isinstance(step, Call) else ():
                if isinstance(patch.source, Run):
                    loop = self.loop_of(index) if patch.source.loop is None else patch.source.loop
                    patch.source.program.index_of(loop)  # raises where the source has no such loop

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
                raise InputError(f"'{other}' starts from a given state and cannot follow '{self}'")
            return replace(self, steps=self.steps + other.steps)
        return replace(self, steps=(*self.steps, other))

    def patch(self, address: Address | str, source: Source | Program | str) -> Program:
        """This program with one more patch, in the call that the address's loop names."""
        where = Address.parse(address) if isinstance(address, str) else address
        index = self.index_of(where.loop)
        call = self.steps[index]
        assert isinstance(call, Call)
        return replace(self, steps=(*self.steps[:index], call.patch(where.site, source), *self.steps[index + 1 :]))

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
            raise InputError(f"loop {loop} does not exist in '{self}': it has {near}")
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


def h(t: int) -> Program:
    """The empty program on a given state h_t, to be continued: `h(6) | J("one") | F`."""
    return Program((), start=t)


def as_program(program: Program | Call | Map | str) -> Program:
    """Accept a program as a value, a single step, or text."""
    if isinstance(program, str):
        return Program.parse(program)
    return program if isinstance(program, Program) else Program((program,))


def _source(source: Source | Program | str) -> Source:
    if isinstance(source, Program):
        return Run(source)
    if isinstance(source, str):
        reader = _Reader(source)
        parsed = reader.source()
        reader.end()
        return parsed
    return source


class _Reader:
    """Recursive descent over the text form."""

    STEPS = "a step is F, F6, F[site<-source] or J:name"

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, expected: str, word: str | None = None) -> InputError:
        rest = re.match(r"\S*", self.text[self.at :])
        found = (rest[0] if rest else "") if word is None else word
        where = f"at character {self.at + 1} of program {self.text!r}"
        near = "" if not found else nearest(found, ["F", "F6", "J:one", "h6", "F[layer[1].z<-(F)]"])
        return InputError(f"cannot read {found!r} {where}; {expected}{near}")

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
            raise self.fail(self.STEPS)

    def program(self) -> Program:
        match = self.take(r"h(\d+)(?![A-Za-z0-9_:\[])")
        start = int(match[1]) if match else None
        steps: list[Step] = []
        while (more := self.step()) is not None:
            steps.extend(more)
        if not steps and start is None:
            raise self.fail(self.STEPS)
        return Program(tuple(steps), start)

    def step(self) -> list[Step] | None:
        self.skip()
        before = self.at
        if self.at == len(self.text) or self.text[self.at] == ")":
            return None
        if match := self.take(r"J:([A-Za-z0-9_-]+)(?=[\s)]|$)"):
            return [Map(match[1])]
        if match := self.take(r"F(\d*)(?=[\s)]|$)"):
            count = int(match[1] or 1)
            if not 1 <= count <= MOST_CALLS:
                self.at = before
                raise self.fail(f"F may be repeated 1 to {MOST_CALLS} times")
            return [F] * count
        if self.take(r"F\["):
            patches = [self.patch()]
            while self.take(";"):
                patches.append(self.patch())
            if not self.take(r"\](?=[\s)]|$)"):
                raise self.fail("']' or ';' must follow a patch")
            return [Call(tuple(patches))]
        raise self.fail(self.STEPS)

    def patch(self) -> Patch:
        match = self.take(r"([^<;()]*?)\s*<-")
        if match is None:
            raise self.fail("a patch is site<-source")
        return Patch(Site.parse(match[1]), self.source())

    def source(self) -> Source:
        if match := self.take(r"\$([A-Za-z0-9_-]+)"):
            return Given(match[1])
        if not self.take(r"\("):
            raise self.fail("a source is (program), (program)@input, (program).loop[t] or $tensor")
        program = self.program()
        if not self.take(r"\)"):
            raise self.fail("')' must close the source program")
        where, when = self.take(r"@([A-Za-z0-9_-]+)"), self.take(r"\.loop\[(\d+)\]")
        return Run(program, where[1] if where else None, int(when[1]) if when else None)
