"""One thread for everybody: turns, cancelling, forgetting, and models that fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.view import worker as module
from loopscope.view.contract import Request, unpack
from loopscope.view.explorer import Explorer
from loopscope.view.runs import Steps, finish
from loopscope.view.worker import BusyError, Job, Worker
from tests.explored import ONE, TWO, tiny_explorer, tiny_subject

LONG = {"kind": "sweep", "by": "head", "component": "z", "rows": "all", "source": "(F2 J:one F2)"}


class Stepped(Explorer):
    """Answers that go on when they are told to, and say whose turn it was."""

    def __init__(self) -> None:
        super().__init__(tiny_subject())
        self.turns: list[str] = []
        self.go, self.at = threading.Semaphore(0), threading.Semaphore(0)
        self.fails: BaseException | None = None

    def answer(self, request: Request) -> Steps[bytes]:
        for piece in range(1, 4):
            self.turns.append(request.program)
            self.at.release()
            assert self.go.acquire(timeout=10)
            if self.fails is not None:
                raise self.fails
            yield piece, 3
        return request.program.encode()

    def step(self, count: int = 1) -> None:
        """Let so many pieces be done, each begun before."""
        for _ in range(count):
            assert self.at.acquire(timeout=10)
            self.go.release()


@pytest.fixture
def stepped() -> Iterator[tuple[Stepped, Worker]]:
    explorer = Stepped()
    worker = Worker(explorer)
    yield explorer, worker
    explorer.go.release(1000)
    worker.close()


def question(explorer: Explorer, program: str, **read: Any) -> Request:
    return explorer.request(program, read or {"kind": "check"}, {"tokens": ONE}, {"other": {"tokens": TWO}})


def test_answers_are_those_of_the_explorer_and_kept() -> None:
    explorer = tiny_explorer()
    worker = Worker(explorer)
    try:
        for program, read in (("F3", {}), ("F4", LONG), ("F2 J:onk", {})):
            request = question(explorer, program, **read)
            job = worker.ask(request, "tab")
            assert job.wait(30)
            assert job.answer == finish(tiny_explorer().answer(request))
            again = worker.ask(request, "other")
            assert again.finished
            assert again.answer == job.answer
    finally:
        worker.close()


def test_what_is_quick_goes_before_what_is_long_which_still_goes_on(stepped: tuple[Stepped, Worker]) -> None:
    explorer, worker = stepped
    long = worker.ask(question(explorer, "F4", **LONG), "a")
    assert explorer.at.acquire(timeout=10)
    quick = [worker.ask(question(explorer, f"F{count}"), "b") for count in (1, 2, 3)]
    assert worker.ahead(long) == 3
    assert worker.ahead(quick[0]) == 2
    explorer.go.release()
    explorer.step(11)
    assert all(job.wait(10) for job in (*quick, long))
    assert explorer.turns[0] == "F4"
    turns = "".join("long " if turn == "F4" else "quick " for turn in explorer.turns)
    assert turns == "long " + 2 * (module.QUICK_FIRST * "quick " + "long ") + "quick "
    assert (long.done, long.total) == (3, 3)


def test_tabs_take_turns(stepped: tuple[Stepped, Worker]) -> None:
    explorer, worker = stepped
    mine = [worker.ask(question(explorer, f"F{count}"), "a") for count in (1, 2, 3)]
    assert explorer.at.acquire(timeout=10)
    theirs = worker.ask(question(explorer, "F9"), "b")
    explorer.go.release()
    explorer.step(11)
    assert all(job.wait(10) for job in (*mine, theirs))
    assert explorer.turns[1] == "F9"
    assert explorer.turns.index("F9") < 3
    assert len(explorer.turns) - explorer.turns[::-1].index("F9") <= 7  # its three pieces among the first seven


def test_the_same_question_of_two_tabs_is_computed_once_and_either_may_leave(stepped: tuple[Stepped, Worker]) -> None:
    explorer, worker = stepped
    one, two = (worker.ask(question(explorer, "F3"), tab) for tab in "ab")
    assert one is two
    assert worker.cancel("a") == 1
    explorer.step(3)
    assert one.wait(10)
    assert one.answer == b"F3"
    assert explorer.turns == ["F3"] * 3


def test_what_nobody_wants_stops(stepped: tuple[Stepped, Worker]) -> None:
    explorer, worker = stepped
    job = worker.ask(question(explorer, "F3"), "a")
    assert explorer.at.acquire(timeout=10)
    assert worker.cancel("a", "0" * 32) == 0
    assert worker.cancel("a", job.request.name) == 1
    assert job.finished
    assert job.answer is None
    next_one = worker.ask(question(explorer, "F4"), "a")
    explorer.go.release()
    explorer.step(3)
    assert next_one.wait(10)
    assert explorer.turns == ["F3", "F4", "F4", "F4"]
    assert worker.cancel("a") == 0


def test_who_does_not_ask_again_is_forgotten(stepped: tuple[Stepped, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    explorer, worker = stepped
    job = worker.ask(question(explorer, "F3"), "gone")
    assert explorer.at.acquire(timeout=10)
    monkeypatch.setattr(module, "FORGOTTEN", 0.0)
    explorer.go.release()
    assert job.wait(10)
    assert job.answer is None
    assert job.dropped


def test_no_more_wait_than_there_is_room_for(stepped: tuple[Stepped, Worker]) -> None:
    explorer, worker = stepped
    for count in range(1, module.MOST_JOBS + 1):
        worker.ask(question(explorer, f"F{count}"), "a")
    with pytest.raises(BusyError, match="64 questions are waiting"):
        worker.ask(question(explorer, "F99"), "a")
    worker.ask(question(explorer, "F1"), "a")  # it waits already


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory"), "not enough memory"),
        (RuntimeError("shapes\ndo not fit"), "the model could not answer: shapes do not fit"),
        (LoopscopeError("a file is damaged"), "a file is damaged"),
        (KeyError("mine"), "the model could not answer: KeyError: 'mine'"),
    ],
)
def test_a_model_that_fails_ends_one_question_and_no_other(
    stepped: tuple[Stepped, Worker], error: Exception, said: str
) -> None:
    explorer, worker = stepped
    explorer.fails = error
    job = worker.ask(question(explorer, "F3"), "a")
    explorer.step()
    assert job.wait(10)
    assert job.answer is None
    assert said in str(job.error)
    explorer.fails = None
    again = worker.ask(question(explorer, "F3"), "a")
    explorer.step(3)
    assert again.wait(10)
    assert again.answer == b"F3"


def test_closing_ends_what_is_under_way(stepped: tuple[Stepped, Worker]) -> None:
    explorer, worker = stepped
    job = worker.ask(question(explorer, "F3"), "a")
    assert explorer.at.acquire(timeout=10)
    explorer.go.release(100)
    worker.close()
    assert job.finished


def test_a_sweep_of_many_cells_lets_others_through() -> None:
    explorer = tiny_explorer()
    worker = Worker(explorer)
    heard: list[str] = []

    def hear(job: Job, name: str) -> None:
        job.when_finished(lambda: heard.append(name))

    try:
        hear(worker.ask(question(explorer, "F12", **{**LONG, "source": "(F2 J:one F10)"}), "a"), "sweep")
        quick = worker.ask(question(explorer, "F3", kind="compare", other="F4", rows="last"), "b")
        hear(quick, "quick")
        assert quick.wait(30)
        assert heard[0] == "quick"
        assert "error" not in unpack(quick.answer or b"")[0]
    finally:
        worker.close()


def test_the_thread_computes_with_as_many_threads_as_suit_it() -> None:
    explorer = Stepped()
    seen: list[int] = []

    def answer(request: Request) -> Steps[bytes]:
        seen.append(torch.get_num_threads())
        yield None
        return b""

    explorer.answer = answer  # type: ignore[method-assign]
    worker = Worker(explorer)
    try:
        assert worker.ask(question(explorer, "F3"), "a").wait(10)
        assert seen == [1]
    finally:
        worker.close()
