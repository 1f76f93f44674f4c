"""Run many programs at once, computing only what can differ.

    result = run(model, tokens, ["F6 F", "F6 J:one F"], maps={"one": J_one})
    result["F6 J:one F"].predictions          [examples, rows]
    result.work                               what it cost, in forward-equivalents

Results equal those of `plain.plain_run` up to float rounding.  `sweeping` patches one program at many addresses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.address import Address, Row
from loopscope.errors import InputError
from loopscope.execute.checks import (
    check_codas,
    check_examples,
    check_functions,
    check_given,
    check_kinds,
    check_names,
    check_numbers,
    chosen_points,
    chosen_rows,
    named_inputs,
    on_device,
    with_loop,
)
from loopscope.execute.collecting import Collected, reduced, uncollected
from loopscope.execute.conformity import ensure
from loopscope.execute.engine import Engine
from loopscope.execute.heap import give_back
from loopscope.execute.memory import Memory, fitted
from loopscope.execute.plan import Plan
from loopscope.execute.prefixes import Inputs
from loopscope.execute.runs import MAIN, Sizes
from loopscope.execute.sight import closed_splits
from loopscope.execute.traces import Result, Trace, Work
from loopscope.execute.unequal import (
    Decoder,
    Group,
    Texts,
    anchors_of,
    check_rows,
    groups,
    listed,
    named_rows,
)
from loopscope.finite import Watch
from loopscope.pieces import pieces_of
from loopscope.program import Program, ProgramLike, as_program
from loopscope.protocol import LoopedModel, TokenMap, device_of
from loopscope.wildcards import addresses_of


def run(
    model: LoopedModel,
    tokens: Texts | None,
    programs: Iterable[ProgramLike] | ProgramLike,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Texts | tuple[Texts, Tensor]] | None = None,
    given: Mapping[str, Tensor] | None = None,
    state: Float[Tensor, "examples T d"] | None = None,
    mask: Bool[Tensor, "examples T"] | None = None,
    tokenizer: Decoder | None = None,
    read: str | Iterable[str] = "last",
    rows: Sequence[Row | str] = (-1,),
    keep: Address | str | Iterable[Address | str] = (),
    chunk: int | None = None,
    stack: int | None = None,
    memory: int | None = None,
    tell: Callable[[Memory], None] | None = None,
    gradients: bool = False,
) -> Result:
    """Run programs on a batch and read them out.

    - `tokens` feed programs that start from tokens, `state` those that start from a given h_t.  A model that looks at
      its input in every call needs both for the latter.
    - Tokens may have unequal lengths: a list for every example, or padded on the left with `mask` False there.  Then
      rows are counted from the end, or named by what stands there; `tokenizer` finds texts.  Every example gets what it
      would get alone.
    - `others` are aligned inputs (tokens, states or both, one for each example) that patches may name with `@`; `maps`
      and `given` are the maps J and tensors by name.
    - `read` is "last" (the end of each program), "calls" (after every call), "all" (also the start, and around each J),
      or names of points such as "h6" or "h6 J:one"; `rows` are the rows read.
    - `keep` are addresses whose activations are returned, [examples, (heads,) rows, ...], for every program that has
      that loop; `*` stands for every loop or layer, as in "loop[*].layer[*].resid".
    - Tensors are moved to the model's device; results stay there.
    - `chunk` (examples at a time) and `stack` (patched runs at a time) are chosen from memory unless given; with
      `memory`, so that the run holds at most so many bytes beside the model and its inputs.  `tell` is called with what
      it takes at its peak before it starts (`Memory`; once for every length of unequal texts).
    - `gradients`: logits and kept activations carry gradients to given tensors, states, maps and weights that require
      them; everything on the way is then held in memory.  A tensor of zeros that is added at a place has the gradient
      with respect to that place.

    Raises InputError before anything is computed when a name, place or shape does not fit, or the model does not keep
    to the protocol (`conformity`); NotFiniteError when numbers leave the range on the way.
    """
    asked = list(dict.fromkeys(map(as_program, [programs] if isinstance(programs, ProgramLike) else programs)))
    if gradients and memory is not None:
        raise InputError("with gradients everything on the way is held: leave out memory")
    settings = Settings(read, chunk, stack, memory=memory, tell=tell)
    with torch.set_grad_enabled(gradients):
        return carry_out(
            model, tokens, asked, settings, maps=maps, others=others, given=given, state=state,
            mask=mask, tokenizer=tokenizer, rows=rows, keep=addresses_of(keep, asked, model),
        )  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How programs are read, and how much is computed at a time; None: chosen from memory.

    `reduce` makes of logits [examples, rows, classes], those of the first program and the numbers of the examples
    something smaller, [examples, rows], which then stands in the logits' place, with a last axis of one.  It may be
    handed the examples of several programs, one behind the other.  `tell` hears
    what the run takes at its peak before it starts, which is not more than `memory` bytes where these are given.
    """

    read: str | Iterable[str] = "last"
    chunk: int | None = None
    stack: int | None = None
    reduce: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    numbers: Int[Tensor, " examples"] | None = None
    memory: int | None = None
    tell: Callable[[Memory], None] | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and self.memory < 1:
            raise InputError(f"memory is given in bytes, 1 or more, not {self.memory}")


