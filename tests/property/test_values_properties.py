"""Addresses, programs, configs and maps: what must hold for all of them, and for any text that claims to be one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loopscope.address import COMPONENTS, PER_HEAD, Address, Site
from loopscope.errors import InputError
from loopscope.maps import Dense, DiagonalLowRank, ResidualLowRank
from loopscope.model import ModelConfig
from loopscope.program import Add, Apply, Call, F, Given, Map, Patch, Program, Run, Scale, Step

T = TypeVar("T")
names = st.text("abcXYZ019_-", min_size=1, max_size=6)
identities = st.none() | st.text("0123456789abcdef", min_size=12, max_size=12)


def value_or_line(make: Callable[[], T]) -> T | str:
    """What is made, or the one line that says why not; any other exception is a failure."""
    try:
        return make()
    except InputError as error:
        message = str(error)
    assert message.splitlines() == [message]
    return message


def distinct(low: int, high: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(low, high), min_size=1, max_size=4, unique=True).map(tuple)


@st.composite
def sites(draw: st.DrawFn, most: int = 10**9) -> Site:
    component = draw(st.sampled_from(COMPONENTS))
    heads = draw(st.none() | distinct(0, most)) if component in PER_HEAD else None
    return Site(draw(st.integers(1, most)), component, heads, draw(st.none() | distinct(-most, most)))


addresses = st.builds(Address, st.integers(1, 10**9), sites())


@st.composite
def runs(draw: st.DrawFn, loop: int | None, depth: int) -> Run:
    """A source run; with `loop=None` one that names the loop to read, else possibly one that is read at that loop."""
    program = draw(programs(depth=depth - 1, at_least=loop or 1))
    first = (program.start or 0) + 1
    named = draw(st.integers(first, first + program.calls - 1))
    silent = loop is not None and first <= loop < first + program.calls and draw(st.booleans())
    return Run(program, draw(st.none() | names), None if silent else named)


@st.composite
def programs(draw: st.DrawFn, depth: int = 2, at_least: int = 0, movable: bool = False) -> Program:
    """Any program with `at_least` calls; a movable one starts from tokens and reads no source at its own loop."""
    start = None if movable else draw(st.none() | st.integers(0, 9))
    loop, steps = start or 0, list[Step]()
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["calls", "map", "patched"]))
        if kind == "map":
            steps.append(Map(draw(names)))
            continue
        many = draw(st.integers(1, 5)) if kind == "calls" else 1
        loop += many
        if kind == "calls":
            steps.extend([F] * many)
            continue
        sources = st.builds(Given, names)
        if depth > 0:
            sources |= runs(None if movable else loop, depth)
        numbers = st.floats(allow_nan=False, allow_infinity=False)
        changes = st.builds(Add, sources, numbers) | st.builds(Scale, numbers) | st.builds(Apply, names, identities)
        patches = draw(st.lists(st.builds(Patch, sites(), sources | changes), min_size=1, max_size=3))
        steps.append(Call(tuple(patches)))
    calls = sum(isinstance(step, Call) for step in steps)
    return Program((*steps, *[F] * (at_least - calls)), start)


# Text and back -------------------------------------------------------------------------------------------------------


@given(sites(), addresses)
def test_sites_and_addresses_survive_text(site: Site, address: Address) -> None:
    assert Site.parse(str(site)) == site
    assert hash(Site.parse(str(site))) == hash(site)
    assert Address.parse(str(address)) == address
    assert hash(Address.parse(str(address))) == hash(address)


@given(programs())
def test_programs_survive_text(program: Program) -> None:
    text = str(program)
    again = Program.parse(text)
    assert again == program
    assert hash(again) == hash(program)
    assert str(again) == text
    spaced = text.replace("(", " (\n").replace(")", "\t)").replace("<-", " <- ").replace("; ", ";").replace(" ", "  ")
    assert Program.parse(spaced) == program


@given(programs(), programs())
def test_programs_are_equal_exactly_when_their_text_is(one: Program, two: Program) -> None:
    assert (one == two) == (str(one) == str(two))


# Counting ------------------------------------------------------------------------------------------------------------


@given(programs())
def test_loops_points_and_skeleton_agree(program: Program) -> None:
    first = (program.start or 0) + 1
    calls = [index for index, step in enumerate(program.steps) if isinstance(step, Call)]
    assert program.calls == len(calls)
    assert [program.index_of(first + n) for n in range(program.calls)] == calls
    assert [program.loop_of(index) for index in calls] == list(range(first, first + program.calls))
    for outside in (first - 1, first + program.calls):
        with pytest.raises(InputError):
            program.index_of(outside)
    points = program.points
    assert len(points) == len(set(points)) == len(program.steps) + 1
    assert [points[index + 1] for index in calls] == [f"h{first + n}" for n in range(program.calls)]
    for index, step in enumerate(program.steps):
        if isinstance(step, Map):
            assert points[index + 1] == f"{points[index]} {step}"
    assert program.skeleton.points == points
    assert all(step == F or isinstance(step, Map) for step in program.skeleton.steps)
    assert [type(step) for step in program.skeleton.steps] == [type(step) for step in program.steps]


@given(st.lists(programs(movable=True, depth=1), min_size=3, max_size=3))
def test_joining_is_associative_and_is_joining_the_text(parts: list[Program]) -> None:
    a, b, c = parts
    assert (a | b) | c == a | (b | c)
    assert Program.parse(f"{a} {b} {c}") == a | b | c
    assert (a | b).calls == a.calls + b.calls


@given(programs(), sites(), st.data())
def test_a_patch_changes_one_call(program: Program, site: Site, data: st.DataObject) -> None:
    assume(program.calls)
    first = (program.start or 0) + 1
    loop = data.draw(st.integers(first, first + program.calls - 1))
    patched = program.patch(Address(loop, site), "$new")
    index = program.index_of(loop)
    assert patched.skeleton == program.skeleton
    assert [i for i, (old, new) in enumerate(zip(program.steps, patched.steps, strict=True)) if old != new] == [index]
    call = patched.steps[index]
    assert isinstance(call, Call)
    assert Patch(site, Given("new")) in call.patches
    assert Program.parse(str(patched)) == patched


# Order of patches ----------------------------------------------------------------------------------------------------


@st.composite
def near_sites(draw: st.DrawFn) -> Site:
    """Sites that often overlap; the rows of one site are all counted from the same end."""
    component = draw(st.sampled_from(["resid", "z"]))
    heads = draw(st.none() | distinct(0, 2)) if component == "z" else None
    return Site(draw(st.integers(1, 2)), component, heads, draw(st.none() | distinct(0, 3) | distinct(-3, -1)))


def entries(site: Site, rows: int) -> set[tuple[object, ...]]:
    """Every (layer, component, head, row) of a site in an input of this many rows; none where a row is too far out."""
    if any(not -rows <= row < rows for row in site.rows or ()):
        return set()
    heads = site.heads or (range(3) if site.component in PER_HEAD else (None,))
    places = range(rows) if site.rows is None else [row % rows for row in site.rows]
    return {(site.layer, site.component, head, row) for head in heads for row in places}


def overlap(one: Site, two: Site) -> bool:
    """Whether there is any input in which the two share an entry."""
    return any(entries(one, rows) & entries(two, rows) for rows in range(1, 9))


@settings(max_examples=300)
@given(st.lists(near_sites(), min_size=2, max_size=6), st.data())
def test_calls_are_equal_exactly_when_overlapping_patches_keep_their_order(
    where: list[Site], data: st.DataObject
) -> None:
    patches = [Patch(site, Given(f"x{index}")) for index, site in enumerate(where)]
    shuffled = data.draw(st.permutations(patches))
    pairs = [(a, b) for a, b in itertools.combinations(patches, 2) if overlap(a.site, b.site)]
    kept = all(shuffled.index(a) < shuffled.index(b) for a, b in pairs)
    assert (Call(tuple(shuffled)) == Call(tuple(patches))) == kept


@given(st.lists(near_sites(), max_size=7), st.integers(4, 7))
def test_putting_patches_in_order_changes_no_outcome(where: list[Site], rows: int) -> None:
    def outcome(patches: tuple[Patch, ...]) -> dict[tuple[object, ...], str]:
        return {entry: str(patch.source) for patch in patches for entry in entries(patch.site, rows)}

    patches = tuple(Patch(site, Given(f"x{index}")) for index, site in enumerate(where))
    call = Call(patches)
    assert outcome(call.patches) == outcome(patches)
    assert sorted(map(str, call.patches)) == sorted(map(str, patches))
    assert Call(call.patches) == call
    stages = [(patch.site.layer, COMPONENTS.index(patch.site.component)) for patch in call.patches]
    assert stages == sorted(stages)


# Against a model -----------------------------------------------------------------------------------------------------


@given(sites(most=9), st.integers(1, 5), st.integers(1, 5), st.integers(1, 8))
def test_a_site_resolves_or_proposes_one_that_does(site: Site, layers: int, heads: int, rows: int) -> None:
    sizes = {"layers": layers, "heads": heads, "rows": rows}
    inside = site.layer <= layers and all(head < heads for head in site.heads or ())
    inside = inside and all(-rows <= row < rows for row in site.rows or ())
    distinct_rows = len({row % rows for row in site.rows or ()}) == len(site.rows or ())
    found = value_or_line(lambda: site.resolve(**sizes))
    assert isinstance(found, str) != (inside and distinct_rows)
    if isinstance(found, str):
        assert found.startswith(f"{site} {'names a row twice' if inside else 'does not exist'}: ")
        Site.parse(found.rsplit("(nearest: ", 1)[1][:-1]).resolve(**sizes)
        return
    assert found.rows == tuple(range(rows) if site.rows is None else (row % rows for row in site.rows))
    every_head = tuple(range(heads)) if site.component in PER_HEAD else None
    assert found.heads == (every_head if site.heads is None else site.heads)
    assert found.resolve(**sizes) == found


# Any text at all -----------------------------------------------------------------------------------------------------

PIECES = [
    "F", "F6", "F[", "]", "; ", "<-", "(", ")", "@other", ".loop[2]", "$x", "J:", "J:one", "h3", " ", "layer[1]", ".",
    "head[0]", "row[-1,2]", "row[*]", "loop[1]", "z", "resid", "0", "-", "\n", "9" * 30, "\u2028", "\x00", "[",
]  # fmt: skip
near_text = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@st.composite
def misprints(draw: st.DrawFn) -> str:
    """A valid program or address with a few characters dropped, doubled or replaced."""
    text = draw(programs(depth=1).map(str) | addresses.map(str) | sites().map(str))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", text[at : at + 1] * 2, *"F[](); .<-@$h9*"])) + text[at + 1 :]
    return text


def read_or_refused(read: Callable[[str], object], text: str) -> None:
    value = value_or_line(lambda: read(text))
    if not isinstance(value, str):
        assert read(str(value)) == value


@settings(max_examples=300)
@given(st.text() | near_text | misprints())
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    read_or_refused(Site.parse, text)
    read_or_refused(Address.parse, text)
    read_or_refused(Program.parse, text)
    read_or_refused(lambda source: F.patch("layer[1].z", source).patches[0].source, text)


# Configs and maps ----------------------------------------------------------------------------------------------------

SETTINGS = list(ModelConfig(1, 1, 1).to_dict())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 50) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["embedding", "one-hot", "erf", "tanh", "untied", "tied", "linear", "graph", "gpt2", "torch"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)  # fmt: skip
counts = st.integers(1, 12)
configs = st.fixed_dictionaries(
    {"vocabulary": st.integers(10, 50), "classes": counts, "loops": counts},
    optional={
        "layers": counts, "width": st.sampled_from([12, 24, 256]), "heads": counts, "mlp": counts, "positions": counts,
        "attention_bias": st.booleans(), "gelu": st.sampled_from(["erf", "tanh"]), "norm_in_loop": st.booleans(),
        "readout": st.sampled_from(["untied", "tied", "linear"]), "init": st.sampled_from(["graph", "gpt2", "torch"]),
    },
)  # fmt: skip


@settings(max_examples=300)
@given(configs, st.dictionaries(st.sampled_from(SETTINGS) | st.text(max_size=6), json_values, max_size=2))
def test_any_json_is_a_config_or_refused_in_one_line(values: dict[str, object], changes: dict[str, object]) -> None:
    config = value_or_line(lambda: ModelConfig.from_dict(values | changes))
    if not isinstance(config, str):
        assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert config.width % config.heads == 0
        assert config.first_class + config.classes <= config.vocabulary


@given(st.data(), st.integers(1, 9), st.integers(0, 2**31))
@torch.no_grad()
def test_a_chain_of_maps_is_one_dense_map(data: st.DataObject, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ranks = st.integers(1, width)
    steps = st.builds(Dense, st.just(width))
    for family in (DiagonalLowRank, ResidualLowRank):
        steps |= st.builds(family, st.just(width), ranks)
    h = torch.randn(3, width, dtype=torch.float64, generator=generator)
    joined, stepped = Dense(width).double(), h
    for drawn in data.draw(st.lists(steps, min_size=1, max_size=4)):
        step = drawn.double()
        for parameter in step.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / width**0.5)
        joined, stepped = joined.then(step), step(stepped)
        torch.testing.assert_close(step.merge()(h), step(h), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(joined(h), stepped, rtol=1e-10, atol=1e-10)
