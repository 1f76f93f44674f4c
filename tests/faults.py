"""What faults cost: each is done to a small campaign on a real engine, which must end as if undisturbed.

python -m tests.faults local:2 slurm:tests     prints rows of the table in docs/scale.md; `ray` starts a cluster itself
python -m tests.faults ray --only=full         only faults whose names begin so

A row has the seconds from the fault until the job at hand made progress again, and those of the whole command (with
those of its second run, where it was started again) beside an undisturbed one on the same engine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.campaign_toys import contents, small_graph, undisturbed_in
from tests.campaigns_elsewhere import Campaign, Event, kill_driver, kill_worker, once
from tests.ray_cluster import Cluster, running

SLURM = str(Path(__file__).parents[1] / ".ci" / "slurm")
UPDATES = 400

Fault = Callable[[Campaign], float]
"""Runs a campaign to its end in spite of a fault that it does; gives when that was, by the monotonic clock."""


def midway(do: Callable[[Event, Campaign], object], times: list[float]) -> Callable[..., None]:
    """Do something once a job is some updates on its way."""

    def harm(event: Event, campaign: Campaign) -> None:
        if event["what"] == "on" and event["done"] and not times:
            times.append(time.monotonic())
            do(event, campaign)

    return harm


def worker_killed(campaign: Campaign) -> float:
    times: list[float] = []
    assert campaign.run(midway(kill_worker, times), 0.5) == 0
    return times[0]


def driver_killed(campaign: Campaign) -> float:
    times: list[float] = []
    assert campaign.run(midway(kill_driver, times), 0.5) < 0
    assert campaign.run(save_every=0.5) == 0
    return times[0]


def killed_in_a_write(campaign: Campaign) -> float:
    """A worker is killed while a draft of its checkpoint is being filled."""
    times: list[float] = []

    def kill(event: Event, _: Campaign) -> None:
        until = time.monotonic() + 60
        while not any(campaign.store.root.glob("checkpoint/.draft-*/artefact/*")):
            assert time.monotonic() < until, "no checkpoint was begun"
            time.sleep(0.0005)
        kill_worker(event, campaign)

    assert campaign.run(midway(kill, times), 0.0) == 0
    return times[0]


def submitted_twice(campaign: Campaign) -> float:
    """The same command a second time, at once."""
    times: list[float] = []
    second = Campaign(campaign.graph, campaign.file.parent, campaign.on)
    codes: list[int] = []
    other = threading.Thread(target=lambda: codes.append(second.run(save_every=0.5)))
    assert campaign.run(once("begun", lambda *_: (times.append(time.monotonic()), other.start())), 0.5) == 0
    other.join()
    assert codes == [0]
    return times[0]


def disk_full(campaign: Campaign) -> float:
    """The store's file system has no room for checkpoints; then it gets some, and the command is given again."""
    root, times = campaign.store.root, list[float]()
    root.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(root)], check=True)
    assert campaign.run(save_every=0.5) == 1
    times.append(time.monotonic())
    assert any("No space left on device" in each["text"] for each in campaign.events)
    assert campaign.told("lost") == []
    subprocess.run(["mount", "-o", "remount,size=64m", str(root)], check=True)
    assert campaign.run(save_every=0.5) == 0
    return times[0]


def preempted(campaign: Campaign) -> float:
    times: list[float] = []

    def preempt(event: Event, _: Campaign) -> None:
        number = subprocess.run(["squeue", "-h", "-t", "R", "-o", "%i"], capture_output=True, text=True, check=True)
        subprocess.run(["scancel", "--signal", "USR2", number.stdout.split()[0]], check=True)

    assert campaign.run(midway(preempt, times), 0.5) == 0
    return times[0]


def slurm_node_killed(campaign: Campaign) -> float:
    times: list[float] = []

    def kill(event: Event, _: Campaign) -> None:
        node = subprocess.run(["squeue", "-h", "-t", "R", "-o", "%N"], capture_output=True, text=True, check=True)
        killed.append(node.stdout.split()[0])
        subprocess.run([SLURM, "kill", killed[0]], check=True)

    killed: list[str] = []
    try:
        assert campaign.run(midway(kill, times), 0.5) == 0
    finally:
        for node in killed:
            subprocess.run([SLURM, "revive", node], check=True)
    return times[0]


def controller_restarted(campaign: Campaign) -> float:
    times: list[float] = []
    restart = midway(lambda *_: subprocess.run([SLURM, "restart"], check=True), times)
    assert campaign.run(restart, 0.5) == 0
    return times[0]


