"""Jobs in worker processes on this machine: what comes out, what dies, what fails, what is found again."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from loopscope.errors import DamagedError, InputError
from loopscope.jobs import journal as journal_of_jobs
from loopscope.jobs import local
from loopscope.jobs.driver import LOOK_EVERY, Event, Standing, run
from loopscope.jobs.engine import Ended, Ticket
from loopscope.jobs.job import Graph, Job, Later, Needs
from loopscope.jobs.journal import Journal, journals
from loopscope.jobs.local import Local
from loopscope.jobs.outcome import Outcome, lost
from loopscope.jobs.perform import perform
from loopscope.jobs.status import status_of
from loopscope.jobs.task import Place, Task
from loopscope.jobs.worker import ticket_text
from loopscope.store.artefacts import BACKBONE, MAP
from loopscope.store.store import Store
from tests.campaign_toys import contents, fitting, small_graph, toy_graph, training, undisturbed_in, wide_walk
from tests.campaigns_elsewhere import Campaign, until
from tests.jobs_here import Here
from tests.toys import CPU, toy_map, toy_walk


class _Slow(Task):
    """A job that tells nothing of how far it is; it looks at when it was last known to be alive."""

    looks = False
    seen: ClassVar[list[float]] = []

    def found(self, job: Job, store: Store) -> None:
        return None

    def run(self, job: Job, at: Place) -> dict[str, str]:
        while len(self.seen) < 3:
            now = Journal(at.store.root, job.key).read("running")
            if now is not None and now["at"] not in self.seen:
                self.seen.append(now["at"])
        return {}


SLOW = _Slow()


class Told(list[Event]):
    def __call__(self, event: Event, now: Standing) -> None:
        self.append(event)
        assert now.total == now.done + now.running + now.waiting + now.failed

    def of(self, what: str) -> list[str]:
        return [each.job for each in self if each.what == what]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def walk() -> Job:
    return training(toy_walk(), [0])


def map_of(seed: int) -> Job:
    return fitting([toy_map()], toy_walk(), seed, [1])


# ---- the driver ------------------------------------------------------------------------------------------------------


def test_jobs_are_done_in_order_once_and_then_found(store: Store) -> None:
    told, engine = Told(), Here()
    report = run(Graph((map_of(0), walk())), store, engine, tell=told)
    assert engine.tried == ["train toy", "fit toy-one on toy-0"]
    assert (report.failures, engine.closed) == ([], [False])
    assert report.outcomes["train toy"].keys["toy-0"] in {each.key for each in store.every(BACKBONE)}
    assert {*report.outcomes["fit toy-one on toy-0"].keys.values()} == {each.key for each in store.every(MAP)}
    assert (report.outcomes["train toy"].threads, report.outcomes["train toy"].device) == (1, "CPU")
    again, engine = Told(), Here()
    assert run(Graph((map_of(0), walk())), store, engine, tell=again).failures == []
    assert (engine.tried, again.of("found")) == ([], ["fit toy-one on toy-0", "train toy"])


def test_threads_decide_the_last_bits_and_equal_threads_give_equal_ones(tmp_path: Path) -> None:
    """So that the job of two threads in `toy_graph` can tell whether an engine heeds them."""
    made = []
    for number, threads in enumerate((1, 2, 2)):
        store = Store(tmp_path / str(number))
        outcome = perform(training(wide_walk(), [0], threads), store.root)
        assert (outcome.state, outcome.threads) == ("done", threads)
        made.append(contents(store))
    assert made[0] != made[1] == made[2]


def test_a_lost_job_is_begun_again_three_times_and_no_more(store: Store) -> None:
    events, engine = Told(), Here({"train toy": 3})
    assert run(Graph((walk(),)), store, engine, tell=events).failures == []
    assert (len(engine.tried), events.of("lost")) == (4, ["train toy"] * 3)
    engine = Here({"fit toy-one on toy-0": 9})
    report = run(Graph((walk(), map_of(0))), store, engine)
    assert engine.tried == ["fit toy-one on toy-0"] * 4
    assert report.failures == ["fit toy-one on toy-0: its machine is gone"]
    told = {job.name: status_of(job, journal) for job, journal in journals(store.root)}
    assert (told["fit toy-one on toy-0"]["state"], told["fit toy-one on toy-0"]["line"]) == (
        "lost",
        "its machine is gone",
    )


def test_a_job_is_tried_again_elsewhere_than_where_it_was_lost(store: Store) -> None:
    class Nodes(Here):
        avoided: ClassVar[list[tuple[str, ...]]] = []

        def start(self, ticket: Ticket, ended: Ended) -> None:
            self.avoided.append(ticket.avoid)
            if len(self.avoided) < 3:
                with Journal(ticket.root, ticket.job.key).pulse({"node": f"n{len(self.avoided)}"}):
                    return ended(lost("its node is gone"))
            super().start(ticket, ended)

    assert run(Graph((walk(),)), store, Nodes()).failures == []
    assert Nodes.avoided == [(), ("n1",), ("n1", "n2")]


def test_jobs_in_an_engines_queue_are_waiting_and_the_time_left_is_that_of_those_at_work(store: Store) -> None:
    """Four jobs of ten minutes, of which two have a place: about twenty minutes are left."""
    seen: list[Standing] = []

    class Queue(Here):
        places = None

        def start(self, ticket: Ticket, ended: Ended) -> None:
            self.tried.append(ticket.job.name)
            journal = Journal(ticket.root, ticket.job.key)
            if len(self.tried) <= 2:
                with journal.pulse({"place": "there"}):
                    pass
            threading.Timer(LOOK_EVERY + 0.5, ended, [Outcome("done")]).start()

    jobs = [replace(training(toy_walk(), [seed]), name=str(seed), what=f"{__name__}:SLOW") for seed in range(4)]
    graph = Graph(tuple(replace(each, needs=Needs(minutes=10)) for each in jobs))
    run(graph, store, Queue(), tell=lambda event, now: seen.append(now) if event.what == "on" else None)
    assert (seen[-1].running, seen[-1].waiting, seen[-1].total) == (2, 2, 4)
    assert seen[-1].left == pytest.approx(20, abs=0.2)


def test_why_a_job_waits_is_told_once_and_stands_in_its_status(store: Store) -> None:
    class Held(Here):
        places = None

        def start(self, ticket: Ticket, ended: Ended) -> None:
            Journal(ticket.root, ticket.job.key).wait("nobody lets it in")
            threading.Timer(2 * LOOK_EVERY + 1, ended, [Outcome("done")]).start()

    told, states = Told(), list[tuple[str, str]]()
    job = replace(walk(), what=f"{__name__}:SLOW")

    def tell(event: Event, now: Standing) -> None:
        told(event, now)
        status = status_of(job, Journal(store.root, job.key))
        states.append((status["state"], status["line"]))

    run(Graph((job,)), store, Held(), tell=tell)
    assert [each.text for each in told if each.what == "waiting"] == ["", "nobody lets it in"]
    assert ("waiting", "nobody lets it in") in states


def test_a_job_that_says_nothing_is_still_known_to_be_alive(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_of_jobs, "AT_FIRST", 0.01)
    job = replace(walk(), what=f"{__name__}:SLOW")
    assert run(Graph((job,)), store, Here()).failures == []
    assert len(SLOW.seen) == 3
    assert sorted(set(SLOW.seen)) == SLOW.seen


def test_a_result_that_cannot_be_read_ends_what_follows_from_it_alone(store: Store) -> None:
    def broken() -> Graph:
        raise DamagedError("records/x: expected SHA-256 a, found b")

    graph = Graph((walk(), map_of(0)), (Later(("train toy",), broken, lambda: Graph(())),))
    engine = Here()
    report = run(graph, store, engine)
    assert engine.tried == ["train toy", "fit toy-one on toy-0"]
    assert report.failures == ["what follows from train toy: records/x: expected SHA-256 a, found b"]


def test_gpus_of_this_machine_are_shared_by_what_jobs_need(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two halves go beside each other, one whole waits; several get GPUs of their own; too many are refused."""
    monkeypatch.setattr(local, "_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    begun: list[tuple[float, list[int]]] = []
    gate = threading.Event()

    def held(worker: Any, ticket: Ticket, gpus: list[int]) -> Outcome:
        begun.append((ticket.job.needs.gpus, gpus))
        gate.wait()
        return Outcome("done")

    monkeypatch.setattr(local._Worker, "run", held)
    engine, ended = Local(4), queue.SimpleQueue[Outcome]()

    def start(gpus: float) -> None:
        job = replace(walk(), needs=Needs(gpus=gpus))
        engine.start(Ticket(job, store.root), ended.put)

    for needed in (0.5, 2.0, 0.5, 1.0, 0.5):
        start(needed)
    until(lambda: len(begun) >= 3, 10)
    assert sorted(begun) == [(0.5, [0]), (0.5, [0]), (0.5, [1])]
    gate.set()
    for _ in range(5):
        ended.get(timeout=10)
    assert [gpus for needed, gpus in begun if needed == 2.0] == [[0, 1]]
    with pytest.raises(InputError, match="needs 3 GPUs; this machine has 2"):
        start(3.0)
    assert local._visible([0, 1]) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert local._visible([1, 2]) == {"CUDA_VISIBLE_DEVICES": "6,7"}


def test_a_mistake_is_not_tried_again_and_others_come_to_their_end(store: Store) -> None:
    wrong = replace(walk(), name="wrong", settings={**walk().settings, "seeds": []})
    behind = replace(map_of(1), name="behind", after=("wrong",))
    further = replace(behind, name="further", after=("behind",), needs=Needs(cpus=2))
    engine, told = Here(), Told()
    report = run(Graph((wrong, behind, further, walk(), map_of(0))), store, engine, tell=told)
    assert engine.tried == ["train toy", "fit toy-one on toy-0"]
    assert report.failures == [
        "wrong: job 'wrong': the setting 'seeds' must be a list of whole numbers",
        "not begun, as they wait for what failed: behind and 1 more",
    ]
    assert (report.outcomes["wrong"].code, report.skipped) == (2, {"behind": "wrong", "further": "behind"})
    assert told.of("skipped") == ["behind", "further"]
    noted = {job.name: status_of(job, journal) for job, journal in journals(store.root)}
    assert {name: each["state"] for name, each in noted.items()} == {
        "wrong": "failed", "behind": "skipped", "further": "skipped", "train toy": "done",
        "fit toy-one on toy-0": "done",
    }  # fmt: skip
    assert noted["wrong"]["line"] in report.failures[0]
    assert noted["further"]["line"] == "not begun, as it waits for behind"


def test_a_damaged_file_is_told_by_name_and_not_tried_again(store: Store) -> None:
    run(Graph((walk(),)), store, Here())
    (artefact,) = store.every(BACKBONE)
    path = artefact.folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    engine = Here()
    report = run(Graph((walk(), map_of(0))), store, engine)
    assert engine.tried == ["fit toy-one on toy-0"]
    assert report.outcomes["fit toy-one on toy-0"].code == 3
    assert "weights.safetensors: expected SHA-256" in report.failures[0]


def test_what_follows_from_results_is_asked_for_when_they_are_there(store: Store) -> None:
    def more() -> Graph:
        assert store.every(BACKBONE)
        return Graph((map_of(0),), (Later(("fit toy-one on toy-0",), lambda: Graph((map_of(1),)), lambda: Graph(())),))

    engine = Here()
    graph = Graph((training(toy_walk(), [0, 1]),), (Later(("train toy",), more, lambda: Graph(())),))
    assert run(graph, store, engine).failures == []
    assert engine.tried == ["train toy", "fit toy-one on toy-0", "fit toy-one on toy-1"]
    broken = Graph((replace(walk(), name="w", settings={}),), (Later(("w",), more, lambda: Graph(())),))
    assert run(broken, store, Here()).failures[1] == "not begun, as they wait for what failed: what follows from w"


def test_an_interrupt_closes_the_engine_and_asks_whether_jobs_go_on(store: Store) -> None:
    class Interrupted(Here):
        leaves = True

        def start(self, ticket: Ticket, ended: Ended) -> None:
            raise KeyboardInterrupt

    for choice, state in ((True, "waiting"), (False, "stopped")):
        engine, told = Interrupted(), Told()
        with pytest.raises(KeyboardInterrupt):
            run(Graph((walk(),)), store, engine, tell=told, leave=lambda choice=choice: choice)
        assert engine.closed == [choice]
        assert told[-1].text.startswith(f"jobs begun: 1, {'left to go on' if choice else 'stopped'};")
        assert [status_of(*each)["state"] for each in journals(store.root)] == [state]


def test_a_busy_artefact_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from loopscope.jobs import perform as performing
    from loopscope.training.checkpoints import alone
    from loopscope.training.cohort import jobs

    monkeypatch.setattr(performing, "BUSY_AGAIN", 0.01)
    said: list[str] = []
    made = jobs._Backbones(toy_walk(), [0], store, jobs.Settings(CPU))
    with alone(store, made.identity):
        waiting: list[Outcome] = []
        thread = threading.Thread(target=lambda: waiting.append(perform(walk(), store.root, log=said.append)))
        thread.start()
        while not said:
            time.sleep(0.01)
        assert "another process is at work on this job" in said[0]
        assert not waiting
    thread.join()
    assert waiting[0].state == "done"


# ---- worker processes ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the toy campaign makes in this process."""
    store = Store(tmp_path_factory.mktemp("undisturbed"))
    assert run(toy_graph(), store, Here()).failures == []
    return contents(store)


@pytest.mark.slow
def test_two_workers_make_what_one_process_makes_and_the_same_after_a_kill(
    store: Store, undisturbed: dict[str, Any]
) -> None:
    """One worker is killed in its first job: the other goes on, and the job is begun again."""
    engine, killed = Local(2), list[int]()

    def tell(event: Event, now: Standing) -> None:
        if event.what == "on" and not killed and event.place:
            killed.append(int(event.place.partition(":")[2]))
            os.kill(killed[0], signal.SIGKILL)

    report = run(toy_graph(), store, engine, tell=tell)
    assert (report.failures, len(killed)) == ([], 1)
    assert contents(store) == undisturbed
    places = {outcome.place for outcome in report.outcomes.values()}
    assert len(places) >= 2


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_nothing_behind_and_the_same_command_goes_on(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    store = Store(tmp_path / "store")
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps(toy_graph().to_json()))
    command = [sys.executable, "-m", "loopscope.cli", "jobs", "run", str(file), "--on", "local:2", "--store",
               str(store.root), "--json", "--save-every", "0"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if json.loads(line)["what"] == "done":
                driver.kill()
                break
    workers = {int(now["place"].partition(":")[2]) for now in _running(store)}
    until(lambda: not any(map(_alive, workers)), 30)
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in finished.stdout.splitlines()]
    assert "train toy" in {each["job"] for each in events if each["what"] in ("found", "done")}
    assert any(each["what"] == "found" for each in events)
    assert contents(store) == undisturbed


def _running(store: Store) -> Iterator[dict[str, Any]]:
    for job in toy_graph():
        now = Journal(store.root, job.key).read("running")
        if now is not None:
            yield now


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_an_interrupt_makes_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path) -> None:
    graph = Graph(small_graph(updates=2000).jobs[:1])  # some seconds on the quickest machine
    campaign = Campaign(graph, tmp_path, "local:1")

    def interrupt(event: dict[str, Any], _: Campaign) -> None:
        if event["what"] == "on" and event["done"]:
            campaign.process.send_signal(signal.SIGINT)

    assert campaign.run(interrupt, save_every=1000.0) == 130
    assert campaign.store.every("checkpoint")
    assert campaign.told("done") == []
    assert campaign.run(save_every=1000.0) == 0
    assert contents(campaign.store) == undisturbed_in(tmp_path, graph)


class _Endless(Task):
    """A job that goes on until it is asked to stop."""

    looks = False

    def found(self, job: Job, store: Store) -> None:
        return None

    def run(self, job: Job, at: Place) -> dict[str, str]:
        while not at.stop():
            time.sleep(0.05)
        raise KeyboardInterrupt


ENDLESS = _Endless()


@pytest.mark.slow
def test_processes_that_work_together_stop_when_who_began_them_is_killed(store: Store) -> None:
    job = Job("endless", f"{__name__}:ENDLESS")
    journal = Journal(store.root, job.key)
    journal.open(job)
    script = (
        "import sys; from loopscope.jobs.together import run_together; from loopscope.jobs.worker import ticket_of; "
        "run_together(ticket_of(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", script, ticket_text(Ticket(job, store.root))]) as began:
        until(lambda: journal.read("running") is not None)
        began.kill()
    worker = int((journal.read("running") or {})["place"].partition(":")[2])
    until(lambda: not _alive(worker))
    assert (journal.read("outcome") or {})["state"] == "stopped"
