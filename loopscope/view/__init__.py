"""The explorer: see a looped model by its loops, steer it and patch it, in a browser or a notebook.

    loopscope view d8l6-5                            on the command line: a page on this machine
    loopscope view d8l6-5 --bundle walks             the same page with recorded answers, one file
    loopscope.view(model, maps={"one": J_one})       in a notebook

This room is a function, too: called, it is `notebook.view`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A module that may be called, as the room has the name of what it is for."""

    def __call__(self, model: Any, **how: Any) -> Any:
        from loopscope.view.notebook import view

        return view(model, **how)


sys.modules[__name__].__class__ = _Room
