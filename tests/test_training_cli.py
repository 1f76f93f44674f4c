"""The commands that train: what they print, what they store, and one line for every mistake."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.artefacts import load_backbone, load_fit, name_of
from loopscope.manifest import MANIFEST, manifest_text
from loopscope.store import Artefact, Store
from loopscope.training import jobs, recipes
from loopscope.zoo import VARIABLE
from tests.test_cli import loopscope
from tests.test_training import breaking, digest_of, toy_map, toy_relation_map, toy_relations, toy_walk

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder, with recipes of toy size behind the names of the tiny ones, and without a zoo."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "zoo"))
    toys: list[recipes.Recipe] = [
        replace(toy_walk(updates=4, check_every=2), name="tiny"),
        replace(toy_relations(updates=1, check_every=0), name="relations"),
        replace(toy_relation_map(updates=1, check_every=0), name="relations-curriculum"),
        *(replace(toy_map(name, updates=2, check_every=0), name=f"tiny-{name}") for name in ("one", "two")),
    ]
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
    code, out, err = loopscope(capsys, "recipes")
    assert (code, err) == (0, "")
    assert "matched-stepwise" in out
    assert "20,000" in out


# ---- train -----------------------------------------------------------------------------------------------------------


def test_train_reports_every_seed(run: Run, tmp_path: Path) -> None:
    code, out, err = run("train", "tiny", "--seeds", "3,0", "--device", "cpu", "--json")
    assert (code, err) == (0, "")
    report, store = json.loads(out), Store(tmp_path / "store")
    assert report["device"] == "cpu"
    assert report["seconds"] > 0
    assert [(each["seed"], each["name"]) for each in report["members"]] == [(3, "tiny-3"), (0, "tiny-0")]
    for each in report["members"]:
        artefact = store.open("backbone", each["key"])
        assert name_of(artefact) == each["name"]
        assert set(each["digests"]) == {"start", "final", "selected", "data"}
        assert each["digests"] == digests_in(store, "backbone", each["key"])
        assert each["selected_update"] in (2, 4)
        assert len(each["score"]) == 1
        assert len(load_backbone(artefact).state_dict()) > 0
    assert len({each["digests"]["final"] for each in report["members"]}) == 2
    lines = [json.loads(line) for line in (tmp_path / report["metrics"] / "tiny-3-0.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["update"]) for line in lines] == [(3, 2), (0, 2), (3, 4), (0, 4)]
    # Again: nothing is trained, and the report is the same.
    assert members(run("train", "tiny", "--seeds", "0,3", "--json")) == report["members"][::-1]
    code, out, err = run("train", "tiny", "--seeds", "3")
    assert (code, err) == (0, "")
    assert report["members"][0]["key"][:16] in out
    assert report["members"][0]["digests"]["final"][:12] in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_a_store_elsewhere(run: Run, tmp_path: Path) -> None:
    (done,) = members(run("train", "tiny", "--seeds", "1", "--store", "deep/other store", "--json"))
    assert Store(tmp_path / "deep" / "other store").open("backbone", done["key"])
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("text", "seeds"), [("3-5", [3, 4, 5]), ("0,4,2", [0, 4, 2]), (" 7 , 2 - 3,2", [7, 2, 3]), ("1-1", [1])]
)
def test_lists_of_seeds(run: Run, text: str, seeds: list[int]) -> None:
    assert [each["seed"] for each in members(run("train", "tiny", "--seeds", text, "--json"))] == seeds


def test_a_seed_that_breaks_ends_with_exit_code_1(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jobs.BACKBONES, "graph-walk", breaking({1: 3}, math.nan))
    code, out, err = run("train", "tiny", "--seeds", "0-2", "--json")
    assert (code, out) == (1, "")
    assert err == (
        "loopscope: tiny-1 stopped before update 3 of train (stream tiny/1): the loss is nan; "
        "its last good parameters are in the last checkpoint\n"
    )
    assert sorted(map(name_of, Store(tmp_path / "store").all("backbone"))) == ["tiny-0", "tiny-2"]
    assert [each["seed"] for each in members(run("train", "tiny", "--seeds", "0,2", "--json"))] == [0, 2]


def test_no_space_ends_with_exit_code_1(run: Run, tmp_path: Path) -> None:
    metrics = tmp_path / "store" / "metrics"
    metrics.mkdir(parents=True)
    (metrics / "tiny-0.jsonl").symlink_to("/dev/full")
    code, out, err = run("train", "tiny", "--seeds", "0", "--json")
    assert (code, out) == (1, "")
    assert err == "loopscope: cannot write store/metrics/tiny-0.jsonl: No space left on device\n"
    (metrics / "tiny-0.jsonl").unlink()
    assert len(members(run("train", "tiny", "--seeds", "0", "--json"))) == 1


# ---- fit -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(run: Run, tmp_path: Path) -> list[Artefact]:
    """Two backbones in the store."""
    store = Store(tmp_path / "store")
    return [store.open("backbone", each["key"]) for each in members(run("train", "tiny", "--seeds", "0,1", "--json"))]


def test_fit_several_targets_side_by_side(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    done = members(run("fit", "tiny-one", "tiny-two", "--backbone", "tiny-1", "--fits", "1,2", "--json"))
    store = Store(tmp_path / "store")
    assert [each["name"] for each in done] == [
        "tiny-one-1@tiny-1", "tiny-one-2@tiny-1", "tiny-two-1@tiny-1", "tiny-two-2@tiny-1"
    ]  # fmt: skip
    assert [each["seed"] for each in done] == [1, 2, 1, 2]
    for each in done:
        artefact = store.open("map", each["key"])
        assert artefact.manifest.inputs == {"backbone": trained[1].key}
        assert artefact.json("result.json")["side_by_side"] == 4
        assert digest_of(load_fit(artefact).state_dict()) == each["digests"]["selected"]
    code, out, err = run("fit", "tiny-one", "--backbone", "tiny-1")
    assert (code, err) == (0, "")
    assert done[0]["key"][:16] in out


@pytest.mark.parametrize("how", ["two options", "one option", "keys"])
def test_fit_several_backbones(run: Run, trained: list[Artefact], how: str) -> None:
    options = {
        "two options": ["--backbone", "tiny-0", "--backbone", "tiny-1"],
        "one option": ["--backbone", "tiny-0", "tiny-1"],
        "keys": ["--backbone", trained[0].key[:10], trained[1].key],
    }[how]
    done = members(run("fit", "tiny-two", *options, "--json"))
    assert [each["name"] for each in done] == ["tiny-two-1@tiny-0", "tiny-two-1@tiny-1"]


def test_a_backbone_of_the_zoo_is_brought_into_the_store(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    assert run("zoo", "add", "tiny-0", "--store", "store")[0] == 0
    done = members(run("fit", "tiny-one", "--backbone", "tiny-0", "--store", "new", "--json"))
    new = Store(tmp_path / "new")
    assert [each.key for each in new.all("backbone")] == [trained[0].key]
    assert [each.key for each in new.all("map")] == [done[0]["key"]]


@pytest.mark.parametrize("map_name", ["tiny-one", "relations-curriculum"])
def test_what_is_asked_for_twice_is_done_once(run: Run, map_name: str) -> None:
    backbone = "tiny" if map_name == "tiny-one" else "relations"
    assert len(members(run("train", backbone, "--seeds", "0", "--json"))) == 1
    done = members(run("fit", map_name, map_name, "--backbone", f"{backbone}-0", f"{backbone}-0", "--json"))
    assert [each["name"] for each in done] == [f"{map_name}-1@{backbone}-0"]


# ---- mistakes --------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything below a folder, with size and time of change."""
    stats = {str(path): path.lstat() for path in folder.rglob("*")}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def refused(run: Run, folder: Path, *arguments: str) -> str:
    """The line for a request that does not fit; nothing is written."""
    before = contents(folder)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("loopscope: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert contents(folder) == before
    return err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "tinny", "--seeds", "0"], "no recipe 'tinny'; there are d8l6, "),
        (["train", "tinny", "--seeds", "0"], "(nearest: tiny)"),
        (["train", "one", "--seeds", "0"], "'one' fits maps; `loopscope fit one --backbone KEY` does that"),
        (["train", "tiny"], "Missing option '--seeds'"),
        (["train", "--seeds", "0"], "Missing argument"),
        (["train", "tiny", "--seeds", "0", "--device", "gpu"], "no device 'gpu'; there are auto, cpu, cuda"),
        (["train", "tiny", "--seeds", "0", "--store", "a-file"], "a-file is no folder, so no store"),
        (["train", "tiny", "--seeds", "0", "--save-every", "soon"], "Invalid value for '--save-every'"),
        (["fit", "tiny", "--backbone", "tiny-0"], "'tiny' trains backbones; `loopscope train tiny --seeds 0` does that"),
        (["fit", "onne", "--backbone", "tiny-0"], "no recipe 'onne'"),
        (["fit", "tiny-one"], "Missing option '--backbone'"),
        (["fit", "tiny-one", "--backbone", "tiny-0"], "no backbone 'tiny-0' in"),
        (["fit", "tiny-one", "--backbone", "abcdef"], "or the zoo; there are none"),
        (["fit", "tiny-one", "--backbone", "tiny-0", "--fits", "x"], "--fits 'x' is no list of numbers"),
        (["fit", "tiny-one", "--backbone", "tiny-0", "--device", "tpu"], "no device 'tpu'"),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit(run: Run, tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "a-file").touch()
    assert says in refused(run, tmp_path, *arguments)


