"""One pass of tokens through a program: left padding, a cache, gradients.

    found = one_pass(model, tokens, F**8, mask=mask)
    found.states["h3"], found.read("h3")

`execute.run` is for patches and sweeps.  The pass here makes no patches, but takes a mask over left-padded rows, starts
behind rows that a cache holds, uses fused attention and lets gradients through, for every model of the protocol.  On
the same unpadded tokens both agree up to float rounding.

Padding an example does not move it: `padding.py`.  A state alone does not give logits, as a coda attends to the states
of other rows: read them from the pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.errors import InputError, nearest
from loopscope.execute.conformity import ensure
from loopscope.finite import Watch
from loopscope.models.caches import Cache
from loopscope.models.layers import PassLayers, embedded
from loopscope.models.padding import PassRows, check_mask
from loopscope.pieces import Pieces, pieces_of
from loopscope.program import Call, Program, ProgramLike, as_program
from loopscope.protocol import LoopedModel, TokenMap

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
    """Rotary positions worked out, [..., 1, R, k or k/2] for all heads: cosines and sines, as the layers take them."""

    cos: Float[Tensor, "*P 1 R angles"]
    sin: Float[Tensor, "*P 1 R angles"]


@runtime_checkable
class LanguageModel(LoopedModel, Protocol):
    """A looped model that can also be decoded.

    Two promises beyond `LoopedModel`: `embed` looks at where a token stands only through its `rows`, if it takes them;
    and `embed`, `start` and the layers' `project` take `rows` [R] for all examples or [B, R] for each, `project` also
    in their place what `rotary_angles` gives for them.
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


class Pass:
    """What a pass saw: the state at every point, and what is read at each.

    A point has the states of those examples that came there.  With a cache, what is to be read of a model with a coda
    is read before the next pass.
    """

    def __init__(self, layers: PassLayers, states: dict[str, Tensor], loops: Mapping[str, int]) -> None:
        self.states = states
        self._layers, self._loops = layers, loops
        self._left: dict[str, Tensor] = {}

    def left(self, point: str) -> Float[Tensor, "_ R d"]:
        """What the model's `read` is given at a point: the state, or what the coda makes of it."""
        if point not in self.states:
            raise InputError(f"there is no point {point!r}{nearest(point, self.states)}")
        if point not in self._left:
            layers, loop = self._layers, self._loops[point]
            x = layers.pieces.leave(self.states[point])
            if layers.pieces.coda:
                where = f"coda[{loop if point == f'h{loop}' else point}]"
                x = layers(where, layers.pieces.coda, x, loop)
                layers.see(x, where)
            self._left[point] = x
        return self._left[point]

    def read(self, point: str, rows: int | slice = slice(None)) -> Float[Tensor, "_ *R classes"]:
        """Logits at a point, of all rows or of some."""
        return self._layers.pieces.read(self.left(point)[:, rows])


def states(
    model: LoopedModel, tokens: Int[Tensor, "B R"] | None, program: ProgramLike, **settings: Any
) -> dict[str, Float[Tensor, "_ R s"]]:
    """The state at every point of a program without patches ("h0", "h1", "h1 J:one", ...); all else as `one_pass`."""
    return one_pass(model, tokens, program, **settings).states


