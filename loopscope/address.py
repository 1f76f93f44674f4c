"""A place inside a run is an address: `loop[7].layer[2].head[2].row[-1].pattern`.

Weights are shared between loops, so layer 1 of loop 3 and layer 1 of loop 7 are the same parameters; as addresses they
differ.  A `Site` is a place inside one call of F; an `Address` adds the loop.  Both are plain values: printable,
parseable, hashable.

Counting follows the paper: loops and layers from 1, heads from 0 (H0..H3), rows from 0, negative rows from the end.
Leaving out `head[...]` or `row[...]` (or writing `*`) means all of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopscope.bounds import POSITIONS, cut, shown
from loopscope.errors import InputError, nearest

COMPONENTS = ("resid", "q", "k", "v", "pattern", "z", "attn_out", "mlp_out")
"""In order of computation.  resid enters the layer; pattern rows are query rows; z is a head's output before the output
projection; attn_out and mlp_out are what the sublayers add to the residual stream."""

PER_HEAD = frozenset({"q", "k", "v", "pattern", "z"})

MOST_NAMED = 100_000
"""Heads or rows that one address may list."""

_FORM = "[loop[t].]layer[n][.head[i,j]][.row[i,j]].component"
_SITE_EXAMPLE = "layer[2].head[0].row[-1].pattern"
_PART = re.compile(r"(loop|layer|head|row)\[([^\]]*)\]")
_NUMBER = re.compile(r"\s*-?[0-9]{1,18}\s*")


@dataclass(frozen=True)
class Site:
    """A place inside one call: a component of one layer, for some or all heads and rows (None: all)."""

    layer: int
    component: str
    heads: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.component not in COMPONENTS:
            raise InputError(
                f"unknown component {shown(self.component)}; there are {', '.join(COMPONENTS)}"
                f"{nearest(str(self.component)[:80], COMPONENTS)}"
            )
        for name, numbers in (("layer", (self.layer,)), ("head", self.heads), ("row", self.rows)):
            _check_numbers(name, numbers)
        if self.heads is not None and self.component not in PER_HEAD:
            raise InputError(f"{self.component} has no heads (nearest: {replace(self, heads=None)})")
        if self.heads is not None and not _distinct(self.heads):
            near = replace(self, heads=tuple(dict.fromkeys(self.heads)) or None)
            raise InputError(
                f"head{cut(str(list(self.heads)))} must name at least one head, each once (nearest: {cut(str(near))})"
            )
        if self.rows is not None and not _distinct(self.rows):
            near = replace(self, rows=tuple(dict.fromkeys(self.rows)) or None)
            raise InputError(
                f"row{cut(str(list(self.rows)))} must name at least one row, each once (nearest: {cut(str(near))})"
            )

    def __str__(self) -> str:
        heads = "" if self.heads is None else f".head[{','.join(map(str, self.heads))}]"
        rows = "" if self.rows is None else f".row[{','.join(map(str, self.rows))}]"
        return f"layer[{self.layer}]{heads}{rows}.{self.component}"

    @classmethod
    def parse(cls, text: str) -> Site:
        """Read `layer[2].head[0,1].row[-1].pattern`; raises InputError on anything else."""
        loop, site = _parse(text, _SITE_EXAMPLE)
        if loop is not None:
            raise InputError(
                f"address {shown(text)} names a loop, but the call it stands in is the loop (nearest: {site})"
            )
        return site

    @property
    def order(self) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        """What sites are sorted by: when they are computed, then heads and rows."""
        return self.layer, COMPONENTS.index(self.component), self.heads or (), self.rows or ()

    def overlaps(self, other: Site) -> bool:
        """Whether two sites can share an entry."""
        same = (self.layer, self.component) == (other.layer, other.component)
        return same and _meet(self.heads, other.heads) and _meet(self.rows, other.rows)

    def resolve(self, *, layers: int, heads: int, rows: int) -> Site:
        """The same place with every head and row written out (rows counted from 0), checked against the model's sizes.

        Raises InputError naming what was asked, what exists and the nearest valid site.
        """
        positions: dict[int, int] = {}  # row counted from 0 -> as it was written
        for row in range(rows) if self.rows is None else self.rows:
            row = _clamp(row, -rows, rows - 1)
            positions.setdefault(row % rows, row)
        near = Site(
            _clamp(self.layer, 1, layers),
            self.component,
            None if self.heads is None else tuple(dict.fromkeys(_clamp(head, 0, heads - 1) for head in self.heads)),
            None if self.rows is None else tuple(positions.values()),
        )
        if near != self:
            inside = all(-rows <= row < rows for row in self.rows or ())
            exists = inside and (near.layer, near.heads) == (self.layer, self.heads)
            raise InputError(
                f"{cut(str(self))} {'names a row twice' if exists else 'does not exist'}: "
                f"layers 1..{layers}, heads 0..{heads - 1}, rows 0..{rows - 1} (nearest: {cut(str(near))})"
            )
        every_head = tuple(range(heads)) if self.component in PER_HEAD else None
        return Site(self.layer, self.component, self.heads or every_head, tuple(positions))


@dataclass(frozen=True)
class Address:
    """A place inside a run: a site in one loop, counted from 1."""

    loop: int
    site: Site

    def __post_init__(self) -> None:
        _check_numbers("loop", (self.loop,))
        if self.loop < 1:
            raise InputError(
                f"loop {self.loop} does not exist: loops are counted from 1 (nearest: loop[1].{self.site})"
            )

    def __str__(self) -> str:
        return f"loop[{self.loop}].{self.site}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `loop[7].layer[2].head[2].row[-1].pattern`; raises InputError on anything else."""
        loop, site = _parse(text, f"loop[7].{_SITE_EXAMPLE}")
        if loop is None:
            raise InputError(f"address {shown(text)} names no loop (nearest: loop[1].{site})")
        return Address(loop, site)


