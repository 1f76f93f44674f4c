"""A sweep for the page: one component patched place by place, a few cells at a time.

The cells of one loop share the run before it, of the program and of the source, so each loop is a sweep of its own that
starts from those states: `loopscope.sweep(..., metric="recovered")`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from loopscope.address import PER_HEAD, Address, Site
from loopscope.bounds import shown
from loopscope.errors import InputError, nearest
from loopscope.execute.sweeping import sweep
from loopscope.program import Call, Program, Run, as_program, as_source
from loopscope.view.checking import check_program
from loopscope.view.contract import Answer, Request
from loopscope.view.reads import choose, likeliest
from loopscope.view.runs import Case, Runs, Steps

AT_ONCE = 24
"""Cells that are computed before others have their turn."""

MOST_CELLS = 20_000
FROM = "source"
"""What the source's input is called beside the program's own."""


@dataclass(frozen=True)
class Place:
    """A layer of a loop, and its cells: one, or one for each head."""

    loop: int
    layer: int
    cells: tuple[Address, ...]

    @property
    def text(self) -> str:
        """As the page names it."""
        return f"loop[{self.loop}].layer[{self.layer}]"


def places_of(runs: Runs, program: Program, component: str, by: str, rows: tuple[int, ...] | None) -> list[Place]:
    """All places of a program; InputError for a component that has no heads, where heads are asked for."""
    pieces, heads = runs.subject.pieces, runs.subject.model.heads
    if by == "head" and component not in PER_HEAD:
        raise InputError(f"{shown(component)} has no heads{nearest(component, sorted(PER_HEAD))}")
    chosen: list[tuple[int, ...] | None] = [(head,) for head in range(heads)] if by == "head" else [None]
    found = []
    calls = [step for step in program.steps if isinstance(step, Call)]
    for loop, call in enumerate(calls, start=program.first + 1):
        for layer in range(1, len(pieces.stack(call.stack)) + 1):
            cells = tuple(Address(loop, Site(layer, component, each, rows)) for each in chosen)
            found.append(Place(loop, layer, cells))
    if (count := len(found) * len(chosen)) > MOST_CELLS:
        raise InputError(f"a sweep has at most {MOST_CELLS:,} cells here, not {count:,}")
    return found


def source_of(text: str) -> Run:
    """The run that values are taken from, a program or a source in brackets; InputError for anything else."""
    source = as_source(text) if text.lstrip().startswith(("(", "$", "+", "*", "<")) else Run(as_program(text))
    if not isinstance(source, Run):
        raise InputError(f"a sweep takes its values from a run such as (F6), not from {shown(text)}")
    return source


def read_sweep(runs: Runs, request: Request, case: Case, program: Program) -> Steps[Answer]:
    """The recovered share of every place; yields how many cells are done."""
    read = request.read
    rows = choose(read["rows"], "the rows of a sweep")
    places = places_of(runs, program, read["component"], read["by"], rows)
    source = source_of(read["source"])
    source = replace(source, program=(yield from runs.named(source.program)))
    runs.subject.pieces.check(source.program)
    theirs = case if source.input is None else case.at(source.input)
    check_program(runs.subject, case, program.patch(places[0].cells[0], source))  # in the words of who asks
    own = yield from likeliest(runs, case, program)
    given = yield from likeliest(runs, theirs, source.program)
    if own["answer"] == given["answer"]:
        raise InputError(
            f"'{program}' and the run that values are taken from both answer '{own['text']}': nothing to recover"
        )
    pair = torch.tensor([[given["answer"], own["answer"]]])
    total = sum(len(place.cells) for place in places)
    values: dict[Address, float] = {}
    yield 0, total
    for loop in dict.fromkeys(place.loop for place in places):
        cells = [cell for place in places if place.loop == loop for cell in place.cells]
        mine, state = yield from _rest(runs, case, program, loop)
        taken = loop if source.loop is None else source.loop
        other, theirs_state = yield from _rest(runs, theirs, source.program, taken)
        origin = replace(source, program=other, input=FROM, loop=source.loop)
        inputs = runs.inputs(case)
        inputs["others"] = {**inputs["others"], FROM: (runs.tokens(theirs.tokens), theirs_state)}
        for start in range(0, len(cells), AT_ONCE):
            some = cells[start : start + AT_ONCE]
            found = sweep(
                runs.subject.model, runs.tokens(case.tokens), mine, some, origin, metric="recovered", answers=pair,
                state=state, **inputs,
            )  # fmt: skip
            values |= dict(zip(some, found.values[:, 0, 0].tolist(), strict=True))
            yield len(values), total
    table = np.array([[values[cell] for cell in place.cells] for place in places], dtype=np.float32)
    facts = {
        "addresses": [str(cell) for place in places for cell in place.cells],
        "places": [place.text for place in places],
        "loops": [place.loop for place in places],
        "layers": [place.layer for place in places],
        "heads": runs.subject.model.heads,
        "base": own,
        "source": given,
        "cells": total,
    }
    return Answer("sweep", facts, {"recovered": table if read["by"] == "head" else table[:, 0]})


def _rest(runs: Runs, case: Case, program: Program, loop: int) -> Steps[tuple[Program, Tensor]]:
    """What a program does from a loop on, and the state before it."""
    index = program.index_of(loop)
    state = yield from runs.state(case, program, index)
    coda = tuple(each for each in program.coda if each.loop >= loop)
    return Program(program.steps[index:], loop - 1, program.prelude, coda), state
