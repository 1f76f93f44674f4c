"""Whether a model keeps what `protocol.py` asks of it, found out on two or three rows.

The executor computes rows apart from each other, counts heads and places patches by what a model says of itself.  One
that mixes rows outside attention, counts its heads otherwise or does more than the protocol knows (an injection of the
input in every call, layers before the loop) would give wrong numbers without an error.  So `run`, `sweep` and
`models.passes.states` look at every model once, when it is first used:

- `embed` gives [B, T, width], and row r of it depends on token r alone;
- `project` gives queries, keys and values [..., heads, R, head size], in every layer;
- `project`, `attn_out`, `mlp_out`, `close` and `read` give a row the same value alone as beside other rows and
  examples, at the position that it is given;
- the logits of a model's own `forward(tokens)`, where it has one that gives logits, are those of some number of calls.

That costs a few rows per layer.  `check_model` asks the same of all layers, for those who write an adapter.  A model
that keeps all of it may still be another than the one meant; compare it with numbers of the original.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from loopscope.errors import InputError, LoopscopeError
from loopscope.execute.plain import plain_run
from loopscope.program import Program
from loopscope.protocol import LoopedLayer, LoopedModel, TokenMap, device_of
from loopscope.store.files import first_line

CALLS = 16
"""How many calls a model's own forward may make to be recognised, unless it says more."""

COUNTS = ("loops", "steps", "num_loops", "num_steps", "n_loops", "n_steps", "iterations")
"""What models call the number of their calls, as an argument of forward or an attribute."""

ONCE = Program.parse("h0 F")
"""One call of F from a given state."""

_ROUNDING = {torch.float64: 1e-7, torch.float32: 1e-3}
"""How far two ways to compute the same may be apart, as a share of the largest number; half precision: 0.06."""

_SHARES = {torch.float64: 1e-6, torch.float32: 1e-2}
"""The same for logits after many layers, beside what a rounding at the start makes of them; half precision: 0.25."""

_seen: dict[int, tuple[weakref.ref[object], tuple[object, ...]]] = {}
_looked_at: set[int] = set()


def check_model(
    model: LoopedModel, tokens: Int[Tensor, "B T"] | None = None, *, forward: Callable[[Tensor], Any] | bool = True
) -> bool:
    """InputError in one line where a model does not keep what the protocol asks; it is then not looked at again.

    - `tokens` are a few to look with, at least two and two different ones (default: 0 and 1).
    - `forward` is what the model's logits are compared with: a function of tokens [B, T] that gives logits [B, T, C],
      True for the model's own forward, or False for none, as for a model whose forward is no plain run.

    Gives whether there were logits to compare with.
    """
    if tokens is None:
        tokens = torch.tensor([[0, 1, 0]], device=device_of(model))
    if tokens.dim() != 2 or tokens.shape[1] < 2 or len(tokens.unique()) < 2:
        raise InputError("a model is looked at with two rows or more that hold two different tokens")
    with torch.no_grad():
        _check_rows(model, tokens, None, every=True)
        own = _own_forward(model) if forward is True else None
        compared = False
        if forward is not False:
            compared = _check_forward(model, tokens[:1], own if forward is True else _called_with(forward))
            if not compared and callable(forward):
                raise InputError("the forward given for comparison gives no logits [B, T, classes] of these tokens")
    _remember(model)
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
                _check_forward(model, tokens[:1, :3], _own_forward(model))
    finally:
        _looked_at.discard(id(model))
    if enough:
        _remember(model)


def _ours(model: object) -> bool:
    """Whether a model is one of this package, whose layers are alike and whose forward is made of them."""
    return type(model).__module__.partition(".")[0] == __name__.partition(".")[0]


def _facts(model: LoopedModel) -> tuple[object, ...]:
    """What a model says of itself; if that changes, it is looked at again."""
    return model.heads, model.width, model.head_size, len(model.layers)


