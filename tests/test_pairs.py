"""Every two options meet, in fewer cases than all combinations."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.pairs import pairwise


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2, 3), (2, 2, 2), (4, 3, 2, 2), (1, 3, 2)])
def test_every_two_options_meet(sizes: tuple[int, ...]) -> None:
    factors = [[f"{factor}-{i}" for i in range(size)] for factor, size in enumerate(sizes)]
    cases = pairwise(*factors)
    met = {pair for case in cases for pair in combinations(case, 2)}
    assert met == {(a, b) for one, other in combinations(factors, 2) for a in one for b in other}
    assert all(option in options for case in cases for option, options in zip(case, factors, strict=True))
    assert len(set(cases)) == len(cases)


def test_three_factors_take_about_the_product_of_the_largest_two() -> None:
    assert len(pairwise("abc", "de", "fgh")) == 9
    assert len(pairwise("ab", "cd", "ef")) == 4
