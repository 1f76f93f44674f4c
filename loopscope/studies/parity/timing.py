"""Parity readouts early and late: does J improve the computation, or does it move right answers onto t = n?

Near t = n, accuracy rises and falls with a period of about four loops, and where it peaks drifts with the length.
`timings` gives that drift, by the paper's estimator and by a robust one; `exits` reads the same runs at other loops.
All of it follows from the counts of `parity_counts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.stats import Estimate, Line
from loopscope.studies.parity.counts import FAR, NATIVE, NEAR, REACH, WITH_J, Counts
from loopscope.studies.parity.lengths import (
    BANDS,
    DRAWS,
    GAIN,
    LIMIT,
    RESAMPLED,
    Band,
    at_exit,
    block_of,
    mean_over_lengths,
    measured,
)
from loopscope.studies.parity.phase import (
    PERIOD,
    Phase,
    coherence,
    coherence_by_chance,
    drift_bootstrap,
    phase_robust,
    phase_unwrapped,
    project_bands,
)

FITTED = (41, 490)
"""Lengths of the phase: none of them was used in training, and all their offsets are measured."""

PAPER_TIMING: Mapping[int | None, tuple[tuple[float, float], tuple[float, float]]] = {
    0: ((0.573, 0.065), (-0.327, 0.069)), 1: ((1.312, 0.174), (1.731, 0.743)), 2: ((-0.961, 0.066), (-0.183, 0.052)),
}  # fmt: skip
"""Published (drift, MAE), native and with J, by backbone."""

DRIFT_SEEDS = (20260805, 20260806)
"""Of the moving blocks, native and with J."""

CHANCE_SEED = 20260807
"""Of random phases."""


# ---- timing ----------------------------------------------------------------------------------------------------------


Estimator = Literal["unwrapped", "robust"]
"""The paper's, and ours."""


@dataclass(frozen=True)
class Timing:
    """Where the band of right answers lies, relative to t = n, by one estimator (see `loopscope.studies.parity.phase`).

    `drift` is in loops per 100 tokens, `mae` the mean deviation from the line in loops, `intercept` where the line
    starts.  `slips` counts the lengths that the paper's unwrapping puts on another period than the robust estimator
    does.  `period` is the one that fits the bands best; both estimators assume 4.  `coherence` says how nearly all
    lengths lie on one line, `by_chance` what random phases reach.  `paper`: published (drift, MAE).
    """

    condition: str
    estimator: Estimator
    drift: Estimate
    mae: Estimate
    intercept: float
    r2: float
    slips: int
    period: float
    coherence: float
    by_chance: float
    paper: tuple[float, float] | None = None

    @property
    def lies_somewhere(self) -> bool:
        """Whether there is a line at all, of which a drift could be told."""
        return self.coherence > self.by_chance


def timings(counts: Counts, backbone: int | None = None) -> list[Timing]:
    """Phase and drift over lengths 41-490, of each condition, by the paper's estimator and by the robust one.

    A condition is left out where accuracy varies over loops at fewer than four lengths.
    """
    band = Band.of(counts, NEAR).within(*FITTED)
    found = []
    for place, condition in enumerate(band.conditions):
        phases = Phases.of(band, condition)
        if phases is None:
            continue
        fitted: dict[Estimator, Phase] = {"unwrapped": phases.unwrapped, "robust": phases.robust}
        for estimator, phase in fitted.items():
            known = PAPER_TIMING.get(backbone) if estimator == "unwrapped" else None
            drift = drift_bootstrap(phase, seed=DRIFT_SEEDS[place], block=block_of(len(phase.lengths)), draws=DRAWS)
            residuals = phase.offsets - _on(phase.line, phase.lengths)
            found.append(
                Timing(
                    condition, estimator, drift, mean_over_lengths(np.abs(residuals)), phase.line.intercept,
                    phase.line.r2, phases.slips, phases.period, *phases.coherence,
                    None if known is None else known[place],
                )
            )  # fmt: skip
    return found


@dataclass(frozen=True, eq=False)
class Phases:
    """The phase of one condition by both estimators, over the lengths at which accuracy varies with the loop."""

    lengths: Int[np.ndarray, " lengths"]
    accuracy: Float[np.ndarray, "lengths offsets"]

    @classmethod
    def of(cls, band: Band, condition: str, half: int | None = None) -> Phases | None:
        """None where there are fewer than four such lengths."""
        accuracy = band.accuracy(condition, half)
        varies = np.ptp(accuracy, axis=1) > 0  # not NaN either: all loops are there
        return cls(band.lengths[varies], accuracy[varies]) if varies.sum() >= 4 else None

    @cached_property
    def unwrapped(self) -> Phase:
        """The paper's."""
        return phase_unwrapped(self.lengths, self.accuracy)

    @cached_property
    def robust(self) -> Phase:
        """One that a single noisy length cannot fool."""
        return phase_robust(self.lengths, self.accuracy)

    @property
    def slips(self) -> int:
        """Lengths on another period, the first of them taken as right."""
        apart = np.rint((self.unwrapped.offsets - self.robust.offsets) / PERIOD)
        return int((apart != apart[0]).sum())

    @cached_property
    def coherence(self) -> tuple[float, float]:
        """How nearly all lengths lie on one line, and how nearly they would by chance."""
        chance = coherence_by_chance(self.lengths, self.accuracy, seed=CHANCE_SEED)
        return coherence(self.lengths, self.accuracy), chance

    @cached_property
    def period(self) -> float:
        """The period, of 2.5 to 8 loops, with the greatest mean amplitude; a check of the one that is assumed."""
        periods = np.linspace(2.5, 8, 551)
        return float(periods[np.argmax([np.abs(project_bands(self.accuracy, each)).mean() for each in periods])])


