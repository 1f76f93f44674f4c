"""The places of a sweep: one component in every call and layer of a program, or in those that are chosen.

places(model, "F4", "row[-1].z", 12)                                 every layer of every call
places(model, "(L3 H)2", "row[-1].resid", 12, loops=["L[2,1]"])     of one call of a model with several stacks
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from loopscope.address import ENTER, Address, Site
from loopscope.bounds import shown
from loopscope.errors import InputError
from loopscope.pieces import LayerPieces, Pieces, pieces_of
from loopscope.program import Call, Program, ProgramLike, as_program
from loopscope.protocol import LoopedModel


def site_named(text: str) -> Site:
    """What a sweep patches, from an address without loop and layer: row[-1].z; InputError for one that has them."""
    if re.match(r"\s*(loop|layer|prelude|coda|[A-EGHIK-Z])\b", text):
        raise InputError(f"{shown(text)} says where; what is swept is as head[3].row[-1].z, loops and layers are apart")
    return Site.parse(text if text.strip().endswith(ENTER) else f"layer[1].{text}")


def places(
    model: LoopedModel,
    program: ProgramLike,
    site: Site | str,
    length: int | None,
    *,
    loops: Iterable[int | str] | None = None,
    layers: Iterable[int] | None = None,
    each_head: bool = False,
) -> tuple[Address, ...]:
    """The addresses of a sweep: the component, heads and rows of `site` in every loop and layer, or in those given.

    `loops` are numbers of calls, or parts of a run as addresses name them: "loop[3]", "L[2,1]", "prelude", and "coda"
    for the reading of the program's end.  Calls of a model with several stacks are named by stack.  A part that has not
    a layer of `layers` is left out there.  `each_head` takes the site's heads (default: all) one at a time.

    `enter` is in the first layer alone.  `length` is the number of rows; None where texts are of several lengths or
    rows are named by what stands there, so that rows are not looked at.  InputError for a place that does not exist.
    """
    pieces, program = pieces_of(model), as_program(program)
    site = site_named(site) if isinstance(site, str) else site
    heads = [(head,) for head in site.heads or range(model.heads)] if each_head else [site.heads]
    first = program.first + 1
    every = range(first, first + program.calls)
    parts = [_part(pieces, program, each) for each in dict.fromkeys(every if loops is None else loops)]
    if not parts:
        raise InputError(f"'{program}' calls F nowhere, so there is no place to patch")
    deepest = 1 if site.component == ENTER else max(len(inside) for _, inside in parts)
    chosen = list(dict.fromkeys(range(1, deepest + 1) if layers is None else layers))
    found: list[Address] = []
    for where, inside in parts:
        for layer in chosen:
            for some in heads:
                place = replace(site, layer=layer, heads=some)
                if 1 <= layer <= deepest and layer > len(inside):
                    continue
                checked = replace(place, rows=None) if length is None else place
                checked.resolve(layers=len(inside), heads=model.heads, rows=length or 1)
                found.append(replace(where, site=place))
    return tuple(dict.fromkeys(found))


def _part(pieces: Pieces, program: Program, loop: int | str) -> tuple[Address, Sequence[LayerPieces]]:
    """An address in a part of a run, and the layers of that part; InputError where there is none."""
    site = Site(1, "resid")
    end = program.first + program.calls
    if loop in ("prelude", "coda"):
        where = Address(end if loop == "coda" else 0, site, str(loop))
    else:
        where = Address(loop, site) if isinstance(loop, int) else Address.parse(f"{loop}.{site}")
    if where.stage in ("prelude", "coda"):
        inside = pieces.prelude if where.stage == "prelude" else pieces.coda
        if not inside:
            raise InputError(f"this model has no {where.stage} (its loops: {program.first + 1} to {end})")
        if where.stage == "coda" and where.loop != end:
            raise InputError(f"'{program}' is read through coda[{end}], not coda[{where.loop}] (nearest: coda)")
        return where, inside
    call = program.steps[program.index_of(program.loop_at(where))]
    assert isinstance(call, Call)
    if where.stage == "loop" and len(pieces.stacks) > 1:
        where = _by_stack(program, where.loop, site)
    return where, pieces.stack(call.stack)


def _by_stack(program: Program, loop: int, site: Site) -> Address:
    """An address in a call, by its stack: the number of its series and in it, or its own where series are of one."""
    calls = [step.stack for step in program.steps if isinstance(step, Call)]
    series = [list(run) for _, run in groupby(enumerate(calls, start=program.first + 1), lambda each: each[1])]
    stack = calls[loop - program.first - 1]
    mine = [[number for number, _ in run] for run in series if run[0][1] == stack]
    at = next(number for number, run in enumerate(mine) if loop in run)
    inner = None if max(map(len, mine)) == 1 else mine[at].index(loop) + 1
    return Address(at + 1, site, stack, inner)