def carry_out(
    model: LoopedModel,
    tokens: Texts | None,
    asked: list[Program],
    settings: Settings,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Texts | tuple[Texts, Tensor]] | None = None,
    given: Mapping[str, Tensor] | None = None,
    state: Float[Tensor, "examples T d"] | None = None,
    mask: Bool[Tensor, "examples T"] | None = None,
    tokenizer: Decoder | None = None,
    rows: Sequence[Row | str] = (-1,),
    keep: Iterable[Address] = (),
) -> Result:
    """`run` for programs, addresses and settings as values."""
    addresses, wanted = list(keep), named_rows(rows)
    named: dict[str, Texts] = {} if tokens is None else {MAIN: listed("tokens", tokens, mask)}
    states: dict[str, Tensor] = {} if state is None else {MAIN: state}
    for name, value in (others or {}).items():
        if name == MAIN:
            raise InputError(f"the input name {MAIN!r} is taken by the programs' own input")
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Tensor) and (each.is_floating_point() or not named):
                states[name] = each
            else:
                named[name] = listed(name, each)
    anchors = anchors_of(asked, addresses, wanted)
    if not anchors and all(isinstance(each, Tensor) for each in named.values()):
        tensors = {name: each for name, each in named.items() if isinstance(each, Tensor)}
        numbers = [row for row in wanted if isinstance(row, int)]
        return _run(model, tensors, states, asked, dict(maps or {}), given or {}, numbers, addresses, settings)
    if MAIN not in named:
        raise InputError("rows are looked up in tokens, and inputs of unequal length are tokens, but none were given")
    check_examples({**named, **states})
    check_rows(named, asked, addresses, wanted)
    found: list[tuple[Group, Result]] = []
    for group in groups(named, anchors, tokenizer):
        at = group.examples.tolist()
        tensors = {name: torch.stack([torch.as_tensor(each[i]) for i in at]) for name, each in named.items()}
        some = {name: each[group.examples.to(each.device)] for name, each in states.items()}
        mine = group.tensors(given or {}, asked, len(named[MAIN]))
        result = _run(
            model, tensors, some, [group.program(each) for each in asked], dict(maps or {}), mine,
            group.rows(wanted, MAIN), [group.address(each) for each in addresses],
            replace(settings, numbers=group.examples),
        )  # fmt: skip
        found.append((group, result))
    return _joined(found, asked, wanted, addresses)


def _joined(
    found: list[tuple[Group, Result]], asked: list[Program], rows: tuple[Row, ...], keep: list[Address]
) -> Result:
    """The results of all groups, in the order of the examples."""

    order = torch.cat([group.examples for group, _ in found]).argsort()

    def together(pieces: list[Tensor]) -> Tensor:
        whole = torch.cat(pieces)
        return whole[order.to(whole.device)]

    traces = {}
    for program in asked:
        mine = [(group, result[group.program(program)]) for group, result in found]
        first, trace = mine[0]
        logits = {point: together([each.logits_at[point] for _, each in mine]) for point in trace.logits_at}
        kept = {
            address: together([each.kept[group.address(address)] for group, each in mine])
            for address in keep
            if first.address(address) in trace.kept
        }
        traces[program] = Trace(program, rows, logits, kept)
    works = [result.work for _, result in found]
    return Result(
        traces, Work(sum(w.calls for w in works), sum(w.rows for w in works), sum(w.plain_rows for w in works))
    )


