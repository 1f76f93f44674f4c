"""Parity far beyond training: up to which length is the answer after t = n calls right, and what does J change?

Backbones are trained on 1-20 bits, maps on 20-40.  Near t = n, accuracy rises and falls with the loop, and where it
peaks drifts with the length.  J may therefore gain accuracy in two ways: by a better computation, or by moving a band
of right answers onto t = n.  Loops around t = n are therefore counted, too; `parity_timing` tells the two apart.

Measuring follows the same strings without J and with J, and counts the right ones, loop by loop.  A string is right
if the parity bit at the separator and the PAD behind it are both right.  Everything else needs the counts alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from loopscope.errors import InputError, nearest
from loopscope.experiments.records import Row
from loopscope.model import LoopedTransformer
from loopscope.protocol import TokenMap
from loopscope.stats import Estimate
from loopscope.tasks.parity import evaluation_bits, make_batch

Counts = dict[str, dict[str, Tensor]]
"""By part (near, far, heat) and name; see `measure`."""

Published = Mapping[int | None, tuple[float, float]]
"""Published numbers, native and with J, by backbone."""

NEAR, FAR, HEAT = "near", "far", "heat"
CONDITIONS = NATIVE, WITH_J = ("native", "J")
GAIN = "J minus native"

REACH = 10
"""Loops read on either side of t = n."""

NEAR_BASE, FAR_BASE, HEAT_BASE, PER_BACKBONE = 2026083901, 2026092401, 2026083201, 100
"""Seeds of the strings, see `evaluation_bits`.  All but the far ones are other strings for every backbone."""

QUICK: Mapping[str, Any] = {"near": (45, 125, 20), "strings": 8, "far": None, "heat": 16, "heat_strings": 8}
"""Settings of `measure` for a CPU: five lengths, few strings, and nothing beyond 125 bits."""

TOKENS = {"cpu": 2**12, "cuda": 2**16}
"""Tokens that advance together: what keeps a GPU busy, and what a CPU's caches bear."""

BANDS = {(1, 100): NEAR, (101, 500): NEAR, (505, 1000): FAR}
"""Ranges of lengths that are averaged, and the part they are in."""

GAINED, LIMIT = (101, 500), (505, 1000)
"""Where the claims say that J helps, and that it no longer does."""

PAPER_ACCURACY: Published = {
    0: (0.3527, 0.5571),
    1: (0.4403, 0.4524),
    2: (0.4505, 0.7373),
}
PAPER_LIMIT: Published = {2: (0.4755, 0.3640)}
"""Published accuracies over `GAINED` and over `LIMIT`."""

SEED = 2026092317
BLOCK, DRAWS = 20, 5_000
RESAMPLED = "mean over lengths with equal weight; blocks of neighbouring lengths are resampled"


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(
    model: LoopedTransformer,
    step: TokenMap | None,
    seed: int,
    *,
    near: Sequence[int] | None = (1, 500, 1),
    strings: int = 64,
    far: Sequence[int] | None = (500, 1000, 5),
    far_strings: int = 128,
    heat: int = 60,
    heat_strings: int = 256,
) -> Counts:
    """How many strings are right, by part; `seed` is the backbone's, and J (if any) acts before calls 2, 3, ...

    - `near`, `far`: as `measure_bands`, for lengths first, first + step, ..., last.
    - `heat`: as `measure_heat`, lengths and loops 1 to `heat`.

    None (0 for `heat`) leaves a part out.  Runs where the model is, in its precision.  The lengths and the number of
    strings are among the counts, so that a smaller grid shows.
    """
    parts: Counts = {}
    own = PER_BACKBONE * seed
    if near is not None:
        parts[NEAR] = measure_bands(model, step, _lengths(near), strings, NEAR_BASE + own)
    if far is not None:
        parts[FAR] = measure_bands(model, step, _lengths(far), far_strings, FAR_BASE)
    if heat:
        parts[HEAT] = measure_heat(model, step, heat, heat_strings, HEAT_BASE + own)
    return parts


