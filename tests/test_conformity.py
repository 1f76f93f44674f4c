"""A model that does not fit the protocol is refused when it is first used; one that fits never is."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from loopscope import check_model
from loopscope.address import grid
from loopscope.errors import InputError
from loopscope.execute import conformity
from loopscope.execute.executor import run
from loopscope.execute.sweeping import sweep
from loopscope.model import attention_pattern, causal
from loopscope.models.folders import build
from loopscope.models.passes import states
from loopscope.program import F
from loopscope.protocol import TokenMap
from tests.ouro_tiny import CONFIG, tiny_ouro
from tests.own_model import OwnModel
from tests.stack_tiny import tiny_stack
from tests.tiny import tiny_model, tiny_tokens

D, H, CLASSES = 16, 4, 8
TOKENS = tiny_tokens(2)


class OwnLayer(nn.Module):
    """A layer as people write them, with positions turned into the keys."""

    scale = (D // H) ** -0.5

    def __init__(self, heads: int = H) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        found = dict(zip("qkv", self.qkv(self.norm(x)).chunk(3, -1), strict=True))
        found["k"] = found["k"] * (1 + 0.1 * rows[:, None].to(x.dtype))
        return tuple(found[part].unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in parts)

    def attn_out(self, z: Tensor) -> Tensor:
        return self.out(z.transpose(-2, -3).flatten(-2))

    def mlp_out(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(self.norm(x))))


class Own(nn.Module):
    """A looped model with a forward of its own, which is a plain run."""

    heads, width, head_size, loops = H, D, D // H, 3

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.head = nn.Embedding(CLASSES, D), nn.Linear(D, CLASSES)
        self.layers = nn.ModuleList([OwnLayer(), OwnLayer()])

    def embed(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)

    def close(self, h: Tensor) -> Tensor:
        return h * 0.9

    def read(self, h: Tensor) -> Tensor:
        return self.head(h)

    def call(self, h: Tensor) -> Tensor:
        rows = torch.arange(h.shape[1])
        for layer in self.layers:
            q, k, v = layer.project(h, rows, "qkv")
            h = h + layer.attn_out(attention_pattern(q, k, layer.scale, causal(rows, rows)) @ v)
            h = h + layer.mlp_out(h)
        return self.close(h)

    def forward(self, tokens: Tensor) -> Any:
        h = self.embed(tokens)
        for _ in range(self.loops):
            h = self.call(h)
        return self.read(h)


class Injected(Own):
    """The input is added again in every call."""

    def forward(self, tokens: Tensor, loops: int = 3) -> Any:
        h = e = self.embed(tokens)
        for _ in range(loops):
            h = self.call(h + e)
        return self.read(h)


class Prelude(Own):
    """A layer before the loop, which the members do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.before = OwnLayer()

    def forward(self, tokens: Tensor) -> Any:
        h = self.embed(tokens)
        h = h + self.before.mlp_out(h)
        for _ in range(self.loops):
            h = self.call(h)
        return self.read(h)


class PreludeInEmbed(Own):
    def embed(self, tokens: Tensor) -> Tensor:
        return self.table(tokens).cumsum(1)


class LooksTwoBack(Own):
    def embed(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens)
        return h + nn.functional.pad(h[:, :-2], (0, 0, 2, 0))


class EmbedsTogether(Own):
    def embed(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens)
        return h - h.mean((0, 1), keepdim=True)


class EmbedsWithNoise(Own):
    def embed(self, tokens: Tensor) -> Tensor:
        return self.table(tokens) + torch.randn(1)


class InjectedDict(Injected):
    def forward(self, tokens: Tensor, loops: int = 3) -> Any:
        return {"loss": None, "logits": super().forward(tokens, loops)}


class InjectedSecond(Injected):
    def forward(self, tokens: Tensor, loops: int = 3) -> Any:
        logits = super().forward(tokens, loops)
        return logits.mean(), logits


class BothWays(Own):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens).flip(1)


class FewerHeads(Own):
    heads = 2


class SmallerHeads(Own):
    head_size = 2


