"""What all commands share: the app they hang on, how the process ends, how results are shown.

Exit codes: 0 fine, 1 the file system or the machine refused, 2 the request does not fit, 3 a file is damaged, 130 and
143 interrupted.  Whatever is printed goes through `plain`, so that no file can steer a terminal.
This module and the groups import nothing heavy; commands import what they need when they run.
"""

from __future__ import annotations

import io
import json
import os
import sys
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

import loopscope
from loopscope.cli.stopping import TERMINATED, Terminated, terminating
from loopscope.cli.tables import table, wrapped
from loopscope.cli.threads import Threads, fix_threads
from loopscope.errors import InputError, LoopscopeError

PANELS = {
    "Look at a model": ("run", "view", "lm", "maps", "plan"),
    "Train": ("recipes", "train", "fit", "score"),
    "The paper": ("reproduce", "claims", "quantities", "list", "populations"),
    "Files and machines": ("zoo", "store", "jobs", "bench"),
}
"""The commands as `loopscope --help` shows them."""


class _Commands(TyperGroup):
    """The commands in the order and under the headings of `PANELS`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        for panel, names in PANELS.items():
            for name in (each for each in names if each in self.commands):
                self.commands[name] = command = self.commands.pop(name)  # to the end
                vars(command)["rich_help_panel"] = panel


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Version = Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")]


def main() -> NoReturn:
    """Entry point of the `loopscope` command."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character that the encoding has not ends no command
    try:
        with terminating():
            refuse_empty_paths(sys.argv[1:])
            code = app(standalone_mode=False)
            sys.stdout.flush()
    except LoopscopeError as error:
        fail(str(error), error.exit_code)
    except OSError as error:
        _drop_what_is_left()
        if isinstance(error, BrokenPipeError):
            sys.exit(1)  # the reader has gone; say nothing more
        fail(f"{error.filename or 'the system'}: {error.strerror or error}", 1)
    except (KeyboardInterrupt, EOFError):
        code = 130
    except Terminated:
        fail("terminated", TERMINATED)
    except Exception as error:
        # Typer's usage errors, whichever Click they come from; anything else is a bug and keeps its traceback.
        if out_of_memory(error):
            fail(f"out of memory, fewer or shorter inputs at a time take less: {said_in_short(error)}", 1)
        if not hasattr(error, "format_message"):
            raise
        fail(" ".join(error.format_message().split()), 2)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # how a library in Rust says that it cannot go on
            raise
        fail(f"a file cannot be read, a library gave up on it: {said_in_short(error)}", 3)
    if code == 130:  # Typer's answer to an interrupt, too
        fail("interrupted", code)
    sys.exit(code if isinstance(code, int) else 0)


def _open_what_is_closed() -> None:
    """Let what is written to a closed standard output or error go nowhere, and no file of ours take its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest number that is free: this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  (it is open as long as the process is)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


PATHS = ("--store", "--zoo", "--results", "--export", "--out", "--report", "--against", "--bundle")
"""Options that name a place to read from or write to."""


def refuse_empty_paths(arguments: list[str]) -> None:
    """InputError for a place without a name, as an unset variable gives it: it would mean the current folder."""
    for argument, after in zip(arguments, [*arguments[1:], None], strict=False):
        option, equals, value = argument.partition("=")
        if option in PATHS and (value if equals else after) == "":
            raise InputError(f"{option} is empty; give a path ({option} . is this folder)")


NO_MEMORY = (
    *("can't allocate memory", "not enough memory", "cannot allocate memory", "DefaultCPUAllocator"),
    *("std::bad_alloc", "out of memory", "Storage size calculation overflowed", "integer multiplication overflow"),
)
"""How libraries say that memory is not there where they have no error of their own for it; the last two of sizes that
cannot even be counted."""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was not there: Python's and NumPy's error, a GPU's, which is not imported for that, or a text."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(each in str(error) for each in NO_MEMORY)


def said_in_short(error: BaseException) -> str:
    """What an error says, in few words and one line."""
    return " ".join(str(error).split())[:160] or type(error).__name__


def _drop_what_is_left() -> None:
    """Drop what standard output does not take: Python would try again at its very end, and complain in its own way."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, code: int) -> NoReturn:
    """End the process with one line on standard error."""
    if message:  # empty where the help has just been printed
        short = message if len(message) <= LONGEST else f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
        note(f"loopscope: {short}")
    sys.exit(code)


LONGEST = 1600
"""Characters of an error line: a file or an argument may be quoted in it, and its end names the nearest choice."""


def plain(text: object) -> str:
    """A text as it may go to a terminal: one line, what would steer the terminal or turn the reading around escaped.

    Names and texts may come from files that somebody else wrote.
    """
    return "".join(map(_plain, str(text)))


STEERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Classes of characters that change the direction of those after them."""


def _plain(char: str) -> str:
    if char.isprintable():  # neither of the below; most are
        return char
    harmless = unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") and char not in "\u200e\u200f\u061c"
    if harmless and unicodedata.bidirectional(char) not in STEERING:
        return char
    return char.encode("unicode_escape").decode()


def say(*lines: object) -> None:
    """Lines on standard output, each `plain`."""
    for line in lines:
        print(plain(line))


def note(line: object) -> None:
    """A line on standard error, `plain`."""
    print(plain(line), file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    """One JSON value on standard output."""
    print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))  # JSON itself escapes the other control characters


def print_table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], left: int = 1, whole: int = 1
) -> None:
    """A table with `left` text columns, wrapped after the first `whole`, the others as numbers; see `tables`.

    A cell is `plain` text, or a tuple of lines.
    """
    width = Console().width
    cells = [[tuple(map(plain, each if isinstance(each, tuple) else (each,))) for each in row] for row in rows]
    head, body = table([plain(each) for each in columns], cells, width, left, whole)
    _print([*wrapped(plain(title), width), *head], "bold")
    _print(body)


def prose(text: object, indent: str = "", first: str | None = None) -> None:
    """A sentence or a paragraph on standard output, `plain`, broken between words; as `tables.wrapped`."""
    _print(wrapped(plain(text), Console().width, indent, first))


def _print(lines: Iterable[str], style: str = "") -> None:
    console = Console()
    for line in lines:  # Text: brackets are brackets, not styles
        console.print(Text(line, style), soft_wrap=True)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: Version = False, threads: Threads = None) -> None:
    """Read, steer and patch looped transformers."""
    fix_threads(context, threads)
    if version:
        say(f"loopscope {loopscope.__version__}")
        raise typer.Exit
