"""The pieces of a looped model, with the defaults of `protocol.py` filled in.

    pieces = pieces_of(model)
    x = pieces.enter(h, e, call=1, stack="F")

What runs a model goes through these pieces and never asks which members a model has.  The shapes of what the members
give are looked at by `conformity`, in one line where they are wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.errors import InputError, nearest
from loopscope.model import causal
from loopscope.program import Call, Program, Seed, Start, Zeros
from loopscope.protocol import LoopedLayer, LoopedModel, Side

How = Literal["", "place", "name"]
"""How a method takes an optional argument: not at all, by its place, or by its name."""


@lru_cache(maxsize=4096)
def _parameters(function: Callable[..., Any]) -> tuple[tuple[tuple[str, bool], ...], frozenset[str]]:
    """Name of every argument that a function takes by position, and whether it must be given; those by name alone."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = inspect.signature(function).parameters.values()
    named = frozenset(each.name for each in every if each.kind is inspect.Parameter.KEYWORD_ONLY)
    return tuple((each.name, each.default is each.empty) for each in every if each.kind in positional), named


def _takes(method: Callable[..., Any], at: int, name: str, *, others: bool = False) -> How:
    """How a method takes its optional argument `at` (from 1), which has this name.

    By its place if it is called so there, or must be given.  InputError for an argument there of another name and with
    a default, which would never be given; `others` may be there, where they can mean something else.
    """
    function = getattr(method, "__func__", None)
    try:
        places, named = _parameters(method if function is None else function)
    except (TypeError, ValueError):  # of some callables nothing is known, or they have no hash
        return ""
    places = places if function is None else places[1:]
    if name in named:
        return "name"
    if len(places) < at:
        return ""
    found, needed = places[at - 1]
    if found != name and not needed and not others:
        raise InputError(
            f"argument {at} of the model's {getattr(method, '__name__', 'member')} is `{found}`, which is never given:"
            f" it must be called `{name}`, if it is that, or stand behind `*`"
        )
    return "place" if found == name or needed else ""


def _given(method: Callable[..., Any], how: How, name: str, *given: Any) -> Any:
    """What a method gives; the last of the arguments is the one of this name."""
    if how == "name":
        return method(*given[:-1], **{name: given[-1]})
    return method(*given) if how else method(*given[:-1])


@dataclass(frozen=True)
class LayerPieces:
    """One layer: its own members, and the defaults of those it does not have; `units`: whether it has hidden ones."""

    layer: LoopedLayer
    causal: bool
    parallel: bool
    softcap: float | None
    units: bool
    _side: How
    _x: How

    @classmethod
    def of(cls, layer: LoopedLayer) -> LayerPieces:
        """The pieces of a layer."""
        softcap = getattr(layer, "softcap", None)
        return cls(
            layer,
            not hasattr(layer, "mask"),
            bool(getattr(layer, "parallel", False)),
            None if softcap is None else float(softcap),
            hasattr(layer, "mlp_hidden") and hasattr(layer, "mlp_from"),
            _takes(layer.project, 4, "side"),
            _takes(layer.attn_out, 2, "x"),
        )

    @property
    def takes_side(self) -> bool:
        """Whether it looks at tokens or calls."""
        return bool(self._side)

    @property
    def scale(self) -> float:
        """Factor on q k' before the softmax."""
        return self.layer.scale

    def project(self, x: Tensor, rows: Any, parts: str, side: Side | None) -> tuple[Tensor, ...]:
        """Queries, keys and values of x [..., R, d]; `side` is asked for where `takes_side`."""
        found: tuple[Tensor, ...] = _given(self.layer.project, self._side, "side", x, rows, parts, side)
        return found

    def attn_out(self, z: Float[Tensor, "*B H R k"], x: Float[Tensor, "*B R d"]) -> Tensor:
        """What attention gives to `join`; x is what entered the layer."""
        found: Tensor = _given(self.layer.attn_out, self._x, "x", z, x)
        return found

    def mlp_out(self, x: Float[Tensor, "*B R d"], middle: Float[Tensor, "*B R d"]) -> Tensor:
        """What the MLP gives to `join`; x entered the layer, `middle` is the stream after attention."""
        return self.layer.mlp_out(x if self.parallel else middle)

    def mlp_hidden(self, x: Float[Tensor, "*B R d"], middle: Float[Tensor, "*B R d"]) -> Tensor:
        """The MLP's hidden units, asked for where there are `units`."""
        hidden: Callable[..., Tensor] = self.layer.mlp_hidden  # type: ignore[attr-defined]
        return hidden(x if self.parallel else middle)

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Tensor:
        """What the MLP gives to `join`, of its hidden units."""
        out: Callable[..., Tensor] = self.layer.mlp_from  # type: ignore[attr-defined]
        return out(hidden)

    def join(self, x: Float[Tensor, "*B R d"], out: Float[Tensor, "*B R d"], which: str) -> Tensor:
        """The stream after a sublayer, "attn" or "mlp"."""
        join = getattr(self.layer, "join", None)
        return x + out if join is None else join(x, out, which)

    def visible(self, queries: Int[Tensor, " R"], keys: Int[Tensor, " S"]) -> Bool[Tensor, "R S"]:
        """Which key rows each query row may see."""
        mask = getattr(self.layer, "mask", causal)
        found = mask(queries, keys)
        if not isinstance(found, Tensor) or found.dtype != torch.bool or found.shape != (len(queries), len(keys)):
            kind = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise InputError(f"a layer's mask must give booleans [{len(queries)}, {len(keys)}], not {kind}")
        return found


