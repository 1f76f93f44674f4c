"""The commands that train: what they print, what they store, and one line for every mistake."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.store.artefacts import load_backbone, load_fit, name_of
from loopscope.store.manifest import MANIFEST, manifest_text
from loopscope.store.store import Artefact, Store
from loopscope.store.zoo import VARIABLE
from loopscope.studies import recipes
from loopscope.training.cohort import jobs
from tests.commands import loopscope
from tests.stopping import breaking, digest_of
from tests.toys import toy_map, toy_relation_map, toy_relations, toy_walk

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder, without zoo or GPU, with a few recipes of toy size beside the real ones."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "zoo"))
    monkeypatch.setenv("COLUMNS", "200")
    toys: list[recipes.Recipe] = [
        toy_walk(updates=4, check_every=2), toy_map("one", updates=2, check_every=0),
        toy_map("two", updates=2, check_every=0), toy_relations(updates=1, check_every=0),
        toy_relation_map(updates=1, check_every=0),
    ]  # fmt: skip
    for toy in toys:
        monkeypatch.setitem(recipes.RECIPES, toy.name, toy)
    return lambda *arguments: loopscope(capsys, *arguments)


def members(printed: tuple[int, str, str]) -> list[dict[str, Any]]:
    """What a command with --json reports of each member."""
    code, out, err = printed
    assert (code, err) == (0, "")
    return json.loads(out)["members"]


def digests_in(store: Store, kind: str, key: str) -> dict[str, str]:
    return store.open(kind, key).json("result.json")["digests"]


# ---- recipes ---------------------------------------------------------------------------------------------------------


def test_recipes_lists_what_there_is_and_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = loopscope(capsys, "recipes", "--json")
    rows = {row["name"]: row for row in json.loads(out)["recipes"]}
    assert (code, err) == (0, "")
    assert list(rows) == list(recipes.RECIPES)
    assert rows["d8l6"]["petaflop"] == pytest.approx(20.2937204736)
    assert (rows["d8l6"]["kind"], rows["one"]["kind"]) == ("backbone", "map")
    assert (rows["d8l6"]["updates"], rows["d8l6"]["batch"]) == (20_000, 512)
    assert rows["relations-curriculum"]["updates"] == 13 * 3_000 + 10_000
    for name, made in recipes.RECIPES.items():
        assert rows[name]["settings"] == json.loads(json.dumps(made.to_dict()))
        assert rows[name]["deviations"] == list(made.deviations)
        assert rows[name]["numerics"] == list(made.numerics)
    code, out, err = loopscope(capsys, "recipes")
    assert (code, err) == (0, "")
    assert "matched-stepwise" in out
    assert "20,000" in out


# ---- train -----------------------------------------------------------------------------------------------------------


def test_train_reports_every_seed(run: Run, tmp_path: Path) -> None:
    code, out, err = run("train", "toy", "--seeds", "3,0", "--device", "cpu", "--json")
    assert (code, err) == (0, "")
    report, store = json.loads(out), Store(tmp_path / "store")
    assert report["device"] == "cpu"
    assert report["seconds"] > 0
    assert [(each["seed"], each["name"]) for each in report["members"]] == [(3, "toy-3"), (0, "toy-0")]
    for each in report["members"]:
        artefact = store.open("backbone", each["key"])
        assert name_of(artefact) == each["name"]
        assert set(each["digests"]) == {"start", "final", "selected", "data"}
        assert each["digests"] == digests_in(store, "backbone", each["key"])
        assert each["selected_update"] in (2, 4)
        assert len(each["score"]) == 1
        assert len(load_backbone(artefact).state_dict()) > 0
    assert len({each["digests"]["final"] for each in report["members"]}) == 2
    lines = [json.loads(line) for line in (tmp_path / report["metrics"] / "toy-3-0.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["update"]) for line in lines] == [(3, 2), (0, 2), (3, 4), (0, 4)]
    # Again: nothing is trained, and the report is the same.
    assert members(run("train", "toy", "--seeds", "0,3", "--json")) == report["members"][::-1]
    code, out, err = run("train", "toy", "--seeds", "3")
    assert (code, err) == (0, "")
    assert report["members"][0]["key"][:16] in out
    assert report["members"][0]["digests"]["final"][:12] in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_a_store_elsewhere(run: Run, tmp_path: Path) -> None:
    (done,) = members(run("train", "toy", "--seeds", "1", "--store", "deep/other store", "--json"))
    assert Store(tmp_path / "deep" / "other store").open("backbone", done["key"])
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("text", "seeds"), [("3-5", [3, 4, 5]), ("0,4,2", [0, 4, 2]), (" 7 , 2 - 3,2", [7, 2, 3]), ("1-1", [1])]
)
def test_lists_of_seeds(run: Run, text: str, seeds: list[int]) -> None:
    assert [each["seed"] for each in members(run("train", "toy", "--seeds", text, "--json"))] == seeds


def test_a_seed_that_breaks_ends_with_exit_code_1(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jobs.BACKBONES, "graph-walk", breaking({1: 3}, math.nan))
    code, out, err = run("train", "toy", "--seeds", "0-2", "--json")
    assert (code, out) == (1, "")
    assert err == (
        "loopscope: toy-1 stopped before update 3 of train (stream tiny/1): the loss is nan; "
        "its last good parameters are in the last checkpoint\n"
    )
    assert sorted(map(name_of, Store(tmp_path / "store").every("backbone"))) == ["toy-0", "toy-2"]
    assert [each["seed"] for each in members(run("train", "toy", "--seeds", "0,2", "--json"))] == [0, 2]


def test_no_space_ends_with_exit_code_1(run: Run, tmp_path: Path) -> None:
    metrics = tmp_path / "store" / "metrics"
    metrics.mkdir(parents=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        code, out, err = run("train", "toy", "--seeds", "0", "--json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, out) == (1, "")
    assert err == "loopscope: cannot write store/metrics/toy-0.jsonl: File too large\n"
    assert len(members(run("train", "toy", "--seeds", "0", "--json"))) == 1


# ---- fit -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(run: Run, tmp_path: Path) -> list[Artefact]:
    """Two backbones in the store."""
    store = Store(tmp_path / "store")
    return [store.open("backbone", each["key"]) for each in members(run("train", "toy", "--seeds", "0,1", "--json"))]


def test_fit_several_targets_side_by_side(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    done = members(run("fit", "toy-one", "toy-two", "--backbone", "toy-1", "--fits", "1,2", "--json"))
    store = Store(tmp_path / "store")
    assert [each["name"] for each in done] == [
        "toy-one-1@toy-1", "toy-one-2@toy-1", "toy-two-1@toy-1", "toy-two-2@toy-1"
    ]  # fmt: skip
    assert [each["seed"] for each in done] == [1, 2, 1, 2]
    for each in done:
        artefact = store.open("map", each["key"])
        assert artefact.manifest.inputs == {"backbone": trained[1].key}
        assert artefact.json("result.json")["side_by_side"] == 4
        assert digest_of(load_fit(artefact).state_dict()) == each["digests"]["selected"]
    code, out, err = run("fit", "toy-one", "--backbone", "toy-1")
    assert (code, err) == (0, "")
    assert done[0]["key"][:16] in out


@pytest.mark.parametrize("how", ["two options", "one option", "keys"])
def test_fit_several_backbones(run: Run, trained: list[Artefact], how: str) -> None:
    options = {
        "two options": ["--backbone", "toy-0", "--backbone", "toy-1"],
        "one option": ["--backbone", "toy-0", "toy-1"],
        "keys": ["--backbone", trained[0].key[:10], trained[1].key],
    }[how]
    done = members(run("fit", "toy-two", *options, "--json"))
    assert [each["name"] for each in done] == ["toy-two-1@toy-0", "toy-two-1@toy-1"]


def test_a_backbone_of_the_zoo_is_brought_into_the_store(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    assert run("zoo", "add", "toy-0", "--store", "store")[0] == 0
    done = members(run("fit", "toy-one", "--backbone", "toy-0", "--store", "new", "--json"))
    new = Store(tmp_path / "new")
    assert [each.key for each in new.every("backbone")] == [trained[0].key]
    assert [each.key for each in new.every("map")] == [done[0]["key"]]


@pytest.mark.parametrize("map_name", ["toy-one", "toy-chain"])
def test_what_is_asked_for_twice_is_done_once(run: Run, map_name: str) -> None:
    backbone = "toy" if map_name == "toy-one" else "toy-relations"
    assert len(members(run("train", backbone, "--seeds", "0", "--json"))) == 1
    done = members(run("fit", map_name, map_name, "--backbone", f"{backbone}-0", f"{backbone}-0", "--json"))
    assert [each["name"] for each in done] == [f"{map_name}-1@{backbone}-0"]


# ---- mistakes --------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file and folder below a folder, and what is in it."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def refused(run: Run, folder: Path, *arguments: str, status: int = 2) -> str:
    """The line for a request that does not fit; nothing is written."""
    before = contents(folder)
    code, out, err = run(*arguments)
    assert (code, out) == (status, "")
    assert err.startswith("loopscope: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert contents(folder) == before
    return err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "toyy", "--seeds", "0"], "no recipe 'toyy'; there are d8l6, "),
        (["train", "toyy", "--seeds", "0"], "(nearest: toy)"),
        (["train", "one", "--seeds", "0"], "'one' fits maps; `loopscope fit one --backbone KEY` does that"),
        (["train", "toy"], "Missing option '--seeds'"),
        (["train", "--seeds", "0"], "Missing argument"),
        (["train", "toy", "--seeds", "0", "--device", "gpu"], "no device 'gpu'; there are auto, cpu, cuda"),
        (["train", "toy", "--seeds", "0", "--store", "a-file"], "a-file is no folder, so no store"),
        (["train", "toy", "--seeds", "0", "--save-every", "soon"], "Invalid value for '--save-every'"),
        (["train", "toy", "--seeds", "0", "--save-every", "nan"], "--save-every takes seconds, 0 or more, not nan"),
        (["train", "toy", "--seeds", "0", "--save-every", "inf"], "--save-every takes seconds, 0 or more, not inf"),
        (["train", "toy", "--seeds", "0", "--save-every", "-1"], "not -1.0 (nearest: 0)"),
        (["train", "toy", "--seeds", "0-999,1000-1999"], "names more than 1,000 numbers"),
        (["fit", "toy-one", "--backbone", "toy-0", "--save-every", "nan"], "--save-every takes seconds"),
        (["fit", "toy", "--backbone", "toy-0"], "'toy' trains backbones; `loopscope train toy --seeds 0` does"),
        (["fit", "onne", "--backbone", "toy-0"], "no recipe 'onne'"),
        (["fit", "toy-one"], "Missing option '--backbone'"),
        (["fit", "toy-one", "--backbone", "toy-0"], "no backbone 'toy-0' in"),
        (["fit", "toy-one", "--backbone", "abcdef"], "or the zoo; there are none"),
        (["fit", "toy-one", "--backbone", "toy-0", "--fits", "x"], "--fits 'x' is no list of numbers"),
        (["fit", "toy-one", "--backbone", "toy-0", "--device", "tpu"], "no device 'tpu'"),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit(run: Run, tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "a-file").touch()
    assert says in refused(run, tmp_path, *arguments)


@pytest.mark.parametrize(
    "text", ["", ",", "a", "5-3", "-1", "1-", "1,,2", "0-1000", "1.5", "1 2", "12345678901", "1-2-3", "all"]
)
def test_lists_of_seeds_that_are_none(run: Run, tmp_path: Path, text: str) -> None:
    said = refused(run, tmp_path, "train", "toy", f"--seeds={text}")
    assert said == f"loopscope: --seeds {text!r} is no list of numbers such as 3-13 or 0,4,7\n"


def test_a_gpu_that_is_not_there(run: Run, tmp_path: Path) -> None:
    assert "no CUDA device is there" in refused(run, tmp_path, "train", "toy", "--seeds", "0", "--device", "cuda")


def test_backbones_that_do_not_fit(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    said = refused(run, tmp_path, "fit", "toy-one", "--backbone", "toy-2")
    assert said.startswith(f"loopscope: no backbone 'toy-2' in {tmp_path / 'store'} or the zoo; there are toy-")
    said = refused(run, tmp_path, "fit", "one", "--backbone", "toy-0")
    assert said == "loopscope: map 'one' is for 10-node graphs; toy-0 walks 6\n"
    said = refused(run, tmp_path, "fit", "parity-staged", "--backbone", "toy-0")
    assert said == "loopscope: map 'parity-staged' is for parity backbones; toy-0 is for graph-walk\n"
    said = refused(run, tmp_path, "fit", "toy-one", "one", "--backbone", "toy-0")
    assert said == "loopscope: maps 'toy-one' and 'one' cannot be fitted side by side; fit them in turn\n"


def test_of_several_backbones_one_does_not_suit(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    assert run("train", "toy-relations", "--seeds", "0")[0] == 0
    said = refused(run, tmp_path, "fit", "toy-one", "--backbone", "toy-0", "toy-relations-0")
    assert said == "loopscope: map 'toy-one' is for graph-walk backbones; toy-relations-0 is for relations\n"


def test_of_several_backbones_one_is_missing(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    said = refused(run, tmp_path, "fit", "toy-one", "--backbone", "toy-0", "toy-9")
    assert "no backbone 'toy-9'" in said
    # Nor is the other one brought from the zoo.
    assert run("zoo", "add", "toy-0", "--store", "store")[0] == 0
    assert "no backbone 'toy-9'" in refused(
        run, tmp_path, "fit", "toy-one", "--backbone", "toy-0", "toy-9", "--store", "new"
    )


def test_a_map_that_does_not_suit_a_backbone_of_the_zoo(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    assert run("zoo", "add", "toy-0", "--store", "store")[0] == 0
    said = refused(run, tmp_path, "fit", "one", "--backbone", "toy-0", "--store", "new")
    assert said == "loopscope: map 'one' is for 10-node graphs; toy-0 walks 6\n"


@pytest.mark.parametrize("command", ["train", "fit"])
def test_a_store_of_a_newer_schema(run: Run, trained: list[Artefact], tmp_path: Path, command: str) -> None:
    path = trained[0].folder / MANIFEST
    body = json.loads(path.read_bytes())
    del body["digest"]
    path.write_bytes(manifest_text({**body, "schema": 2, "something": "new"}))
    asked = ["train", "toy", "--seeds", "7"] if command == "train" else ["fit", "toy-one", "--backbone", "toy-1"]
    said = refused(run, tmp_path, *asked, status=3)
    assert said == f"loopscope: {path} was written by a newer schema 2; this version reads up to 1\n"


def test_a_damaged_backbone_is_told_with_exit_code_3(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    weights = trained[0].folder / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, out, err = run("fit", "toy-one", "--backbone", "toy-0")
    assert (code, out) == (3, "")
    assert err.startswith(f"loopscope: {weights}: expected SHA-256 ")
    assert err.count("\n") == 1
