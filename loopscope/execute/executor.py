"""Run many programs at once, computing only what can differ.

    result = run(model, tokens, ["F6 F", "F6 J:one F"], maps={"one": J_one})
    result["F6 J:one F"].predictions          [examples, rows]
    result.work                               what it cost, in forward-equivalents

`sweep` patches one program at many addresses.  Results equal those of `plain.plain_run` up to float rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.address import Address
from loopscope.errors import InputError, nearest
from loopscope.execute.checks import (
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
from loopscope.execute.conformity import ensure
from loopscope.execute.engine import Engine
from loopscope.execute.memory import sizes_in_memory
from loopscope.execute.plan import MAIN, Plan, Sizes
from loopscope.execute.prefixes import Inputs
from loopscope.finite import Watch
from loopscope.program import Call, Given, Map, Program, Run, Source, as_program
from loopscope.protocol import LoopedModel, TokenMap, device_of

ProgramLike = Program | Call | Map | str


@dataclass(frozen=True)
class Work:
    """What a run cost.

    `rows` counts (example, row, layer) triples for which anything was computed; `plain_rows` is that count for one
    plain run of the longest program; `calls` counts distinct calls of F, base or patched.
    """

    calls: int
    rows: int
    plain_rows: int

    @property
    def forwards(self) -> float:
        """Cost in forward-equivalents."""
        return self.rows / self.plain_rows


@dataclass(frozen=True)
class Trace:
    """What one program showed: logits at each point that was read, and the activations that were kept."""

    program: Program
    rows: tuple[int, ...]
    logits_at: Mapping[str, Float[Tensor, "examples rows classes"]]
    kept: Mapping[Address, Tensor]

    @property
    def logits(self) -> Float[Tensor, "examples rows classes"]:
        """Logits at the last point that was read."""
        return self.logits_at[list(self.logits_at)[-1]]

    @property
    def predictions(self) -> Int[Tensor, "examples rows"]:
        """The most likely class at the last point that was read."""
        return self.logits.argmax(-1)


class MissingError(InputError, KeyError):
    """A program that was not run; also a KeyError, so that `in` and `get` work as on any mapping."""

    __str__ = Exception.__str__  # KeyError would put the message in quotes


@dataclass(frozen=True)
class Result(Mapping[ProgramLike, Trace]):
    """A trace for every program, found by value or text, in the order asked for."""

    traces: Mapping[Program, Trace]
    work: Work

    def __getitem__(self, program: ProgramLike) -> Trace:
        wanted = as_program(program)
        if wanted not in self.traces:
            raise MissingError(f"'{wanted}' was not run{nearest(str(wanted), map(str, self.traces))}")
        return self.traces[wanted]

    def __iter__(self) -> Iterator[Program]:
        return iter(self.traces)

    def __len__(self) -> int:
        return len(self.traces)


@dataclass(frozen=True)
class Sweep:
    """One program patched at many addresses, one at a time: `logits[i]` belongs to `addresses[i]`."""

    program: Program
    source: Source
    addresses: tuple[Address, ...]
    logits: Float[Tensor, "addresses examples rows classes"]
    base: Float[Tensor, "examples rows classes"]
    work: Work = field(repr=False)

    @property
    def predictions(self) -> Int[Tensor, "addresses examples rows"]:
        """The most likely class for every address."""
        return self.logits.argmax(-1)

    def rates(self, answers: Int[Tensor, " examples"]) -> dict[Address, float]:
        """For every address, how often the patched run gives these answers at its first read row."""
        if answers.shape != self.logits.shape[1:2]:
            raise InputError(
                f"answers have shape {list(answers.shape)}, not one for each of {self.logits.shape[1]} examples"
            )
        hits = (self.predictions[:, :, 0] == answers.to(self.logits.device)).double().mean(1)
        return dict(zip(self.addresses, hits.tolist(), strict=True))


@torch.no_grad()
def run(
    model: LoopedModel,
    tokens: Int[Tensor, "examples T"] | None,
    programs: Iterable[ProgramLike] | ProgramLike,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Tensor] | None = None,
    given: Mapping[str, Tensor] | None = None,
    state: Float[Tensor, "examples T d"] | None = None,
    read: str | Iterable[str] = "last",
    rows: Sequence[int] = (-1,),
    keep: Address | str | Iterable[Address | str] = (),
    chunk: int | None = None,
    stack: int | None = None,
) -> Result:
    """Run programs on a batch and read them out.

    - `tokens` feed programs that start from tokens, `state` those that start from a given h_t.
    - `others` are aligned inputs (tokens or states of the same shape) that patches may name with `@`; `maps` and
      `given` are the maps J and tensors by name.
    - `read` is "last" (the end of each program), "calls" (after every call), "all" (also the start, and around each J),
      or names of points such as "h6" or "h6 J:one"; `rows` are the rows read.
    - `keep` are addresses whose activations are returned, [examples, (heads,) rows, ...], for every program that has
      that loop.
    - Tensors are moved to the model's device; results stay there.
    - `chunk` (examples at a time) and `stack` (patched runs at a time) are chosen from memory unless given.

    Raises InputError before anything is computed when a name, place or shape does not fit, or the model does not keep
    to the protocol (`conformity`); NotFiniteError when numbers leave the range on the way.
    """
    asked = list(dict.fromkeys(map(as_program, [programs] if isinstance(programs, ProgramLike) else programs)))
    maps = dict(maps or {})
    device = device_of(model)
    tokens, state = (
        None if t is None else on_device(name, t, device) for name, t in (("tokens", tokens), ("state", state))
    )
    others, given = (
        {name: on_device(name, t, device) for name, t in (group or {}).items()} for group in (others, given)
    )
    addresses = _addresses(keep)
    named = named_inputs(model, tokens, state, others)
    examples, length = next(iter(named[tokens is None].values())).shape[:2]
    sizes = Sizes(len(model.layers), model.heads, length)
    read_rows = chosen_rows(rows, length)
    reads = {program: chosen_points(program, read) for program in asked}
    kept = {program: with_loop(program, addresses) for program in asked}
    used = check_names(asked, maps, given, named)
    check_numbers(asked, addresses, chunk, stack)
    plan = Plan(asked, sizes, reads, read_rows, kept)
    check_given(plan, given, examples, model)
    check_kinds(model, named, {name: maps[name] for name in used}, given)
    ensure(model, tokens, state)

    device = next(iter(named[tokens is None].values())).device  # of a model that is no torch module, too
    chunk, stack = sizes_in_memory(plan, model, device, examples, chunk, stack)
    order = torch.arange(examples, device=device)
    if tokens is not None:  # examples that share tokens side by side, so that they fall into one chunk
        order = torch.unique(named[False][MAIN], dim=0, return_inverse=True)[1].argsort(stable=True)
    collected: dict[tuple[Program, str | Address], Tensor] = {}
    total, watch = 0, Watch()

    def collect(key: tuple[Program, str | Address], picked: Tensor, value: Tensor) -> None:
        if key not in collected:
            collected[key] = value.new_empty((examples, *value.shape[1:]))
        collected[key][picked] = value
        watch.see(value, key[1], "of", key[0])

    for piece in order.split(chunk):
        inputs = {kind: Inputs({n: t[piece] for n, t in group.items()}) for kind, group in named.items() if group}
        engine = Engine(model, plan, inputs, maps, given, piece, examples, stack, watch)
        engine.execute()
        total += engine.rows
        for program in asked:
            path = plan.paths[program]
            for point in reads[program]:
                base, patched = path[program.points.index(point)]
                collect((program, point), piece, engine.logits(base, patched, read_rows))
            for address in kept[program]:
                base, patched = path[program.index_of(address.loop) + 1]
                site = plan.resolve(address.site)
                value = engine.component(base, patched, MAIN, site.layer, site.component, site.rows or ())
                value = value if site.heads is None else value[:, list(site.heads)]
                collect((program, address), piece, value)
    watch.check("the run", next(iter(collected.values())).dtype)
    traces = {
        program: Trace(
            program,
            tuple(rows),
            {point: collected[program, point] for point in reads[program]},
            {address: collected[program, address] for address in kept[program]},
        )
        for program in asked
    }
    longest = max(program.calls for program in asked)
    return Result(traces, Work(plan.calls, total, max(1, examples * length * sizes.layers * longest)))


def sweep(
    model: LoopedModel,
    tokens: Int[Tensor, "examples T"] | None,
    program: ProgramLike,
    addresses: Address | str | Iterable[Address | str],
    source: Source | ProgramLike,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Tensor] | None = None,
    given: Mapping[str, Tensor] | None = None,
    state: Float[Tensor, "examples T d"] | None = None,
    rows: Sequence[int] = (-1,),
    chunk: int | None = None,
    stack: int | None = None,
) -> Sweep:
    """Patch `program` at each address in turn from the same place in `source`, and read the end of each patched run.

    `source` is a source or its text ("(F6 J:one F)@other"), or a program, which then runs on the same input.
    """
    base = as_program(program)
    places = tuple(_addresses(addresses))
    if not places:
        raise InputError("a sweep needs at least one address")
    origin = _as_source(source)
    cells = [base.patch(place, origin) for place in places]
    result = run(
        model,
        tokens,
        [base, *cells],
        maps=maps,
        others=others,
        given=given,
        state=state,
        rows=rows,
        chunk=chunk,
        stack=stack,
    )
    logits = torch.stack([result[cell].logits for cell in cells])
    return Sweep(base, origin, places, logits, result[base].logits, result.work)


def check_programs(
    programs: Iterable[ProgramLike], sizes: Sizes, *, read: str = "last", rows: Sequence[int] = (-1,)
) -> Plan:
    """The plan for programs on a model of this size, all maps, inputs and tensors taken as given; nothing is run.

    Raises InputError as `run` would.
    """
    asked = list(dict.fromkeys(map(as_program, programs)))
    reads = {program: chosen_points(program, read) for program in asked}
    return Plan(asked, sizes, reads, chosen_rows(rows, sizes.rows), {program: [] for program in asked})


def _as_source(source: Source | ProgramLike) -> Source:
    if isinstance(source, Given | Run):
        return source
    if isinstance(source, str) and source.lstrip().startswith(("(", "$")):
        patch = Call().patch("layer[1].resid", source).patches[0]
        return patch.source
    return Run(as_program(source))


def _addresses(addresses: Address | str | Iterable[Address | str]) -> list[Address]:
    several = [addresses] if isinstance(addresses, Address | str) else addresses
    return list(dict.fromkeys(Address.parse(a) if isinstance(a, str) else a for a in several))
