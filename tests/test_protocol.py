"""Any model with the members of `protocol.py` can be run and patched: here one of another make, with rotary rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.execute.sweeping import sweep
from loopscope.program import F, J, Run
from loopscope.protocol import Side
from tests.kinds import KINDS, Drawn, Gated, Injection, Kind, Learned, TwoStacks, Valued
from tests.own_model import D, OwnModel
from tests.tiny import ROWS, every_address, tiny_tokens


def test_a_model_of_another_make_is_run_and_patched_exactly() -> None:
    model, tokens, other = OwnModel(), tiny_tokens(4, shared=3), tiny_tokens(4, seed=1)
    maps = {"turn": lambda h: h.roll(1, -1)}
    base = F | J("turn") | F
    places = [each for each in every_address(2, 2)[::3] if each.site.component != "mlp_hidden"]  # its layers say none
    found = sweep(model, tokens, base, places, Run(F**2, "other"), others={"other": other}, maps=maps)
    for place, logits in zip(places, found.logits, strict=True):
        cell = base.patch(place, Run(F**2, "other"))
        plain = plain_run(model, {"main": tokens, "other": other}, cell, maps=maps)
        torch.testing.assert_close(logits, model.read(plain.states["h2"][:, -1:]), rtol=0, atol=1e-11)


def test_nothing_but_an_entering_state_may_be_asked_for() -> None:
    """Keeping only `resid` of a call leaves no row to project; the layer is not called without rows."""
    model, tokens = OwnModel(), tiny_tokens(2)
    trace = run(model, tokens, "F2", read="h1", keep="loop[2].layer[1].resid")["F2"]
    (kept,) = trace.kept.values()
    plain = plain_run(model, {"main": tokens}, F**2)
    torch.testing.assert_close(kept, plain.components[2, 1, "resid"], rtol=0, atol=1e-12)
    assert kept.shape == (2, ROWS, D)


# Optional arguments ---------------------------------------------------------------------------------------------------


class NamedGate(Gated):
    def attn_out(self, z: Tensor, *, x: Tensor | None = None) -> Tensor:  # type: ignore[override]
        assert x is not None
        return super().attn_out(z, x)


class NamedSide(Valued):
    def project(  # type: ignore[override]
        self, x: Tensor, rows: Tensor, parts: str, *, side: Side | None = None
    ) -> tuple[Tensor, ...]:
        return super().project(x, rows, parts, side)


class NamedRows(Learned):
    def embed(self, tokens: Tensor, *, rows: Tensor | None = None) -> Tensor:  # type: ignore[override]
        assert rows is not None
        return super().embed(tokens, rows)


class NamedStartRows(Drawn):
    def start(self, e: Tensor, seed: int, *, rows: Tensor | None = None) -> Tensor:  # type: ignore[override]
        assert rows is not None
        return super().start(e, seed, rows)


class NamedStack(TwoStacks):
    def enter(self, h: Tensor, e: Tensor, call: int, *, stack: str = "L") -> Tensor:  # type: ignore[override]
        return super().enter(h, e, call, stack)


def as_kind(name: str, changed: type[Any]) -> Any:
    """A model of a kind whose class, or that of whose layers, is another with the same weights."""
    model = KINDS[name]()
    for each in [model] if issubclass(changed, Kind) else model.layers:
        each.__class__ = changed
    return model


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("gated", NamedGate),
        ("value embeddings", NamedSide),
        ("learned positions", NamedRows),
        ("drawn start", NamedStartRows),
        ("two stacks", NamedStack),
    ],
)
def test_arguments_by_name_alone_are_given(kind: str, changed: type[Any]) -> None:
    model, same = KINDS[kind](), as_kind(kind, changed)
    tokens = tiny_tokens(2)
    found, expected = (run(each, tokens, model.usual)[model.usual].logits for each in (same, model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


class StreamGate(Gated):
    def attn_out(self, z: Tensor, stream: Tensor | None = None) -> Tensor:
        return super().attn_out(z, torch.zeros(D).double() if stream is None else stream)


class OtherSide(Valued):
    def project(self, x: Tensor, rows: Tensor, parts: str, about: Side | None = None) -> tuple[Tensor, ...]:
        return super().project(x, rows, parts, about)


class OtherRows(Drawn):
    def start(self, e: Tensor, seed: int, positions: Tensor | None = None) -> Tensor:
        return e


class OtherStack(TwoStacks):
    def enter(self, h: Tensor, e: Tensor, call: int, which: str = "L") -> Tensor:
        return super().enter(h, e, call, which)


class NoStack(TwoStacks):
    def enter(self, h: Tensor, e: Tensor, call: int) -> Tensor:  # type: ignore[override]
        return super().enter(h, e, call, "L")


class MoreOfEnter(Injection):
    def enter(self, h: Tensor, e: Tensor, call: int, scale: float = 1.0) -> Tensor:
        return h + e * scale


@pytest.mark.parametrize(
    ("kind", "changed", "says"),
    [
        (
            "gated",
            StreamGate,
            "argument 2 of the model's attn_out is `stream`, which is never given: it must be called",
        ),
        ("value embeddings", OtherSide, "argument 4 of the model's project is `about`"),
        ("drawn start", OtherRows, "argument 3 of the model's start is `positions`"),
        ("two stacks", OtherStack, "argument 4 of the model's enter is `which`"),
        ("two stacks", NoStack, "the model has several stacks, so its enter must take `stack`, whose call it is"),
        ("injection", MoreOfEnter, "argument 4 of the model's enter is `scale`"),
    ],
)
def test_arguments_that_would_never_be_given_are_refused(
    kind: str, changed: type[Any], says: str, refused: Callable[..., str]
) -> None:
    model = as_kind(kind, changed)
    assert says in refused(InputError, run, model, tiny_tokens(2), model.usual)


def test_what_else_an_embedding_takes_keeps_its_default() -> None:
    class Scaled(Kind):
        def embed(self, tokens: Tensor, scale: float = 1.0) -> Tensor:
            return super().embed(tokens) * scale

    tokens = tiny_tokens(2)
    found, expected = (run(each, tokens, "F2")["F2"].logits for each in (as_kind("simple", Scaled), KINDS["simple"]()))
    assert torch.equal(found, expected)