def measure_bands(
    model: LoopedTransformer, step: TokenMap | None, lengths: Sequence[int], strings: int, base: int
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
        right = _right_by_loop(model, step, group, strings, base, group[-1] + REACH)
        found += [_around(right[:, :, place], n, halves) for place, n in enumerate(group)]
    return {"lengths": _int32(lengths), "strings": _int32(halves), "right": torch.stack(found, 2)}


def joined(pieces: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """One part from pieces with ever longer lengths, each as `measure_bands` gave it.

    InputError unless all have the same conditions and as many strings.
    """
    lengths = torch.cat([piece["lengths"] for piece in pieces])
    alike = {(tuple(piece["strings"].tolist()), len(piece["right"])) for piece in pieces}
    if len(alike) > 1 or bool((lengths.diff() <= 0).any()):
        raise InputError("pieces can be joined if lengths grow and all have the same strings a length and conditions")
    right = torch.cat([piece["right"] for piece in pieces], 2)
    return {"lengths": lengths, "strings": pieces[0]["strings"], "right": right}


def measure_heat(
    model: LoopedTransformer, step: TokenMap | None, last: int, strings: int, base: int
) -> dict[str, Tensor]:
    """Right strings of the lengths 1..last at the loops 1..last; int32 tensors on the CPU.

    `lengths` [last], `strings` [1], `right` [conditions, lengths, loops].  InputError for less than one of either.
    """
    if last < 1 or strings < 1:
        raise InputError(f"{strings} strings of 1 to {last} bits make no heat map (nearest: 1 of each)")
    found = [
        _right_by_loop(model, step, group, strings, base, last).sum(-1, dtype=torch.int32).permute(1, 2, 0)
        for group in _groups(range(1, last + 1), strings, model, step)
    ]
    return {"lengths": _int32(range(1, last + 1)), "strings": _int32([strings]), "right": torch.cat(found, 1)}


def _lengths(grid: Sequence[int]) -> range:
    match list(grid):
        case [int(first), int(last), int(every)] if 1 <= first <= last and every >= 1:
            return range(first, last + 1, every)
    raise InputError(f"lengths are given as first, last, step with 1 <= first <= last and step >= 1, not {list(grid)}")


def _groups(
    lengths: Sequence[int], strings: int, model: LoopedTransformer, step: TokenMap | None
) -> Iterator[Sequence[int]]:
    """Neighbouring lengths that share a batch, as many as `TOKENS` allows for, at least one."""
    allowed = TOKENS.get(next(model.parameters()).device.type, TOKENS["cpu"]) // (strings * (1 if step is None else 2))
    first = 0
    for end, n in enumerate(lengths):
        if first < end and (end + 1 - first) * (n + 2) > allowed:
            yield lengths[first:end]
            first = end
    yield lengths[first:]


@torch.no_grad()
def _right_by_loop(
    model: LoopedTransformer, step: TokenMap | None, lengths: Sequence[int], strings: int, base: int, loops: int
) -> Bool[Tensor, "loops conditions lengths strings"]:
    """Whether each string is right after each of `loops` calls, on the CPU; one pass, both conditions side by side.

    All strings are padded to the longest.  Attention is causal, so nothing behind the PAD that belongs to a string can
    change its answer: it is the one of a batch of that length alone, up to float rounding.
    """
    device, longest = next(model.parameters()).device, lengths[-1]
    bits = torch.cat([nnf.pad(evaluation_bits(n, strings, base), (0, longest - n)) for n in lengths])
    own = torch.tensor(lengths).repeat_interleave(strings)
    batch = make_batch(bits, own, longest)
    answer = own[:, None] + torch.arange(2)  # the separator and one PAD: a string alone has no more
    expected = batch.targets.gather(1, answer).to(device)
    native, conditions = len(bits), 1 if step is None else 2
    h = model.embed(batch.tokens.to(device)).repeat(conditions, 1, 1)
    each, rows = torch.arange(len(h), device=device)[:, None], answer.to(device).repeat(conditions, 1)
    right = torch.empty(loops, conditions, native, dtype=torch.bool, device=device)
    for call in range(1, loops + 1):
        if step is not None and call > 1:
            h[native:] = step(h[native:])
        h = model.call(h)
        told = model.read(h[each, rows]).argmax(-1).view(conditions, native, 2)
        right[call - 1] = (told == expected).all(-1)
    return right.cpu().unflatten(-1, (len(lengths), strings))


def _around(
    right: Bool[Tensor, "loops conditions strings"], length: int, halves: list[int]
) -> Int32[Tensor, "conditions halves offsets"]:
    """The counts of one length at loops n - 10, ..., n + 10; -1 where there is none."""
    missing = max(0, REACH + 1 - length)
    loops = right[length - REACH - 1 + missing : length + REACH]
    counts = torch.stack([half.sum(-1, dtype=torch.int32) for half in loops.split(halves, -1)])
    return nnf.pad(counts.permute(2, 0, 1), (missing, 0), value=-1)


def _int32(values: Sequence[int]) -> Int32[Tensor, " n"]:
    return torch.tensor(list(values), dtype=torch.int32)


# ---- bands -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Band:
    """The counts around t = n of some lengths; see `measure_bands`."""

    lengths: Int[np.ndarray, " lengths"]
    strings: Int[np.ndarray, " halves"]
    right: Int[np.ndarray, "conditions halves lengths offsets"]

    @classmethod
    def of(cls, counts: Counts, part: str) -> Band:
        """One part of what was measured; InputError where it was not."""
        if part not in counts:
            there = ", ".join(counts) or "none"
            raise InputError(f"part {part!r} was not measured; there are {there}{nearest(part, counts)}")
        found = counts[part]
        return cls(*(found[name].long().numpy() for name in ("lengths", "strings", "right")))

    @property
    def conditions(self) -> tuple[str, ...]:
        """Native and, if there was a map, J."""
        return CONDITIONS[: len(self.right)]

    @property
    def instances(self) -> int:
        """Strings of all lengths together."""
        return int(self.strings.sum()) * len(self.lengths)

    @property
    def measured(self) -> str:
        """Which lengths, in words."""
        if not len(self.lengths):
            return "no lengths"
        span = f"{len(self.lengths)} lengths from {self.lengths[0]} to {self.lengths[-1]}"
        return f"{span}, {self.strings.sum()} strings each"

    def within(self, first: int, last: int) -> Band:
        """The lengths from first to last."""
        kept = (first <= self.lengths) & (self.lengths <= last)
        return Band(self.lengths[kept], self.strings, self.right[:, :, kept])

    def accuracy(self, condition: str, half: int | None = None) -> Float[np.ndarray, "lengths offsets"]:
        """The share that is right, of all strings or of one half; NaN where there is no loop."""
        right = self.right[CONDITIONS.index(condition)]
        of, k = (right.sum(0), self.strings.sum()) if half is None else (right[half], self.strings[half])
        return np.where(of < 0, np.nan, of / k)

    def at_n(self, condition: str) -> Float[np.ndarray, " lengths"]:
        """The share that is right at t = n."""
        return self.accuracy(condition)[:, REACH]


def measured(counts: Counts, first: int, last: int, part: str | None = None) -> Band | None:
    """The lengths of a range, if at least two of them were measured; `part`: as in `BANDS` unless given."""
    where = part or BANDS.get((first, last), NEAR)
    band = Band.of(counts, where).within(first, last) if where in counts else None
    return band if band is not None and len(band.lengths) >= 2 else None


def mean_over_lengths(values: Float[np.ndarray, " lengths"]) -> Estimate:
    """The mean of one number for each length, with blocks of 20 neighbouring ones (of few, a quarter) resampled.

    Blocks may start anywhere and go on from the first length after the last, so that each length counts alike.
    InputError for fewer than two lengths.
    """
    n = len(values)
    if n < 2:
        raise InputError(f"a mean over lengths needs at least two of them: got {n}")
    block = block_of(n)
    starts = np.random.default_rng(SEED).integers(n, size=(DRAWS, math.ceil(n / block)))
    chosen = (starts[:, :, None] + np.arange(block)).reshape(DRAWS, -1)[:, :n] % n
    low, high = np.quantile(values[chosen].mean(1), [0.025, 0.975])
    return Estimate(float(values.mean()), float(low), float(high), n, f"block of {block} lengths", DRAWS)


def block_of(points: int) -> int:
    """How many neighbouring points make a block: the paper's 20, or a quarter of few points."""
    return max(1, min(BLOCK, points // 4))


def smoothed(
    lengths: Int[np.ndarray, " lengths"], values: Float[np.ndarray, " lengths"], window: int
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Moving means of both; the published curve takes windows of 10 lengths up to 500 and of 2 measured ones beyond."""
    weights = np.full(window, 1 / window)
    return np.convolve(lengths, weights, "valid"), np.convolve(values, weights, "valid")


# ---- accuracy at t = n -----------------------------------------------------------------------------------------------


def at_exit(counts: Counts, first: int, last: int, backbone: int | None = None) -> dict[str, Row]:
    """Accuracy at t = n over lengths first..last: native, J, and J minus native.

    `backbone` is the published one whose numbers stand beside.  InputError where fewer than two lengths are measured.
    """
    band = Band.of(counts, BANDS.get((first, last), NEAR)).within(first, last)
    known = {GAINED: PAPER_ACCURACY, LIMIT: PAPER_LIMIT}.get((first, last), {}).get(
        -1 if backbone is None else backbone
    )
    paper = {} if known is None else dict(zip(CONDITIONS, known, strict=True))
    if known is not None:
        paper[GAIN] = known[1] - known[0]
    values = {condition: band.at_n(condition) for condition in band.conditions}
    if WITH_J in values:
        values[GAIN] = values[WITH_J] - values[NATIVE]
    return {name: Row(name, mean_over_lengths(each), band.instances, paper.get(name)) for name, each in values.items()}


def claim_gain(cohort: Mapping[str, Counts], published: Mapping[str, int] | None = None) -> dict[str, Row]:
    """J minus native over lengths 101-500, by backbone; `published` names the published backbone to put beside each."""
    known = published or {}
    return {name: at_exit(counts, *GAINED, known.get(name))[GAIN] for name, counts in cohort.items()}


def claim_limit(cohort: Mapping[str, Counts], published: Mapping[str, int] | None = None) -> tuple[str, dict[str, Row]]:
    """The backbone that gains most over 101-500, and its accuracy over 505-1000: native, J, J minus native.

    InputError where its far lengths were not measured.
    """
    gains = claim_gain(cohort)
    most = max(gains, key=lambda name: gains[name].estimate.value)
    return most, at_exit(cohort[most], *LIMIT, (published or {}).get(most))


# ---- heat map --------------------------------------------------------------------------------------------------------


def heat_map(counts: Counts) -> dict[str, Float[np.ndarray, "lengths loops"]]:
    """Accuracy by length 1, 2, ... and loop 1, 2, ..., for each condition; InputError where it was not measured."""
    if HEAT not in counts:
        raise InputError(f"part {HEAT!r} was not measured; there are {', '.join(counts) or 'none'}")
    found = counts[HEAT]
    shares = found["right"].double().numpy() / int(found["strings"])
    return dict(zip(CONDITIONS, shares, strict=False))


def best_nearby(heat: Float[np.ndarray, "lengths loops"]) -> list[int | None]:
    """For each length n, which of the loops n - 1, n, n + 1 on the map is best; None where that is a tie."""
    found: list[int | None] = []
    for n, row in enumerate(heat, 1):
        loops = [t for t in (n - 1, n, n + 1) if 1 <= t <= heat.shape[1]]
        most = max(row[t - 1] for t in loops)
        best = [t for t in loops if row[t - 1] == most]
        found.append(best[0] if len(best) == 1 else None)
    return found
