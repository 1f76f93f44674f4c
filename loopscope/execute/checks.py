"""What `run` refuses, and how it says so: one line, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from loopscope.address import PER_HEAD, Address, Site
from loopscope.errors import InputError, nearest
from loopscope.execute.conformity import check_map
from loopscope.execute.plan import Plan
from loopscope.execute.runs import MAIN, BaseRun
from loopscope.finite import has_bad
from loopscope.functions import identity
from loopscope.maps import not_finite
from loopscope.pieces import Pieces
from loopscope.program import Apply, Call, Given, Map, Program
from loopscope.protocol import STATES, TokenMap
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


def check_examples(named: Mapping[str, object]) -> None:
    """InputError unless all inputs have as many examples as the programs' own."""
    counts = {name: len(each) for name, each in named.items() if isinstance(each, Sized)}
    for name, count in counts.items():
        if count != counts[MAIN]:
            raise InputError(
                f"input {name!r} is not aligned: it has {count} examples, the programs run on {counts[MAIN]}"
            )


def named_inputs(
    pieces: Pieces, tokens: Mapping[str, Tensor], states: Mapping[str, Tensor]
) -> dict[bool, dict[str, Tensor]]:
    """Token inputs (False) and state inputs (True) by name, checked to be aligned: one for each example.

    An input may have another number of rows; tokens and a state of one name go together, and have as many.
    """
    named: dict[bool, dict[str, Tensor]] = {False: {}, True: {}}
    if MAIN not in tokens and MAIN not in states:
        raise InputError("nothing to run on: give tokens, or a state for programs that start with h_t")
    mains = [group[MAIN] for group in (tokens, states) if MAIN in group]
    for is_state, group in ((False, tokens), (True, states)):
        for name in sorted(group, key=lambda name: name != MAIN):
            tensor = group[name]
            wanted = "[examples, rows, d]" if is_state else "[examples, rows]"
            if tensor.is_floating_point() != is_state or tensor.dim() != 2 + is_state or not tensor.numel():
                kind = "state" if is_state else "token"
                found = f"{_dtype(tensor)} {list(tensor.shape)}"
                raise InputError(f"{kind} input {name!r} must be a {wanted} tensor, not {found}")
            beside = named[not is_state].get(name)
            if tensor.shape[0] != mains[0].shape[0] or (beside is not None and beside.shape[1] != tensor.shape[1]):
                shape = tuple((mains[0] if beside is None else beside).shape[:2])
                said = f"it has shape {tuple(tensor.shape[:2])}, the programs run on {shape}"
                raise InputError(f"input {name!r} is not aligned: {said}")
            if is_state and tensor.shape[2] != pieces.state_width:
                raise InputError(f"state {name!r} has width {tensor.shape[2]}, the model {pieces.state_width}")
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
    return [address for address in addresses if _has(program, address)]


def _has(program: Program, address: Address) -> bool:
    if address.stage == "prelude":
        return True
    if address.stage == "coda":
        return program.first <= address.loop <= program.first + program.calls
    if address.stage == "loop":
        return program.first < address.loop <= program.first + program.calls
    try:
        return bool(program.loop_at(address))
    except InputError:
        return False


