"""The page in a notebook: messages in the place of HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import loopscope
from loopscope.errors import InputError
from loopscope.view.contract import canonical, parse_json
from loopscope.view.explorer import Explorer
from loopscope.view.notebook import Conversation, shown_model
from loopscope.view.runs import finish
from loopscope.view.worker import Worker
from tests.explored import ONE, tiny_explorer, tiny_subject
from tests.tiny import tiny_map, tiny_model


class Page:
    """What a page hears."""

    def __init__(self, explorer: Explorer) -> None:
        self.heard: list[tuple[dict[str, Any], list[bytes]]] = []
        self.worker = Worker(explorer)
        self.talk = Conversation(self.worker, lambda message, buffers: self.heard.append((message, buffers)))

    def says(self, **message: Any) -> tuple[dict[str, Any], list[bytes]]:
        """The last reply to a message."""
        self.talk.hear(message)
        for _ in range(1000):
            mine = [each for each in self.heard if each[0]["id"] == message["id"] and "progress" not in each[0]]
            if mine:
                return mine[-1]
            time.sleep(0.01)
        raise AssertionError("no reply")


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(tiny_explorer())
    yield made
    made.worker.close()


def request(program: str) -> dict[str, Any]:
    model = tiny_subject().fingerprint
    return {"model": model, "input": {"tokens": ONE}, "others": {}, "program": program, "read": {"kind": "check"}}


def test_the_kernel_answers_as_the_server_does(page: Page) -> None:
    hello, _ = page.says(id=1, do="hello")
    assert parse_json(canonical(hello["hello"])) == parse_json(canonical(tiny_subject().hello()))
    reply, (answer,) = page.says(id=2, do="ask", request=request("F3"))
    assert reply == {"id": 2, "answer": True}
    explorer = tiny_explorer()
    assert answer == finish(explorer.answer(explorer.request("F3", {"kind": "check"}, {"tokens": ONE})))


@pytest.mark.parametrize("message", [{"do": "ask"}, {"do": "ask", "request": []}, {"do": "what"}, {}])
def test_what_is_no_question_is_refused(page: Page, message: dict[str, Any]) -> None:
    reply, buffers = page.says(id=3, **message)
    assert reply["error"]["message"]
    assert buffers == []


def test_messages_of_others_are_not_heard(page: Page) -> None:
    for message in (None, [], {}, {"id": "1", "do": "hello"}, {"id": True, "do": "hello"}):
        page.talk.hear(message)
    assert page.heard == []


def test_how_far_it_is_is_told_and_it_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopscope.view.notebook.TOLD", 0.02)

    class Endless(Explorer):
        def answer(self, request: Any) -> Any:
            while True:
                time.sleep(0.005)
                yield 1, 2

    page = Page(Endless(tiny_subject()))
    try:
        page.talk.hear({"id": 1, "do": "ask", "request": request("F3")})
        until = time.monotonic() + 30  # before the first piece nobody knows how many there are
        while not (page.heard and page.heard[-1][0]["progress"]["total"] == 2):
            assert time.monotonic() < until
            time.sleep(0.01)
        page.talk.hear({"id": 2, "do": "cancel", "name": None})
        while "error" not in page.heard[-1][0]:
            time.sleep(0.01)
        assert page.heard[-1][0]["id"] == 1
    finally:
        page.worker.close()


def test_the_room_is_a_function_that_gives_a_widget() -> None:
    shown = loopscope.view(tiny_model(), maps={"one": tiny_map(1)}, name="mine")
    try:
        assert shown._esm.rstrip().endswith("widgetHost(model)); } };")
        assert ".loopscope" in shown._css
    finally:
        shown.close()


def test_given_maps_come_before_those_of_the_zoo() -> None:
    mine = tiny_map(1)
    with pytest.raises(InputError, match="map 'one' has width 16"):
        shown_model("tiny-0", {"one": mine})
    subject = shown_model(tiny_model(), {"one": mine}, name="mine")
    assert (subject.name, [*subject.maps], subject.folder) == ("mine", ["one"], None)
    assert "tiny-one" in shown_model("tiny-0", {}).maps
    with pytest.raises(InputError, match="nowhere is no model"):
        loopscope.view("nowhere")
