"""How a job ended, as a value that goes through pipes, queues and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

State = Literal["done", "failed", "lost", "stopped", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """The end of one try.

    - done: `keys` says what there is now.  failed: the job itself said why, in `line`; trying again would not help.
    - lost: the process or its machine is gone, or nobody could start it.  stopped: it was asked to, and made a
      checkpoint.
    - skipped: it was not begun, as what it waits for failed; `line` names that.
    - `code` is the exit code that a command would have given, `place` where it ran, `threads` what it computed with.
    """

    state: State
    keys: Mapping[str, str] = field(default_factory=dict)
    line: str = ""
    code: int = 0
    place: str = ""
    device: str = ""
    threads: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        return {**asdict(self), "keys": dict(self.keys)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outcome:
        """What `to_json` gave; fields that a newer version added are left aside."""
        return cls(**{each.name: value[each.name] for each in fields(cls) if each.name in value})


def lost(line: str, place: str = "") -> Outcome:
    """The outcome of a try of which nothing came back."""
    return Outcome("lost", line=line, code=1, place=place)
