"""What the explorer's page asks and what it is told: requests and answers as values and as bytes.

    request = Request.parse(b'{"input":{...},"model":"5f0c...","others":{},"program":"F6","read":{"kind":"check"}}')
    request.name                        32 hexadecimal digits, by which the answer is recorded
    pack(Answer("check", {"program": "F6"}, {}), request.name)

`page/CONTRACT.md` says what each key means.  A request is looked at here as far as that needs no model: which keys
there are, of which types and sizes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from loopscope.bounds import shown, whole
from loopscope.errors import InputError, LoopscopeError, nearest

CONTRACT = 1
"""Version of what `page/CONTRACT.md` says."""

DIGITS = 32
"""Digits of a fingerprint and of a name."""

NAME = re.compile(rf"[0-9a-f]{{{DIGITS}}}")

MOST = 2**53 - 1
"""The largest whole number that JavaScript holds."""

BODY = 256 * 2**10
"""Bytes of the largest request."""

PROGRAM = 20_000
TEXT = 20_000
ROWS = 512
ANSWERS = 16
TOP = 50
SIZE = 256
OTHERS = 4
NODES = 1000
"""The most of each that a request may have: characters of the program and of a text, rows, answers to rank, likeliest
classes, cells of a thumbnail's side, other inputs, nodes of a graph."""

TYPES = {"float32": "<f4", "float16": "<f2", "int32": "<i4", "uint8": "|u1"}
"""What an array may hold, and as which bytes."""

Json: TypeAlias = Any
Settings: TypeAlias = Mapping[str, Json]


def canonical(value: Json) -> bytes:
    """JSON with sorted keys and no blanks, in UTF-8; InputError for what has no such text, as half a character."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"a request has no canonical text: {' '.join(str(error).split())[:160]}") from None


def name_of(value: Json) -> str:
    """The name of a request: the beginning of its canonical text's SHA-256."""
    return hashlib.sha256(canonical(value)).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class Request:
    """One request, looked at as far as that needs no model; made by `parse` or `of`."""

    model: str
    input: Settings
    others: Mapping[str, Settings]
    program: str
    read: Settings
    name: str = field(compare=False)

    @classmethod
    def of(cls, value: Json) -> Request:
        """The request of a JSON value; InputError, in one line, for anything else."""
        _keys("a request", value, ("input", "model", "others", "program", "read"))
        if not isinstance(value["model"], str) or not NAME.fullmatch(value["model"]):
            raise InputError(f"the model of a request is {DIGITS} hexadecimal digits, not {shown(value['model'])}")
        if not isinstance(value["others"], dict) or len(value["others"]) > OTHERS:
            raise InputError(f"the others of a request are at most {OTHERS} inputs by name")
        for name in value["others"]:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) or name == "main":
                raise InputError(f"an input cannot be called {shown(name)}")
        for each in (value["input"], *value["others"].values()):
            _check_input(each)
        _text("a program", value["program"], PROGRAM)
        _check_read(value["read"])
        return cls(
            value["model"], value["input"], value["others"], value["program"], value["read"], name_of(value)
        )  # fmt: skip

    @classmethod
    def parse(cls, body: bytes) -> Request:
        """The request of a JSON text; InputError, in one line, for anything else."""
        return cls.of(parse_json(body))

    @property
    def kind(self) -> str:
        """What is read."""
        return str(self.read["kind"])


@dataclass(frozen=True)
class Answer:
    """What a request is answered with: facts as JSON, and arrays."""

    kind: str
    facts: Settings
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def failed(error: LoopscopeError, program: str | None = None) -> Answer:
    """The answer where a request cannot be answered: the library's line, and where in the program, if it says that."""
    found = re.search(r" at character ([0-9]+) of program ", str(error))
    position = int(found[1]) - 1 if found and program is not None else None
    return Answer("error", {"error": {"message": str(error), "position": position}})


def pack(answer: Answer, name: str) -> bytes:
    """An answer as bytes; the same answer gives the same bytes."""
    arrays, offset, pieces = {}, 0, []
    for key, array in answer.arrays.items():
        kind = array.dtype.name
        data = np.ascontiguousarray(array, dtype=TYPES[kind]).tobytes()
        arrays[key] = {"dtype": kind, "shape": list(array.shape), "offset": offset}
        data += bytes(-len(data) % 8)
        pieces.append(data)
        offset += len(data)
    head = canonical({**answer.facts, "kind": answer.kind, "name": name, "arrays": arrays})
    front = len(head).to_bytes(4, "little") + head
    return front + bytes(-len(front) % 8) + b"".join(pieces)


