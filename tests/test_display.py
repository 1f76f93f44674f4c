"""What a long command says while it works: live on a terminal, a line now and then in a log, nothing if it is short."""

from __future__ import annotations

import re
import sys

import pytest

from loopscope.cli import display as module
from loopscope.cli.display import display, spinner
from loopscope.cli.progress import steps
from tests.commands import on_a_terminal

PASTS = (29.9, 30.1, 30.2, 59.0, 60.3)


def at(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: now)


def test_a_log_gets_a_line_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at(monkeypatch, 0.0)
    with display() as shown:
        for number, now in enumerate(PASTS):
            at(monkeypatch, now)
            shown.show("job", f"job {number} [stage]", 1000 * number, 20_000, "loss 0.5")
        at(monkeypatch, 100.0)
        shown.log("1/2 chains on relations-0 " + "x" * 200)
        shown.log("2/2")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "job 1 [stage]: 1,000 of 20,000  loss 0.5",
        "job 4 [stage]: 4,000 of 20,000  loss 0.5",
        "1/2 chains on relations-0 " + "x" * 200,
    ]


def test_a_short_command_leaves_no_word_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with spinner() as log:
        log("measuring")
    assert capsys.readouterr() == ("", "")


ON_A_TERMINAL = """
import time
from loopscope.cli.display import display
with display() as shown:
    shown.show("a", "first job", 3, 20, "loss 0.25")
    shown.log("measuring [this]")
    time.sleep(0.5)
    shown.show("a", "first job, stage two", 15, 20, "loss 0.125")
    with shown.aside():
        print("a table")
    time.sleep(0.5)
"""


def test_a_terminal_shows_both_at_once_and_is_left_clean() -> None:
    seen = on_a_terminal([sys.executable, "-c", ON_A_TERMINAL])
    for said in ("first job", "3/20", "loss 0.25", "measuring [this]", "first job, stage two", "15/20", "loss 0.125"):
        assert said in seen
    assert screen(seen) == ["a table"]


def test_steps_say_how_far_they_are_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at(monkeypatch, 0.0)
    with steps("measuring", 4) as shown:
        at(monkeypatch, 31.0)
        shown.log("crossing on d8l6-5")
        for number, made in enumerate("abc", 1):
            at(monkeypatch, 31.0 + 200 * number)
            shown.advance()  # says nothing itself: what is begun next says more
            shown.log(f"{made} is done")
    assert capsys.readouterr().err.splitlines() == [
        "measuring, 0 of 4 done: crossing on d8l6-5",
        "measuring, 1 of 4 done, about 12 min left: a is done",
        "measuring, 2 of 4 done, about 7 min left: b is done",
        "measuring, 3 of 4 done, about 4 min left: c is done",
    ]


ON_A_NARROW_TERMINAL = """
import time
from loopscope.cli.progress import steps
with steps("measuring", 24) as shown:
    shown._shown.show("a", "small-letter-adapt", 3, 20000, "loss 0.25  begun right 1:50% 2:40%  12,345 tokens/s")
    for number in range(3):
        shown.log("crossing on d8l6-5")
        time.sleep(0.3)
        shown.advance()
    time.sleep(0.3)
"""


def test_a_narrow_terminal_shows_the_bar_the_time_left_and_what_is_done() -> None:
    seen = on_a_terminal([sys.executable, "-c", ON_A_NARROW_TERMINAL], columns=80)
    for said in ("measuring", "━", "3/24", "left", "0:00:0", "crossing on d8l6-5", "3/20000", "12,345 tokens/s"):
        assert said in seen
    assert screen(seen) == []


def screen(seen: str) -> list[str]:
    """The lines that stand on a terminal after all of this."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[?0-9;]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", seen):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part != "\r" and not part.startswith("\x1b"):
            lines[row] += part  # every line that is written again was erased before
    return [line for line in lines if line]
