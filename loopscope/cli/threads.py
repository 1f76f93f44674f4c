"""The number of threads of a command: `--threads`, `LOOPSCOPE_THREADS`, or what suits its work."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopscope.bounds import whole
from loopscope.threads import MOST, asked_for, fixed_threads, threads_for

if TYPE_CHECKING:
    from loopscope.model import ModelConfig

Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads on a CPU, for whatever command follows; default: LOOPSCOPE_THREADS, or what suits its work.",
        callback=lambda value: None if value is None else whole("--threads", value, 1, MOST),
    ),
]

SMALL = 0
"""Numbers of what is done on small models by many short operations: measurements, the recipes that suit a CPU."""

_command = ExitStack()
"""What is undone when a command ends, as the next may be one of the same process."""


def fix_threads(context: typer.Context, count: int | None) -> None:
    """Let a command compute with the threads it was asked to, if it was; InputError for a variable that says nothing.

    Called before every command.
    """
    context.call_on_close(_command.close)
    count = asked_for() if count is None else count
    if count is not None:
        _command.enter_context(fixed_threads(count))


def choose_threads(numbers: int) -> None:
    """Let the rest of a command compute with as many threads as suit operations on so many numbers (`threads_for`)."""
    _command.enter_context(threads_for(numbers))


def numbers_of(model: ModelConfig, batch: int, members: int) -> int:
    """Width x rows of the batches of so many members."""
    return model.width * (model.positions or 35) * batch * members


def weights_in(folder: Path) -> int:
    """About how many weights a model folder holds, by the size of its files; those that cannot be seen count nothing.

    Whoever loads them says what is wrong with them.
    """
    total = 0
    for file in folder.glob("*.safetensors"):
        with suppress(OSError):
            total += file.stat().st_size
    return total // 4