class OtherLayer(Own):
    """Only its second layer has other heads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1] = OwnLayer(heads=2)


class Wider(Own):
    width = D + 1


class MixingClose(Own):
    def close(self, h: Tensor) -> Tensor:
        return h - h.mean(-2, keepdim=True)


class MixingRead(Own):
    def read(self, h: Tensor) -> Tensor:
        return self.head(h.cumsum(-2))


class MixingExamples(Own):
    def close(self, h: Tensor) -> Tensor:
        return h - h.mean(0, keepdim=True)


class CountsItself(OwnLayer):
    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        return super().project(x, torch.arange(len(rows)), parts)


class MixingMlp(OwnLayer):
    def mlp_out(self, x: Tensor) -> Tensor:
        return super().mlp_out(x.cumsum(-2))


class MixingOut(OwnLayer):
    def attn_out(self, z: Tensor) -> Tensor:
        return super().attn_out(z.cumsum(-2))


class FlatOut(OwnLayer):
    def attn_out(self, z: Tensor) -> Tensor:
        return super().attn_out(z).flatten(-2)


class PartsInOneOrder(OwnLayer):
    """Gives keys where queries alone are asked for."""

    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        return super().project(x, rows, "k" if parts == "q" else parts)


class WideKeys(OwnLayer):
    """Its positions turn the keys of a model in half precision into float32."""

    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        found = super().project(x, rows, parts)
        return tuple(each.double() if part == "k" else each for part, each in zip(parts, found, strict=True))


class Unscaled(OwnLayer):
    scale = float("nan")


class Remembers(Own):
    """Injects what it embedded last in `close`, which then fits no other rows."""

    def embed(self, tokens: Tensor) -> Tensor:
        self.entered = self.table(tokens)
        return self.entered

    def close(self, h: Tensor) -> Tensor:
        return h + self.entered


def with_layers(kind: type[OwnLayer]) -> Own:
    model = Own()
    model.layers = nn.ModuleList([kind(), kind()])
    return model


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Injected, "own forward gives logits that no number of calls gives"),
        (InjectedDict, "own forward gives logits that no number of calls gives"),
        (InjectedSecond, "own forward gives logits that no number of calls gives"),
        (Prelude, "own forward gives logits that no number of calls gives"),
        (BothWays, "own forward gives logits that no number of calls gives"),
        (PreludeInEmbed, "the model's embed gives a row another value beside other rows"),
        (LooksTwoBack, "the model's embed gives a row another value beside other rows"),
        (EmbedsTogether, "the model's embed gives a row another value beside other rows"),
        (EmbedsWithNoise, "the model's embed gives a row another value beside other rows"),
        (FewerHeads, "layer 1's project of 'q' must give a tensor of shape [2, 2, 3, 4] (heads 2, head_size 4), not"),
        (SmallerHeads, "(heads 4, head_size 2), not float32 [2, 4, 3, 4]"),
        (OtherLayer, "layer 2's project of 'q' must give a tensor of shape [2, 4, 3, 4]"),
        (Wider, "embed must give a tensor of shape [1, 3, 17], not float32 [1, 3, 16]"),
        (MixingClose, "the model's close gives a row another value"),
        (MixingExamples, "the model's close gives a row another value"),
        (MixingRead, "the model's read gives a row another value"),
        (Remembers, "the model's close does not take"),
        (lambda: with_layers(CountsItself), "layer 1's project gives a row another value"),
        (lambda: with_layers(PartsInOneOrder), "layer 1's project gives a row another value"),
        (lambda: with_layers(MixingMlp), "layer 1's mlp_out gives a row another value"),
        (lambda: with_layers(MixingOut), "layer 1's attn_out gives a row another value"),
        (lambda: with_layers(FlatOut), "layer 1's attn_out must give a tensor of shape [2, 3, 16], not"),
        (lambda: with_layers(WideKeys), "layer 1's project must give one type, not float32, float64, float32"),
        (lambda: with_layers(Unscaled), "layer 1's scale must be a finite number"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_when_first_used(
    make: Callable[[], Own], says: str, refused: Callable[..., str]
) -> None:
    model = cast("Any", make())
    assert says in refused(InputError, run, model, TOKENS, "F2")
    assert says in refused(InputError, lambda: sweep(model, TOKENS, "F2", grid("z", loops=[1], layers=[1]), F**2))
    refused(InputError, check_model, model)


def forwards() -> list[Own]:
    """Correct models whose own forward cannot be compared, or is one of many kinds."""

    class Named(Own):
        def forward(self, tokens: Tensor) -> Any:
            return SimpleNamespace(logits=super().forward(tokens))

    class LastRow(Own):
        def forward(self, tokens: Tensor) -> Any:
            return super().forward(tokens)[:, -1]

    class Every(Own):
        def forward(self, tokens: Tensor) -> Any:
            return torch.stack([super(type(self), self).forward(tokens) * share for share in (0.5, 1)])

    class EveryInside(Own):
        def forward(self, tokens: Tensor) -> Any:
            return torch.stack([super(type(self), self).forward(tokens) * share for share in (0.5, 1)], 1)

    class Long(Own):
        loops = 40

    class Short(Own):
        def forward(self, tokens: Tensor) -> Any:
            raise ValueError(f"a text of 512 tokens is needed, not {tokens.shape[1]}")

    class Loss(Own):
        def forward(self, tokens: Tensor) -> Any:
            return super().forward(tokens).logsumexp(-1).mean()

    class More(Own):
        def forward(self, tokens: Tensor, mask: Tensor) -> Any:
            raise AssertionError(mask)

    class Random(Own):
        def forward(self, tokens: Tensor) -> Any:
            return nn.functional.dropout(super().forward(tokens), 0.5)

    class NoForward(Own):
        forward = nn.Module.forward

    return [kind() for kind in (Own, Named, LastRow, Every, EveryInside, Long, Short, Loss, More, Random, NoForward)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_models_that_fit_are_not_refused(dtype: torch.dtype) -> None:
    for kind in ("graph", "parity", "relations"):
        run(tiny_model(kind, dtype=dtype), TOKENS, "F2")
        assert check_model(tiny_model(kind, dtype=dtype))
    for model in (tiny_ouro(dtype), tiny_stack("qwen3").to(dtype), tiny_stack("llama", "norm").to(dtype)):
        run(model, TOKENS, "F2")
        fresh = copy.deepcopy(model)
        with torch.no_grad():
            states(fresh, TOKENS, F**2)
        assert check_model(fresh)
    for own in forwards():
        run(cast("Any", own.to(dtype)), TOKENS, "F2")
    if dtype == torch.float64:
        run(OwnModel(), TOKENS, "F2")
        assert not check_model(OwnModel())


def test_what_was_compared_is_told_and_may_be_left_out(refused: Callable[..., str]) -> None:
    told = [check_model(cast("Any", model)) for model in forwards()]
    assert told == [True, True, True, True, True, True, False, False, False, False, False]
    model = cast("Any", Injected())
    assert not check_model(model, forward=False)
    run(model, TOKENS, "F2")  # whoever knows better is not asked again
    original = Own()
    assert check_model(cast("Any", Own()), forward=original)
    assert "no number of calls" in refused(InputError, lambda: check_model(cast("Any", Own()), forward=Injected()))
    assert "gives no logits" in refused(InputError, lambda: check_model(OwnModel(), forward=lambda _: None))
    assert "two different tokens" in refused(InputError, check_model, OwnModel(), torch.tensor([[1, 1]]))


class Squaring(OwnLayer):
    """No norm before a branch, and an MLP that grows as the square of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.Identity(), nn.Linear(D, 4 * D)  # type: ignore[assignment]

    def mlp_out(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * up)


