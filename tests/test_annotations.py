"""Annotations are checked while tests run: shapes in every module that knows them, in each test anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

from loopscope.maps import make_map
from tests.annotations import CALLS, MADE, first_calls, next_test
from tests.conftest import TYPES_CHECKED

pytestmark = pytest.mark.skipif(not TYPES_CHECKED, reason="beartype is not installed")


def test_a_wrong_shape_is_found_in_the_library() -> None:
    with pytest.raises(TypeCheckError, match=r"the parameters of loopscope\.maps"):
        make_map("dense", width=3)(torch.zeros(2, 3, dtype=torch.int64))


def test_the_first_calls_of_a_test_are_checked() -> None:
    @jaxtyped(typechecker=first_calls)
    def same(x: Float[Tensor, "a a"]) -> Float[Tensor, "a 2"]:
        return x

    for bad, where in ((torch.zeros(3, 3), "the return value"), (torch.zeros(2, 3), "the parameters")):
        next_test()
        for _ in range(CALLS - 1):
            same(torch.zeros(2, 2))
        with pytest.raises(TypeCheckError, match=where):
            same(bad)
    next_test()
    for _ in range(CALLS):
        same(torch.zeros(2, 2))
    same(torch.zeros(2, 3))  # one more, which nobody looks at
    same(torch.zeros(2, 3))
    next_test()
    with pytest.raises(TypeCheckError, match="the parameters"):
        same(torch.zeros(2, 3))


def test_of_functions_made_again_and_again_the_first_are_checked() -> None:
    def made() -> Callable[[Tensor], Tensor]:
        @jaxtyped(typechecker=first_calls)
        def same(x: Float[Tensor, "a a"]) -> Float[Tensor, "a a"]:
            return x

        return same

    for _ in range(2):
        next_test()
        for _ in range(MADE // 2):  # two checkers each: of the parameters, and of all
            with pytest.raises(TypeCheckError, match="the parameters"):
                made()(torch.zeros(2, 3))
        made()(torch.zeros(2, 3))  # one more, which nobody looks at
