"""What `--out` may replace: nothing that is there but, when told so, a file that Loopscope wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from loopscope.errors import InputError
from loopscope.measure.readouts import write_tensors
from loopscope.store.files import DRAFT, StoreError
from loopscope.store.outputs import check_file, check_folder, found_at, only_writer, write_file
from loopscope.studies.report.contents import Report
from loopscope.studies.report.page import write_page
from tests.commands import loopscope
from tests.model_folders import stack_folder

ONE, TWO = {"x": torch.ones(3)}, {"x": torch.full((3,), 2.0)}


def put_everything(folder: Path) -> list[Path]:
    """One of each kind of thing that may stand where a file is to be written."""
    (folder / "text").write_text("mine", encoding="utf-8")
    save_file(ONE, folder / "weights", {"format": "pt"})
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("text")
    (folder / "broken").symlink_to("nowhere")
    write_tensors(folder / "ours", ONE)
    (folder / "to-ours").symlink_to("ours")
    return [*(each for each in folder.iterdir() if each.name != "ours"), Path("/dev/null"), Path("/dev/stdout")]


@pytest.mark.parametrize("force", [False, True])
def test_nothing_that_is_there_is_replaced(tmp_path: Path, refused: Callable[..., str], force: bool) -> None:
    for path in put_everything(tmp_path):
        before = (found_at(path), path.read_bytes() if path.is_file() else None)
        assert f"{path} exists already" in refused(InputError, write_tensors, path, TWO, None, force)
        assert f"{path} exists already" in refused(InputError, check_folder, path)
        assert (found_at(path), path.read_bytes() if path.is_file() else None) == before
    assert torch.equal(load_file(tmp_path / "ours")["x"], ONE["x"])


def test_a_file_of_ours_is_replaced_when_told_so(tmp_path: Path, refused: Callable[..., str]) -> None:
    file = tmp_path / "ours"
    write_tensors(file, ONE, {"about": "one"})
    assert refused(InputError, write_tensors, file, TWO).endswith("or --force to replace it")
    write_tensors(file, TWO, {"about": "two"}, force=True)
    assert torch.equal(load_file(file)["x"], TWO["x"])
    assert [each.name for each in tmp_path.iterdir()] == ["ours"]


def test_what_comes_meanwhile_is_not_replaced(tmp_path: Path, refused: Callable[..., str]) -> None:
    for force in (False, True):
        out = tmp_path / f"out-{force}"

        def fill(draft: Path, out: Path = out) -> None:
            draft.write_bytes(b"new")
            out.write_bytes(b"another's")

        assert "exists already" in refused(InputError, write_file, out, fill, force)
        assert out.read_bytes() == b"another's"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out-False", "out-True"]


def test_one_writer_of_a_folder_at_a_time_and_no_links(tmp_path: Path, refused: Callable[..., str]) -> None:
    def write(folder: Path) -> None:
        with only_writer(folder):
            pass

    page = tmp_path / "page"
    page.mkdir()
    with only_writer(page):
        assert "another process is writing" in refused(StoreError, write, page)
    write(page)
    (tmp_path / "link").symlink_to("page")
    refused(StoreError, write, tmp_path / "link")
    assert not list(page.iterdir())


KILLED = """
import pathlib, sys, time
from loopscope.store.outputs import write_file
def fill(draft):
    draft.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
write_file(pathlib.Path(sys.argv[1]), fill)
"""


def test_a_killed_writer_leaves_nothing_that_the_next_one_does_not_remove(tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(out)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"writing\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (left,) = tmp_path.iterdir()
    assert DRAFT.fullmatch(left.name)
    write_tensors(out, ONE)
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_report_replaces_a_report_and_no_other_page(tmp_path: Path, refused: Callable[..., str]) -> None:
    report = Report(title="t", lead=(), sections=(), ledger=(), costs=())
    page = write_page(report, tmp_path / "report")
    (tmp_path / "report" / "notes.txt").write_text("mine", encoding="utf-8")
    assert write_page(report, tmp_path / "report") == page
    assert sorted(each.name for each in page.parent.iterdir()) == ["index.html", "notes.txt"]
    page.write_text("<p>my own page</p>", encoding="utf-8")
    assert "is no report of ours" in refused(InputError, write_page, report, tmp_path / "report")
    assert page.read_text(encoding="utf-8") == "<p>my own page</p>"
    for inner in ("figures", "pages"):
        (tmp_path / f"other {inner}" / inner).mkdir(parents=True)
        (tmp_path / f"other {inner}" / inner / "mine").touch()
        assert "holds files" in refused(InputError, write_page, report, tmp_path / f"other {inner}")
    (tmp_path / "link").symlink_to("report")
    assert "as a link" in refused(InputError, write_page, report, tmp_path / "link")
    page.unlink()
    page.symlink_to("notes.txt")
    assert "as a link" in refused(InputError, write_page, report, tmp_path / "report")
    assert (tmp_path / "report" / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_every_command_refuses_before_anything_is_computed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, with the target as it was; the model's weights are no weights, so nothing can have been loaded."""
    monkeypatch.chdir(tmp_path)
    folder = stack_folder(tmp_path / "llama", "llama")
    (folder / "model.safetensors").write_bytes(b"none")
    (tmp_path / "mine.jsonl").write_text("mine", encoding="utf-8")
    (tmp_path / "link.jsonl").symlink_to("nowhere")
    new = ["lm", "new", "--layers", "1", "--width", "8", "--heads", "1", "--words", "letters"]
    commands = [
        ["lm", "readouts", "llama", "--ids", "[[1]]"], ["lm", "get", "smollm2-135m"], new, ["lm", "rules"],
        ["lm", "finetune", "llama", "smol-letter"], ["lm", "fit", "llama", "smol-letter-map"], ["reproduce"],
    ]  # fmt: skip
    for command in commands:
        for target in ("mine.jsonl", "link.jsonl", "/dev/null", "/dev/stdout"):
            before = time.monotonic()
            code, out, err = loopscope(capsys, *command, "--out", target)
            assert (code, out, err.count("\n")) == (2, "", 1), (command, target, err)
            assert "exists already" in err
            assert time.monotonic() - before < 20
    assert (tmp_path / "mine.jsonl").read_text(encoding="utf-8") == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.jsonl", "llama", "mine.jsonl"]
    check_file(tmp_path / "free")
