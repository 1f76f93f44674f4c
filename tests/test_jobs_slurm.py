"""Jobs on a real Slurm cluster, two nodes in one machine (`.ci/slurm start`): what comes out, and what faults do."""

from __future__ import annotations

import errno
import json
import queue
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import InputError
from loopscope.jobs.engine import Ticket
from loopscope.jobs.job import Graph, Job, Needs
from loopscope.jobs.journal import Journal
from loopscope.jobs.on_slurm import Slurm, _minutes, never_begins, reason_to_wait
from loopscope.jobs.outcome import Outcome
from loopscope.jobs.status import status_of
from loopscope.jobs.task import Place, Task
from loopscope.store.artefacts import BACKBONE
from loopscope.store.manifest import digest
from loopscope.store.store import Store
from tests.campaign_toys import check_two_nodes, contents, small_graph, toy_graph, undisturbed_in
from tests.campaigns_elsewhere import Campaign, Event, kill_driver, kill_worker, once, slurm, until

SCRIPT = Path(__file__).parents[1] / ".ci" / "slurm"


@pytest.mark.parametrize(
    ("limit", "minutes"), [("30:00", 30), ("2:00:00", 120), ("1-12:00:00", 36 * 60), ("infinite", 365 * 24 * 60)]
)
def test_limits_as_slurm_writes_them(limit: str, minutes: int) -> None:
    assert _minutes(limit) == minutes


@pytest.mark.parametrize(
    ("reason", "why", "state"),
    [
        ("Resources", "", None),
        ("None", "", None),
        ("QOSMaxJobsPerUserLimit", "QOSMaxJobsPerUserLimit", None),
        ("(launch_failed_requeued_held)", "launch failed requeued held", "lost"),
        ("launch failed requeued held", "launch failed requeued held", "lost"),
        ("JobHeldUser", "JobHeldUser", "failed"),
        ("JobHeldAdmin", "JobHeldAdmin", "failed"),
        ("BadConstraints", "BadConstraints", "failed"),
    ],
)
def test_reasons_to_wait(reason: str, why: str, state: str | None) -> None:
    assert reason_to_wait(reason) == why
    outcome = never_begins("7", why)
    assert (None if outcome is None else outcome.state) == state
    assert outcome is None or ("Slurm job 7 " in outcome.line and why in outcome.line)


@slurm
@pytest.mark.slow
def test_every_task_with_a_killed_worker_and_a_killed_driver_is_as_undisturbed(tmp_path: Path) -> None:
    """Jobs that are in the queue when the driver dies go on, and the next one finds them again by name."""
    campaign = Campaign(toy_graph(updates=400), tmp_path, "slurm:tests")
    assert campaign.run(once("on", kill_driver)) < 0
    submitted = {each.name for each in (campaign.store.root / ".jobs" / "slurm").glob("*_submitted.pkl")}
    assert submitted
    assert campaign.run(once("on", kill_worker)) == 0
    assert contents(campaign.store) == undisturbed_in(tmp_path, toy_graph(updates=400))
    again = {each.name for each in (campaign.store.root / ".jobs" / "slurm").glob("*_submitted.pkl")}
    assert submitted < again
    tried = len(again) - len(toy_graph(updates=400).jobs) - 1  # and the probe
    assert tried == len(campaign.told("lost"))  # what was found again was not submitted again


@slurm
@pytest.mark.slow
def test_a_preempted_job_makes_a_checkpoint_and_goes_on_and_so_does_one_of_a_killed_node(tmp_path: Path) -> None:
    graph = Graph(small_graph(updates=400).jobs[:1])
    harmed: list[str] = []

    def harm(event: Event, campaign: Campaign) -> None:
        if event["what"] != "on" or not event["done"] or event["place"] in harmed or len(harmed) == 2:
            return
        harmed.append(event["place"])
        number = _said("squeue", "-h", "-o", "%i")[0]
        if len(harmed) == 1:
            subprocess.run(["scancel", "--signal", "USR2", number], check=True)
        else:
            killed.extend(_said("squeue", "-h", "-j", number, "-o", "%N"))
            subprocess.run([str(SCRIPT), "kill", killed[0]], check=True)

    killed: list[str] = []
    campaign = Campaign(graph, tmp_path, "slurm:tests")
    try:
        assert campaign.run(harm, 0.5) == 0
    finally:
        for node in killed:
            subprocess.run([str(SCRIPT), "revive", node], check=True)
    assert len(harmed) == 2
    assert campaign.events[-1]["place"] not in harmed
    assert contents(campaign.store) == undisturbed_in(tmp_path, graph)
    assert len(campaign.store.every(BACKBONE)) == 2


