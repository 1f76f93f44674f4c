"""Small models as the explorer shows them, and questions about them."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscope.view.contract import unpack
from loopscope.view.explorer import Explorer
from loopscope.view.runs import finish
from loopscope.view.shown_model import ShownModel
from tests.tiny import tiny_map, tiny_model, tiny_tokens

ONE, TWO = tiny_tokens(2, seed=4).tolist()


def tiny_subject(**changes: Any) -> ShownModel:
    """A model with two maps whose inputs are tokens, and whose programs do not all answer alike."""
    return ShownModel(tiny_model(seed=3), "tiny", {"one": tiny_map(1), "two": tiny_map(2)}, **changes)


def tiny_explorer() -> Explorer:
    return Explorer(tiny_subject())


def asked(
    explorer: Explorer, program: str, beside: list[int] | None = TWO, **read: Any
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The head and the arrays of an answer about a program on the first input."""
    others = {} if beside is None else {"other": {"tokens": beside}}
    return unpack(finish(explorer.answer(explorer.request(program, read, {"tokens": ONE}, others))))