def ray_node_killed(cluster: Cluster) -> Fault:
    def fault(campaign: Campaign) -> float:
        times: list[float] = []
        assert campaign.run(midway(lambda *_: cluster.tell("kill"), times), 0.5) == 0
        cluster.tell("add")
        return times[0]

    return fault


def ray_head_killed(cluster: Cluster) -> Fault:
    """The head node is killed and the cluster started again, at another address; so is the command."""

    def fault(campaign: Campaign) -> float:
        times: list[float] = []
        assert campaign.run(midway(lambda *_: cluster.tell("restart"), times), 0.5) != 0
        campaign.on = f"ray:{cluster.address}"
        assert campaign.run(save_every=0.5) == 0
        return times[0]

    return fault


EVERYWHERE: dict[str, Fault] = {
    "worker SIGKILL": worker_killed,
    "killed inside a write": killed_in_a_write,
    "driver SIGKILL, same command again": driver_killed,
    "the same command twice at once": submitted_twice,
    "full disk, then room and the same command again": disk_full,
}
ON_SLURM: dict[str, Fault] = {
    **EVERYWHERE, "node killed": slurm_node_killed, "preempted (warned by a signal)": preempted,
    "head node's controller restarted": controller_restarted,
}  # fmt: skip


@contextmanager
def place() -> Iterator[Path]:
    """A folder that is gone afterwards, file systems that were mounted in it, too."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        finally:
            if os.path.ismount(Path(folder) / "store"):
                subprocess.run(["umount", str(Path(folder) / "store")], check=True)


def row(name: str, fault: Fault, on: str, calm: float, expected: object) -> str:
    """Do one fault and say what it cost."""
    with place() as folder:
        campaign = Campaign(small_graph(UPDATES), folder, on)
        started = time.monotonic()
        at = fault(campaign)
        took = time.monotonic() - started
        assert contents(campaign.store) == expected, f"{name} on {on}: other contents"
        back = _back(campaign.events, at)
        told = "-" if back is None else f"{back:.0f}"
        return f"| {name} | {on.partition(':')[0]} | {told} | {took:.0f} | {calm:.0f} |"


def _back(events: list[Event], at: float) -> float | None:
    """Seconds until the job that was last seen before the fault was seen elsewhere, or done; None if it never left."""
    before = [each for each in events if each["at"] <= at and each["what"] == "on"]
    job, place = (before[-1]["job"], before[-1]["place"]) if before else ("", "")
    for each in events:
        if each["at"] > at and (not job or each["job"] == job):
            if each["what"] == "on" and each["place"] and each["place"] != place:
                return float(each["at"] - at)
            if each["what"] == "done":
                return None if job else float(each["at"] - at)
    return None


FAILED = "FAILED"


def rows(on: str, faults: dict[str, Fault]) -> Iterator[str]:
    """The rows of an engine; one with the word `FAILED` for a fault that did not end as it should."""
    with place() as folder:
        expected = undisturbed_in(folder, small_graph(UPDATES))
    with place() as folder:
        started = time.monotonic()
        assert Campaign(small_graph(UPDATES), folder, on).run(save_every=0.5) == 0
        calm = time.monotonic() - started
    for name, fault in faults.items():
        try:
            yield row(name, fault, on, calm, expected)
        except AssertionError as error:
            yield f"| {name} | {on.partition(':')[0]} | {FAILED} {str(error)[:200]} | | |"


def main(asked: list[str]) -> int:
    """Print a row for every fault of these engines, or for those whose names begin as told; 1 where one failed."""
    named = [each.removeprefix("--only=") for each in asked if each.startswith("--only=")]
    engines = [each for each in asked if not each.startswith("--only=")]

    def wanted(faults: dict[str, Fault]) -> dict[str, Fault]:
        return {name: each for name, each in faults.items() if not named or name.startswith(tuple(named))}

    failed = False

    def show(made: Iterator[str]) -> None:
        nonlocal failed
        for each in made:
            print(each, flush=True)
            failed |= f"| {FAILED} " in each

    for on in engines:
        kind = on.partition(":")[0]
        if kind == "ray":
            with running() as cluster:
                own = {
                    "node killed": ray_node_killed(cluster),
                    "head node killed, cluster and command started again": ray_head_killed(cluster),
                }
                show(rows(f"ray:{cluster.address}", wanted({**EVERYWHERE, **own})))
            continue
        show(rows(on, wanted(EVERYWHERE if kind == "local" else ON_SLURM)))
    return int(failed)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
