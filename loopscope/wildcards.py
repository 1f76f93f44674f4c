"""Addresses written with `*` for the loop, the layer or both.

    loop[*].layer[*].resid      every layer of every call
    loop[3].layer[*].z          every layer of loop 3
    coda[*].layer[1].attn_out   the coda after every call, and at the start
    H[*].layer[2].mlp_out       every call of the stack H

`head[*]` and `row[*]` stay what they are: all heads, all rows, at one address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from loopscope.address import Address
from loopscope.bounds import shown
from loopscope.errors import InputError
from loopscope.pieces import Pieces, pieces_of
from loopscope.program import Call, Program
from loopscope.protocol import LoopedModel

_PARTS = re.compile(r"\s*(?:(?:loop|coda|[A-EGHIK-Z])\[(?P<loop>[^\]]*)\]\.|prelude\.)?(?:layer\[(?P<layer>[^\]]*)\])?")


def addresses_of(
    asked: Address | str | Iterable[Address | str], programs: Sequence[Program], model: LoopedModel
) -> list[Address]:
    """Addresses as values, each once; what is written with `*` is spread over the places that the programs have."""
    found: dict[Address, None] = {}
    for each in [asked] if isinstance(asked, Address | str) else asked:
        parts = _PARTS.match(each) if isinstance(each, str) else None
        wild = {name for name, inside in (parts.groupdict() if parts else {}).items() if (inside or "").strip() == "*"}
        if isinstance(each, Address) or parts is None or not wild:
            found[Address.parse(each) if isinstance(each, str) else each] = None
            continue
        text = each
        for name in sorted(wild, key=parts.start, reverse=True):
            text = text[: parts.start(name)] + "1" + text[parts.end(name) :]
        found.update(dict.fromkeys(_spread(each, Address.parse(text), wild, programs, pieces_of(model))))
    return list(found)


def _spread(text: str, like: Address, wild: set[str], programs: Iterable[Program], pieces: Pieces) -> Iterable[Address]:
    layers: dict[int, int] = {}
    for program in programs:
        for loop, count in _places(like.stage, program, pieces).items():
            if "loop" in wild or loop == like.loop:
                if "layer" in wild and layers.setdefault(loop, count) != count:
                    raise InputError(
                        f"{shown(text)} has {layers[loop]} layers in loop {loop} of one program and {count} of another;"
                        " name a stack instead of the loop"
                    )
                layers[loop] = count
    if not layers:
        raise InputError(f"no program has a place for {shown(text)}")
    for loop, count in layers.items():
        for layer in range(1, count + 1) if "layer" in wild else [like.site.layer]:
            yield replace(like, loop=loop, site=replace(like.site, layer=layer))


def _places(stage: str, program: Program, pieces: Pieces) -> dict[int, int]:
    """The layers at every number that a stage may have in a program."""
    if stage == "prelude":
        return {0: len(pieces.prelude)} if pieces.prelude and not program.given else {}
    first = program.first
    if stage == "coda":
        return dict.fromkeys(range(first, first + program.calls + 1), len(pieces.coda)) if pieces.coda else {}
    stacks = [step.stack for step in program.steps if isinstance(step, Call)]
    if stage == "loop":
        return {loop: len(pieces.stack(stack)) for loop, stack in enumerate(stacks, start=first + 1)}
    return dict.fromkeys(range(1, stacks.count(stage) + 1), len(pieces.stack(stage)))
