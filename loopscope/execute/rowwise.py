"""Whether a piece of a model gives a row the same value apart from other rows and examples as together with them.

    whole = together("close", pieces.close, (x,), x.shape)
    apart("close", pieces.close, whole, (x,), cuts(3, thorough=True))

What a piece is given are two examples, so that one that looks at the other is found out, too.  It may hold streams
[2, R, d], heads [2, H, R, k], tokens [2, R] and positions [R].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from loopscope.errors import InputError, LoopscopeError
from loopscope.store.files import first_line

_ROUNDING = {torch.float64: 1e-7, torch.float32: 1e-3}
"""How far two ways to compute the same may be apart, as a share of the largest number; half precision: 0.06."""


class Cut(NamedTuple):
    """Some of the two examples, and some of their rows in any order."""

    examples: slice
    rows: Int[Tensor, " R"]

    def of(self, tensor: Tensor) -> Tensor:
        """What is cut out of streams, heads, tokens or positions."""
        picked = tensor if tensor.dim() == 1 else tensor[self.examples]
        return picked.index_select(-1 if tensor.dim() < 3 else -2, self.rows)


ALONE = "it must act on every row alone, at the position it is told"


def cuts(rows: int, thorough: bool, device: torch.device | None = None) -> tuple[Cut, ...]:
    """What is looked at apart of two examples of so many rows.

    The first, a middle and the last row, and rows that are no neighbours, as the executor hands them over; `thorough`:
    all of these of either example, and its rows without the first.
    """
    middle, last = rows // 2, rows - 1
    one, two, both = slice(0, 1), slice(1, 2), slice(0, 2)
    if thorough:
        some = ((0,), (middle,), (last,), tuple(range(1, rows)), (last, 0, last))
        chosen = [(both, (middle,)), *((which, each) for which in (one, two) for each in some if each)]
    else:
        chosen = [(two, (0,)), (one, (last,)), (both, (middle, 0))]
    return tuple(Cut(which, torch.tensor(each, device=device)) for which, each in chosen)


def together(name: str, function: Callable[..., Any], given: tuple[Tensor, ...], shape: Sequence[int]) -> Tensor:
    """What a piece gives for all rows; InputError unless it is of this shape."""
    return shaped(name, called(name, function, *given), shape)


def apart(
    name: str, function: Callable[..., Any], whole: Tensor, given: tuple[Tensor, ...], chosen: Sequence[Cut]
) -> None:
    """InputError unless a piece gives for every cut of what it is given the same cut of what it gives for the whole."""
    if not chosen:
        return
    expected, found = [], []
    for each in chosen:
        wanted = each.of(whole)
        mine = called(name, function, *map(each.of, given))
        said = " for one row" if len(each.rows) == 1 else f" for {len(each.rows)} rows"
        expected.append(wanted.flatten())
        found.append(shaped(name, mine, wanted.shape, said).flatten())
    numbers = torch.cat([each.flatten() for each in given if each.is_floating_point()])
    check_equal(f"the model's {name}", torch.cat(expected), torch.cat(found), numbers, ALONE)


def called(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a member gives; InputError where it does not take a few rows."""
    try:
        return function(*arguments)
    except LoopscopeError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        given = shape_of(arguments[0])
        raise InputError(f"the model's {name} does not take {given}: {first_line(error)}") from error


def shaped(name: str, found: Any, wanted: Sequence[int], said: str = "") -> Tensor:
    """What a member gave; InputError unless these are numbers of this shape."""
    if not isinstance(found, Tensor) or not found.is_floating_point() or tuple(found.shape) != tuple(wanted):
        raise InputError(f"the model's {name} must give a tensor of shape {list(wanted)}{said}, not {shape_of(found)}")
    return found


def shape_of(found: Any) -> str:
    """What a member gave, in words."""
    if isinstance(found, Tensor):
        return f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
    return f"{len(found)} of them" if isinstance(found, tuple | list) else f"a {type(found).__name__}"


def check_equal(name: str, one: Tensor, two: Tensor, given: Tensor, rule: str) -> None:
    """InputError unless two results agree as far as rounding lets them."""
    if off := far(one, two, given):
        raise InputError(f"{name} gives a row another value beside other rows, {off:.3g} off; {rule}")


def far(one: Tensor, two: Tensor, given: Tensor) -> float:
    """How far two results are apart, 0 where that is rounding; numbers that are not finite say nothing."""
    a, b = one.double(), two.double()
    off, large = (a - b).abs(), torch.maximum(a.abs(), b.abs())
    finite = off.isfinite()
    largest = [torch.where(finite, each, 0).amax() for each in (off, large)]
    most, size, entered = torch.stack([*largest, given.detach().double().abs().amax()]).tolist()
    rounding = 32 * torch.finfo(one.dtype).eps * entered
    return most if math.isfinite(entered) and most > _ROUNDING.get(one.dtype, 0.06) * size + rounding else 0.0