def check_names(
    programs: list[Program],
    maps: Mapping[str, object],
    given: Mapping[str, Tensor],
    named: Mapping[bool, Mapping[str, object]],
    needs_tokens: bool = False,
) -> set[str]:
    """Every map, tensor and input that the programs name must be there; maps must be functions, and finite.

    Gives the maps that act on states; a function of a component is looked at where it stands (`check_functions`).
    """
    if not programs:
        raise InputError("no program was given")
    used: set[str] = set()
    functions: set[Apply] = set()
    seen: set[tuple[Program, str]] = set()

    def known(kind: str, name: str, there: Mapping[str, object]) -> None:
        if name not in there:
            have = ", ".join(there) or "none"
            raise InputError(f"no {kind} named {name!r} was given; there are: {have}{nearest(name, there)}")

    def visit(program: Program, name: str) -> None:
        if (program, name) in seen:
            return
        seen.add((program, name))
        there = named[program.given]
        if name == MAIN and MAIN not in there:
            given_state = f"a given state h{program.start}, but no state was given"
            start = given_state if program.given else "tokens, but none were given"
            raise InputError(f"'{program}' starts from {start}")
        known("aligned state" if program.given else "aligned input of tokens", name, there)
        if program.given and needs_tokens and name not in named[False]:
            raise InputError(
                f"'{program}' starts from a given state, and this model needs tokens beside it in every call"
            )
        for step in program.steps:
            if isinstance(step, Map):
                known("map", step.name, maps)
                used.add(step.name)
        for patch in program.patches():
            if isinstance(patch.source, Apply):
                known("map", patch.source.name, maps)
                functions.add(patch.source)
            if isinstance(patch.giver, Given):
                known("tensor", patch.giver.name, given)
            elif patch.giver is not None:
                visit(patch.giver.program, name if patch.giver.input is None else patch.giver.input)

    for program in programs:
        visit(program, MAIN)
    for name in sorted(used | {asked.name for asked in functions}):
        steering_map = maps[name]
        if not callable(steering_map):
            what = "states" if name in used else "components"
            raise InputError(f"map {name!r} must be a function of {what}, not a {type(steering_map).__name__}")
        if isinstance(steering_map, nn.Module) and (bad := not_finite(steering_map)):
            raise InputError(f"map {name!r} holds NaN or infinity in its {bad}")
    for asked in functions:
        function = maps[asked.name]
        if asked.identity is not None and callable(function) and (found := identity(function)) != asked.identity:
            raise InputError(f"the function handed over as {asked.name!r} is {found}, and the program asks for {asked}")
    return used


def check_read(program: Program) -> None:
    """InputError for a program with patches in a coda that its end is not read through: they would do nothing."""
    end = program.first + program.calls
    for each in program.coda:
        if program.points[-1] != f"h{end}":
            raise InputError(
                f"'{program}' patches coda:{each.loop}, which reads h{each.loop}, but what it says next is read at"
                f" {program.points[-1]!r}"
            )
        if each.loop != end:
            raise InputError(
                f"'{program}' patches coda:{each.loop}, but what it says next is read through coda:{end}"
                f" (nearest: coda:{end})"
            )


def check_codas(program: Program, points: Iterable[str], kept: Iterable[Address]) -> None:
    """InputError for patches in a coda that is neither read nor kept from: they would do nothing."""
    seen = {*points, *(f"h{each.loop}" for each in kept if each.stage == "coda")}
    for each in program.coda:
        if f"h{each.loop}" not in seen:
            there = ", ".join(dict.fromkeys(points))
            raise InputError(
                f"'{program}' patches coda:{each.loop}, which reads h{each.loop}, but what is read is {there}"
                f" (nearest: read=['h{each.loop}'])"
            )


def check_numbers(programs: list[Program], addresses: list[Address], chunk: int | None, stack: int | None) -> None:
    """Chunk and stack sizes, and loops to keep from."""
    for label, size in (("chunk", chunk), ("stack", stack)):
        if size is not None and size < 1:
            raise InputError(f"{label} must be 1 or more, not {size}")
    for address in addresses:
        if not any(with_loop(program, [address]) for program in programs):
            longest = max(program.loop_of(len(program.steps)) for program in programs)
            near = f"nearest: loop[{longest}].{address.site}"
            what = f"loop {address.loop}" if address.stage == "loop" else "a place"
            raise InputError(f"no program has {what} to keep {address} ({near})")


