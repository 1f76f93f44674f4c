"""Drawn tokens: what is left to draw from, how often each comes, and that a batch gives what each gives alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.models import Sampling, generate, pad_left
from tests.kinds import KINDS, VOCABULARY

PROMPTS = [[1, 2, 3, 4, 5], [6, 5, 4], [2, 7, 3, 1, 0]]
PATCHED = "F2 F[layer[1].row[-1].z<-(F3)@other]"
OTHERS = [[5, 4, 3], [1, 1, 2, 6], [7, 7, 7]]


@pytest.fixture(scope="module")
def talker() -> Any:
    model = KINDS["simple"]()
    with torch.no_grad():
        model.head.bias.zero_()
    return model


def drawn(logits: list[float], draws: int, **how: Any) -> list[float]:
    """How often each token comes in so many draws."""
    rows = torch.tensor([logits]).expand(draws, -1)
    found = Sampling(**how, seed=list(range(draws))).draws(draws).next(rows)
    return torch.bincount(found, minlength=len(logits)).div(draws).tolist()


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.65}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.75}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_p": 1e-9}, [0, 1, 0, 0]),
        ({"top_k": 3, "top_p": 0.7}, [0, 4 / 7, 0, 3 / 7]),  # of the three, 4/9 and 3/9 come to 0.7
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"top_k": 100, "top_p": 1.0}, [0.1, 0.4, 0.2, 0.3]),
    ],
)
def test_tokens_come_as_often_as_they_are_likely(how: dict[str, Any], left: list[float]) -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log() + 5
    found = drawn(logits.tolist(), 2000, **how)
    for often, likely in zip(found, left, strict=True):
        assert abs(often - likely) < 4 * (likely * (1 - likely) / 2000) ** 0.5 + 1e-9


@pytest.mark.parametrize("program", ["F3", PATCHED])
@pytest.mark.parametrize("patches", ["prompt", "text"])
def test_a_batch_draws_what_each_draws_alone(talker: Any, program: str, patches: str) -> None:
    how: dict[str, Any] = {"temperature": 1.5, "top_k": 6, "top_p": 0.95}
    asked: dict[str, Any] = {"new": 6, "patches": patches}

    def others(some: list[list[int]]) -> dict[str, Any]:
        return {"others": {"other": some}} if program == PATCHED else {}

    seeds = [3, 3, 9]
    together = generate(talker, PROMPTS, program, sampling=Sampling(**how, seed=seeds), **asked, **others(OTHERS))
    for at, prompt in enumerate(PROMPTS):
        one = Sampling(**how, seed=seeds[at])
        alone = generate(talker, [prompt], program, sampling=one, **asked, **others([OTHERS[at]]))
        assert torch.equal(alone.tokens[0], together.tokens[at])
    if program == "F3":
        tokens, mask = pad_left(PROMPTS)
        anew = generate(talker, tokens, program, mask=mask, cached=False, new=6, sampling=Sampling(**how, seed=seeds))
        assert torch.equal(anew.tokens, together.tokens)
    again = generate(talker, PROMPTS, program, sampling=Sampling(**how, seed=[4, 4, 10]), **asked, **others(OTHERS))
    assert not torch.equal(again.tokens, together.tokens)


def test_one_prompt_goes_on_in_as_many_ways_as_seeds(talker: Any) -> None:
    prompts = torch.tensor([PROMPTS[0]] * 4)
    alike = generate(talker, prompts, new=8, sampling=Sampling(seed=5)).tokens
    assert torch.equal(alike, alike[:1].expand(4, -1))
    assert len(generate(talker, prompts, new=8, sampling=Sampling(seed=range(4))).tokens.unique(dim=0)) == 4


def test_nothing_to_draw_is_greedy(talker: Any) -> None:
    greedy = generate(talker, PROMPTS, new=5).tokens
    for how in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-12}):
        assert torch.equal(generate(talker, PROMPTS, new=5, sampling=Sampling(**how)).tokens, greedy)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"temperature": -1.0}, "a temperature is a number from 0, not -1.0 (nearest: 0)"),
        ({"temperature": float("nan")}, "a temperature is a number from 0, not nan"),
        ({"top_k": 0}, "top_k must be at least 1, not 0 (nearest: 1)"),
        ({"top_p": 0.0}, "top_p is a share above 0 and up to 1, not 0.0 (nearest: 1)"),
        ({"seed": -3}, "the seed of a draw must be at least 0, not -3"),
        ({"seed": [1, 2]}, "3 examples are drawn from one seed or from as many, not from 2"),
    ],
)
def test_what_cannot_be_drawn_gets_one_line(
    talker: Any, how: dict[str, Any], line: str, refused: Callable[..., str]
) -> None:
    def asked(program: str, **others: Any) -> Tensor:
        return generate(talker, PROMPTS, program, new=2, sampling=Sampling(**how), **others).tokens

    assert line in refused(InputError, asked, "F2")
    assert line in refused(InputError, lambda: asked(PATCHED, others={"other": OTHERS}))


def test_equally_likely_tokens_come_equally_often() -> None:
    assert max(drawn([0.0] * VOCABULARY, 2000)) < 0.17
