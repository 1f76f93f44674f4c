"""`loopscope jobs run` as a process, watched event by event, with whatever harm is done to it on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from loopscope.jobs.job import Graph
from loopscope.store.store import Store

Event = dict[str, Any]
Harm = Callable[[Event, "Campaign"], None]


def _there() -> bool:
    if shutil.which("sinfo") is None:
        return False
    awake = ["sinfo", "-h", "-p", "tests", "-t", "idle,mixed,allocated", "-o", "%N"]
    return "n[1-2]" in subprocess.run(awake, capture_output=True, text=True, check=False).stdout


slurm = pytest.mark.skipif(not _there(), reason="the Slurm of `.ci/slurm start` does not run")


class Campaign:
    """A file of jobs on an engine; `events` is what all runs of the command have said so far."""

    def __init__(self, graph: Graph, folder: Path, on: str) -> None:
        self.graph, self.store = graph, Store(folder / "store")
        self.file = folder / "jobs.json"
        self.file.write_text(json.dumps(graph.to_json()))
        self.on = on
        self.events: list[Event] = []
        self.process: subprocess.Popen[str]

    def run(self, harm: Harm = lambda event, campaign: None, save_every: float = 0.0) -> int:
        """Run the command to its end and give its exit code; `harm` sees every event."""
        command = [
            sys.executable, "-m", "loopscope.cli", "jobs", "run", str(self.file), "--on", self.on, "--json",
            "--store", str(self.store.root), "--save-every", str(save_every),
        ]  # fmt: skip
        errors = self.file.with_suffix(".err")
        with (
            errors.open("w") as said,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True
            ) as self.process,
        ):
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.events.append({**json.loads(line), "at": time.monotonic()})
                harm(self.events[-1], self)
        if self.process.returncode > 0:
            print(errors.read_text())
        return self.process.returncode

    def told(self, what: str) -> list[str]:
        """The jobs of which something was told."""
        return [each["job"] for each in self.events if each["what"] == what]


def until(so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so; AssertionError where it is not soon."""
    last = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < last
        time.sleep(0.05)


def once(what: str, do: Callable[[Event, Campaign], object]) -> Harm:
    """Harm at the first event of a kind that has a place."""
    done: list[Event] = []

    def harm(event: Event, campaign: Campaign) -> None:
        if event["what"] == what and not done and (what != "on" or event["place"]):
            done.append(event)
            do(event, campaign)

    return harm


def kill_worker(event: Event, campaign: Campaign) -> None:
    """SIGKILL for the process that a job is in, which is on this machine whatever its node is called."""
    os.kill(int(event["place"].rpartition(":")[2]), signal.SIGKILL)


def until_lost(event: Event, campaign: Campaign) -> None:
    """Harm for the worker of one job after another, until one was not through with its job before it died."""
    if event["what"] == "on" and event["place"] and not campaign.told("lost"):
        with suppress(ProcessLookupError):
            kill_worker(event, campaign)


def kill_driver(event: Event, campaign: Campaign) -> None:
    """SIGKILL for the command."""
    campaign.process.kill()
