"""The executor against the plain run on a toy model of every kind, for random programs, places, sources and inputs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopscope.address import COMPONENTS, ENTER, PER_HEAD, Address, Site
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.pieces import pieces_of
from loopscope.program import Add, Apply, Call, Given, Map, Program, Run, Scale, Seed, Start, Zeros
from tests.kinds import KINDS, UNITS, VOCABULARY

ROWS, SHORTER = 6, 4
INPUTS = ("main", "other", "short")
"""`short` has fewer rows than the others, or they have fewer than it."""


@dataclass(frozen=True)
class Parts:
    """What a kind of model has."""

    stacks: dict[str, int]
    prelude: int
    coda: int
    starts: tuple[Start, ...]

    @classmethod
    def of(cls, kind: str) -> Parts:
        pieces = pieces_of(KINDS[kind]())
        stacks = {name: len(layers) for name, layers in pieces.stacks.items()}
        starts: tuple[Start, ...] = (None, 0, 2)
        starts += (Seed(4),) if pieces.draws else ()
        starts += (Zeros(),) if pieces.injects else ()
        return cls(stacks, len(pieces.prelude), len(pieces.coda), starts)


@st.composite
def sites(draw: st.DrawFn, layers: int, enters: bool, from_end: bool = False) -> Site:
    rows = st.lists(st.integers(-SHORTER, -1), min_size=1, max_size=3, unique=True).map(tuple)
    chosen = draw(rows if from_end else rows | st.none())
    if enters and draw(st.integers(0, 5)) == 0:
        return Site(1, ENTER, None, chosen)
    component = draw(st.sampled_from([each for each in COMPONENTS if not (from_end and each == "pattern")]))
    heads = draw(st.none() | st.just((1,))) if component in PER_HEAD else None
    return Site(draw(st.integers(1, layers)), component, heads, chosen)


@st.composite
def programs(
    draw: st.DrawFn, parts: Parts, start: Start, depth: int, shape: tuple[str, ...] | None = None, on: str = "main"
) -> Program:
    """A program to be run on an input; `shape` are the stacks that it calls."""
    stacks = shape or tuple(draw(st.lists(st.sampled_from(sorted(parts.stacks)), min_size=1, max_size=3)))
    steps: list[Call | Map] = []
    for stack in stacks:
        if draw(st.integers(0, 3)) == 0:
            steps.append(Map("one"))
        steps.append(Call(stack=stack))
    program = Program(tuple(steps), start)
    for _ in range(draw(st.integers(0, 2)) if depth else 0):
        places = ["loop", *(["prelude"] * bool(parts.prelude and not program.given)), *(["coda"] * bool(parts.coda))]
        stage = draw(st.sampled_from(places))
        loop = draw(st.integers(1 if stage == "loop" else 0, len(stacks))) + program.first
        layers = parts.stacks[stacks[loop - program.first - 1]] if stage == "loop" else getattr(parts, stage)
        name = draw(st.sampled_from([None, "other", "short"]))
        giver = name or on
        site = draw(sites(layers, stage == "loop", (giver == "short") != (on == "short")))
        where = Address(0 if stage == "prelude" else loop, site, stage)
        how = draw(st.sampled_from(["replace", "replace", "add", "scale", "apply"]))
        if how in ("scale", "apply"):
            program = program.patch(
                where, Scale(draw(st.sampled_from([0, -1, 0.5]))) if how == "scale" else Apply("bend")
            )
            continue
        times = draw(st.sampled_from([1, -0.5]))
        if name is None and draw(st.integers(0, 4)) == 0:
            tensor = Given(f"for-{site.part}")
            program = program.patch(where, tensor if how == "replace" else Add(tensor, times))
            continue
        source = draw(programs(parts, start, depth - 1, stacks, giver))
        rows = None
        if site.part != "pattern" and site.rows is not None and draw(st.integers(0, 2)) == 0:
            rows = tuple(draw(st.permutations(range(-SHORTER, 0)))[: len(site.rows)])
        taken = Run(source, name, None, rows)
        program = program.patch(where, taken if how == "replace" else Add(taken, times))
    return program


@st.composite
def cases(draw: st.DrawFn, kind: str) -> dict[str, object]:
    parts = Parts.of(kind)
    start = draw(st.sampled_from(parts.starts))
    asked = draw(st.lists(programs(parts, start, 2), min_size=1, max_size=3))
    examples = draw(st.integers(1, 4))
    tokens = {}
    longer = draw(st.booleans())
    for at, name in enumerate(INPUTS):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 3)) + 10 * at)
        length = SHORTER if (name == "short") == longer else ROWS
        tokens[name] = torch.randint(VOCABULARY, (examples, length), generator=generator)
        tokens[name][:, : draw(st.integers(0, length))] = 3  # a common beginning
    keep = []
    for _ in range(draw(st.integers(0, 2))):
        program = draw(st.sampled_from(asked))
        stage = draw(st.sampled_from(["loop", *(["coda"] * bool(parts.coda))]))
        loop = draw(st.integers(1, program.calls)) + program.first
        call = program.steps[program.index_of(loop)]
        assert isinstance(call, Call)
        keep.append(Address(loop, draw(sites(min(parts.stacks.values()), True)), stage)
                    if stage == "loop" else Address(loop, draw(sites(parts.coda, False)), stage))  # fmt: skip
    return {
        "programs": asked,
        "start": start,
        "tokens": tokens,
        "chunk": draw(st.none() | st.integers(1, examples)),
        "stack": draw(st.none() | st.integers(1, 3)),
        "rows": draw(st.lists(st.integers(-ROWS if longer else -SHORTER, -1), min_size=1, max_size=2, unique=True)),
        "keep": keep,
        "read": draw(st.sampled_from(["last", "calls", "all"])),
    }


def plain_place(program: Program, address: Address) -> tuple[int | str, int, str]:
    where: int | str = address.loop if address.stage == "loop" else f"{address.stage}[{address.loop}]"
    return where, address.site.layer, address.site.part


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_executor_equals_plain_run_of_every_kind(kind: str, data: st.DataObject) -> None:
    check(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_executor_equals_plain_run_many_times(kind: str, data: st.DataObject) -> None:
    check(kind, data)


def check(kind: str, data: st.DataObject) -> None:
    case = data.draw(cases(kind))
    model = KINDS[kind]()
    pieces = pieces_of(model)
    tokens: dict[str, Tensor] = case["tokens"]  # type: ignore[assignment]
    weights = torch.randn(pieces.state_width, pieces.state_width, generator=torch.Generator().manual_seed(1))
    maps = {
        "one": lambda h: h + 0.3 * h @ weights.double(),
        "bend": lambda x: x * (0.5 + x.square().sum(-1, keepdim=True)).rsqrt(),  # keeps zeros, as a pattern's must be
    }
    given_start = isinstance(case["start"], int)
    generator = torch.Generator().manual_seed(5)
    states = {
        name: torch.randn(*t.shape, pieces.state_width, generator=generator, dtype=torch.float64)
        for name, t in tokens.items()
    }
    last = {**dict.fromkeys(("q", "k", "v", "z"), model.head_size), "mlp_hidden": UNITS}
    tensors = {
        f"for-{each}": torch.randn(1, last.get(each, model.width), generator=generator, dtype=torch.float64)
        for each in COMPONENTS
    }
    tensors["for-pattern"] = torch.zeros(1, 1).double()  # looks at nobody, so that every mask and length allows it
    asked: list[Program] = case["programs"]  # type: ignore[assignment]
    if any(program.coda for program in asked):  # a patched coda must be read
        case["read"] = "all"
    rows: list[int] = case["rows"]  # type: ignore[assignment]
    inputs = states if given_start else tokens
    both = given_start and pieces.needs_tokens
    others = {name: (tokens[name], states[name]) if both else inputs[name] for name in INPUTS[1:]}
    result = run(
        model,
        tokens["main"] if pieces.needs_tokens or not given_start else None,
        asked,
        maps=maps,
        others=others,
        given=tensors,
        state=states["main"] if given_start else None,
        read=case["read"],  # type: ignore[arg-type]
        rows=rows,
        keep=case["keep"],  # type: ignore[arg-type]
        chunk=case["chunk"],  # type: ignore[arg-type]
        stack=case["stack"],  # type: ignore[arg-type]
    )
    memo: dict[object, object] = {}
    for program in asked:
        seen = plain_run(model, inputs, program, maps=maps, given=tensors, tokens=tokens, memo=memo)  # type: ignore[arg-type]
        for point, logits in result[program].logits_at.items():
            torch.testing.assert_close(logits, seen.read(point)[:, rows], rtol=0, atol=1e-10)
        for address, value in result[program].kept.items():
            if address.stage == "coda":
                seen.read(f"h{address.loop}")
            expected = seen.components[plain_place(program, address)]
            site = address.site
            if site.heads is not None:
                expected = expected[:, list(site.heads)]
            if site.rows is not None:
                expected = expected[..., list(site.numbers), :]
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-10)
