"""From texts to what a model is trained on: rows of tokens, and which of them are learned with what weight.

A question is put into the folder's chat template, thinking disabled where a template knows of it; learned is what the
assistant says, to the token that ends its turn and the newline after it.  Of other texts every token is learned.  Rows
are padded on the right, where causal attention needs no mask, and logits are computed for learned tokens only.
Questions about the same rules begin alike, and what they begin with is computed once for all of them.

Averages are weights: every learned token carries its share of the update's loss, so that however the rows are put
together, the losses of their passes add up to the loss of the update.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.errors import InputError
from loopscope.models.passes import check_tokens
from loopscope.models.text import Tokenizer
from loopscope.tasks.general_text import CHUNK, Pool, draw, tokens_beside
from loopscope.training.lm.questions import Example, Text, examples, texts
from loopscope.training.lm.recipe import Recipe

TEXT_TOKENS = 256
"""Tokens of a row of general text that comes instead of the task."""

Averaging = Literal["micro-batch", "sequence", "token"]


class Reading(NamedTuple):
    """Tokens that are learned in place of a row's own from its first learned one on, after fewer loops."""

    tokens: tuple[int, ...]
    loops: int
    depth: int


class TokenSequence(NamedTuple):
    """One sequence: its tokens, the first that is learned (1 or later), and how many loops it is run for.

    `answers`: of every answer in it the number of its first token, which is learned, and its depth.  `earlier` is what
    is read after fewer loops; all but the last token of each are the row's own, so that it follows the same text.
    """

    tokens: tuple[int, ...]
    first: int
    loops: int
    answers: tuple[tuple[int, int], ...] = ()
    earlier: tuple[Reading, ...] = ()

    @property
    def learned(self) -> tuple[int, ...]:
        """How many tokens are learned after all loops, and in each earlier reading."""
        return (len(self.tokens) - self.first, *(len(each.tokens) for each in self.earlier))


@dataclass(frozen=True)
class Line:
    """Rows of as many loops, behind the tokens that they all begin with, `shared` of them, which are there once.

    Each row is a branch: it sees what is shared and itself (`passes.states`), so that it is as if it stood alone.
    """

    rows: tuple[TokenSequence, ...]
    shared: int

    @classmethod
    def of(cls, rows: Sequence[TokenSequence]) -> Line:
        """A line of these rows.  ValueError for rows of unlike numbers of loops."""
        if len({row.loops for row in rows}) > 1:
            raise ValueError("rows of unlike numbers of loops do not lie in one line")
        return cls(tuple(rows), _alike(row.tokens for row in rows))

    @property
    def loops(self) -> int:
        """How many loops its rows are run for."""
        return self.rows[0].loops

    @property
    def tokens(self) -> list[int]:
        """What is shared, and the rest of each row."""
        first = list(self.rows[0].tokens[: self.shared])
        return first + [token for row in self.rows for token in row.tokens[self.shared :]]

    @property
    def branches(self) -> list[int]:
        """For every token the number of its branch, from 1, or 0 where it is shared."""
        rest = (number for number, row in enumerate(self.rows, start=1) for _ in row.tokens[self.shared :])
        return [0] * self.shared + list(rest)

    @property
    def columns(self) -> list[list[int]]:
        """For every row, where in the line its tokens are."""
        found, end = [], self.shared
        for row in self.rows:
            length = len(row.tokens) - self.shared
            found.append([*range(self.shared), *range(end, end + length)])
            end += length
        return found


@dataclass(frozen=True)
class Unit:
    """Lines that go through the model in one pass, and the tokens learned: `targets`, read at (`rows`, `columns`).

    `loops` are those of every line, the most first: lines leave the pass one after another.  `reads` are the numbers of
    loops that are read after, the most first; `rows` counts the lines that have as many, of one after another.  The
    loss of a unit is the sum of `weights` times the targets' cross-entropies.  `kind` tells the task from general text.
    `answers` are the numbers of those targets that are the first tokens of answers, `depths` what they answer, and
    `after` the loops they are read after.  `branches` are those of lines; None where every line is one row.
    """

    tokens: Int[Tensor, "B T"]
    rows: Int[Tensor, " n"]
    columns: Int[Tensor, " n"]
    targets: Int[Tensor, " n"]
    weights: Float[Tensor, " n"]
    answers: Int[Tensor, " answers"]
    depths: Int[Tensor, " answers"]
    after: Int[Tensor, " answers"]
    loops: tuple[int, ...]
    reads: tuple[int, ...]
    kind: Literal["task", "general"]
    length: int  # of all lines together, without padding
    branches: Int[Tensor, "B T"] | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What it holds as tensors."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def to(self, device: torch.device) -> Unit:
        """The same on a device; a GPU fetches it while it works."""
        if device.type == "cpu":
            return self
        moved: dict[str, Any] = {
            name: each.pin_memory().to(device, non_blocking=True) for name, each in self.tensors.items()
        }
        return replace(self, **moved)


