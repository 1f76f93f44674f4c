"""Every family of adapters: texts of unequal length give what each gives alone, run, read, swept and continued."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.execute.executor import run
from loopscope.execute.plain import PlainRun, plain_run
from loopscope.execute.sweeping import sweep
from loopscope.measure.readouts import behind_puzzles, read_loops
from loopscope.models.adapter import Adapter
from loopscope.models.decoding import generate, pad_left
from loopscope.pieces import pieces_of
from loopscope.program import Program, Run
from tests.adapters_tiny import MODELS, PUZZLES

TEXTS = [[1, 2, 3, 4, 5], [6, 5, 4]]
OTHERS = [[5, 4], [1, 1, 2, 6]]
ALIKE = ("qwen3", "mistral", "qwen2", "olmo2", "gpt_neox")
"""Families that differ from others in what a layer does alone."""
FAMILIES = pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[pytest.mark.slow] if each in ALIKE else []) for each in MODELS]
)


def built(family: str) -> tuple[Adapter, list[list[int]], list[list[int]], Program]:
    """A model of two loops, two kinds of texts behind the rows of their puzzles, and its program."""
    model = deepcopy(MODELS[family]()).double()  # some are kept
    puzzles = [0, 1] if family in PUZZLES else None
    loops = 1 if family in PUZZLES else 2
    return model, behind_puzzles(model, TEXTS, puzzles), behind_puzzles(model, OTHERS, puzzles), model.program(loops)


def patched(model: Adapter, program: Program) -> Program:
    """The program with rows of another text and of a run of its own in every part that the model has."""
    other, own = Run(program, "other"), Run(program)
    pieces = pieces_of(model)
    program = program.patch("loop[1].layer[1].row[-2].v", other)
    program = program.patch(f"loop[{program.calls}].layer[1].row[-1,-2].z", other)
    program = program.patch(f"loop[{program.calls}].layer[1].head[0].pattern", own)
    if pieces.prelude:
        program = program.patch("prelude.layer[1].row[-1].mlp_out", other)
    if pieces.coda:
        program = program.patch(f"coda[{program.calls}].layer[1].row[-2].resid", other)
    return program


def alone(texts: list[list[int]], at: int) -> Tensor:
    return torch.tensor([texts[at]])


@FAMILIES
def test_runs_and_sweeps_of_unequal_texts_are_those_of_each_alone(family: str) -> None:
    model, texts, others, program = built(family)
    with_patches = patched(model, program)
    places = [f"loop[{loop}].layer[1].row[-1].{part}" for loop, part in ((1, "resid"), (program.calls, "z"))]
    found = run(model, texts, [program, with_patches], others={"other": others}, rows=[-1, -2])
    swept = sweep(model, texts, program, places, Run(program, "other"), others={"other": others})
    changed = 0.0
    for at in range(len(texts)):
        inputs = {"main": alone(texts, at), "other": alone(others, at)}
        memo: dict[tuple[Program, str], PlainRun] = {}
        for each in (program, with_patches):
            expected = plain_run(model, inputs, each, memo=memo).read(program.points[-1])[0, [-1, -2]]
            torch.testing.assert_close(found[each].logits[at], expected, rtol=0, atol=1e-9)
        for number, place in enumerate(swept.addresses):
            once = plain_run(model, inputs, program.patch(place, Run(program, "other")), memo=memo)
            expected = once.read(program.points[-1])[0, -1]
            torch.testing.assert_close(swept.logits[number, at, 0], expected, rtol=0, atol=1e-9)
        changed = max(changed, float((found[program].logits[at] - found[with_patches].logits[at]).abs().max()))
    assert changed > 1e-3


@FAMILIES
def test_readouts_of_padded_texts_are_those_of_each_alone(family: str) -> None:
    model = built(family)[0]
    puzzles = [0, 1] if family in PUZZLES else None
    tokens, mask = pad_left(TEXTS)
    found = read_loops(model, tokens, loops=2, mask=mask, puzzles=puzzles)
    for at, text in enumerate(TEXTS):
        mine = None if puzzles is None else puzzles[at : at + 1]
        expected = read_loops(model, torch.tensor([text]), loops=2, puzzles=mine)
        torch.testing.assert_close(found.logits[:, at, -len(text) :], expected.logits[:, 0], rtol=0, atol=1e-5)


@FAMILIES
def test_unequal_prompts_are_continued_as_each_alone(family: str) -> None:
    """Behind a cache, where the model can have one, as computed anew; with patches on the prompt, or held."""
    model, texts, others, program = built(family)
    cached = family not in PUZZLES
    asked: dict[str, Any] = {"new": 2, "stop": ()}
    texts = [text[:-2] if family in PUZZLES else text for text in texts]  # there is room for as many rows
    together = generate(model, texts, program, cached=cached, **asked)
    held = generate(model, texts, patched(model, program), others={"other": others}, patches="text", **asked)
    for at, text in enumerate(texts):
        for cells, each in ((together, program), (held, patched(model, program))):
            so_far = list(text)
            for token in cells.tokens[at].tolist():
                inputs = {"main": torch.tensor([so_far]), "other": alone(others, at)}
                logits = plain_run(model, inputs, each).read(program.points[-1])[0, -1]
                assert float(logits.max() - logits[token]) < 1e-9
                so_far.append(token)
    if cached:
        with_patches = {"others": {"other": others}, **asked}
        batch = generate(model, texts, patched(model, program), **with_patches)
        for at in range(len(texts)):
            one = generate(
                model, alone(texts, at), patched(model, program), others={"other": alone(others, at)}, **asked
            )
            assert torch.equal(batch.tokens[at], one.tokens[0])