class NormsOfSums(Own):
    """Its own forward norms every sum: without these norms numbers leave the range after a few calls."""

    loops = 2

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Squaring(), Squaring()])

    def join(self, x: Tensor, out: Tensor, which: str) -> Tensor:
        return nn.functional.rms_norm(x + out, (D,))

    def call(self, h: Tensor) -> Tensor:
        rows = torch.arange(h.shape[1])
        for layer in self.layers:
            q, k, v = layer.project(h, rows, "qkv")
            h = self.join(h, layer.attn_out(attention_pattern(q, k, layer.scale, causal(rows, rows)) @ v), "attn")
            h = self.join(h, layer.mlp_out(h), "mlp")
        return self.close(h)


class Stormy(Injected):
    """Its weights are so large that after ten calls a rounding has grown to the size of the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Squaring(), Squaring()])
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.layers.parameters():
                parameter.normal_(std=0.3, generator=generator)

    def close(self, h: Tensor) -> Tensor:
        return nn.functional.rms_norm(h, (D,))


@pytest.mark.parametrize("kind", [NormsOfSums, Stormy])
def test_a_forgotten_member_is_found_where_numbers_grow_wild(kind: type[Own], refused: Callable[..., str]) -> None:
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    for use in (lambda model: check_model(model, tokens), lambda model: run(model, tokens, "F2")):
        said = refused(InputError, use, kind())
        assert "own forward gives logits that no number of calls gives (nearest: " in said
    right = cast("Any", kind())
    if kind is Stormy:
        right.enter = lambda h, e, call: h + e
    else:
        for layer in right.layers:
            layer.join = right.join
    assert check_model(right, tokens)


def test_logits_that_are_a_little_off_are_others(refused: Callable[..., str]) -> None:
    model = tiny_model(dtype=torch.float32)
    logits = run(model, TOKENS, F**2, rows=range(TOKENS.shape[1]))[F**2].logits
    assert check_model(model, TOKENS, logits * (1 + 1e-5), forward=False)
    said = refused(InputError, lambda: check_model(model, TOKENS, logits * 1.004, forward=False))
    assert "those of no number of calls (nearest: F2" in said


def test_a_model_is_looked_at_once_and_again_when_it_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    rows = conformity._check_rows

    def noting(model: Any, *arguments: Any, **named: Any) -> bool:
        looked.append(type(model))
        return rows(model, *arguments, **named)

    monkeypatch.setattr(conformity, "_check_rows", noting)
    model = cast("Any", Own())
    for _ in range(3):
        run(model, TOKENS, "F2")
    assert len(looked) == 1
    model.heads = 2
    with pytest.raises(InputError, match="heads 2"):
        run(model, TOKENS, "F2")
    single = tiny_model()
    for rows_given, times in ((TOKENS[:, :1], 3), (TOKENS, 4), (TOKENS, 4), (TOKENS[:, :1], 4)):
        run(single, rows_given, "F2")
        assert len(looked) == times
    key = id(single)
    assert key in conformity._seen
    del single
    gc.collect()
    assert key not in conformity._seen


def test_an_outline_is_not_looked_at() -> None:
    conformity.ensure(build(CONFIG), TOKENS)


MIXING: dict[str, TokenMap] = {
    "rows": lambda h: h - h.mean(-2, keepdim=True),
    "all rows": lambda h: h - h.mean((0, 1), keepdim=True),
    "the next row": lambda h: h + torch.cat([h[:, 1:], 0 * h[:, :1]], 1),
    "examples": lambda h: h.flip(0),
    "earlier examples": lambda h: h.cumsum(0),
}


@pytest.mark.parametrize("mix", MIXING.values(), ids=MIXING)
def test_a_map_that_mixes_rows_is_refused(refused: Callable[..., str], mix: TokenMap) -> None:
    said = refused(InputError, lambda: run(tiny_model(), TOKENS, "F J:mix F", maps={"mix": mix}))
    assert said.startswith("map 'mix' gives a row another value beside other rows")


def test_what_is_no_map_is_refused(refused: Callable[..., str]) -> None:
    wrong: dict[str, Any] = {"must be a function of states, not a NoneType": None, "not a tuple": lambda h: (h,)}
    for says, step in wrong.items():
        assert says in refused(InputError, lambda step=step: run(tiny_model(), TOKENS, "F J:x F", maps={"x": step}))


class RunsPrograms(Own):
    """Its own forward is a program of this library."""

    def forward(self, tokens: Tensor) -> Any:
        return run(self, tokens, F**3, rows=range(tokens.shape[1]))[F**3].logits


def test_a_model_whose_forward_runs_programs_is_looked_at_once() -> None:
    found, plain = (run(model, TOKENS, F**3)[F**3] for model in (RunsPrograms(), Own()))
    assert torch.equal(found.logits, plain.logits)
