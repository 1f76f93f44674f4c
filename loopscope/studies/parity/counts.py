"""Measuring parity: how many strings are right, by length and loop, without J and with it.

What it takes.  Attention is causal and there are no positions, so strings that begin alike would share their states.
But every length has strings of its own, which the protocol draws independently: 32,000 of them share some 15 bits each,
of hundreds, and nothing is saved.  Every string is run for as many calls as it has bits, and ten more: with both
conditions 5.5 billion calls of a token for the lengths up to 500, and 15 billion for those beyond.  So

- one pass serves all loops, only the 21 around t = n are read, and only at the two places that count;
- neighbouring lengths share a batch, large enough to keep a GPU busy without captured graphs;
- F runs as the kernels of `loopscope.training`, whose products may be in fp16 (`products`); `check` then runs some
  lengths in fp32 too, so that every record says what that changes;
- the whole is cut into `pieces`, each of which a campaign keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Int32, UInt8
from torch import Tensor

from loopscope.errors import InputError
from loopscope.model import LoopedTransformer
from loopscope.protocol import TokenMap
from loopscope.tasks.parity import evaluation_bits, make_batch
from loopscope.training.cohort.cohort import Cohort, Precision, State, frozen, products

Counts = dict[str, dict[str, Tensor]]
"""By part (near, far, heat, check) and name; see `measure`."""

NEAR, FAR, HEAT, CHECK = "near", "far", "heat", "check"
CONDITIONS = NATIVE, WITH_J = ("native", "J")

REACH = 10
"""Loops read on either side of t = n."""

NEAR_BASE, FAR_BASE, HEAT_BASE, PER_BACKBONE = 2026083901, 2026092401, 2026083201, 100
"""Seeds of the strings, see `evaluation_bits`.  All but the far ones are other strings for every backbone."""

QUICK: Mapping[str, Any] = {"near": [45, 125, 20], "strings": 8, "far": None, "heat": 16, "heat_strings": 8}
"""Settings of `measure` for a CPU: five lengths, few strings, and nothing beyond 125 bits."""

TOKENS = {"cpu": 2**11, "cuda": 2**17}
"""Tokens that advance together: what keeps a GPU busy, and what a CPU's caches bear."""

PRODUCTS: tuple[Precision, ...] = get_args(Precision)

PIECE = 10**9
"""Calls of a token in one piece, at most, where it has more than one length: seconds on a GPU."""


@dataclass(frozen=True)
class Scope:
    """What to measure: lengths as first, last, step (None: not at all), and how many strings of each.

    `heat`: lengths and loops 1 to this, 0 for none.  `check`: lengths that are run in fp32, too, with the strings of
    `near`.  `products`: precision of the products on a GPU (see `Cohort`); a CPU computes in fp32.
    """

    near: Sequence[int] | None = (1, 500, 1)
    strings: int = 64
    far: Sequence[int] | None = (500, 1000, 5)
    far_strings: int = 128
    heat: int = 60
    heat_strings: int = 256
    check: Sequence[int] | None = None
    products: Precision = "fp32"

    @property
    def bands(self) -> list[tuple[str, range, int, int]]:
        """The parts read around t = n that there are: name, lengths, strings, and the base of their seeds."""
        parts = (NEAR, self.near, self.strings, NEAR_BASE), (FAR, self.far, self.far_strings, FAR_BASE), (
            CHECK, self.check, self.strings, NEAR_BASE
        )  # fmt: skip
        return [(part, _lengths(grid), strings, base) for part, grid, strings, base in parts if grid is not None]


def measure(model: LoopedTransformer, step: TokenMap | None, seed: int, **settings: Any) -> Counts:
    """How many strings are right, by part; `seed` is the backbone's, and J (if any) acts before calls 2, 3, ...

    - `near`, `far`, `check`: as `measure_bands`, for lengths first, first + step, ..., last; `check` is in fp32.
    - `heat`: as `measure_heat`.

    Settings are those of `Scope`.  Runs where the model is.  The lengths and the number of strings are among the
    counts, so that a smaller grid shows.
    """
    scope, parts = Scope(**settings), {}
    own = PER_BACKBONE * seed
    for part, lengths, strings, base in scope.bands:
        first, precision = base + own * (part != FAR), scope.products if part != CHECK else "fp32"
        parts[part] = measure_bands(model, step, lengths, strings, first, precision)
    if scope.heat:
        parts[HEAT] = measure_heat(model, step, scope.heat, scope.heat_strings, HEAT_BASE + own, scope.products)
    return parts