def _remember(model: LoopedModel) -> None:
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
    if not len(model.layers):
        raise InputError("the model has no layers")
    enough = True
    if tokens is not None:
        h = _shaped("embed", _call("embed", model.embed, tokens[:1, :3]), (*tokens[:1, :3].shape, model.width))
        enough = _check_embed(model, tokens)
    else:
        assert state is not None
        h = state[:1, :3]
    rows = torch.arange(h.shape[1], device=h.device)
    x = torch.cat([h, h.flip(1) * 0.5])  # two examples, so that one that looks at the other is found out, too
    kinds: set[type] = set()
    for number, layer in enumerate(model.layers, start=1):
        if every or type(layer) not in kinds:
            _check_layer(model, layer, f"layer {number}'s ", x, rows, alone=type(layer) not in kinds)
        kinds.add(type(layer))
    closed = _shaped("close", _call("close", model.close, x), x.shape)
    _same("close", closed, _call("close", model.close, x[:1, -1:]), x)
    logits = _call("read", model.read, closed)
    _shaped("read", logits, (*x.shape[:2], logits.shape[-1] if isinstance(logits, Tensor) and logits.dim() else 0))
    _same("read", logits, _call("read", model.read, closed[:1, -1:]), closed)
    return enough and len(rows) > 1


def _check_embed(model: LoopedModel, tokens: Tensor) -> bool:
    """Whether each of two tokens has the same state whatever the other is; False where there are no two to try."""
    different = tokens.unique()
    if tokens.shape[1] < 2 or len(different) < 2:
        return False
    one, two = different[0], different[-1]
    pairs = torch.stack([torch.stack(pair) for pair in ((one, one), (one, two), (two, one), (two, two))])
    h = _shaped("embed", _call("embed", model.embed, pairs), (4, 2, model.width))
    rule = "row r must depend on token r alone"
    for row, first, second in ((0, 0, 1), (0, 2, 3), (1, 0, 2), (1, 1, 3)):
        _equal("the model's embed", h[first, row], h[second, row], h, rule)
    # The same of the first and the last of all rows, whose example stands alone, then beside others.
    whole = tokens[:1]
    alone = _call("embed", model.embed, whole)
    for row in (0, -1):
        other = torch.where(whole == one, two, one)
        other[:, row] = whole[:, row]
        beside = _call("embed", model.embed, torch.cat([whole, other, two.expand_as(whole)]))
        for example in (0, 1):
            _equal("the model's embed", alone[0, row], beside[example, row], alone, rule)
    return True


def _check_layer(model: LoopedModel, layer: LoopedLayer, name: str, x: Tensor, rows: Tensor, alone: bool) -> None:
    scale = _call(f"{name}scale", float, layer.scale)
    if not math.isfinite(scale):
        raise InputError(f"the model's {name}scale must be a finite number, not {scale}")
    heads = (len(x), model.heads, len(rows), model.head_size)
    found = _parts(f"{name}project", layer, x, rows, "qkv", heads)
    if len({each.dtype for each in found}) > 1 and not torch.is_autocast_enabled(x.device.type):
        types = ", ".join(str(each.dtype).removeprefix("torch.") for each in found)
        raise InputError(f"the model's {name}project must give one type, not {types} for q, k and v")
    added = _shaped(f"{name}attn_out", _call(f"{name}attn_out", layer.attn_out, found[2]), x.shape)
    after = _shaped(f"{name}mlp_out", _call(f"{name}mlp_out", layer.mlp_out, x), x.shape)
    if not alone:
        return
    last = (1, model.heads, 1, model.head_size)
    parts = [
        *_parts(f"{name}project", layer, x[:1, -1:], rows[-1:], "q", last),
        *_parts(f"{name}project", layer, x[:1, -1:], rows[-1:], "kv", last),
    ]
    for whole, part in zip(found, parts, strict=True):
        _same(f"{name}project", whole, part, x)
    _same(f"{name}attn_out", added, _call(f"{name}attn_out", layer.attn_out, found[2][:1, :, -1:]), found[2])
    _same(f"{name}mlp_out", after, _call(f"{name}mlp_out", layer.mlp_out, x[:1, -1:]), x)


def _parts(
    name: str, layer: LoopedLayer, x: Tensor, rows: Tensor, parts: str, wanted: tuple[int, ...]
) -> tuple[Tensor, ...]:
    found = _call(name, layer.project, x, rows, parts)
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
    """InputError unless two results agree as far as rounding lets them; numbers that are not finite say nothing."""
    a, b = one.double(), two.double()
    apart = float((a - b).abs().amax())
    share = _ROUNDING.get(one.dtype, 0.06)
    size = float(torch.maximum(a.abs(), b.abs()).amax())
    rounding = 32 * torch.finfo(one.dtype).eps * float(given.detach().double().abs().amax())
    if math.isfinite(apart) and apart > share * size + rounding:
        raise InputError(f"{name} gives a row another value beside other rows, {apart:.3g} off; {rule}")


