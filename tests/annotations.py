"""Annotations checked at run time, for the first calls of every function in a test.

A function that is called a hundred thousand times in a test is handed the same shapes again and again, and checking
them all takes longer than the test.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar
from weakref import WeakSet

CALLS = 200
"""Calls of a function that are checked in every test."""


MADE = 20
"""Functions inside a function are made anew at every call of it, and beartype compiles each; so many are, by name."""


class _Now:
    """Which test is running: one more than the test before; what it made inside functions; whom it checks no more."""

    test = 0
    made: ClassVar[Counter[tuple[str, str]]] = Counter()
    passed: ClassVar[WeakSet[Any]] = WeakSet()


def next_test() -> None:
    """All functions are checked again."""
    _Now.test += 1
    _Now.made.clear()
    for function in _Now.passed:
        del function.__no_type_check__
    _Now.passed.clear()


def _pass_over(function: Any) -> None:
    """jaxtyping calls it directly from now on: binding the arguments for a check that is left out takes long, too."""
    if function is not None:
        function.__no_type_check__ = True
        _Now.passed.add(function)


def first_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """A checker for jaxtyping, which calls what it gets for the check alone: beartype's, until there were enough.

    That of a function that is never called is never compiled.
    """
    from beartype import beartype  # which only this needs

    checked: Callable[..., Any] | None = None
    most, test, count = CALLS, 0, 0
    if "<locals>" in function.__qualname__:  # beartype looks for its names where it is made, so now
        name = function.__module__, function.__qualname__
        _Now.made[name] += 1
        if _Now.test and _Now.made[name] > MADE:
            most = 0
        else:
            checked = beartype(function)

    @wraps(function)
    def check(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked, test, count
        if test != _Now.test:
            test, count = _Now.test, 0
        count += 1
        if count > most:
            # jaxtyping hands in what it made for the check; the function itself is in its frame, which calls this.
            _pass_over(sys._getframe(1).f_locals.get("fn"))
            return None
        if checked is None:
            checked = beartype(function)
        return checked(*args, **kwargs)

    return check
