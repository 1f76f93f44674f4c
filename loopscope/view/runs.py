"""Runs of programs a step at a time, each step kept, so that what two programs share is computed once.

    state = finish(runs.state(case, Program.parse("F6 J:one F"), 8))
    logits = finish(runs.logits(case, program, 8, [-1]))

A step is one call of F or one map, run by `loopscope.run` from the state before it.  What a patch takes from another
run is computed in the same way, and handed over as a tensor.  All functions here are generators that yield when they
have computed a step, so that whoever asked can show how far it is, do something else first, or stop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from loopscope.address import Address, Site
from loopscope.bounds import MOST_CALLS
from loopscope.errors import InputError, nearest
from loopscope.execute.conformity import remember
from loopscope.execute.executor import run
from loopscope.execute.unequal import anchors_of
from loopscope.measure.streaming import StatesRead
from loopscope.program import Call, Coda, Given, Map, Patch, Program, Run, Step, step_bare
from loopscope.protocol import device_of
from loopscope.view.kept import Kept
from loopscope.view.shown_model import ShownModel

Found = TypeVar("Found")
Steps: TypeAlias = Generator[tuple[int, int] | None, None, Found]
"""Yields whenever a step has been computed, of a long job how many of how many, and gives what was asked for."""

MEAN = "mean"
"""The tensor `$mean`: a place's mean over the examples."""

MEMORY = 512 * 2**20


@dataclass(frozen=True)
class Case:
    """What programs run on: tokens, and other inputs by name."""

    tokens: tuple[int, ...]
    others: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def at(self, name: str) -> Case:
        """The other input of this name as programs' own; InputError where there is none."""
        named = dict(self.others)
        if name not in named:
            there = ", ".join(named) or "none"
            raise InputError(f"no input is called {name!r}; there are: {there}{nearest(name, named)}")
        return replace(self, tokens=named[name])


