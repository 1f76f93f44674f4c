"""Whether a model keeps what `protocol.py` asks of it, found out on two or three rows.

The executor computes rows apart from each other, counts heads and places patches by what a model says of itself.  One
that mixes rows outside attention, counts its heads otherwise or does more than its members say (an injection of the
input in every call, layers before the loop) would give wrong numbers without an error.  So `run`, `sweep` and
`models.passes` look at every model once, when it is first used:

- `embed` gives [B, T, width], and row r of it depends on token r alone;
- `project` gives queries, keys and values [..., heads, R, head size], in every layer;
- every piece of glue (`settle`, `start`, `enter`, `join`, `close`, `leave`, `read`) and of a layer (`project`,
  `attn_out`, `mlp_out` and its hidden units) gives a row the same value alone as beside other rows and examples, at the
  position that it is given;
- a `mask` gives booleans, and lets every row see itself;
- the logits of a model's own `forward(tokens)`, where it has one that gives logits, are those of some number of calls.

That costs a few rows per layer.  `check_model` asks the same of all layers, for those who write an adapter, and
compares with logits of the original (`agreement`).  Without these, a model that keeps all of it may still be another
than the one meant.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.errors import InputError, LoopscopeError
from loopscope.execute.agreement import called_with, check_forward, check_reference, own_forward
from loopscope.pieces import LayerPieces, Pieces, pieces_of
from loopscope.program import Seed, Start
from loopscope.protocol import LoopedModel, Side, TokenMap, device_of
from loopscope.store.files import first_line

_ROUNDING = {torch.float64: 1e-7, torch.float32: 1e-3}
"""How far two ways to compute the same may be apart, as a share of the largest number; half precision: 0.06."""

_seen: dict[int, tuple[weakref.ref[object], tuple[object, ...]]] = {}
_looked_at: set[int] = set()


def check_model(
    model: LoopedModel,
    tokens: Int[Tensor, "B T"] | None = None,
    reference_logits: Tensor | None = None,
    *,
    start: Start = None,
    forward: Callable[[Tensor], Any] | bool = True,
) -> bool:
    """InputError in one line where a model does not keep what the protocol asks; it is then not looked at again.

    - `tokens` are a few to look with, at least two and two different ones (default: 0, 1 and 0).
    - `reference_logits` [B, T, C] are the original's for these tokens, after any number of calls up to 16 or the
      model's own, from such a `start`: `Zeros()`, where the original drew another one than this model would.
    - `forward` is what the model's logits are compared with, too: a function of tokens [B, T] that gives logits
      [B, T, C], True for the model's own forward, or False for none, as for a model whose forward is no plain run.

    Gives whether there were logits to compare with.
    """
    if tokens is None:
        if reference_logits is not None:
            raise InputError("reference logits are those of some tokens; give these, too")
        tokens = torch.tensor([[0, 1, 0]], device=device_of(model))
    if tokens.dim() != 2 or tokens.shape[1] < 2 or len(tokens.unique()) < 2:
        raise InputError("a model is looked at with two rows or more that hold two different tokens")
    with torch.no_grad():
        _check_rows(model, tokens, None, every=True)
        compared = False
        if reference_logits is not None:
            check_reference(model, tokens, reference_logits, start)
            compared = True
        if forward is not False:
            own = own_forward(model) if forward is True else called_with(forward)
            found = check_forward(model, tokens[:1], own)
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
            enough = _check_rows(model, tokens, state, every=not _ours(model))
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


def _check_rows(model: LoopedModel, tokens: Tensor | None, state: Tensor | None, every: bool) -> bool:
    """Shapes, and rows alone against rows together; gives whether there were rows enough to see all of it."""
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
        e = _shaped("embed", _call("embed", pieces.embed, few, rows), (*few.shape, model.width))
        enough = _check_embed(pieces, tokens)
        # Two examples, so that one that looks at the other is found out, too.
        e, words = _two(e), torch.cat([few, few.flip(1)])
        e = _glue("settle", pieces.settle, (e,), model.width)
    if state is not None:
        h = _two(state[:1, :3])
        rows = torch.arange(h.shape[1], device=h.device)
    else:
        assert e is not None
        h = e
        for start in (None, Seed(1)) if pieces.draws else (None,):
            h = _glue("start", lambda x, at, start=start: pieces.start(x, start, at), (e, rows), pieces.state_width)
    x, kinds = pieces.part(h, next(iter(pieces.stacks))) if e is None else e, set[type]()

    def look(name: str, layers: Sequence[LayerPieces]) -> None:
        for number, layer in enumerate(layers, start=1):
            kind = type(layer.layer)
            if every or kind not in kinds:
                said = f"{name}'s ".replace("layer", f"layer {number}")
                _check_layer(model, layer, said, x, rows, words, alone=kind not in kinds)
            kinds.add(kind)

    look("prelude layer", pieces.prelude)
    for stack, layers in pieces.stacks.items():
        for call in (1, 2) if pieces.injects else ():
            given = (h,) if e is None else (h, e)
            entering = _entering(pieces, call, stack)
            entered = _glue("enter", entering, given, model.width)
            x = entered
        look("layer" if len(pieces.stacks) == 1 else f"layer of {stack}", layers)
        h = _glue("close", lambda x, h, stack=stack: pieces.close(x, h, stack), (x, h), pieces.state_width)
    x = _glue("leave", pieces.leave, (h,), model.width)
    look("coda layer", pieces.coda)
    logits = _call("read", model.read, x)
    _glue("read", model.read, (x,), logits.shape[-1] if isinstance(logits, Tensor) and logits.dim() else 0)
    return enough and len(rows) > 1


def _two(h: Tensor) -> Tensor:
    """The rows of an example, and another one."""
    return torch.cat([h, h.flip(1) * 0.5])


def _entering(pieces: Pieces, call: int, stack: str) -> Callable[..., Tensor]:
    return lambda h, e=None: pieces.enter(h, e, call, stack)


def _glue(name: str, function: Callable[..., Any], given: tuple[Tensor, ...], width: int) -> Tensor:
    """What a piece of glue gives for rows [2, R, d]; InputError unless it is of this width, and row by row.

    Positions [R] may stand among what it is given.
    """
    like = given[0]
    found = _shaped(name, _call(name, function, *given), (*like.shape[:2], width))
    one = [each[-1:] if each.dim() == 1 else each[:1, -1:] for each in given]
    _same(name, found, _call(name, function, *one), torch.cat([each.flatten() for each in given]))
    return found


def _check_embed(pieces: Pieces, tokens: Tensor) -> bool:
    """Whether each of two tokens has the same state whatever the other is; False where there are no two to try."""
    different = tokens.unique()
    if tokens.shape[1] < 2 or len(different) < 2:
        return False
    one, two = different[0], different[-1]
    pairs = torch.stack([torch.stack(pair) for pair in ((one, one), (one, two), (two, one), (two, two))])
    h = _shaped("embed", _embedded(pieces, pairs), (4, 2, pieces.width))
    rule = "row r must depend on token r alone"
    for row, first, second in ((0, 0, 1), (0, 2, 3), (1, 0, 2), (1, 1, 3)):
        _equal("the model's embed", h[first, row], h[second, row], h, rule)
    # The same of the first and the last of all rows, whose example stands alone, then beside others.
    whole = tokens[:1]
    alone = _embedded(pieces, whole)
    for row in (0, -1):
        other = torch.where(whole == one, two, one)
        other[:, row] = whole[:, row]
        beside = _embedded(pieces, torch.cat([whole, other, two.expand_as(whole)]))
        for example in (0, 1):
            _equal("the model's embed", alone[0, row], beside[example, row], alone, rule)
    return True


def _embedded(pieces: Pieces, tokens: Tensor) -> Any:
    return _call("embed", pieces.embed, tokens, torch.arange(tokens.shape[1], device=tokens.device))


def _check_layer(
    model: LoopedModel, layer: LayerPieces, name: str, x: Tensor, rows: Tensor, words: Tensor | None, alone: bool
) -> None:
    """One layer; `alone`: also whether it treats rows alone, which is asked of one layer of a kind."""
    scale = _call(f"{name}scale", float, layer.scale)
    if not math.isfinite(scale):
        raise InputError(f"the model's {name}scale must be a finite number, not {scale}")
    if layer.softcap is not None and not 0 < layer.softcap < math.inf:
        raise InputError(f"the model's {name}softcap must be a finite number above 0, not {layer.softcap}")
    side = None if words is None or not layer.takes_side else Side(words, 1)
    if layer.takes_side and side is None:
        return  # it cannot be asked without tokens
    heads = (len(x), model.heads, len(rows), model.head_size)
    found = _parts(f"{name}project", layer, x, rows, "qkv", side, heads)
    if len({each.dtype for each in found}) > 1 and not torch.is_autocast_enabled(x.device.type):
        types = ", ".join(str(each.dtype).removeprefix("torch.") for each in found)
        raise InputError(f"the model's {name}project must give one type, not {types} for q, k and v")
    if not layer.causal:
        seen = _call(f"{name}mask", layer.visible, rows, rows)
        if not bool(seen.diagonal().all()):
            row = int((~seen.diagonal()).nonzero()[0])
            raise InputError(f"the model's {name}mask does not let row {row} see itself, as every row must")
    added = _shaped(f"{name}attn_out", _call(f"{name}attn_out", layer.attn_out, found[2], x), x.shape)
    joined = _shaped(f"{name}join", _call(f"{name}join", layer.join, x, added, "attn"), x.shape)
    after = _shaped(f"{name}mlp_out", _call(f"{name}mlp_out", layer.mlp_out, x, joined), x.shape)
    _shaped(f"{name}join", _call(f"{name}join", layer.join, joined, after, "mlp"), x.shape)
    if layer.units:
        hidden = _call(f"{name}mlp_hidden", layer.mlp_hidden, x, joined)
        width = hidden.shape[-1] if isinstance(hidden, Tensor) and hidden.dim() else 0
        _shaped(f"{name}mlp_hidden", hidden, (*x.shape[:-1], width))
        made = _shaped(f"{name}mlp_from", _call(f"{name}mlp_from", layer.mlp_from, hidden), x.shape)
        if off := _far(made, after, x):
            raise InputError(f"the model's {name}mlp_from of its mlp_hidden is {off:.3g} off its mlp_out")
    if not alone:
        return
    last, one = (1, model.heads, 1, model.head_size), x[:1, -1:]
    mine = None if side is None else Side(side.tokens[:1, -1:], side.call)
    parts = [
        *_parts(f"{name}project", layer, one, rows[-1:], "q", mine, last),
        *_parts(f"{name}project", layer, one, rows[-1:], "kv", mine, last),
    ]
    for whole, part in zip(found, parts, strict=True):
        _same(f"{name}project", whole, part, x)
    _same(f"{name}attn_out", added, _call(f"{name}attn_out", layer.attn_out, found[2][:1, :, -1:], one), found[2])
    if layer.units:
        _same(f"{name}mlp_hidden", hidden, _call(f"{name}mlp_hidden", layer.mlp_hidden, one, joined[:1, -1:]), x)
        _same(f"{name}mlp_from", made, _call(f"{name}mlp_from", layer.mlp_from, hidden[:1, -1:]), hidden)
    _same(f"{name}mlp_out", after, _call(f"{name}mlp_out", layer.mlp_out, one, joined[:1, -1:]), x)
    for which, stream, out in (("attn", x, added), ("mlp", joined, after)):
        whole = layer.join(stream, out, which)
        _same(f"{name}join", whole, _call(f"{name}join", layer.join, stream[:1, -1:], out[:1, -1:], which), stream)


def _parts(
    name: str, layer: LayerPieces, x: Tensor, rows: Tensor, parts: str, side: Side | None, wanted: tuple[int, ...]
) -> tuple[Tensor, ...]:
    found = _call(name, layer.project, x, rows, parts, side)
    if not isinstance(found, tuple | list) or len(found) != len(parts):
        raise InputError(f"the model's {name} must give {len(parts)} tensors for {parts!r}, not {_shape_of(found)}")
    said = f" (heads {wanted[1]}, head_size {wanted[3]})"
    return tuple(_shaped(f"{name} of {part!r}", each, wanted, said) for part, each in zip(parts, found, strict=True))


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a member gives; InputError where it does not take a few rows."""
    try:
        return function(*arguments)
    except LoopscopeError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        given = _shape_of(arguments[0])
        raise InputError(f"the model's {name} does not take {given}: {first_line(error)}") from error


