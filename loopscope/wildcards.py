"""Addresses written with `*` for the loop, the layer or both.

    loop[*].layer[*].resid      every layer of every call
    loop[3].layer[*].z          every layer of loop 3
    coda[*].layer[1].attn_out   the coda after every call, and at the start
    H[*].layer[2].mlp_out       every call of the stack H
    L[2,*].layer[1].z           every call of L in its second series, L[*,*] in every series

`head[*]` and `row[*]` stay what they are: all heads, all rows, at one address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from loopscope.address import Address
from loopscope.bounds import shown
from loopscope.errors import InputError
from loopscope.pieces import Pieces, pieces_of
from loopscope.program import Call, Program
from loopscope.protocol import LoopedModel

_PARTS = re.compile(r"\s*(?:(?:loop|coda|[A-EGHIK-Z])\[(?P<loop>[^\]]*)\]\.|prelude\.)?(?:layer\[(?P<layer>[^\]]*)\])?")
_WILD = re.compile(r"\*(?=\s*(?:,|$))")

Numbers = tuple[int, int | None]
"""Which call an address names: a loop, or the number of a series and of a call in it."""


def addresses_of(
    asked: Address | str | Iterable[Address | str],
    programs: Sequence[Program],
    model: LoopedModel,
    *,
    patched: bool = False,
) -> list[Address]:
    """Addresses as values, each once; what is written with `*` is spread over the places that the programs have.

    Of places that are `patched`, `coda[*]` is the coda that the end of a program is read through.
    """
    found: dict[Address, None] = {}
    for each in [asked] if isinstance(asked, Address | str) else asked:
        parts = _PARTS.match(each) if isinstance(each, str) else None
        wild = {name: _wild(inside) for name, inside in (parts.groupdict() if parts else {}).items()}
        if isinstance(each, Address) or parts is None or not any(map(any, wild.values())):
            found[Address.parse(each) if isinstance(each, str) else each] = None
            continue
        text = each
        for name in sorted((name for name in wild if parts[name]), key=parts.start, reverse=True):
            text = text[: parts.start(name)] + _WILD.sub("1", parts[name]) + text[parts.end(name) :]
        like = Address.parse(text)
        found.update(dict.fromkeys(_spread(each, like, wild, programs, pieces_of(model), patched)))
    return list(found)


def _wild(inside: str | None) -> tuple[bool, ...]:
    """Which of the numbers in a bracket are `*`."""
    return tuple(each.strip() == "*" for each in (inside or "").split(","))


def _spread(
    text: str,
    like: Address,
    wild: dict[str, tuple[bool, ...]],
    programs: Iterable[Program],
    pieces: Pieces,
    patched: bool,
) -> Iterable[Address]:
    layers: dict[Numbers, int] = {}
    for program in programs:
        for numbers, count in _places(like, program, pieces, patched).items():
            named = zip(wild["loop"], numbers, (like.loop, like.inner), strict=False)
            if all(free or mine == asked for free, mine, asked in named):
                if any(wild["layer"]) and layers.setdefault(numbers, count) != count:
                    raise InputError(
                        f"{shown(text)} has {layers[numbers]} layers in loop {numbers[0]} of one program and {count} of"
                        " another; name a stack instead of the loop"
                    )
                layers[numbers] = count
    if not layers:
        raise InputError(f"no program has a place for {shown(text)}")
    for (loop, inner), count in layers.items():
        for layer in range(1, count + 1) if any(wild["layer"]) else [like.site.layer]:
            yield replace(like, loop=loop, inner=inner, site=replace(like.site, layer=layer))


def _places(like: Address, program: Program, pieces: Pieces, patched: bool) -> dict[Numbers, int]:
    """The layers at all numbers that addresses like this one may have in a program."""
    if like.stage == "prelude":
        return {(0, None): len(pieces.prelude)} if pieces.prelude and not program.given else {}
    first, last = program.first, program.first + program.calls
    if like.stage == "coda":
        loops = range(last if patched else first, last + 1)
        return {(loop, None): len(pieces.coda) for loop in loops} if pieces.coda else {}
    stacks = [step.stack for step in program.steps if isinstance(step, Call)]
    if like.stage == "loop":
        return {(loop, None): len(pieces.stack(stack)) for loop, stack in enumerate(stacks, start=first + 1)}
    count = len(pieces.stack(like.stage))
    if like.inner is None:
        return {(number, None): count for number in range(1, stacks.count(like.stage) + 1)}
    series = [len(list(run)) for stack, run in groupby(stacks) if stack == like.stage]
    return {(at, inner): count for at, calls in enumerate(series, start=1) for inner in range(1, calls + 1)}