def _said(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


class _Stubborn(Task):
    """A job that goes on for a minute whoever asks it to end, but for the second time at once."""

    looks = False

    def found(self, job: Job, store: Store) -> None:
        return None

    def run(self, job: Job, at: Place) -> dict[str, str]:
        if not (at.store.root / "again").exists():
            (at.store.root / "again").touch()
            time.sleep(60)
        return {}


STUBBORN = _Stubborn()


@slurm
@pytest.mark.slow
def test_a_job_that_is_being_cancelled_is_not_taken_over_and_a_store_that_stumbles_is_looked_at_again(
    tmp_path: Path,
) -> None:
    class Stumbling(Slurm):
        stumbled = False

        def _outcome(self, each: Any, queued: bool) -> Outcome | None:
            if not queued and not self.stumbled:
                self.stumbled = True
                raise OSError(errno.ESTALE, "Stale file handle")
            return super()._outcome(each, queued)

    job, ended = Job("stubborn", f"{__name__}:STUBBORN"), queue.SimpleQueue[Outcome]()
    Journal(tmp_path, job.key).open(job)
    first = Slurm("tests")
    first.start(Ticket(job, tmp_path), ended.put)
    while not (tmp_path / "again").exists():
        time.sleep(0.1)
    first.close()
    second = Stumbling("tests")
    second.start(Ticket(job, tmp_path), ended.put)
    assert ended.get(timeout=90).state == "done"
    second.close()
    assert second.stumbled


@slurm
@pytest.mark.slow
def test_why_a_job_waits_is_told_and_one_that_is_held_fails_and_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition is down, then somebody holds it; released, it goes on."""
    job, ended = Job("quick", f"{__name__}:QUICK"), queue.SimpleQueue[Outcome]()
    journal = Journal(tmp_path, job.key)
    journal.open(job)
    engine = Slurm("tests")
    _said("scontrol", "update", "PartitionName=tests", "State=DOWN")
    try:
        engine.start(Ticket(job, tmp_path), ended.put)
        until(lambda: "PartitionDown" in status_of(job, journal)["line"])
        assert status_of(job, journal)["state"] == "waiting"
        (number,) = _said("squeue", "-h", "-o", "%i", "-n", _called(job, tmp_path))
        _said("scontrol", "hold", number)
        held = ended.get(timeout=60)
        assert (held.state, f"Slurm job {number} is held (JobHeld" in held.line) == ("failed", True)
    finally:
        _said("scontrol", "update", "PartitionName=tests", "State=UP")
    _said("scontrol", "release", number)
    engine.start(Ticket(job, tmp_path), ended.put)
    assert ended.get(timeout=60).state == "done"
    engine.close()
    assert len([*(tmp_path / ".jobs" / "slurm").glob("*_submitted.pkl")]) == 1


def _called(job: Job, root: Path) -> str:
    return f"loopscope-{job.key[:16]}-{digest(str(root.resolve()))[:8]}"


@slurm
@pytest.mark.slow
def test_a_result_of_another_node_that_is_late_is_waited_for(tmp_path: Path) -> None:
    """As on NFS: what the second node gave is not seen at the first look after the job's end."""

    class Late(Slurm):
        hidden = 0

        def _outcome(self, each: Any, queued: bool) -> Outcome | None:
            if queued or self.hidden:
                return super()._outcome(each, queued)
            result = each.job.task(1).paths.result_pickle
            until(result.exists)
            aside = result.rename(result.with_suffix(".aside"))
            try:
                self.hidden += 1
                found = super()._outcome(each, queued)
            finally:
                aside.rename(result)
            assert found is None
            return found

    job, ended = Job("quick", f"{__name__}:QUICK", needs=Needs(nodes=2)), queue.SimpleQueue[Outcome]()
    Journal(tmp_path, job.key).open(job)
    engine = Late("tests")
    engine.start(Ticket(job, tmp_path), ended.put)
    outcome = ended.get(timeout=120)
    engine.close()
    assert (outcome.state, engine.hidden) == ("done", 1)


class _Quick(Task):
    looks = False

    def found(self, job: Job, store: Store) -> None:
        return None

    def run(self, job: Job, at: Place) -> dict[str, str]:
        return {}


QUICK = _Quick()


@slurm
@pytest.mark.slow
def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no partition 'test'; there are .*tests.*nearest: tests"):
        Slurm("test")
    needy = small_graph().jobs[0].to_json() | {"needs": {"gpus": 64.0}}
    campaign = Campaign(small_graph(), tmp_path, "slurm:tests")
    campaign.file.write_text(json.dumps({"jobs": [needy]}))
    assert campaign.run() == 1
    assert "Slurm takes no job for 'train toy': " in campaign.events[-1]["text"]


@slurm
@pytest.mark.slow
def test_two_nodes_train_one_language_model(tmp_path: Path) -> None:
    check_two_nodes(Campaign(small_graph(), tmp_path, "slurm:tests"), tmp_path)
