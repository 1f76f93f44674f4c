"""What `run` refuses, and how it says so: one line, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from loopscope.address import Address
from loopscope.errors import InputError, nearest
from loopscope.execute.conformity import check_map
from loopscope.execute.plan import MAIN, Plan
from loopscope.finite import has_bad
from loopscope.maps import not_finite
from loopscope.program import Call, Given, Map, Program
from loopscope.protocol import STATES, LoopedModel, TokenMap
from loopscope.store.files import first_line

TOKENS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""Types of token inputs."""


def on_device(name: str, tensor: Tensor, device: torch.device | None) -> Tensor:
    """A tensor on the model's device; what holds no numbers of a usable type is refused."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name!r} must be a torch tensor, not a {type(tensor).__name__}")
    if tensor.dtype not in (*TOKENS, *STATES):
        raise InputError(f"{name!r} is of type {_dtype(tensor)}; there are {', '.join(map(_name, (*TOKENS, *STATES)))}")
    if tensor.is_meta or tensor.layout != torch.strided:
        raise InputError(
            f"{name!r} must be an ordinary tensor with values, not one on {tensor.device}, {tensor.layout}"
        )
    return tensor.to(device)


def named_inputs(
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
            found = f"{_dtype(tensor)} {list(tensor.shape)}"
            raise InputError(f"{kind} input {name!r} must be a {wanted} tensor, not {found}")
        if tuple(tensor.shape[:2]) != shape:
            raise InputError(
                f"input {name!r} is not aligned: it has shape {tuple(tensor.shape[:2])}, the programs run on {shape}"
            )
        if is_state and tensor.shape[2] != model.width:
            raise InputError(f"state {name!r} has width {tensor.shape[2]}, the model {model.width}")
        if is_state and has_bad(tensor):
            raise InputError(f"state {name!r} holds NaN or infinity")
        named[is_state][name] = tensor
    return named


def chosen_rows(rows: Sequence[int], length: int) -> tuple[int, ...]:
    """Rows counted from 0; refused when they do not exist or repeat."""
    if not isinstance(rows, Sequence) or not all(isinstance(row, int) for row in rows):
        raise InputError(f"rows must be a list of whole numbers such as [-1], not {rows!r}")
    for row in rows:
        if not -length <= row < length:
            near = max(-length, min(length - 1, row))
            raise InputError(f"row {row} does not exist: rows are 0..{length - 1} (nearest: {near})")
    chosen = tuple(row % length for row in rows)
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"rows {list(rows)} must name at least one row, each once")
    return chosen


def chosen_points(program: Program, read: str | Iterable[str]) -> tuple[str, ...]:
    """The points of a program that are to be read."""
    points = program.points
    after_calls = [p for p, step in zip(points[1:], program.steps, strict=True) if isinstance(step, Call)]
    ready = {"last": points[-1:], "calls": tuple(after_calls), "all": points}
    chosen = ready.get(read, (read,)) if isinstance(read, str) else tuple(dict.fromkeys(read))
    if not chosen:
        raise InputError(f"nothing of '{program}' would be read (nearest: last)")
    for point in chosen:
        if point not in points:
            raise InputError(f"'{program}' has no point {point!r}{nearest(point, ['last', 'calls', 'all', *points])}")
    return chosen


def with_loop(program: Program, addresses: list[Address]) -> list[Address]:
    """The addresses whose loop this program has."""
    first = (program.start or 0) + 1
    return [address for address in addresses if first <= address.loop < first + program.calls]


def check_names(
    programs: list[Program],
    maps: Mapping[str, TokenMap],
    given: Mapping[str, Tensor],
    named: Mapping[bool, Mapping[str, Tensor]],
) -> set[str]:
    """Every map, tensor and input that the programs name must be there; maps must be finite.  Gives the maps used."""
    if not programs:
        raise InputError("no program was given")
    used: set[str] = set()
    seen: set[tuple[Program, str]] = set()

    def known(kind: str, name: str, there: Mapping[str, object]) -> None:
        if name not in there:
            have = ", ".join(there) or "none"
            raise InputError(f"no {kind} named {name!r} was given; there are: {have}{nearest(name, there)}")

    def visit(program: Program, name: str) -> None:
        if (program, name) in seen:
            return
        seen.add((program, name))
        there = named[program.start is not None]
        if name == MAIN and MAIN not in there:
            given_state = f"a given state h{program.start}, but no state was given"
            start = "tokens, but none were given" if program.start is None else given_state
            raise InputError(f"'{program}' starts from {start}")
        known("aligned input of tokens" if program.start is None else "aligned state", name, there)
        for step in program.steps:
            if isinstance(step, Map):
                known("map", step.name, maps)
                used.add(step.name)
                continue
            for patch in step.patches:
                if isinstance(patch.source, Given):
                    known("tensor", patch.source.name, given)
                else:
                    visit(patch.source.program, name if patch.source.input is None else patch.source.input)

    for program in programs:
        visit(program, MAIN)
    for name in used:
        steering_map = maps[name]
        if isinstance(steering_map, nn.Module) and (bad := not_finite(steering_map)):
            raise InputError(f"map {name!r} holds NaN or infinity in its {bad}")
    return used


def check_numbers(programs: list[Program], addresses: list[Address], chunk: int | None, stack: int | None) -> None:
    """Chunk and stack sizes, and loops to keep from."""
    for label, size in (("chunk", chunk), ("stack", stack)):
        if size is not None and size < 1:
            raise InputError(f"{label} must be 1 or more, not {size}")
    for address in addresses:
        if not any(with_loop(program, [address]) for program in programs):
            longest = max(program.loop_of(len(program.steps)) for program in programs)
            near = f"nearest: loop[{longest}].{address.site}"
            raise InputError(f"no program has loop {address.loop} to keep {address} ({near})")


def check_kinds(
    model: LoopedModel,
    named: Mapping[bool, Mapping[str, Tensor]],
    maps: Mapping[str, TokenMap],
    given: Mapping[str, Tensor],
) -> None:
    """Tokens must be in the vocabulary, and everything must have the dtype of the model's states.

    A probe of a few rows finds out what the model takes; InputError says what does not fit.
    """
    h = torch.empty(0)
    for name, tokens in named[False].items():
        ends = torch.stack([tokens.amin(), tokens.amax()])
        low, high = ends.tolist()
        try:
            h = model.embed(ends[:, None].expand(2, tokens.shape[1]).contiguous())
        except (IndexError, RuntimeError) as error:
            text = f"tokens {low}..{high} of {name!r}, {tokens.shape[1]} in a row"
            raise InputError(f"the model does not take {text}: {first_line(error)}") from None
        if low < 0:  # an index from the end, to some models
            raise InputError(f"token {low} of {name!r} does not exist: tokens are counted from 0 (nearest: 0)")
    for name, state in named[True].items():
        try:
            model.read(state[:1, :1])
        except RuntimeError:
            raise InputError(f"state {name!r} is {_dtype(state)}, which the model does not take") from None
        h = state
    row = h.new_zeros((1, 1, model.width))
    for name, steering_map in maps.items():
        if not callable(steering_map):
            raise InputError(f"map {name!r} must be a function of states, not a {type(steering_map).__name__}")
        try:
            after = steering_map(row)
        except RuntimeError as error:
            raise InputError(
                f"map {name!r} does not take states of width {model.width}, {_dtype(row)}: {first_line(error)}"
            ) from None
        if not isinstance(after, Tensor):
            raise InputError(f"map {name!r} must give states, not a {type(after).__name__}")
        if after.shape != row.shape or after.dtype != row.dtype:
            found = f"{_dtype(after)} of width {after.shape[-1]}"
            raise InputError(f"map {name!r} turns {_dtype(row)} of width {model.width} into {found}")
        check_map(name, steering_map, row)
    for name, tensor in given.items():
        if tensor.dtype != row.dtype:
            raise InputError(f"tensor ${name} is {_dtype(tensor)}, but the states are {_dtype(row)}")
        if has_bad(tensor):
            raise InputError(f"tensor ${name} holds NaN or infinity")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(tensor: Tensor) -> str:
    return _name(tensor.dtype)


def check_given(plan: Plan, given: Mapping[str, Tensor], examples: int, model: LoopedModel) -> None:
    """A given tensor must broadcast to the slice it replaces; a given pattern must not look at later rows."""
    size = model.head_size
    last = {"q": size, "k": size, "v": size, "z": size, "pattern": plan.sizes.rows}
    for patched in plan.patched_runs:
        for patch in (p for patches in patched.patches for p in patches if p.origin.given):
            site, tensor = patch.site, given[str(patch.origin.given)]
            heads = () if site.heads is None else (len(site.heads),)
            wanted = (examples, *heads, len(site.rows or ()), last.get(site.component, model.width))
            try:
                fits = torch.broadcast_shapes(tensor.shape, wanted) == wanted
            except RuntimeError:
                fits = False
            name = patch.origin.given
            if not fits:
                raise InputError(
                    f"tensor ${name} of shape {list(tensor.shape)} does not fit {site}, which is {list(wanted)}"
                )
            if site.component == "pattern":
                later = torch.arange(wanted[-1]) > torch.tensor(site.rows)[:, None]
                if tensor.expand(wanted)[..., later.to(tensor.device)].any():
                    raise InputError(f"tensor ${name} for {site} looks at later rows; attention is causal")
