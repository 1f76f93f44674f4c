"""The page on this machine: files, and answers to those who know the address.

    app = make_app(worker, token, port)

A port of this machine can be reached from any page that a browser shows, so nothing is answered without a random token
in the path, to a Host that is not this machine's, or to a page of another origin; no page may read an answer from
elsewhere, and the page itself may ask nobody else.  What is served are a few texts by name: no request names a file.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from loopscope.errors import InputError
from loopscope.models.extras import extra
from loopscope.view.assets import LIVE, Page
from loopscope.view.contract import BODY, Json, Request, parse_json
from loopscope.view.worker import BusyError, Job, Worker

for _name in ("starlette", "uvicorn"):
    extra(_name, "the explorer", "view")

from starlette.applications import Starlette  # noqa: E402
from starlette.requests import ClientDisconnect  # noqa: E402
from starlette.requests import Request as Asked  # noqa: E402
from starlette.responses import Response  # noqa: E402
from starlette.routing import Route  # noqa: E402

HOST = "127.0.0.1"

PATIENCE = 1.0
"""Seconds that a question is waited for before the page is told how far it is."""

ONCE = 32
"""Requests that may be under way at a time."""

TAB = re.compile(r"[A-Za-z0-9]{8,32}")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
"""What every reply carries; there is no Access-Control-Allow-Origin in any."""


class RefusedError(Exception):
    """A request that is not answered, with its status and one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def new_token() -> str:
    """A word that nobody guesses."""
    return secrets.token_urlsafe(24)


def make_app(worker: Worker, token: str, port: int, made: Callable[[], dict[str, Json]] | None = None) -> Starlette:
    """The application that answers at `http://127.0.0.1:port/token/`; `made` gives hello, by default the subject's."""
    page = Page.read()
    subject = worker.explorer.subject
    files = {
        "": (page.html, "text/html"),
        "page.css": (page.css, "text/css"),
        "page.js": (page.script(LIVE), "text/javascript"),
    }
    hello = json.dumps((made or subject.hello)(), ensure_ascii=False, allow_nan=False).encode()
    asking = asyncio.Semaphore(ONCE)

    async def serve(asked: Asked) -> Response:
        try:
            name = _allowed(asked, token, port)
            if name is None:
                return _reply(b"", "text/plain", 308, {"Location": f"/{token}/"})
            if name in files and asked.method in ("GET", "HEAD"):
                text, kind = files[name]
                return _reply(text.encode(), f"{kind}; charset=utf-8")
            if name == "hello" and asked.method in ("GET", "HEAD"):
                return _reply(hello, "application/json")
            action = actions.get(name)
            if action is None:
                raise RefusedError(404, "there is nothing of this name")
            if asked.method != "POST":
                raise RefusedError(405, f"{name} is asked by POST")
            tab, body = await _posted(asked)
            if asking.locked():
                raise RefusedError(503, f"more than {ONCE} questions at a time; ask again")
            async with asking:
                return await action(tab, body)
        except RefusedError as refused:
            return _error(refused.status, str(refused))
        except BusyError as error:
            return _error(503, str(error))
        except InputError as error:
            return _error(400, str(error))
        except ClientDisconnect:
            return _error(400, "the question did not arrive")

    async def settled(tab: str, request: Request) -> Job | Response:
        job = worker.ask(request, tab)
        if not job.finished:
            loop, done = asyncio.get_running_loop(), asyncio.Event()
            job.when_finished(lambda: (loop.call_soon_threadsafe(done.set), None)[1])
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), PATIENCE)
        if not job.finished:
            return _reply(json.dumps(job.progress(worker.ahead(job))).encode(), "application/json", 202)
        if job.answer is None:
            raise RefusedError(503, job.error or "the model could not answer")
        return job

    async def ask(tab: str, body: bytes) -> Response:
        found = await settled(tab, Request.parse(body))
        return found if isinstance(found, Response) else _reply(found.answer or b"", "application/octet-stream")

    async def export(tab: str, body: bytes) -> Response:
        from loopscope.view.exports import parquet_of

        request = Request.parse(body)
        found = await settled(tab, request)
        if isinstance(found, Response):
            return found
        made = parquet_of(request, found.answer or b"")
        headers = {"Content-Disposition": f'attachment; filename="{request.kind}.parquet"'}
        return _reply(made, "application/vnd.apache.parquet", more=headers)

    async def cancel(tab: str, body: bytes) -> Response:
        value = parse_json(body)
        name = value.get("name") if isinstance(value, dict) and value.keys() == {"name"} else 0
        if not (name is None or isinstance(name, str)):
            raise InputError('a cancelled question is named as {"name": "..."}')
        return _reply(json.dumps({"cancelled": worker.cancel(tab, name)}).encode(), "application/json")

    actions: dict[str, Callable[[str, bytes], Awaitable[Response]]] = {"ask": ask, "export": export, "cancel": cancel}
    methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
    return Starlette(routes=[Route("/{path:path}", serve, methods=methods)])


