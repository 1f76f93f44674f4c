"""Texts of unequal length, on a toy model of every kind: whatever is asked of several is what each gives alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopscope.address import PER_HEAD, Address, Anchor, Row, Site
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.execute.unequal import row_of
from loopscope.measure.cells import places
from loopscope.measure.patching import OTHER, compare_texts, recover
from loopscope.pieces import pieces_of
from loopscope.program import Call, Coda, Patch, Program, Run
from tests.kinds import KINDS, VOCABULARY

MARK = Anchor((0,))
"""A token that every text has once."""
COMPONENTS = ("resid", "q", "k", "v", "z", "attn_out", "mlp_out")

QUICK = ("prelude and coda", "two stacks", "full mask", "learned positions", "everything")
"""Kinds that are looked at every time; the others differ from these in a layer alone."""

Texts = list[list[int]]


@st.composite
def texts(draw: st.DrawFn, examples: int) -> Texts:
    found = []
    for _ in range(examples):
        text = draw(st.lists(st.integers(1, VOCABULARY - 1), min_size=2, max_size=5))
        text.insert(draw(st.integers(0, len(text))), 0)
        found.append(text)
    return found


@st.composite
def patches(draw: st.DrawFn, model: Any, base: Program) -> tuple[Address, Run]:
    pieces = pieces_of(model)
    stages = ["loop", *(["prelude"] * bool(pieces.prelude)), *(["coda"] * bool(pieces.coda))]
    stage = draw(st.sampled_from(stages))
    loop = {"loop": draw(st.integers(1, base.calls)), "prelude": 0, "coda": base.calls}[stage]
    call = base.steps[loop - 1] if stage == "loop" else None
    inside = pieces.stack(call.stack) if isinstance(call, Call) else getattr(pieces, stage)
    rows = draw(st.sampled_from([(-1,), (-2, -1), (MARK,), (-3,)]))
    component = draw(st.sampled_from(COMPONENTS))
    heads = draw(st.none() | st.just((1,))) if component in PER_HEAD else None
    theirs: tuple[Row, ...] | None = draw(st.none() | st.just(tuple(-1 - at for at in range(len(rows)))))
    site = Site(draw(st.integers(1, len(inside))), component, heads, rows)
    return Address(loop, site, stage), Run(base, draw(st.sampled_from([None, OTHER])), None, theirs)


def written_out(program: Program, tokens: dict[str, list[int]], name: str = "main") -> Program:
    """The same on one text, with the rows that it names as numbers."""

    def rows(named: tuple[Row, ...] | None, of: str) -> tuple[Row, ...] | None:
        if named is None:
            return None
        return tuple(row_of(row, tokens[of], None) if isinstance(row, Anchor) else row for row in named)

    def patch(each: Patch) -> Patch:
        assert isinstance(each.source, Run)
        giver = name if each.source.input is None else each.source.input
        theirs = each.site.rows if each.source.rows is None else each.source.rows
        source = Run(each.source.program, each.source.input, each.source.loop, rows(theirs, giver))
        site = Site(each.site.layer, each.site.component, each.site.heads, rows(each.site.rows, name))
        return Patch(site, source)

    steps = tuple(Call(tuple(map(patch, e.patches)), e.stack) if isinstance(e, Call) else e for e in program.steps)
    coda = tuple(Coda(each.loop, tuple(map(patch, each.patches))) for each in program.coda)
    return Program(steps, program.start, tuple(map(patch, program.prelude)), coda)


def alone(model: Any, program: Program, main: list[int], other: list[int], row: Row) -> Tensor:
    """Logits of one text, at a row, by the plain definition."""
    tokens = {"main": main, OTHER: other}
    inputs = {name: torch.tensor([text]) for name, text in tokens.items()}
    seen = plain_run(model, inputs, written_out(program, tokens))
    at = row_of(row, main, None) if isinstance(row, Anchor) else row
    return seen.read(program.points[-1])[0, at]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.slow]) for kind in KINDS]
)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_unequal_texts_are_run_compared_and_swept_as_each_alone(kind: str, data: st.DataObject) -> None:
    check(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_many_unequal_texts(kind: str, data: st.DataObject) -> None:
    check(kind, data)


def check(kind: str, data: st.DataObject) -> None:
    model = KINDS[kind]()
    with torch.no_grad():
        model.head.bias.zero_()  # or it would say the same after every text
    base = Program.parse(model.usual)
    examples = data.draw(st.integers(1, 4))
    main, other = data.draw(texts(examples)), data.draw(texts(examples))
    asked = [base]
    for _ in range(data.draw(st.integers(1, 2))):
        program = base
        for where, source in data.draw(st.lists(patches(model, base), min_size=1, max_size=2)):
            program = program.patch(where, source)
        asked.append(program)
    last: list[Row] = [-1, -2, MARK]
    row = data.draw(st.sampled_from(last))
    found = run(model, main, asked, others={OTHER: other}, rows=[row])
    said = compare_texts(model, main, asked, others={OTHER: other}, row=row)
    for at in range(examples):
        expected = {program: alone(model, program, main[at], other[at], row) for program in asked}
        for program, logits in expected.items():
            torch.testing.assert_close(found[program].logits[at, 0], logits, rtol=0, atol=1e-10)
        for each in said[at]:
            torch.testing.assert_close(each.logits, expected[each.program].float(), rtol=0, atol=1e-6)

    where, source = data.draw(patches(model, base))
    parts = [] if where.stage == "loop" else [where.stage]
    cells = places(model, base, where.site, None, loops=[1, base.calls, *parts], layers=[1])
    ends = [[alone(model, base, text, text, row) for text in pair] for pair in zip(main, other, strict=True)]
    moves = [at for at, (own, theirs) in enumerate(ends) if own.argmax() != theirs.argmax()]
    if not moves:
        return
    swept = recover(model, [main[at] for at in moves], [other[at] for at in moves], base, cells, row=row)
    for text, at in enumerate(moves):
        ours, theirs = (int(end.argmax()) for end in ends[at])
        before, after = (float(end[theirs] - end[ours]) for end in ends[at])
        for number, cell in enumerate(cells):
            logits = alone(model, base.patch(cell, Run(base, OTHER)), main[at], other[at], row)
            moved = (float(logits[theirs] - logits[ours]) - before) / (after - before)
            assert float(swept.recovered[number, text]) == pytest.approx(moved, abs=1e-4, rel=1e-3)
