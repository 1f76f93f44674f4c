"""Jobs of several processes: `torchrun` on every machine, by what the job needs.

The command is the same on each of `needs.nodes` machines but for its rank: `needs.gpus` processes there (one on a CPU),
which meet at the first machine.  They train as `training.lm.processes` says.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from loopscope.jobs.engine import Ticket
from loopscope.jobs.journal import Journal
from loopscope.jobs.outcome import Outcome, lost
from loopscope.jobs.worker import ticket_text


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as asked:
        asked.bind(("", 0))
        return int(asked.getsockname()[1])


def command(ticket: Ticket, rank: int, address: str, port: int) -> list[str]:
    """What starts the processes of one machine."""
    needs = ticket.job.needs
    return [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(needs.nodes), "--node-rank", str(rank),
        "--nproc-per-node", str(max(1, int(needs.gpus))), "--master-addr", address, "--master-port", str(port),
        "-m", "loopscope.jobs.worker", "--one", ticket_text(ticket),
    ]  # fmt: skip


def run_together(
    ticket: Ticket,
    rank: int = 0,
    address: str = "127.0.0.1",
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    began: Callable[[subprocess.Popen[bytes]], object] = lambda _: None,
) -> Outcome:
    """Run one machine's processes to their end; the outcome is that of the first process of all.

    On another machine than the first it only says whether its own processes came to their end.
    """
    journal = Journal(ticket.root, ticket.job.key)
    place = socket.gethostname()
    (journal.folder / "outcome.json").unlink(missing_ok=True)
    with journal.log.open("ab") as log:
        # Its processes have the other end of standard input: they stop when this process is gone, however it died.
        started = subprocess.Popen(
            command(ticket, rank, address, port or free_port()), stdin=subprocess.PIPE, stdout=log, stderr=log,
            env={**os.environ, **(env or {}), "OMP_NUM_THREADS": str(ticket.job.needs.cpus)}, start_new_session=True,
        )  # fmt: skip
        began(started)
        try:
            code = started.wait()
        finally:
            assert started.stdin is not None
            started.stdin.close()
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGTERM)
    outcome = journal.read("outcome") if rank == 0 else None
    if outcome is not None:
        return Outcome.from_json(outcome)
    if rank and code == 0:
        return Outcome("done", place=place)
    return lost(f"the processes of {place} ended with exit code {code}", place)
