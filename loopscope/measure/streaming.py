"""Examples in pieces that fit a memory budget, and what a program's states and streams are there.

Every instrument reads its examples through this module: a few at a time, all of one length, with the inputs that
`execute.run` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypedDict

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from loopscope.address import Address, Row, Site
from loopscope.errors import InputError, nearest
from loopscope.execute.conformity import ensure, remember
from loopscope.execute.executor import run
from loopscope.execute.tables import row_names
from loopscope.execute.unequal import Decoder, Texts, listed, named_rows
from loopscope.models.adapter import program_of, readings_of
from loopscope.pieces import pieces_of
from loopscope.program import Call, Program, ProgramLike, as_program
from loopscope.protocol import LoopedModel, TokenMap, device_of

MEMORY = 512 * 2**20
"""Bytes of recorded numbers that an instrument holds at a time, where nothing else is asked for."""

NUMBER = 4
"""Bytes of a number in fp32."""

STATE = "state"
"""The place of the state after a call; loop 0 is the state before the first."""

Layers: TypeAlias = Iterable[int] | str
"""Layers from 1, or "all"."""

Rows: TypeAlias = Sequence[Row | str] | str
"""Rows as `run` takes them, or "all"."""


class Inputs(TypedDict, total=False):
    """What a program needs beside its tokens, as `execute.run` takes it."""

    maps: Mapping[str, TokenMap] | None
    others: Mapping[str, Texts | tuple[Texts, Tensor]] | None
    given: Mapping[str, Tensor] | None
    state: Float[Tensor, "examples T s"] | None
    mask: Bool[Tensor, "examples T"] | None
    tokenizer: Decoder | None


INPUTS = tuple(Inputs.__annotations__)
"""The names of what a program needs."""


class Part(TypedDict):
    """Some examples, as keywords of `execute.run`, and which they are."""

    tokens: Tensor | None
    inputs: Inputs
    at: list[int]


class Examples:
    """A model, a program and the examples it is run on."""

    def __init__(
        self, model: LoopedModel, tokens: Texts | None, program: ProgramLike | None, rows: Rows, inputs: Inputs
    ) -> None:
        for name in inputs:
            if name not in INPUTS:
                near = nearest(name, (*INPUTS, "layers", "rows", "memory", "clusters", "draws", "answers", "metric"))
                raise InputError(f"there is no argument {name!r}; inputs are {', '.join(INPUTS)}{near}")
        self.model, self.pieces = model, pieces_of(model)
        self.program = program_given(model, program)
        self.pieces.check(self.program)
        self.texts = None if tokens is None else listed("tokens", tokens, inputs.get("mask"))
        self.inputs = inputs
        state = inputs.get("state")
        several = state if self.texts is None else self.texts
        if several is None:
            raise InputError(f"'{self.program}' needs tokens or a state, and neither was given")
        if isinstance(self.texts, Tensor) and (self.texts.dim() != 2 or not self.texts.shape[1]):
            raise InputError(f"tokens must be [examples, rows], not {list(self.texts.shape)} (nearest: tokens[:1])")
        self.lengths = [len(text) for text in several]
        if not self.lengths:
            raise InputError("there are no examples")
        self.rows = self._rows(rows)
        first = None if self.texts is None else on(model, torch.as_tensor(self.texts[0])[None])
        ensure(model, first, None if state is None else on(model, state[:1]))
        self.bare = StatesRead(model)
        remember(self.bare)

    def __len__(self) -> int:
        return len(self.lengths)

    def _rows(self, rows: Rows) -> tuple[Row, ...]:
        if rows != "all":
            if isinstance(rows, str):
                raise InputError(f"rows are a list such as [-1], or 'all', not {rows!r} (nearest: [{rows!r}])")
            return named_rows(rows)
        if len(set(self.lengths)) > 1:
            few, many = min(self.lengths), max(self.lengths)
            raise InputError(
                f"'all' rows differ between examples of {few} to {many} tokens; count from the end (nearest: [-1])"
            )
        return tuple(range(self.lengths[0]))

    @property
    def row_names(self) -> list[Any]:
        """The rows as a column has them: numbers, or texts where any is named by what stands there."""
        return row_names(self.rows)

    def parts(self, each: int, memory: int | None = None) -> Iterator[Part]:
        """The examples, all of a part of one length, as many as fit if each takes so many bytes."""
        size = max(1, (MEMORY if memory is None else memory) // max(1, each))
        alike: dict[int, list[int]] = {}
        for number, length in enumerate(self.lengths):
            alike.setdefault(length, []).append(number)
        for numbers in alike.values():
            for start in range(0, len(numbers), size):
                yield self._part(numbers[start : start + size])

    def _part(self, at: list[int]) -> Part:
        def some(values: Any) -> Any:
            if isinstance(values, tuple):
                return tuple(map(some, values))
            tensor = isinstance(values, Tensor)
            return values[torch.tensor(at, device=values.device)] if tensor else [values[i] for i in at]

        inputs: Inputs = {**self.inputs, "mask": None}
        if self.inputs.get("others"):
            inputs["others"] = {name: some(each) for name, each in (self.inputs["others"] or {}).items()}
        if self.inputs.get("given"):
            inputs["given"] = {
                name: some(each) if each.dim() and len(each) == len(self) > 1 else each
                for name, each in (self.inputs["given"] or {}).items()
            }
        if (state := self.inputs.get("state")) is not None:
            inputs["state"] = some(state)
        tokens = None
        if self.texts is not None:
            mine = some(self.texts)
            tokens = mine if isinstance(mine, Tensor) else torch.tensor(mine)
        return {"tokens": tokens, "inputs": inputs, "at": at}


def program_given(model: LoopedModel, program: ProgramLike | None) -> Program:
    """The program, or the model's own where none is given; InputError for a model that has none."""
    if program is not None:
        return as_program(program)
    if not hasattr(model, "loops"):
        raise InputError("this model has no number of loops of its own; give a program (nearest: F6)")
    return program_of(model)


