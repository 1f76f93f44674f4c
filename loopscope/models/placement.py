"""Where a steering map stands in a looped language model: programs for the placements of the paper.

    between("step", loops=4)      F J:step F J:step F J:step F               before loops 2..4: letter walk; Qwen with 8
    after_each("flip", loops=4)   F J:flip F J:flip F J:flip F J:flip        after every loop: antonyms

What ends a loop (`boundary`) is part of F: after Ouro's norm, a map sees the normed state.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from loopscope.program import Call, F, J, Map, Program, Step


def between(name: str, loops: int) -> Program:
    """`loops` calls with the map of this name before each but the first."""
    program = F**loops
    return placed(name, program, program.points[1:-1])


def after_each(name: str, loops: int) -> Program:
    """`loops` calls with the map of this name after each, the last included, so that the readout sees it."""
    program = F**loops
    return placed(name, program, program.points[1:])


def placed(name: str, program: Program, points: Collection[str]) -> Program:
    """A program with the map of this name at these of its points, such as a model's own `readings`."""
    steps: list[Step] = []
    for point, step in zip(program.points[1:], program.steps, strict=True):
        steps += [step, J(name)] if point in points else [step]
    return Program(tuple(steps), program.start)


def names_in(program: Program) -> list[str]:
    """The names of the maps in a program, each once."""
    return list(dict.fromkeys(step.name for step in program.steps if isinstance(step, Map)))


def without_maps(program: Program) -> Program:
    """The same calls without maps: what a steered program is compared with."""
    return replace(program, steps=tuple(step for step in program.steps if isinstance(step, Call)))
