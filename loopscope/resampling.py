"""Resampling: how often each unit is drawn in each sample of a bootstrap, from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int, Shaped

from loopscope.errors import InputError

Seed: TypeAlias = int | np.random.Generator
Slot: TypeAlias = tuple[Int[np.ndarray, " draws"], Shaped[np.ndarray, "draws units"]]
"""One place in a sample of backbones: the backbone that each draw has there, and how often it has each of its units."""


def generator(seed: Seed) -> np.random.Generator:
    """The generator of a seed, or the one given; InputError for neither."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InputError(f"seed {seed!r} is neither a whole number >= 0 nor a NumPy Generator") from None


def _resample(rng: np.random.Generator, draws: int, units: int) -> Float[np.ndarray, "draws units"]:
    """How often each unit appears in each of `draws` samples with replacement; whole numbers, which float32 holds."""
    return rng.multinomial(units, np.full(units, 1 / units), size=check_draws(draws)).astype(np.float32)


def draw(seed: Seed, draws: int, units: int) -> Float[np.ndarray, "draws units"]:
    """How often each unit is in each of `draws` samples with replacement."""
    return _drawn(seed, draws, units) if type(seed) is int else _resample(generator(seed), draws, units)


@lru_cache(maxsize=4)
def _drawn(seed: int, draws: int, units: int) -> Float[np.ndarray, "draws units"]:
    """The same, kept: the many rows of a table are resampled alike, and drawing takes longer than counting."""
    weights = _resample(generator(seed), draws, units)
    weights.flags.writeable = False
    return weights


def draw_within(seed: Seed, draws: int, backbones: int, units: int) -> Iterable[Slot]:
    """Samples of backbones and, within each, of units: a slot for every place in a sample."""
    asked = draws, backbones, units
    return _drawn_within(seed, *asked) if type(seed) is int else _resample_within(generator(seed), *asked)


def _resample_within(rng: np.random.Generator, draws: int, backbones: int, units: int) -> Iterator[Slot]:
    """For every place in a sample of backbones: the backbone that each draw has there, and its units."""
    picked = rng.integers(backbones, size=(draws, backbones))
    for slot in range(backbones):
        yield picked[:, slot], _resample(rng, draws, units)


@lru_cache(maxsize=2)
def _drawn_within(seed: int, draws: int, backbones: int, units: int) -> tuple[Slot, ...]:
    """The same, kept in as few bytes as hold a count of all units, as twelve backbones take much memory."""
    small = np.min_scalar_type(units)
    made = _resample_within(generator(seed), draws, backbones, units)
    return tuple((picked, weights.astype(small)) for picked, weights in made)


def check_draws(draws: int) -> int:
    """The number of draws; InputError for none."""
    if not isinstance(draws, int) or draws < 1:
        raise InputError(f"a bootstrap of {draws} draws: at least 1 is needed (the paper uses 5000)")
    return draws
