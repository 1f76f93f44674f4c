"""An engine that does jobs in the process of the test."""

from __future__ import annotations

from loopscope.jobs.engine import Ended, Engine, Ticket
from loopscope.jobs.outcome import lost
from loopscope.jobs.perform import perform


class Here(Engine):
    """Does jobs one after the other in this process, but loses those it is told to, so many times."""

    places, elsewhere = 1, False

    def __init__(self, losses: dict[str, int] | None = None) -> None:
        self.losses = dict(losses or {})
        self.tried: list[str] = []
        self.closed: list[bool] = []

    def start(self, ticket: Ticket, ended: Ended) -> None:
        self.tried.append(ticket.job.name)
        if self.losses.get(ticket.job.name, 0):
            self.losses[ticket.job.name] -= 1
            return ended(lost("its machine is gone"))
        ended(perform(ticket.job, ticket.root, ticket.save_every))

    def close(self, leave: bool = False) -> None:
        self.closed.append(leave)
