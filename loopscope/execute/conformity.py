"""Whether a model keeps what `protocol.py` asks of it, found out on two or three rows.

The executor computes rows apart from each other, counts heads and places patches by what a model says of itself.  One
that mixes rows outside attention, counts its heads otherwise or does more than its members say (an injection of the
input in every call, layers before the loop) would give wrong numbers without an error.  So `run`, `sweep` and
`models.passes` look at every model once, when it is first used:

- `embed` gives [B, T, width], and row r of it depends on token r alone;
- `project` gives queries, keys and values [..., heads, R, head size], in every layer;
- every piece of glue (`settle`, `start`, `enter`, `join`, `close`, `leave`, `read`) and of a layer (`project`,
  `attn_out`, `mlp_out` and its hidden units) gives rows of one of two examples (the first, a middle one, the last, and
  some that are no neighbours) the same value apart as beside all others, at the position that it is given (`rowwise`);
- a `mask` gives booleans, lets every row see itself, and says of one query or of some keys what it says of all;
- the logits of a model's own `forward(tokens)`, where it has one that gives logits, are those of some number of calls.

That costs a few rows per layer; of layers of one class with the same flags one is asked for its rows apart.
`check_model` asks all of every layer and of more rows, for those who write an adapter, and compares with logits of the
original (`agreement`).  Without these, a model that keeps all of it may still be another than the one meant.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope import bounds
from loopscope.errors import InputError
from loopscope.execute.agreement import (
    SEVERAL,
    called_with,
    check_forward,
    check_reference,
    comparable,
    own_forward,
)
from loopscope.execute.rowwise import Cut, apart, called, check_equal, cuts, far, shape_of, shaped, together
from loopscope.pieces import LayerPieces, Pieces, pieces_of
from loopscope.program import ProgramLike, Seed, Start, as_program
from loopscope.protocol import LoopedModel, Side, TokenMap, device_of

MASKED = 64
"""Positions that masks are asked for, one by one: more than a prefix, less than takes time."""

_seen: dict[int, tuple[weakref.ref[object], tuple[object, ...]]] = {}
_looked_at: set[int] = set()


class _Look(NamedTuple):
    """How closely a model is looked at: `every` layer, or one of a class; `thorough`: rows apart of every layer."""

    every: bool
    thorough: bool


def check_model(
    model: LoopedModel,
    tokens: Int[Tensor, "B T"] | None = None,
    reference_logits: Tensor | None = None,
    *,
    start: Start = None,
    forward: Callable[[Tensor], Any] | bool = True,
    program: ProgramLike | None = None,
) -> bool:
    """InputError in one line where a model does not keep what the protocol asks; it is then not looked at again.

    - `tokens` are a few to look with, at least two and two different ones (default: 0, 1 and 0).
    - `reference_logits` [B, T, C] are the original's for these tokens, after any number of calls up to 16 or the
      model's own, from such a `start`: `Zeros()`, where the original drew another one than this model would.
    - `forward` is what the model's logits are compared with, too: a function of tokens [B, T] that gives logits
      [B, T, C], True for the model's own forward, or False for none, as for a model whose forward is no plain run.
    - `program` says in which order the stacks of a model are called, where it has no `program` of its own: logits are
      those after some of its calls, counted from the first.

    Gives whether there were logits to compare with.
    """
    if tokens is None:
        if reference_logits is not None:
            raise InputError("reference logits are those of some tokens; give these, too")
        tokens = torch.tensor([[0, 1, 0]], device=device_of(model))
    if tokens.dim() != 2 or tokens.shape[1] < 2 or len(tokens.unique()) < 2:
        raise InputError("a model is looked at with two rows or more that hold two different tokens")
    asked = None if program is None else as_program(program)
    with torch.no_grad():
        _check_rows(model, tokens, None, _Look(every=True, thorough=True))
        compared = False
        if reference_logits is not None:
            check_reference(model, tokens, reference_logits, start, asked)
            compared = True
        if forward is not False:
            own = own_forward(model) if forward is True else called_with(forward)
            if callable(forward) and not comparable(model, asked):
                raise InputError(SEVERAL)
            found = check_forward(model, tokens[:1], own, asked)
            if not found and callable(forward):
                raise InputError("the forward given for comparison gives no logits [B, T, classes] of these tokens")
            compared = compared or found
    remember(model)
    return compared


def ensure(model: LoopedModel, tokens: Tensor | None, state: Tensor | None = None) -> None:
    """Look at a model that is used for the first time, with rows of what it is used on; InputError as `check_model`.

    A model without memory is not looked at, nor remembered one that there were too few rows for.
    """
    device = device_of(model)
    known = _seen.get(id(model))
    if (known and known[0]() is model and known[1] == _facts(model)) or (device and device.type == "meta"):
        return
    if id(model) in _looked_at:  # its own forward runs programs
        return
    _looked_at.add(id(model))
    try:
        with torch.no_grad():
            enough = _check_rows(model, tokens, state, _Look(every=not _ours(model), thorough=False))
            if tokens is not None and not _ours(model):
                check_forward(model, tokens[:1, :3], own_forward(model))
    finally:
        _looked_at.discard(id(model))
    if enough:
        remember(model)


def _ours(model: object) -> bool:
    """Whether a model is one of this package, whose layers are alike and whose forward is made of them."""
    return type(model).__module__.partition(".")[0] == __name__.partition(".")[0]


def _facts(model: LoopedModel) -> tuple[object, ...]:
    """What a model says of itself; if that changes, it is looked at again."""
    parts = [len(getattr(model, name, None) or ()) for name in ("layers", "prelude", "coda", "stacks")]
    return model.heads, model.width, model.head_size, *parts


def remember(model: LoopedModel) -> None:
    """Take a model as looked at: it was, or it only passes on what one does that was."""
    key = id(model)
    try:
        _seen[key] = (weakref.ref(model, lambda _: _seen.pop(key, None)), _facts(model))
    except TypeError:  # it cannot be referred to weakly, and its place in memory may become another's
        return


# Rows ----------------------------------------------------------------------------------------------------------------


def _check_rows(model: LoopedModel, tokens: Tensor | None, state: Tensor | None, how: _Look) -> bool:
    """Shapes, and rows apart against rows together; gives whether there were rows enough to see all of it."""
    for name in ("heads", "width", "head_size"):
        size = getattr(model, name)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InputError(f"the model's {name} must be a whole number of at least 1, not {size!r}")
    pieces = pieces_of(model)
    if not all(pieces.stacks.values()):
        raise InputError("the model has no layers" + (" in one of its stacks" if len(pieces.stacks) > 1 else ""))
    enough, e, words = True, None, None
    if tokens is not None:
        few = tokens[:1, :3]
        rows = torch.arange(few.shape[1], device=few.device)
        e = shaped("embed", called("embed", pieces.embed, few, rows), (*few.shape, model.width))
        enough = _check_embed(pieces, tokens)
        e, words = _two(e), torch.cat([few, few.flip(1)])
    if state is not None:
        rows = torch.arange(min(state.shape[1], 3), device=state.device)
    chosen = cuts(len(rows), how.thorough, rows.device)

    def glue(name: str, function: Callable[..., Any], given: tuple[Tensor, ...], width: int) -> Tensor:
        """What a piece of glue gives for rows [2, R, d]; a default of `pieces` is known to act row by row."""
        found = together(name, function, given, (*given[0].shape[:2], width))
        if hasattr(model, name):
            apart(name, function, found, given, chosen)
        return found

    if e is not None:
        e = glue("settle", pieces.settle, (e,), model.width)
    if state is not None:
        h = _two(state[:1, :3])
    else:
        assert e is not None
        h = e
        for start in (None, Seed(1)) if pieces.draws else (None,):
            h = glue("start", lambda x, at, start=start: pieces.start(x, start, at), (e, rows), pieces.state_width)
    x = pieces.part(h, next(iter(pieces.stacks))) if e is None else e
    length = (state if tokens is None else tokens).shape[1]  # type: ignore[union-attr]
    layers = _Layers(model, how, words, rows, chosen, torch.arange(min(length, MASKED), device=rows.device))
    layers.look("prelude layer", pieces.prelude, x)
    for stack, each in pieces.stacks.items():
        given = (h,) if e is None or not pieces.injects else (h, e)
        for call in _calls(model):
            x = glue("enter", _entering(pieces, call, stack), given, model.width)
        layers.look("layer" if len(pieces.stacks) == 1 else f"layer of {stack}", each, x)
        h = glue("close", lambda x, h, stack=stack: pieces.close(x, h, stack), (x, h), pieces.state_width)
    x = glue("leave", pieces.leave, (h,), model.width)
    layers.look("coda layer", pieces.coda, x)
    logits = called("read", model.read, x)
    classes = logits.shape[-1] if isinstance(logits, Tensor) and logits.dim() else 0
    apart("read", model.read, shaped("read", logits, (*x.shape[:2], classes)), (x,), chosen)
    return enough and len(rows) > 1


def _two(h: Tensor) -> Tensor:
    """The rows of an example, and another one."""
    return torch.cat([h, h.flip(1) * 0.5])


def _calls(model: LoopedModel) -> tuple[int, ...]:
    """Numbers of calls that `enter` is tried with: the first two, and the last of a usual run."""
    loops = getattr(model, "loops", 0)
    last = loops if type(loops) is int and 0 < loops <= bounds.LOOPS else 0
    return tuple(dict.fromkeys((1, 2, max(2, last))))


def _entering(pieces: Pieces, call: int, stack: str) -> Callable[..., Tensor]:
    return lambda h, e=None: pieces.enter(h, e, call, stack)


def _check_embed(pieces: Pieces, tokens: Tensor) -> bool:
    """Whether each of two tokens has the same state whatever the other is; False where there are no two to try."""
    different = tokens.unique()
    if tokens.shape[1] < 2 or len(different) < 2:
        return False
    one, two = different[0], different[-1]
    pairs = torch.stack([torch.stack(pair) for pair in ((one, one), (one, two), (two, one), (two, two))])
    h = shaped("embed", _embedded(pieces, pairs), (4, 2, pieces.width))
    rule = "row r must depend on token r alone"
    for row, first, second in ((0, 0, 1), (0, 2, 3), (1, 0, 2), (1, 1, 3)):
        check_equal("the model's embed", h[first, row], h[second, row], h, rule)
    # The same of the first and the last of all rows, whose example stands alone, then beside others.
    whole = tokens[:1]
    alone = _embedded(pieces, whole)
    for row in (0, -1):
        other = torch.where(whole == one, two, one)
        other[:, row] = whole[:, row]
        beside = _embedded(pieces, torch.cat([whole, other, two.expand_as(whole)]))
        for example in (0, 1):
            check_equal("the model's embed", alone[0, row], beside[example, row], alone, rule)
    return True


def _embedded(pieces: Pieces, tokens: Tensor) -> Any:
    return called("embed", pieces.embed, tokens, torch.arange(tokens.shape[1], device=tokens.device))


class _Layers:
    """Looks at layers with rows [2, R, d] of the stream, and remembers which kinds it has looked at."""

    def __init__(
        self,
        model: LoopedModel,
        how: _Look,
        words: Int[Tensor, "2 R"] | None,
        rows: Int[Tensor, " R"],
        chosen: Sequence[Cut],
        positions: Int[Tensor, " T"],
    ) -> None:
        """`chosen` is what is looked at apart, `positions` are those that masks are asked for."""
        self.model, self.how, self.words, self.rows, self.chosen = model, how, words, rows, chosen
        self.positions = positions
        self._kinds: set[object] = set()
        self._masks: dict[type, list[Tensor]] = {}

    def look(self, name: str, layers: Sequence[LayerPieces], x: Float[Tensor, "2 R d"]) -> None:
        """InputError where one of the layers does not fit; rows apart are asked of every layer, or one of a kind."""
        for number, layer in enumerate(layers, start=1):
            kind = _kind(layer.layer, self.how.every)
            known = kind in self._kinds
            self._kinds.add(kind)
            if known and not self.how.every:
                continue
            said = f"{name}'s ".replace("layer", f"layer {number}")
            self._look(layer, said, x, () if known and not self.how.thorough else self.chosen)

    def _look(self, layer: LayerPieces, name: str, x: Tensor, chosen: Sequence[Cut]) -> None:
        """One layer, and of `chosen` rows whether it treats them apart as together."""
        scale = called(f"{name}scale", float, layer.scale)
        if not math.isfinite(scale):
            raise InputError(f"the model's {name}scale must be a finite number, not {scale}")
        if layer.softcap is not None and not 0 < layer.softcap < math.inf:
            raise InputError(f"the model's {name}softcap must be a finite number above 0, not {layer.softcap}")
        if not layer.causal:
            self._look_at_mask(layer, name)
        if layer.takes_side and self.words is None:
            return  # it cannot be asked without tokens
        q, k, v = self._projected(layer, f"{name}project", "qkv", x, self.rows, self.words)
        if len({each.dtype for each in (q, k, v)}) > 1 and not torch.is_autocast_enabled(x.device.type):
            types = ", ".join(str(each.dtype).removeprefix("torch.") for each in (q, k, v))
            raise InputError(f"the model's {name}project must give one type, not {types} for q, k and v")
        added = together(f"{name}attn_out", layer.attn_out, (v, x), x.shape)
        joined = together(f"{name}join", _joining(layer, "attn"), (x, added), x.shape)
        after = together(f"{name}mlp_out", layer.mlp_out, (x, joined), x.shape)
        left = together(f"{name}join", _joining(layer, "mlp"), (joined, after), x.shape)
        words = () if self.words is None else (self.words,)
        for parts, whole in (("q", q), ("kv", torch.cat([k, v], -1))):
            apart(f"{name}project", self._projecting(layer, name, parts), whole, (x, self.rows, *words), chosen)
        apart(f"{name}attn_out", layer.attn_out, added, (v, x), chosen)
        if layer.units:
            _look_at_units(layer, name, x, joined, after, chosen)
        apart(f"{name}mlp_out", layer.mlp_out, after, (x, joined), chosen)
        if hasattr(layer.layer, "join"):
            apart(f"{name}join", _joining(layer, "attn"), joined, (x, added), chosen)
            apart(f"{name}join", _joining(layer, "mlp"), left, (joined, after), chosen)

    def _projecting(self, layer: LayerPieces, name: str, parts: str) -> Callable[..., Tensor]:
        """Some projections of a layer side by side, [.., H, R, parts * k], of rows, their positions and tokens."""

        def project(x: Tensor, rows: Tensor, words: Tensor | None = None) -> Tensor:
            return torch.cat(self._projected(layer, f"{name}project", parts, x, rows, words), -1)

        return project

    def _projected(
        self, layer: LayerPieces, name: str, parts: str, x: Tensor, rows: Tensor, words: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Some projections of a layer, [.., H, R, k] each; InputError for others than these."""
        side = Side(words, 1) if layer.takes_side and words is not None else None
        found = called(name, layer.project, x, rows, parts, side)
        if not isinstance(found, tuple | list) or len(found) != len(parts):
            raise InputError(f"the model's {name} must give {len(parts)} tensors for {parts!r}, not {shape_of(found)}")
        heads, size = self.model.heads, self.model.head_size
        wanted, said = (len(x), heads, len(rows), size), f" (heads {heads}, head_size {size})"
        return tuple(shaped(f"{name} of {part!r}", each, wanted, said) for part, each in zip(parts, found, strict=True))

    def _look_at_mask(self, layer: LayerPieces, name: str) -> None:
        """A mask must let rows see themselves, and say of some queries and keys what it says of them among all."""
        rows = self.positions
        seen = called(f"{name}mask", layer.visible, rows, rows)
        if not bool(seen.diagonal().all()):
            row = int((~seen.diagonal()).nonzero()[0])
            raise InputError(f"the model's {name}mask does not let row {row} see itself, as every row must")
        known = self._masks.setdefault(type(layer.layer), [])
        if not self.how.thorough and any(torch.equal(seen, each) for each in known):
            return
        known.append(seen)
        single = [called(f"{name}mask", layer.visible, row, rows) for row in rows.split(1)]
        if not torch.equal(torch.cat(single), seen):
            row = int((torch.cat(single) != seen).any(1).nonzero()[0])
            raise InputError(
                f"the model's {name}mask lets row {row} see other keys alone than beside other rows; {GO_BY}"
            )
        for some in (rows[1:], rows[:-1], rows.flip(0)) if len(rows) > 1 else ():
            if not torch.equal(called(f"{name}mask", layer.visible, rows, some), seen[:, some]):
                raise InputError(f"the model's {name}mask says another thing of some keys than of all; {GO_BY}")


