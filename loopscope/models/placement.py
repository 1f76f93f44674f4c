"""Where a steering map stands in a looped language model: programs for the placements of the paper.

    between("step", loops=4)      F J:step F J:step F J:step F               before loops 2..4: letter walk; Qwen with 8
    after_each("flip", loops=4)   F J:flip F J:flip F J:flip F J:flip        after every loop: antonyms

What ends a loop (`boundary`) is part of F: after Ouro's norm, a map sees the normed state.
"""

from __future__ import annotations

from loopscope.program import F, J, Program


def between(name: str, loops: int) -> Program:
    """`loops` calls with the map of this name before each but the first."""
    first, *others = (F**loops).steps
    return Program((first, *(step for call in others for step in (J(name), call))))


def after_each(name: str, loops: int) -> Program:
    """`loops` calls with the map of this name after each, the last included, so that the readout sees it."""
    return Program(tuple(step for call in (F**loops).steps for step in (call, J(name))))
