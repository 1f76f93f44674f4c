"""What a case is: inputs, one change of them, the commands that then run, and what they may answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Change = Callable[[Path], None]
"""Changes a case's own copy of its inputs; given is the folder that the command runs in."""


def nothing(work: Path) -> None:
    """Leave the inputs as they are."""


@dataclass(frozen=True)
class Death:
    """A signal that a command sends to itself before the `event`-th thing it does to files; 0 for the first."""

    number: int
    event: int


@dataclass(frozen=True)
class Limits:
    """What a child may not do: more memory or longer files than this; `powerless` drops root's way past permissions."""

    memory: int = 4 << 30
    file_size: int | None = None
    powerless: bool = False


@dataclass(frozen=True)
class Command:
    """One call of `loopscope`: its arguments, more environment, where its output goes, how it is disturbed.

    A value None removes a variable.  `stdout` names a file to write to, such as /dev/full.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    stdout: str | None = None
    death: Death | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Scene:
    """Valid inputs by the names of folders and files of the world, and a command on them.

    `writes` are the names, in the folder that the command runs in, of what it makes; everything else must stay as it
    was.  `counted` are those of them that must be the same whatever happened before; none named: all.
    What the command answers and writes without any change is the reference of all cases of the scene.
    """

    needs: tuple[str, ...]
    command: Command
    writes: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Scenes of the same key have the same reference."""
        command = self.command
        return self.needs, command.argv, tuple(sorted(command.env.items())), command.stdout

    @classmethod
    def of(cls, needs: str, *argv: str, writes: str = "") -> Scene:
        """A scene from names with spaces between, and arguments."""
        return cls(tuple(needs.split()), Command(argv), tuple(writes.split()))


@dataclass(frozen=True)
class Case:
    """One scene with one thing changed.

    - `codes`: the exit codes of an honest refusal; 1 is added where the machine or the file system may refuse.
    - `refuse`: True where even the unchanged answer would be wrong, since the request itself is senseless.
    - `rounds`: other commands than the scene's; those of a round run side by side, rounds one after the other.  All of
      the last round must answer as the scene's command does, or refuse.
    - `check`: in place of comparing with the reference, what is wrong with a case (`Played`) that answers, or "".
    - `tells`: True where the same answer may come with a line about what was wrong.
    - `earlier`: what commands before the last round, and beside one that answers, may end with.
    """

    group: str
    label: str
    scene: Scene
    change: Change = nothing
    codes: tuple[int, ...] = (2, 3)
    refuse: bool = False
    rounds: tuple[tuple[Command, ...], ...] = ()
    earlier: tuple[int, ...] = ()
    check: Callable[[Any], str] | None = None
    tells: bool = False

    @property
    def id(self) -> str:
        """By this a case is run again."""
        return f"{self.group}:{self.label}"

    def played(self) -> tuple[tuple[Command, ...], ...]:
        """The rounds, or the scene's command alone."""
        return self.rounds or ((self.scene.command,),)


Group = Callable[["World", int], Iterator[Case]]
"""A class of cases, made from the world's files and a seed."""


@dataclass(frozen=True)
class World:
    """The folder with all valid inputs; cases copy what they need from it."""

    base: Path

    def files(self, name: str) -> list[Path]:
        """The regular files below one of the inputs, by their path from the base, in order."""
        root = self.base / name
        found = [root] if root.is_file() else sorted(each for each in root.rglob("*") if each.is_file())
        return [each.relative_to(self.base) for each in found]

    def size(self, file: Path) -> int:
        """Bytes of one of them."""
        return (self.base / file).stat().st_size
