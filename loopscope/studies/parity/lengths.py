"""Parity far beyond training: up to which length is the answer after t = n calls right, and what does J change?

Backbones are trained on 1-20 bits, maps on 20-40.  Near t = n, accuracy rises and falls with the loop, and where it
peaks drifts with the length.  J may therefore gain accuracy in two ways: by a better computation, or by moving a band
of right answers onto t = n.  Loops around t = n are therefore counted, too; `parity_timing` tells the two apart.

`parity_counts` follows the same strings without J and with J, and counts the right ones, loop by loop.  A string is
right if the parity bit at the separator and the PAD behind it are both right.  Here the counts alone are needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from loopscope.errors import InputError, nearest
from loopscope.quantity import At, Quantity
from loopscope.stats import Estimate
from loopscope.studies.parity.counts import CHECK, CONDITIONS, FAR, HEAT, NATIVE, NEAR, REACH, WITH_J, Counts
from loopscope.studies.records import percent

Published = Mapping[int | None, tuple[float, float]]
"""Published numbers, native and with J, by backbone."""

GAIN = "J minus native"

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
        return self.at(np.arange(first, last + 1))

    def at(self, lengths: Int[np.ndarray, " some"]) -> Band:
        """Those of these lengths that there are."""
        kept = np.isin(self.lengths, lengths)
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


def at_exit(counts: Counts, first: int, last: int, backbone: int | None = None) -> dict[str, Quantity]:
    """Accuracy at t = n over lengths first..last, `parity.exit`, by condition: native, J, and J minus native.

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
    at: At = {"first": first, "last": last}
    return {
        name: Quantity(
            "parity.exit", name, mean_over_lengths(each), band.instances, paper.get(name), {**at, "condition": name}
        )
        for name, each in values.items()
    }


def gains_of(cohort: Mapping[str, Counts]) -> dict[str, Quantity]:
    """J minus native over lengths 101-500, by backbone."""
    return {name: at_exit(counts, *GAINED)[GAIN] for name, counts in cohort.items()}


def gains_most(cohort: Mapping[str, Counts]) -> str:
    """The backbone that gains most by J over 101-500: the one whose far lengths a claim is about."""
    gains = gains_of(cohort)
    return max(gains, key=lambda name: gains[name].estimate.value)


@dataclass(frozen=True)
class Twice:
    """Shares right of strings that were run in fp32 (`exact`) and in less (`near`): means over cells.

    A cell is a length and a loop; it differs by `apart` in the mean and by `most` at most.
    """

    exact: float
    near: float
    apart: float
    most: float


def _run_twice(counts: Counts) -> tuple[Band, Band] | None:
    """The lengths run in fp32, too, and the same of near; None where nothing was run twice."""
    if CHECK not in counts or NEAR not in counts:
        return None
    exact, near = Band.of(counts, CHECK), Band.of(counts, NEAR)
    exact, same = exact.at(near.lengths), near.at(exact.lengths)
    return (exact, same) if len(exact.lengths) else None


def twice(counts: Counts) -> dict[str, Twice] | None:
    """What lower precision changes, by condition; None where nothing was run twice."""
    bands = _run_twice(counts)
    if bands is None:
        return None
    found = {}
    for condition in bands[0].conditions:
        exact, near = (band.accuracy(condition) for band in bands)
        apart = np.abs(exact - near)
        shares = (np.nanmean(exact), np.nanmean(near), np.nanmean(apart), np.nanmax(apart))
        found[condition] = Twice(*map(float, shares))
    return found


def agreement(counts: Counts) -> str | None:
    """The same in words."""
    bands, found = _run_twice(counts), twice(counts)
    if bands is None or found is None:
        return None
    said = [
        f"{condition} {percent(each.near)} % right, {percent(each.exact)} in fp32; a cell differs by "
        f"{percent(each.apart)} points in the mean, {percent(each.most)} at most"
        for condition, each in found.items()
    ]
    return f"{bands[0].measured}, the 21 loops around t = n: {'. '.join(said)}."


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
