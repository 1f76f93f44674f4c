"""What a long command is doing, on standard error: live on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group

from loopscope.cli.app import plain

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import TaskID

LINE_EVERY = 30.0
"""Seconds between two lines where nothing can be wiped away again; a command that takes less says nothing."""


class Display:
    """Bars for jobs, and one line for what is being done beside them."""

    def __init__(self, console: Console) -> None:
        from rich import progress as rich
        from rich.table import Column

        self._console = console
        # A column of its own that wraps between words: what is told of a job would squeeze the bar out of its line.
        doing, words = (rich.TextColumn("{task.description}", markup=False, table_column=Column()) for _ in range(2))
        self._bars = rich.Progress(
            doing, rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), rich.TextColumn("left"),
            rich.TimeRemainingColumn(), speed_estimate_period=120,
        )  # fmt: skip
        self._words = rich.Progress(words)
        self._doing = rich.Progress(rich.SpinnerColumn(), doing, rich.TimeElapsedColumn())
        self._jobs: dict[str, tuple[TaskID, TaskID]] = {}
        self._task: TaskID | None = None
        self._due = time.monotonic() + LINE_EVERY
        self._live: Live | None = None

    def log(self, doing: str, before: str = "") -> None:
        """Say what is being done; in a log, what is `before` it says how far, as bars do on a terminal."""
        doing = plain(doing)
        if not self._console.is_terminal:
            return self._line(before + doing)
        if self._task is None:
            self._task = self._doing.add_task(doing, total=None)
        self._doing.update(self._task, description=doing)

    def show(self, job: str, description: str, done: int, total: int, words: str, logged: bool = True) -> None:
        """Say how far a job is, and `words` about it, unless `logged` on a terminal alone; a job keeps its bar."""
        description, words = plain(description), plain(words)
        if not self._console.is_terminal:
            return self._line(f"{description}: {done:,} of {total:,}  {words}".rstrip()) if logged else None
        if job not in self._jobs:
            self._jobs[job] = self._bars.add_task(description, total=total), self._words.add_task("", total=None)
        bar, line = self._jobs[job]
        self._bars.update(bar, completed=done, description=description)
        self._words.update(line, description=words, visible=bool(words))

    def drop(self, job: str) -> None:
        """Take a job's bar away."""
        if job in self._jobs:
            bar, line = self._jobs.pop(job)
            self._bars.remove_task(bar)
            self._words.remove_task(line)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Out of the way until the block ends, so that results can be printed."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def start(self) -> None:
        """Appear, on a terminal."""
        if self._console.is_terminal:
            from rich.live import Live

            # A new one: one that was stopped would wipe away what was printed since.  Standard output may go elsewhere
            # than to the terminal, so it is left alone.
            shown = Group(self._bars, self._words, self._doing)
            self._live = Live(shown, console=self._console, transient=True, redirect_stdout=False)
            self._live.start()

    def stop(self) -> None:
        """Vanish."""
        if self._live is not None:
            self._live.stop()

    def _line(self, text: str) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + LINE_EVERY
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def display() -> Iterator[Display]:
    """A display that is wiped away at the end."""
    made = Display(Console(stderr=True))
    made.start()
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def spinner() -> Iterator[Callable[[str], None]]:
    """The function to say what is being done."""
    with display() as shown:
        shown.log("starting")
        yield shown.log