class StatesRead(nn.Module):
    """The same model with its states as readouts: no coda, and nothing done to them."""

    coda: tuple[()] = ()

    def __init__(self, model: LoopedModel) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self._modules.get("model") or self.__dict__["model"]
            return getattr(inner, name)

    def leave(self, h: Tensor) -> Tensor:
        """The state as it is."""
        return h

    def read(self, h: Tensor) -> Tensor:
        """The state as it is."""
        return h


def after_calls(program: Program) -> tuple[str, ...]:
    """The points at the start and after every call."""
    ends = [point for point, step in zip(program.points[1:], program.steps, strict=True) if isinstance(step, Call)]
    return (program.points[0], *ends)


def loop_ends(examples: Examples) -> tuple[str, ...]:
    """The points after every loop of a program.

    Of a model's own program, which may have maps and patches, these are its `readings`.  Of any other they are the ends
    of calls; where there are several stacks, of those of the last: what is read does not change in between.
    """
    model, program = examples.model, examples.program
    steps = tuple(Call(stack=step.stack) for step in program.steps if isinstance(step, Call))
    if hasattr(model, "readings") and steps and not program.first:
        loops = len(steps) // program_of(model, 1).calls
        if loops and program_of(model, loops).steps == steps:
            return readings_of(model, program, loops)
    last = list(examples.pieces.stacks)[-1]
    ends = [
        point
        for point, step in zip(program.points[1:], program.steps, strict=True)
        if isinstance(step, Call) and step.stack == last
    ]
    if not ends:
        raise InputError(f"'{program}' calls {last} nowhere, so there is no loop to stop after")
    return tuple(ends)


@torch.no_grad()
def states_at(
    examples: Examples,
    part: Part,
    points: Iterable[str],
    keep: Iterable[Address] = (),
    rows: Sequence[Row] | None = None,
    program: Program | None = None,
) -> tuple[dict[str, Float[Tensor, "B R s"]], Mapping[Address, Tensor]]:
    """The states of some examples at points of the program, and what is kept at addresses; errors as `run`."""
    asked = replace(program or examples.program, coda=())
    trace = run(
        examples.bare, part["tokens"], asked, read=tuple(points), keep=list(keep),
        rows=examples.rows if rows is None else rows, **part["inputs"],
    )[asked]  # fmt: skip
    return dict(trace.logits_at), trace.kept


