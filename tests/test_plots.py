"""Pictures of tables: what is drawn, in which colours, and what has no drawing."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import loopscope
from loopscope import Dense, grid, run, sweep
from loopscope.errors import InputError
from loopscope.measure import exiting, jacobian, lens, motion, starts
from loopscope.measure.attending import patterns
from loopscope.measure.patching import compare
from loopscope.measure.readouts import read_loops
from loopscope.plot import DRAWINGS, UNDRAWN, draw
from loopscope.plot.canvas import DARK, LIGHT, Canvas, rc_context
from loopscope.plot.look import scale_of
from loopscope.plot.words import rounded, short, visible
from loopscope.program import Program
from loopscope.table import Table
from tests.ouro_tiny import golden, tiny_ouro
from tests.tiny import tiny_model, tiny_tokens

PACKAGE = Path(loopscope.__file__).parent
BRIEF = {"draws": 5}


def kinds_made() -> dict[str, str]:
    """The kinds of tables that the library makes, and a module that does."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "loopscope.table import" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Table":
                (kind, *_) = node.args or [None]
                if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                    found[kind.value] = str(file.relative_to(PACKAGE))
    return found


def test_every_kind_of_table_has_a_drawing_or_a_line_that_says_why_not() -> None:
    made = kinds_made()
    assert {"sweep", "readouts", "trajectories", "quantities", "work"} <= made.keys()
    assert made.keys() <= DRAWINGS.keys() | UNDRAWN.keys()
    assert not DRAWINGS.keys() & UNDRAWN.keys()
    for place in DRAWINGS.values():
        module, function = place.split(":")
        assert callable(getattr(importlib.import_module(f"loopscope.plot.{module}"), function))


def test_what_is_not_drawn_says_so() -> None:
    said = "there is no drawing of work: three counts; print the table; there are drawings of ablations, "
    with pytest.raises(InputError, match=said):
        Table("work", {"calls": [1]}).plot()
    with pytest.raises(InputError, match=r"no drawing of sweeps \(nearest: sweep\); there are"):
        Table("sweeps", {"calls": [1]}).plot()
    with pytest.raises(InputError, match="there is nothing to draw: these sweep have no rows"):
        Table("sweep", {"loop": []}).plot()
    table = places({"loop": [1, 2]})
    with pytest.raises(
        InputError, match=r"are drawn with dark, width, title, value, x, y, not with valu \(nearest: val"
    ):
        table.plot(valu="x")
    with pytest.raises(InputError, match=r"no column 'valu' in sweep: .* \(nearest: value\)"):
        table.plot(value="valu")


