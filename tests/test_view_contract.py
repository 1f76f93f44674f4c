"""Requests and answers as values and as bytes."""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import InputError
from loopscope.view.contract import BODY, Answer, Request, canonical, failed, name_of, pack, unpack

VALUE: dict[str, Any] = {
    "input": {"tokens": [1, 2]},
    "model": "0" * 32,
    "others": {},
    "program": "F6 J:one F",
    "read": {"kind": "readouts", "answers": [], "rows": "last", "top": 5},
}


def test_a_request_is_named_by_the_hash_of_its_canonical_text() -> None:
    text = (
        '{"input":{"chat":false,"text":"zwölf\u2028 \\"\\n"},"model":"00000000000000000000000000000000","others":{},'
        '"program":"F6","read":{"kind":"check"}}'
    )
    value = {**VALUE, "input": {"text": 'zwölf\u2028 "\n', "chat": False}, "program": "F6", "read": {"kind": "check"}}
    assert canonical(value) == text.encode()
    request = Request.parse(text.encode())
    assert request.name == name_of(value) == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert request == Request.of(dict(reversed(value.items())))


def test_the_name_of_a_request_stays_what_it_is() -> None:
    # Bundles and links are found by it; the page computes the same in a browser.
    assert Request.of(VALUE).name == "479178adb0d71550a63f8a11d0cb5374"


@given(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["float32", "float16", "int32", "uint8"])),
    st.lists(st.integers(0, 4), max_size=3),
    st.text(max_size=20).filter(lambda text: text.isprintable()),
)
def test_answers_come_back_as_they_were(kinds: dict[str, str], shape: list[int], word: str) -> None:
    count = int(np.prod(shape))
    arrays = {name: np.arange(count).astype(kind).reshape(shape) for name, kind in kinds.items()}
    data = pack(Answer("readouts", {"word": word}, arrays), "a" * 32)
    assert data == pack(Answer("readouts", {"word": word}, arrays), "a" * 32)
    head, found = unpack(data)
    assert (head["word"], head["kind"], head["name"]) == (word, "readouts", "a" * 32)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_arrays_begin_at_multiples_of_eight_counted_as_the_contract_says() -> None:
    data = pack(Answer("x", {}, {"a": np.arange(3, dtype=np.uint8), "b": np.float32([7])}), "0" * 32)
    length = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + length])
    start = -(-(4 + length) // 8) * 8
    assert not any(data[4 + length : start])
    assert head["arrays"]["b"] == {"dtype": "float32", "shape": [1], "offset": 8}
    assert np.frombuffer(data, "<f4", 1, start + 8)[0] == 7


@pytest.mark.parametrize("data", [b"", b"\x05\0\0\0{}", b"\x02\0\0\0{}", b"\x0c\0\0\0" + b'{"arrays":0}'])
def test_bytes_that_are_no_answer_are_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="are no answer"):
        unpack(data)


def test_an_error_says_where_in_the_program() -> None:
    answer = failed(InputError("cannot read 'X' at character 4 of program 'F6 X'; a step is F"), "F6 X")
    assert answer.facts["error"]["position"] == 3
    assert failed(InputError("no map is called 'x'"), "F6 J:x").facts["error"]["position"] is None


def changed(where: list[str], value: object) -> dict[str, Any]:
    made = deepcopy(VALUE)
    place = made
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    return made


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "a request is a JSON object"),
        ({key: value for key, value in VALUE.items() if key != "others"}, "has no 'others'"),
        (changed(["more"], 1), "has no 'more'"),
        (changed(["model"], "x"), "hexadecimal"),
        (changed(["model"], 3), "hexadecimal"),
        (changed(["program"], 3), "a program is a text"),
        (changed(["program"], "F" * 20_001), "at most 20000 characters"),
        (changed(["others"], {"main": {"tokens": [1]}}), "cannot be called 'main'"),
        (changed(["others"], {"a b": {"tokens": [1]}}), "cannot be called"),
        (changed(["others"], {str(number): {"tokens": [1]} for number in range(5)}), "at most 4 inputs"),
        (changed(["others"], {"x": {"tokens": "1"}}), "list of whole numbers"),
        (changed(["input"], {"tokens": [1.5]}), "whole number"),
        (changed(["input"], {"tokens": [True]}), "whole number"),
        (changed(["input"], {"tokens": [-1]}), "at least 0"),
        (changed(["input"], {"tokens": [2**53]}), "at most"),
        (changed(["input"], {"tokens": [1] * 513}), "at most 512 numbers"),
        (changed(["input"], {"tokens": [1], "more": 1}), "has no 'more'"),
        (changed(["input"], {"text": "a", "chat": 1}), "chat is true or false"),
        (changed(["input"], {"text": "a" * 20_001, "chat": False}), "at most 20000"),
        (changed(["input"], {"graph": [1, 0], "start": 0}), "has no 'depth'"),
        (changed(["input"], {"graph": [0] * 1001, "start": 0, "depth": 8}), "at most 1000"),
        (changed(["read", "kind"], "readout"), "nearest: readouts"),
        (changed(["read", "kind"], []), "nothing is read"),
        (changed(["read", "rows"], "some"), "'last' or 'all'"),
        (changed(["read", "top"], 51), "at most 50"),
        (changed(["read", "answers"], [1] * 17), "at most 16"),
        (changed(["read", "more"], 1), "has no 'more'"),
        (changed(["read"], {"kind": "patterns", "head": None, "place": "loop[1].layer[1]"}), "has no 'size'"),
        (changed(["read"], {"kind": "sweep", "by": "row", "component": "z", "rows": "all", "source": "F"}), "'head'"),
    ],
)
def test_what_is_no_request_is_refused_in_one_line(value: object, said: str) -> None:
    with pytest.raises(InputError) as refused:
        Request.of(value)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "a request is JSON"),
        (b"\xff", "a request is JSON"),
        (b"[" * 50_000, "a request is JSON"),
        (b'{"a":1,"a":1}', "comes twice"),
        (b'{"a":1.0}', "numbers are whole"),
        (b'{"a":NaN}', "numbers are whole"),
        (b" " * (BODY + 1), "at most"),
        (json.dumps(changed(["program"], "\ud800")).encode(), "no canonical text"),
    ],
)
def test_a_text_that_is_no_request_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Request.parse(body)