def no_stack(name: str, stacks: Collection[str]) -> InputError:
    """What is raised for a stack that a model does not have."""
    return InputError(f"the model has no stack {name}; there are: {', '.join(stacks)}{nearest(name, stacks)}")


@dataclass(frozen=True)
class Pieces:
    """A model: stacks by name, layers before and after the loop, and glue.

    - `injects`: whether a call looks at the input again, so that a run from a given state needs tokens, too;
    - `starts`: whether the model has a start of its own, so that h_0 is not its input;
    - `draws`: whether that is drawn, so that a seed means something.
    """

    model: LoopedModel
    stacks: Mapping[str, tuple[LayerPieces, ...]]
    prelude: tuple[LayerPieces, ...]
    coda: tuple[LayerPieces, ...]
    injects: bool
    starts: bool
    draws: bool

    @property
    def width(self) -> int:
        """Width d of the stream inside a layer."""
        return self.model.width

    @property
    def state_width(self) -> int:
        """Width of a state: d for every stack."""
        return self.model.width * len(self.stacks)

    @property
    def layers(self) -> Iterator[LayerPieces]:
        """The layers of all parts, each once."""
        seen: set[int] = set()
        for part in (self.prelude, *self.stacks.values(), self.coda):
            for layer in part:
                if id(layer.layer) not in seen:
                    seen.add(id(layer.layer))
                    yield layer

    @property
    def takes_side(self) -> bool:
        """Whether any layer looks at tokens or calls."""
        return any(layer.takes_side for layer in self.layers)

    @property
    def needs_tokens(self) -> bool:
        """Whether a run from a given state needs tokens, too."""
        return self.injects or self.takes_side

    def stack(self, name: str) -> tuple[LayerPieces, ...]:
        """The layers of a stack; InputError where the model has none of that name."""
        if name not in self.stacks:
            raise no_stack(name, self.stacks)
        return self.stacks[name]

    def embed(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """The input of tokens [B, T] at these positions, [T] or [B, T]."""
        found: Tensor = _given(self.model.embed, _takes_rows(self.model.embed), "rows", tokens, rows)
        return found

    def angles(self, rows: Int[Tensor, " R"], x: Float[Tensor, "*B R d"]) -> tuple[Tensor, ...] | None:
        """What layers take in the place of these rows of states like x, [..., R, angles] each; None: the rows."""
        own: Callable[..., Any] | None = getattr(self.model, "rotary_angles", None)
        found = None if own is None else own(rows, x)
        return found if isinstance(found, tuple) else None

    def check_input(self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None = None) -> None:
        """InputError for tokens that the model does not take as they stand; `mask` is False at left padding."""
        own: Callable[[Tensor], None] | None = getattr(self.model, "check_input", None)
        if own is None:
            return
        for each in (tokens,) if mask is None else (text[real][None] for text, real in zip(tokens, mask, strict=True)):
            own(each)

    def settle(self, x: Float[Tensor, "*B d"]) -> Tensor:
        """The input as the prelude leaves it."""
        settle = getattr(self.model, "settle", None)
        return x if settle is None else settle(x)

    def start(self, e: Float[Tensor, "*B R d"], start: Start, rows: Int[Tensor, "*P R"]) -> Tensor:
        """h_0 of a program that starts from tokens."""
        if isinstance(start, Zeros):
            return e.new_zeros((*e.shape[:-1], self.state_width))
        seed = start.number if isinstance(start, Seed) else 0
        own: Callable[..., Tensor] | None = getattr(self.model, "start", None)
        if own is None:
            return e if len(self.stacks) == 1 else torch.cat([e] * len(self.stacks), -1)
        found: Tensor = _given(own, _takes(own, 3, "rows"), "rows", e, seed, rows)
        return found

    def enter(self, h: Float[Tensor, "*B s"], e: Tensor | None, call: int, stack: str) -> Tensor:
        """What the first layer of a call sees."""
        enter: Callable[..., Tensor] | None = getattr(self.model, "enter", None)
        if enter is None:
            return h if len(self.stacks) == 1 else self.part(h, stack)
        found: Tensor = _given(enter, _takes(enter, 4, "stack"), "stack", h, e, call, stack)
        return found

    def close(self, x: Float[Tensor, "*B d"], h: Tensor | None, stack: str) -> Tensor:
        """The state after a call, from what its last layer gives and, with several stacks, the state before."""
        close = getattr(self.model, "close", None)
        x = x if close is None else close(x)
        if len(self.stacks) == 1:
            return x
        assert h is not None
        at = list(self.stacks).index(stack)
        return torch.cat([h[..., : at * self.width], x, h[..., (at + 1) * self.width :]], -1)

    def part(self, h: Float[Tensor, "*B s"], stack: str) -> Float[Tensor, "*B d"]:
        """The state of one stack."""
        return h.narrow(-1, list(self.stacks).index(stack) * self.width, self.width)

    def leave(self, h: Float[Tensor, "*B s"]) -> Tensor:
        """What the coda, or the readout, sees of a state."""
        leave = getattr(self.model, "leave", None)
        if leave is not None:
            return leave(h)
        return h if len(self.stacks) == 1 else self.part(h, list(self.stacks)[-1])

    def read(self, x: Float[Tensor, "*B d"]) -> Tensor:
        """Logits of what the coda gives, or of what `leave` gives where there is no coda."""
        return self.model.read(x)

    def check(self, program: Program) -> None:
        """InputError for a program with stacks, a start, a prelude or a coda that this model does not have."""
        for stack in dict.fromkeys(step.stack for step in program.steps if isinstance(step, Call)):
            if stack not in self.stacks:
                there = " ".join(self.stacks)
                raise InputError(f"'{program}' calls {stack}, but the stacks of this model are: {there}")
        if isinstance(program.start, Seed) and not self.draws:
            own = "has a start that no seed changes" if hasattr(self.model, "start") else "starts from its input"
            raise InputError(f"'{program}' has a seed, but this model {own} (leave out {program.start})")
        if isinstance(program.start, Zeros) and not self.injects:
            raise InputError(f"'{program}' forgets its input: this model sees it at the start alone (leave out zeros)")
        if program.prelude and not self.prelude:
            raise InputError(f"'{program}' patches a prelude, which this model does not have")
        if program.coda and not self.coda:
            raise InputError(f"'{program}' patches a coda, which this model does not have")


def _takes_rows(embed: Callable[..., Any]) -> How:
    """How `embed` takes positions; what else it may take keeps its default, as where it is called on tokens alone."""
    return _takes(embed, 2, "rows", others=True)


def _check_arguments(model: LoopedModel, several: bool) -> None:
    """InputError where glue takes an argument that would never be given, or does not take the stack that it must."""
    if start := getattr(model, "start", None):
        _takes(start, 3, "rows")
    if enter := getattr(model, "enter", None):
        if several and not _takes(enter, 4, "stack"):
            raise InputError("the model has several stacks, so its enter must take `stack`, whose call it is")
        _takes(enter, 4, "stack")


def pieces_of(model: LoopedModel) -> Pieces:
    """The pieces of a model; InputError where stacks are named wrongly, or arguments so that they are never given."""
    stacks: Mapping[str, Any] = getattr(model, "stacks", None) or {"F": model.layers}
    for name in stacks:
        Call(stack=name)  # raises where it is no name of a stack
    _check_arguments(model, len(stacks) > 1)
    return Pieces(
        model,
        {name: tuple(map(LayerPieces.of, layers)) for name, layers in stacks.items()},
        tuple(map(LayerPieces.of, getattr(model, "prelude", None) or ())),
        tuple(map(LayerPieces.of, getattr(model, "coda", None) or ())),
        bool(getattr(model, "injects", hasattr(model, "enter"))),
        hasattr(model, "start"),
        bool(getattr(model, "draws", hasattr(model, "start"))),
    )
