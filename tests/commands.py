"""Commands run as a person runs them, with what they said."""

from __future__ import annotations

import math
import os
import pty
import subprocess
import sys

import pytest

from loopscope import cli
from loopscope.cli import display


def loopscope(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process: (exit code, standard output, standard error).

    Lines that say how far it is come after half a minute; a slow machine shall not bring them into what is compared.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "LINE_EVERY", math.inf)
        patch.setattr(sys, "argv", ["loopscope", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    printed = capsys.readouterr()
    return int(stopped.value.code or 0), printed.out, printed.err


def on_a_terminal(command: list[str], columns: int = 120) -> str:
    """All that a command writes to a terminal of its own."""
    ours, its = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=env):
        os.close(its)
        seen = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the terminal is gone with the last process that had it
                break
            if not part:
                break
            seen += part
    os.close(ours)
    return seen.decode()
