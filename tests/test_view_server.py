"""The server over real sockets: who is answered, with what, and who is not."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from loopscope.errors import InputError
from loopscope.view import server as module
from loopscope.view.contract import BODY, canonical, unpack
from loopscope.view.explorer import Explorer
from loopscope.view.runs import finish
from loopscope.view.server import Server
from loopscope.view.worker import Worker
from tests.explored import ONE, TWO, tiny_explorer
from tests.viewing import served

SWEEP = {"kind": "sweep", "by": "head", "component": "z", "rows": "all", "source": "(F2 J:one F2)"}


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return tiny_explorer()


@pytest.fixture(scope="module")
def server(explorer: Explorer) -> Iterator[Server]:
    with served(explorer) as running:
        yield running


class Reply:
    """What came back."""

    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = found.status, dict(found.getheaders()), found.read()

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"]["message"])


def send(
    server: Server, method: str, path: str, body: bytes | None = None, *, under: str | None = None, **headers: str
) -> Reply:
    """Ask for a path below the token, or below another one."""
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    line.request(method, f"/{server.token if under is None else under}/{path}", body, given)
    reply = Reply(line.getresponse())
    line.close()
    return reply


def post(server: Server, path: str, value: Any, tab: str = "testtab1", **headers: str) -> Reply:
    body = value if isinstance(value, bytes) else canonical(value)
    asked = {"Content_Type": "application/json", "X_Loopscope_Tab": tab, **headers}
    return send(server, "POST", path, body, **asked)


def question(explorer: Explorer, program: str = "F3", **read: Any) -> dict[str, Any]:
    asked = explorer.request(program, read or {"kind": "check"}, {"tokens": ONE}, {"other": {"tokens": TWO}})
    others = {name: dict(each) for name, each in asked.others.items()}
    return {
        "model": asked.model, "input": dict(asked.input), "others": others, "program": program, "read": dict(asked.read)
    }  # fmt: skip


def answered(server: Server, path: str, value: Any, **headers: str) -> Reply:
    for _ in range(60):
        reply = post(server, path, value, **headers)
        if reply.status != 202:
            return reply
        assert json.loads(reply.body).keys() == {"name", "what", "done", "total", "ahead"}
    raise AssertionError("no answer")


# ---- what is served --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind", "begins"),
    [("", "text/html", b"<!doctype html>"), ("page.css", "text/css", b""), ("page.js", "text/javascript", b"const ")],
)
def test_three_texts_are_served_by_name(server: Server, path: str, kind: str, begins: bytes) -> None:
    reply = send(server, "GET", path)
    assert reply.status == 200
    assert reply.headers["content-type"] == f"{kind}; charset=utf-8"
    assert reply.body.startswith(begins)
    assert send(server, "HEAD", path).body == b""


def test_hello_says_what_is_shown(server: Server, explorer: Explorer) -> None:
    hello = json.loads(send(server, "GET", "hello").body)
    assert hello == json.loads(json.dumps(explorer.subject.hello()))
    assert (hello["live"], hello["model"]) == (True, explorer.subject.fingerprint)


@pytest.mark.parametrize(
    "read", [{"kind": "check"}, SWEEP, {"kind": "trajectory", "rows": "all"}], ids=["check", "sweep", "trajectory"]
)
def test_an_answer_is_that_of_the_explorer_byte_by_byte(
    server: Server, explorer: Explorer, read: dict[str, Any]
) -> None:
    value = question(explorer, "F4", **read)
    reply = answered(server, "ask", value)
    request = explorer.request("F4", read, {"tokens": ONE}, {"other": {"tokens": TWO}})
    assert reply.status == 200
    assert reply.body == finish(tiny_explorer().answer(request))
    assert unpack(reply.body)[0]["name"] == request.name


def test_what_the_library_refuses_is_an_answer(server: Server, explorer: Explorer) -> None:
    reply = answered(server, "ask", question(explorer, "F3 J:onk"))
    assert reply.status == 200
    assert "nearest: one" in unpack(reply.body)[0]["error"]["message"]


def test_a_sweep_is_exported_as_a_table(server: Server, explorer: Explorer) -> None:
    value = question(explorer, "F4", **SWEEP)
    reply = answered(server, "export", value)
    assert reply.headers["content-disposition"] == 'attachment; filename="sweep.parquet"'
    table = pyarrow.parquet.read_table(io.BytesIO(reply.body))
    head, arrays = unpack(answered(server, "ask", value).body)
    assert table["address"].to_pylist() == head["addresses"]
    assert np.allclose(table["recovered"].to_numpy(), arrays["recovered"].reshape(-1))
    assert table["head"].to_pylist()[:5] == [0, 1, 2, 3, 0]
    refused = answered(server, "export", question(explorer, "F4"))
    assert refused.status == 400
    assert "check is no table" in refused.error


# ---- who is answered -------------------------------------------------------------------------------------------------


def test_every_reply_forbids_what_the_page_does_not_need(server: Server, explorer: Explorer) -> None:
    replies = [
        send(server, "GET", ""), send(server, "GET", "hello"), send(server, "GET", "nothing"),
        send(server, "GET", "", under="x"), post(server, "ask", question(explorer)), post(server, "ask", b"{"),
        send(server, "GET", "", Host="elsewhere"), send(server, "OPTIONS", "ask", Origin="http://elsewhere"),
    ]  # fmt: skip
    for reply in replies:
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in reply.headers if name.lower().startswith("access-control")]
        assert "server" not in {name.lower() for name in reply.headers}


@pytest.mark.parametrize("under", ["", "x", "A" * 32, "../x", "%2e%2e"])
@pytest.mark.parametrize("path", ["", "hello", "page.js", "ask"])
def test_nobody_is_answered_without_the_token(server: Server, under: str, path: str) -> None:
    reply = send(server, "GET", path, under=under)
    assert reply.status == 404
    assert server.token not in reply.body.decode()


def test_tokens_are_long_and_new_every_time() -> None:
    assert len({module.new_token() for _ in range(100)}) == 100
    assert len(module.new_token()) >= 32


@pytest.mark.parametrize(
    "host", ["elsewhere", "elsewhere:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.x:{port}", ""]
)
def test_another_host_is_refused(server: Server, host: str) -> None:
    reply = send(server, "GET", "hello", Host=host.format(port=server.port))
    assert reply.status == 403
    assert "this machine" in reply.error


@pytest.mark.parametrize(
    "origin",
    ["http://elsewhere", "null", "http://127.0.0.1", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "file://"],
)
def test_a_page_of_another_origin_is_refused(server: Server, explorer: Explorer, origin: str) -> None:
    theirs = origin.format(port=server.port)
    before = len(explorer.runs.kept)
    value = question(explorer, "F5", kind="readouts", answers=[], rows="all", top=2)
    for reply in (
        post(server, "ask", value, Origin=theirs),
        post(server, "cancel", {"name": None}, Origin=theirs),
        send(server, "GET", "hello", Origin=theirs),
        send(server, "OPTIONS", "ask", Origin=theirs, Access_Control_Request_Method="POST"),
    ):
        assert reply.status == 403
    assert len(explorer.runs.kept) == before
    for site in ("cross-site", "same-site"):
        assert send(server, "GET", "hello", Sec_Fetch_Site=site).status == 403
        assert send(server, "GET", "", Sec_Fetch_Site=site, Sec_Fetch_Dest="iframe").status == 403


def test_an_address_without_its_last_slash_leads_to_the_page(server: Server) -> None:
    def asked(token: str, **headers: str) -> Reply:
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        line.request("GET", f"/{token}", headers={name.replace("_", "-"): value for name, value in headers.items()})
        reply = Reply(line.getresponse())
        line.close()
        return reply

    reply = asked(server.token, Sec_Fetch_Site="none", Sec_Fetch_Dest="document")
    assert (reply.status, reply.headers["location"], reply.body) == (308, f"/{server.token}/", b"")
    assert reply.headers["content-security-policy"].startswith("default-src 'none';")
    others = [
        asked(server.token, Host="elsewhere"),
        asked(server.token, Origin="http://elsewhere"),
        asked(server.token, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="iframe"),
        asked(server.token[:-1]),
        asked("x"),
    ]
    assert [each.status for each in others] == [403, 403, 403, 404, 404]
    assert not [each for each in others if "location" in each.headers]


def test_the_page_itself_and_links_to_it_are_answered(server: Server) -> None:
    own = {"Origin": f"http://127.0.0.1:{server.port}", "Sec_Fetch_Site": "same-origin"}
    assert send(server, "GET", "hello", **own).status == 200
    assert send(server, "GET", "hello", Host=f"localhost:{server.port}").status == 200
    assert send(server, "GET", "", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document").status == 200
    assert send(server, "GET", "", Sec_Fetch_Site="none", Sec_Fetch_Dest="document").status == 200


@pytest.mark.parametrize(
    "path",
    ["nothing", "index.html", "main.js", "CONTRACT.md", "../tour.json", "..%2ftour.json",
     "%2e%2e/%2e%2e/pyproject.toml", "page.js/", "/etc/passwd", "//etc/passwd", "page.css%00", "hello/x", "." , "file:///etc/passwd"],
)  # fmt: skip
def test_no_request_names_a_file(server: Server, path: str) -> None:
    assert send(server, "GET", path).status == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "GET"])
def test_questions_are_posts(server: Server, method: str) -> None:
    reply = send(server, method, "ask", Origin=f"http://127.0.0.1:{server.port}")
    assert reply.status == 405


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415),
        ({"X_Loopscope_Tab": "short"}, 400),
        ({"X_Loopscope_Tab": "a" * 33}, 400),
        ({"X_Loopscope_Tab": "../../../etc"}, 400),
    ],
)
def test_a_form_cannot_ask(server: Server, explorer: Explorer, headers: dict[str, str], status: int) -> None:
    assert post(server, "ask", question(explorer), **headers).status == status


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"model":1}', b"[" * 100_000])
def test_what_is_no_question_is_refused_in_one_line(server: Server, body: bytes) -> None:
    reply = post(server, "ask", body)
    assert reply.status == 400
    assert "\n" not in reply.error


def test_what_is_cancelled_must_be_named(server: Server) -> None:
    assert json.loads(post(server, "cancel", {"name": None}).body) == {"cancelled": 0}
    for value in ({}, [], {"name": 1}, {"name": None, "more": 1}):
        assert post(server, "cancel", value).status == 400


# ---- what is too much ------------------------------------------------------------------------------------------------


def raw(server: Server, sent: bytes, patience: float = 10) -> bytes:
    """What comes back for these bytes, until the other side ends or says nothing more."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=patience) as line:
        found = b""
        try:
            line.sendall(sent)
            while piece := line.recv(65536):
                found += piece
        except OSError:
            pass
        return found


