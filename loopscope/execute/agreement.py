"""Whether the logits of a model's members are those that are known of it: of its own forward, or given ones.

They must be those of some number of calls.  Where they are not, the likeliest reason is looked for: a mask that is
another than the one declared, or else the number of calls that comes nearest.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.model import causal
from loopscope.pieces import pieces_of
from loopscope.program import Call, Program, Start
from loopscope.protocol import LoopedModel

CALLS = 16
"""How many calls a model's own forward may make to be recognised, unless it says more."""

COUNTS = ("loops", "steps", "num_loops", "num_steps", "n_loops", "n_steps", "iterations")
"""What models call the number of their calls, as an argument of forward or an attribute."""

_SHARES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""How far logits after many layers may be apart, as a share of the largest, beside what a rounding at the start makes
of them; half precision: 0.25, and 0.01 where products of float32 may be rounded on the way."""

TELLING = 0.05
"""Logits that rounding may put further apart, as a share of the largest, would agree with anything: they do not count.
Twice the share that they may be apart anyway is allowed where products are rounded coarsely."""

COARSE, GROWN = 0.01, 10
"""Where they are rounded as coarsely, such logits are taken for nothing to compare with, unless they have outgrown the
known ones so many times."""

MEMBERS = (
    "an injection needs `enter`, layers around the loop `prelude` and `coda`, a norm of the sum `join`, "
    "an MLP beside attention `parallel`"
)
"""What is most often forgotten."""


def own_forward(model: object) -> Callable[[Tensor], Any] | None:
    """How a torch module is called on tokens alone; None if it cannot be.

    Where it has an argument for the number of calls of F, it is asked for two.
    """
    if not isinstance(model, nn.Module) or type(model).forward is nn.Module.forward:
        return None
    try:
        first, *others = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in others if each.default is each.empty and each.kind not in variadic]
    if first.kind is inspect.Parameter.KEYWORD_ONLY or first.kind in variadic or set(needed) - set(COUNTS):
        return None
    counts = {each.name: 2 for each in others if each.name in COUNTS}
    return called_with(lambda tokens: model.forward(tokens, **counts))


def called_with(function: Any) -> Callable[[Tensor], Any]:
    """A function that gives None where it fails: what a forward takes beside a few tokens is not known here."""

    def call(tokens: Tensor) -> Any:
        try:
            return function(tokens)
        except Exception:
            return None

    return call


SEVERAL = (
    "a model of several stacks is compared by its `program(loops, start)` and `readings(loops)`, or by"
    " check_model(program=...), which say when each is called"
)


def comparable(model: LoopedModel, program: Program | None) -> bool:
    """Whether it is known in which order the stacks of a model are called."""
    has = all(callable(getattr(model, name, None)) for name in ("program", "readings"))
    return program is not None or has or len(pieces_of(model).stacks) == 1


def check_forward(
    model: LoopedModel,
    tokens: Int[Tensor, "B T"],
    own: Callable[[Tensor], Any] | None,
    program: Program | None = None,
) -> bool:
    """InputError where a forward gives logits that no number of calls gives; False where there are none to compare.

    `program` says which calls these are: those that it begins with.
    """
    if own is None or not comparable(model, program):
        return False
    expected = _logits(own(tokens), tokens)
    if expected is None or not bool(expected.isfinite().all()):
        return False
    again = _logits(own(tokens), tokens)
    if again is None or not torch.equal(again, expected):  # dropout, noise: nothing to compare with
        return False
    said = "the model's own forward gives logits that no number of calls gives"
    return _compare(model, tokens, expected, said, "; check_model(model, forward=False) leaves it out", program=program)


def check_reference(
    model: LoopedModel,
    tokens: Int[Tensor, "B T"],
    expected: Tensor,
    start: Start = None,
    program: Program | None = None,
) -> None:
    """InputError unless these [B, T, C] are the logits of some number of calls from such a start.

    `program` says which calls these are: those that it begins with.
    """
    if not comparable(model, program):
        raise InputError(SEVERAL)
    kind = f"{str(expected.dtype).removeprefix('torch.')} {list(expected.shape)}"
    if expected.dim() != 3 or expected.shape[:2] != tokens.shape or not expected.is_floating_point():
        wanted = ", ".join(map(str, tokens.shape))
        raise InputError(f"reference logits of tokens [{wanted}] must be [{wanted}, classes], not {kind}")
    if not bool(expected.isfinite().all()):
        raise InputError("the reference logits hold NaN or infinity")
    drawn = pieces_of(model).draws and start is None
    end = "; or the original began elsewhere: start=Zeros() or another Seed" if drawn else ""
    said = "the reference logits are those of no number of calls"
    if not _compare(model, tokens, expected, said, end, start, program):
        raise InputError(f"the model's logits cannot be compared with a reference of {kind}: they have other classes")


def _compare(
    model: LoopedModel,
    tokens: Tensor,
    expected: Tensor,
    said: str,
    end: str,
    start: Start = None,
    program: Program | None = None,
) -> bool:
    """Whether there was something to compare; InputError where nothing agrees."""
    nearest = _nearest(model, tokens, expected, start, program)
    if nearest is None:
        return False
    apart, calls = nearest
    if apart is None:
        return True
    every_causal = all(layer.causal for layer in pieces_of(model).layers)
    others = {"full": _full} if every_causal else {"causal": causal, "full": _full}
    for name, mask in others.items():
        other = _nearest(_Remasked(model, mask), tokens, expected, start, program)
        if other is not None and other[0] is None:
            declared = "a causal one" if every_causal else "the one they have"
            raise InputError(
                f"{said}; they agree, after {other[1]}, with a {name} `mask` of the layers, not {declared}{end}"
            )
    raise InputError(f"{said} (nearest: {calls}, {apart:.3g} off): {MEMBERS}{end}")


def _nearest(
    model: Any, tokens: Tensor, expected: Tensor, start: Start, asked: Program | None
) -> tuple[float | None, str] | None:
    """How far off the nearest number of calls is, None if it agrees, and which.

    None where nothing can be compared: other shapes, no finite numbers, or coarse roundings that grow to the size of
    logits.
    """
    least, at, told = math.inf, "", True
    size = float(expected.abs().amax())
    for program, logits, moved in _plain(model, tokens, start, asked):
        if tuple(expected.shape) == (1, logits.shape[-1]):
            logits, moved = logits[:, -1], moved[:, -1]
        if logits.shape != expected.shape:
            return None
        if not bool(logits.isfinite().all()):
            continue  # without a norm that it should have, a model soon leaves the range: it agreed before, or nowhere
        share = max(_share(each) for each in (logits, expected))
        rounding = 50 * float((moved - logits).abs().amax()) + share * size
        apart = float((logits - expected).abs().amax())
        if apart <= min(rounding, max(TELLING, 2 * share) * size):
            return None, program
        if share >= COARSE and apart <= rounding and float(logits.abs().amax()) <= GROWN * size:
            told = False
        least, at = min((least, at), (apart, program))
    return (least, at) if at and told else None


def _share(found: Tensor) -> float:
    kind = found.dtype
    if kind == torch.float32 and torch.is_autocast_enabled(found.device.type):
        kind = torch.bfloat16
    rounded = kind == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return 0.01 if rounded else _SHARES.get(kind, 0.25)


def _logits(found: Any, tokens: Int[Tensor, "B T"]) -> Tensor | None:
    """The logits among what a forward gives: alone, under that name, or the first of several that has rows.

    Of those after every loop, [loops, B, T, classes] or [B, loops, T, classes], the last.
    """
    found = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", found)
    several = found if isinstance(found, tuple | list) else (found,)
    tensors = (each for each in several if isinstance(each, Tensor) and each.is_floating_point() and each.dim() > 1)
    logits = next((each.detach() for each in tensors), None)
    if logits is not None and logits.dim() == 4:
        shape = tuple(tokens.shape)
        logits = logits[-1] if tuple(logits.shape[1:3]) == shape else logits[:, -1]
    return logits


def _programs(model: Any, start: Start, asked: Program | None) -> tuple[Program, tuple[str, ...]]:
    """The longest program to compare with, and the points of it that may be meant.

    Where none is asked for, a model that says what its program is, is asked.
    """
    if asked is not None:
        if any(not isinstance(step, Call) for step in asked.steps) or asked != asked.skeleton or asked.given:
            raise InputError(f"logits are compared after calls alone, from tokens, not after '{asked}'")
        program = asked if start is None else replace(asked, start=start)
        return program, program.points
    said = [getattr(each, name, 0) for each in (model, getattr(model, "config", None)) for name in COUNTS]
    most = max(CALLS, *(each for each in said if type(each) is int and each <= 4 * CALLS), 0)
    own, readings = getattr(model, "program", None), getattr(model, "readings", None)
    if callable(own) and callable(readings):
        return own(most, start), ("h0", *readings(most))
    program = Program((Call(stack=next(iter(pieces_of(model).stacks))) ** most).steps, start)
    return program, program.points


def _plain(model: Any, tokens: Tensor, start: Start, asked: Program | None) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Logits after 0, 1, ... loops, and those of an input that is off by a rounding, which tells how far one grows."""
    program, readings = _programs(model, start, asked)
    models: tuple[Any, ...] = (model, _Nudged(model))
    runs = [plain_run(each, {"main": tokens}, Program(program.steps[:1], program.start)) for each in models]
    states = [each.states["h0"] for each in runs]
    for loop in range(program.calls + 1):
        point = f"h{loop}"
        if loop > 1:
            step = Program(program.steps[loop - 1 : loop], start=loop - 1)
            runs = [
                plain_run(each, {"main": h}, step, tokens={"main": tokens})
                for each, h in zip(models, states, strict=True)
            ]
        states = [each.states[point] for each in runs]
        if point in readings:
            one, two = (each.read(point) for each in runs)
            yield str(Program(program.steps[:loop], program.start)) if loop else "F0", one, two


class _Nudged:
    """A model whose input is off by a rounding."""

    def __init__(self, model: LoopedModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def embed(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """The input, every entry a little larger or smaller."""
        x = pieces_of(self._model).embed(tokens, rows)
        signs = 1 - 2 * (torch.arange(x.shape[-1], device=x.device) % 2)
        return x * (1 + 2 * torch.finfo(x.dtype).eps * signs).to(x.dtype)


class _Remasked:
    """A model, or a layer of one, with another mask in all layers."""

    def __init__(self, of: object, mask: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._of, self._mask = of, mask

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if name in ("layers", "prelude", "coda") and found is not None:
            return [_Remasked(layer, self._mask) for layer in found]
        if name == "stacks":
            return {stack: [_Remasked(layer, self._mask) for layer in layers] for stack, layers in found.items()}
        return found

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which key rows each query row may see."""
        return self._mask(queries, keys)


def _full(queries: Tensor, keys: Tensor) -> Tensor:
    return torch.ones(len(queries), len(keys), dtype=torch.bool, device=keys.device)