def check_kinds(
    pieces: Pieces,
    named: Mapping[bool, Mapping[str, Tensor]],
    maps: Mapping[str, TokenMap],
    given: Mapping[str, Tensor],
    mask: Bool[Tensor, "B T"] | None = None,
) -> Tensor:
    """Tokens must be in the vocabulary, and everything must have the dtype of the model's states.

    A probe of a few rows finds out what the model takes; InputError says what does not fit.  `mask` is False at left
    padding of the programs' own input.  Gives a row of states, [1, 1, d], all zero.
    """
    h = torch.empty(0)
    for name, tokens in named[False].items():
        ends = torch.stack([tokens.amin(), tokens.amax()])
        low, high = ends.tolist()
        try:
            rows = torch.arange(tokens.shape[1], device=tokens.device)
            h = pieces.embed(ends[:, None].expand(2, tokens.shape[1]).contiguous(), rows)
        except (IndexError, RuntimeError) as error:
            text = f"tokens {low}..{high} of {name!r}, {tokens.shape[1]} in a row"
            raise InputError(f"the model does not take {text}: {first_line(error)}") from None
        if low < 0:  # an index from the end, to some models
            raise InputError(f"token {low} of {name!r} does not exist: tokens are counted from 0 (nearest: 0)")
        pieces.check_input(tokens, mask if name == MAIN else None)
    for name, state in named[True].items():
        try:
            pieces.read(pieces.leave(state[:1, :1]))
        except RuntimeError:
            raise InputError(f"state {name!r} is {_dtype(state)}, which the model does not take") from None
        h = state
    row = h.new_zeros((1, 1, pieces.state_width))
    for name, steering_map in maps.items():
        _check_map(name, steering_map, row)
    for name, tensor in given.items():
        if tensor.dtype != row.dtype:
            raise InputError(f"tensor ${name} is {_dtype(tensor)}, but the states are {_dtype(row)}")
        if has_bad(tensor):
            raise InputError(f"tensor ${name} holds NaN or infinity")
    return row


def check_functions(plan: Plan, functions: Mapping[str, TokenMap], row: Tensor) -> None:
    """Functions of components must take rows of these, and give each the same value alone as beside others."""
    seen: set[tuple[str, int]] = set()
    for patched in plan.patched_runs:
        for patch in (p for patches in patched.patches.values() for p in patches if isinstance(p.change, Apply)):
            assert isinstance(patch.change, Apply)
            name, width = patch.change.name, _width(plan, patched.base, patch.site, row)
            if (name, width) not in seen:
                seen.add((name, width))
                _check_map(name, functions[name], row.new_zeros((1, 1, width)), f"{patch.site.component}s")


def _width(plan: Plan, base: BaseRun, site: Site, row: Tensor) -> int:
    """Entries of a row of a component, which for hidden units its layer is asked for."""
    if site.component == "pattern":
        return base.length
    pieces = plan.sizes.pieces
    assert pieces is not None
    if site.component == "mlp_hidden":
        x = row.new_zeros((1, 1, pieces.width))
        return plan.sizes.pieces_of(base.part)[site.layer - 1].mlp_hidden(x, x).shape[-1]
    return pieces.model.head_size if site.component in PER_HEAD else pieces.width


def _check_map(name: str, steering_map: TokenMap, row: Tensor, what: str = "states") -> None:
    width = row.shape[-1]
    try:
        after = steering_map(row)
    except RuntimeError as error:
        raise InputError(
            f"map {name!r} does not take {what} of width {width}, {_dtype(row)}: {first_line(error)}"
        ) from None
    if not isinstance(after, Tensor):
        raise InputError(f"map {name!r} must give {what}, not a {type(after).__name__}")
    if after.shape != row.shape or after.dtype != row.dtype:
        found = f"{_dtype(after)} of width {after.shape[-1]}"
        raise InputError(f"map {name!r} turns {_dtype(row)} of width {width} into {found}")
    check_map(name, steering_map, row)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(tensor: Tensor) -> str:
    return _name(tensor.dtype)


def check_given(plan: Plan, given: Mapping[str, Tensor], examples: int, row: Tensor) -> None:
    """A given tensor must broadcast to the slice it replaces; a given pattern must not look at later rows."""
    for patched in plan.patched_runs:
        for patch in (p for patches in patched.patches.values() for p in patches if p.origin.given):
            site, tensor = patch.site, given[str(patch.origin.given)]
            heads = () if site.heads is None else (len(site.heads),)
            wanted = (examples, *heads, len(site.numbers), _width(plan, patched.base, site, row))
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
                sight = plan.sight(patched.base, site.layer)
                hidden = torch.ones(len(site.numbers), wanted[-1], dtype=torch.bool)
                for at, number in enumerate(site.numbers):
                    hidden[at, list(sight.seen(frozenset({number})))] = False
                if tensor.expand(wanted)[..., hidden.to(tensor.device)].any():
                    raise InputError(f"tensor ${name} for {site} looks at later rows; attention is causal")