@pytest.mark.parametrize(
    "text", ["", ",", "a", "5-3", "-1", "1-", "1,,2", "0-1000", "1.5", "1 2", "12345678901", "1-2-3", "all"]
)
def test_lists_of_seeds_that_are_none(run: Run, tmp_path: Path, text: str) -> None:
    said = refused(run, tmp_path, "train", "tiny", f"--seeds={text}")
    assert said == f"loopscope: --seeds {text!r} is no list of numbers such as 3-13 or 0,4,7\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so asking for it is no mistake")
def test_a_gpu_that_is_not_there(run: Run, tmp_path: Path) -> None:
    assert "no CUDA device is there" in refused(run, tmp_path, "train", "tiny", "--seeds", "0", "--device", "cuda")


def test_backbones_that_do_not_fit(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    said = refused(run, tmp_path, "fit", "tiny-one", "--backbone", "tiny-2")
    assert said.startswith(f"loopscope: no backbone 'tiny-2' in {tmp_path / 'store'} or the zoo; there are tiny-")
    said = refused(run, tmp_path, "fit", "one", "--backbone", "tiny-0")
    assert said == "loopscope: map 'one' is for 10-node graphs; tiny-0 walks 6\n"
    said = refused(run, tmp_path, "fit", "parity-staged", "--backbone", "tiny-0")
    assert said == "loopscope: map 'parity-staged' is for parity backbones; tiny-0 is for graph-walk\n"
    said = refused(run, tmp_path, "fit", "tiny-one", "one", "--backbone", "tiny-0")
    assert said == "loopscope: maps 'tiny-one' and 'one' cannot be fitted side by side; fit them in turn\n"


def test_of_several_backbones_one_is_missing(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    said = refused(run, tmp_path, "fit", "tiny-one", "--backbone", "tiny-0", "tiny-9")
    assert "no backbone 'tiny-9'" in said
    # Nor is the other one brought from the zoo.
    assert run("zoo", "add", "tiny-0", "--store", "store")[0] == 0
    assert "no backbone 'tiny-9'" in refused(
        run, tmp_path, "fit", "tiny-one", "--backbone", "tiny-0", "tiny-9", "--store", "new"
    )


def test_a_map_that_does_not_suit_a_backbone_of_the_zoo(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    assert run("zoo", "add", "tiny-0", "--store", "store")[0] == 0
    said = refused(run, tmp_path, "fit", "one", "--backbone", "tiny-0", "--store", "new")
    assert said == "loopscope: map 'one' is for 10-node graphs; tiny-0 walks 6\n"


@pytest.mark.parametrize("command", ["train", "fit"])
def test_a_store_of_a_newer_schema(run: Run, trained: list[Artefact], tmp_path: Path, command: str) -> None:
    path = trained[0].folder / MANIFEST
    body = json.loads(path.read_bytes())
    del body["digest"]
    path.write_bytes(manifest_text({**body, "schema": 2, "something": "new"}))
    asked = ["train", "tiny", "--seeds", "7"] if command == "train" else ["fit", "tiny-one", "--backbone", "tiny-1"]
    said = refused(run, tmp_path, *asked)
    assert said == f"loopscope: {path} was written by a newer schema 2; this version reads up to 1\n"


def test_a_damaged_backbone_is_told_with_exit_code_3(run: Run, trained: list[Artefact], tmp_path: Path) -> None:
    weights = trained[0].folder / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, out, err = run("fit", "tiny-one", "--backbone", "tiny-0")
    assert (code, out) == (3, "")
    assert err.startswith(f"loopscope: {weights}: expected SHA-256 ")
    assert err.count("\n") == 1
