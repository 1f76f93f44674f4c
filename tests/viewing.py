"""What the tests of the explorer's page share: the page of the main backbone, live, in a browser that complains."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING

from loopscope.view.explorer import Explorer
from loopscope.view.shown_model import MAIN_MODEL, open_model
from tests.model_folders import ouro_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from loopscope.view.server import Server

PHONE, LAPTOP = (390, 844), (1440, 900)


@cache
def main_explorer() -> Explorer:
    """Answers about the main backbone; what it has computed is kept for all tests."""
    return Explorer(open_model(MAIN_MODEL))


@contextmanager
def served(explorer: Explorer, like: Server | SimpleNamespace | None = None) -> Iterator[Server]:
    """A server of its own thread; `like` is one that has ended, whose port and token it takes."""
    from loopscope.view.server import Server
    from loopscope.view.worker import Worker

    server = Server(Worker(explorer), like.port if like else 0)
    if like is not None:
        server.token = like.token
    ready = threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,))
    thread.start()
    try:
        assert ready.wait(30), "the server does not begin"
        yield server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def shown(browser: Browser, url: str, size: tuple[int, int] = LAPTOP, theme: str = "light") -> Iterator[Page]:
    """The page in a window of its own; what it complains about is an error, and so is a question to anybody else."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()
    noise: list[str] = []
    home = url.partition("#")[0].removesuffix("index.html")
    page.on(
        "request",
        lambda sent: noise.append(sent.url) if not sent.url.startswith((home, "data:", "blob:")) else None,
    )
    page.on("console", lambda said: noise.append(said.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("dialog", lambda asked: noise.append(asked.message))
    page.goto(url)
    page.wait_for_selector(".stage")
    yield page
    context.close()
    assert noise == []


def settled(page: Page) -> None:
    """Wait until nothing is asked any more and what was asked for is drawn."""
    frames = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.evaluate(frames)
    page.locator('.loopscope[aria-busy="false"]').wait_for()
    page.evaluate(frames)


def sentence(page: Page) -> str:
    """The line that says what is shown."""
    settled(page)
    return page.locator(".sentence").first.inner_text()


@cache
def text_explorer() -> Explorer:
    """Answers about a tiny language model with random weights, whose folder is gone when it has been read."""
    with TemporaryDirectory() as parent:
        return Explorer(open_model(ouro_folder(Path(parent) / "tiny-ouro")))
