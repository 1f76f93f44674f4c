"""Jobs on a Ray cluster (`pip install loopscope[ray]`).

A job is a Ray task with the CPUs and GPUs that it needs.  Ray's own retries are off: the driver's rules hold on every
engine.  Tasks with GPUs get a process each, so that their memory is free afterwards; others are done in processes that
stay.  Jobs on several GPUs or nodes are `torchrun` in a placement group, one bundle on each node.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import loopscope
from loopscope.errors import InputError
from loopscope.jobs.engine import Ended, Engine, Ticket
from loopscope.jobs.journal import Journal
from loopscope.jobs.outcome import Outcome, lost
from loopscope.jobs.perform import perform
from loopscope.jobs.together import free_port, run_together
from loopscope.jobs.worker import logged, ticket_of, ticket_text
from loopscope.models.extras import extra

ROOM = 300.0
"""Seconds that a job which lost its node waits for another one that is large enough."""

LOOK_EVERY = 2.0
"""Seconds between two looks at the nodes, meanwhile."""


def do(text: str) -> dict[str, Any]:
    """One try in a Ray worker."""
    ray: Any = importlib.import_module("ray")
    ticket, node = ticket_of(text), str(ray.get_runtime_context().get_node_id())
    with logged(ticket):
        return perform(ticket.job, ticket.root, ticket.save_every, node=node).to_json()


def do_part(text: str, rank: int, address: str, port: int) -> dict[str, Any]:
    """The processes of one node of several."""
    return run_together(ticket_of(text), rank, address, port).to_json()


def where() -> tuple[str, int]:
    """The address of a node, and a port that is free there."""
    ray: Any = importlib.import_module("ray")
    return str(ray.util.get_node_ip_address()), free_port()


class Ray(Engine):
    """The cluster at an address, "auto" or HOST:PORT; InputError where there is none, or no package `ray`."""

    def __init__(self, address: str) -> None:
        ray: Any = extra("ray", "--on ray", of="ray")
        self._ray = ray
        if address != "auto":
            _answers(address)
        path = os.pathsep.join(filter(None, (str(Path(loopscope.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            ray.init(
                address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False,
                runtime_env={"env_vars": {"PYTHONPATH": path}}, namespace="loopscope",
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError) as error:
            first = " ".join(str(error).split())[:200]
            raise InputError(f"no Ray cluster at {address!r}: {first} (nearest: `ray start --head`)") from None
        self._running: dict[str, Any] = {}
        self._lock, self._closing = threading.Lock(), threading.Event()

    def start(self, ticket: Ticket, ended: Ended) -> None:
        """Hand the job to Ray's queue; InputError for one that no node has room for, unless it was begun before.

        Then a node that was large enough has just died, and another one is waited for.
        """
        try:
            self._submit(ticket, ended)
        except InputError:
            if not ticket.again:
                raise
            threading.Thread(target=self._wait, args=(ticket, ended), daemon=True).start()

    def _wait(self, ticket: Ticket, ended: Ended) -> None:
        """Begin as soon as there is room; failed where there is none for `ROOM` seconds."""
        journal, until = Journal(ticket.root, ticket.job.key), time.monotonic() + ROOM
        while not self._closing.wait(LOOK_EVERY):
            try:
                self._submit(ticket, ended)
                return journal.wait("")
            except InputError as error:
                journal.wait(f"for a node: {error}")
                if time.monotonic() > until:
                    return ended(Outcome("failed", line=f"{error}; waited {ROOM:.0f} s for one", code=error.exit_code))
            except Exception as error:  # the cluster is gone, and nobody hears a thread die
                return ended(_lost(error))

    def _submit(self, ticket: Ticket, ended: Ended) -> None:
        needs = ticket.job.needs
        fit = self._with_room(needs.cpus, needs.gpus, needs.nodes)
        if needs.processes > 1:
            threading.Thread(target=self._together, args=(ticket, ended), daemon=True).start()
            return
        # Not where it was lost before, if there is another node.
        where = {"ray.io/node-id": f"!in({','.join(ticket.avoid)})"} if fit - {*ticket.avoid} and ticket.avoid else {}
        remote = self._remote(do, needs.cpus, needs.gpus, **({"label_selector": where} if where else {}))
        self._follow(remote.remote(ticket_text(ticket)), ticket.job.name, ended)

    def close(self, leave: bool = False) -> None:
        """Cancel what runs, and let go of the cluster; Ray ends a driver's tasks with it."""
        self._closing.set()
        with self._lock:
            running = [*self._running.values()]
        for each in running:
            with suppress(Exception):
                self._ray.cancel(each, force=True)
        self._ray.shutdown()

    def _remote(self, function: Callable[..., Any], cpus: int, gpus: float, **options: Any) -> Any:
        # Ray sets OMP_NUM_THREADS by num_cpus where nobody has; a job sets its threads itself.
        fresh = {"max_calls": 1} if gpus else {}
        made = self._ray.remote(max_retries=0, num_cpus=cpus, num_gpus=gpus, **fresh)(function)
        return made.options(**options) if options else made

    def _follow(self, ref: Any, name: str, ended: Ended) -> None:
        with self._lock:
            self._running[name] = ref

        def came(future: Any) -> None:
            with self._lock:
                self._running.pop(name, None)
            try:
                outcome = Outcome.from_json(future.result())
            except Exception as error:  # its worker or node is gone, or Ray could not start it
                outcome = _lost(error)
            ended(outcome)

        ref.future().add_done_callback(came)

    def _with_room(self, cpus: int, gpus: float, nodes: int) -> set[str]:
        """The nodes that are large enough; InputError for a job that too few are: it would wait for ever."""
        there = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        fit = {node for node, each in there.items() if each.get("CPU", 0) >= cpus and each.get("GPU", 0) >= gpus}
        if len(fit) < nodes:
            most = max((each.get("GPU", 0) for each in there.values()), default=0)
            raise InputError(
                f"{nodes} node(s) with {cpus} CPUs and {gpus:g} GPUs each are needed; {len(fit)} of this Ray "
                f"cluster's {len(there)} have that (most GPUs of a node: {most:g})"
            )
        return fit

    def _together(self, ticket: Ticket, ended: Ended) -> None:
        """A job of several processes: a bundle on each node, all at once."""
        ray, needs = self._ray, ticket.job.needs
        groups: Any = importlib.import_module("ray.util.placement_group")
        strategy: Any = importlib.import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        group = None
        try:
            bundle = {"CPU": needs.cpus} | ({"GPU": needs.gpus} if needs.gpus else {})
            group = groups.placement_group([bundle] * needs.nodes, strategy="STRICT_SPREAD")
            ray.get(group.ready())
            plan = [strategy(placement_group=group, placement_group_bundle_index=rank) for rank in range(needs.nodes)]
            remote = [(needs.cpus, needs.gpus, {"scheduling_strategy": each}) for each in plan]
            address, port = ray.get(self._remote(where, needs.cpus, 0, **remote[0][2]).remote())
            parts = [
                self._remote(do_part, cpus, gpus, **options).remote(ticket_text(ticket), rank, address, port)
                for rank, (cpus, gpus, options) in enumerate(remote)
            ]
            outcomes = [Outcome.from_json(each) for each in ray.get(parts)]
            bad = [each for each in outcomes if each.state != "done"]
            outcome = outcomes[0] if outcomes[0].state != "lost" or not bad else bad[0]
        except Exception as error:
            outcome = _lost(error)
        finally:
            if group is not None:
                with suppress(Exception):
                    groups.remove_placement_group(group)
        ended(outcome)


def _answers(address: str) -> None:
    """InputError where nobody listens: Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster at {address!r}: {error} (nearest: `ray start --head`)") from None


def _lost(error: Exception) -> Outcome:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return lost(f"{type(error).__name__}: {first[:200]}", "Ray")
