"""Language models in a store and in the zoo: kept, named, verified, added with their maps, measured by `reproduce`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.errors import DamagedError, InputError
from loopscope.maps import Dense, map_files
from loopscope.models.folders import weights_sha256
from loopscope.models.kept import keep, opened
from loopscope.store.artefacts import name_of
from loopscope.store.store import Artefact, Store
from loopscope.store.zoo import VARIABLE, add, entries, find, verify
from loopscope.studies.language.experiment import Amount
from loopscope.studies.language.recipes import recipe
from loopscope.studies.language.records import load_language
from loopscope.studies.language.zoo import kept
from loopscope.studies.records import records
from loopscope.studies.registry import LANGUAGE
from loopscope.tasks.letters import pairs as letter_pairs
from loopscope.training.lm.new_model import Shape, write_new
from loopscope.training.lm.words import write_words
from tests.commands import loopscope
from tests.stores import everything_under, flip, put_backbone

NAME, MAP = "letters-1x16", "small-letter-map@letters-1x16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very small walker with random weights."""
    made = tmp_path_factory.mktemp("models")
    write_words(made / "words", "letters")
    write_new(made / "walker", Shape("llama", layers=1, width=16, heads=2, loops=2), made / "words")
    return made / "walker"


def put_map(store: Store, folder: Path, width: int = 16, weights: str | None = None) -> Artefact:
    """A map as fitting writes it, in two loops."""
    config: dict[str, Any] = {"recipe": recipe("small-letter-map", ["loops=2", "stepwise=false"]).to_dict()}
    inputs = {"weights": weights or weights_sha256(folder)}
    with store.write("lm-map", config, inputs) as draft:
        for name, data in map_files(Dense(width)).items():
            draft.bytes(name, data)
        draft.json("fitted.json", {**config, **inputs})
    return draft.artefact


@pytest.fixture
def store(tmp_path: Path, folder: Path) -> Store:
    made = Store(tmp_path / "store")
    keep(folder, NAME, made)
    put_map(made, folder)
    return made


def test_a_kept_model_is_a_model_folder(store: Store, folder: Path) -> None:
    model, step = find(store, NAME), find(store, MAP)
    assert (model.manifest.kind, step.manifest.kind) == ("lm", "lm-map")
    subject = load_language(opened(model), opened(step), name=name_of(model))
    assert (subject.name, subject.key, subject.model.loops) == (NAME, weights_sha256(folder), 2)
    assert {path.name for path in model.folder.iterdir()} == {
        "manifest.json",
        *(each.name for each in folder.iterdir()),
    }
    assert keep(folder, NAME, store).key == model.key


def test_a_map_brings_its_model_and_both_are_listed(store: Store, tmp_path: Path) -> None:
    zoo = Store(tmp_path / "zoo")
    put_backbone(zoo)
    assert [each.name for each in add(zoo, store, [MAP])] == [NAME, MAP]
    found = entries(zoo)
    assert [(each.kind, each.name) for each in found] == [("backbone", "d8l6-3"), ("lm", NAME), ("lm-map", MAP)]
    assert [each.about for each in found[1:]] == ["llama, 1 layers of width 16, 2 loops", "fitted in 2 loops"]
    assert {each.state for each in verify(zoo)} == {"ok"}
    copied = everything_under(zoo.root / "lm")
    assert {path: data for path, data in everything_under(store.root / "lm").items() if "lock" not in path} == {
        path: data for path, data in copied.items() if "lock" not in path
    }


def test_damage_is_found(store: Store, refused: Callable[..., str]) -> None:
    model = find(store, NAME)
    flip(model.folder / "model.safetensors")
    assert {each.kind: each.state for each in verify(store)} == {"lm": "damaged", "lm-map": "unreadable"}
    refused(DamagedError, opened, model)