def test_a_large_body_is_refused_before_it_is_read(server: Server) -> None:
    assert post(server, "ask", b"x" * (BODY + 1)).status == 413
    head = (
        f"POST /{server.token}/ask HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
        "X-Loopscope-Tab: testtab1\r\nConnection: close\r\n"
    )
    told = raw(server, f"{head}Content-Length: 99999999999\r\n\r\nx".encode())
    assert b" 413 " in told.split(b"\r\n")[0]
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    told = raw(server, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + piece * 8)
    assert not told or b" 413 " in told.split(b"\r\n")[0]


def test_nonsense_and_long_headers_end_a_line_and_no_server(server: Server) -> None:
    assert b" 400 " in raw(server, b"nonsense\r\n\r\n").split(b"\r\n")[0]
    long = b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"
    assert b" 200 " not in raw(server, long).split(b"\r\n")[0]
    assert send(server, "GET", "hello").status == 200


def test_only_this_machine_can_reach_it(server: Server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.port}/{server.token}/"


# ---- time ------------------------------------------------------------------------------------------------------------


class Slow(Explorer):
    """Answers that take until they are let go."""

    go = threading.Event()

    def answer(self, request: Any) -> Any:
        while not self.go.is_set():
            time.sleep(0.01)
            yield 1, 2
        return (yield from super().answer(request))


