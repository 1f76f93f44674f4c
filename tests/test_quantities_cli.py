"""`loopscope quantities`: everything measured as one long table, printed or written."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path

import pytest

from loopscope.cli.quantities import _print
from loopscope.quantity import Quantity
from loopscope.stats import Estimate
from loopscope.store.store import Store
from loopscope.studies import measured
from loopscope.studies.evidence import Evidence
from loopscope.studies.registry import EXPERIMENTS
from tests.commands import loopscope
from tests.planted.graph_walk import MAIN, native, target, written

PLANTED = (
    Quantity(
        "targets.share", "with J_one", Estimate(0.998, 0.9961, 0.9993, 512, "graph", 10_000), 4110, 0.996,
        {"map": "one", "loop": 7},
    ),
    Quantity("targets.share", "nothing counts", Estimate(math.nan, math.nan, math.nan, 0, "graph", 0), 0),
)  # fmt: skip


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of two experiments, one of which has two quantities."""
    monkeypatch.chdir(tmp_path)
    written(Store(tmp_path / "results"), [native(MAIN, 0, 1, 3, 4, 6, 7, 8), target(MAIN)])
    monkeypatch.setattr(
        Evidence, "quantities", lambda self, record: [*PLANTED] if record.experiment == "targets" else []
    )
    return tmp_path / "results"


ROW = {
    "study": "graph_walk", "experiment": "targets", "model": MAIN, "id": "targets.share", "at": "map=one loop=7",
    "coordinates": '{"map": "one", "loop": 7}', "label": "with J_one", "value": 0.998, "low": 0.9961, "high": 0.9993,
    "n": 4110, "unit": "graph", "published": 0.996, "protocol": "published",
}  # fmt: skip


def test_every_experiment_has_a_study() -> None:
    assert {measured.study_of(each) for each in EXPERIMENTS} == {
        "failures", "graph_walk", "parity", "relations", "selecting"
    }  # fmt: skip


def test_quantities_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    code, out, err = loopscope(capsys, "quantities", "--results", "results", "--json")
    assert (code, err) == (0, "")
    first, second = json.loads(out)["quantities"]
    assert first == ROW
    assert tuple(first) == measured.COLUMNS
    assert (second["value"], second["low"], second["published"], second["at"]) == (None, None, None, "")
    code, out, _ = loopscope(capsys, "quantities", "graph_walk", "--results", "results")
    assert code == 0
    for told in ("map=one loop=7", "0.998 [0.9961, 0.9993]", "4,110", "2 quantities"):
        assert told in out
    assert out.count(f"graph_walk: targets, {MAIN}") == 1
    assert loopscope(capsys, "quantities", "letters", "--results", "results")[:2] == (0, "0 quantities\n")
    with_store = ("quantities", "--results", "results", "--store", "results", "--json")
    assert json.loads(loopscope(capsys, *with_store)[1])["quantities"][0] == ROW


def test_what_all_rows_have_stands_in_the_title(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    about = {"study": "graph_walk", "experiment": "targets", "model": MAIN, "id": "matched.elsewhere.copied"}
    numbers = {"value": 0.1234, "low": 0.123, "high": 0.124, "n": 123_456, "published": 0.12, "label": ""}
    places = [{"map": "one", "condition": f"the answer before the {call}th call", "call": call} for call in range(30)]
    _print([{**about, **numbers, "coordinates": json.dumps(at)} for at in places])
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [f"graph_walk: targets, {MAIN}", "matched.elsewhere.copied map=one"]
    assert max(map(len, said)) <= 80
    assert sum("0.1234 [0.123, 0.124]  123,456       0.12" in line for line in said) == 30
    assert "map=one" not in "".join(said[2:])


def test_quantities_as_csv(capsys: pytest.CaptureFixture[str], results: Path, tmp_path: Path) -> None:
    asked = ("quantities", "--results", "results", "--out", "x.csv")
    assert loopscope(capsys, *asked) == (0, "x.csv: 2 quantities\n", "")
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert first == {name: str(value) for name, value in ROW.items()}
    assert (second["value"], second["n"]) == ("", "0")
    code, out, err = loopscope(capsys, *asked)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_quantities_as_parquet(capsys: pytest.CaptureFixture[str], results: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    asked = ("quantities", "--results", "results", "--out", "x.parquet")
    assert loopscope(capsys, *asked) == (0, "x.parquet: 2 quantities\n", "")
    first, second = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert first == ROW
    assert (second["value"], second["published"], second["n"]) == (None, None, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["leters"], "no study 'leters'; there are graph_walk, parity, relations, letters, antonyms, iterations"),
        (["--out", "x.txt"], "quantities are written as .csv, .parquet or .safetensors, not to x.txt"),
        (["--out", "none/x.csv"], "there is no folder"),
        (["--out", "x.csv", "--json"], "--out and --json are two ways"),
        (["--out", "x.parquet"], "a .parquet file needs the package pyarrow: pip install 'loopscope[tables]'"),
        (["--store", "none"], "there is no store at none"),
    ],
)
def test_mistakes_get_one_line(
    capsys: pytest.CaptureFixture[str], results: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, out, err = loopscope(capsys, "quantities", "--results", "results", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert [each.name for each in results.parent.iterdir()] == ["results"]
