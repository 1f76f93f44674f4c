"""The texts that the explorer begins with: each with another that a tokenizer makes equally long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from loopscope.errors import InputError
from loopscope.view.examples import TEXTS, examples_of
from tests.viewing import text_explorer


class Letters:
    """A token for every letter; those of `twice` have two, and what has one of `never` cannot be read."""

    def __init__(self, twice: str = "", never: str = "") -> None:
        self.twice, self.never = twice, never

    def encode(self, text: str) -> list[int]:
        if set(text) & set(self.never):
            raise InputError("no such letter")
        return [ord(letter) for letter in text for _ in range(2 if letter in self.twice else 1)]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


def pairs(tokenizer: Letters, rows: int = 100) -> list[tuple[Any, Any]]:
    """The examples of a model with this tokenizer and the other inputs beside them."""
    subject: Any = SimpleNamespace(
        walk=None, tokenizer=tokenizer, rows=rows, vocabulary=2**17, model=None, classes=9, name="it", kind="text"
    )
    return [(dict(each.input), dict(each.others["other"])) for each in examples_of(subject)]


def text(of: str) -> dict[str, Any]:
    return {"text": of, "chat": False}


def test_texts_of_unequal_length_are_left_out() -> None:
    assert pairs(Letters()) == [(text(one), text(two)) for one, two in TEXTS[1:]]


def test_where_no_pair_is_equally_long_one_token_is_exchanged() -> None:
    letters = Letters(twice="M2")
    found = pairs(letters)
    assert [one["text"] for one, _ in found] == [one for one, _ in TEXTS]
    for one, other in found:
        mine = letters.encode(one["text"])
        theirs = letters.encode(other["text"]) if "text" in other else other["tokens"]
        assert len(mine) == len(theirs)
        assert sum(a != b for a, b in zip(mine, theirs, strict=True)) == 1
    assert "text" in found[0][1]  # it can be written, and then a person can go on from it


def test_what_the_model_cannot_read_is_no_example() -> None:
    assert pairs(Letters(never="M")) == [(text(TEXTS[2][0]), text(TEXTS[2][1]))]
    assert pairs(Letters(), rows=20) == [(text(TEXTS[2][0]), text(TEXTS[2][1]))]
    assert pairs(Letters(), rows=4) == [({"tokens": [1, 2, 3, 4]}, {"tokens": [2, 3, 4, 5]})]


def test_the_examples_of_a_language_model_have_as_many_rows_as_what_stands_beside_them() -> None:
    subject = text_explorer().subject
    assert subject.tokenizer is not None
    for each in subject.examples:
        rows = [
            len(subject.tokenizer.encode(given["text"]) if "text" in given else given["tokens"])
            for given in (each.input, each.others["other"])
        ]
        assert rows[0] == rows[1]
