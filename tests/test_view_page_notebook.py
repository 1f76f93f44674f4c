"""The explorer's page in a cell of a notebook, in a real browser; its messages go to the kernel's own conversation.

Left out, with a word in pytest's summary, on a machine without Chromium.
"""

from __future__ import annotations

import base64
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from loopscope.view.assets import NOTEBOOK, Page
from loopscope.view.notebook import Conversation
from loopscope.view.worker import Worker
from tests.browser import chromium, installed
from tests.viewing import main_explorer, sentence, settled

PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: the explorer was not looked at in a browser"),
]

HOME = "http://notebook.test/"

CELL = """<!doctype html><title>a notebook</title><link rel="stylesheet" href="page.css"><p id="text">a cell</p>
<div id="cell"></div><script type="module">
import widget from "./widget.js";
let heard = () => {};
const model = { send: (message) => window.tell(message), on: (_, hear) => { heard = hear; } };
const view = (data) => new DataView(Uint8Array.from(atob(data), (sign) => sign.charCodeAt(0)).buffer);
setInterval(async () => {
  for (const [message, buffers] of await window.told()) heard(message, buffers.map(view));
}, 20);
window.end = widget.render({ model, el: document.getElementById("cell") });
</script>"""


def test_a_cell_shows_the_page_and_keeps_the_notebooks_looks() -> None:
    page_of = Page.read()
    files = {
        HOME: (CELL, "text/html"),
        f"{HOME}page.css": (page_of.css, "text/css"),
        f"{HOME}widget.js": (page_of.script(NOTEBOOK), "text/javascript"),
    }
    said: SimpleQueue[tuple[Any, list[bytes]]] = SimpleQueue()
    worker = Worker(main_explorer())
    talk = Conversation(worker, lambda message, buffers: said.put((message, buffers)))

    def told() -> list[tuple[Any, list[str]]]:
        found: list[tuple[Any, list[str]]] = []
        while True:
            try:
                message, buffers = said.get_nowait()
            except Empty:
                return found
            found.append((message, [base64.b64encode(each).decode() for each in buffers]))

    assert PROGRAM is not None
    try:
        with chromium(PROGRAM) as browser:
            page = browser.new_page(viewport={"width": 1000, "height": 800}, reduced_motion="reduce")
            noise: list[str] = []
            page.on("console", lambda message: noise.append(message.text))
            page.on("pageerror", lambda error: noise.append(str(error)))
            page.route(
                f"{HOME}**",
                lambda route: (
                    route.fulfill(body=files[route.request.url][0], content_type=files[route.request.url][1])
                    if route.request.url in files
                    else route.abort()
                ),
            )
            page.expose_function("tell", talk.hear)
            page.expose_function("told", told)
            page.goto(HOME)
            looks = "e => [getComputedStyle(e).fontFamily, getComputedStyle(e).color, getComputedStyle(e).margin]"
            plain = page.locator("#text").evaluate(looks)
            page.wait_for_selector(".stage")
            settled(page)
            assert page.locator(".kicker").inner_text() == "1 of 9"
            page.locator(".tabs a", has_text="Walk").click()
            page.get_by_label("Map before loop 7").select_option("two")
            assert "walks two steps" in sentence(page)
            assert page.url == HOME  # the address is the notebook's
            assert page.title() == "a notebook"
            assert page.locator("#text").evaluate(looks) == plain
            page.evaluate("window.end()")
            assert [each for each in noise if "favicon" not in each and "ERR_FAILED" not in each] == []
    finally:
        worker.close()
