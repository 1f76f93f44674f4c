"""Tables of what instruments find, and the estimates in them."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from loopscope.errors import InputError
from loopscope.estimates import Estimates, means
from loopscope.stats import cluster_bootstrap, mean_bootstrap, tally, wilson
from loopscope.table import Table


def found() -> Table:
    return Table(
        "steps",
        {
            "loop": [1, 1, 2, 2],
            "layer": torch.tensor([1, 2, 1, 2]),
            "norm": means(np.array([[1.0, 2, 3, np.nan], [3, 4, 5, np.nan]]), draws=50),
            "kind": ["cycle", None, "drift", "cycle"],
            "same": np.array([True, False, True, True]),
        },
        {"program": "F2"},
    )


def test_a_share_of_none_or_all_is_not_certain() -> None:
    """Wilson's interval over examples, or over clusters where they are given; else as without `share`."""
    values = np.array([[0, 1, 1, np.nan, 1]] * 3 + [[0, 1, 0, np.nan, np.nan]] * 3, dtype=float)
    plain, shares = means(values), means(values, share=True)
    assert (plain.low[:2] == plain.high[:2]).all()
    for at, hits in ((0, 0), (1, 6)):
        expected = wilson(hits, 6)
        assert (shares.low[at], shares.high[at]) == (expected.low, expected.high)
    assert (shares.low[2], shares.high[2]) == (plain.low[2], plain.high[2])
    assert np.isnan(shares.low[3])
    assert (shares.low[4], shares.high[4]) == (wilson(3, 3).low, 1)
    together = means(values, clusters=[0, 0, 1, 1, 2, 2], share=True)
    assert (together.low[0], together.high[0]) == (0, wilson(0, 3).high)
    assert together.high[4] - together.low[4] > shares.high[4] - shares.low[4]  # two clusters have a value
    assert np.isnan(means(values, clusters=[0] * 6, share=True).low).all()


def test_columns_have_types_and_rows_plain_values() -> None:
    table = found()
    assert table.names == ("loop", "layer", "norm", "norm_low", "norm_high", "kind", "same")
    assert [table[name].dtype.kind for name in table.names] == [*"iifffOb"]
    assert table.estimated == ("norm",)
    assert len(table) == 4
    first = next(iter(table))
    assert first == {"loop": 1, "layer": 1, "norm": 2, "norm_low": 1, "norm_high": 3, "kind": "cycle", "same": True}
    assert [type(each) for each in first.values()] == [int, int, float, float, float, str, bool]
    assert [row["layer"] for row in table.where(kind=None)] == [2]
    lacking = Table("places", {"head": [0, None, 1], "name": ["a", None, None]})
    assert lacking.where(head=None)["name"].tolist() == lacking.where(head=float("nan"))["name"].tolist() == [None]
    assert len(lacking.where(name=None, head=1)) == 1
    some = table.where(loop=2, kind="cycle")
    assert (len(some), some["layer"].tolist(), some.about) == (1, [2], {"program": "F2"})


def test_a_grid_puts_values_at_their_places() -> None:
    table = found()
    values, (loops, layers) = table.grid("norm", "loop", "layer")
    assert (loops, layers) == ([1, 2], [1, 2])
    np.testing.assert_array_equal(values, [[2, 3], [4, np.nan]])
    kinds, _ = table.where(loop=1).grid("kind", "layer")
    assert kinds.tolist() == ["cycle", None]
    with pytest.raises(InputError, match="several rows of steps have the same loop"):
        table.grid("norm", "loop")


def test_a_table_prints_in_a_line_and_as_text_and_html() -> None:
    table = found()
    assert repr(table) == "<steps: 4 rows; loop 2, layer 2, kind 3; norm, same>"
    assert str(table).splitlines()[1].split() == ["loop", "layer", "norm", "kind", "same"]
    assert "2 [1, 3]" in str(table)
    assert "<td>2 [1, 3]</td>" in table._repr_html_()
    assert "&lt;b&gt;" in Table("x", {"text": ["<b>"]})._repr_html_()
    long = Table("long", {"n": range(10_000)})
    assert repr(long) == "<long: 10,000 rows; n 10,000>"
    assert str(long).endswith("... 9,988 more")
    assert len(long._repr_html_()) < 1_000