def unpack(data: bytes) -> tuple[dict[str, Json], dict[str, np.ndarray]]:
    """The head of an answer and its arrays; InputError for bytes that are none."""
    try:
        length = int.from_bytes(data[:4], "little")
        head = json.loads(data[4 : 4 + length])
        start = 4 + length + -(4 + length) % 8
        arrays = {}
        for name, where in head["arrays"].items():
            kind, shape = np.dtype(TYPES[where["dtype"]]), tuple(where["shape"])
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(data, kind, count, start + where["offset"]).reshape(shape)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"these {len(data)} bytes are no answer: {' '.join(str(error).split())[:80]}") from None
    return head, arrays


def parse_json(body: bytes) -> Json:
    """JSON that somebody sent; InputError for anything else, for keys that come twice and for numbers with a point."""

    def once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key comes twice")
        return dict(pairs)

    def refuse(text: str) -> Json:
        raise ValueError(f"numbers are whole, not {text[:40]}")

    if len(body) > BODY:
        raise InputError(f"a request has at most {BODY} bytes, not {len(body)}")
    try:
        return json.loads(body, object_pairs_hook=once, parse_float=refuse, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"a request is JSON: {' '.join(str(error).split())[:160]}") from None


# ---- what a request may say ------------------------------------------------------------------------------------------


def _keys(what: str, value: Json, wanted: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise InputError(f"{what} is a JSON object with {', '.join(wanted)}, not {shown(value)}")
    for key in value:
        if key not in wanted:
            raise InputError(f"{what} has no {shown(key)}; there are {', '.join(wanted)}{nearest(str(key), wanted)}")
    for key in wanted:
        if key not in value:
            raise InputError(f"{what} has no {key!r}")


def _text(what: str, value: Json, most: int) -> None:
    if not isinstance(value, str):
        raise InputError(f"{what} is a text, not {shown(value)}")
    if len(value) > most:
        raise InputError(f"{what} has at most {most} characters here, not {len(value)}")


def _numbers(what: str, value: Json, most: int, low: int = 0) -> None:
    if not isinstance(value, list):
        raise InputError(f"{what} are a list of whole numbers, not {shown(value)}")
    if len(value) > most:
        raise InputError(f"{what} are at most {most} numbers here, not {len(value)}")
    for each in value:
        whole(f"each of {what}", each, low, MOST)


def _check_input(value: Json) -> None:
    if not isinstance(value, dict):
        raise InputError(f"an input is a JSON object, not {shown(value)}")
    if "graph" in value:
        _keys("a graph as input", value, ("graph", "start", "depth"))
        _numbers("the arrows of a graph", value["graph"], NODES)
        whole("start", value["start"], 0, MOST)
        whole("depth", value["depth"], 0, MOST)
    elif "text" in value:
        _keys("a text as input", value, ("text", "chat"))
        _text("an input", value["text"], TEXT)
        if type(value["chat"]) is not bool:
            raise InputError(f"chat is true or false, not {shown(value['chat'])}")
    else:
        _keys("an input", value, ("tokens",))
        _numbers("the tokens of an input", value["tokens"], ROWS)


def _check_read(read: Json) -> None:
    kind = read.get("kind") if isinstance(read, dict) else None
    if not isinstance(kind, str) or kind not in SETTINGS:
        near = nearest(str(kind)[:40], SETTINGS)
        raise InputError(f"nothing is read as {shown(kind)}; there are {', '.join(SETTINGS)}{near}")
    checks = SETTINGS[kind]
    _keys(f"read {kind}", read, ("kind", *checks))
    for name, check in checks.items():
        check(name, read[name])


def _rows(name: str, value: Json) -> None:
    if value not in ("last", "all"):
        raise InputError(f"{name} are 'last' or 'all', not {shown(value)}")


def _places(name: str, value: Json) -> None:
    if value != "all":
        _numbers(name, value, ROWS, -ROWS)


def _head(name: str, value: Json) -> None:
    if value is not None:
        whole(name, value, 0, MOST)


def _by(name: str, value: Json) -> None:
    if value not in ("layer", "head"):
        raise InputError(f"{name} is 'layer' or 'head', not {shown(value)}")


def _number(low: int, high: int) -> Callable[[str, Json], None]:
    return lambda name, value: (whole(name, value, low, high), None)[1]


def _word(most: int) -> Callable[[str, Json], None]:
    return lambda name, value: _text(name, value, most)


SETTINGS: Mapping[str, Mapping[str, Callable[[str, Json], None]]] = {
    "check": {},
    "input": {},
    "readouts": {
        "answers": lambda name, value: _numbers(name, value, ANSWERS),
        "rows": _rows,
        "top": _number(1, TOP),
    },
    "patterns": {"head": _head, "place": _word(200), "size": _number(0, SIZE)},
    "trajectory": {"rows": _rows},
    "sweep": {"by": _by, "component": _word(40), "rows": _places, "source": _word(PROGRAM)},
    "compare": {"other": _word(PROGRAM), "rows": _rows},
}
"""What can be read, the settings of each, and what each may be."""