def _shaped(name: str, found: Any, wanted: tuple[int, ...], said: str = "") -> Tensor:
    if not isinstance(found, Tensor) or not found.is_floating_point() or tuple(found.shape) != tuple(wanted):
        raise InputError(f"the model's {name} must give a tensor of shape {list(wanted)}{said}, not {_shape_of(found)}")
    return found


def _shape_of(found: Any) -> str:
    if isinstance(found, Tensor):
        return f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
    return f"{len(found)} of them" if isinstance(found, tuple | list) else f"a {type(found).__name__}"


def _same(name: str, together: Tensor, alone: Any, given: Tensor) -> None:
    """The last row of the first example must be what it is alone."""
    expected = together[:1, ..., -1:, :]
    found = _shaped(name, alone, tuple(expected.shape), " for one row")
    _equal(f"the model's {name}", expected, found, given, "it must act on every row alone, at the position it is told")


def _equal(name: str, one: Tensor, two: Tensor, given: Tensor, rule: str) -> None:
    """InputError unless two results agree as far as rounding lets them."""
    if off := _far(one, two, given):
        raise InputError(f"{name} gives a row another value beside other rows, {off:.3g} off; {rule}")


def _far(one: Tensor, two: Tensor, given: Tensor) -> float:
    """How far two results are apart, 0 where that is rounding; numbers that are not finite say nothing."""
    a, b = one.double(), two.double()
    apart = float((a - b).abs().amax())
    share = _ROUNDING.get(one.dtype, 0.06)
    size = float(torch.maximum(a.abs(), b.abs()).amax())
    rounding = 32 * torch.finfo(one.dtype).eps * float(given.detach().double().abs().amax())
    return apart if math.isfinite(apart) and apart > share * size + rounding else 0.0


def check_map(name: str, steering_map: TokenMap, like: Float[Tensor, "*B d"]) -> None:
    """InputError unless a map treats a row beside others, of its example and of another one, as it does alone."""
    x = torch.linspace(-1, 1, 4 * like.shape[-1], device=like.device).to(like.dtype).view(2, 2, -1)
    alone = steering_map(x[:1, 1:].clone())
    _equal(f"map {name!r}", steering_map(x.clone())[:1, 1:], alone, x, "a map must act on every row alone")
