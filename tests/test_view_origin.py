"""A page of another origin, in a real browser and with the very address, can neither read nor trigger anything."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from loopscope.view.contract import Request, canonical
from loopscope.view.explorer import Explorer
from loopscope.view.runs import Steps
from tests.browser import chromium, installed
from tests.explored import ONE, tiny_subject
from tests.viewing import served

PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: the explorer was not looked at in a browser"),
]

ATTACK = """
async ([url, question]) => {
  const told = {};
  const attempt = async (name, act) => {
    try { told[name] = String(await act()); } catch (error) { told[name] = "refused"; }
  };
  const json = { "Content-Type": "application/json", "X-Loopscope-Tab": "attacker1" };
  await attempt("read", async () => (await fetch(url + "hello")).text());
  const post = { method: "POST", body: question };
  await attempt("ask", async () => (await fetch(url + "ask", { ...post, headers: json })).text());
  await attempt("opaque", async () => (await (await fetch(url + "hello", { mode: "no-cors" })).text()));
  await attempt("simple", async () => (await fetch(url + "ask", { ...post, mode: "no-cors" })).text());
  await attempt("beacon", async () => (navigator.sendBeacon(url + "ask", new Blob([question])), ""));
  await attempt("script", () => new Promise((done) => {
    const script = document.createElement("script");
    script.src = url + "page.js";
    script.onload = () => done("loaded");
    script.onerror = () => done("refused");
    document.body.append(script);
  }));
  await attempt("image", () => new Promise((done) => {
    const image = new Image();
    image.onload = () => done("loaded");
    image.onerror = () => done("refused");
    image.src = url + "hello";
  }));
  await attempt("frame", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.onload = () => {
      let inside = "refused";
      try { inside = frame.contentDocument.body.innerText; } catch (error) { inside = "refused"; }
      done(inside);
    };
    frame.src = url;
    document.body.append(frame);
  }));
  return told;
}
"""


class Counting(Explorer):
    """Counts what it is asked."""

    asked = 0

    def answer(self, request: Request) -> Steps[bytes]:
        self.asked += 1
        return super().answer(request)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with chromium(PROGRAM) as found:
        yield found


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """Another origin with an empty page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title><body></body>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_another_page_can_neither_read_nor_trigger_anything(browser: Browser, elsewhere: str) -> None:
    explorer = Counting(tiny_subject())
    question = canonical(
        {"model": explorer.subject.fingerprint, "input": {"tokens": ONE}, "others": {}, "program": "F3",
         "read": {"kind": "check"}}
    ).decode()  # fmt: skip
    with served(explorer) as server:
        page = browser.new_page()
        for host in ("127.0.0.1", "localhost"):
            page.goto(elsewhere.replace("127.0.0.1", host))
            told = page.evaluate(ATTACK, [server.url, question])
            assert {name: found for name, found in told.items() if found not in ("refused", "")} == {}
            assert explorer.asked == 0
        own = browser.new_page()
        own.goto(server.url)
        answered = own.evaluate(
            """async (question) => (await fetch("ask", { method: "POST", body: question,
            headers: { "Content-Type": "application/json", "X-Loopscope-Tab": "attacker1" } })).status""",
            question,
        )
        assert answered == 200  # so that the others were refused for being others
        assert explorer.asked >= 1
        assert json.loads(own.evaluate("async () => (await fetch('hello')).text()"))["name"] == "tiny"
        page.close()
        own.close()
