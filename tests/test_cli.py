"""The command line: tables, JSON, one-line errors with their exit codes, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from loopscope import cli
from loopscope.maps import DiagonalLowRank, save_map
from loopscope.store.store import Store
from tests.commands import loopscope
from tests.stores import flip, put_backbone, put_fit


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_populations_lists_every_fingerprint(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = loopscope(capsys, "populations", "--json")
    rows = {row["name"]: row for row in json.loads(out)["populations"]}
    assert code == 0
    assert rows["confirmation"]["kept"] == 4110
    assert rows["confirmation"]["graphs"] == 512
    assert rows["rings"]["sha256"] == "e43dfe81b718b0f9dfd7133c4da5feef7e9fe0fc604cd0656a908eb78f470531"
    code, out, _ = loopscope(capsys, "populations")
    assert code == 0
    assert "4,110" in out


def test_plan_prices_programs_together(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["F6 J:one F", "F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]"]
    code, out, _ = loopscope(capsys, "plan", *texts, "--json")
    report = json.loads(out)
    assert code == 0
    assert [p["program"] for p in report["programs"]] == texts
    assert report["programs"][0]["points"][-2:] == ["h6 J:one", "h7"]
    # Six shared calls, a steered and an unsteered one, and one patched row.
    assert report["distinct_calls"] == 6 + 2 + 1
    assert 1.0 < report["forwards"] < 1.2
    code, out, _ = loopscope(capsys, "plan", *texts)
    assert code == 0
    assert "9 distinct calls" in out


def test_maps_show(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    save_map(DiagonalLowRank(8, 2, seed=0), here / "J")
    code, out, _ = loopscope(capsys, "maps", "show", "J", "--json")
    assert code == 0
    assert json.loads(out)["family"] == "diagonal-low-rank"
    assert json.loads(out)["distance_from_identity"] == 0
    assert loopscope(capsys, "maps", "show", "J")[0] == 0


def test_backbones_of_the_zoo_are_models_that_programs_are_priced_for(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = Store(here / "zoo")
    put_fit(zoo, put_backbone(zoo, seed=3))
    monkeypatch.setenv("LOOPSCOPE_ZOO", "zoo")
    assert loopscope(capsys, "plan", "F6 F[layer[2].z<-(F6 F)]", "--model", "d8l6-3")[0] == 0
    code, _, err = loopscope(capsys, "plan", "F6", "--model", "d8l6-4")
    assert (code, err.count("\n")) == (2, 1)
    assert "neither a file, a backbone of the zoo nor one of graph-walk, parity, relations (nearest: d8l6-3)" in err
    assert loopscope(capsys, "maps", "show", "one-1@d8l6-3")[0] == 0
    code, _, err = loopscope(capsys, "maps", "show", "one-1@d8l6-4")
    assert (code, "one-1@d8l6-4 is no saved map" in err) == (2, True)


def test_store_commands(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    store = Store(here / "store")
    for rank in (1, 2):
        with store.write("map", {"rank": rank}) as draft:
            draft.tensors("map.safetensors", {"A": torch.zeros(4)})
    for command in ("list", "verify", "gc"):
        assert loopscope(capsys, "store", command)[0] == 0
    code, out, _ = loopscope(capsys, "store", "list", "--json")
    assert code == 0
    assert len(json.loads(out)["artefacts"]) == 2
    victim = next((here / "store").rglob("map.safetensors"))
    victim.write_bytes(victim.read_bytes()[:-1])
    code, out, err = loopscope(capsys, "store", "list", "--json")
    assert (code, err) == (3, "loopscope: 1 of 2 artefacts are damaged\n")
    code, out, err = loopscope(capsys, "store", "verify", "--json")
    assert code == 3
    assert sorted(row["state"] for row in json.loads(out)["artefacts"]) == ["damaged", "ok"]
    assert err == "loopscope: 1 of 2 artefacts are damaged\n"
    code, out, _ = loopscope(capsys, "store", "gc", "--damaged", "--json")
    assert code == 0
    assert len(json.loads(out)["removed"]) == 1
    assert loopscope(capsys, "store", "verify")[0] == 0


def test_zoo_commands(capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(here / "store")
    put_fit(store, put_backbone(store, seed=3))
    orphan = put_backbone(store, seed=4)
    monkeypatch.setenv("LOOPSCOPE_ZOO", "zoo")
    assert loopscope(capsys, "zoo", "list")[0] == 2
    code, out, _ = loopscope(capsys, "zoo", "add", "one-1@d8l6-3", "--json")
    added = json.loads(out)["entries"]
    assert code == 0
    assert [entry["name"] for entry in added] == ["d8l6-3", "one-1@d8l6-3"]
    assert loopscope(capsys, "zoo", "add", orphan.key[:12], "--store", "store", "--zoo", "other")[0] == 0
    code, out, _ = loopscope(capsys, "zoo", "list", "--json")
    assert code == 0
    assert json.loads(out)["entries"] == added
    code, out, _ = loopscope(capsys, "zoo", "list", "--zoo", "other")
    assert code == 0
    assert "d8l6-4" in out
    for arguments in (["--json"], []):
        code, out, err = loopscope(capsys, "zoo", "verify", *arguments)
        assert (code, err) == (0, "")
    # A map needs its backbone, and a damaged weight is noticed.
    flip(here / "zoo" / "backbone" / added[0]["key"] / "weights.safetensors.xz")
    code, out, err = loopscope(capsys, "zoo", "verify", "--json")
    assert code == 3
    assert [(row["name"], row["state"]) for row in json.loads(out)["entries"]] == [
        ("d8l6-3", "damaged"),
        ("one-1@d8l6-3", "damaged"),
    ]
    assert err == f"loopscope: 2 of 2 entries of {here / 'zoo'} cannot be used\n"
    (here / "zoo" / "backbone" / added[0]["key"] / "weights.safetensors.xz").unlink()
    code, out, err = loopscope(capsys, "zoo", "list")
    assert code == 3
    assert "one-1@" in out
    assert err.startswith("loopscope: 1 more cannot be read; `loopscope zoo verify` says why; the first: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["plan", "F6 J one F"], 2, "cannot read 'J'"),
        (["plan", "F6 F[layer[2].patern<-(F6 F)]"], 2, "unknown component 'patern'"),
        (["plan", "F6 F[layer[3].z<-(F6 F)]"], 2, "nearest: layer[2].z"),
        (["plan", "F6 F[layer[2].head[9].z<-(F6 F)]"], 2, "nearest: layer[2].head[3].z"),
        (["plan", "F6 F[layer[2].z<-(F6)]"], 2, "loop 7 does not exist"),
        (["plan", "F6", "--row", "35"], 2, "row 35 does not exist"),
        (["plan", "F6", "--read", "h7"], 2, "has no point 'h7'"),
        (["plan", "F6", "--tokens", "36"], 2, "--tokens 36 does not fit"),
        (["plan", "F6", "--model", "graphwalk"], 2, "nearest: graph-walk"),
        (["plan", "F6", "--model", "heads.json"], 2, "5 heads do not divide width 256 (nearest: 4 heads)"),
        (["plan", "F6", "--model", "typo.json"], 2, "unknown model setting 'haeds' (nearest: heads)"),
        (["plan", "F6", "--model", "list.json"], 2, "must hold one JSON object"),
        (["plan", "F6", "--model", "garbage.json"], 2, "is not JSON"),
        (["plan"], 2, "Missing argument"),
        (["plan", "F6", "--mdel", "x"], 2, "No such option: --mdel"),
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["store", "list", "--store", "nowhere"], 2, "there is no store at nowhere"),
        (["maps", "show", "nowhere"], 2, "nowhere is no saved map"),
        (["zoo", "list", "--zoo", "nowhere"], 2, "there is no zoo at nowhere; name one with --zoo or LOOPSCOPE_ZOO"),
        (["zoo", "verify", "--zoo", "nowhere"], 2, "there is no zoo at nowhere"),
        (["zoo", "add", "d8l6-3", "--store", "nowhere", "--zoo", "zoo"], 2, "there is no store at nowhere"),
        (["zoo", "add", "d8l6-3", "--store", ".", "--zoo", "zoo"], 2, "has no backbone or map 'd8l6-3' among 0"),
        (["zoo", "add"], 2, "Missing argument"),
    ],
)
def test_bad_input_gets_one_line(
    capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str], code: int, says: str
) -> None:
    base = {"vocabulary": 22, "classes": 10, "loops": 6}
    files = {"heads.json": {**base, "heads": 5}, "typo.json": {**base, "haeds": 4}, "list.json": [1]}
    for name, content in files.items():
        (here / name).write_text(json.dumps(content))
    (here / "garbage.json").write_text("{")
    before = sorted(here.rglob("*"))
    found, out, err = loopscope(capsys, *arguments)
    assert found == code
    assert out == ""
    assert err.startswith("loopscope: ")
    assert err.count("\n") == 1
    assert says in err
    assert sorted(here.rglob("*")) == before


def test_the_help_groups_all_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from loopscope.cli.app import PANELS

    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    code, out, _ = loopscope(capsys, "--help")
    heads = [line.strip("╭╮─ ") for line in out.splitlines() if line.startswith("╭")]
    first = [line.split()[1] for line in out.splitlines() if line.startswith("│ ") and line[2].isalpha()]
    assert (code, heads) == (0, ["Options", *PANELS])
    assert first == [name for names in PANELS.values() for name in names]


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert loopscope(capsys, "--version")[:2] == (0, "loopscope 0.1.0\n")
    code, out, err = loopscope(capsys)
    assert "Look at a model" in out + err
    assert code in (0, 2)
    assert "loopscope: " not in err


def test_starting_imports_nothing_heavy() -> None:
    code = "import sys; from loopscope.cli import main; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    version = subprocess.run([sys.executable, "-m", "loopscope.cli", "--version"], capture_output=True, check=True)
    assert version.stdout == b"loopscope 0.1.0\n"


@pytest.mark.parametrize(
    "asked", [lambda: torch.empty(2**58, dtype=torch.uint8), lambda: _raise(torch.OutOfMemoryError("CUDA is full\n"))]
)
def test_memory_that_is_not_there_gets_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: Callable[[], object]
) -> None:
    """What a CPU's allocator refuses, and a GPU's; other errors are bugs and keep their traceback."""
    monkeypatch.setattr(cli.app, "app", lambda standalone_mode: asked())
    code, out, err = loopscope(capsys, "lm")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("loopscope: out of memory, fewer or shorter inputs at a time take less: ")
    monkeypatch.setattr(cli.app, "app", lambda standalone_mode: _raise(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main()


def _raise(error: Exception) -> None:
    raise error