# ---- rows ------------------------------------------------------------------------------------------------------------


def chat_rows(asked: Sequence[Example], tokenizer: Tokenizer, newline: bool = True) -> list[TokenSequence]:
    """Rows of questions: the answer is learned, and what ends the assistant's turn.

    InputError where the chat template leaves a question out, or does not put an answer right behind the prompt it
    gives for generation.
    """
    texts: list[str] = []
    for each in asked:
        start, rests = tokenizer.chat_parts(each.prompt, each.answers)
        texts += [start, *(rest if newline else rest.removesuffix("\n") for rest in rests)]
    encoded = iter(tokenizer.encode_many(texts))
    rows = []
    for each in asked:
        before = next(encoded)
        after = {answer: next(encoded) for answer in each.answers}
        rest = after[each.answer]
        earlier = tuple(
            Reading(_to_the_first_other(after[one.answer], rest), one.loops, one.depth) for one in each.earlier
        )
        rows.append(TokenSequence((*before, *rest), len(before), each.loops, ((len(before), each.depth),), earlier))
    return rows


def _to_the_first_other(tokens: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """As many of the tokens as follow the same text as the others do."""
    return tuple(tokens[: _alike((tokens, others)) + 1])


def _alike(texts: Iterable[Sequence[int]]) -> int:
    """How many tokens texts begin with alike."""
    places = zip(*texts, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda tokens: len(set(tokens)) == 1, places))


def text_rows(found: Sequence[Text], tokenizer: Tokenizer) -> list[TokenSequence]:
    """Rows of texts of which every token is learned but the first, which nothing comes before."""
    places = [[place for place, _ in each.answers] for each in found]
    rows = []
    encoded = tokenizer.encode_with_places([each.text for each in found], places)
    for each, (ids, firsts) in zip(found, encoded, strict=True):
        answers = [(first, depth) for first, (_, depth) in zip(firsts, each.answers, strict=True) if first]
        rows.append(TokenSequence(tuple(ids), 1, each.loops, tuple(answers)))
    return rows


# ---- units -----------------------------------------------------------------------------------------------------------


def units(
    rows: Sequence[TokenSequence], *, micro: int, averaging: Averaging, share: float, kind: Literal["task", "general"],
    emphasis: float = 1.0, together: int = 1,
) -> list[Unit]:  # fmt: skip
    """Rows in passes of up to `micro` lines, whose losses add up to `share` times the average of the learned tokens.

    In the average over tokens, the first token of an answer counts `emphasis` times.
    So many rows as lie `together`, one after another, are a line: they have as many loops and should begin alike.
    Micro-batches keep the order of the lines, as their average depends on it, and have one number of loops; otherwise
    lines that are run often, and of those the long ones, go together.  Earlier readings count as rows of their own do.
    """
    lines = [Line.of(rows[start : start + together]) for start in range(0, len(rows), together)]
    if averaging == "micro-batch":
        alike = [list(some) for _, some in itertools.groupby(lines, key=lambda line: line.loops)]
    else:
        alike = [sorted(lines, key=lambda line: (-line.loops, -len(line.tokens)))]
    passes = [some[start : start + micro] for some in alike for start in range(0, len(some), micro)]
    answers = sum(len(row.answers) + len(row.earlier) for row in rows)
    learned = sum(sum(row.learned) for row in rows) + (emphasis - 1) * answers
    readings = sum(len(row.learned) for row in rows)
    found = []
    for some in passes:
        counts = [count for line in some for row in line.rows for count in row.learned]
        if not all(counts):
            raise InputError("an answer has no tokens that could be learned: does the chat template leave it out?")
        weights = {
            "micro-batch": [share / (len(passes) * sum(counts))] * len(counts),
            "sequence": [share / (readings * count) for count in counts],
            "token": [share / learned] * len(counts),
        }[averaging]
        found.append(_unit(some, weights, kind, emphasis))
    return found


