"""Chat templates, rendered in a process of their own (`template_worker`), which they can neither leave nor exhaust.

One such process serves all templates; it starts with the first text and ends with this process.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from loopscope.errors import InputError
from loopscope.models.extras import extra

SCRIPT = Path(__file__).with_name("template_worker.py")

_lock = Lock()
_worker: subprocess.Popen[str] | None = None


def _forget() -> None:
    """A forked process has a worker of its own: it must neither talk to its parent's nor end it."""
    global _lock, _worker
    if _worker is not None:
        _worker.returncode = 0  # it is no child of this process, which has nothing to wait for
    _lock, _worker = Lock(), None


os.register_at_fork(after_in_child=_forget)


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """The text that a template makes of values, which JSON can hold.

    InputError with what the template, or the sandbox, says; also where it takes more than a few seconds of computing,
    a GiB of memory, or gives more than four million characters.
    """
    extra("jinja2", "a chat template")
    try:
        request = json.dumps({"template": template, "values": dict(values)})
    except (RecursionError, TypeError, ValueError) as error:
        raise InputError(f"a chat template takes texts, numbers and lists of them: {error}") from None
    with _lock:
        reply = _asked(request)
    if reply is None:
        raise InputError("it took more than a few seconds, or more memory than it may")
    answer = json.loads(reply)
    if "error" in answer:
        raise InputError(str(answer["error"]))
    return str(answer["text"])


def _asked(request: str) -> str | None:
    """The worker's reply; None where it was ended over the request."""
    worker = _started()
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(request + "\n")
        worker.stdin.flush()
        reply = worker.stdout.readline()
    except BrokenPipeError:
        reply = ""
    except BaseException:  # interrupted: a reply that nobody read must not be taken for the next one's
        _end()
        raise
    if not reply.endswith("\n"):
        _end()
        return None
    return reply


def _started() -> subprocess.Popen[str]:
    """The worker; a new one where there is none or it has ended."""
    global _worker
    if _worker is None or _worker.poll() is not None:
        _end()
        _worker = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, encoding="utf-8",
        )  # fmt: skip
    return _worker


@atexit.register
def _end() -> None:
    global _worker
    worker, _worker = _worker, None
    if worker is not None:
        worker.kill()
        worker.communicate()
