"""One shell for every training job: what is finished is looked up, what is begun goes on, what is new is written.

A job is known by its identity, and one process (or one group of them) works on it at a time.  After every window of
updates the shell writes a checkpoint if it is time, stops if it is asked to, and reports progress.  A trainer says what
it trains and how; `Job` says what happens around it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from loopscope.errors import DamagedError, InputError
from loopscope.store.files import StoreError
from loopscope.store.store import Store
from loopscope.training.checkpoints import Checkpoints, Resumable, alone, warn


@dataclass(frozen=True)
class Progress:
    """Where a job is, in updates; a trainer adds its numbers, and `str` gives them as text."""

    job: str
    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class Settings:
    """How a job is run.

    `save_every`: seconds between checkpoints.  `watch` is called after every window, `log` with a line for whatever
    should be known, such as a checkpoint that cannot be used.  `stop` is asked after every window, too: when it says
    so, there is a checkpoint and then a KeyboardInterrupt.
    """

    device: torch.device
    save_every: float = 30.0
    watch: Callable[[Any], None] = lambda _: None
    log: Callable[[str], None] = warn
    stop: Callable[[], bool] = lambda: False


class Group:
    """The processes that train together; this one alone, unless a subclass says otherwise."""

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and logs."""
        return True

    def agreed(self, choice: bool) -> bool:
        """The first process's choice, in all of them."""
        return choice

    def wait(self) -> None:
        """Until all processes are here."""


ALONE = Group()
Trained = TypeVar("Trained", bound=Resumable)
Outcome = TypeVar("Outcome")


class Job(ABC, Generic[Trained, Outcome]):
    """A job in a store; subclasses say what is trained, how it is found again and how it is written."""

    smaller: str  # what does not fit a GPU's memory, and what takes less
    identity: dict[str, Any]  # what its checkpoints are known by, as it comes back from JSON

    def __init__(self, store: Store, settings: Settings, group: Group = ALONE) -> None:
        self.store, self.settings, self.group = store, settings, group

    @abstractmethod
    def finished(self) -> Outcome | None:
        """The outcome, if it is there already."""

    def check(self) -> None:
        """InputError where the job cannot be done; nothing is written yet."""

    @abstractmethod
    def start(self) -> Trained:
        """The trainer at its beginning."""

    def begin(self, trainer: Trained) -> None:
        """Called once, with the trainer where it goes on from."""

    @abstractmethod
    def window(self, trainer: Trained) -> Progress:
        """Called after every window, in the first process: keep or log what is new, and say where the job is."""

    @abstractmethod
    def write(self, trainer: Trained) -> Outcome:
        """Write the outcome of a trainer that is done; of several processes, the first alone writes."""

    @property
    def checkpoints(self) -> Checkpoints:
        """The job's checkpoints in the store."""
        return Checkpoints(self.store, self.identity, self.settings.log)

    def run(self) -> Outcome:
        """The outcome: looked up, or trained from the last checkpoint if there is one.

        Raises InputError when another process is at work on the job, or where memory does not suffice; StoreError when
        the disk is full.  The same call then goes on from the last checkpoint.
        """
        found = self.finished()
        if found is not None:
            return found
        self.check()
        with ExitStack() as stack:
            if self.group.first:
                stack.enter_context(alone(self.store, self.identity))
            # Looked up again: another process may have finished the job while this one waited for its turn to look.
            found = self.finished() if self.group.first else None
            if self.group.agreed(found is not None):
                found = found if self.group.first else self.finished()
                assert found is not None
                return found
            if self.group.first:
                with suppress(StoreError):  # what a killed run left half-written; another user's is not ours to remove
                    self.store.gc()
            self.group.wait()
            try:
                trainer = self.start()
                self.checkpoints.load(trainer)
                self.begin(trainer)
                trainer.run(self._reporter())
            except torch.cuda.OutOfMemoryError:
                raise InputError(self.smaller) from None
            outcome = self.write(trainer)
            self.group.wait()
            if self.group.first:
                self.checkpoints.clear()
            return outcome

    def _reporter(self) -> Callable[[Trained], None]:
        saved = time.perf_counter()

        def report(trainer: Trained) -> None:
            nonlocal saved
            progress = self.window(trainer) if self.group.first else None
            due = time.perf_counter() - saved >= self.settings.save_every
            stop = self.group.agreed(self.settings.stop()) and not trainer.done
            if (self.group.agreed(due) and not trainer.done) or stop:
                if self.group.first:
                    self.checkpoints.save(trainer)
                else:
                    _ = trainer.state  # all take part in gathering it
                saved = time.perf_counter()
            if stop:
                raise KeyboardInterrupt
            if progress is not None:
                self.settings.watch(progress)

        return report


def pick_device(name: str) -> torch.device:
    """The device called "auto", "cpu" or "cuda"; InputError for another name or a GPU that is not there."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"no device {name!r}; there are auto, cpu, cuda")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError("no CUDA device is there (nearest: --device cpu)")
    return torch.device("cuda" if name != "cpu" and there else "cpu")


def refuse_unreadable(store: Store) -> None:
    """The error of the first artefact that is not damaged, and yet cannot be read: a newer schema, or no permission."""
    for error in (error for kind in store.kinds() for error in store.readable(kind)[1]):
        if not isinstance(error, DamagedError):
            raise error