def _unit(lines: Sequence[Line], weights: Sequence[float], kind: Literal["task", "general"], emphasis: float) -> Unit:
    """One pass; `weights` are those of each reading's tokens, `emphasis` a factor for the first of an answer."""
    rows = [row for line in lines for row in line.rows]
    tokens = _padded([line.tokens for line in lines])
    reads = sorted(
        {loops for row in rows for loops in (row.loops, *(each.loops for each in row.earlier))}, reverse=True
    )
    coming = [sum(line.loops >= loops for line in lines) for loops in reads]
    offset = dict(zip(reads, itertools.accumulate(coming, initial=0), strict=False))
    places: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    answers: list[tuple[int, int, int]] = []
    lying = ((number, *each) for number, line in enumerate(lines) for each in zip(line.rows, line.columns, strict=True))
    for number, row, column in lying:
        own = (row.tokens[row.first :], row.loops, [(first - row.first, depth) for first, depth in row.answers])
        for learned, loops, begun in (own, *((each.tokens, each.loops, [(0, each.depth)]) for each in row.earlier)):
            answers += [(len(targets) + first, depth, loops) for first, depth in begun]
            places += [offset[loops] + number] * len(learned)
            columns += column[row.first - 1 : row.first - 1 + len(learned)]
            targets += learned
    firsts, depths, after = torch.tensor(answers, dtype=torch.long).reshape(-1, 3).unbind(1)
    counts = torch.tensor([count for row in rows for count in row.learned])
    weighed = torch.tensor(weights).repeat_interleave(counts)
    weighed[firsts] *= emphasis
    return Unit(
        tokens=tokens,
        rows=torch.tensor(places),
        columns=torch.tensor(columns),
        targets=torch.tensor(targets),
        weights=weighed,
        answers=firsts,
        depths=depths,
        after=after,
        loops=tuple(line.loops for line in lines),
        reads=tuple(reads),
        kind=kind,
        length=sum(len(line.tokens) for line in lines),
        branches=_padded([line.branches for line in lines]) if len(rows) > len(lines) else None,
    )


def _padded(lists: Sequence[Sequence[int]]) -> Int[Tensor, "B T"]:
    longest = max(map(len, lists))
    return torch.tensor([[*each, *[0] * (longest - len(each))] for each in lists])


class Data:
    """The units of every update of a recipe, a function of (recipe, general text, update, level) alone.

    InputError at the first update that does not fit the tokenizer, the model's vocabulary or its positions.
    """

    def __init__(
        self, recipe: Recipe, tokenizer: Tokenizer, pools: Sequence[Pool], *, vocabulary: int, positions: int
    ) -> None:
        self.recipe, self.tokenizer, self.pools = recipe, tokenizer, pools
        self.vocabulary, self.positions = vocabulary, positions

    def __call__(self, update: int, level: int | None = None) -> list[Unit]:
        """The units of an update, counted from 0; their weights sum to 1, so that a uniform loss of 1 gives 1.

        `level` says how deep and fast (default: by the recipe's schedule).
        """
        recipe = self.recipe
        level = recipe.level_at(update) if level is None else level
        if recipe.general == "instead":
            turn = _turns(recipe.general_seed, recipe.share, recipe.updates)[update]
            found = self._general_alone(update) if turn is None else self._task(turn, level, 1.0)
        else:
            found = self._task(update, level, 1.0 - recipe.share)
            if recipe.share:
                found += self._general_beside(update, found, recipe.loops_at(level))
        for unit in found:
            check_tokens(unit.tokens, self.vocabulary, self.positions)
        return found

    def _task(self, turn: int, level: int, share: float) -> list[Unit]:
        recipe = self.recipe
        if recipe.text == "look-ups":
            rows = text_rows(texts(recipe, turn, level), self.tokenizer)
        else:
            rows = chat_rows(examples(recipe, turn, level), self.tokenizer, recipe.newline)
        together = recipe.per_text if recipe.text == "questions" else 1
        return units(
            rows, micro=recipe.micro, averaging=recipe.averaging, share=share, kind="task", emphasis=recipe.emphasis,
            together=together,
        )  # fmt: skip

    def _general_beside(self, update: int, task: Sequence[Unit], loops: int) -> list[Unit]:
        """A quarter of the task's tokens, in passes about as large as the task's."""
        recipe = self.recipe
        drawn = draw(self.pools, tokens_beside(sum(unit.length for unit in task)), recipe.general_seed + update)
        rows = [TokenSequence(chunk, 1, loops) for chunk in drawn]
        micro = max(1, max(unit.tokens.numel() for unit in task) // CHUNK)
        return units(rows, micro=micro, averaging="token", share=recipe.share, kind="general")

    def _general_alone(self, update: int) -> list[Unit]:
        recipe = self.recipe
        drawn = draw(self.pools, CHUNK * recipe.examples, recipe.general_seed + update)
        rows = [TokenSequence(chunk[:TEXT_TOKENS], 1, recipe.loops) for chunk in drawn]
        return units(rows, micro=recipe.micro, averaging="sequence", share=1.0, kind="general")


@cache
def _turns(seed: int, share: float, updates: int) -> tuple[int | None, ...]:
    """For every update its number among those with the task, or None where general text comes instead."""
    source, turns = random.Random(seed), itertools.count()
    return tuple(None if source.random() < share else next(turns) for _ in range(updates))