def grid(
    component: str,
    *,
    loops: Iterable[int],
    layers: Iterable[int],
    heads: Iterable[int] | None = None,
    rows: tuple[int, ...] | None = None,
) -> tuple[Address, ...]:
    """Addresses of every loop x layer x head, one head each, all of the same rows; `heads=None`: all heads at once."""
    singles: list[tuple[int, ...] | None] = [None] if heads is None else [(h,) for h in heads]
    return tuple(
        Address(loop, Site(layer, component, head, rows))
        for loop, layer, head in itertools.product(list(loops), list(layers), singles)
    )


def _meet(a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> bool:
    """Whether two choices of heads or rows can share one.  A row counted from the end may be any counted from 0."""
    if a is None or b is None or (min(a) < 0 <= max(b)) or (min(b) < 0 <= max(a)):
        return True
    return not set(a).isdisjoint(b)


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def _check_numbers(name: str, numbers: tuple[int, ...] | None) -> None:
    """InputError for anything but whole numbers that a place may have, and for a list that names no real place."""
    if numbers is None:
        return
    if not isinstance(numbers, tuple) or len(numbers) > MOST_NAMED:
        found = f"{len(numbers)} of them" if isinstance(numbers, tuple) else shown(numbers)
        raise InputError(f"{name}[...] lists at most {MOST_NAMED} numbers, not {found}")
    for number in numbers:
        if not isinstance(number, int) or abs(number) > POSITIONS:
            raise InputError(f"{name}[{shown(number)}] is no place: {name}s have whole numbers of at most {POSITIONS}")


def _distinct(chosen: tuple[int, ...]) -> bool:
    return 0 < len(chosen) == len(set(chosen))


def _parse(text: str, example: str) -> tuple[int | None, Site]:
    form, said = f"the form is {_FORM}, such as {example}", shown(text)
    *parts, component = text.strip().rsplit(".", 1)
    found: dict[str, tuple[int, ...] | None] = {}
    for part in parts[0].split(".") if parts else []:
        match = _PART.fullmatch(part)
        order = ("loop", "layer", "head", "row")
        if match is None or (found and order.index(match[1]) <= max(order.index(name) for name in found)):
            raise InputError(f"cannot read {shown(part)} in address {said}; {form}")
        items = match[2].split(",")
        if match[2].strip() == "*":
            found[match[1]] = None
        elif all(_NUMBER.fullmatch(item) for item in items):
            found[match[1]] = tuple(int(item) for item in items)
        else:
            raise InputError(f"cannot read {shown(part)} in address {said}; inside [] stand whole numbers or *; {form}")
    layer = found.get("layer")
    if layer is None or len(layer) != 1:
        raise InputError(f"address {said} must name one layer; {form}")
    loop = found.get("loop", ())
    if loop is None or len(loop) > 1:
        raise InputError(f"address {said} must name one loop; {form}")
    site = Site(layer[0], component, found.get("head"), found.get("row"))
    return (loop[0] if loop else None), site
