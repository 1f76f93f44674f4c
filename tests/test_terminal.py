"""What reaches a terminal, and how a command ends: no file can steer a terminal, and no signal is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from loopscope import cli
from loopscope.cli.app import plain, print_json, print_table, say
from loopscope.cli.display import Display
from loopscope.cli.stopping import Terminated, asked_to_stop, terminating
from loopscope.errors import DamagedError
from tests.commands import loopscope, on_a_terminal

EVIL = "\x1b[31mred\r\nsecond\x00\x07\x7f\x9b2J\u202eback\u2066\u200f\u2028\udcff"
KEPT = "ä 漢 \N{THUMBS UP SIGN} a\N{ZERO WIDTH JOINER}b \N{NO-BREAK SPACE}\\ [bold]"
STEERS = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c\ud800-\udfff]"
)


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(standalone_mode: bool) -> None:
        raise error

    monkeypatch.setattr(cli.app, "app", run)


def test_what_steers_a_terminal_is_escaped_and_nothing_else() -> None:
    assert plain(EVIL) == (
        r"\x1b[31mred\r\nsecond\x00\x07\x7f\x9b2J\u202eback\u2066\u200f\u2028\udcff"
    )  # fmt: skip
    assert plain(KEPT) == KEPT


def test_tables_lines_and_json_are_plain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    print_table(f"title {EVIL}", (EVIL, "lines"), [(EVIL, ("one", EVIL))], left=2)
    say(EVIL, "next")
    out, _ = capsys.readouterr()
    assert not STEERS.search(out)
    assert out.count(plain(EVIL)) == 5
    assert out.endswith("\nnext\n")
    print_json({"token": EVIL})
    out, _ = capsys.readouterr()
    assert not STEERS.search(out)
    assert json.loads(out) == {"token": EVIL}


def test_the_display_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    shown = Display(Console(stderr=True))
    shown._due = 0.0
    shown.log(EVIL)
    shown._due = 0.0
    shown.show("job", EVIL, 1, 2, EVIL)
    _, err = capsys.readouterr()
    assert not STEERS.search(err)
    assert err.count("\n") == 2


def test_errors_are_one_line_whatever_they_quote(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (DamagedError(f"a file: {EVIL}"), OSError(5, "input", f"name {EVIL}"), DamagedError("x" * 10**6)):
        raising(monkeypatch, error)
        code, out, err = loopscope(capsys, "plan")
        assert (code, out, err.count("\n")) == (1 if isinstance(error, OSError) else 3, "", 1)
        assert not STEERS.search(err)
        assert len(err) < 10_000


MEMORY = [
    MemoryError(),
    np._core._exceptions._ArrayMemoryError((10**9,), np.dtype(float)) if hasattr(np, "_core") else MemoryError("numpy"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: not enough memory: you tried to allocate 1"),
    RuntimeError("CUDA error: out of memory\nCompile with ..."),
]


@pytest.mark.parametrize("error", MEMORY, ids=lambda each: type(each).__name__)
def test_memory_that_is_not_there_gets_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    raising(monkeypatch, error)
    code, out, err = loopscope(capsys, "lm")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("loopscope: out of memory, ")


@pytest.mark.parametrize("size", [(2**62,), (2**40, 2**40), (-(2**62),)], ids=str)
def test_sizes_that_cannot_be_counted_are_too_much_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, size: tuple[int, ...]
) -> None:
    monkeypatch.setattr(cli.app, "app", lambda standalone_mode: torch.empty(size))
    if size[0] < 0:  # a bug keeps its traceback
        with pytest.raises(RuntimeError, match="negative dimension"):
            cli.main()
        return
    code, _, err = loopscope(capsys, "lm")
    assert (code, err.count("\n")) == (1, 1)


def test_a_library_that_gives_up_gets_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, type("PanicException", (BaseException,), {})("called `unwrap()`\non None"))
    code, out, err = loopscope(capsys, "lm")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "called `unwrap()` on None" in err


def command(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-m", "loopscope.cli", *arguments], capture_output=True, env=env, check=False
    )


PLAINEST = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def test_the_plainest_encoding_and_other_bytes_are_told(tmp_path: Path) -> None:
    done = command(b"store", b"list", b"--store", bytes(tmp_path) + b"/\xff\n\xc2\x9b", **PLAINEST)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
    assert done.stderr.startswith(b"loopscope: ")
    assert b"\x9b" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [{"PYTHONIOENCODING": "ascii"}, PLAINEST, {}], ids=["ascii", "C", "UTF-8"])
def test_any_encoding_and_any_bytes_are_told(tmp_path: Path, encoding: dict[str, str]) -> None:
    done = command("recipes", **encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    for arguments in (
        [b"plan", b"F6 \xff\x1b[2J"],
        [b"store", b"list", b"--store", bytes(tmp_path) + b"/\xff\n\xc2\x9b"],
    ):
        done = command(*arguments, **encoding)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
        assert done.stderr.startswith(b"loopscope: ")
        assert b"\x1b" not in done.stderr
        assert b"\x9b" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_end_no_command(closed: str) -> None:
    for command, code in (("--version", 0), ("nothing", 2)):
        line = f"'{sys.executable}' -m loopscope.cli {command} {closed}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False)
        assert len(done.stderr.splitlines()) == (1 if code and closed == ">&-" else 0)


def test_output_that_cannot_be_written_is_told() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "loopscope.cli", "--version"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"loopscope: the system: No space left on device\n")


# ---- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish_and_the_second_is_not(number: signal.Signals) -> None:
    told: list[str] = []
    ends = KeyboardInterrupt if number == signal.SIGINT else Terminated
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)  # which is to ignore it in the background
    try:
        with terminating(), asked_to_stop(told.append) as stop:
            assert not stop()
            signal.raise_signal(number)
            assert stop()
            with pytest.raises(ends):
                signal.raise_signal(number)
        with pytest.raises(ends), terminating(), asked_to_stop(told.append) as stop:
            _work_until(stop, number)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, outside)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert len(told) == 2


def _work_until(stop: Callable[[], bool], number: signal.Signals) -> None:
    """As those who are asked do, once they have a checkpoint."""
    signal.raise_signal(number)
    if stop():
        raise KeyboardInterrupt


def test_sigterm_ends_a_command_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.app, "app", lambda standalone_mode: signal.raise_signal(signal.SIGTERM))
    assert loopscope(capsys, "lm") == (143, "", "loopscope: terminated\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "last"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_makes_a_checkpoint(tmp_path: Path, number: signal.Signals, code: int, last: str) -> None:
    asked = [
        sys.executable,
        "-m",
        "loopscope.cli",
        "train",
        "tiny",
        "--seeds",
        "0",
        "--device",
        "cpu",
        "--save-every",
        "9999",
    ]
    child = subprocess.Popen(
        asked, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        metrics = tmp_path / "store" / "metrics"
        for _ in range(1200):
            if any(file.stat().st_size for file in metrics.glob("*.jsonl")):
                break
            time.sleep(0.1)
        child.send_signal(number)
        out, err = child.communicate(timeout=120)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, out) == (code, "")
    assert err.splitlines()[-1] == f"loopscope: {last}"
    assert len(err.splitlines()) == 2
    assert len([*(tmp_path / "store" / "checkpoint").glob("*/progress.json")]) == 1


def test_a_token_of_a_file_cannot_steer_a_terminal() -> None:
    script = f"from loopscope.cli.app import print_table\nprint_table('t', ('a',), [({EVIL!r},)])"
    assert "\x1b[31m" not in on_a_terminal([sys.executable, "-c", script])
