"""The page with recorded answers: the bytes of the live page, the same file every time, small enough."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from loopscope.errors import InputError
from loopscope.view.bundle import (
    FILE,
    GRID,
    MOST,
    READOUTS,
    THUMBNAIL,
    bundle_of,
    read_bundle,
    requests_of,
    write_bundle,
)
from loopscope.view.contract import Request, unpack
from loopscope.view.explorer import Explorer
from loopscope.view.runs import finish
from loopscope.view.shown_model import MAIN_MODEL, ShownModel, open_model
from loopscope.view.tour import STOPS
from tests.commands import loopscope
from tests.explored import tiny_explorer
from tests.tiny import tiny_map, tiny_model

PAGE = Path(__file__).parents[1] / "loopscope" / "view" / "page"


def small() -> Explorer:
    """A model of one layer with one map."""
    return Explorer(ShownModel(tiny_model("parity", seed=3), "small", {"one": tiny_map(1)}))


@pytest.mark.slow
def test_a_bundle_has_the_answers_of_the_live_page_byte_by_byte_and_is_the_same_every_time(tmp_path: Path) -> None:
    file = write_bundle(small(), tmp_path / "new" / "walks")
    assert file == tmp_path / "new" / "walks" / FILE
    assert os.listdir(file.parent) == [FILE]
    assert file.read_text(encoding="utf-8") == bundle_of(small())
    hello, answers = read_bundle(file)
    live = small()
    assert {**live.subject.hello(), "live": False, "recorded": sorted(answers), "made_with": None} == hello
    asked = {request.name: request for request in requests_of(live)}
    assert asked.keys() == answers.keys()
    for name, request in asked.items():
        assert answers[name] == finish(live.answer(request))
        assert unpack(answers[name])[0]["name"] == name
    kinds = {request.kind for request in asked.values()}
    assert kinds == {"check", "input", "readouts", "patterns", "trajectory", "sweep", "compare"}


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="exists already"):
        write_bundle(tiny_explorer(), tmp_path / "mine")
    assert os.listdir(tmp_path) == ["mine"]


def test_a_file_that_is_no_bundle_is_told(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>hello</p>")
    with pytest.raises(InputError, match="no page with recorded answers"):
        read_bundle(tmp_path / "page.html")


def test_what_is_recorded_is_what_the_page_asks() -> None:
    scripts = {file.name: file.read_text(encoding="utf-8") for file in PAGE.glob("*.js")}

    def written(read: dict[str, object]) -> str:
        return "{ " + ", ".join(f"{key}: {json.dumps(value)}" for key, value in read.items()) + " }"

    assert f"WALK_READ = {written(dict(READOUTS))};" in scripts["walk.js"]
    assert 'read = { kind: "readouts", answers, rows: "all", top: 5 };' in scripts["textgrid.js"]
    assert (GRID["rows"], GRID["top"]) == ("all", 5)
    assert f"THUMB = {THUMBNAIL};" in scripts["patterns.js"]


@pytest.mark.slow
def test_the_bundle_of_the_main_backbone_is_small_and_tells_the_whole_tour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = loopscope(capsys, "view", "--bundle", str(tmp_path / "walks"), "--json")
    assert (code, err) == (0, "")
    page = Path(json.loads(out)["page"])
    assert json.loads(out)["bytes"] == page.stat().st_size <= MOST
    hello, answers = read_bundle(page)
    assert hello["made_with"] == f"loopscope view {MAIN_MODEL}"
    assert [stop["id"] for stop in hello["tour"]] == [stop.id for stop in STOPS]
    explorer = Explorer(open_model(MAIN_MODEL))
    inputs = {each["id"]: each for each in hello["inputs"]}
    for stop, told in zip(STOPS, hello["tour"], strict=True):
        assert told["programs"] == [*stop.programs]
        for program in stop.programs:
            example = inputs[stop.input]
            request = explorer.request(program, READOUTS, example["input"], example["others"])
            assert answers[request.name] == finish(explorer.answer(request))
        for place in stop.places:
            read = {"kind": "patterns", "head": 1, "place": place, "size": 0}
            assert explorer.request(stop.programs[0], read, example["input"]).name in answers
    assert isinstance(request, Request)
