"""One pass of tokens through a program, as language models need it: left padding, a cache, gradients.

`execute.run` wants inputs of one length and knows no padding; it is for patches, sweeps and readouts.  The pass here
makes no patches, but takes a mask over left-padded rows, starts behind rows that a cache holds, uses fused attention
and lets gradients through.  On the same unpadded tokens both agree up to float rounding.

A padded row is seen by itself alone: no real row looks at it, and its own values stay finite but mean nothing.
Positions count real rows only, so padding an example does not move it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from loopscope.errors import InputError, nearest
from loopscope.execute.conformity import ensure
from loopscope.finite import Watch
from loopscope.model import causal
from loopscope.program import Call, Program
from loopscope.protocol import LoopedLayer, LoopedModel, TokenMap

Boundary = Literal["none", "norm"]
"""What ends a call of F: nothing, or the model's final norm, which then is no part of the readout."""


def boundary_named(name: str) -> Boundary:
    """What ends a call, by its name; InputError where there is nothing of that name."""
    there: tuple[Boundary, ...] = get_args(Boundary)
    for known in there:
        if name == known:
            return known
    raise InputError(f"no boundary {name!r}; there are {', '.join(there)}{nearest(name, there)}")


PRECISIONS: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""What a language model may compute in, by name."""


def precision_named(name: str) -> torch.dtype:
    """What to compute in, by its name; InputError where there is nothing of that name."""
    if name not in PRECISIONS:
        raise InputError(f"no precision {name!r}; there are {', '.join(PRECISIONS)}{nearest(name, PRECISIONS)}")
    return PRECISIONS[name]


def precision_name(dtype: torch.dtype) -> str:
    """How a precision is called: fp32, bf16, or for any other torch's own name."""
    ours = {known: name for name, known in PRECISIONS.items()}
    return ours.get(dtype, str(dtype).removeprefix("torch."))


class RotaryAngles(NamedTuple):
    """Rotary positions worked out: cosines and sines of every row's angles, [..., 1, R, k or k/2], for all heads."""

    cos: Float[Tensor, "*P 1 R angles"]
    sin: Float[Tensor, "*P 1 R angles"]


@runtime_checkable
class LanguageModel(LoopedModel, Protocol):
    """A looped model that can also be padded and decoded.

    Two promises beyond `LoopedModel`: `embed` does not look at where a token stands, and the layers' `project` takes
    `rows` [R] for all examples or [B, R] for each, or in their place what `rotary_angles` gives for them.
    """

    def rotary_angles(self, rows: Tensor, h: Tensor) -> RotaryAngles | Tensor:
        """What every layer's `project` can take for these rows of states like h; or the rows as they are.

        It is worked out once for a pass: a row has the same position in every layer and loop.
        """
        ...

    @property
    def loops(self) -> int:
        """Calls of F that a run makes by default; any number may be run."""
        ...

    @property
    def boundary(self) -> Boundary:
        """What ends every call."""
        ...

    @property
    def positions(self) -> int:
        """The longest input, in tokens."""
        ...

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ...

    def gate_logits(self, h: Tensor) -> Tensor | None:
        """An exit gate before its sigmoid, row by row, of closed states; None for a model without one."""
        ...


class Cache:
    """Keys and values of the rows so far, one slot for every (loop, layer), each with space for `room` rows.

    The layers of F are used again in every loop, but on other states: a slot per layer would mix the loops.
    """

    def __init__(self, room: int) -> None:
        self.room, self.length = room, 0
        self._slots: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        """How many slots are in use."""
        return len(self._slots)

    def extend(
        self, loop: int, layer: int, k: Float[Tensor, "B H R k"], v: Float[Tensor, "B H R k"]
    ) -> tuple[Float[Tensor, "B H S k"], Float[Tensor, "B H S k"]]:
        """Put the keys and values of the next rows into a slot; all S rows of that slot so far, as views."""
        if (loop, layer) not in self._slots:
            shape = (*k.shape[:2], self.room, k.shape[3])
            self._slots[loop, layer] = (k.new_zeros(shape), v.new_zeros(shape))
        keys, values = self._slots[loop, layer]
        end = self.length + k.shape[2]
        keys[:, :, self.length : end], values[:, :, self.length : end] = k, v
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, rows: int) -> None:
        """Every slot now holds `rows` rows more."""
        self.length += rows


