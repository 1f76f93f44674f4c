"""What an engine must offer: places where tries of jobs run (`engines` has them by name)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loopscope.jobs.job import Job
from loopscope.jobs.outcome import Outcome


@dataclass(frozen=True)
class Ticket:
    """One try of a job: the store's folder, seconds between checkpoints.

    `again`: it was lost before, on the nodes in `avoid` as far as these are known.
    """

    job: Job
    root: Path
    save_every: float = 30.0
    avoid: tuple[str, ...] = ()
    again: bool = False


Ended = Callable[[Outcome], None]
"""Takes the outcome of a try; called once, from any thread."""


class Engine(ABC):
    """Runs tries of jobs; it never retries by itself, and knows nothing of what comes before what."""

    places: int | None = None
    """Jobs that it runs at once; None where it has a queue of its own."""
    elsewhere: bool = True
    """Whether its workers may be on other machines, so that the store must be shared with them."""
    leaves: bool = False
    """Whether running jobs can go on when this process ends, and are found again by the next."""

    @abstractmethod
    def start(self, ticket: Ticket, ended: Ended) -> None:
        """Begin a try as soon as there is a place for it; a try of the same job that still runs is taken over."""

    @abstractmethod
    def close(self, leave: bool = False) -> None:
        """End: running jobs make a checkpoint where they can, and stop; with `leave` they go on, if they can."""
