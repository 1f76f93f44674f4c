"""Annotations checked at run time, for the first calls of every function in a test.

A function that is called a hundred thousand times in a test is handed the same shapes again and again, and checking
them all takes longer than the test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

CALLS = 200
"""Calls of a function that are checked in every test."""


class _Now:
    """Which test is running: one more than the test before."""

    test = 0


def next_test() -> None:
    """All functions are checked again."""
    _Now.test += 1


def first_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """A checker for jaxtyping, which calls what it gets for the check alone: beartype's, until there were enough."""
    from beartype import beartype  # which only this needs

    checked = beartype(function)
    test = count = 0

    @wraps(checked)
    def check(*args: Any, **kwargs: Any) -> Any:
        nonlocal test, count
        if test != _Now.test:
            test, count = _Now.test, 0
        count += 1
        return checked(*args, **kwargs) if count <= CALLS else None

    return check