def states(
    model: LanguageModel,
    tokens: Int[Tensor, "B R"],
    program: Program,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    mask: Bool[Tensor, "B S"] | None = None,
    cache: Cache | None = None,
    branches: Int[Tensor, "B R"] | None = None,
    examples: Sequence[int] | None = None,
    recompute: bool = False,
    compiled: bool = False,
    watch: Watch | None = None,
) -> dict[str, Float[Tensor, "_ R d"]]:
    """The state at every point of a program without patches ("h0", "h1", "h1 J:one", ...).

    `examples` says for every step how many of the B examples, counted from the first, take it (default: all); those
    that do not have left, so a point has the states of those that came there.

    `mask` is False at left padding.  With a cache, `tokens` follow the rows in it, their keys and values are added, and
    `mask` covers all S = cached + R rows; without one, S = R.  Text may also be padded on the right without a mask:
    attention is causal, so no real row sees what follows it.

    `branches` lets texts that begin alike share their beginning: a token of branch 0 is seen by all tokens behind it,
    one of another branch by those of its branch alone, and its position counts the tokens that it sees.  So every
    branch has the states that it would have behind the beginning alone, up to rounding.

    `recompute` keeps only the state before every layer for the backward pass, which then computes the layers anew
    (gradient checkpointing): less memory for a third more work, the same values and gradients.  `compiled` fuses the
    small operations of a layer by torch.compile, once for all layers, loops and shapes; values differ by rounding.

    A pass without gradients looks whether its numbers stay finite, once at its end, and raises NotFiniteError; one with
    gradients, compiled or inside `known_tokens` does not wait for that.  With a `watch`, its owner asks.

    Raises InputError for a program that has patches or starts from a state, a map that was not given, a mask that is no
    left padding, more rows than positions, `recompute` with a cache, which would be extended twice, `examples` that do
    not go down from B to 1 or more, and examples or branches with a mask or a cache.
    """
    if recompute and cache is not None:
        raise InputError("layers cannot be recomputed with a cache: leave out one of the two")
    taking = [len(tokens)] * len(program.steps) if examples is None else list(examples)
    if len(taking) != len(program.steps) or any(b > a or b < 1 for a, b in pairwise([len(tokens), *taking])):
        raise InputError(f"{taking} are not the examples of {len(program.steps)} steps, from {len(tokens)} down to 1")
    if examples is not None and not (mask is None and cache is None):
        raise InputError("examples cannot leave a pass with a mask or a cache")
    if branches is not None and not (mask is None and cache is None):
        raise InputError("branches cannot have a mask or a cache")
    maps = maps or {}
    through = _compiled() if compiled else _through
    before = 0 if cache is None else cache.length
    total = before + tokens.shape[1]
    _check(model, program, maps, total)
    if mask is not None:
        check_mask(mask, len(tokens), total)
    if not (before or compiled or _known.get()):
        ensure(model, tokens)
    h = model.embed(tokens)
    rows = torch.arange(before, total, device=h.device)
    positions, visible = rows, None
    if mask is not None:
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)[:, before:]
        keys = torch.arange(total, device=h.device)
        visible = (causal(rows, keys) & mask[:, None, None]) | (keys == rows[:, None])
    elif branches is not None:
        seen = (branches == 0)[:, None] | (branches[:, None] == branches[..., None])
        visible = (causal(rows, rows) & seen)[:, None]
        positions = visible[:, 0].sum(-1) - 1
    elif before and len(rows) > 1:
        visible = causal(rows, torch.arange(total, device=h.device))

    own = None if watch or compiled or torch.is_grad_enabled() or _known.get() else Watch()
    watch = watch or own
    rotary_angles = model.rotary_angles(positions, h)
    alone = visible is None and before == 0  # decided here, so that a compiled layer knows it for certain
    found = {program.points[0]: h}
    for index, (point, step) in enumerate(zip(program.points[1:], program.steps, strict=True)):
        if taking[index] < len(h):
            h = h[: taking[index]].clone()  # a view would be compiled anew
            if visible is not None:  # there are branches: every example has its own
                visible = visible[: len(h)].clone()
                rotary_angles = _first(rotary_angles, len(h))
        if isinstance(step, Call):
            loop = program.loop_of(index)
            for number, layer in enumerate(model.layers, start=1):
                slot = None if cache is None else _Slot(cache, loop, number)
                if recompute:
                    # Nothing in a layer is random, so no generator's state has to be kept with it.
                    h = checkpoint(
                        through, layer, h, rotary_angles, visible, alone, None, None, use_reentrant=False,
                        preserve_rng_state=False,
                    )  # fmt: skip
                else:
                    see = None if watch is None else _See(watch, loop, number)
                    h = through(layer, h, rotary_angles, visible, alone, slot, see)
            if watch:
                watch.see(h, "loop", loop)  # before a norm can hide it
            h = model.close(h)
        else:
            h = maps[step.name](h)
        found[point] = h
        if watch:
            watch.see(h, point)
    if cache is not None:
        cache.advance(tokens.shape[1])
    if own:
        own.check(f"'{program}'", h.dtype)
    return found


