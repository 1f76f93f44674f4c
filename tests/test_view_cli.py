"""`loopscope view`: what it says, and mistakes in one line."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from loopscope.view.shown_model import MAIN_MODEL, open_model
from tests.commands import loopscope
from tests.model_folders import stack_folder
from tests.worded import worded_folder


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothere"], "nearest:"),
        (["one-1@d8l6-5"], "is a map, which load_map loads"),
        (["--port", "99999"], "ports are 0 to 65535 (nearest: 65535)"),
        (["--port", "-1"], "(nearest: 0)"),
        (["--memory", "0"], "GiB above 0"),
        (["--memory", "nan"], "GiB above 0"),
        (["tiny-0", "--memory", "0.00001"], "more than the 0.0 GiB"),
        (["tiny-0", "--map", "x=nothere"], "nothere is no saved map"),
        (["tiny-0", "--map", "one=one-1@d8l6-5"], "map 'one' has width 256, but the states of tiny-0 have"),
        (["tiny-0", "--map", "a=tiny-one-1@tiny-0", "--map", "a=tiny-one-2@tiny-0"], "twice"),
        (["tiny-0", "--map", "a b=tiny-one-1@tiny-0"], "may hold only"),
        (["tiny-0", "--loops", "4"], "which has no loops to choose"),
        (["tiny-0", "--device", "moon"], "moon"),
        (["tiny-0", "--dtype", "int"], "int"),
        (["tiny-0", "--bundle", "tests"], "exists already"),
    ],
)
def test_mistakes_have_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    code, out, err = loopscope(capsys, "view", *arguments, "--no-browser")
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert said in err


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = loopscope(capsys, "view", "tiny-0", "--no-browser", "--port", port)
    assert (code, out) == (2, "")
    assert f"port {port} cannot be had" in err


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, out, err = loopscope(capsys, "view", "tiny-0", "--no-browser")
    assert (code, out) == (2, "")
    assert "pip install 'loopscope[view]'" in err


def test_maps_of_the_zoo_come_by_short_names() -> None:
    subject = open_model(MAIN_MODEL)
    assert [*subject.maps][:2] == ["one", "two"]
    assert subject.titles["pool-one-2"] == "pool-one-2@d8l6-5"
    programs = [each["program"] for each in subject.hello()["programs"]]
    assert programs == ["F6", "F7", "F6 J:one F", "F6 J:two F"]


@pytest.mark.parametrize(
    ("name", "kind"), [("parity-1", "tokens"), ("relations-0", "tokens"), ("n8-d8l8-103", "graph")]
)
def test_every_backbone_of_the_zoo_has_examples_of_its_own(name: str, kind: str) -> None:
    from loopscope.view.contract import unpack
    from loopscope.view.explorer import Explorer
    from loopscope.view.runs import finish

    explorer = Explorer(open_model(name))
    hello = explorer.subject.hello()
    assert (hello["kind"], hello["tour"]) == (kind, None)
    for example in hello["inputs"]:
        answer = finish(explorer.answer(explorer.request(hello["program"], {"kind": "input"}, example["input"])))
        assert "error" not in unpack(answer)[0]
        for other in example["others"].values():
            assert len(other.get("tokens", other.get("graph"))) == len(
                example["input"].get("tokens", example["input"].get("graph"))
            )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["F3", "--ids", "[1, 2"], "takes a list of lists of tokens"),
        (["F3", "--ids", "[[1], [2]]"], "takes one input, not 2"),
        (["F3", "--text", "a"], "reads no texts"),
        (["F3", "--text", "a", "--ids", "[1]"], "either --text or --ids"),
        (["F3", "--other", "a=[1]"], "--other belongs to an input of one's own"),
        (["F3", "--ids", "[1, 2]", "--other", "a=[1, 2]"], "nothing in the program is from @a"),
        (["F2 F[layer[1].z<-(F3)@other]", "--ids", "[1, 2]"], "no input is called 'other'"),
        (["F3 J:nobody"], "no map is called 'nobody'"),
    ],
)
def test_what_run_cannot_run_has_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = loopscope(capsys, "run", "tiny-0", *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert said in err


def test_run_says_what_it_ran_on_and_heads_its_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = loopscope(capsys, "run", "tiny-0", "F3", "--ids", "[1, 2]", "--top", "4")
    assert (code, out.splitlines()[0]) == (0, "input: tokens 1 2")
    assert out.splitlines()[2].split() == ["after", "answer", "%", "2nd", "%", "3rd", "%", "4th", "%"]
    asked = "F2 F[layer[1].z<-(F3)@other]", "--ids", "[1, 2]", "--other", "other=[2, 1]"
    _, out, _ = loopscope(capsys, "run", "tiny-0", *asked)
    assert out.splitlines()[1] == "input @other: tokens 2 1"
    _, out, _ = loopscope(capsys, "run", "tiny-0", "F3")
    said = json.loads(loopscope(capsys, "run", "tiny-0", "F3", "--json")[1])["input"]
    graph = " ".join(map(str, said["graph"]))
    assert " ".join(out.split()).startswith(f"input: graph {graph}, start {said['start']}, depth {said['depth']}")


def test_a_map_of_ones_own_is_found_by_the_copied_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from loopscope.loading import map_folder
    from loopscope.view.contract import unpack
    from loopscope.view.explorer import Explorer
    from loopscope.view.notebook import shown_model
    from loopscope.view.runs import finish

    mine = tmp_path / "my map"
    shutil.copytree(map_folder("tiny-one-1@tiny-0"), mine)
    (mine / "manifest.json").unlink()
    subject = open_model("tiny-0", {"mine": mine, "same": map_folder("tiny-one-2@tiny-0")})
    explorer = Explorer(subject)
    program = "F3 J:mine F J:same F J:tiny-one F"
    head, _ = unpack(finish(explorer.answer(explorer.request(program, {"kind": "check"}, subject.examples[0].input))))
    assert f'"mine": load_map("{mine}"), "same": load_map("tiny-one-2@tiny-0")' in head["python"]
    code, out, err = loopscope(capsys, *shlex.split(head["command"])[1:])
    assert (code, err, len(out.splitlines())) == (0, "", 14)
    assert "--map tiny-one" not in head["command"]  # the zoo's own come by themselves
    given = shown_model("tiny-0", {"mine": subject.maps["mine"]})
    request = Explorer(given).request("F3 J:mine F", {"kind": "check"}, given.examples[0].input)
    head, _ = unpack(finish(Explorer(given).answer(request)))
    assert 'maps["mine"] = ...  # as it was given' in head["python"]  # a map in memory has no name to load it by
    assert head["command"] == ""


@pytest.mark.slow
def test_a_language_model_in_a_folder_reads_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from loopscope.view.contract import unpack
    from loopscope.view.explorer import Explorer
    from loopscope.view.runs import finish

    folder = worded_folder(tmp_path / "worded")
    explorer = Explorer(open_model(folder))
    hello = explorer.subject.hello()
    assert (hello["kind"], hello["name"], hello["chat"]) == ("text", "worded", True)
    read = {"kind": "readouts", "answers": [], "rows": "all", "top": 5}
    for chat in (False, True):
        given = {"text": "a b", "chat": chat}
        head, arrays = unpack(finish(explorer.answer(explorer.request(hello["program"], read, given))))
        assert "error" not in head, head
        assert arrays["top"].shape[0] == hello["loops"] + 1
        assert all(head["names"].values())
    request = explorer.request(
        "F F[layer[1].row[-1].z<-(F2)@other]", {"kind": "check"}, {"text": "a b", "chat": False},
        {"other": {"text": "b a", "chat": False}},
    )  # fmt: skip
    command = shlex.split(unpack(finish(explorer.answer(request)))[0]["command"])
    code, out, err = loopscope(capsys, *command[1:], "--json")
    assert (code, err) == (0, "")
    head, arrays = unpack(
        finish(
            explorer.answer(explorer.request(request.program, {**read, "rows": "last"}, request.input, request.others))
        )
    )
    for point, best, share in zip(json.loads(out)["points"], arrays["top"], arrays["probability"], strict=True):
        assert [each["class"] for each in point["top"]] == best[0, :3].tolist()
        assert [each["probability"] for each in point["top"]] == pytest.approx(share[0, :3].tolist())
    longer = Explorer(open_model(folder, loops=3, boundary="norm"))
    request = longer.request("F3", {"kind": "check"}, {"text": "a b", "chat": False})
    script = unpack(finish(longer.answer(request)))[0]["python"]
    assert ', boundary="norm", loops=3)' in script
    exec(compile(script, "script", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 3
    no_words = Explorer(open_model(stack_folder(tmp_path / "bare", "llama")))
    assert no_words.subject.kind == "tokens"


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_end() -> None:
    command = [sys.executable, "-m", "loopscope.cli", "view", "tiny-0", "--no-browser", "--json"]
    for end, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = ""
            while not said.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, process.stderr and process.stderr.read()
                said += line
            url = json.loads(said)["url"]
            with urllib.request.urlopen(f"{url}hello", timeout=30) as reply:
                assert json.load(reply)["name"] == "tiny-0"
            process.send_signal(end)
            process.wait(30)
            assert process.returncode == code
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{url}hello", timeout=5)
    assert os.getpid()