def measure_bands(
    model: LoopedTransformer,
    step: TokenMap | None,
    lengths: Sequence[int],
    strings: int,
    base: int,
    precision: Precision = "fp32",
) -> dict[str, Tensor]:
    """Right strings of every length n at the loops t = n - 10, ..., n + 10; int32 tensors on the CPU.

    - `lengths` [lengths], increasing; `strings` [2], the strings of each half.
    - `right` [conditions, halves, lengths, offsets]: native and, with a map, J.  -1 where there is no loop t >= 1.

    Halves, so that whatever is chosen on one can be scored on the other.  InputError for fewer than two strings, or
    lengths that are none.
    """
    if strings < 2:
        raise InputError(f"{strings} strings cannot be split into halves (nearest: 2)")
    if not lengths or lengths[0] < 1 or any(b <= a for a, b in pairwise(lengths)):
        raise InputError(f"lengths must be increasing whole numbers from 1 on, not {list(lengths)}")
    halves = [strings // 2, strings - strings // 2]
    found = []
    for group in _groups(lengths, strings, model, step):
        loops = range(max(1, group[0] - REACH), group[-1] + REACH + 1)
        right = _right_by_loop(model, step, group, strings, base, loops, precision)
        found += [_around(right[:, :, place], n, loops, halves) for place, n in enumerate(group)]
    return {"lengths": _int32(lengths), "strings": _int32(halves), "right": torch.stack(found, 2)}


def measure_heat(
    model: LoopedTransformer, step: TokenMap | None, last: int, strings: int, base: int, precision: Precision = "fp32"
) -> dict[str, Tensor]:
    """Right strings of the lengths 1..last at the loops 1..last; int32 tensors on the CPU.

    `lengths` [last], `strings` [1], `right` [conditions, lengths, loops].  InputError for less than one of either.
    """
    if last < 1 or strings < 1:
        raise InputError(f"{strings} strings of 1 to {last} bits make no heat map (nearest: 1 of each)")
    found = [
        _right_by_loop(model, step, group, strings, base, range(1, last + 1), precision)
        .sum(-1, dtype=torch.int32)
        .permute(1, 2, 0)
        for group in _groups(range(1, last + 1), strings, model, step)
    ]
    return {"lengths": _int32(range(1, last + 1)), "strings": _int32([strings]), "right": torch.cat(found, 1)}


def right_strings(
    model: LoopedTransformer, step: TokenMap | None, length: int, strings: range, base: int = FAR_BASE
) -> UInt8[Tensor, "conditions offsets strings"]:
    """Whether single strings of one length are right (1) or not (0) at the loops t = n - 10, ..., n + 10, in fp32.

    `strings` are numbers of those that `evaluation_bits` draws: strings that were counted in another precision can be
    compared with these.  InputError for no strings, or a length with fewer loops before t = n.
    """
    if length <= REACH or not strings or strings.start < 0 or strings.step != 1:
        raise InputError(
            f"neighbouring strings of more than {REACH} bits are asked for, not {strings} of {length} bits"
        )
    together = max(1, _tokens(model) // ((length + 2) * (1 if step is None else 2)))
    loops = range(length - REACH, length + REACH + 1)
    found = []
    for first in range(strings.start, strings.stop, together):
        many = min(together, strings.stop - first)
        found.append(_right_by_loop(model, step, [length], many, base, loops, "fp32", skipped=first)[:, :, 0])
    return torch.cat(found, -1).transpose(0, 1).to(torch.uint8)


# ---- pieces ----------------------------------------------------------------------------------------------------------


def pieces(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings of `measure` that together measure what these do, each at a cost of about `PIECE`; see `whole`."""
    scope = Scope(**settings)
    if sum(calls_of_tokens(lengths, strings) for _, lengths, strings, _ in scope.bands) <= PIECE:
        return [dict(settings)]
    nothing: dict[str, Any] = {"near": None, "far": None, "heat": 0}
    fast = nothing | ({} if scope.products == "fp32" else {"products": scope.products})
    found = []
    for part, lengths, strings, _ in scope.bands:
        size = {"far_strings" if part == FAR else "strings": strings}
        for cut in _cut(lengths, strings):
            found.append((nothing if part == CHECK else fast) | {part: [cut[0], cut[-1], lengths.step]} | size)
    if scope.heat:
        found.append(fast | {"heat": scope.heat, "heat_strings": scope.heat_strings})
    return found


def calls_of_tokens(lengths: Sequence[int], strings: int) -> int:
    """What a band costs, with both conditions: a string of n bits has n + 2 tokens and takes n + 10 calls."""
    return 2 * strings * sum((n + 2) * (n + REACH) for n in lengths)


def _cut(lengths: range, strings: int) -> Iterator[range]:
    """Runs of neighbouring lengths that cost up to `PIECE`, at least one length each."""
    first = 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or calls_of_tokens(lengths[first : end + 1], strings) > PIECE:
            yield lengths[first:end]
            first = end


def whole(found: Sequence[Counts]) -> Counts:
    """What was measured in pieces, as one; see `joined`."""
    parts = dict.fromkeys(part for each in found for part in each)
    return {part: joined([each[part] for each in found if part in each]) for part in parts}


def joined(found: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """One part from pieces with ever longer lengths, each as `measure_bands` gave it; a single one as it is.

    InputError unless all have the same conditions and as many strings.
    """
    if len(found) == 1:
        return dict(found[0])
    lengths = torch.cat([piece["lengths"] for piece in found])
    alike = {(tuple(piece["strings"].tolist()), len(piece["right"])) for piece in found}
    if len(alike) > 1 or bool((lengths.diff() <= 0).any()):
        raise InputError("pieces can be joined if lengths grow and all have the same strings a length and conditions")
    right = torch.cat([piece["right"] for piece in found], 2)
    return {"lengths": lengths, "strings": found[0]["strings"], "right": right}


# ---- one batch -------------------------------------------------------------------------------------------------------


def _lengths(grid: Sequence[int]) -> range:
    match list(grid):
        case [int(first), int(last), int(every)] if 1 <= first <= last and every >= 1:
            return range(first, last + 1, every)
    raise InputError(f"lengths are given as first, last, step with 1 <= first <= last and step >= 1, not {list(grid)}")


def _groups(
    lengths: Sequence[int], strings: int, model: LoopedTransformer, step: TokenMap | None
) -> Iterator[Sequence[int]]:
    """Neighbouring lengths that share a batch, as many as `TOKENS` allows for, at least one."""
    allowed = _tokens(model) // (strings * (1 if step is None else 2))
    first = 0
    for end, n in enumerate(lengths):
        if first < end and (end + 1 - first) * (n + 2) > allowed:
            yield lengths[first:end]
            first = end
    yield lengths[first:]


def _tokens(model: LoopedTransformer) -> int:
    return TOKENS.get(next(model.parameters()).device.type, TOKENS["cpu"])


@torch.no_grad()
def _right_by_loop(
    model: LoopedTransformer,
    step: TokenMap | None,
    lengths: Sequence[int],
    strings: int,
    base: int,
    loops: range,
    precision: Precision,
    skipped: int = 0,
) -> Bool[Tensor, "loops conditions lengths strings"]:
    """Whether each string is right after each of these loops, on the CPU; one pass, both conditions in turn.

    All strings are padded to the longest.  Attention is causal, so nothing behind the PAD that belongs to a string can
    change its answer: it is the one of a batch of that length alone, up to float rounding.  `skipped`: so many strings
    of each length come before the first one that is run.  InputError where a state is no longer finite.
    """
    device, longest = next(model.parameters()).device, lengths[-1]
    drawn = (evaluation_bits(n, skipped + strings, base)[skipped:] for n in lengths)
    bits = torch.cat([nnf.pad(each, (0, longest - each.shape[-1])) for each in drawn])
    own = torch.tensor(lengths).repeat_interleave(strings)
    batch = make_batch(bits, own, longest)
    size, answer = longest + 2, own[:, None] + torch.arange(2)  # the separator and one PAD: a string alone has no more
    expected = batch.targets.gather(1, answer).to(device)
    places = (torch.arange(len(bits))[:, None] * size + answer).flatten().to(device)
    cohort = Cohort(model.config, frozen(model, device), precision)
    states = [cohort.embed(batch.tokens.to(device)[None])] * (1 if step is None else 2)
    right = torch.empty(len(loops), len(states), len(bits), dtype=torch.bool, device=device)
    with products(precision):
        for call in range(1, loops.stop):
            for condition, state in enumerate(states):
                if condition and call > 1:
                    assert step is not None
                    state = State(step(cohort.settle(state)))
                state = cohort.call(state, size, again=not condition)
                states[condition] = state
                if call in loops:
                    answered = cohort.read(cohort.settle(state)[:, places]).argmax(-1).view(-1, 2)
                    right[call - loops.start, condition] = (answered == expected).all(-1)
    if not all(bool(cohort.settle(state).isfinite().all()) for state in states):
        raise InputError(f"states of {longest} bits are not finite after {loops.stop - 1} calls in {precision}")
    return right.cpu().unflatten(-1, (len(lengths), strings))


def _around(
    right: Bool[Tensor, "loops conditions strings"], length: int, loops: range, halves: list[int]
) -> Int32[Tensor, "conditions halves offsets"]:
    """The counts of one length at loops n - 10, ..., n + 10; -1 where there is none."""
    missing = max(0, REACH + 1 - length)
    first = length - REACH + missing
    read = right[first - loops.start : length + REACH + 1 - loops.start]
    counts = torch.stack([half.sum(-1, dtype=torch.int32) for half in read.split(halves, -1)])
    return nnf.pad(counts.permute(2, 0, 1), (missing, 0), value=-1)


def _int32(values: Sequence[int]) -> Int32[Tensor, " n"]:
    return torch.tensor(list(values), dtype=torch.int32)