def test_frames_hold_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = found().to_frame()
    assert [*frame.columns] == [*found().names]
    assert frame.loc[2, "norm"] == 4
    with pytest.raises(InputError, match=r"pandas or polars, not panda \(nearest: pandas\)"):
        found().to_frame("panda")
    for library, install in (("pandas", "'loopscope\\[tables\\]'"), ("polars", "polars")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(InputError, match=f"a data frame needs the package {library}: pip install {install}$"):
            found().to_frame(library)


def test_files_hold_the_columns(tmp_path: Path) -> None:
    from pyarrow import parquet

    table = found()
    for ending in ("csv", "parquet", "safetensors"):
        table.save(tmp_path / f"x.{ending}")
    rows = [*csv.DictReader((tmp_path / "x.csv").read_text().splitlines())]
    assert (rows[0]["norm"], rows[1]["kind"], rows[3]["norm"]) == ("2.0", "", "")
    read = parquet.read_table(tmp_path / "x.parquet")
    assert [str(each) for each in read.schema.types] == [*["int64"] * 2, *["double"] * 3, "string", "bool"]
    assert [row["kind"] for row in read.to_pylist()] == ["cycle", None, "drift", "cycle"]
    assert json.loads(read.schema.metadata[b"loopscope"]) == {"kind": "steps", "about": {"program": "F2"}}
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["loopscope"])
        assert facts["columns"] == [*table.names]
        kinds = [facts["texts"]["kind"][at] if at >= 0 else None for at in file.get_tensor("kind").tolist()]
        assert kinds == table["kind"].tolist()
        np.testing.assert_array_equal(file.get_tensor("norm_low").numpy(), table["norm_low"])


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'nrom' in steps: .* \(nearest: norm\)"):
        found()["nrom"]
    with pytest.raises(InputError, match=r"one length, not a \[2\], b \[3\]"):
        Table("x", {"a": [1, 2], "b": [1, 2, 3]})
    with pytest.raises(InputError, match="column 'a' holds neither numbers nor texts"):
        Table("x", {"a": [1, "b"]})
    with pytest.raises(InputError, match=r"steps are written as .csv, .parquet or .safetensors, not to x.txt"):
        found().save(tmp_path / "x.txt")
    (tmp_path / "x.csv").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        found().save(tmp_path / "x.csv")
    assert [each.name for each in tmp_path.iterdir()] == ["x.csv"]


def test_means_agree_with_the_bootstraps_of_one_number() -> None:
    values = np.random.default_rng(0).normal(size=(30, 2, 3))
    made = means(values, seed=4, draws=200)
    one = mean_bootstrap(values[:, 1, 2], seed=4, draws=200)
    assert (made.value[1, 2], made.low[1, 2]) == pytest.approx((one.value, one.low), rel=1e-5)
    right = (values[:, 0, 0] > 0).astype(float)
    clusters = np.arange(30) // 3
    eligible = values[:, 1, 0] > -0.5
    made = means(np.where(eligible, right, np.nan), clusters=clusters, seed=4, draws=200)
    other = cluster_bootstrap(tally(right, clusters, eligible), seed=4, draws=200)
    assert (float(made.value), float(made.low), float(made.high)) == pytest.approx((other.value, other.low, other.high))
    assert int(made.n) == eligible.sum()


def test_one_cluster_has_a_mean_and_no_interval() -> None:
    made = means(np.array([[1.0, np.nan], [3.0, np.nan]]), clusters=["a", "a"])
    assert made.value[0] == 2
    assert np.isnan(made.value[1])
    assert made.n.tolist() == [2, 0]
    assert np.isnan([made.low, made.high]).all()


@pytest.mark.parametrize(
    ("values", "clusters", "line"),
    [
        ([], None, r"taken over examples: got values of shape \[0\]"),
        ([1.0, np.inf], None, "1 values to be averaged are infinite"),
        ([1.0, 2.0], [1], "2 examples need as many cluster ids"),
    ],
)
def test_what_cannot_be_averaged_is_told(values: list[float], clusters: list[int] | None, line: str) -> None:
    with pytest.raises(InputError, match=line):
        means(values, clusters=clusters)


def test_an_estimate_of_many_axes_is_flattened_by_the_caller() -> None:
    made = means(np.ones((4, 2, 3)), draws=10)
    assert len(Table("x", {"v": made.flat()})) == 6
    assert isinstance(made, Estimates)
    with pytest.raises(InputError, match="one axis"):
        Table("x", {"v": made})
