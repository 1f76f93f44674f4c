"""A run is a program, and a program is a value.

    F**6 | J("one") | F                                   in Python
    F6 J:one F                                            as text: on the command line, in manifests, in table rows
    F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]          the last call uses the pattern of a steered run

A program is a sequence of calls of F and maps J.  It starts from tokens; `h6 J:one F` continues a given state that has
been through six calls, so its first call is loop 7.  Where a model draws its start, `seed:3 F8` says which, and `zeros
F8` starts from nothing.  A model with a prelude and a coda has both in every program.  A model with several stacks has
their names in the place of F: `(L3 H)2` is L three times, then H, and all of it again.

Interventions are part of the call they act in: a patch replaces a component at a site by a source, or changes it,

    (F6 J:one F)             the same place in another run on the same input
    (F6 J:one F)@other       ... on the aligned input named `other`
    (F6 J:one F).loop[3]     ... at another loop of that run (wrong-loop control)
    (F6 J:one F).row[5]      ... at another row
    $name                    a given tensor
    +=0.5*$name   *=0   <-J:clip      a tensor or run added, a factor, a function: see `patches`

Patches before the first call and in a reading stand in words of their own: `prelude[layer[1].z<-$a] F8
coda:8[layer[2].z<-$b]`.

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
from loopscope.bounds import MOST_CALLS, MOST_MAPS, MOST_SIZE, MOST_STEPS, cut, shown
from loopscope.errors import InputError, nearest
from loopscope.patches import Add as Add
from loopscope.patches import Apply as Apply
from loopscope.patches import Coda as Coda
from loopscope.patches import Given as Given
from loopscope.patches import Patch as Patch
from loopscope.patches import Run as Run
from loopscope.patches import Scale as Scale
from loopscope.patches import Source as Source
from loopscope.patches import Steps, bracketed, check_name, in_order
from loopscope.program_text import PatchReader, folded
from loopscope.starts import Seed as Seed
from loopscope.starts import Start as Start
from loopscope.starts import Zeros as Zeros
from loopscope.written import Written

STACK = "[A-IK-Z]"
"""What a stack may be called; F is the only stack of most models."""


@dataclass(frozen=True, repr=False)
class Call(Written):
    """One call of F, or of the stack of that name, with its patches.

    Patches are kept in one order, that of computation and then of place, so that the same patches make the same call in
    whichever order they were given.  Where two overlap, their order is kept and the later one wins.
    """

    patches: tuple[Patch, ...] = ()
    stack: str = "F"

    def __post_init__(self) -> None:
        if not isinstance(self.stack, str) or not re.fullmatch(STACK, self.stack):
            raise InputError(f"a stack is named by one capital letter but J, not {shown(self.stack)} (nearest: F)")
        object.__setattr__(self, "patches", in_order(self.patches))

    def __str__(self) -> str:
        return self.stack + bracketed(self.patches)

    @property
    def bare(self) -> Call:
        """The same call without patches."""
        return Call(stack=self.stack) if self.patches else self

    def patch(self, site: Site | str, source: Source | Program | Step | str) -> Call:
        """This call with one more patch.  A program as source means that program on the same input."""
        where = Site.parse(site) if isinstance(site, str) else site
        return replace(self, patches=(*self.patches, Patch(where, as_source(source))))

    def __pow__(self, calls: int) -> Program:
        if not isinstance(calls, int) or not 1 <= calls <= MOST_CALLS:
            near = f"F{MOST_CALLS}" if isinstance(calls, int) and calls > 1 else "F"
            raise InputError(
                f"F{shown(calls)} does not exist: F may be called 1 to {MOST_CALLS} times (nearest: {near})"
            )
        return Program((self,) * calls)

    def __or__(self, other: ProgramLike) -> Program:
        return Program((self,)) | other


@dataclass(frozen=True, repr=False)
class Map:
    """The token-wise map J of this name, applied to the state between calls."""

    name: str

    def __post_init__(self) -> None:
        check_name("map", self.name)

    def __str__(self) -> str:
        return f"J:{self.name}"

    def __repr__(self) -> str:
        return f"J({self.name!r})"

    def __or__(self, other: ProgramLike) -> Program:
        return Program((self,)) | other


Step: TypeAlias = Call | Map
F = Call()
J = Map


@dataclass(frozen=True, repr=False)
class Program(Steps):
    """Steps in order, with patches in the prelude and in codas.

    `start=None` starts from tokens as the model does, a `Seed` or `Zeros` from tokens with another first state, and
    `start=t` from a given state that is called h_t.
    """

    steps: tuple[Step, ...]
    start: Start = None
    prelude: tuple[Patch, ...] = ()
    coda: tuple[Coda, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.start, Seed | Zeros):
            pass
        elif self.start is not None and not (isinstance(self.start, int) and self.start >= 0):
            raise InputError(f"h{shown(self.start)} does not exist: states are counted from h0 (nearest: h0)")
        elif self.start is not None:
            bounds.whole("the number of a given state", self.start, 0, bounds.POSITIONS)
        if len(self.steps) > MOST_STEPS:
            raise InputError(f"a program has at most {MOST_STEPS} steps, not {len(self.steps)}")
        for step in self.steps:
            if not isinstance(step, Call | Map):
                text = f" (nearest: Program.parse({shown(self.steps)}))" if isinstance(self.steps, str) else ""
                raise InputError(f'{shown(step)} is no step of a program; a step is F, F.patch(...) or J("name"){text}')
        if not self.given and not self.steps:
            raise InputError("a program that starts from tokens has at least one step (nearest: F)")
        object.__setattr__(self, "prelude", in_order(self.prelude))
        object.__setattr__(self, "coda", tuple(sorted(self.coda, key=lambda each: each.loop)))
        loops = [each.loop for each in self.coda]
        for loop in loops:
            if not self.first <= loop <= self.first + self.calls or loops.count(loop) > 1:
                last = f"coda:{self.first} to coda:{self.first + self.calls}"
                raise InputError(f"a program of {self.calls} calls has {last}, each once, not coda:{loop}")
        if self.calls > MOST_CALLS:
            raise InputError(f"a program has at most {MOST_CALLS} calls, not {self.calls} (nearest: F{MOST_CALLS})")
        maps = max((len(list(run)) for step, run in groupby(self.steps, type) if step is Map), default=0)
        if maps > MOST_MAPS:
            raise InputError(f"at most {MOST_MAPS} maps follow each other, not {maps}")
        if self.size > MOST_SIZE:
            raise InputError(
                f"a program has at most {MOST_SIZE} steps and patches with those of its sources, not {self.size}"
            )

    def __str__(self) -> str:
        start = [] if self.start is None else [f"h{self.start}" if self.given else str(self.start)]
        before = [f"prelude{bracketed(self.prelude)}"] if self.prelude else []
        words: list[str] = []
        for bare, run in groupby(self.steps, lambda step: step if step == step_bare(step) else None):
            same = list(run)
            if isinstance(bare, Call):
                words.append(f"{bare.stack}{len(same)}" if len(same) > 1 else bare.stack)
            else:
                words.extend(map(str, same))
        if any(isinstance(step, Call) and step.stack != F.stack for step in self.steps):
            words = folded(words)
        return " ".join([*start, *before, *words, *map(str, self.coda)])

    @classmethod
    def parse(cls, text: str) -> Program:
        """Read the text form; raises InputError with the place and what may stand there."""
        reader = _Reader(text)
        program = reader.program()
        reader.end()
        return program

    def __or__(self, other: ProgramLike) -> Program:
        other = as_program(other)
        if other.start is not None:
            named = "a given state" if other.given else "a state of its own"
            word = f"h{other.start}" if other.given else other.start
            raise InputError(f"'{other}' starts from {named} and cannot follow '{self}' (leave out {word})")
        if other.prelude or other.coda:
            raise InputError(f"'{other}' has patches in its prelude or coda and cannot follow '{self}'")
        return replace(self, steps=self.steps + other.steps)

    def patch(self, address: Address | str, source: Source | Program | Step | str) -> Program:
        """This program with one more patch, in the call that the address's loop names, the prelude or a coda."""
        where = Address.parse(address) if isinstance(address, str) else address
        if where.stage == "prelude":
            return replace(self, prelude=(*self.prelude, Patch(where.site, as_source(source))))
        if where.stage == "coda":
            others = tuple(each for each in self.coda if each.loop != where.loop)
            coda = Coda(where.loop, (*self.coda_patches(where.loop), Patch(where.site, as_source(source))))
            return replace(self, coda=(*others, coda))
        index = self.index_of(self.loop_at(where))
        call = self.steps[index]
        assert isinstance(call, Call)
        return replace(self, steps=(*self.steps[:index], call.patch(where.site, source), *self.steps[index + 1 :]))

    def coda_patches(self, loop: int) -> tuple[Patch, ...]:
        """The patches in the reading after call `loop`."""
        return next((each.patches for each in self.coda if each.loop == loop), ())

    def patches(self) -> Iterator[Patch]:
        """All patches, those of its sources not among them."""
        yield from self.prelude
        for part in (*self.steps, *self.coda):
            if isinstance(part, Call | Coda):
                yield from part.patches

    @cached_property
    def depth(self) -> int:
        """How deep sources stand inside each other: 0 without patches from runs."""
        return max((1 + source.program.depth for source in self._sources()), default=0)

    @cached_property
    def size(self) -> int:
        """Steps and patches, with those of all sources written out: what its text and its hash take."""
        return len(self.steps) + sum(1 + source.program.size for source in self._sources())

    def _sources(self) -> Iterator[Run]:
        yield from (patch.giver for patch in self.patches() if isinstance(patch.giver, Run))

    @cached_property
    def skeleton(self) -> Program:
        """The same steps without patches."""
        return replace(self, steps=tuple(map(step_bare, self.steps)), prelude=(), coda=())

    @property
    def given(self) -> bool:
        """Whether it starts from a given state."""
        return isinstance(self.start, int)

    @property
    def first(self) -> int:
        """Calls that the state at its start has been through."""
        return self.start if isinstance(self.start, int) else 0

    @property
    def calls(self) -> int:
        """How often F is called."""
        return sum(isinstance(step, Call) for step in self.steps)

    def loop_of(self, index: int) -> int:
        """Which loop step `index` is, or, for a map, the number of calls before it."""
        return self.first + sum(isinstance(step, Call) for step in self.steps[: index + 1])

    def loop_at(self, address: Address) -> int:
        """The loop that an address names, be it by the calls of one stack; InputError where there is none."""
        if address.stage == "loop":
            self.index_of(address.loop)
            return address.loop
        stacks = [step.stack for step in self.steps if isinstance(step, Call)]
        if address.stage not in stacks:
            near = nearest(address.stage, sorted(set(stacks) - {F.stack}) or ["loop"])
            raise InputError(f"'{cut(str(self))}' has no stack {address.stage}{near}")
        series = [list(run) for _, run in groupby(enumerate(stacks, start=self.first + 1), lambda each: each[1])]
        mine = [[loop for loop, _ in run] for run in series if run[0][1] == address.stage]
        mine = [[loop for run in mine for loop in run]] if address.inner is None else mine
        one, two = (1, address.loop) if address.inner is None else (address.loop, address.inner)
        if one > len(mine) or two > len(mine[one - 1]):
            there = f"{address.stage}[1] to {address.stage}[{stacks.count(address.stage)}]"
            raise InputError(f"{cut(str(address))} does not exist in '{cut(str(self))}': it has {there}")
        return mine[one - 1][two - 1]

    def index_of(self, loop: int) -> int:
        """Index of the step that is this loop; raises InputError when the program has no such loop."""
        first = self.first + 1
        last = first + self.calls - 1
        if self.calls == 0 or not first <= loop <= last:
            near = f"loops {first}..{last} (nearest: loop[{max(first, min(last, loop))}])" if self.calls else "no calls"
            raise InputError(f"loop {shown(loop)} does not exist in '{cut(str(self))}': it has {near}")
        calls = [index for index, step in enumerate(self.steps) if isinstance(step, Call)]
        return calls[loop - first]

    def calls_before(self, point: str) -> int:
        """How many calls the state at a point has been through."""
        at = self.points.index(point)
        return self.first if at == 0 else self.loop_of(at - 1)

    @cached_property
    def points(self) -> tuple[str, ...]:
        """Names of the states along the program, before the first step and after each: h0 .. h6, "h6 J:one", h7."""
        calls, label = self.first, f"h{self.first}"
        names = [label]
        for step in self.steps:
            calls, label = (calls + 1, f"h{calls + 1}") if isinstance(step, Call) else (calls, f"{label} {step}")
            names.append(label)
        return tuple(names)


