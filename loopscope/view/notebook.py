"""The page in a notebook: the model is in the kernel, and messages take the place of HTTP.

    loopscope.view(model, maps={"one": J_one})

The widget needs anywidget, of the extra `view`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.errors import InputError
from loopscope.models.extras import extra
from loopscope.protocol import LoopedModel, TokenMap
from loopscope.view.assets import NOTEBOOK, Page
from loopscope.view.contract import Request
from loopscope.view.explorer import Explorer
from loopscope.view.runs import MEMORY
from loopscope.view.shown_model import ShownModel, open_model
from loopscope.view.worker import Job, Worker

if TYPE_CHECKING:
    from loopscope.models.text import Tokenizer

TOLD = 0.5
"""Seconds between two words on how far a question is."""


class Conversation:
    """Messages of one page and what is said to them; `send` takes a message and buffers, from any thread."""

    def __init__(self, worker: Worker, send: Any, tab: str = "notebook") -> None:
        self.worker, self.send, self.tab = worker, send, tab

    def hear(self, message: object) -> None:
        """Take a message of the page; the reply may come later."""
        if not isinstance(message, dict) or type(message.get("id")) is not int:
            return
        number, what = message["id"], message.get("do")
        try:
            if what == "hello":
                self.send({"id": number, "hello": self.worker.explorer.subject.hello()}, [])
            elif what == "ask":
                self._ask(number, Request.of(message.get("request")))
            elif what == "cancel":
                name = message.get("name")
                self.worker.cancel(self.tab, name if isinstance(name, str) else None)
            else:
                raise InputError("a page says hello, ask or cancel")
        except InputError as error:
            self._fail(number, str(error))

    def _ask(self, number: int, request: Request) -> None:
        job = self.worker.ask(request, self.tab)
        watch = threading.Thread(target=self._watch, args=(number, job), daemon=True)
        watch.start()

    def _watch(self, number: int, job: Job) -> None:
        while not job.wait(TOLD):
            self.worker.still(job, self.tab)  # the page waits as long as the notebook is open
            self.send({"id": number, "progress": job.progress(self.worker.ahead(job))}, [])
        if job.answer is None:
            self._fail(number, job.error or "the model could not answer")
        else:
            self.send({"id": number, "answer": True}, [job.answer])

    def _fail(self, number: int, message: str) -> None:
        self.send({"id": number, "error": {"message": message, "position": None}}, [])


def view(
    model: LoopedModel | str | Path,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    tokenizer: Tokenizer | None = None,
    name: str | None = None,
    memory: int = MEMORY,
) -> Any:
    """A widget that shows a model in a notebook: the last line of a cell, or `display(...)`.

    - `model` is a model, or what `load` takes; then its maps of the zoo and its tokenizer come with it.
    - `maps` are the maps J by the names they have in programs.
    - `memory` bounds the bytes of what is kept.

    InputError where there is no such model, a map does not fit, or anywidget is not there.
    """
    widgets = extra("anywidget", "a view in a notebook", "view")
    traits = extra("traitlets", "a view in a notebook", "view")
    subject = shown_model(model, maps or {}, tokenizer, name)
    worker = Worker(Explorer(subject, memory))
    page = Page.read()

    class View(widgets.AnyWidget):  # type: ignore[misc, name-defined]  # anywidget is there at run time alone
        """The explorer's page in a cell."""

        _esm = traits.Unicode(page.script(NOTEBOOK)).tag(sync=True)
        _css = traits.Unicode(page.css).tag(sync=True)

        def close(self) -> None:
            """End the page and the thread that has the model."""
            worker.close()
            super().close()

    shown = View()
    talk = Conversation(worker, shown.send)
    shown.on_msg(lambda _, message, __: talk.hear(message))
    return shown


def shown_model(
    model: LoopedModel | str | Path,
    maps: Mapping[str, TokenMap],
    tokenizer: Tokenizer | None = None,
    name: str | None = None,
) -> ShownModel:
    """What is shown of a model, or of one by name; maps that are given come before those of the zoo."""
    if isinstance(model, str | Path):
        found = open_model(model)
        titles = {key: title for key, title in found.titles.items() if key not in maps}
        return ShownModel(
            found.model, name or found.name, {**found.maps, **maps}, titles, found.folder, tokenizer or found.tokenizer,
            found.loading,
        )  # fmt: skip
    return ShownModel(model, name or type(model).__name__, dict(maps), tokenizer=tokenizer)
