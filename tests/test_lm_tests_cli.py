"""`loopscope lm test`: records from the command line that `claims` judges; one line and nothing left where it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from loopscope.maps import load_map, map_key
from loopscope.measure.heads import Heads
from loopscope.models.folders import load, weights_sha256
from loopscope.models.text import load_tokenizer
from loopscope.store.store import Store
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.iterations.experiments import measure_iterations
from loopscope.studies.language.records import load_language
from loopscope.studies.letters.records import measure_letters
from loopscope.studies.records import RECORD, Record, config_of, records
from tests.commands import loopscope
from tests.stores import everything_under
from tests.worded import worded_folder, worded_map

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    worded_folder(folder / "worded")
    worded_folder(folder / "mute", template=False)
    worded_map(folder / "map")
    worded_map(folder / "wide", width=17)
    return folder


class Iterated(NamedTuple):
    """A test of iterations that tests look at: its record, where it is, and what was said meanwhile."""

    made: Record
    store: Store
    said: list[str]


@pytest.fixture(scope="module")
def iterated(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterated:
    said: list[str] = []
    store = Store(tmp_path_factory.mktemp("iterated"))
    made = measure_iterations(load_language(models / "worded", models / "map"), store, cases=1, log=said.append)
    return Iterated(made, store, said)


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: Path
) -> Command:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str, model: str = "worded", step: str = "map") -> tuple[int, str, str]:
        task, *rest = arguments
        return loopscope(capsys, "lm", "test", task, str(models / model), "--map", str(models / step), *rest)

    return call


def as_json(printed: tuple[int, str, str]) -> list[dict[str, Any]]:
    code, out, err = printed
    assert (code, err) == (0, "")
    return json.loads(out)["records"]


def test_letters_are_recorded_and_judged(capsys: pytest.CaptureFixture[str], command: Command, tmp_path: Path) -> None:
    tests = ("--test", "steering", "--test", "restoration")
    asked = ("letters", *tests, "--pairs", "2", "--heads", "1.1 2.0,2", "--batch", "2")
    made = as_json(command(*asked, "--json"))
    assert [each["settings"]["set"] for each in made] == ["steering", "restoration"]
    assert {each["scale"] for each in made} == {"worded (5,616 parameters) in place of Ouro-2.6B, 2 of 256 pairs"}
    assert made[0]["tables"][0]["id"] == "letters.steering"
    steering = {row["at"]["condition"]: row for row in made[0]["tables"][0]["rows"]}
    assert steering["self-output"]["estimate"] == steering["unsteered"]["estimate"]
    assert max(value for each in made for value in each["notes"]["errors"].values()) < 1e-3
    before = everything_under(tmp_path / "store")
    code, out, _ = command(*asked)  # found, not measured
    assert (code, everything_under(tmp_path / "store")) == (0, before)
    for words in ("Letters, steering: right answers", "Letters, restoration", "First token and whole name agree"):
        assert words in out
    code, out, _ = loopscope(capsys, "claims", "--store", "store", "--results", "store", "--json")
    (steer,) = (each for each in json.loads(out)["claims"] if each["id"] == "letter.steer")
    assert (code, steer["verdict"], steer["backbones"], steer["n"]) == (0, "does not hold", ["worded"], 2)
    assert steer["command"] == "loopscope lm test letters FOLDER --map MAP"


def test_heads_are_searched_for_where_none_are_given(command: Command) -> None:
    made = as_json(command("letters", "--pairs", "2", "--test", "steering", "--name", "mine", "--json"))
    assert [each["settings"]["set"] for each in made] == ["discovery", "steering"]
    assert {each["model"] for each in made} == {"mine"}


def test_antonyms_and_iterations_are_recorded(command: Command, tmp_path: Path) -> None:
    (made,) = as_json(command("antonyms", "--supervision", "stepwise", "--sequences", "1", "--json"))
    assert len(made["tables"]) == 3
    (made,) = as_json(command("iterations", "--cases", "1", "--json"))
    assert made["notes"]["same_h4"] is True
    code, out, _ = command("iterations", "--cases", "1")
    assert code == 0
    assert "h4 of the four branches is the same, bit by bit." in out
    assert "Iterations: whole answers" in out
    assert "Iterations from trained starts: whole answers" in out
    assert [each.experiment for each in records(Store(tmp_path / "store"))] == ["antonyms", "iterations"]


def test_iterations_are_asked_from_held_out_and_from_trained_starts(iterated: Iterated) -> None:
    made, _, said = iterated
    assert {group: set(found) for group, found in made.predictions.items()} == {
        group: set(iteration_tests.branches()) for group in ("iterations", "trained-starts")
    }
    assert set(made.settings) == {"cases", "loops", "boundary"}
    starts = [line.partition(": ")[0] for line in said]
    assert list(dict.fromkeys(starts)) == ["held-out starts", "trained starts"]
    assert said[0] == "held-out starts: J+F: 0 of 40 replies"
    assert starts.count("held-out starts") == starts.count("trained starts") == 8


def test_bf16_is_measured_and_recorded_apart(command: Command, tmp_path: Path, models: Path) -> None:
    asked = ("antonyms", "--supervision", "stepwise", "--sequences", "1", "--json")
    (full,), (half,) = as_json(command(*asked)), as_json(command(*asked, "--dtype", "bf16"))
    assert half["settings"] == full["settings"] | {"dtype": "bf16"}
    assert (full["notes"]["model"]["dtype"], half["notes"]["model"]["dtype"]) == ("fp32", "bf16")
    assert half["scale"] == f"{full['scale']}, in bf16"
    store = Store(tmp_path / "store")
    assert len(records(store)) == 2
    subject = load_language(models / "worded", models / "map", dtype=torch.bfloat16)
    assert (subject.precision, subject.step.b.dtype) == ("bf16", torch.float32)
    (steered,) = measure_letters(subject, store, tests=("steering",), heads=Heads.parse("1.1"), count=2)
    iterated = measure_iterations(subject, store, cases=1)
    assert (steered.settings["dtype"], iterated.settings["dtype"]) == ("bf16", "bf16")
    assert iterated.notes["same_h4"] is True
    assert max(steered.notes["errors"].values()) < 0.2  # a self-patch is the run itself, up to bf16's rounding


def test_fp32_is_what_the_bare_map_gives_bit_by_bit(iterated: Iterated, models: Path) -> None:
    (kept,) = records(iterated.store)
    model, step = load(models / "worded", dtype=torch.float32), load_map(models / "map")
    assert list(kept.predictions) == ["iterations", "trained-starts"]
    for group, split in (("iterations", "test"), ("trained-starts", "train")):
        bare = iteration_tests.measure(model, load_tokenizer(models / "worded"), step, cases=1, split=split)
        assert set(bare) == set(kept.predictions[group])
        for name, replies in kept.predictions[group].items():
            assert torch.equal(replies, bare[name])
    subject = load_language(models / "worded", models / "map")
    questions = [request.prompt for request in iteration_tests.requests(1)[:4]]
    steered, plain = (
        iteration_tests.common_states(model, subject.tokenizer, each, questions)["J+F"]
        for each in (subject.steering, step)
    )
    assert torch.equal(steered, plain)
    settings = {"cases": 1, "loops": 4, "boundary": "none"}  # nothing about precision
    inputs = {"weights": weights_sha256(models / "worded"), "identity": subject.identity.key, "map": map_key(step)}
    assert iterated.store.find(RECORD, config_of("iterations", "worded", settings), inputs) is not None


def test_mistakes_get_one_line_and_leave_nothing(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cases: list[tuple[tuple[str, ...], dict[str, str], str]] = [
        (("letters", "--pairs", "257"), {}, "cannot take 257 of 256 pairs of 'steering' (nearest: 256)"),
        (("letters", "--pairs", "1"), {}, "take at least 2 (nearest: 2)"),
        (
            ("letters", "--test", "steer"),
            {},
            "no test 'steer'; there are walks, steering, pattern-vs-output, restoration",
        ),
        (("letters", "--heads", "five"), {}, "cannot read heads 'five'"),
        (("letters", "--heads", "5.0"), {}, "layers 1..2, heads 0..3"),
        (("letters", "--batch", "0"), {}, "--batch must be at least 1, not 0 (nearest: 1)"),
        (("letters", "--boundary", "nrom"), {}, "no boundary 'nrom'; there are none, norm (nearest: norm)"),
        (("letters", "--loops", "0"), {}, "loops must be at least 1, not 0"),
        (("letters", "--store", "file"), {}, "file is no folder"),
        (("letters",), {"step": "nowhere"}, "nowhere is no saved map"),
        (("letters",), {"step": "wide"}, "is a map of width 17, but the states of"),
        (("letters",), {"model": "nowhere"}, "nowhere is no checkpoint: there is no such folder"),
        (("letters",), {"model": "mute"}, "mute has no chat template"),
        (("antonyms",), {}, "--supervision"),
        (("antonyms", "--supervision", "final"), {}, "(nearest: final-only)"),
        (("antonyms", "--supervision", "stepwise", "--sequences", "65"), {}, "cannot take 65 of 64 sequences"),
        (("iterations", "--cases", "0"), {}, "cannot take 0 of 32 cases for each task and k (nearest: 1)"),
        (("iterations", "--cases", "33"), {}, "cannot take 33 of 32 cases for each task and k (nearest: 32)"),
        (("iterations", "--loops", "5"), {}, "--loops"),  # they are four, and up to four more
        (("iterations", "--device", "tpu"), {}, "tpu"),
        (("iterations", "--dtype", "half"), {}, "no precision 'half'; there are fp32, bf16"),
        (("words",), {}, "words"),
    ]
    for arguments, where, expected in cases:
        code, out, err = command(*arguments, **where)
        assert (code, out, err.count("\n")) == (2, "", 1), (arguments, err)
        assert expected in err, (arguments, err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_damaged_map_is_damage(command: Command, tmp_path: Path, models: Path) -> None:
    broken = worded_map(models / "broken") / "adapter_model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-8])
    code, _, err = command("iterations", step="broken")
    assert (code, err.count("\n")) == (3, 1)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("note", "code", "said"),
    [
        ({"weights": "0" * 64}, 2, "was fitted to weights of SHA-256 000000000000..., but those of"),
        ({"weights": "0" * 64, "boundary": "nrom"}, 3, "expected the boundary and the loops that a map was fitted in"),
        ({"weights": "0" * 64, "recipe": {"loops": 0}}, 3, "expected the boundary and the loops"),
        ({"weights": "0" * 64, "identity": {"version": 2}}, 3, "expected the identity of the model that a map was"),
        ({"weights": 1}, 3, "expected the weights that a map was fitted to, found something else"),
        ({}, 3, "fitted.json"),
    ],
)
def test_a_map_that_says_what_it_was_fitted_to_is_believed(
    command: Command, models: Path, tmp_path: Path, note: dict[str, Any], code: int, said: str
) -> None:
    worded_map(tmp_path / "fitted")
    (tmp_path / "fitted" / "fitted.json").write_text(json.dumps(note), encoding="utf-8")
    before = everything_under(tmp_path)
    found, out, err = command("iterations", step=str(tmp_path / "fitted"))
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert said in err
    assert everything_under(tmp_path) == before
    right = {"weights": weights_sha256(models / "worded")}
    (tmp_path / "fitted" / "fitted.json").write_text(json.dumps(right), encoding="utf-8")
    subject = load_language(models / "worded", tmp_path / "fitted")
    assert (subject.name, subject.model.loops) == ("worded", 4)
    (tmp_path / "fitted" / "fitted.json").write_text(json.dumps(right | {"recipe": {"loops": 6}}), encoding="utf-8")
    loops = [load_language(models / "worded", tmp_path / "fitted", loops=given).model.loops for given in (None, 3)]
    assert loops == [6, 3]
