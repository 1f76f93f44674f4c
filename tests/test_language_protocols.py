"""`loopscope lm reproduce`: a protocol in one command is its stages one by one, done once; mistakes cost nothing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope import cli
from loopscope.maps import load_map, map_key
from loopscope.models.folders import weights_sha256
from loopscope.models.identity import identify
from loopscope.store.store import Store
from loopscope.studies.language import protocols as language_protocols
from loopscope.studies.language import steps as language_steps
from loopscope.studies.language.protocols import plan
from loopscope.studies.records import RECORD
from tests.commands import loopscope
from tests.shortened import changes, recipes, shortened
from tests.stores import everything_under
from tests.tuning_tiny import text_files, tuning_folder

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    tuning_folder(tmp_path / "plain")
    assert text_files(tmp_path) == TEXT
    return lambda *arguments: loopscope(capsys, "lm", *arguments)


TEXT = [part for number in range(3) for part in ("--text", f"{number}.txt")]
ALONE = ("--results", "none")
"""No records beside those that are made: the page of all that come with a checkout takes a minute."""

ONE = ("reproduce", "iterations", "plain", "--recipes", "smol", "--out", "made", "--cases", "1", *TEXT, *ALONE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the machine went down before the test was made: all stages are trained, nothing is recorded."""
    folder = tmp_path_factory.mktemp("made")
    tuning_folder(folder / "plain")
    text_files(folder)
    (folder / "none").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: False)
        patched.chdir(folder)
        patched.setattr(sys, "argv", ["loopscope", "lm", *ONE, *shortened("iterations", "smol")])
        patched.setattr(language_steps, "load_language", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cli.main()
    return folder


@pytest.fixture
def trained(command: Command, made: Path, tmp_path: Path) -> Command:
    """A command where the stages are trained."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return command


@pytest.fixture(scope="module")
def ended(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder where it was carried out and exported, with nothing trained again; and what it printed."""
    folder = tmp_path_factory.mktemp("ended")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    assert found(str(folder / "store")) == set()
    before = everything_under(folder / "made")
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(StringIO()) as printed:
        patched.setattr(torch.cuda, "is_available", lambda: False)
        patched.chdir(folder)
        patched.setenv("COLUMNS", "200")
        patched.setattr(sys, "argv", ["loopscope", "lm", *ONE, *shortened("iterations", "smol"), "--export", "kept"])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    assert not stopped.value.code
    assert everything_under(folder / "made") == before
    return folder, printed.getvalue()


@pytest.fixture
def done(command: Command, ended: tuple[Path, str], tmp_path: Path) -> Command:
    """A command where everything is measured and exported."""
    shutil.copytree(ended[0], tmp_path, dirs_exist_ok=True)
    return command


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def found(store: str) -> set[str]:
    return {each.key for each in Store(store).every(RECORD)}


def test_a_protocol_tells_its_stages_and_judges_what_it_measured(done: Command) -> None:
    code, out, _ = done(*ONE, *shortened("iterations", "smol"), "--json")
    assert code == 0
    told: dict[str, Any] = json.loads(out)
    names = ["smol-iterations-adapt", "smol-iterations", "smol-iterations-map"]
    assert [stage["recipe"]["name"] for stage in told["stages"]] == names
    assert [record["model"] for record in told["records"]] == ["plain"]
    assert [claim["id"] for claim in told["claims"]] == ["iterate.continue", "iterate.strict"]  # what was measured
    assert "iterate.continue" in Path(told["page"]).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_protocol_is_its_stages_one_by_one(done: Command, tmp_path: Path) -> None:
    names = ["smol-iterations-adapt", "smol-iterations", "smol-iterations-map"]
    short = {each.name: [f"--set={change}" for change in changes(each)] for each in recipes(plan("iterations", "smol"))}
    into = ("--store", "other")
    assert done("finetune", "plain", names[0], "--out", "a", *short[names[0]], *TEXT, *into)[0] == 0
    assert done("finetune", "a", names[1], "--out", "b", *short[names[1]], *TEXT, *into)[0] == 0
    assert done("fit", "b", names[2], "--out", "m", *short[names[2]], *TEXT, *into)[0] == 0
    card = Path("m/README.md").read_text(encoding="utf-8")
    assert f"# A map J by the recipe {names[2]}" in card
    assert "    loopscope lm fit b" in card
    tested = ("test", "iterations", "b", "--map", "m", "--name", "plain", "--cases", "1")
    assert done(*tested, *into)[0] == 0
    # A map belongs to its backbone: by mistake it is not tested with another.
    code, out, err = done(*tested[:2], "a", *tested[3:], *into)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "m was fitted to weights of SHA-256 " in err
    for stage, folder in zip(names[:2], "ab", strict=True):
        assert weights(tmp_path / "made" / stage) == weights(tmp_path / folder)
    assert found("store") == found("other") != set()


def test_an_export_has_records_maps_and_how_models_were_trained_and_nothing_is_done_again(
    done: Command, ended: tuple[Path, str]
) -> None:
    """By their inputs, a record leads to its map and its model, and each model to the one it was made from."""
    assert {each.name for each in Path("kept").iterdir()} == {RECORD, "lm-map", "lm-training"}
    kept = Store("kept")
    (record,), (fitted,) = kept.every(RECORD), kept.every("lm-map")
    assert record.manifest.inputs["map"] == map_key(load_map(fitted.folder))
    assert load_map(fitted.folder).b.dtype == torch.float16
    made = {each.manifest.inputs["made"]: each for each in kept.every("lm-training")}
    last = made[record.manifest.inputs["weights"]]
    model = identify(Path("made/smol-iterations"))
    assert fitted.manifest.inputs == {"weights": last.manifest.inputs["made"], "identity": model.key}
    assert record.manifest.inputs["identity"] == model.key
    first = made[last.manifest.inputs["weights"]]
    assert [each.manifest.config["recipe"]["name"] for each in (first, last)] == [
        "smol-iterations-adapt",
        "smol-iterations",
    ]
    assert first.manifest.inputs["weights"] == weights_sha256(Path("plain"))
    assert last.json("history.json.xz") == json.loads(Path("made/smol-iterations/history.json").read_text("utf-8"))
    # What was trained before it was noted is noted when it is looked up; what is done is not done again.
    Store("store").remove("lm-training", last.key)
    (key,), before = found("store"), everything_under(Path("made"))
    assert "smol-iterations-map" in ended[1]
    code, out, _ = done(*ONE, *shortened("iterations", "smol"), "--export", "again")
    assert (code, out.split()) == (0, ended[1].replace(str(ended[0]), str(Path.cwd())).split())
    assert (found("store"), everything_under(Path("made"))) == ({key}, before)
    assert {each.key for each in Store("again").every("lm-training")} == {each.key for each in made.values()}


def test_an_interrupt_ends_a_test_too(trained: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = language_protocols.Settings

    def stopped(**given: Any) -> Any:
        return settings(**{**given, "stop": lambda: True})

    monkeypatch.setattr("loopscope.training.lm.jobs.Settings", stopped)
    code, _, err = trained(*ONE, *shortened("iterations", "smol"))
    assert (code, err.splitlines()[-1]) == (130, "loopscope: interrupted")
    assert found("store") == set()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["walks", "plain"], "no protocol 'walks'; there are letters, antonyms, iterations (nearest: letters)"),
        (["letters", "plain", "--recipes", "smal"], "no recipes 'smal'; there are paper, smol, small (nearest: small)"),
        (
            ["letters", "plain", "--set", "rate=1"],
            "a change is written RECIPE.name=value, with one of smol-letter-adapt, smol-letter, smol-letter-map; "
            "not 'rate=1'",
        ),
        (["letters", "plain", "--set", "smol-letter.speed=1"], "a recipe has no setting 'speed'; it has "),
        (["letters", "plain", "--cases", "257"], "257"),
        (["antonyms", "plain", "--cases", "0"], "0"),
        (["iterations", "plain", "--cases", "33"], "33"),
        (["letters", "plain", "--batch", "0"], "--batch must be at least 1, not 0 (nearest: 1)"),
        (["letters", "plain", "--boundary", "wall"], "wall"),
        (["letters", "plain", "--out", "0.txt/made"], "0.txt is no folder"),
        (["letters", "nowhere"], "nowhere"),
        (["antonyms", "plain", "--set", "smol-antonym-map.rank=9999"], "rank 9999 does not fit width"),
        (["letters", "plain", "--set", "smol-letter-map.rank=4"], "a dense map takes no rank"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(
    command: Command, tmp_path: Path, given: list[str], said: str
) -> None:
    before = everything_under(tmp_path)
    code, out, err = command("reproduce", "--recipes", "smol", "--out", "made", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert everything_under(tmp_path) == before


def test_several_processes_are_sent_to_the_single_stages(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = command(*ONE)
    assert (code, err) == (
        2,
        "loopscope: a test is made by one process; give several `loopscope lm finetune` and `lm fit`\n",
    )