GO_BY = "it must go by the positions that it is given"


def _look_at_units(
    layer: LayerPieces, name: str, x: Tensor, joined: Tensor, after: Tensor, chosen: Sequence[Cut]
) -> None:
    """An MLP's hidden units, which must lead to what it gives."""
    hidden = called(f"{name}mlp_hidden", layer.mlp_hidden, x, joined)
    width = hidden.shape[-1] if isinstance(hidden, Tensor) and hidden.dim() else 0
    shaped(f"{name}mlp_hidden", hidden, (*x.shape[:-1], width))
    made = together(f"{name}mlp_from", layer.mlp_from, (hidden,), x.shape)
    if off := far(made, after, x):
        raise InputError(f"the model's {name}mlp_from of its mlp_hidden is {off:.3g} off its mlp_out")
    apart(f"{name}mlp_hidden", layer.mlp_hidden, hidden, (x, joined), chosen)
    apart(f"{name}mlp_from", layer.mlp_from, made, (hidden,), chosen)


def _joining(layer: LayerPieces, which: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, out: layer.join(x, out, which)


def _kind(layer: object, flags: bool) -> object:
    """What layers that are looked at once have in common: their class, and where asked the `flags` that they carry."""
    held = getattr(layer, "__dict__", {}) if flags else {}
    return type(layer), tuple(sorted((name, each) for name, each in held.items() if isinstance(each, bool)))


def check_map(name: str, steering_map: TokenMap, like: Float[Tensor, "*B d"]) -> None:
    """InputError unless a map treats a row beside others, of its example and of another one, as it does alone."""
    x = torch.linspace(-1, 1, 4 * like.shape[-1], device=like.device).to(like.dtype).view(2, 2, -1)
    whole = steering_map(x.clone())
    each = steering_map(x.clone().view(4, 1, -1)).view(x.shape)  # every row an example of its own
    alone = steering_map(x[:1, 1:].clone())
    for one, two in ((whole, each), (whole[:1, 1:], alone)):
        check_equal(f"map {name!r}", one, two, x, "a map must act on every row alone")
