"""What is looked at of a model that has more than one stack and a readout, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope import check_model
from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.models.passes import one_pass
from loopscope.program import F, Program
from tests.kinds import (
    KINDS,
    Drawn,
    Ends,
    Full,
    Gated,
    Injection,
    Kind,
    KindLayer,
    Learned,
    Summed,
    TwoStacks,
    Valued,
    made,
)
from tests.tiny import tiny_tokens

TOKENS = tiny_tokens(2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_every_kind_fits_and_has_its_own_logits(kind: str) -> None:
    model = KINDS[kind]()
    program = Program(Program.parse(model.usual).steps)
    assert not check_model(model)
    run(KINDS[kind](), TOKENS, program)
    if kind == "two stacks":
        model.program = lambda loops, start=None: Program.parse(f"(L2 H){loops}")
        model.readings = lambda loops: tuple(f"h{3 * loop}" for loop in range(1, loops + 1))
    expected = plain_run(model, {"main": TOKENS}, program).read(program.points[-1])
    assert check_model(model, TOKENS, expected.float())


@pytest.mark.parametrize("kind", KINDS)
def test_the_executor_says_what_the_plain_run_says(kind: str) -> None:
    model = KINDS[kind]()
    for program in (Program(Program.parse(model.usual).steps), Program.parse(model.usual)):
        plain = plain_run(model, {"main": TOKENS}, program)
        for point, logits in run(model, TOKENS, program, read="all")[program].logits_at.items():
            torch.testing.assert_close(logits, plain.read(point)[:, -1:], rtol=0, atol=1e-10)


def natural(kind: str) -> tuple[Any, Any]:
    """A model, and how one would adapt it in the natural way: embed, the layers of the loop, and read."""
    whole, plain = KINDS[kind](), KINDS["simple"]()
    plain.load_state_dict({name: whole.state_dict()[name] for name in plain.state_dict()})
    return whole, plain


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("injection", "off): an injection needs `enter`"),
        ("prelude and coda", "layers around the loop `prelude` and `coda`"),
        ("norm of the sum", "a norm of the sum `join`"),
        ("parallel", "of no number of calls (nearest: F"),
        ("softcap", "of no number of calls (nearest: F"),
        ("full mask", "they agree, after F3, with a full `mask` of the layers, not a causal one"),
    ],
)
def test_a_silent_failure_becomes_one_line(kind: str, says: str, refused: Callable[..., str]) -> None:
    whole, plain = natural(kind)
    expected = plain_run(whole, {"main": TOKENS}, F**3).read("h3")
    said = refused(InputError, lambda: check_model(plain, TOKENS, expected))
    assert said.startswith("the reference logits are those of no number of calls")
    assert says in said

    def forward(tokens: Tensor) -> Tensor:
        return one_pass(whole, tokens, F**3).read("h3")

    said = refused(InputError, lambda: check_model(plain, TOKENS, forward=forward))
    assert said.startswith("the model's own forward gives logits that no number of calls gives")
    assert check_model(whole, TOKENS, expected, forward=forward)


def test_a_mask_that_is_too_wide_is_found_out(refused: Callable[..., str]) -> None:
    causal, full = made(Kind), made(Kind, Full)
    full.load_state_dict(causal.state_dict())
    expected = plain_run(causal, {"main": TOKENS}, F**2).read("h2")
    said = refused(InputError, lambda: check_model(full, TOKENS, expected))
    assert "they agree, after F2, with a causal `mask` of the layers, not the one they have" in said


def test_references_that_cannot_be_compared_are_refused(refused: Callable[..., str]) -> None:
    model = made(Kind)
    right = plain_run(model, {"main": TOKENS}, F**16).read("h16")
    assert check_model(model, TOKENS, right)
    wrong: dict[str, Callable[[], object]] = {
        "reference logits of tokens [2, 7] must be [2, 7, classes], not float64 [2, 6, 8]": lambda: check_model(
            model, TOKENS, right[:, 1:]
        ),
        "cannot be compared with a reference of float64 [2, 7, 5]": lambda: check_model(model, TOKENS, right[..., :5]),
        "hold NaN or infinity": lambda: check_model(model, TOKENS, right * float("nan")),
        "reference logits are those of some tokens": lambda: check_model(model, None, right),
    }
    for says, ask in wrong.items():
        assert says in refused(InputError, ask)


def test_a_model_of_several_stacks_is_compared_by_a_program(refused: Callable[..., str]) -> None:
    model = KINDS["two stacks"]()
    program = Program.parse("(L2 H)2")
    right = plain_run(model, {"main": TOKENS}, program).read("h6")

    def forward(tokens: Tensor) -> Tensor:
        return one_pass(model, tokens, program).read("h6")

    for ask in (lambda: check_model(model, TOKENS, right), lambda: check_model(model, TOKENS, forward=forward)):
        assert refused(InputError, ask).startswith(
            "a model of several stacks is compared by its `program(loops, start)`"
        )
    assert check_model(model, TOKENS, right, forward=forward, program="(L2 H)3")
    said = refused(InputError, lambda: check_model(model, TOKENS, right, program="(L H)3"))
    assert "the reference logits are those of no number of calls (nearest: (L H)3, " in said
    said = refused(InputError, lambda: check_model(model, TOKENS, right, program="L J:x H"))
    assert said == "logits are compared after calls alone, from tokens, not after 'L J:x H'"


def test_a_stack_of_another_name_is_compared() -> None:
    simple = KINDS["simple"]()
    right = plain_run(simple, {"main": TOKENS}, F**3).read("h3")
    simple.stacks = {"G": simple.layers}
    assert check_model(simple, TOKENS, right)


def mixed(x: Tensor) -> Tensor:
    return x - x.mean(-2, keepdim=True)


class MixingSettle(Ends):
    def settle(self, x: Tensor) -> Tensor:
        return mixed(x)


class MixingLeave(Ends):
    def leave(self, h: Tensor) -> Tensor:
        return mixed(h)


class MixingEnter(Injection):
    def enter(self, h: Tensor, e: Tensor, call: int) -> Tensor:
        return h + mixed(e)


class WideEnter(Injection):
    def enter(self, h: Tensor, e: Tensor, call: int) -> Tensor:
        return torch.cat([h, e], -1)


class CountingStart(Drawn):
    """Draws as many rows as there are, not those that are asked for."""

    def start(self, e: Tensor, seed: int, rows: Tensor) -> Tensor:
        return super().start(e, seed, torch.arange(e.shape[-2]))


class NarrowStart(TwoStacks):
    def start(self, e: Tensor, seed: int) -> Tensor:
        return e


class CountingEmbed(Learned):
    def embed(self, tokens: Tensor, rows: Tensor) -> Tensor:
        return self.table(tokens.cumsum(1) % 8)


class MixingJoin(Summed):
    def join(self, x: Tensor, out: Tensor, which: str) -> Tensor:
        return x + (mixed(out) if which == "mlp" else out)


class MixingGate(Gated):
    def attn_out(self, z: Tensor, x: Tensor) -> Tensor:
        return super().attn_out(z, mixed(x))


class MixingSide(Valued):
    def project(self, x: Tensor, rows: Tensor, parts: str, side: Any = None) -> tuple[Tensor, ...]:
        return super().project(x, rows, parts, side._replace(tokens=side.tokens.cumsum(-1)))


class Blind(KindLayer):
    """Sees what is before a row, and not the row."""

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return keys < queries[:, None]


class Numbers(KindLayer):
    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return torch.zeros(len(queries), len(keys))


class NoCap(KindLayer):
    softcap = 0.0


@pytest.mark.parametrize(
    ("kind", "layer", "says"),
    [
        (MixingSettle, None, "the model's settle gives a row another value"),
        (MixingLeave, None, "the model's leave gives a row another value"),
        (MixingEnter, None, "the model's enter gives a row another value"),
        (WideEnter, None, "enter must give a tensor of shape [2, 3, 12], not float64 [2, 3, 24]"),
        (CountingStart, None, "the model's start gives a row another value"),
        (NarrowStart, None, "start must give a tensor of shape [2, 3, 24], not float64 [2, 3, 12]"),
        (CountingEmbed, None, "the model's embed gives a row another value"),
        (Kind, MixingJoin, "the model's layer 1's join gives a row another value"),
        (Kind, MixingGate, "the model's layer 1's attn_out gives a row another value"),
        (Kind, MixingSide, "the model's layer 1's project gives a row another value"),
        (Ends, MixingJoin, "the model's prelude layer 1's join gives a row another value"),
        (TwoStacks, MixingJoin, "the model's layer 1 of L's join gives a row another value"),
        (Kind, Blind, "the model's layer 1's mask does not let row 0 see itself"),
        (Kind, Numbers, "a layer's mask must give booleans ["),
        (Kind, NoCap, "the model's layer 1's softcap must be a finite number above 0, not 0.0"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused_when_first_used(
    kind: type[Kind], layer: type[KindLayer] | None, says: str, refused: Callable[..., str]
) -> None:
    model = made(kind, layer)
    program = Program.parse(model.usual)
    assert says in refused(InputError, run, model, TOKENS, program)
    assert says in refused(InputError, lambda: one_pass(model, TOKENS, program))
    assert says in refused(InputError, check_model, model)