def test_without_matplotlib_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("loopscope.plot.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"drawing figures needs matplotlib: pip install 'loopscope\[plot\]'"):
        places({"loop": [1, 2]}).plot()


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def places(where: dict[str, list[Any]], value: Callable[[int], float] = lambda at: 0.1 * at, **about: Any) -> Table:
    """A sweep over all combinations of some places."""
    axes = np.meshgrid(*(np.arange(len(each)) for each in where.values()), indexing="ij")
    columns = {name: [each[i] for i in axis.flat] for (name, each), axis in zip(where.items(), axes, strict=True)}
    values = np.array([value(at) for at in range(axes[0].size)])
    ends = {"value_low": values - 0.1, "value_high": values + 0.1}
    return Table("sweep", {**columns, "value": values, **ends}, about)


def meshes(drawn: Canvas) -> list[np.ndarray]:
    """The arrays of all maps, rows upwards, the bar of colours last."""
    return [
        np.ma.filled(each.get_array().astype(float), np.nan)
        for axes in drawn.axes
        for each in axes.collections
        if type(each).__name__ == "QuadMesh"
    ]


def texts(drawn: Canvas) -> list[str]:
    """What stands inside axes."""
    return [each.get_text() for axes in drawn.axes for each in axes.texts]


def titles(drawn: Canvas) -> list[str]:
    return [axes.get_title("left") for axes in drawn.axes]


def ticks(drawn: Canvas, at: int = 0) -> tuple[list[str], list[str]]:
    """The labels of an axes: across and upwards."""
    axes = drawn.axes[at]
    return [each.get_text() for each in axes.get_xticklabels()], [each.get_text() for each in axes.get_yticklabels()]


def heading(drawn: Canvas) -> str:
    return drawn.get_suptitle()


def test_a_sweep_is_a_map_for_every_loop_of_layers_and_heads() -> None:
    table = places(
        {"loop": [2, 1], "layer": [1, 2], "head": [0, 1, 2]}, program="F2", source="(F)@o", metric="recovered"
    )
    drawn = table.plot()
    one, two, bar = meshes(drawn)
    np.testing.assert_allclose(one, table.where(loop=1).grid("value", "layer", "head")[0])
    np.testing.assert_allclose(two, [[0.0, 0.1, 0.2], [0.3, 0.4, 0.5]])
    assert titles(drawn)[:2] == ["loop 1", "loop 2"]
    assert heading(drawn) == "Share recovered: F2, from (F)@o"
    assert ticks(drawn, 0) == (["0", "1", "2"], ["1", "2"])
    assert len(texts(drawn)) == 12
    assert bar.min() > 0  # nothing is below 0: one colour
    assert drawn.axes[-1].get_xlabel() == "share recovered"


def test_numbers_below_zero_have_a_colour_of_their_own() -> None:
    drawn = places({"loop": [1, 2], "layer": [1, 2]}, lambda at: at - 2.0).plot()
    values, bar = meshes(drawn)
    assert values.tolist() == [[-2.0, 0.0], [-1.0, 1.0]]  # layers upwards, loops across
    assert bar.min() < 0 < bar.max()
    assert texts(drawn) == ["\N{MINUS SIGN}2.00", "0.00", "\N{MINUS SIGN}1.00", "1.00"]
    cells = next(each for each in drawn.axes[0].collections if type(each).__name__ == "QuadMesh")
    assert cells.cmap.name == "both"
    assert cells.get_clim() == (-2.0, 2.0)


def test_one_axis_alone_is_a_line_with_its_interval() -> None:
    drawn = places({"loop": [1, 2, 3], "layer": [2]}).plot()
    (axes,) = drawn.axes
    assert axes.lines[0].get_xydata().tolist() == [[1, 0], [2, 0.1], [3, 0.2]]
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(-0.1)
    heads = places({"head": [0, 1, 2]}).plot()
    assert heads.axes[0].lines[0].get_linestyle() == "None"  # heads are in no order


def test_large_sweeps_have_few_labels_and_no_numbers() -> None:
    drawn = places({"loop": [*range(1, 65)], "layer": [*range(1, 49)]}).plot()
    across, upwards = ticks(drawn)
    assert 8 <= len(across) <= 33
    assert 8 <= len(upwards) <= 25
    assert not texts(drawn)
    many = places({"loop": [1, 2], "layer": [1, 2], "head": [0, 1], "component": ["q", "k"], "row": [*range(25)]})
    with pytest.raises(InputError, match=r"100 panels, one for each component and row and loop, are more than 96"):
        many.plot(x="head", y="layer")
    with pytest.raises(InputError, match="several rows of sweep have one place"):
        draw(Table("sweep", {"loop": [1, 1, 2], "layer": [1, 1, 2], "value": [0.0, 1, 2]}))


def test_ablations_of_calls_stand_beside_those_of_places() -> None:
    where = {"loop": [1, 2], "layer": [1, 2], "component": ["z"], "head": [0, 1]}
    inside, ends = places(where), {"value_low": [0.0] * 12, "value_high": [0.0] * 12}
    columns: dict[str, Any] = {name: [*inside[name].tolist(), *[None] * 4] for name in ("layer", "component", "head")}
    columns["kind"] = ["zero"] * 8 + ["skipped"] * 2 + ["repeated"] * 2
    columns["loop"] = [*inside["loop"].tolist(), 1, 2, 1, 2]
    columns |= {"change": [*inside["value"].tolist(), 1.0, 2.0, 3.0, 4.0], "value": [0.0] * 12, **ends}
    drawn = draw(Table("ablations", columns, {"metric": "kl", "program": "F2"}))
    one, two, calls, _ = meshes(drawn)
    assert (one.shape, two.shape) == ((2, 2), (2, 2))
    assert calls.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert ticks(drawn, 2) == (["1", "2"], ["skipped", "repeated"])
    assert titles(drawn)[:3] == ["zero, z, loop 1", "zero, z, loop 2", ""]
    assert heading(drawn) == "KL, nats, change: F2"


def test_spans_are_triangles() -> None:
    cells = [(place, first, last) for place in ("layer[1].z", "layer[2].z") for first in (1, 2, 3) for last in (2, 3)
             if first <= last]  # fmt: skip
    columns = dict(zip(("place", "first", "last"), (list(each) for each in zip(*cells, strict=True)), strict=True))
    drawn = draw(Table("spans", {**columns, "value": [0.1 * at for at in range(len(cells))]}, {"metric": "recovered"}))
    one, two, _ = meshes(drawn)
    np.testing.assert_allclose(one, [[0.0, 0.1], [0.2, 0.3], [np.nan, 0.4]])
    np.testing.assert_allclose(two[-1], [np.nan, 0.9])
    assert titles(drawn)[:2] == ["layer[1].z", "layer[2].z"]
    assert (drawn.axes[1].get_xlabel(), drawn.axes[0].get_ylabel()) == ("last loop", "first loop")


def test_attribution_stands_against_the_exact() -> None:
    table = places({"loop": [1, 2], "layer": [1, 2], "component": ["z", "v"]})
    columns: dict[str, Any] = {name: table[name] for name in ("loop", "layer", "component")}
    columns |= {"place": ["x"] * 8, "approximate": table["value"], "exact": 2 * table["value"]}
    drawn = draw(Table("attribution", columns, {"metric": "recovered", "rank correlation": 1.0}))
    points = {line.get_label(): line.get_xydata() for line in drawn.axes[0].lines}
    np.testing.assert_allclose(points["z"][:, 0], 2 * points["z"][:, 1])
    assert len(points["v"]) == 4
    assert heading(drawn) == "Attribution of share recovered, rank correlation 1.00"
    del columns["exact"]
    assert len(meshes(draw(Table("attribution", columns)))) == 3


def test_readouts_are_grids_of_tokens() -> None:
    said = {"text": [" a\n", "$b$", "long and longer", "d"], "read_text": [" x", " x", "y", "y"]}
    where = {"example": [0] * 4, "place": ["state"] * 4, "row": [0, 0, 1, 1], "loop": [1, 2, 1, 2], "rank": [1] * 4}
    table = Table(
        "readouts", {**where, "token": [0] * 4, "probability": [0.1, 0.2, 0.3, 0.9], **said}, {"program": "F2"}
    )
    drawn = table.plot(dark=True)
    values, _ = meshes(drawn)
    np.testing.assert_allclose(values, [[0.1, 0.3], [0.2, 0.9]])  # loops upwards, rows across
    assert texts(drawn) == ["·a\\n", "long·and…", "$b$", "d"]
    assert ticks(drawn) == (["·x", "y"], ["1", "2"])
    inside = drawn.axes[0].texts
    assert (inside[0].get_color(), inside[3].get_color()) == (DARK.ink, DARK.paper)
    assert not inside[2].get_parse_math()
    assert ticks(table.plot(tokens=["one", "two words"]))[0] == ["one", "two·words"]
    with pytest.raises(InputError, match=r"no example 3 in readouts: 0 \(nearest: 0\)"):
        table.plot(example=3)
    with pytest.raises(InputError, match="1 tokens do not name the rows 0, 1"):
        table.plot(tokens=["one"])


def test_long_texts_are_cut_into_bands_and_very_many_rows_have_no_words() -> None:
    def read(rows: int, loops: int) -> Table:
        at = [(row, loop) for row in range(rows) for loop in range(1, loops + 1)]
        return Table("readouts", {
            "example": [0] * len(at), "place": ["state"] * len(at), "row": [each[0] for each in at],
            "loop": [each[1] for each in at], "rank": [1] * len(at), "token": [1234] * len(at),
            "probability": [0.5] * len(at),
        })  # fmt: skip

    drawn = read(40, 2).plot()
    *bands, _ = meshes(drawn)
    assert len(bands) > 1
    assert sum(band.shape[1] for band in bands) == 40
    assert len({band.shape[1] for band in bands[:-1]}) == 1
    (whole, _), many = meshes(read(200, 64).plot()), read(200, 64).plot()
    assert whole.shape == (64, 200)
    assert not texts(many)


def test_patterns_have_tokens_on_both_axes() -> None:
    model, tokens = tiny_model(), tiny_tokens(1)[0]
    table = patterns(model, tokens, "loop[*].layer[1].head[1,3].pattern", "F2")
    assert table["place"][0] == "loop[1].layer[1].head[1,3].pattern"
    np.testing.assert_allclose(table["weight"].reshape(2, 2, len(tokens), len(tokens)).sum(-1), 1.0, rtol=1e-6)
    kept = run(model, tokens[None], "F2", keep="loop[2].layer[1].head[3].row[4].pattern")["F2"].kept
    mine = table.where(place="loop[2].layer[1].head[1,3].pattern", head=3, row=4)
    np.testing.assert_allclose(mine["weight"], next(iter(kept.values())).flatten(), rtol=1e-6)
    drawn = table.where(head=3).plot()
    one, two, _ = meshes(drawn)
    np.testing.assert_allclose(two[4], mine["weight"])
    assert one.shape == (len(tokens), len(tokens))
    assert drawn.axes[0].yaxis_inverted()
    assert ticks(drawn, 1)[0] == [str(token) for token in tokens.tolist()]
    with pytest.raises(
        InputError, match=r"loop\[1\].layer\[1\].z is no pattern \(nearest: loop\[1\].layer\[1\].pattern\)"
    ):
        patterns(model, tokens, "loop[1].layer[1].z", "F2")
    with pytest.raises(
        InputError, match=r"patterns are of one text \[rows\], not of \[1, 7\] \(nearest: tokens\[0\]\)"
    ):
        patterns(model, tokens[None], "loop[1].layer[1].pattern", "F2")


def test_exits_are_lines_by_rule() -> None:
    columns = {"rule": ["kl", "kl", "loops", "loops"], "threshold": [1.0, 0.1, 1, 2]}
    loops, right = [1.2, 1.8, 1.0, 2.0], [0.5, 0.9, 0.4, 1.0]
    ends = {"accuracy_low": right, "accuracy_high": right}
    drawn = draw(Table("exits", {**columns, "loops": loops, "accuracy": right, **ends}))
    one, two = drawn.axes[0].lines
    assert one.get_xydata().tolist() == [[1.2, 0.5], [1.8, 0.9]]
    assert [each.get_text() for each in drawn.legends[0].get_texts()] == ["kl", "no look (loops)"]
    assert two.get_linestyle() != "-"


def test_right_answers_are_dots_with_their_intervals() -> None:
    columns = {"condition": ["with J", "with J", "without"], "program": ["F"] * 3, "steps": [None, "2", None]}
    ends = {"right": [0.5, 0.25, 0.0], "right_low": [0.4, 0.2, 0.0], "right_high": [0.6, 0.3, 0.1]}
    drawn = draw(Table("right", {**columns, **ends}))
    assert texts(drawn) == ["50.0", "25.0", "0.0"]
    assert ticks(drawn)[1] == ["with J", "without"]
    assert [line.get_xdata().tolist() for line in drawn.axes[0].lines[:2]] == [[0.4, 0.6], [0.5]]
    many = Table("quantities", {"id": ["a"] * 90, "value": [0.5] * 90, "low": [0.4] * 90, "high": [0.6] * 90})
    with pytest.raises(InputError, match=r"90 rows of dots are more than 80; choose some with where"):
        many.plot()
    assert texts(Table("quantities", {"id": ["a"], "value": [12.5], "low": [12.0], "high": [13.0]}).plot()) == ["12.5"]


def test_a_search_is_a_row_for_every_step() -> None:
    steps = {"step": ["layers", "layers", "heads"], "rescued": [5, 9, 8], "damaged": [1, 0, 0]}
    drawn = draw(Table("search", {**steps, "passed": [False, True, True]}, {"pairs": 10, "heads": "1.0"}))
    assert ticks(drawn)[1] == ["layers", "heads"]
    drawn_at = sorted(x for line in drawn.axes[0].lines for x in line.get_xdata() if line.get_marker() == "o")
    assert drawn_at == [0.5, 0.8, 0.9]


# ---- tables as instruments make them ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> dict[str, Table]:
    """A table of every kind that a model gives in no time."""
    model, tokens = tiny_model().requires_grad_(False), tiny_tokens(4)
    ouro, text = tiny_ouro(), golden()["input_ids"][:1, :5]
    return {
        "sweep": sweep(model, tokens, "F3", grid("z", loops=[2, 3], layers=[1, 2]), "(F3)@o",
                       others={"o": tokens.flip(0)}).table(draws=5),
        "answers": run(model, tokens, ["F2", "F J:x F"], maps={"x": Dense(16)}, read="calls").table(),
        "next tokens": compare(ouro, text, [Program.parse("F J:x F")], maps={"x": Dense(48)})[1].table(),
        "readouts": read_loops(ouro, text).table(),
        "ranks": lens.answer_ranks(model, tokens, torch.tensor([0, 1, 2, 3]), "F3", **BRIEF),
        "trajectories": motion.trajectories(model, tokens, "F4", layers="all", **BRIEF),
        "similarities": motion.similarities(model, tokens, "F2", **BRIEF),
        "pattern changes": motion.pattern_changes(model, tokens, "F3", **BRIEF),
        "endings": Table("endings", {
            "place": ["state"] * 3, "row": [-1] * 3, "ending": ["fixed point", "cycle", "drift"],
            "period": [np.nan, 2.0, np.nan], "share": [0.5, 0.2, 0.3],
        }, {"program": "F4"}),
        "contraction": jacobian.contraction(model, tokens[:2], "F2", iterations=2, **BRIEF),
        "starts": starts.path_independence(model, tokens, "F2", noise=0.1, **BRIEF),
        "exits": exiting.exits(exiting.record_loops(model, tokens, "F3"), rules=["kl", "loops"], **BRIEF),
    }  # fmt: skip


KINDS = ("sweep", "answers", "next tokens", "readouts", "ranks", "trajectories", "similarities", "pattern changes",
         "endings", "contraction", "starts", "exits")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_instruments_are_drawn(made: dict[str, Table], kind: str) -> None:
    table = made[kind]
    assert table.kind == kind
    drawn = table.plot(dark=KINDS.index(kind) % 2 == 1, width=720 if KINDS.index(kind) % 3 else 328)
    assert heading(drawn)
    numbers = [name for name in table.names if table[name].dtype.kind == "f" and np.isfinite(table[name]).any()]
    there = np.concatenate([
        *(each.ravel() for each in meshes(drawn)),
        *(np.asarray(line.get_ydata(), dtype=float) for axes in drawn.axes for line in axes.lines),
    ])  # fmt: skip
    shown = {"sweep": "changed", "similarities": "cosine", "endings": "share", "pattern changes": "change",
             "ranks": "rank", "exits": "agreement", "starts": "distance", "contraction": "singular",
             "trajectories": "norm"}.get(kind, "probability")  # fmt: skip
    assert shown in numbers
    some = table[shown] if "rank" not in table.names or kind == "ranks" else table.where(rank=1)[shown]
    if "example" in table.names:
        some = table.where(example=0)[shown]
    for value in some[np.isfinite(some)]:
        assert np.isclose(there[np.isfinite(there)], value).any()


def test_trajectories_of_many_places_are_maps() -> None:
    at = [(f"layer[{layer}].resid", loop) for layer in range(1, 9) for loop in range(3)]
    table = Table("trajectories", {
        "place": [each[0] for each in at], "row": [-1] * 24, "loop": [each[1] for each in at],
        "norm": [float(number) for number in range(24)], "step": [np.nan] * 24,
    })  # fmt: skip
    drawn = table.plot()
    values, *_ = meshes(drawn)
    np.testing.assert_array_equal(values, np.arange(24).reshape(8, 3))
    assert ticks(drawn)[1] == [f"layer {layer}" for layer in range(1, 9)]


# ---- colours and words -----------------------------------------------------------------------------------------------


def test_pictures_are_light_or_dark_and_leave_no_settings_behind() -> None:
    table = places({"loop": [1, 2, 3]}, program="F3")
    with rc_context():
        light, dark = table.plot(), table.plot(dark=True)
    assert light.get_facecolor() == pytest.approx((1, 1, 1, 1))
    assert dark.get_facecolor()[:3] == pytest.approx([int(DARK.paper[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    assert light.axes[0].lines[0].get_color() == LIGHT.blue
    assert dark.axes[0].lines[0].get_color() == DARK.blue
    assert dark.axes[0].xaxis.get_ticklabels()[0].get_color() == DARK.faint
    assert light._repr_png_().startswith(b"\x89PNG")
    assert heading(table.plot(title="Mine")) == "Mine"


def test_pictures_belong_to_no_global_state() -> None:
    places({"loop": [1, 2]}).plot()
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_tokens_can_be_seen() -> None:
    assert visible(" the") == "·the"
    assert visible("a\tb\n") == "a\\tb\\n"
    assert visible("") == "''"
    assert visible("é") == "é"
    assert visible("\U000e0001") == "\\U000e0001"  # no font has a tag
    assert visible("abcdef", 4) == "abc…"
    assert [short(each) for each in ("layer[2].resid", "L.layer[1].pattern", "state", 3.0, None)] == [
        "layer 2", "L layer 1", "state", "3", "all",
    ]  # fmt: skip


def test_scales_end_at_round_numbers() -> None:
    assert scale_of([0.1, 0.4], "probability") == (0.0, 1.0)
    assert scale_of([0.0, 0.4], "value") == (0.0, 0.5)
    assert scale_of([-0.4, 1.2], "value") == (-1.5, 1.5)
    assert scale_of([-0.001, 1.2], "value") == (0.0, 1.5)  # rounding is no sign
    assert scale_of([np.nan], "value") == (0.0, 1.0)
    assert scale_of([-7.0], "value") == (-7.5, 7.5)
    assert scale_of([0.0, 1.002], "recovered") == (0.0, 1.0)
    assert [rounded(each) for each in (-0.001, 0.5, 12.34, 123.4)] == ["0.00", "0.50", "12.3", "123"]