def step_bare(step: Step) -> Step:
    """The same step without patches."""
    return step.bare if isinstance(step, Call) else step


def h(t: int) -> Program:
    """The empty program on a given state h_t, to be continued: `h(6) | J("one") | F`."""
    return Program((), start=t)


ProgramLike: TypeAlias = Program | Call | Map | str
"""What a program may be given as: a value, a single step, or text."""


def as_program(program: ProgramLike) -> Program:
    """The program that is meant."""
    if isinstance(program, str):
        return Program.parse(program)
    return program if isinstance(program, Program) else Program((program,))  # refuses what is no step


Steps.of = staticmethod(as_program)


def as_source(source: Source | Program | Step | str) -> Source:
    """Accept a source or change as a value or text; a program is a run of it, a map J a function of the component.

    Text that is no source is read as a program: "F3", "seed:3 F3" and "(L2 H)2" as "(F3)", "(seed:3 F3)" and
    "((L2 H)2)".
    """
    if isinstance(source, Map):
        return Apply(source.name)
    if isinstance(source, Program | Call):
        return Run(as_program(source))
    if isinstance(source, str):
        reader = _Reader(source)
        try:
            parsed = reader.value(reader.operator())
            reader.end()
        except InputError as error:
            return Run(_program_or_source(source, reader.at, error))
        return parsed
    return source