def finish(steps: Steps[Found]) -> Found:
    """Go through all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


class Runs:
    """Runs of one model; `most` bounds the bytes of states, components and logits that are kept."""

    def __init__(self, subject: ShownModel, most: int = MEMORY) -> None:
        self.subject = subject
        self.kept: Kept[Tensor] = Kept(most)
        self.given: dict[str, Tensor] = {}
        self._bare = StatesRead(subject.model)
        remember(self._bare)

    # ---- what a run gives --------------------------------------------------------------------------------------------

    def state(self, case: Case, program: Program, at: int) -> Steps[Float[Tensor, "1 rows s"]]:
        """The state at point number `at`, of all rows."""
        key = ("state", case, _prefix(program, at))
        if (known := self.kept.get(key)) is not None:
            return known
        if program.given:
            raise InputError(
                f"'{program}' starts from a given state, and there is none here (leave out h{program.start})"
            )
        if not self._stepwise(case, program):
            return (yield from self._whole(case, program, at))
        if at == 0:
            first = next((Call(stack=step.stack) for step in program.steps if isinstance(step, Call)), Call())
            prelude = yield from self._filled(case, program.prelude, 0, "prelude")
            begun = Program((first,), program.start, prelude)
            found = self._run(self._bare, case, begun, None, read=(begun.points[0],))
        elif self._deep(step := program.steps[at - 1]) and step == step_bare(step):
            return (yield from self._call(case, program, at - 1))[0]
        else:
            before = yield from self.state(case, program, at - 1)
            one = yield from self._one(case, program, at - 1)
            found = self._run(self._bare, case, one, before)
        yield None
        return self._keep(key, found.logits)

    def logits(
        self, case: Case, program: Program, at: int, rows: Sequence[int]
    ) -> Steps[Float[Tensor, "rows classes"]]:
        """What is read at point number `at`, in float32."""
        part = program.coda_patches(program.calls_before(program.points[at]))
        key = ("logits", case, _prefix(program, at), part, tuple(rows))
        if (known := self.kept.get(key)) is not None:
            return known
        if not self._stepwise(case, program):
            found = self._run(self.subject.model, case, program, None, read=(program.points[at],), rows=rows)
        else:
            state = yield from self.state(case, program, at)
            found = yield from self._read(case, program, at, state, rows=rows)
        yield None
        return self._keep(key, found.logits[0].float())

    def component(self, case: Case, program: Program, address: Address) -> Steps[Tensor]:
        """What is at an address, [1, (heads,) rows, ...]."""
        key = ("component", case, program, address)
        if (known := self.kept.get(key)) is not None:
            return known
        if not self._stepwise(case, program) or address.stage == "prelude":
            model = self.subject.model if address.stage == "coda" else self._bare
            found = self._run(model, case, program, None, keep=[address])
        elif address.stage == "coda":
            at = program.first + address.loop
            at = max(point for point, name in enumerate(program.points) if program.calls_before(name) == at)
            state = yield from self.state(case, program, at)
            found = yield from self._read(case, program, at, state, keep=[address])
        else:
            loop = program.loop_at(address)
            index = program.index_of(loop)
            before = yield from self.state(case, program, index)
            one = yield from self._one(case, program, index, address.site.layer)
            address = Address(loop, address.site)
            found = self._run(self._bare, case, one, before, keep=[address])
        yield None
        if address not in found.kept:
            raise InputError(f"'{program}' has no {address}")
        return self._keep(key, found.kept[address])

    def named(self, program: Program) -> Steps[Program]:
        """The program with every `$mean` under a name that says of which place it is, and that tensor computed.

        InputError for other tensors: there are none.
        """
        steps = []
        for index, step in enumerate(program.steps):
            if isinstance(step, Call):
                loop = program.loop_of(index)
                step = replace(step, patches=(yield from self._means(program, step.patches, Address(loop, _ANY))))
            steps.append(step)
        prelude = yield from self._means(program, program.prelude, Address(0, _ANY, "prelude"))
        coda = []
        for each in program.coda:
            coda.append(
                Coda(each.loop, (yield from self._means(program, each.patches, Address(each.loop, _ANY, "coda"))))
            )
        return replace(program, steps=tuple(steps), prelude=prelude, coda=tuple(coda))

    def inputs(self, case: Case) -> dict[str, Any]:
        """What `loopscope.run` and the instruments take beside tokens."""
        maps = self.subject.maps
        others = {name: self.tokens(tokens) for name, tokens in case.others}
        return {"maps": dict(maps), "others": others, "given": dict(self.given), "tokenizer": self.subject.tokenizer}

    def tokens(self, tokens: tuple[int, ...]) -> Tensor:
        """Tokens as a model takes them, [1, T]."""
        return torch.tensor([tokens], device=device_of(self.subject.model))

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _stepwise(self, case: Case, program: Program) -> bool:
        """Whether a program can be run a step at a time: no row is named by what stands there, all inputs are as long.

        A state before the first call that a patch takes belongs to no call, so that is left to a whole run, too.
        """
        alike = all(len(tokens) == len(case.tokens) for _, tokens in case.others)
        return alike and not anchors_of([program], [], ()) and not _takes_start(program)

    def _whole(self, case: Case, program: Program, at: int) -> Steps[Tensor]:
        found = self._run(self._bare, case, replace(program, coda=()), None, read="all")
        for number, state in enumerate(found.logits_at.values()):
            self._keep(("state", case, _prefix(program, number)), state)
        yield None
        return found.logits_at[program.points[at]]

    def _one(self, case: Case, program: Program, index: int, wanted: int = MOST_CALLS) -> Steps[Program]:
        """Step `index` alone, from the state before it, with tensors in the place of what its patches take.

        What enters the first layer that is patched, or `wanted` if that comes before it, is handed over, too, where a
        stack is deep: the layers before it need not be computed again.
        """
        step = program.steps[index]
        if isinstance(step, Call):
            patches = yield from self._filled(case, step.patches, program.loop_of(index), "loop")
            layer = min((patch.site.layer for patch in patches), default=wanted)
            if 1 < (layer := min(layer, wanted)) < MOST_CALLS and self._deep(step):
                stream = yield from self._stream(case, program, index, layer)
                what = (case, _prefix(program, index), step.stack, layer)
                patches = (Patch(Site(layer, "resid"), Given(self._give("stream", what, stream))), *patches)
            step = replace(step, patches=patches)
        prelude = yield from self._filled(case, program.prelude, 0, "prelude")
        return Program((step,), program.calls_before(program.points[index]), prelude)

    def _deep(self, step: Step) -> bool:
        """Whether a step is a call of so many layers that what enters each is worth keeping."""
        return isinstance(step, Call) and len(self.subject.pieces.stack(step.stack)) > DEEP

    def _stream(self, case: Case, program: Program, index: int, layer: int) -> Steps[Tensor]:
        """What enters a layer in step `index` without its patches."""
        step = program.steps[index]
        assert isinstance(step, Call)
        key = ("stream", case, (*_prefix(program, index), step.stack), layer)
        if (known := self.kept.get(key)) is not None:
            return known
        return (yield from self._call(case, program, index))[1][layer]

    def _call(self, case: Case, program: Program, index: int) -> Steps[tuple[Tensor, dict[int, Tensor]]]:
        """The state after step `index` without its patches, and what enters each of its layers; all of it is kept."""
        before = yield from self.state(case, program, index)
        step = program.steps[index]
        assert isinstance(step, Call)
        bare = replace(program, steps=(*program.steps[:index], step.bare))
        loop = program.loop_of(index)
        places = {layer: Address(loop, Site(layer, "resid")) for layer in self._layers(step)}
        one = Program((step.bare,), loop - 1, (yield from self._filled(case, program.prelude, 0, "prelude")))
        found = self._run(self._bare, case, one, before, keep=list(places.values()))
        streams = {layer: found.kept[place] for layer, place in places.items()}
        for layer, stream in streams.items():
            self._keep(("stream", case, (*_prefix(program, index), step.stack), layer), stream)
        yield None
        return self._keep(("state", case, _prefix(bare, index + 1)), found.logits), streams

    def _layers(self, call: Call) -> range:
        """The layers of a call but the first, which the state enters."""
        return range(2, len(self.subject.pieces.stack(call.stack)) + 1)

    def _read(self, case: Case, program: Program, at: int, state: Tensor, **how: Any) -> Steps[Any]:
        loop = program.calls_before(program.points[at])
        part = yield from self._filled(case, program.coda_patches(loop), loop, "coda")
        prelude = yield from self._filled(case, program.prelude, 0, "prelude")
        reading = Program((), loop, prelude, (Coda(loop, part),) if part else ())
        return self._run(self.subject.model, case, reading, state, **how)

    def _filled(self, case: Case, patches: tuple[Patch, ...], loop: int, stage: str) -> Steps[tuple[Patch, ...]]:
        """Patches with tensors in the place of the runs that they take values from."""
        filled = []
        for patch in patches:
            giver = patch.giver
            if isinstance(giver, Run):
                theirs = case if giver.input is None else case.at(giver.input)
                site = patch.site if giver.rows is None else replace(patch.site, rows=giver.rows)
                address = Address(loop if giver.loop is None else giver.loop, site, stage)
                value = yield from self.component(theirs, giver.program, address)
                patch = patch.taking(Given(self._give("run", (theirs, giver.program, address), value)))
            filled.append(patch)
        return tuple(filled)

    def _means(self, program: Program, patches: tuple[Patch, ...], where: Address) -> Steps[tuple[Patch, ...]]:
        made = []
        for patch in patches:
            giver = patch.giver
            if isinstance(giver, Run):
                patch = patch.taking(replace(giver, program=(yield from self.named(giver.program))))
            elif isinstance(giver, Given):
                if giver.name != MEAN:
                    raise InputError(f"no tensor is called ${giver.name} here (nearest: ${MEAN})")
                value = yield from self._mean(program.skeleton, replace(where, site=patch.site))
                name = self._give(MEAN, (program.skeleton, replace(where, site=patch.site), value.shape), value)
                patch = patch.taking(Given(name))
            made.append(patch)
        return tuple(made)

    def _mean(self, program: Program, address: Address) -> Steps[Tensor]:
        """What is at an address on average over the examples; over their rows, too, where they are not as long."""
        from loopscope.view.inputs import tokens_of

        cases = [Case(tokens_of(self.subject, each.input)) for each in self.subject.examples]
        found = []
        for case in cases:
            found.append((yield from self.component(case, program, address)))
        if len({each.shape for each in found}) == 1 and whole_rows(self.subject, address):
            return torch.stack(found).mean(0)
        if address.site.component == "pattern":
            raise InputError(f"the examples are not as long as each other, so that {address.site} has no mean")
        return torch.stack([each.mean(-2, keepdim=True) for each in found]).mean(0)

    def _give(self, kind: str, what: object, value: Tensor) -> str:
        """The name of a tensor that is handed over; the same for the same `what`."""
        name = f"{kind}-{hashlib.sha256(str(what).encode()).hexdigest()[:16]}"
        if len(self.given) >= MOST_GIVEN and name not in self.given:
            self.given.pop(next(iter(self.given)))
        self.given[name] = value
        return name

    def _run(self, model: Any, case: Case, program: Program, state: Tensor | None, **how: Any) -> Any:
        names = _given_names(program)
        inputs = {**self.inputs(case), "given": {name: self.given[name] for name in names}}
        if state is not None:
            inputs["others"] = None
        how.setdefault("rows", range(len(case.tokens)))
        tokens: Any = self.tokens(case.tokens)
        return run(model, tokens, program, state=state, **inputs, **how)[program]

    def _keep(self, key: Any, value: Tensor) -> Tensor:
        self.kept.put(key, value, value.numel() * value.element_size())
        return value


DEEP = 4
"""Layers of a call that are computed again rather than kept apart."""

MOST_GIVEN = 2048
"""Tensors that are handed over to patches; the oldest go first."""

_ANY = Site(1, "resid")


def whole_rows(subject: ShownModel, address: Address) -> bool:
    """Whether the mean of a place is taken row by row: where rows are named, or mean the same in every example."""
    return address.site.rows is not None or subject.kind == "graph"


def _prefix(program: Program, at: int) -> tuple[Any, ...]:
    """What decides the state at point number `at`."""
    return program.start, program.prelude, program.steps[:at]


def _takes_start(program: Program) -> bool:
    givers = [patch.giver for patch in program.patches()]
    runs = [each for each in givers if isinstance(each, Run)]
    return any(each.loop == each.program.first or each.program.prelude or _takes_start(each.program) for each in runs)


def _given_names(program: Program) -> set[str]:
    givers = [patch.giver for patch in program.patches()]
    mine = {each.name for each in givers if isinstance(each, Given)}
    return mine.union(*(_given_names(each.program) for each in givers if isinstance(each, Run)))


def names_in(program: Program) -> Mapping[str, list[str]]:
    """The maps, tensors and inputs that a program and its sources name."""
    maps: dict[str, None] = {step.name: None for step in program.steps if isinstance(step, Map)}
    given: dict[str, None] = {}
    inputs: dict[str, None] = {}
    for patch in program.patches():
        giver = patch.giver
        if isinstance(giver, Given):
            given[giver.name] = None
        elif isinstance(giver, Run):
            inputs |= {} if giver.input is None else {giver.input: None}
            inner = names_in(giver.program)
            maps |= dict.fromkeys(inner["maps"])
            given |= dict.fromkeys(inner["given"])
            inputs |= dict.fromkeys(inner["inputs"])
    return {"maps": [*maps], "given": [*given], "inputs": [*inputs]}
