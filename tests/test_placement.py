"""Where maps stand: the programs of the three placements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loopscope.errors import InputError
from loopscope.models.placement import after_each, between


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (between("x", 4), "F J:x F J:x F J:x F"),
        (between("x", 1), "F"),
        (between("x", 8), "F" + " J:x F" * 7),
        (after_each("x", 4), "F J:x F J:x F J:x F J:x"),
        (after_each("x", 1), "F J:x"),
    ],
)
def test_maps_stand_where_the_paper_puts_them(program: object, text: str) -> None:
    assert str(program) == text


def test_no_loops_and_no_name_are_refused(refused: Callable[..., str]) -> None:
    for placed in (between, after_each):
        assert "F0 does not exist" in refused(InputError, placed, "x", 0)
        refused(InputError, placed, "a name", 2)
