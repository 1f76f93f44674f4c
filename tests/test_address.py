"""Addresses: what they print, what they read, what they mean for a model, and what they say when they do not fit."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from loopscope.address import COMPONENTS, PER_HEAD, Address, Site, grid
from loopscope.errors import InputError

SIZES = {"layers": 2, "heads": 4, "rows": 35}


def suggestion(message: str) -> str:
    """What an error line proposes instead."""
    found = re.search(r"\(nearest: (.+)\)$|such as (\S+)$", message)
    assert found is not None, message
    return found[1] or found[2]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("layer[2].head[0,1].row[-1].pattern", Site(2, "pattern", (0, 1), (-1,))),
        ("layer[1].resid", Site(1, "resid")),
        ("layer[1].row[3,0].mlp_out", Site(1, "mlp_out", None, (3, 0))),
        ("layer[1].head[*].row[*].z", Site(1, "z")),
        ("layer[1].row[ * ].attn_out", Site(1, "attn_out")),
        (" layer[ 1 ].head[0, 2].q ", Site(1, "q", (0, 2))),
        ("\u2028layer[10].v\n", Site(10, "v")),
    ],
)
def test_sites_are_read(text: str, value: Site) -> None:
    assert Site.parse(text) == value
    assert Address.parse(f"loop[7].{text.strip()}") == Address(7, value)


def test_sites_and_addresses_are_written_as_they_are_read() -> None:
    site = Site(2, "pattern", (2,), (-1, 0))
    assert str(site) == "layer[2].head[2].row[-1,0].pattern"
    assert str(Site(1, "k")) == "layer[1].k"
    assert str(Address(7, site)) == "loop[7].layer[2].head[2].row[-1,0].pattern"


def test_addresses_are_values() -> None:
    one, two = Address.parse("loop[3].layer[1].z"), Address(3, Site(1, "z"))
    assert one == two
    assert hash(one) == hash(two)
    assert len({one, two, Address(4, Site(1, "z")), Address(3, Site(1, "v"))}) == 3


def test_components_are_those_of_a_layer_in_order_of_computation() -> None:
    assert COMPONENTS == ("resid", "q", "k", "v", "pattern", "z", "attn_out", "mlp_hidden", "mlp_out")
    assert set(COMPONENTS) - PER_HEAD == {"resid", "attn_out", "mlp_hidden", "mlp_out"}


# Against a model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "heads", "rows"),
    [
        ("layer[1].z", (0, 1, 2, 3), tuple(range(35))),
        ("layer[2].row[-1].resid", None, (34,)),
        ("layer[2].head[3,0].row[-35,34,1].pattern", (3, 0), (0, 34, 1)),
        ("layer[1].head[0].k", (0,), tuple(range(35))),
    ],
)
def test_resolving_writes_out_heads_and_rows(text: str, heads: tuple[int, ...] | None, rows: tuple[int, ...]) -> None:
    site = Site.parse(text)
    assert site.resolve(**SIZES) == Site(site.layer, site.component, heads, rows)


def test_resolving_twice_changes_nothing() -> None:
    once = Site.parse("layer[2].head[1].row[-2].v").resolve(**SIZES)
    assert once.resolve(**SIZES) == once


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("layer[0].z", "layer[1].z"),
        ("layer[-1].z", "layer[1].z"),
        ("layer[3].resid", "layer[2].resid"),
        ("layer[1].head[4].z", "layer[1].head[3].z"),
        ("layer[1].head[-1].z", "layer[1].head[0].z"),
        ("layer[1].head[5,4,0].z", "layer[1].head[3,0].z"),
        ("layer[1].row[35].mlp_out", "layer[1].row[34].mlp_out"),
        ("layer[1].row[-36].mlp_out", "layer[1].row[-35].mlp_out"),
        ("layer[1].row[-40,0,3].mlp_out", "layer[1].row[-35,3].mlp_out"),
        ("layer[9].head[9].row[99,-1].q", "layer[2].head[3].row[34].q"),
    ],
)
def test_a_place_that_does_not_exist(text: str, near: str, refused: Callable[..., str]) -> None:
    message = refused(InputError, lambda: Site.parse(text).resolve(**SIZES))
    assert message.startswith(f"{text} does not exist: layers 1..2, heads 0..3, rows 0..34")
    assert suggestion(message) == near
    Site.parse(near).resolve(**SIZES)


@pytest.mark.parametrize(("text", "near"), [("row[0,-35]", "row[0]"), ("row[3,-1,34,2]", "row[3,-1,2]")])
def test_a_row_named_twice_in_two_ways(text: str, near: str, refused: Callable[..., str]) -> None:
    message = refused(InputError, lambda: Site.parse(f"layer[1].{text}.z").resolve(**SIZES))
    assert message.startswith(f"layer[1].{text}.z names a row twice")
    assert suggestion(message) == f"layer[1].{near}.z"
    Site.parse(suggestion(message)).resolve(**SIZES)


# What cannot be an address -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words", "near"),
    [
        ("layer[1].patern", "unknown component 'patern'; there are resid, q, k, v, pattern", "pattern"),
        ("layer[1].", "unknown component ''", None),
        ("layer[1].head[0].resid", "resid has no heads", "layer[1].resid"),
        ("layer[1].head[0].row[2].mlp_out", "mlp_out has no heads", "layer[1].row[2].mlp_out"),
        ("layer[1].head[0,0].row[1].z", "head[0, 0] must name at least one head", "layer[1].head[0].row[1].z"),
        ("layer[1].row[3,1,3].resid", "row[3, 1, 3] must name at least one row", "layer[1].row[3,1].resid"),
        ("", "address '' must name one layer", None),
        ("z", "address 'z' must name one layer", None),
        ("head[0].z", "must name one layer", None),
        ("layer[1,2].z", "must name one layer", None),
        ("layer[*].z", "must name one layer", None),
        ("layer[].z", "cannot read 'layer[]'", None),
        ("layer[1].head[].z", "cannot read 'head[]'", None),
        (
            "layer[one].z",
            "cannot read 'layer[one]' in address 'layer[one].z'; inside [] stand whole numbers or *",
            None,
        ),
        ("layer[1.5].z", "cannot read 'layer[1.5]'", None),
        ("layer[1_0].z", "cannot read 'layer[1_0]'", None),
        ("layer[" + "9" * 5000 + "].z", "inside [] stand whole numbers", None),
        ("layer[1].head[0,*].z", "cannot read 'head[0,*]'", None),
        ("layer[1].row[0].head[1].z", "cannot read 'head[1]'", None),
        ("layer[1].layer[2].z", "cannot read 'layer[2]'", None),
        ("Layer[1].z", "cannot read 'Layer[1]'", None),
        ("layer(1).z", "cannot read 'layer(1)'", None),
        ("layer[1]..z", "cannot read ''", None),
        ("layer[1].\n.z", r"cannot read '\n'", None),
        ("layer[1].\u2028z", r"unknown component '\u2028z'", "z"),
    ],
)
def test_bad_sites_are_one_line(text: str, words: str, near: str | None, refused: Callable[..., str]) -> None:
    message = refused(InputError, Site.parse, text)
    assert words in message
    proposed = suggestion(message)
    assert near is None or proposed == near
    Site.parse(f"layer[1].{proposed}" if proposed in COMPONENTS else proposed)
    refused(InputError, Address.parse, f"loop[2].{text}")


@pytest.mark.parametrize("heads", [(), (1, 1)])
def test_sites_made_in_python_are_checked_too(heads: tuple[int, ...], refused: Callable[..., str]) -> None:
    message = refused(InputError, Site, 1, "z", heads)
    assert suggestion(message) == ("layer[1].head[1].z" if heads else "layer[1].z")
    message = refused(InputError, Site, 1, "z", None, heads)
    assert suggestion(message) == ("layer[1].row[1].z" if heads else "layer[1].z")


@pytest.mark.parametrize(
    ("text", "words", "near"),
    [
        ("layer[2].row[-1].z", "names no loop", "loop[1].layer[2].row[-1].z"),
        ("loop[0].layer[2].z", "loop 0 does not exist", "loop[1].layer[2].z"),
        ("loop[-3].layer[2].z", "loop -3 does not exist", "loop[1].layer[2].z"),
        ("loop[1,2].layer[2].z", "must name one loop", "loop[7].layer[2].head[0].row[-1].pattern"),
        ("loop[*].layer[2].z", "must name one loop", "loop[7].layer[2].head[0].row[-1].pattern"),
        ("layer[2].loop[1].z", "cannot read 'loop[1]'", "loop[7].layer[2].head[0].row[-1].pattern"),
    ],
)
def test_bad_addresses_are_one_line(text: str, words: str, near: str, refused: Callable[..., str]) -> None:
    message = refused(InputError, Address.parse, text)
    assert words in message
    assert suggestion(message) == near
    assert str(Address.parse(near)) == near


def test_a_site_names_no_loop(refused: Callable[..., str]) -> None:
    message = refused(InputError, Site.parse, "loop[3].layer[2].row[0].k")
    assert "names a loop" in message
    assert Site.parse(suggestion(message)) == Site(2, "k", None, (0,))


# Grids ---------------------------------------------------------------------------------------------------------------


def test_a_grid_holds_every_loop_layer_and_head_once() -> None:
    cells = grid("pattern", loops=range(7, 9), layers=[1, 2], heads=range(4), rows=(-1,))
    assert len(cells) == len(set(cells)) == 2 * 2 * 4
    assert cells[0] == Address(7, Site(1, "pattern", (0,), (-1,)))
    assert cells[1] == Address(7, Site(1, "pattern", (1,), (-1,)))
    assert cells[-1] == Address(8, Site(2, "pattern", (3,), (-1,)))


def test_a_grid_without_heads_takes_them_together() -> None:
    assert grid("resid", loops=[1], layers=iter([1, 2])) == (Address(1, Site(1, "resid")), Address(1, Site(2, "resid")))
    assert grid("z", loops=[], layers=[1]) == ()
    assert grid("z", loops=[1], layers=[1], rows=[-1, 0])[0].site.rows == (-1, 0)


def test_rows_and_heads_of_a_site_are_tuples(refused: Callable[..., str]) -> None:
    told = "a tuple such as (0, 1), not"
    assert f"rows are {told} -1" in refused(InputError, lambda: grid("z", loops=[1], layers=[1], rows=-1))  # type: ignore[arg-type]
    assert f"heads are {told} [0]" in refused(InputError, lambda: Site(1, "z", [0]))  # type: ignore[arg-type]


def test_a_grid_of_heads_needs_a_component_with_heads(refused: Callable[..., str]) -> None:
    assert "resid has no heads" in refused(InputError, lambda: grid("resid", loops=[1], layers=[1], heads=[0]))