@uncollected()
def _run(
    model: LoopedModel,
    tokens: Mapping[str, Tensor],
    states: Mapping[str, Tensor],
    asked: list[Program],
    maps: dict[str, TokenMap],
    given: Mapping[str, Tensor],
    rows: Sequence[int],
    addresses: list[Address],
    settings: Settings,
) -> Result:
    """Run programs on inputs that have one length each, with rows as numbers."""
    device = device_of(model)
    read, chunk, stack = settings.read, settings.chunk, settings.stack
    given = {name: on_device(name, t, device) for name, t in given.items()}
    pieces = pieces_of(model)
    named = named_inputs(
        pieces,
        {name: on_device("tokens" if name == MAIN else name, t, device) for name, t in tokens.items()},
        {name: on_device("state" if name == MAIN else name, t, device) for name, t in states.items()},
    )
    without = MAIN not in named[False]
    examples, length = named[without][MAIN].shape[:2]
    lengths = {name: t.shape[1] for group in named.values() for name, t in group.items()}
    sizes = Sizes.of(pieces, length, lengths)
    read_rows = chosen_rows(rows, length)
    reads = {program: chosen_points(program, read) for program in asked}
    kept = {program: with_loop(program, addresses) for program in asked}
    used = check_names(asked, maps, given, named, pieces.needs_tokens)
    check_numbers(asked, addresses, chunk, stack)
    for program in asked:
        check_codas(program, reads[program], kept[program])
    plan = Plan(asked, sizes, reads, read_rows, kept)
    with torch.no_grad():
        row = check_kinds(pieces, named, {name: maps[name] for name in used}, given)
        check_given(plan, given, examples, row)
        check_functions(plan, maps, row)
    ensure(model, named[False].get(MAIN), named[True].get(MAIN))
    held, bundles = fitted(
        plan, pieces, row, examples, chunk, stack, rows=len(read_rows),
        reduced=settings.reduce is not None, memory=settings.memory,
    )  # fmt: skip
    device = named[without][MAIN].device  # of a model that is no torch module, too
    chunk = held.chunk
    if settings.tell is not None:
        settings.tell(held)
    numbers = torch.arange(examples, device=device) if settings.numbers is None else settings.numbers.to(device)
    order = torch.arange(examples, device=device)
    if not without:  # examples that share tokens side by side, so that they fall into one chunk
        order = torch.unique(named[False][MAIN], dim=0, return_inverse=True)[1].argsort(stable=True)
    watch = Watch()
    answers, kept_of = Collected(examples, watch), Collected(examples, watch)
    total = 0

    closed = {rows: closed_splits(list(pieces.layers), rows) for rows in set(lengths.values())}
    for number, piece in enumerate(order.split(chunk)):
        if number:
            gc.collect(0)  # what models and functions of others have left
        inputs = {
            (kind, rows): Inputs({n: t[piece] for n, t in group.items() if lengths[n] == rows}, closed[rows])
            for kind, group in named.items()
            for rows in {lengths[name] for name in group}
        }
        engine = Engine(pieces, plan, bundles, inputs, maps, given, piece, examples, watch)
        engine.execute()
        total += engine.rows
        said: dict[tuple[Program, str], Tensor] = {}
        for program in asked:
            for point in reads[program]:
                base, patched = plan.readings[program, point]
                said[program, point] = engine.logits(base, patched, read_rows)
            for address in kept[program]:
                base, patched = plan.places[program, address]
                site = plan.resolve(address.site, base)
                value = engine.component(base, patched, MAIN, site.layer, site.part, site.numbers)
                value = value if site.heads is None else value[:, list(site.heads)]
                kept_of.put(piece, {(program, address): value})
        if settings.reduce is not None:
            said = reduced(said, settings.reduce, numbers[piece], held.at_once)
        answers.put(piece, said)
        del engine, said
        if device.type == "cpu":
            give_back(held.peak)
    watch.check("the run", answers.dtype)
    traces = {
        program: Trace(
            program,
            tuple(rows),
            {point: answers[program, point] for point in reads[program]},
            {address: kept_of[program, address] for address in kept[program]},
        )
        for program in asked
    }
    longest = max(map(sizes.layers_of, asked))
    work = Work(plan.calls, total, max(1, examples * length * longest))
    bundles.forget()
    plan.forget()
    return Result(traces, work)


def check_programs(
    programs: Iterable[ProgramLike], sizes: Sizes, *, read: str = "last", rows: Sequence[int] = (-1,)
) -> Plan:
    """The plan for programs on a model of this size, all maps, inputs and tensors taken as given; nothing is run.

    Raises InputError as `run` would.
    """
    asked = list(dict.fromkeys(map(as_program, programs)))
    reads = {program: chosen_points(program, read) for program in asked}
    for program in asked:
        check_codas(program, reads[program], ())
    return Plan(asked, sizes, reads, chosen_rows(rows, sizes.rows), {program: [] for program in asked})
