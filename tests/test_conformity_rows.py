"""Models that mix rows or examples somewhere: each would give other numbers in the executor than in a plain run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope import check_model
from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.models.passes import one_pass
from loopscope.program import Program
from loopscope.protocol import Side
from tests.kinds import KINDS, Drawn, Ends, Full, Injection, Kind, KindLayer, TwoStacks, Valued, made
from tests.tiny import tiny_tokens

TOKENS = tiny_tokens(2)


def following(x: Tensor) -> Tensor:
    """The next row; none behind the last."""
    return torch.cat([x[..., 1:, :], torch.zeros_like(x[..., :1, :])], -2)


def inner(x: Tensor) -> Tensor:
    """A mean of a row and its neighbours, but of rows that have both."""
    mean = (x[..., :-2, :] + x[..., 1:-1, :] + x[..., 2:, :]) / 3
    return x if x.shape[-2] < 3 else torch.cat([x[..., :1, :], mean, x[..., -1:, :]], -2)


class NextClose(Kind):
    def close(self, x: Tensor) -> Tensor:
        return x + following(x)


class InnerClose(Kind):
    def close(self, x: Tensor) -> Tensor:
        return inner(x)


class EarlierExamples(Kind):
    """Later examples look at earlier ones."""

    def close(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


class LaterExamples(Kind):
    def close(self, x: Tensor) -> Tensor:
        return x.flip(0).cumsum(0).flip(0)


class NextEnter(Injection):
    def enter(self, h: Tensor, e: Tensor, call: int) -> Tensor:
        return h + following(e)


class CountsFromTheEnd(Injection):
    def enter(self, h: Tensor, e: Tensor, call: int) -> Tensor:
        return h + e * torch.arange(h.shape[-2], 0, -1)[:, None]


class LateEnter(Injection):
    """Mixes rows from its last call on."""

    def enter(self, h: Tensor, e: Tensor, call: int) -> Tensor:
        return h + (e if call < self.loops else e.cumsum(-2))


class SilentEnter(Kind):
    """An `enter` that does not look at the input."""

    injects = False

    def enter(self, h: Tensor, e: Tensor | None, call: int) -> Tensor:
        return h.cumsum(-2)


class SumsBackward(Ends):
    def leave(self, h: Tensor) -> Tensor:
        return h.flip(-2).cumsum(-2).flip(-2)


class NextStart(Drawn):
    def start(self, e: Tensor, seed: int, rows: Tensor) -> Tensor:
        return following(e)


class NextRead(Kind):
    def read(self, h: Tensor) -> Tensor:
        return super().read(h + following(h))


class NextMlp(KindLayer):
    def mlp_hidden(self, x: Tensor) -> Tensor:
        return super().mlp_hidden(x + following(x))


class NextProject(KindLayer):
    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        return super().project(x + following(x), rows, parts)


class ScaledByLength(KindLayer):
    """Queries grow with the length of the input, as far as they see it."""

    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        found = zip(parts, super().project(x, rows, parts), strict=True)
        return tuple(each * (rows.max() + 1.0).log() if part == "q" else each for part, each in found)


class Neighbours(KindLayer):
    """Takes the rows that it is given for neighbours."""

    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        return super().project(x, rows[0] + torch.arange(len(rows)), parts)


class NextToken(Valued):
    def project(self, x: Tensor, rows: Tensor, parts: str, side: Side | None = None) -> tuple[Tensor, ...]:
        assert side is not None
        return super().project(x, rows, parts, side._replace(tokens=side.tokens.flip(-1)))


class NextJoin(KindLayer):
    def join(self, x: Tensor, out: Tensor, which: str) -> Tensor:
        return x + (following(out) if which == "attn" else out)


class OneQuery(KindLayer):
    """A mask that goes by how many queries there are, not by where they stand."""

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return torch.ones(len(queries), len(keys)).tril().bool()


class SortedKeys(KindLayer):
    """A mask that takes the keys for all rows from the first on."""

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return torch.arange(len(keys)) <= queries[:, None]


class LastSeesAll(Full):
    """A mask that goes by the last key that is there; only behind the third row does it matter."""

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (keys <= queries[:, None]) | ((keys == keys.max()) & (keys > 3))


MIXING: dict[str, tuple[Callable[[], Any], str]] = {
    "close: next row": (lambda: made(NextClose), "the model's close gives a row another value"),
    "close: neighbours": (lambda: made(InnerClose), "the model's close gives a row another value"),
    "close: earlier examples": (lambda: made(EarlierExamples), "the model's close gives a row another value"),
    "close: later examples": (lambda: made(LaterExamples), "the model's close gives a row another value"),
    "enter: next input": (lambda: made(NextEnter), "the model's enter gives a row another value"),
    "enter: from the end": (lambda: made(CountsFromTheEnd), "the model's enter gives a row another value"),
    "enter: in the last call": (lambda: made(LateEnter), "the model's enter gives a row another value"),
    "enter: no input": (lambda: made(SilentEnter), "the model's enter gives a row another value"),
    "leave: sums backward": (lambda: made(SumsBackward), "the model's leave gives a row another value"),
    "start: next row": (lambda: made(NextStart), "the model's start gives a row another value"),
    "read: next row": (lambda: made(NextRead), "the model's read gives a row another value"),
    "mlp": (lambda: made(Kind, NextMlp), "layer 1's mlp_hidden gives a row another value"),
    "project": (lambda: made(Kind, NextProject), "layer 1's project gives a row another value"),
    "project: length": (lambda: made(Kind, ScaledByLength), "layer 1's project gives a row another value"),
    "project: neighbours": (lambda: made(Kind, Neighbours), "layer 1's project gives a row another value"),
    "project: tokens": (lambda: made(Kind, NextToken), "layer 1's project gives a row another value"),
    "project of a coda": (lambda: made(Ends, NextProject), "prelude layer 1's project gives a row another value"),
    "join": (lambda: made(TwoStacks, NextJoin), "layer 1 of L's join gives a row another value"),
    "mask: one query": (lambda: made(Kind, OneQuery), "layer 1's mask lets row 1 see other keys alone"),
    "mask: keys": (lambda: made(Kind, SortedKeys), "layer 1's mask says another thing of some keys than of all"),
    "mask: last key": (lambda: made(Kind, LastSeesAll), "layer 1's mask says another thing of some keys than of all"),
}


@pytest.mark.parametrize("fault", MIXING)
def test_what_mixes_rows_is_refused_when_first_used(fault: str, refused: Callable[..., str]) -> None:
    make, says = MIXING[fault]
    model = make()
    program = Program.parse(model.usual)
    assert says in refused(InputError, run, model, TOKENS, program)
    assert says in refused(InputError, lambda: one_pass(model, TOKENS, program))
    assert says in refused(InputError, check_model, model, TOKENS)


class Flagged(KindLayer):
    """Mixes rows where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.mixes: bool | int = False

    def mlp_hidden(self, x: Tensor) -> Tensor:
        return super().mlp_hidden(following(x) if self.mixes else x)


@pytest.mark.parametrize("mixes", [True, 1])
def test_every_layer_of_one_class_is_looked_at(mixes: bool | int, refused: Callable[..., str]) -> None:
    model = made(Kind, Flagged)
    model.stack[1].mixes = mixes
    assert "layer 2's mlp_hidden gives a row another value" in refused(InputError, check_model, model)
    if mixes is True:  # `run` tells layers of one class apart by their flags
        assert "layer 2's mlp_hidden gives a row another value" in refused(InputError, run, model, TOKENS, "F2")


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_is_refused(kind: str) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = KINDS[kind](dtype)
        for tokens in (TOKENS, TOKENS[:, :3], TOKENS[:1, :2]):
            check_model(model, tokens)
            run(KINDS[kind](dtype), tokens, Program(Program.parse(model.usual).steps))