def check_map(name: str, steering_map: TokenMap, like: Float[Tensor, "*B d"]) -> None:
    """InputError unless a map treats a row beside others, of its example and of another one, as it does alone."""
    x = torch.linspace(-1, 1, 4 * like.shape[-1], device=like.device).to(like.dtype).view(2, 2, -1)
    alone = steering_map(x[:1, 1:].clone())
    _equal(f"map {name!r}", steering_map(x.clone())[:1, 1:], alone, x, "a map must act on every row alone")


# The model's own forward ---------------------------------------------------------------------------------------------


def _own_forward(model: object) -> Callable[[Tensor], Any] | None:
    """How a torch module is called on tokens alone; None if it cannot be.

    Where it has an argument for the number of calls of F, it is asked for two.
    """
    if not isinstance(model, nn.Module) or type(model).forward is nn.Module.forward:
        return None
    try:
        first, *others = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in others if each.default is each.empty and each.kind not in variadic]
    if first.kind is inspect.Parameter.KEYWORD_ONLY or first.kind in variadic or set(needed) - set(COUNTS):
        return None
    counts = {each.name: 2 for each in others if each.name in COUNTS}
    return _called_with(lambda tokens: model.forward(tokens, **counts))


def _called_with(function: Any) -> Callable[[Tensor], Any]:
    """A function that gives None where it fails: what a forward takes beside a few tokens is not known here."""

    def call(tokens: Tensor) -> Any:
        try:
            return function(tokens)
        except Exception:
            return None

    return call


def _check_forward(model: LoopedModel, tokens: Tensor, own: Callable[[Tensor], Any] | None) -> bool:
    """InputError where a forward gives logits that no number of calls gives; False where there are none to compare."""
    if own is None:
        return False
    expected = _logits(own(tokens))
    if expected is None or not bool(expected.isfinite().all()):
        return False
    again = _logits(own(tokens))
    if again is None or not torch.equal(again, expected):  # dropout, noise: nothing to compare with
        return False
    least, at = math.inf, 0
    for calls, (logits, moved) in enumerate(_plain(model, tokens, _most_calls(model))):
        if tuple(expected.shape) == (1, logits.shape[-1]):
            logits, moved = logits[:, -1], moved[:, -1]
        if logits.shape != expected.shape:
            return False
        if not bool(logits.isfinite().all()):
            return False
        share = max(_SHARES.get(each.dtype, 0.25) for each in (logits, expected))
        rounding = 50 * float((moved - logits).abs().amax()) + share * float(expected.abs().amax())
        apart = float((logits - expected).abs().amax())
        if apart <= rounding:
            return True
        least, at = min((least, at), (apart, calls))
    raise InputError(
        f"the model's own forward gives logits that no number of calls gives (nearest: F{at}, {least:.3g} off), so that"
        " it does more than embed, layers, close and read; check_model(model, forward=False) leaves it out"
    )


def _logits(found: Any) -> Tensor | None:
    """The logits among what a forward gives: alone, under that name, or the first of several that has rows."""
    found = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", found)
    several = found if isinstance(found, tuple | list) else (found,)
    tensors = (each for each in several if isinstance(each, Tensor) and each.is_floating_point() and each.dim() > 1)
    return next((each.detach() for each in tensors), None)


def _most_calls(model: object) -> int:
    said = [getattr(each, name, 0) for each in (model, getattr(model, "config", None)) for name in COUNTS]
    return max(CALLS, *(each for each in said if type(each) is int and each <= 4 * CALLS), 0)


def _plain(model: LoopedModel, tokens: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits after 0, 1, ... calls, and those from a start that is off by a rounding, which tells how far one grows."""
    h = model.embed(tokens)
    nudge = 1 + 2 * torch.finfo(h.dtype).eps * (1 - 2 * (torch.arange(h.shape[-1], device=h.device) % 2)).to(h.dtype)
    x = torch.cat([h, h * nudge])
    for calls in range(most + 1):
        if calls:
            x = plain_run(model, {"main": x}, ONCE).states["h1"]
        logits = model.read(x)
        yield logits[:1], logits[1:]
