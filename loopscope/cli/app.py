"""What all commands share: the app they hang on, how the process ends, how results are shown.

Exit codes: 0 fine, 1 the file system or the machine refused, 2 the request does not fit, 3 a file is damaged.
This module and the groups import nothing heavy; commands import what they need when they run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import loopscope
from loopscope.errors import LoopscopeError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Version = Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")]


def main() -> NoReturn:
    """Entry point of the `loopscope` command."""
    try:
        code = app(standalone_mode=False)
    except LoopscopeError as error:
        fail(str(error), error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone; say nothing more
            sys.exit(1)
        fail(f"{error.filename or 'the system'}: {error.strerror or error}", 1)
    except (KeyboardInterrupt, EOFError):
        code = 130
    except Exception as error:
        # Typer's usage errors, whichever Click they come from; anything else is a bug and keeps its traceback.
        if out_of_memory(error):
            said = " ".join(str(error).split())[:160]
            fail(f"out of memory, fewer or shorter inputs at a time take less: {said}", 1)
        if not hasattr(error, "format_message"):
            raise
        fail(" ".join(error.format_message().split()), 2)
    if code == 130:  # Typer's answer to an interrupt, too
        fail("interrupted", code)
    sys.exit(code if isinstance(code, int) else 0)


def out_of_memory(error: Exception) -> bool:
    """Whether torch got no memory: a GPU's is an error of its own, which is not imported for that, a CPU's a text."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def fail(message: str, code: int) -> NoReturn:
    """End the process with one line on standard error."""
    if message:  # empty where the help has just been printed
        print(f"loopscope: {message}", file=sys.stderr)
    sys.exit(code)


def print_json(value: object) -> None:
    """One JSON value on standard output."""
    print(json.dumps(value, indent=2))


def print_table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], left: int = 1, whole: bool = True
) -> None:
    """A table with `left` text columns, the others aligned to the right as numbers, which are never broken.

    Nor is the first column, unless it is not to be `whole`.
    """
    table = Table(title=Text(title), title_justify="left")  # Text: brackets are brackets, not styles
    for index, column in enumerate(columns):
        unbroken = index >= left or (whole and index == 0)
        table.add_column(column, justify="left" if index < left else "right", overflow="fold", no_wrap=unbroken)
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row))
    Console().print(table)


@app.callback(invoke_without_command=True)
def _root(version: Version = False) -> None:
    """Read, steer and patch looped transformers."""
    if version:
        print(f"loopscope {loopscope.__version__}")
        raise typer.Exit