def test_a_map_needs_its_model(store: Store, folder: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    other = put_map(store, folder, weights="0" * 64)
    assert name_of(other) == other.key[:8]
    said = refused(InputError, add, Store(tmp_path / "zoo"), store, [other.key[:8]])
    assert "needs the model of weights 000000000000" in said
    assert not (tmp_path / "zoo").exists()
    assert [each.name for each in kept(store, LANGUAGE["letters"])] == [NAME]


def test_what_cannot_be_kept(folder: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    store = Store(tmp_path / "none")
    assert "without spaces" in refused(InputError, keep, folder, "a b", store)
    assert "is no checkpoint" in refused(InputError, keep, tmp_path, "x", store)
    assert not (tmp_path / "none").exists()


def test_without_its_packages_a_model_is_only_hashed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    found = {each.kind: each for each in verify(store)}
    assert (found["lm"].state, found["lm-map"].state) == ("ok", "ok")
    for kind in ("lm", "lm-map"):
        assert found[kind].reason == "hashed, not loaded: needs transformers: pip install 'loopscope[lm]'"
    flip(find(store, NAME).folder / "tokenizer.json")
    assert next(each for each in verify(store) if each.kind == "lm").state == "damaged"


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder, with a zoo that has the walker alone, on few pairs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(LANGUAGE, "letters", replace(LANGUAGE["letters"], in_zoo=Amount(2, 16)))  # type: ignore[arg-type]
    few = {name: each._replace(size=2) for name, each in letter_pairs.SETS.items()}
    drawn = {name: letter_pairs.pairs(name)[:2] for name in few}
    monkeypatch.setattr(letter_pairs, "_all_pairs", lambda: drawn)
    monkeypatch.setenv(VARIABLE, str(store.root))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    return lambda *arguments: loopscope(capsys, *arguments)


def test_zoo_names_work_where_a_model_or_a_map_is_asked_for(
    run: Callable[..., tuple[int, str, str]], store: Store, tmp_path: Path
) -> None:
    model, fitted = find(store, NAME).folder, find(store, MAP).folder
    code, out, err = run("lm", "readouts", NAME, "--ids", "[[1, 2]]", "--json")
    assert (code, err, json.loads(out)["folder"]) == (0, "", str(model))
    code, out, err = run("lm", "patch", NAME, "F J:one F", "--text", "A B", "--map", f"one={MAP}", "--json")
    assert (code, err, json.loads(out)["folder"]) == (0, "", str(model))
    assert json.loads(out)["maps"]["one"]["provenance"].startswith("fitted to these weights")
    code, out, err = run("maps", "show", MAP, "--json")
    assert (code, err, json.loads(out)["folder"]) == (0, "", str(fitted))
    code, out, err = run("lm", "test", "letters", NAME, "--map", MAP, "--test", "walks", "--pairs", "2", "--json")
    assert (code, err) == (0, "")
    assert {each["model"] for each in json.loads(out)["records"]} == {NAME}
    code, _, err = run("lm", "keep", NAME, "again", "--store", "kept")
    assert (code, err) == (0, "")
    # A folder comes first, and what is neither is refused as a folder that is not there.
    (tmp_path / NAME).mkdir()
    assert "no config.json" in run("lm", "readouts", NAME, "--ids", "[[1]]")[2]
    assert "there is no such folder" in run("lm", "readouts", "letters-9x9", "--ids", "[[1]]")[2]
    flip(next(fitted.glob("*.safetensors")))
    assert run("maps", "show", MAP)[0] == 3


def test_reproduce_measures_the_zoos_walker(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    asked = ("reproduce", "letters", "--results", "results", "--store", "mine")
    code, out, err = run(*asked)
    assert (code, "The report: " in out) == (0, True), err
    made = records(Store(tmp_path / "mine"))
    assert {each.settings["set"] for each in made} >= {"walks", "steering", "pattern-vs-output", "restoration"}
    assert {each.facts.name for each in made} == {NAME}
    assert {each.settings.get("pairs", each.settings.get("letters", 2)) for each in made} == {2}
    before = everything_under(tmp_path / "mine")
    assert run(*asked)[0] == 0
    assert everything_under(tmp_path / "mine") == before


def test_reproduce_says_what_it_leaves_out(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run("reproduce", "antonyms", "--results", "results")
    assert (code, err.count("\n")) == (2, 1)
    assert "has no language model for antonyms" in err
    assert "not on cohorts" in run("reproduce", "letters", "--cohort", "mechanism", "--results", "results")[2]
    code, _, err = run("reproduce", "letters", "--profile", "paper", "--results", "results")
    assert (code, "loopscope lm reproduce letters" in err) == (2, True)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    code, _, err = run("reproduce", "letters", "--results", "results")
    assert (code, err) == (2, "loopscope: letters needs tokenizers: pip install 'loopscope[lm]'\n")


def test_keep_from_the_command_line(run: Callable[..., tuple[int, str, str]], folder: Path, tmp_path: Path) -> None:
    code, out, err = run("lm", "keep", str(folder), "other", "--store", "new")
    assert (code, err, out.startswith("other: ")) == (0, "", True)
    assert name_of(find(Store(tmp_path / "new"), "other", "lm")) == "other"
