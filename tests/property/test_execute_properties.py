"""The executor against the plain run, for random programs, sites, sources, inputs and chunk sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.address import COMPONENTS, PER_HEAD, Address, Site
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.program import Call, F, Given, Map, Program, Run
from tests.tiny import ROWS, tiny_map, tiny_model, tiny_tokens

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
INPUTS = ("main", "other", "third")


def rows_strategy(most: int = 3) -> st.SearchStrategy[tuple[int, ...] | None]:
    some = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=most, unique=True)
    # Negative rows name the same places; mixing both signs is part of the address language.
    signed = st.tuples(some, st.booleans()).map(lambda t: tuple(r - ROWS if t[1] else r for r in t[0]))
    return st.one_of(st.none(), signed)


@st.composite
def sites(draw: st.DrawFn, layers: int) -> Site:
    component = draw(st.sampled_from(COMPONENTS))
    heads = st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True).map(tuple))
    chosen = draw(heads) if component in PER_HEAD else None
    return Site(draw(st.integers(1, layers)), component, chosen, draw(rows_strategy()))


@st.composite
def programs(draw: st.DrawFn, layers: int, start: int | None, depth: int, at_least: int = 1) -> Program:
    """A program with `at_least` calls; `depth` bounds how far sources nest."""
    calls = draw(st.integers(at_least, max(at_least, 3)))
    steps: list[Call | Map] = []
    for _ in range(calls):
        if draw(st.integers(0, 3)) == 0:
            steps.append(Map(draw(st.sampled_from(["one", "two"]))))
        steps.append(F)
    if draw(st.integers(0, 4)) == 0:
        steps.append(Map("one"))
    program = Program(tuple(steps), start)
    for _ in range(draw(st.integers(0, 2)) if depth else 0):
        loop = draw(st.integers(1, calls)) + (start or 0)
        site = draw(sites(layers))
        if draw(st.integers(0, 5)) == 0:
            program = program.patch(Address(loop, site), Given(f"for-{site.component}"))
            continue
        elsewhere = draw(st.one_of(st.none(), st.integers(1, 3).map(lambda t: t + (start or 0))))
        wanted = (loop if elsewhere is None else elsewhere) - (start or 0)
        source = draw(programs(layers, start, depth - 1, wanted))
        name = draw(st.sampled_from([None, "other", "third"]))
        program = program.patch(Address(loop, site), Run(source, name, elsewhere))
    return program


@st.composite
def cases(draw: st.DrawFn) -> dict[str, object]:
    kind = draw(st.sampled_from(["graph", "graph", "parity", "relations"]))
    layers = 1 if kind == "parity" else 2
    start = draw(st.sampled_from([None, None, 0, 2]))
    asked = draw(st.lists(programs(layers, start, 2), min_size=1, max_size=4))
    examples = draw(st.integers(1, 5))
    return {
        "kind": kind,
        "programs": asked,
        "start": start,
        "tokens": [tiny_tokens(examples, draw(st.integers(0, 3)), draw(st.integers(0, ROWS))) for _ in INPUTS],
        "chunk": draw(st.one_of(st.none(), st.integers(1, examples))),
        "stack": draw(st.one_of(st.none(), st.integers(1, 3))),
        "rows": draw(st.lists(st.integers(-ROWS, -1), min_size=1, max_size=2, unique=True)),
        "keep": draw(st.lists(st.tuples(st.integers(1, 3), sites(layers)), max_size=2)),
    }


@settings(max_examples=100)
@given(case=cases())
def test_executor_equals_plain_run(case: dict[str, object]) -> None:
    check(case, torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=400)
@given(case=cases())
def test_executor_equals_plain_run_many_times(dtype: torch.dtype, case: dict[str, object]) -> None:
    check(case, dtype)


def check(case: dict[str, object], dtype: torch.dtype) -> None:
    model = tiny_model(str(case["kind"]), dtype=dtype)
    maps = {"one": tiny_map(1, dtype), "two": tiny_map(2, dtype)}
    tensors = dict(zip(INPUTS, case["tokens"], strict=True))  # type: ignore[call-overload]
    start: int | None = case["start"]  # type: ignore[assignment]
    if start is not None:
        tensors = {name: model.embed(t).detach() for name, t in tensors.items()}
    main = tensors["main"]
    others = {name: tensors[name] for name in INPUTS[1:]}
    # One row of values that every slice of a component can be filled with.
    generator = torch.Generator().manual_seed(9)
    last = {"pattern": ROWS, **{c: 4 for c in ("q", "k", "v", "z")}, "mlp_hidden": 32}
    given_tensors = {
        f"for-{component}": torch.randn(1, last.get(component, 16), generator=generator, dtype=torch.float64).to(dtype)
        for component in COMPONENTS
    }
    given_tensors["for-pattern"][:, 1:] = 0  # one row for every query row: only the first key is visible to them all
    asked: list[Program] = case["programs"]  # type: ignore[assignment]
    longest = max(program.calls for program in asked)
    wanted_keep = [(loop, site) for loop, site in case["keep"] if loop <= longest]  # type: ignore[attr-defined]
    keep = [Address(loop + (start or 0), site) for loop, site in wanted_keep]
    rows: list[int] = case["rows"]  # type: ignore[assignment]
    result = run(
        model,
        None if start is not None else main,
        asked,
        state=main if start is not None else None,
        maps=maps,
        others=others,
        given=given_tensors,
        read="all",
        rows=rows,
        keep=keep,
        chunk=case["chunk"],  # type: ignore[arg-type]
        stack=case["stack"],  # type: ignore[arg-type]
    )
    for program in asked:
        plain = plain_run(model, tensors, program, maps=maps, given=given_tensors)
        trace = result[program]
        for point in program.points:
            wanted = model.read(plain.states[point][:, rows])
            torch.testing.assert_close(trace.logits_at[point], wanted, rtol=0, atol=TOLERANCE[dtype])
            first, second = wanted.topk(2, -1).values.unbind(-1)
            sure = first - second > 2 * TOLERANCE[dtype]  # below that, rounding may decide
            assert torch.equal(trace.logits_at[point].argmax(-1)[sure], wanted.argmax(-1)[sure])
        for address, kept in trace.kept.items():
            site = address.site.resolve(layers=len(model.layers), heads=4, rows=ROWS)
            part = plain.components[address.loop, site.layer, site.component]
            part = part[:, list(site.heads)] if site.heads else part
            torch.testing.assert_close(kept, part[..., list(site.rows or ()), :], rtol=0, atol=TOLERANCE[dtype])