def test_what_takes_long_is_asked_for_again_and_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    explorer = Slow(tiny_explorer().subject)
    with served(explorer) as server:
        value = question(explorer)
        first = post(server, "ask", value)
        assert first.status == 202
        told = json.loads(first.body)
        assert {key: told[key] for key in ("what", "done", "total", "ahead")} == {
            "what": "check", "done": 1, "total": 2, "ahead": 0
        }  # fmt: skip
        other = json.loads(post(server, "ask", question(explorer, "F4"), tab="another1").body)
        assert other["ahead"] == 1
        assert json.loads(post(server, "cancel", {"name": told["name"]}).body) == {"cancelled": 1}
        assert json.loads(post(server, "cancel", {"name": None}).body) == {"cancelled": 0}
        explorer.go.set()
        assert answered(server, "ask", question(explorer, "F4"), tab="another1").status == 200
        assert answered(server, "ask", value).status == 200


def test_a_model_that_fails_says_so_and_the_next_question_is_answered() -> None:
    class Failing(Explorer):
        def answer(self, request: Any) -> Any:
            if request.program == "F5":
                raise MemoryError
            return (yield from super().answer(request))

    explorer = Failing(tiny_explorer().subject)
    with served(explorer) as server:
        reply = answered(server, "ask", question(explorer, "F5"))
        assert (reply.status, "not enough memory" in reply.error) == (503, True)
        assert answered(server, "ask", question(explorer)).status == 200


def test_a_port_that_is_taken_is_named(server: Server, explorer: Explorer) -> None:
    worker = Worker(explorer)
    try:
        with pytest.raises(InputError, match=f"port {server.port} cannot be had"):
            Server(worker, server.port)
        with pytest.raises(InputError, match="ports are 0 to 65535"):
            Server(worker, 70_000)
    finally:
        worker.close()