def logits_at(
    examples: Examples,
    part: Part,
    states: Mapping[str, Float[Tensor, "B R s"]],
    bare: bool = False,
    program: Program | None = None,
) -> Iterator[tuple[str, Float[Tensor, "B R classes"]]]:
    """Logits at the points of these states, one after the other, in fp32.

    Through the coda if there is one, which looks at all rows and is run anew; or, `bare`, without it.
    """
    if bare or not examples.pieces.coda:
        for point, state in states.items():
            with torch.no_grad():  # and not while the generator waits
                logits = examples.pieces.read(examples.pieces.leave(state)).float()
            yield point, logits
        return
    asked = program or examples.program
    trace = run(
        examples.model, part["tokens"], asked, read=tuple(states), rows=examples.rows, **part["inputs"]
    )[asked]  # fmt: skip
    for point in states:
        yield point, trace.logits_at[point].float()


def logits_size(examples: Examples, points: int) -> int:
    """Bytes of the logits of one example that are held at a time, where so many points are read."""
    classes = getattr(examples.model, "vocabulary", examples.pieces.width)
    return NUMBER * len(examples.rows) * int(classes) * (points if examples.pieces.coda else 2)


def stream_places(examples: Examples, layers: Iterable[int] | str) -> dict[str, dict[int, Address]]:
    """The addresses of what enters these layers, by place and call: {"layer[1].resid": {1: ..., 2: ...}}.

    `layers` counts from 1; "all" are all.  With several stacks a place has the stack's name before it, and the calls of
    that stack alone.  InputError for a layer that no stack has.
    """
    stacks = examples.pieces.stacks
    deepest = max(map(len, stacks.values()))
    if layers != "all" and (isinstance(layers, str) or not isinstance(layers, Iterable)):
        raise InputError(f"layers are a list such as [1, 2], or 'all', not {layers!r}")
    wanted = range(1, deepest + 1) if isinstance(layers, str) else [*dict.fromkeys(layers)]
    for layer in wanted:
        if not 1 <= layer <= deepest:
            near = min(max(1, layer), deepest)
            raise InputError(f"layer {layer} does not exist: there are 1..{deepest} (nearest: {near})")
    found: dict[str, dict[int, Address]] = {}
    program = examples.program
    for index, step in enumerate(program.steps):
        if not isinstance(step, Call):
            continue
        for layer in wanted:
            if layer <= len(examples.pieces.stack(step.stack)):
                site = Site(layer, "resid", None, tuple(examples.rows))
                name = f"layer[{layer}].resid" if len(stacks) == 1 else f"{step.stack}.layer[{layer}].resid"
                loop = program.loop_of(index)
                found.setdefault(name, {})[loop] = Address(loop, site)
    return found


def on(model: LoopedModel, tensor: Tensor) -> Tensor:
    """A tensor where the model is."""
    device = device_of(model)
    return tensor if device is None else tensor.to(device)


# ---- tables ---------------------------------------------------------------------------------------------------------


def about(examples: Examples) -> dict[str, Any]:
    """What a table says of a program and its examples."""
    return {"program": str(examples.program), "examples": len(examples)}


def columns_of(examples: Examples, keys: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """The columns that say where: every key for every row."""
    rows = len(examples.rows)
    return {
        "place": np.repeat(np.array([place for place, _ in keys], dtype=object), rows),
        "row": np.tile(np.array(examples.row_names), len(keys)),
        "loop": np.repeat([loop for _, loop in keys], rows),
    }


def together(
    cells: Sequence[Sequence[tuple[list[int], Float[Tensor, "R *more B"]]]], examples: Examples, *more: int
) -> Float[np.ndarray, "examples keys R *more"]:
    """Values of parts of the examples, put together; NaN where there are none."""
    whole = np.full((len(examples), len(cells), len(examples.rows), *more), np.nan)
    for key, parts in enumerate(cells):
        for at, value in parts:
            whole[at, key] = np.moveaxis(value.double().cpu().numpy(), -1, 0)
    return whole
