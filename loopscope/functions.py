"""What a function is told by, so that a program can say which one it was run with.

    identity(clip)        "5f0c2a91d3e4", as in F[layer[1].z<-J:clip#5f0c2a91d3e4]

A Python function is its text, with its defaults and what it closes over: numbers, texts, tensors, functions.  A module
is its class's text and its weights.  Names that a function looks up in its file are not followed.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.errors import InputError

DIGITS = 12
"""Digits of an identity."""


def identity(function: Callable[..., Any]) -> str:
    """Twelve digits of a SHA-256; InputError for a function that cannot be told from others."""
    seen = hashlib.sha256()
    for piece in _pieces(function, ()):
        seen.update(len(piece).to_bytes(8, "little"))
        seen.update(piece)
    return seen.hexdigest()[:DIGITS]


def _pieces(value: Any, inside: tuple[int, ...]) -> list[bytes]:
    """What a value is made of; `inside` are the values that it is found in."""
    if id(value) in inside:
        return [b"itself"]
    inside = (*inside, id(value))

    def several(values: Any) -> list[bytes]:
        return [piece for each in values for piece in _pieces(each, inside)]

    if value is None or isinstance(value, bool | int | float | str | bytes):
        return [type(value).__name__.encode(), repr(value).encode()]
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous()
        return [f"{data.dtype} {list(data.shape)}".encode(), data.flatten().view(torch.uint8).numpy().tobytes()]
    if isinstance(value, tuple | list):
        return [f"{type(value).__name__} {len(value)}".encode(), *several(value)]
    if isinstance(value, dict):
        return [b"dict", *several(sorted(value.items(), key=lambda item: str(item[0])))]
    if isinstance(value, functools.partial):
        return [b"partial", *several([value.func, value.args, value.keywords])]
    if isinstance(value, nn.Module):
        return [_text(type(value)), *several(sorted(value.state_dict().items()))]
    if isinstance(value, BuiltinFunctionType):
        return [f"{value.__module__}.{value.__qualname__}".encode()]
    if isinstance(value, MethodType):
        return [b"method", *several([value.__func__, value.__self__])]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [_text(value), *several([value.__defaults__, value.__kwdefaults__, *cells])]
    raise InputError(f"a {type(value).__name__} cannot be told from others of its kind; name the function alone")


def _text(value: Any) -> bytes:
    try:
        return textwrap.dedent(inspect.getsource(value)).encode()
    except (OSError, TypeError):
        raise InputError(f"the text of {value!r} cannot be found; name the function alone") from None
