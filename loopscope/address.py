"""A place inside a run is an address: `loop[7].layer[2].head[2].row[-1].pattern`.

Weights are shared between loops, so layer 1 of loop 3 and layer 1 of loop 7 are the same parameters; as addresses they
differ.  A `Site` is a place inside one call of F; an `Address` adds the loop.  Both are plain values: printable,
parseable, hashable.

    loop[3].enter                   what the first layer of loop 3 sees: the state, with the input where it is injected
    prelude.layer[1].z              the layers before the loop
    coda[8].layer[2].attn_out       the layers behind the loop, in the run of them that reads the state after loop 8
    L[2,1].layer[1].z   H[2]...     of a model with stacks L and H: the first call of L in its second series, H's second
    loop[3].layer[1].row[" France"].resid      the row of a text, or of a sequence of tokens: row[<318 9>]

Counting follows the paper: loops and layers from 1, heads from 0 (H0..H3), rows from 0, negative rows from the end.
Leaving out `head[...]` or `row[...]` (or writing `*`) means all of them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from loopscope.bounds import POSITIONS, cut, shown
from loopscope.errors import InputError, nearest
from loopscope.written import Written

COMPONENTS = ("resid", "q", "k", "v", "pattern", "z", "attn_out", "mlp_hidden", "mlp_out")
"""In order of computation.  resid enters the layer; pattern rows are query rows; z is a head's output before the output
projection; attn_out and mlp_out are what the sublayers add to the residual stream; mlp_hidden are the MLP's units, of
models that have them."""

PER_HEAD = frozenset({"q", "k", "v", "pattern", "z"})

ENTER = "enter"
"""What the first layer of a call sees.  It has no layer in its address; it is the same place as `layer[1].resid`."""

MOST_NAMED = 100_000
"""Heads or rows that one address may list."""

_FORM = "[loop[t].]layer[n][.head[i,j]][.row[i,j]].component"
_SITE_EXAMPLE = "layer[2].head[0].row[-1].pattern"
_TEXT = r'"(?:[^"\\]|\\.)*"'
_PART = re.compile(rf"(loop|coda|layer|head|row|[A-EGHIK-Z])\[((?:{_TEXT}|[^\]\"])*)\]\.|(prelude)\.")
_ITEM = re.compile(rf"\s*(?:(-?[0-9]{{1,18}})|({_TEXT})|<([0-9 ]{{1,2000}})>)\s*(?:,|$)")
_ORDER = ("stage", "layer", "head", "row")


@dataclass(frozen=True)
class Anchor:
    """A row named by what stands there: the last row of a text, or of a sequence of tokens, that occurs once."""

    what: str | tuple[int, ...]

    def __post_init__(self) -> None:
        whole = isinstance(self.what, tuple) and all(isinstance(token, int) and token >= 0 for token in self.what)
        if not self.what or not (isinstance(self.what, str) or whole):
            raise InputError(f"a row is named by a text or by tokens such as <318 9>, not by {shown(self.what)}")

    def __str__(self) -> str:
        return json.dumps(self.what) if isinstance(self.what, str) else f"<{' '.join(map(str, self.what))}>"


Row: TypeAlias = int | Anchor


@dataclass(frozen=True, repr=False)
class Site(Written):
    """A place inside one call: a component of one layer, for some or all heads and rows (None: all)."""

    layer: int
    component: str
    heads: tuple[int, ...] | None = None
    rows: tuple[Row, ...] | None = None

    def __post_init__(self) -> None:
        if self.component not in (*COMPONENTS, ENTER):
            raise InputError(
                f"unknown component {shown(self.component)}; there are {', '.join(COMPONENTS)}"
                f"{nearest(str(self.component)[:80], COMPONENTS)}"
            )
        for name, numbers in (("layer", (self.layer,)), ("head", self.heads), ("row", self.rows)):
            _check_numbers(name, numbers)
        if self.component == ENTER and self.layer != 1:
            raise InputError(f"{ENTER} is what the first layer sees, not layer {self.layer} (nearest: {ENTER})")
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
        if self.component == ENTER:
            return f"{rows}.{ENTER}".removeprefix(".")
        return f"layer[{self.layer}]{heads}{rows}.{self.component}"

    @classmethod
    def parse(cls, text: str) -> Site:
        """Read `layer[2].head[0,1].row[-1].pattern`; raises InputError on anything else."""
        stage, _, site = _parse(text, _SITE_EXAMPLE)
        if stage:
            raise InputError(
                f"address {shown(text)} names a loop, but the call it stands in is the loop (nearest: {site})"
            )
        return site

    @property
    def part(self) -> str:
        """The component of the layer that this is: resid for `enter`."""
        return "resid" if self.component == ENTER else self.component

    @property
    def order(self) -> tuple[object, ...]:
        """What sites are sorted by: when they are computed, then heads and rows."""
        rows = tuple((1, str(row)) if isinstance(row, Anchor) else (0, row) for row in self.rows or ())
        return self.layer, COMPONENTS.index(self.part), self.heads or (), rows, self.component == ENTER

    def overlaps(self, other: Site) -> bool:
        """Whether two sites can share an entry."""
        same = (self.layer, self.part) == (other.layer, other.part)
        return same and _meet(self.heads, other.heads) and _meet(self.rows, other.rows)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The rows of a resolved site."""
        return tuple(row for row in self.rows or () if isinstance(row, int))

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """Rows that are named by what stands there, so that they differ between inputs."""
        return tuple(row for row in self.rows or () if isinstance(row, Anchor))

    def resolve(self, *, layers: int, heads: int, rows: int) -> Site:
        """The same place with every head and row written out (rows counted from 0), checked against the model's sizes.

        Raises InputError naming what was asked, what exists and the nearest valid site.
        """
        if self.anchors:
            raise InputError(f"{self} names a row by {self.anchors[0]}, which is looked up in the tokens of a run")
        positions: dict[int, int] = {}  # row counted from 0 -> as it was written
        for row in range(rows) if self.rows is None else self.rows:
            assert isinstance(row, int)
            row = _clamp(row, -rows, rows - 1)
            positions.setdefault(row % rows, row)
        near = Site(
            _clamp(self.layer, 1, layers),
            self.component,
            None if self.heads is None else tuple(dict.fromkeys(_clamp(head, 0, heads - 1) for head in self.heads)),
            None if self.rows is None else tuple(positions.values()),
        )
        if near != self:
            inside = all(-rows <= row < rows for row in self.rows or () if isinstance(row, int))
            exists = inside and (near.layer, near.heads) == (self.layer, self.heads)
            raise InputError(
                f"{cut(str(self))} {'names a row twice' if exists else 'does not exist'}: "
                f"layers 1..{layers}, heads 0..{heads - 1}, rows 0..{rows - 1} (nearest: {cut(str(near))})"
            )
        every_head = tuple(range(heads)) if self.component in PER_HEAD else None
        return Site(self.layer, self.component, self.heads or every_head, tuple(positions))


