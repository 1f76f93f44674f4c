"""Phase and drift of the parity bands: at which loop, near t = n, is an input of length n answered best?

Accuracy around t = n rises and falls with a period of four loops.  `project_bands` turns the band of each length into
one phasor; its angle is the offset of the best loop.  A line through the offsets gives the drift in loops per token.
`phase_unwrapped` is the paper's estimator, `phase_robust` one that a single noisy length cannot fool.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Complex, Float, Int
from numpy.typing import ArrayLike

from loopscope.errors import InputError
from loopscope.resampling import Seed
from loopscope.stats import Estimate, Line, as_floats, fit_line, moving_block_bootstrap

PERIOD = 4.0
"""Loops after which a parity readout repeats: the paper's period of the accuracy bands."""


@dataclass(frozen=True, eq=False)
class Phase:
    """Where the accuracy band lies at every length n: `offsets` in loops relative to t = n (positive = later).

    `amplitude` is the strength of each length's oscillation, `line` the least-squares fit of offsets on lengths.
    """

    lengths: Int[np.ndarray, " lengths"]
    offsets: Float[np.ndarray, " lengths"]
    amplitude: Float[np.ndarray, " lengths"]
    line: Line

    @property
    def drift(self) -> float:
        """Loops of drift per 100 tokens."""
        return 100 * self.line.slope


def project_bands(bands: ArrayLike, period: float = PERIOD) -> Complex[np.ndarray, " lengths"]:
    """One phasor per length: z-scored rows of `bands` projected on exp(2 pi i d / period).

    `bands` is (lengths, offsets): accuracy at loops t = n + d for d = -w..w (w = 10 in the paper).  A row that peaks at
    d0 gives a phasor of angle 2 pi d0 / period; a row without any variation gives exactly 0.  Because 21 offsets are
    not a whole number of periods, the angle of a clean cosine is off by up to 0.03 loops, depending on d0.
    """
    rows = as_floats("bands", bands)
    if rows.ndim != 2 or rows.shape[1] % 2 == 0 or not 0 < period <= rows.shape[1]:
        raise InputError(
            f"bands need shape (lengths, 2w + 1) with at least one period of {period:g} offsets: got {rows.shape}"
        )
    width = rows.shape[1] // 2
    flat = np.ptp(rows, axis=1, keepdims=True) == 0
    z = (rows - rows.mean(axis=1, keepdims=True)) / np.where(flat, 1.0, rows.std(axis=1, keepdims=True))
    return np.where(flat, 0.0, z) @ np.exp(2j * np.pi / period * np.arange(-width, width + 1))


def phase_unwrapped(lengths: ArrayLike, bands: ArrayLike) -> Phase:
    """The paper's estimator: unwrap the phase from each length to the next, then fit a line.

    The first offset is in (-2, 2].  One noisy row can shift all later offsets by a whole period, and the drift with
    them; `phase_robust` does not have this weakness.  Shapes as there; a row without variation counts as angle 0.
    """
    n, phasors = _rows(lengths, bands)
    offsets = np.unwrap(np.angle(phasors)) * (PERIOD / (2 * np.pi))
    return Phase(n, offsets, np.abs(phasors), fit_line(n, offsets))


def phase_robust(lengths: ArrayLike, bands: ArrayLike) -> Phase:
    """Fit the line to all phasors at once, put every offset on the branch nearest to it, then refit by least squares.

    The line o = b n + a first maximises sum_n Re(c_n exp(-2 pi i (b n + a) / period)) over the phasors c_n, so a row
    counts with its amplitude and no row can move another.  `lengths` are increasing integers (lengths,), `bands` as
    in `project_bands`; rows without variation have no phase and are left out.  Assumes that the true offset stays
    within half a period of a line; drift is known only modulo one period per step between lengths.
    """
    n, phasors = _seen(lengths, bands)
    fitted = _coherent_line(n, phasors)
    principal = np.angle(phasors) * (PERIOD / (2 * np.pi))
    offsets = principal + PERIOD * np.round((fitted - principal) / PERIOD)
    return Phase(n, offsets, np.abs(phasors), fit_line(n, offsets))


