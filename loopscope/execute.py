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
from torch import Tensor, nn

from loopscope.address import Address
from loopscope.crowd import Inputs
from loopscope.engine import Engine
from loopscope.errors import InputError, nearest
from loopscope.plan import MAIN, Plan, Sizes
from loopscope.program import Call, Given, Map, Program, Run, Source, as_program
from loopscope.protocol import LoopedModel, TokenMap

CPU_BUDGET = 256 * 2**20
"""Bytes of activations held at a time on a CPU.  Small: large blocks cost more in page faults than they save."""

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


@dataclass(frozen=True)
class Result(Mapping[ProgramLike, Trace]):
    """A trace for every program, found by value or text, in the order asked for."""

    traces: Mapping[Program, Trace]
    work: Work

    def __getitem__(self, program: ProgramLike) -> Trace:
        wanted = as_program(program)
        if wanted not in self.traces:
            raise InputError(f"'{wanted}' was not run{nearest(str(wanted), map(str, self.traces))}")
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
    keep: Iterable[Address | str] = (),
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

    Raises InputError before anything is computed when a name, place or shape does not fit.
    """
    asked = list(dict.fromkeys(map(as_program, [programs] if isinstance(programs, ProgramLike) else programs)))
    maps = dict(maps or {})
    device = next((p.device for p in model.parameters()), None) if isinstance(model, nn.Module) else None
    tokens, state = (t if t is None else t.to(device) for t in (tokens, state))
    others, given = ({name: t.to(device) for name, t in (group or {}).items()} for group in (others, given))
    addresses = list(dict.fromkeys(Address.parse(a) if isinstance(a, str) else a for a in keep))
    named = _inputs(model, tokens, state, others)
    examples, length = next(iter(named[tokens is None].values())).shape[:2]
    sizes = Sizes(len(model.layers), model.heads, length)
    read_rows = _rows(rows, length)
    reads = {program: _points(program, read) for program in asked}
    kept = {program: _with_loop(program, addresses) for program in asked}
    _check_names(asked, maps, given, named)
    _check_numbers(asked, addresses, chunk, stack)
    plan = Plan(asked, sizes, reads, read_rows, kept)
    _check_given(plan, given, examples, model)

    device = next(iter(named[tokens is None].values())).device  # of a model that is no torch module, too
    if chunk is None or stack is None:
        auto_chunk, auto_stack = _fit(plan, model, device, examples)
        chunk, stack = chunk or auto_chunk, stack or auto_stack
    order = torch.arange(examples, device=device)
    if tokens is not None:  # examples that share tokens side by side, so that they fall into one chunk
        order = torch.unique(named[False][MAIN], dim=0, return_inverse=True)[1].argsort(stable=True)
    collected: dict[tuple[Program, str | Address], list[Tensor]] = {}
    total = 0
    for piece in order.split(chunk):
        inputs = {kind: Inputs({n: t[piece] for n, t in group.items()}) for kind, group in named.items() if group}
        engine = Engine(model, plan, inputs, maps, given, piece, examples, stack)
        engine.execute()
        total += engine.rows
        for program in asked:
            path = plan.paths[program]
            for point in reads[program]:
                node, lane = path[program.points.index(point)]
                collected.setdefault((program, point), []).append(engine.logits(node, lane, read_rows))
            for address in kept[program]:
                node, lane = path[program.index_of(address.loop) + 1]
                site = plan.resolve(address.site)
                value = engine.component(node, lane, MAIN, site.layer, site.component, site.rows or ())
                value = value if site.heads is None else value[:, list(site.heads)]
                collected.setdefault((program, address), []).append(value)
    back = order.argsort()
    joined = {key: torch.cat(pieces)[back] for key, pieces in collected.items()}
    traces = {
        program: Trace(
            program,
            tuple(rows),
            {point: joined[program, point] for point in reads[program]},
            {address: joined[program, address] for address in kept[program]},
        )
        for program in asked
    }
    longest = max(program.calls for program in asked)
    return Result(traces, Work(plan.calls, total, max(1, examples * length * sizes.layers * longest)))


def sweep(
    model: LoopedModel,
    tokens: Int[Tensor, "examples T"] | None,
    program: ProgramLike,
    addresses: Iterable[Address | str],
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
    places = tuple(Address.parse(a) if isinstance(a, str) else a for a in addresses)
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
    reads = {program: _points(program, read) for program in asked}
    return Plan(asked, sizes, reads, _rows(rows, sizes.rows), {program: [] for program in asked})


def _as_source(source: Source | ProgramLike) -> Source:
    if isinstance(source, Given | Run):
        return source
    if isinstance(source, str) and source.lstrip().startswith(("(", "$")):
        patch = Call().patch("layer[1].resid", source).patches[0]
        return patch.source
    return Run(as_program(source))


# Checks, all before any work -----------------------------------------------------------------------------------------


def _inputs(
    model: LoopedModel, tokens: Tensor | None, state: Tensor | None, others: Mapping[str, Tensor]
) -> dict[bool, dict[str, Tensor]]:
    """Token inputs (False) and state inputs (True) by name, checked to be aligned."""
    named: dict[bool, dict[str, Tensor]] = {False: {}, True: {}}
    mains = [(t, kind) for t, kind in ((tokens, False), (state, True)) if t is not None]
    if not mains:
        raise InputError("nothing to run on: give tokens, or a state for programs that start with h_t")
    if MAIN in others:
        raise InputError(f"the input name {MAIN!r} is taken by the programs' own input")
    shape = tuple(mains[0][0].shape[:2])
    everything = [(MAIN, t, kind) for t, kind in mains]
    everything += [(name, t, t.is_floating_point()) for name, t in others.items()]
    for name, tensor, is_state in everything:
        wanted = "[examples, rows, d]" if is_state else "[examples, rows]"
        if tensor.is_floating_point() != is_state or tensor.dim() != 2 + is_state or not tensor.numel():
            kind = "state" if is_state else "token"
            found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            raise InputError(f"{kind} input {name!r} must be a {wanted} tensor, not {found}")
        if tuple(tensor.shape[:2]) != shape:
            raise InputError(
                f"input {name!r} is not aligned: it has shape {tuple(tensor.shape[:2])}, the programs run on {shape}"
            )
        if is_state and tensor.shape[2] != model.width:
            raise InputError(f"state {name!r} has width {tensor.shape[2]}, the model {model.width}")
        named[is_state][name] = tensor
    return named


def _rows(rows: Sequence[int], length: int) -> tuple[int, ...]:
    for row in rows:
        if not -length <= row < length:
            near = max(-length, min(length - 1, row))
            raise InputError(f"row {row} does not exist: rows are 0..{length - 1} (nearest: {near})")
    chosen = tuple(row % length for row in rows)
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"rows {list(rows)} must name at least one row, each once")
    return chosen


def _points(program: Program, read: str | Iterable[str]) -> tuple[str, ...]:
    points = program.points
    if read == "last":
        return points[-1:]
    if read == "calls":
        return tuple(
            point for point, step in zip(points[1:], program.steps, strict=True) if isinstance(step, Call)
        )  # fmt: skip
    if read == "all":
        return points
    chosen = (read,) if isinstance(read, str) else tuple(dict.fromkeys(read))
    for point in chosen:
        if point not in points:
            raise InputError(f"'{program}' has no point {point!r}{nearest(point, ['last', 'calls', 'all', *points])}")
    return chosen


def _with_loop(program: Program, addresses: list[Address]) -> list[Address]:
    first = (program.start or 0) + 1
    return [address for address in addresses if first <= address.loop < first + program.calls]


def _check_names(
    programs: list[Program],
    maps: Mapping[str, TokenMap],
    given: Mapping[str, Tensor],
    named: Mapping[bool, Mapping[str, Tensor]],
) -> None:
    """Every map, tensor and input that the programs name must be there; maps must be finite."""
    if not programs:
        raise InputError("no program was given")

    def known(kind: str, name: str, there: Iterable[str]) -> None:
        there = list(there)
        if name not in there:
            have = ", ".join(there) or "none"
            raise InputError(f"no {kind} named {name!r} was given; there are: {have}{nearest(name, there)}")

    def visit(program: Program, name: str) -> None:
        there = named[program.start is not None]
        if MAIN not in there:
            given_state = f"a given state h{program.start}, but no state was given"
            start = "tokens, but none were given" if program.start is None else given_state
            raise InputError(f"'{program}' starts from {start}")
        known("aligned input of tokens" if program.start is None else "aligned state", name, there)
        for step in program.steps:
            if isinstance(step, Map):
                known("map", step.name, maps)
                _finite(step.name, maps[step.name])
                continue
            for patch in step.patches:
                if isinstance(patch.source, Given):
                    known("tensor", patch.source.name, given)
                else:
                    visit(patch.source.program, name if patch.source.input is None else patch.source.input)

    for program in programs:
        visit(program, MAIN)


def _check_numbers(programs: list[Program], addresses: list[Address], chunk: int | None, stack: int | None) -> None:
    for label, size in (("chunk", chunk), ("stack", stack)):
        if size is not None and size < 1:
            raise InputError(f"{label} must be 1 or more, not {size}")
    for address in addresses:
        if not any(_with_loop(program, [address]) for program in programs):
            longest = max(program.loop_of(len(program.steps)) for program in programs)
            near = f"nearest: loop[{longest}].{address.site}"
            raise InputError(f"no program has loop {address.loop} to keep {address} ({near})")


def _finite(name: str, step: TokenMap) -> None:
    for label, tensor in step.named_parameters() if isinstance(step, nn.Module) else ():
        if not torch.isfinite(tensor).all():
            raise InputError(f"map {name!r} holds NaN or infinity in its {label}")


def _check_given(plan: Plan, given: Mapping[str, Tensor], examples: int, model: LoopedModel) -> None:
    """A given tensor must broadcast to the slice it replaces; a given pattern must not look at later rows."""
    size = model.width // model.heads
    last = {"q": size, "k": size, "v": size, "z": size, "pattern": plan.sizes.rows}
    for lane in plan.lanes:
        for patch in (p for patches in lane.patches for p in patches if p.origin.given):
            site, tensor = patch.site, given[str(patch.origin.given)]
            heads = () if site.heads is None else (len(site.heads),)
            wanted = (examples, *heads, len(site.rows or ()), last.get(site.component, model.width))
            try:
                fits = torch.broadcast_shapes(tensor.shape, wanted) == wanted
            except RuntimeError:
                fits = False
            name = patch.origin.given
            if not fits or tensor.shape[-1:] != wanted[-1:]:
                raise InputError(
                    f"tensor ${name} of shape {list(tensor.shape)} does not fit {site}, which is {list(wanted)}"
                )
            if site.component == "pattern":
                later = torch.arange(wanted[-1]) > torch.tensor(site.rows)[:, None]
                if tensor.expand(wanted)[..., later.to(tensor.device)].any():
                    raise InputError(f"tensor ${name} for {site} looks at later rows; attention is causal")


def _fit(plan: Plan, model: LoopedModel, device: torch.device, examples: int) -> tuple[int, int]:
    """Examples at a time and patched runs at a time that stay inside the memory budget."""
    budget = CPU_BUDGET if device.type == "cpu" else torch.cuda.mem_get_info(device)[0] // 2
    width, length, heads = model.width, plan.sizes.rows, plan.sizes.heads
    row = 4 * (14 * width + heads * length)  # one row on its way through a layer: stream, q, k, v, MLP, scores
    held = 0
    for node in plan.order:
        for need in node.layers:
            held += 4 * width * (len(need.lent_entering) + 2 * len(need.lent_keys))
            held += sum(4 * len(rows) * max(width, heads * length) for rows in need.noted.values())
    per_lane = max((len(need.entering) for lane in plan.lanes for need in lane.layers), default=1) * row
    chunk = max(1, min(examples, budget // (length * row + held)))
    return chunk, max(1, budget // (chunk * max(1, per_lane)))