def _allowed(asked: Asked, token: str, port: int) -> str | None:
    """What is asked for below the token; RefusedError for whom it is not for.

    None for the page where the address lacks its last slash.
    """
    here = {f"{name}:{port}" for name in (HOST, "localhost")}
    if asked.headers.get("host", "") not in here:
        raise RefusedError(403, "this address is for this machine alone")
    origin = asked.headers.get("origin")
    if origin is not None and origin not in {f"http://{each}" for each in here}:
        raise RefusedError(403, "pages of other origins are not answered")
    first, slash, name = asked.path_params["path"].partition("/")
    followed = name == "" and asked.headers.get("sec-fetch-dest") == "document"  # a link to the page, from anywhere
    if not followed and asked.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise RefusedError(403, "pages of other origins are not answered")
    if not hmac.compare_digest(first.encode(), token.encode()):
        raise RefusedError(404, "there is nothing of this name; the address that was printed ends in a word of its own")
    return str(name) if slash else None


async def _posted(asked: Asked) -> tuple[str, bytes]:
    """Who asks, and the body."""
    if asked.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "questions are application/json")
    tab = asked.headers.get("x-loopscope-tab", "")
    if not TAB.fullmatch(tab):
        raise RefusedError(400, "X-Loopscope-Tab names the tab by 8 to 32 letters and digits")
    length = asked.headers.get("content-length", "0")
    if not re.fullmatch("[0-9]{1,12}", length) or int(length) > BODY:
        raise RefusedError(413, f"a question has at most {BODY} bytes")
    body = b""
    async for piece in asked.stream():
        body += piece
        if len(body) > BODY:
            raise RefusedError(413, f"a question has at most {BODY} bytes")
    return tab, body


def _reply(body: bytes, kind: str, status: int = 200, more: dict[str, str] | None = None) -> Response:
    return Response(body, status, {**HEADERS, "Content-Type": kind, **(more or {})})


def _error(status: int, message: str) -> Response:
    body = {"error": {"message": message, "position": None}}
    return _reply(json.dumps(body, ensure_ascii=False).encode(), "application/json", status)


class Server:
    """The application on a port of this machine."""

    def __init__(self, worker: Worker, port: int = 0) -> None:
        import socket

        self.worker, self.token = worker, new_token()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind((HOST, port))
        except OSError as error:
            self.socket.close()
            raise InputError(f"port {port} cannot be had: {error.strerror or error} (nearest: --port 0, any)") from None
        except OverflowError:
            self.socket.close()
            raise InputError(f"there is no port {port}: ports are 0 to 65535 (nearest: 0, any)") from None
        self.port = int(self.socket.getsockname()[1])
        self._server: Any = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Answer until the process is told to stop; `ready` is called when the first question can come."""
        import uvicorn

        app = make_app(self.worker, self.token, self.port)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", server_header=False, date_header=False,
            timeout_graceful_shutdown=1, ws="none", h11_max_incomplete_event_size=16 * 2**10,
        )  # fmt: skip
        self._server = uvicorn.Server(config)

        async def main() -> None:
            served = asyncio.create_task(self._server.serve([self.socket]))
            while not self._server.started and not served.done():
                await asyncio.sleep(0.01)
            ready()
            await served

        try:
            asyncio.run(main())
        finally:
            self.worker.close()
            self.socket.close()

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.should_exit = True