def coherence(lengths: ArrayLike, bands: ArrayLike) -> float:
    """How nearly the phases lie on one line: the length of the sum of the phasors, turned back by it, over theirs.

    1 where all lie on it.  Shapes and errors as `phase_robust`.  Phases without any line give more than 0, because the
    best of all lines is taken; see `coherence_by_chance`.
    """
    return _coherence(*_seen(lengths, bands))


def coherence_by_chance(
    lengths: ArrayLike, bands: ArrayLike, *, seed: Seed, draws: int = 200, level: float = 0.95
) -> float:
    """The coherence that these amplitudes with random phases stay below in this share of the draws."""
    n, phasors = _seen(lengths, bands)
    turns = np.random.default_rng(seed).random((draws, len(n)))
    return float(np.quantile([_coherence(n, np.abs(phasors) * np.exp(2j * np.pi * turn)) for turn in turns], level))


def drift_bootstrap(phase: Phase, *, seed: Seed, block: int = 20, draws: int = 5_000, level: float = 0.95) -> Estimate:
    """Drift in loops per 100 tokens with its moving-block interval (see `moving_block_bootstrap`)."""
    slope = moving_block_bootstrap(phase.lengths, phase.offsets, seed=seed, block=block, draws=draws, level=level)
    return replace(slope, value=100 * slope.value, low=100 * slope.low, high=100 * slope.high)


def _coherent_line(
    n: Int[np.ndarray, " lengths"], phasors: Complex[np.ndarray, " lengths"]
) -> Float[np.ndarray, " lengths"]:
    """Offsets on the line that turns the phasors most nearly into one direction; the first is in (-2, 2]."""
    tokens = n - n[0]
    step = int(np.gcd.reduce(np.diff(n)))

    def turned_sum(slopes: Float[np.ndarray, " slopes"]) -> Complex[np.ndarray, " slopes"]:
        return np.exp(-2j * np.pi / PERIOD * np.outer(slopes, tokens)) @ phasors

    # For a given slope the best intercept is the angle of the turned sum, so only the slope has to be searched.  An FFT
    # padded eightfold visits every distinguishable slope in steps of an eighth of the peak's half-width.
    comb = np.zeros(8 * (tokens[-1] // step + 1), dtype=np.complex128)
    comb[tokens // step] = phasors
    frequency = np.fft.fftfreq(len(comb))[np.argmax(np.abs(np.fft.fft(comb)))]
    slope, spacing = frequency * PERIOD / step, PERIOD / (step * len(comb))
    for _ in range(3):
        near = slope + spacing * np.linspace(-1, 1, 33)
        slope = near[np.argmax(np.abs(turned_sum(near)))]
        spacing /= 16
    start = np.angle(turned_sum(np.array([slope]))[0]) * PERIOD / (2 * np.pi)
    return start + slope * tokens


def _coherence(n: Int[np.ndarray, " lengths"], phasors: Complex[np.ndarray, " lengths"]) -> float:
    turned = phasors * np.exp(-2j * np.pi / PERIOD * _coherent_line(n, phasors))
    return float(np.abs(turned.sum()) / np.abs(phasors).sum())


def _seen(lengths: ArrayLike, bands: ArrayLike) -> tuple[Int[np.ndarray, " seen"], Complex[np.ndarray, " seen"]]:
    """Lengths whose accuracy varies over loops, and their phasors."""
    n, phasors = _rows(lengths, bands)
    seen = phasors != 0
    if seen.sum() < 2:
        raise InputError(f"a phase needs at least two lengths whose accuracy varies over loops: found {seen.sum()}")
    return n[seen], phasors[seen]


def _rows(lengths: ArrayLike, bands: ArrayLike) -> tuple[Int[np.ndarray, " lengths"], Complex[np.ndarray, " lengths"]]:
    phasors = project_bands(bands)
    n = as_floats("lengths", lengths)
    if n.shape != phasors.shape or len(n) < 2:
        raise InputError(f"a phase needs one length per band row, at least two: got {n.shape} and {phasors.shape}")
    if (n != np.round(n)).any() or (np.diff(n) <= 0).any():
        raise InputError("a phase needs lengths that are increasing whole numbers")
    return n.astype(np.int64), phasors
