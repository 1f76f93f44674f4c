"""Values that have a text form print as it."""

from __future__ import annotations

from loopscope.bounds import line


class Written:
    """Prints as its class and its text, `Program('F6 J:one F')`, cut where that is long."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({line(str(self))!r})"