def _on(line: Line, lengths: Int[np.ndarray, " lengths"]) -> Float[np.ndarray, " lengths"]:
    return line.slope * lengths + line.intercept


# ---- computation or timing? ------------------------------------------------------------------------------------------

AT_N, SHIFTED, CHOSEN, BEST = "t = n", "on the line", "best offset of the other half", "best offset"
"""Ways to choose the loop that is read; see `exits`."""

SCORED = "lines and offsets from one half of the strings, scored on the other"


def exits(fit: Band, test: Band, at: At = MappingProxyType({})) -> list[Quantity]:
    """How often each condition is right over the lengths of `test`, when the loop that is read is chosen

    - `t = n`: as trained;
    - `on the line`: by a fixed linear shift, the robust line through the bands of `fit`, to the nearest loop;
    - `best offset of the other half`: for each length, that of the 21 which is best on the other strings;
    - `best offset`: the best of the 21 on these strings themselves, which chance flatters.

    Line and offsets come from one half of the strings and are scored on the other, in turn.  Offsets on the line are
    taken modulo the period of four, from -2 to 2.  Quantities are `parity.loop` at `condition` and `way`, besides `at`.
    With J come differences J minus native for each way, and `parity.loop.shift`: what the shift without J gains over J
    at t = n.
    """
    values: dict[tuple[str, str], Float[np.ndarray, " lengths"]] = {}
    for condition in test.conditions:
        halves = [test.accuracy(condition, half) for half in (0, 1)]
        values[condition, AT_N] = test.at_n(condition)
        phases = [Phases.of(fit, condition, half) for half in (1, 0)]
        lines = [phase.robust.line for phase in phases if phase is not None]
        if len(lines) == 2:
            scored = [_at(half, nearest_loop(line, test.lengths)) for half, line in zip(halves, lines, strict=True)]
            values[condition, SHIFTED] = np.mean(scored, 0)
        others = [best_offsets(half) for half in reversed(halves)]
        values[condition, CHOSEN] = np.mean([_at(half, best) for half, best in zip(halves, others, strict=True)], 0)
        values[condition, BEST] = np.nanmax(test.accuracy(condition), 1)
    for way in (AT_N, SHIFTED, CHOSEN, BEST):
        if (NATIVE, way) in values and (WITH_J, way) in values:
            values[GAIN, way] = values[WITH_J, way] - values[NATIVE, way]
    n, rows = test.instances, []
    for (condition, way), each in values.items():
        place: At = {**at, "condition": condition, "way": way}
        rows.append(Quantity("parity.loop", f"{condition}, {way}", mean_over_lengths(each), n, None, place))
    if (NATIVE, SHIFTED) in values and (WITH_J, AT_N) in values:
        label, shift = f"native, {SHIFTED}, minus J, {AT_N}", values[NATIVE, SHIFTED] - values[WITH_J, AT_N]
        rows.append(Quantity("parity.loop.shift", label, mean_over_lengths(shift), n, None, at))
    return rows


def nearest_loop(line: Line, lengths: Int[np.ndarray, " lengths"]) -> Int[np.ndarray, " lengths"]:
    """The whole offset nearest to the line, taken modulo the period: -2 to 2."""
    half = PERIOD / 2
    return np.rint((_on(line, lengths) + half) % PERIOD - half).astype(np.int64)


def best_offsets(accuracy: Float[np.ndarray, "lengths offsets"]) -> Int[np.ndarray, " lengths"]:
    """The offset at which each length is most often right; of equal ones the nearest to t = n, the earlier first."""
    offsets = np.array(sorted(range(-REACH, REACH + 1), key=lambda d: (abs(d), d)))
    return offsets[np.nanargmax(accuracy[:, offsets + REACH], 1)]


def _at(
    accuracy: Float[np.ndarray, "lengths offsets"], offsets: Int[np.ndarray, " lengths"]
) -> Float[np.ndarray, " lengths"]:
    return accuracy[np.arange(len(offsets)), REACH + offsets]


# ---- tables ----------------------------------------------------------------------------------------------------------


def tables(counts: Counts, backbone: int | None = None) -> list[QuantityTable]:
    """Accuracy at t = n in each range of lengths, then what other loops give; ranges not measured are left out.

    `backbone`: the published one whose numbers stand beside.  Notes say which lengths were measured.
    """
    found = []
    for (first, last), part in BANDS.items():
        band = measured(counts, first, last, part)
        if band is not None:
            rows = list(at_exit(counts, first, last, backbone).values())
            note = f"{band.measured}; {RESAMPLED}."
            found.append(QuantityTable("parity.exit", f"Right at t = n, lengths {first}-{last}", rows, note))
    first, last = FITTED
    middle = (first + last) // 2
    ranges = ((FITTED, NEAR, FITTED), ((first, middle), NEAR, (middle + 1, last)), (FITTED, FAR, LIMIT))
    for fitted, part, tested in ranges:
        fit, test = measured(counts, *fitted, NEAR), measured(counts, *tested, part)
        if fit is not None and test is not None:
            title = f"Computation or timing? Lengths {tested[0]}-{tested[1]}, lines of {fitted[0]}-{fitted[1]}"
            note = f"{test.measured}; {SCORED}; {RESAMPLED}."
            at = dict(zip(("first", "last", "fitted_first", "fitted_last"), (*tested, *fitted), strict=True))
            found.append(QuantityTable("parity.loop", title, exits(fit, test, at), note))
    return found