def one_pass(
    model: LoopedModel,
    tokens: Int[Tensor, "B R"] | None,
    program: ProgramLike,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    state: Tensor | None = None,
    mask: Bool[Tensor, "B S"] | None = None,
    cache: Cache | None = None,
    branches: Int[Tensor, "B R"] | None = None,
    examples: Sequence[int] | None = None,
    recompute: bool = False,
    compiled: bool = False,
    watch: Watch | None = None,
) -> Pass:
    """A program without patches on tokens, or on a given `state` [B, R, s] for one that starts from one.

    Beside a state, tokens are needed where the model looks at them in every call, and may be None elsewhere.

    `examples` says for every step how many of the B examples, counted from the first, take it (default: all); those
    that do not have left, so a point has the states of those that came there.

    `mask` is False at left padding.  With a cache, `tokens` follow the rows in it, their keys and values are added, and
    `mask` covers all S = cached + R rows; without one, S = R.  Text for a causal model may also be padded on the right
    without a mask: no real row sees what follows it.

    `branches` lets texts that begin alike share their beginning: a token of branch 0 is seen by all tokens behind it,
    one of another branch by those of its branch alone, and its position counts the tokens that it sees.  So every
    branch has the states that it would have behind the beginning alone, up to rounding.

    `recompute` keeps only the state before every layer for the backward pass, which then computes the layers anew
    (gradient checkpointing): less memory for a third more work, the same values and gradients.  `compiled` fuses the
    small operations of a layer by torch.compile, once for all layers, loops and shapes; values differ by rounding.

    A pass without gradients looks whether its numbers stay finite, once at its end, and raises NotFiniteError; one with
    gradients, compiled or inside `known_tokens` does not wait for that.  With a `watch`, its owner asks.

    Raises InputError for a program that has patches, or a start that the model or these inputs do not have, a map that
    was not given, a mask that is no left padding, more rows than positions, `recompute` with a cache, which would be
    extended twice, a cache behind rows that see new ones, `examples` that do not go down from B to 1 or more, examples
    or branches with a mask or a cache, and branches of a model that is no language model, or whose rows see later ones.
    """
    if recompute and cache is not None:
        raise InputError("layers cannot be recomputed with a cache: leave out one of the two")
    pieces, maps, program = pieces_of(model), maps or {}, as_program(program)
    shape = _check(pieces, program, maps, tokens, state)
    taking = [shape[0]] * len(program.steps) if examples is None else list(examples)
    if len(taking) != len(program.steps) or any(b > a or b < 1 for a, b in pairwise([shape[0], *taking])):
        raise InputError(f"{taking} are not the examples of {len(program.steps)} steps, from {shape[0]} down to 1")
    if examples is not None and not (mask is None and cache is None):
        raise InputError("examples cannot leave a pass with a mask or a cache")
    if branches is not None and not (mask is None and cache is None):
        raise InputError("branches cannot have a mask or a cache")
    if branches is not None and not hasattr(model, "rotary_angles"):
        raise InputError("branches need a language model, whose layers can be told where every row stands")
    before = 0 if cache is None else cache.length
    total = before + shape[1]
    positions = getattr(model, "positions", None)
    if isinstance(positions, int):  # a model that is none of language may have a table of that name
        check_length(total, positions)
    if mask is not None:
        check_mask(mask, shape[0], total)
    if not (before or compiled or _known.get()):
        ensure(model, tokens, state)
        if tokens is not None and branches is None:
            pieces.check_input(tokens, mask)
    device = (tokens if state is None else state).device  # type: ignore[union-attr]
    rows = PassRows(before, total, device, mask, branches)

    e = None if tokens is None or not (pieces.injects or state is None) else embedded(pieces, tokens, rows)
    x = e if e is not None else cast("Tensor", state)[..., : pieces.width]
    own = None if watch or compiled or torch.is_grad_enabled() or _known.get() else Watch()
    layers = PassLayers(pieces, rows, tokens, x, cache, recompute, compiled, watch or own)
    if e is not None:
        e = pieces.settle(layers("prelude", pieces.prelude, e, 0))
    h = pieces.start(cast("Tensor", e), program.start, rows.positions) if state is None else state

    points = program.points
    found, loops = {points[0]: h}, {points[0]: program.first}
    for index, (point, step) in enumerate(zip(points[1:], program.steps, strict=True)):
        if taking[index] < len(h):
            h = h[: taking[index]].clone()  # a view would be compiled anew
            e = None if e is None else e[: taking[index]].clone()
        loop = program.loop_of(index)
        if isinstance(step, Call):
            entered = pieces.enter(h, e, loop, step.stack)
            last = layers(loop, pieces.stack(step.stack), entered, loop)
            layers.see(last, "loop", loop)  # before a norm can hide it
            h = pieces.close(last, h, step.stack)
        else:
            h = maps[step.name](h)
        found[point], loops[point] = h, loop
        layers.see(h, point)
    if cache is not None:
        cache.advance(shape[1])
    if own:
        own.check(f"'{program}'", h.dtype)
        layers.watch = None  # a later reading is not waited for
    return Pass(layers, found, loops)


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


def _check(
    pieces: Pieces, program: Program, maps: Mapping[str, TokenMap], tokens: Tensor | None, state: Tensor | None
) -> tuple[int, int]:
    """InputError where a program cannot be run on these inputs; gives how many examples and rows there are."""
    if program != program.skeleton:
        raise InputError(f"'{program}' has patches; a plain pass makes none (nearest: {program.skeleton})")
    pieces.check(program)
    for step in program.steps:
        if not isinstance(step, Call) and step.name not in maps:
            there = ", ".join(maps) or "none"
            raise InputError(f"no map named {step.name!r} was given; there are: {there}{nearest(step.name, maps)}")
    if program.given and state is None:
        raise InputError(f"'{program}' starts from a given state; give state=, or leave out h{program.start}")
    if not program.given and state is not None:
        raise InputError(f"'{program}' starts from tokens, but a state was given (nearest: h0 {program})")
    if tokens is None and (state is None or pieces.needs_tokens):
        beside = "tokens" if state is None else "the tokens beside its state: this model looks at them in every call"
        raise InputError(f"'{program}' needs {beside}")
    if tokens is not None and (tokens.dim() != 2 or not tokens.numel()):
        raise InputError(f"tokens must be whole numbers [batch, tokens], not {tokens.dtype} {list(tokens.shape)}")
    if state is None:
        assert tokens is not None
        return tokens.shape[0], tokens.shape[1]
    like = state.shape[:2] if tokens is None else tokens.shape
    wanted = (*like, pieces.state_width)
    if state.shape != wanted or not state.is_floating_point():
        raise InputError(f"a state of '{program}' must be {list(wanted)}, not {state.dtype} {list(state.shape)}")
    return state.shape[0], state.shape[1]