def _first(rotary_angles: RotaryAngles | Tensor, examples: int) -> RotaryAngles | Tensor:
    """Those of the first examples, in memory of their own."""
    if isinstance(rotary_angles, RotaryAngles):
        return RotaryAngles(*(each[:examples].clone() for each in rotary_angles))
    return rotary_angles[:examples]


class _Slot(NamedTuple):
    """Where in a cache the keys and values of one layer go."""

    cache: Cache
    loop: int
    layer: int


class _See(NamedTuple):
    """Who looks at the attention of one layer."""

    watch: Watch
    loop: int
    layer: int


def _through(
    layer: LoopedLayer,
    h: Float[Tensor, "B R d"],
    rotary_angles: Any,
    visible: Bool[Tensor, "*M R S"] | None,
    alone: bool,
    slot: _Slot | None,
    see: _See | None,
) -> Float[Tensor, "B R d"]:
    """The stream after one layer; `alone`: all rows are here and see those before them, so no mask is needed."""
    q, k, v = layer.project(h, rotary_angles, "qkv")
    if see is not None:
        see.watch.scores(q, k, "loop", see.loop, "layer", see.layer)
    if slot is not None:
        k, v = slot.cache.extend(slot.loop, slot.layer, k, v)
    z = nnf.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=alone, scale=layer.scale)
    h = h + layer.attn_out(z)
    return h + layer.mlp_out(h)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_through, dynamic=True)


_known: ContextVar[bool] = ContextVar("known", default=False)


@contextmanager
def known_tokens() -> Iterator[None]:
    """Inside, tokens are taken to be of the vocabulary: to look at them, one would have to wait for the GPU."""
    before = _known.set(True)
    try:
        yield
    finally:
        _known.reset(before)


def check_tokens(tokens: Tensor, vocabulary: int, positions: int) -> None:
    """InputError unless tokens are whole numbers [B, T] of the vocabulary, and not more than there are positions.

    Inside `known_tokens` their values are not looked at.
    """
    if tokens.dim() != 2 or tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise InputError(f"tokens must be whole numbers [batch, tokens], not {tokens.dtype} {list(tokens.shape)}")
    look = tokens.numel() > 0 and not _known.get()
    low, high = (int(v) for v in torch.aminmax(tokens)) if look else (0, 0)
    if low < 0 or high >= vocabulary:
        asked, near = (low, 0) if low < 0 else (high, vocabulary - 1)
        raise InputError(f"token {asked} is outside 0..{vocabulary - 1} (nearest: {near})")
    check_length(tokens.shape[1], positions)


def check_length(length: int, positions: int) -> None:
    """InputError for more tokens than positions."""
    if length > positions:
        raise InputError(f"{length} tokens given, but the model has {positions} positions")


def check_mask(mask: Bool[Tensor, "B S"], examples: int, length: int) -> None:
    """InputError unless the mask is [examples, length], True at the end of every example and False only before."""
    if mask.shape != (examples, length):
        raise InputError(f"the mask has shape {list(mask.shape)}, but the tokens {[examples, length]}")
    if not bool(mask[:, -1].all()) or bool((mask[:, :-1] & ~mask[:, 1:]).any()):
        raise InputError("the mask is no left padding: each example must be padded at its start only")


def _check(model: LanguageModel, program: Program, maps: Mapping[str, TokenMap], total: int) -> None:
    if program.start is not None:
        raise InputError(f"'{program}' starts from a given state; a pass over tokens starts from tokens")
    if program != program.skeleton:
        raise InputError(f"'{program}' has patches; a plain pass makes none (nearest: {program.skeleton})")
    for step in program.steps:
        if not isinstance(step, Call) and step.name not in maps:
            there = ", ".join(maps) or "none"
            raise InputError(f"no map named {step.name!r} was given; there are: {there}{nearest(step.name, maps)}")
    check_length(total, model.positions)