@dataclass(frozen=True, repr=False)
class Address(Written):
    """A place inside a run: a site in one loop, counted from 1, in the prelude or in a coda.

    `stage` is "loop" for the loop-th call, "prelude" (then `loop` is 0), "coda" (of the reading after call `loop`), or
    the name of one of several stacks.  Of a stack, `loop` is the number of its call; with `inner`, `loop` is the number
    of a series of its calls that follow each other, and `inner` the call in that series.
    """

    loop: int
    site: Site
    stage: str = "loop"
    inner: int | None = None

    def __post_init__(self) -> None:
        _check_numbers("loop", (self.loop,))
        stack = re.fullmatch("[A-EGHIK-Z]", self.stage) is not None
        if not stack and (self.stage not in ("loop", "prelude", "coda") or self.inner is not None):
            raise InputError(
                f"no part of a run is called {shown(self.stage)}; there are loop, prelude, coda and stacks"
            )
        if self.inner is not None:
            _check_numbers("loop", (self.inner,))
        if self.stage == "prelude":
            if self.loop:
                raise InputError(f"there is one prelude, not one for loop {self.loop} (nearest: prelude.{self.site})")
        elif min(self.loop, 1 if self.inner is None else self.inner) < (0 if self.stage == "coda" else 1):
            near = f"nearest: {self.stage}[1].{self.site}"
            raise InputError(f"{self.stage} {self.loop} does not exist: loops are counted from 1 ({near})")
        if self.stage in ("prelude", "coda") and self.site.component == ENTER:
            raise InputError(f"{self.stage} has no {ENTER} (nearest: {replace(self, site=Site(1, 'resid'))})")

    def __str__(self) -> str:
        if self.stage == "prelude":
            return f"prelude.{self.site}"
        return f"{self.stage}[{self.loop}{'' if self.inner is None else f',{self.inner}'}].{self.site}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `loop[7].layer[2].head[2].row[-1].pattern`; raises InputError on anything else."""
        stage, numbers, site = _parse(text, f"loop[7].{_SITE_EXAMPLE}")
        if not stage:
            raise InputError(f"address {shown(text)} names no loop (nearest: loop[1].{site})")
        return Address(numbers[0] if numbers else 0, site, stage, numbers[1] if len(numbers) > 1 else None)


