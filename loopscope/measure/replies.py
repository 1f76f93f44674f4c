"""Asking a language model: questions as chat prompts, replies as texts, replies as bytes that a record can hold.

A question becomes the prompt of a chat, with thinking switched off where a template knows it.  Replies are greedy.  A
reply that did not end within its tokens has WENT_ON behind it: no whole answer has, so it is never taken for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from loopscope.errors import InputError
from loopscope.log import Log, silent, under
from loopscope.models.decoding import generate, pad_left
from loopscope.models.passes import LanguageModel
from loopscope.program import Program, ProgramLike
from loopscope.protocol import TokenMap

WENT_ON = "\N{HORIZONTAL ELLIPSIS}"
"""Stands behind a reply that was cut."""

KEPT = 96
"""Bytes of a reply that are kept, far more than any right answer has."""


@runtime_checkable
class ChatTokenizer(Protocol):
    """A tokenizer with a chat template, as `text.Tokenizer` is."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True, **settings: object
    ) -> list[int]:
        """The tokens of a chat, up to where the answer begins."""
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens."""
        ...


def asked(tokenizer: ChatTokenizer, question: str) -> list[int]:
    """The tokens of a question, up to where the answer begins."""
    return tokenizer.encode_chat([{"role": "user", "content": question}], enable_thinking=False)


def answers_name(template: int, steered: bool) -> str:
    """What a record calls the answers to questions in one wording, with the map J or without."""
    return f"template {template}, {'J' if steered else 'no map'}"


def together(prompts: Sequence[Sequence[int]]) -> Int[Tensor, "B T"]:
    """Prompts of one length as a tensor; InputError where they are not of one length, or there are none."""
    lengths = sorted({len(prompt) for prompt in prompts})
    if len(lengths) != 1:
        raise InputError(f"prompts must be of one length, not of {', '.join(map(str, lengths)) or 'none'} tokens")
    return torch.tensor(prompts)


def ask(
    model: LanguageModel,
    tokenizer: ChatTokenizer,
    questions: Sequence[str],
    program: ProgramLike,
    *,
    new: int,
    maps: Mapping[str, TokenMap] | None = None,
    read: str = "last",
    batch: int = 32,
    log: Log = silent,
) -> list[str]:
    """The model's reply to every question, in their order; equal questions are asked once.

    Questions of similar length share a batch, padded on the left.  `program`, `new`, `maps` and `read` are as for
    `decoding.generate`.  InputError for an empty batch, and as `generate`.
    """
    prompts = {question: asked(tokenizer, question) for question in questions}
    said = _said(model, tokenizer, prompts, program, new, maps, read, batch, log)
    return [said[question] for question in questions]


def replies_of_runs(
    model: LanguageModel,
    tokenizer: ChatTokenizer,
    questions: Sequence[str],
    runs: Mapping[str, tuple[Program, str]],
    *,
    new: int,
    maps: Mapping[str, TokenMap] | None = None,
    batch: int = 32,
    log: Log = silent,
) -> dict[str, UInt8[Tensor, "questions _"]]:
    """The replies to the same questions in several runs, each a program and the point that is read, as `as_bytes`.

    As `ask` run by run, but every question becomes tokens once.
    """
    prompts = {question: asked(tokenizer, question) for question in questions}
    found = {}
    for name, (program, read) in runs.items():
        said = _said(model, tokenizer, prompts, program, new, maps, read, batch, under(name, log))
        found[name] = as_bytes([said[question] for question in questions])
    return found


def _said(
    model: LanguageModel, tokenizer: ChatTokenizer, prompts: Mapping[str, Sequence[int]], program: ProgramLike,
    new: int, maps: Mapping[str, TokenMap] | None, read: str, batch: int, log: Log,
) -> dict[str, str]:  # fmt: skip
    if batch < 1:
        raise InputError(f"a batch has at least 1 question, not {batch} (nearest: 1)")
    order = sorted(prompts, key=lambda question: len(prompts[question]))
    said: dict[str, str] = {}
    for start in range(0, len(order), batch):
        log(f"{start} of {len(order)} replies")
        mine = order[start : start + batch]
        tokens, mask = pad_left([prompts[question] for question in mine])
        found = generate(model, tokens, program, new=new, maps=maps, mask=mask, read=read)
        for question, text in zip(mine, found.texts(), strict=True):
            said[question] = as_reply(tokenizer, text, new)
    return said


def as_reply(tokenizer: ChatTokenizer, tokens: Sequence[int], new: int) -> str:
    """The text of a reply, with WENT_ON behind it if it has all of its `new` tokens and so did not end."""
    return tokenizer.decode(tokens) + (WENT_ON if len(tokens) == new else "")


def as_bytes(texts: Sequence[str]) -> UInt8[Tensor, "n bytes"]:
    """Texts in UTF-8, a row each, filled up with zeros; one of more than KEPT bytes is cut, with WENT_ON behind it."""
    rows = []
    for text in texts:
        data = text.replace("\0", " ").encode()
        if len(data) > KEPT:
            short = data[: KEPT - len(WENT_ON.encode())].decode(errors="ignore")
            data = (short + WENT_ON).encode()
        rows.append(data)
    longest = max(map(len, rows), default=0)
    table = torch.zeros((len(rows), max(1, longest)), dtype=torch.uint8)
    for row, data in zip(table, rows, strict=True):
        row[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    return table


def as_texts(table: UInt8[Tensor, "n bytes"]) -> list[str]:
    """What `as_bytes` was given."""
    return [bytes(row).rstrip(b"\0").decode() for row in table.tolist()]