def _program_or_source(text: str, read: int, error: InputError) -> Program:
    """The program that a text is which is no source; InputError in the words of what fits the text further."""
    reader = _Reader(text)
    try:
        program = reader.program()
        reader.end()
    except InputError as other:
        told = other if reader.at > read else error
        raise InputError(
            f"{told}; a patch takes a source such as (F6)@other or $name, or a program: F6 J:one F"
        ) from None
    return program


class _Reader(PatchReader):
    """Recursive descent over the text form."""

    STEP = "a step is F, F6, F[site<-source] or J:name, and h6 may stand first"
    STEPS = ("F", "F6", "J:one", "F[layer[1].z<-$name]")

    def program(self) -> Program:
        start = self.start()
        prelude = self.bracketed() if self.take(r"prelude\[") else ()
        steps = self.steps()
        coda: list[Coda] = []
        while match := self.take(r"coda:([0-9]{1,18})\["):
            coda.append(Coda(int(match[1]), self.bracketed()))
        if not steps and not isinstance(start, int):
            raise self.fail(self.STEP, self.STEPS)
        return Program(steps, start, prelude, tuple(coda))

    def start(self) -> Start:
        if match := self.take(r"h([0-9]{1,18})(?=[\s)]|$)"):
            return int(match[1])
        if match := self.take(r"seed:([0-9]{1,18})(?=[\s)]|$)"):
            return Seed(int(match[1]))
        return Zeros() if self.take(r"zeros(?=[\s)]|$)") else None

    def steps(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        while (more := self.step()) is not None:
            steps.extend(more)
            if len(steps) > MOST_STEPS + MOST_CALLS:  # and not what a long text of F10000 would take
                break
        return tuple(steps)

    def step(self) -> tuple[Step, ...] | None:
        self.skip()
        if self.at == len(self.text) or self.text[self.at] == ")" or self.text.startswith("coda:", self.at):
            return None
        if match := self.take(r"J:([A-Za-z0-9_-]+)(?=[\s)]|$)"):
            return (Map(match[1]),)
        if match := self.take(rf"({STACK})([0-9]{{0,18}})(?=[\s)]|$)"):
            return (Call(stack=match[1]) ** int(match[2] or 1)).steps
        if match := self.take(rf"({STACK})\["):
            return (Call(self.bracketed(), match[1]),)
        if self.take(r"\("):
            self.nest()
            inside = self.steps()
            self.depth -= 1
            match = self.take(r"\)([0-9]{0,18})(?=[\s)]|$)")
            if not match or not inside:
                raise self.fail("')' or ')2' must close a group of steps")
            times = bounds.whole("the repeats of a group", int(match[1] or 1), 1, MOST_CALLS)
            return inside * min(times, 1 + (MOST_STEPS + MOST_CALLS) // len(inside))
        if re.compile(rf"{STACK}\s*\*\*|\|").match(self.text, self.at):
            raise self.fail("as text, F**6 | J('one') | F is F6 J:one F")
        raise self.fail(self.STEP, self.STEPS)
