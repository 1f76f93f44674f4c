"""What a stored record must be like: types and bounds of what it says of itself, names, types, shapes of its tensors.

A file may have the right hash and still be no record, or one of another backbone than it says.  As analyses compute
with what a record says, all of it is compared before it is used.  What does not fit is a `MisfitError`; the caller, who
knows the file, turns it into a `DamagedError`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from loopscope.bounds import is_finite, shown
from loopscope.errors import InputError
from loopscope.store.manifest import KEY
from loopscope.tasks.populations import population

T = TypeVar("T")

MOST: Mapping[str, tuple[int, int]] = {"loops": (1, 1024), "depth": (0, 1024), "nodes": (0, 256), "heads": (1, 1024)}
"""Bounds of what a record says of a model: more has no model here, and would be computed with."""

FEW = 4096
"""Bound of counts in settings: more was never asked for, and would be computed with before it is compared."""

MOST_FITS = 1000


class MisfitError(Exception):
    """Something is not what a record must have: what was expected, and what was found."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected, self.found = expected, found


# ---- what is said in words and numbers -------------------------------------------------------------------------------


def word(values: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text under a name; without a default it must be there."""
    match values.get(name, default):
        case str(found) if found and found.isprintable():
            return found
        case found:
            raise MisfitError(f"a word as {name}", shown(found))


def whole(values: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number from `low` to `high` under a name; without a default it must be there."""
    found = values.get(name, default)
    if type(found) is not int or not low <= found <= high:
        raise MisfitError(f"{name} as a whole number from {low} to {high:,}", shown(found))
    return found


def number(values: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A finite number of zero or more under a name; without a default it must be there."""
    found = values.get(name, default)
    if not is_finite(found) or found < 0:
        raise MisfitError(f"{name} as a finite number from 0 on", shown(found))
    return float(found)


def truth(values: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    """True or false under a name."""
    found = values.get(name, default)
    if type(found) is not bool:
        raise MisfitError(f"{name} as true or false", shown(found))
    return found


def wholes(values: Mapping[str, Any], name: str, low: int, high: int) -> tuple[int, ...]:
    """A list of whole numbers from `low` to `high`, each larger than the one before it, at least one."""
    found = values.get(name)
    if not isinstance(found, list) or not found or any(type(each) is not int for each in found):
        raise MisfitError(f"{name} as a list of whole numbers", shown(found))
    if found != sorted(set(found)) or not low <= found[0] <= found[-1] <= high:
        raise MisfitError(f"{name} as growing numbers from {low} to {high:,}", shown(found))
    return tuple(found)


def mapping(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Another mapping under a name."""
    match values.get(name):
        case dict(found):
            return found
        case found:
            raise MisfitError(f"a mapping as {name}", shown(found))


def only(values: Mapping[str, Any], names: Collection[str], what: str) -> None:
    """Nothing else may be there."""
    for name in values:
        if name not in names:
            raise MisfitError(f"{what} among {', '.join(names) or 'none'}", repr(name))


def sha256(found: object, what: str) -> str:
    """64 hexadecimal digits."""
    if not isinstance(found, str) or not KEY.fullmatch(found):
        raise MisfitError(f"64 hexadecimal digits as {what}", shown(found))
    return found


def asked(make: Callable[[], T], expected: str) -> T:
    """What `make` gives; MisfitError where what a record asks for does not exist."""
    try:
        return make()
    except (InputError, TypeError) as error:
        raise MisfitError(expected, str(error)) from None


def graphs_of(where: str, nodes: int, graphs: int | None = None) -> int:
    """How many graphs of a population were measured: the first `graphs`, or all.  They have so many nodes."""
    chosen = asked(lambda: population(where), "a population")
    if chosen.nodes != nodes:
        raise MisfitError(f"a model of {chosen.nodes} nodes, as the graphs of {where} have them", str(nodes))
    if graphs is not None and not 1 <= graphs <= len(chosen.rows):
        raise MisfitError(f"1 to {len(chosen.rows)} graphs of {where}", str(graphs))
    return graphs or len(chosen.rows)


# ---- tensors ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """One tensor of a record: its shape (None: of any length but 0) and type, and the values it may have.

    Values are from `low` to `high` (a tensor: each with its own bound), or among `also`; `same`: just these values.
    Floats must be finite, unless they may `overflow`.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype = torch.uint8
    low: int = 0
    high: int | Tensor | None = None
    also: tuple[int, ...] = ()
    same: Tensor | None = None
    overflow: bool = False

    def check(self, name: str, found: Tensor) -> None:
        """MisfitError for a tensor that is not like this."""
        sizes = zip(self.shape, found.shape, strict=False)
        fits = len(self.shape) == found.dim() and all(
            size > 0 if want is None else size == want for want, size in sizes
        )
        if found.dtype != self.dtype or not fits:
            shape = ["any" if each is None else each for each in self.shape]
            raise MisfitError(
                f"{name!r} as {_typed(self.dtype)} of shape {shape}".replace("'any'", "any"),
                f"{_typed(found.dtype)} of shape {list(found.shape)}",
            )
        if found.is_floating_point():
            if not self.overflow and not bool(found.isfinite().all()):
                raise MisfitError(f"finite numbers in {name!r}", "NaN or infinity")
            return
        if self.same is not None and not torch.equal(found.long(), self.same.long()):
            raise MisfitError(f"{name!r} as was asked for", "other numbers")
        if self._within(found):
            return
        wrong = found < self.low
        if self.high is not None:
            wrong = wrong | (found > self.high)
        for each in self.also:
            wrong = wrong & (found != each)
        if bool(wrong.any()):
            high = "" if self.high is None else f" to {int(self.high) if isinstance(self.high, int) else 'its bound'}"
            raise MisfitError(f"numbers from {self.low}{high} in {name!r}", str(int(found[wrong][0])))

    def _within(self, found: Tensor) -> bool:
        """Whether the least and the largest say at once that all is well."""
        if isinstance(self.high, Tensor) or not found.numel():
            return False
        least, most = (int(each) for each in found.aminmax())
        return least >= self.low and (self.high is None or most <= self.high)


Layout = Mapping[str, Mapping[str, Kept]]
"""What a record has: by population (or whatever else it keeps tensors under) and name."""


def same_names(what: str, expected: Iterable[str], found: Iterable[str]) -> None:
    """MisfitError for the first name that is missing, or is there and should not be."""
    wanted, there = dict.fromkeys(expected), dict.fromkeys(found)
    for name in wanted:
        if name not in there:
            raise MisfitError(f"{what} {name!r}", "none")
    for name in there:
        if name not in wanted:
            raise MisfitError(f"no {what} but {len(wanted)} of its experiment", repr(name))


def numbered(target: str, fits: int) -> list[str]:
    """What the fits of a target are called: one-1, one-2."""
    return [f"{target}-{fit}" for fit in range(1, fits + 1)]


def fits_of(fits: Mapping[str, int], *targets: str) -> int:
    """How many fits all of these targets have, at least one."""
    for target in targets:
        if fits.get(target, 0) < 1:
            raise MisfitError(f"a fit of {target!r}", ", ".join(fits) or "none")
    return min(fits[target] for target in targets)


def int32(values: Sequence[int]) -> Kept:
    """Just these numbers."""
    return Kept((len(values),), torch.int32, same=torch.tensor(list(values)))


def _typed(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
