"""Graphs of jobs, run with what a person or a program wants to see of them; used by every command with --on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

import typer

from loopscope.cli.app import note, print_json
from loopscope.cli.display import Display, display
from loopscope.errors import InputError

if TYPE_CHECKING:
    from loopscope.jobs.driver import Event, Report, Standing
    from loopscope.jobs.job import Graph, Needs
    from loopscope.store.store import Store

WHOLE = "jobs"


class _Shown:
    """A bar for the whole and one for each running job, with its place; lines for what went wrong, as it comes."""

    def __init__(self, shown: Display) -> None:
        self.shown = shown
        self.reasons: set[str] = set()

    def __call__(self, event: Event, now: Standing) -> None:
        if event.what in ("probing", "stopping"):
            return note(f"loopscope: {event.text}")
        left = "" if now.left is None else f"about {now.left:.0f} min left"
        failed = f", {now.failed} failed" if now.failed else ""
        whole = f"{WHOLE}: {now.running} running, {now.waiting} waiting{failed}"
        self.shown.show(WHOLE, whole, now.done, now.total, left)
        if event.what == "on":
            at = f" at {event.place}" if event.place else ""
            self.shown.show(event.job, f"{event.job}{at}", event.done, event.total or 1, event.text)
            return
        self.shown.drop(event.job)
        if event.what in ("failed", "lost", "stopped"):
            note(f"loopscope: {event.job}: {event.what}: {event.text}")
        if event.what == "waiting" and event.text not in {"", *self.reasons}:  # once, of however many jobs
            self.reasons.add(event.text)
            note(f"loopscope: {event.job}: waiting: {event.text}")


class _Events:
    """One line of JSON for each event."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def __call__(self, event: Event, now: Standing) -> None:
        line = {**asdict(event), "jobs": {**asdict(now), "total": now.total}}
        print(json.dumps(line), file=self.out, flush=True)


def carried_out(graph: Graph, store: Store, on: str, save_every: float = 30.0, events: bool = False) -> Report:
    """Run a graph on an engine and show how it goes; JobsFailedError, a line in it for each failure, at the end.

    `events`: lines of JSON on standard output instead.  After an interrupt at a terminal, asks whether jobs that can go
    on without this command shall.
    """
    from loopscope.jobs.driver import JobsFailedError, run
    from loopscope.training.job import refuse_unreadable

    refuse_unreadable(store)
    with display() as shown:

        def leave() -> bool:
            return _asked(shown) if sys.stdin is not None and sys.stdin.isatty() else True

        tell: Callable[[Event, Standing], None] = _Events(sys.stdout) if events else _Shown(shown)
        with redirect_stdout(sys.stderr):  # where Ray says that it lost a worker
            report = run(graph, store, on, save_every=save_every, tell=tell, leave=leave)
    if failures := report.failures:
        for line in failures[:-1]:
            note(f"loopscope: {line}")
        raise JobsFailedError(failures[-1])
    return report


def _asked(shown: Display) -> bool:
    with shown.aside():
        try:
            return typer.confirm("Leave the running jobs to go on? (no: cancel them)", default=True, err=True)
        except typer.Abort:  # interrupted once more: nothing was said, and nothing is lost
            return True


def print_result(value: object, events: bool) -> None:
    """What a command with --on found, as one JSON object; after `events`, as the last line of them."""
    if not events:
        return print_json(value)
    print(json.dumps({"what": "result", "result": value}).replace("\x7f", "\\u007f"), flush=True)


def refuse_without(on: str | None, **given: float | bool | None) -> None:
    """InputError for options that say how jobs are made or shown, where there is no --on and so no jobs."""
    for name, value in given.items():
        if on is None and value is not None and value is not False:
            said = f"--{name}" if value is True else f"--{name} {value:g}"
            raise InputError(f"{said} is about jobs, and goes with --on (nearest: --on local:1)")


def needs_of(on: str, device: str, gpus: float | None) -> Needs:
    """What every job of a command needs, by --device, --gpus, --threads and LOOPSCOPE_THREADS.

    Where workers may be on other machines, it is told that --device auto looks at this one alone.
    """
    from loopscope.jobs.engines import parse
    from loopscope.jobs.job import Needs
    from loopscope.threads import fixed_to
    from loopscope.training.job import pick_device

    parse(on)  # before anything is said
    if device not in ("auto", "cuda"):
        pick_device(device)
        if gpus:
            raise InputError(f"--gpus {gpus:g} does not go with --device {device}")
    wanted = gpus if gpus is not None else float(device == "cuda" or (device == "auto" and _sees_gpu()))
    if device == "auto" and not wanted and not on.startswith("local:"):
        note("loopscope: no GPU is seen here, so that jobs ask for none; --device cuda asks for one each")
    return Needs(gpus=wanted, cpus=fixed_to() or 1)


def _sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