def grid(
    component: str,
    *,
    loops: Iterable[int],
    layers: Iterable[int],
    heads: Iterable[int] | None = None,
    rows: Iterable[Row] | None = None,
) -> tuple[Address, ...]:
    """Addresses of every loop x layer x head, one head each, all of the same rows; `heads=None`: all heads at once."""
    where = tuple(rows) if isinstance(rows, Iterable) else rows
    singles: list[tuple[int, ...] | None] = [None] if heads is None else [(h,) for h in heads]
    return tuple(
        Address(loop, Site(layer, component, head, where))
        for loop, layer, head in itertools.product(list(loops), list(layers), singles)
    )


def _meet(a: tuple[Row, ...] | None, b: tuple[Row, ...] | None) -> bool:
    """Whether two choices of heads or rows can share one.  A row counted from the end may be any counted from 0."""
    if a is None or b is None or any(isinstance(row, Anchor) for row in (*a, *b)):
        return True
    one, two = ([row for row in each if isinstance(row, int)] for each in (a, b))
    return (min(one) < 0 <= max(two)) or (min(two) < 0 <= max(one)) or not set(one).isdisjoint(two)


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def _check_numbers(name: str, numbers: tuple[Row, ...] | None) -> None:
    """InputError for anything but whole numbers that a place may have, and for a list that names no real place."""
    if numbers is None:
        return
    if not isinstance(numbers, tuple):
        raise InputError(f"{name}s are a tuple such as (0, 1), not {shown(numbers)}")
    if len(numbers) > MOST_NAMED:
        raise InputError(f"{name}[...] lists at most {MOST_NAMED} numbers, not {len(numbers)} of them")
    for number in numbers:
        if name == "row" and isinstance(number, Anchor):
            continue
        if not isinstance(number, int) or abs(number) > POSITIONS:
            raise InputError(f"{name}[{shown(number)}] is no place: {name}s have whole numbers of at most {POSITIONS}")


def _distinct(chosen: tuple[Row, ...]) -> bool:
    return 0 < len(chosen) == len(set(chosen))


def parse_rows(text: str) -> tuple[Row, ...] | None:
    """What stands inside `row[...]`: numbers, texts in quotation marks, tokens as <318 9>; None where it is no list."""
    found: list[Row] = []
    at = 0
    while at < len(text) or not found or text.rstrip().endswith(","):
        match = _ITEM.match(text, at)
        if match is None:
            return None
        number, quoted, tokens = match.groups()
        try:
            found.append(
                int(number) if number is not None else Anchor(json.loads(quoted) if quoted else _numbers(tokens))
            )
        except ValueError:
            return None
        at = match.end()
    return tuple(found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def _parse(text: str, example: str) -> tuple[str, tuple[int, ...], Site]:
    """What stage an address names ("" for none), its numbers, and the site."""
    form, said = f"the form is {_FORM}, such as {example}", shown(text)
    rest, at = text.strip(), 0
    found: dict[str, tuple[Row, ...] | None] = {}
    stage = ""
    while match := _PART.match(rest, at):
        name, inside, prelude = match.groups()
        part, at = rest[match.start() : match.end() - 1], match.end()
        kind = name if name in _ORDER else "stage"
        if found and _ORDER.index(kind) <= max(_ORDER.index(each) for each in found):
            raise InputError(f"cannot read {shown(part)} in address {said}; {form}")
        if kind == "stage":
            stage = prelude or name
        chosen = () if prelude else None if inside.strip() == "*" else parse_rows(inside)
        anchored = chosen is not None and any(isinstance(row, Anchor) for row in chosen)
        if (chosen is None and not prelude and inside.strip() != "*") or (anchored and kind != "row"):
            raise InputError(f"cannot read {shown(part)} in address {said}; inside [] stand whole numbers or *; {form}")
        found[kind] = chosen
    component = rest[at:]
    if "." in component or "[" in component:
        part = component if "." not in component else component.rsplit(".", 1)[0].split(".")[0]
        raise InputError(f"cannot read {shown(part)} in address {said}; {form}")
    layer: tuple[Row, ...] | None = (1,) if component == ENTER and "layer" not in found else found.get("layer")
    if layer is None or len(layer) != 1:
        raise InputError(f"address {said} must name one layer; {form}")
    numbers = found.get("stage", ())
    most = 1 if stage in ("loop", "coda") else 2
    if numbers is None or not (stage in ("", "prelude") or 1 <= len(numbers) <= most):
        raise InputError(f"address {said} must name one loop; {form}")
    site = Site(_int(layer[0]), component, _ints(found.get("head")), found.get("row"))
    return stage, _ints(numbers) or (), site


def _int(row: Row) -> int:
    assert isinstance(row, int)  # only rows are named by texts
    return row


def _ints(rows: tuple[Row, ...] | None) -> tuple[int, ...] | None:
    return None if rows is None else tuple(map(_int, rows))
