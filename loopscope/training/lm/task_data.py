"""What is learned from examples of one's own: their order, the passes of an update, the loss, the checks meanwhile."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.maps import AffineMap
from loopscope.measure.answers import Item, alike, check_answers, whole_answers
from loopscope.program import Program
from loopscope.protocol import LoopedModel, TokenMap
from loopscope.training.lm.batches import Reading, TokenSequence, Unit, units
from loopscope.training.lm.objective import Loss
from loopscope.training.lm.task_recipe import TaskRecipe

FAR = 2**31
"""Positions of a model that does not say how many it has."""


class TaskData:
    """The passes of every update: a function of (recipe, items, update) alone.

    InputError for answers that the model cannot be taught.
    """

    def __init__(self, recipe: TaskRecipe, model: LoopedModel, items: Sequence[Item]) -> None:
        check_answers(model, items)
        self.recipe, self.items = recipe, items
        positions = getattr(model, "positions", None)
        self.positions = positions if isinstance(positions, int) else FAR
        self.keys = [alike(model, item) for item in items]

    def __call__(self, update: int, level: int | None = None) -> list[Unit]:
        """The passes of an update, counted from 0; each answer, after each loop that is read, weighs the same."""
        recipe = self.recipe
        first = update * recipe.examples
        mine = [self._at(place) for place in range(first, first + recipe.examples)]
        mine.sort(key=lambda at: str(self.keys[at]))
        found = []
        for _, group in groupby(mine, key=lambda at: self.keys[at]):
            rows = [_row(self.items[at], recipe) for at in group]
            share = len(rows) / recipe.examples
            for unit in units(rows, micro=recipe.micro, averaging="sequence", share=share, kind="task"):
                # The last token of an answer is never looked at, and may be a class that is no token.
                found.append(replace(unit, tokens=_without_ends(unit)))
        return found

    def _at(self, place: int) -> int:
        """Which item comes at a place of the endless sequence in which every item comes once before any comes again."""
        turn, number = divmod(place, len(self.items))
        return _order(self.recipe.seed, turn, len(self.items))[number]


@lru_cache(maxsize=2)
def _order(seed: int, turn: int, count: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed} {turn}").shuffle(order)
    return order


def _row(item: Item, recipe: TaskRecipe) -> TokenSequence:
    depth = item.example.steps or 1
    first = len(item.prompt)
    earlier = tuple(Reading(item.answer, loops, depth) for loops in recipe.read_after[:-1])
    return TokenSequence((*item.prompt, *item.answer), first, recipe.loops, ((first, depth),), earlier)


def _without_ends(unit: Unit) -> Int[Tensor, "B T"]:
    """The tokens of a pass without the last of each row, which stands behind all that is read."""
    lines = len(unit.tokens)
    lengths = 1 + unit.columns.new_zeros(lines).scatter_reduce(0, unit.rows % lines, unit.columns, "amax")
    longest = int(lengths.max())
    return unit.tokens[:, :longest].masked_fill(torch.arange(longest) >= lengths[:, None], 0)


class TaskLoss(Loss):
    """The loss of a recipe's program: a map that is fitted, or all weights, beside maps that stay as they are."""

    def __init__(
        self, model: LoopedModel, recipe: TaskRecipe, step: AffineMap | None, given: Mapping[str, TokenMap]
    ) -> None:
        super().__init__(model, step)
        self.recipe, self.given = recipe, dict(given)

    def program(self, loops: int) -> Program:
        """How the recipe's program begins."""
        return self.recipe.after(loops)

    @property
    def maps(self) -> dict[str, TokenMap]:
        """The map that is fitted beside those that were given."""
        return self.given if self.step is None else {**self.given, self.recipe.fitted: self.steer}

    def steer(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """The map in its own precision, its outcome in that of the states."""
        return super().steer(h).to(h.dtype)


class TaskChecks:
    """What is looked at meanwhile: by steps, the share of whole answers of examples that are not learned from."""

    def __init__(self, recipe: TaskRecipe, items: Sequence[Item]) -> None:
        order = random.Random(recipe.seed).sample(range(len(items)), min(recipe.checked, len(items)))
        self.items, self.batch = [items[at] for at in sorted(order)], recipe.micro

    @torch.no_grad()
    def __call__(self, objective: Loss) -> dict[str, Any]:
        """As of every trainer: `accuracy` by cell, which is a number of steps or "all"."""
        assert isinstance(objective, TaskLoss)
        program = objective.recipe.program
        right = whole_answers(objective.model, self.items, [program], maps=objective.maps, batch=self.batch)[0]
        cells: dict[str, list[bool]] = {}
        for item, one in zip(self.items, right.tolist(), strict=True):
            cells.setdefault("all" if item.example.steps is None else str(item.example.steps), []).append(one)
        ordered = sorted(cells.items(), key=lambda cell: (cell[0] == "all", cell[0].zfill(9)))
        return {"accuracy": {name: sum(each) / len(each) for name, each in ordered}}
