"""Patches while decoding: on the prompt alone, or held for every new token; prompts of unequal length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.models.decoding import generate, pad_left
from loopscope.program import Program
from tests.kinds import KINDS, VOCABULARY, D

PROMPTS = [[1, 2, 3, 4, 5], [6, 5, 4], [2, 7, 3, 1, 0]]
OTHERS = [[5, 4, 3], [1, 1, 2, 6], [7, 7, 7]]
GIVEN = {
    name: torch.randn(3, 1, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3
    for seed, name in enumerate("xy", start=3)
}


def talker(kind: str) -> Any:
    """A model that does not say the same token every time."""
    model = KINDS[kind]()
    with torch.no_grad():
        model.head.bias.zero_()
        model.head.weight -= model.head.weight.mean(0)
    return model


def patched(usual: str) -> Program:
    """The last call of a program with rows from another input, a given row, and all rows from a run of its own."""
    base = Program.parse(usual)
    last = f"loop[{base.calls}]"
    return (
        base.patch(f"{last}.layer[1].row[-1,-2].z", f"({base})@other")
        .patch("loop[1].layer[1].row[-2].mlp_out", "$x")
        .patch("loop[1].layer[1].row[-1].mlp_out", "+=0.5*$y")
        .patch(f"{last}.layer[1].head[0].k", f"({base})")
    )


def plainly(
    model: Any, prompt: list[int], program: Program, new: int, others: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> list[int]:
    """New tokens, each by a whole plain run of the patched program on the text so far."""
    text = torch.tensor([prompt])
    for _ in range(new):
        logits = plain_run(model, {"main": text, **others}, program, given=given).read(program.points[-1])
        text = torch.cat([text, logits[:, -1:].argmax(-1)], 1)
    return text[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_patches_hold_for_every_new_token_when_asked(kind: str) -> None:
    model = talker(kind)
    program = patched(model.usual)
    found = generate(model, PROMPTS, program, new=3, others={"other": OTHERS}, given=GIVEN, patches="text")
    for at, prompt in enumerate(PROMPTS):
        mine = {name: each[at : at + 1] for name, each in GIVEN.items()}
        expected = plainly(model, prompt, program, 3, {"other": torch.tensor([OTHERS[at]])}, mine)
        assert found.tokens[at].tolist() == expected


@pytest.mark.parametrize("kind", ["everything", "injection", "two stacks", "window"])
def test_unequal_prompts_with_patches_go_on_as_each_alone(kind: str) -> None:
    model = talker(kind)
    program = patched(model.usual)
    asked: dict[str, Any] = {"others": {"other": OTHERS}, "given": GIVEN, "new": 4}
    together = generate(model, PROMPTS, program, **asked)
    padded, mask = pad_left(PROMPTS)
    assert torch.equal(generate(model, padded, program, mask=mask, **asked).tokens, together.tokens)
    for at, prompt in enumerate(PROMPTS):
        alone = generate(
            model, torch.tensor([prompt]), program, new=4, others={"other": torch.tensor([OTHERS[at]])},
            given={name: each[at : at + 1] for name, each in GIVEN.items()},
        )  # fmt: skip
        assert torch.equal(alone.tokens[0], together.tokens[at])
    held = generate(model, PROMPTS, program, patches="text", **asked)
    assert torch.equal(held.tokens[:, 0], together.tokens[:, 0])  # up to here there is the prompt alone
    assert not torch.equal(held.tokens, together.tokens)
    plain = generate(model, PROMPTS, model.usual, new=4)
    for at, prompt in enumerate(PROMPTS):
        assert plain.tokens[at].tolist() == plainly(model, prompt, Program.parse(model.usual), 4, {}, {})


def test_a_generation_says_what_its_patches_acted_on() -> None:
    model, asked = KINDS["simple"](), Program.parse("F2").patch("loop[1].layer[1].row[-1].z", "*=0")
    for patches, said in (("prompt", "on the prompt alone"), ("text", "on all of the text")):
        for prompts in (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3]]):
            found = generate(model, prompts, asked, new=1, patches=patches)
            assert said in repr(found)
            assert found.table().about == {"patches": patches}
    plain = generate(model, torch.tensor([[1, 2]]), "F2", new=1)
    assert plain.patches is None
    assert "patches" not in repr(plain)


def test_texts_of_unequal_prompts_end_one_by_one() -> None:
    model = talker("everything")
    program = patched(model.usual)
    asked: dict[str, Any] = {"others": {"other": OTHERS}, "given": GIVEN, "new": 5}
    free = generate(model, PROMPTS, program, **asked).tokens.tolist()
    stop = free[1][0]
    found = generate(model, PROMPTS, program, stop=[stop], **asked)
    for at, tokens in enumerate(free):
        assert found.texts()[at] == (tokens[: tokens.index(stop)] if stop in tokens else tokens)
    assert found.texts()[1] == []


def test_rows_are_named_in_the_prompt() -> None:
    """What stands there is found once, in the prompt, though new tokens may say it again."""
    model = talker("simple")
    program = Program.parse("F2 F[layer[1].row[<3>].resid<-(F3)@other.row[-1]]")
    found = generate(model, PROMPTS[::2], program, new=4, others={"other": OTHERS[::2]}, patches="text")
    for at, (prompt, row) in enumerate(zip(PROMPTS[::2], (2, 2), strict=True)):
        fixed = Program.parse(f"F2 F[layer[1].row[{row}].resid<-(F3)@other.row[-1]]")
        other = {"other": torch.tensor([OTHERS[2 * at]])}
        assert found.tokens[at].tolist() == plainly(model, prompt, fixed, 4, other, {})


def test_what_has_no_meaning_on_a_longer_text_is_refused_before_anything_runs(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts = KINDS["simple"](), torch.randint(VOCABULARY, (2, 5))
    other = {"other": prompts.flip(0)}

    def project(*_: object) -> Tensor:
        raise AssertionError("something was computed")

    monkeypatch.setattr(model.layers[0], "project", project)

    def said(program: str, **asked: Any) -> str:
        return refused(InputError, lambda: generate(model, prompts, program, new=3, **asked))

    whole = said("F2 F[layer[1].z<-(F3)@other]", others=other, patches="text")
    assert "names rows from the start, and the inputs have 7 and 5 rows" in whole
    assert "its keys would be others" in said(
        "F2 F[layer[1].row[-1].pattern<-(F3)@other]", others=other, patches="text"
    )
    assert "tensor $x of shape [5, 12] does not fit layer[1].row[0,1,2,3,4,5,6].resid" in said(
        "F[layer[1].resid<-$x] F", given={"x": torch.zeros(5, D).double()}, patches="text"
    )
    assert "patches act on the prompt or text, not on 'txt' (nearest: text)" in said("F", patches="txt")
    assert "act on the prompt, so decoding must be cached (or patches='text')" in said(
        "F[layer[1].z<-(F2)] F", cached=False
    )
    ragged = refused(
        InputError, lambda: generate(model, PROMPTS, "F[layer[1].row[0].z<-(F)@other]", new=1, others={"other": OTHERS})
    )
    assert "counted from the start, and the inputs have unequal lengths" in ragged
