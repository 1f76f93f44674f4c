"""Cases in which every two options meet, without all combinations of all options."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def pairs_of(case: Sequence[int]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """Which options, as (factor, place), meet in a case."""
    return set(combinations(enumerate(case), 2))


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """One option of each factor a case; any option meets any other of another factor in at least one case."""
    cases = list(product(*(range(len(options)) for options in factors)))
    missing = {pair for case in cases for pair in pairs_of(case)}
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs_of(case) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
    return [tuple(options[i] for options, i in zip(factors, case, strict=True)) for case in sorted(chosen)]
