"""What is looked at while a model is trained: the loss on general text it never saw, and right answers by depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopscope.execute.runs import Sizes
from loopscope.models.decoding import generate, pad_left
from loopscope.models.text import Tokenizer
from loopscope.pieces import pieces_of
from loopscope.tasks.general_text import Pool, mixed, watched
from loopscope.training.lm.batches import TokenSequence, units
from loopscope.training.lm.objective import Objective
from loopscope.training.lm.processes import Processes
from loopscope.training.lm.questions import Question, questions
from loopscope.training.lm.recipe import Recipe

REPLY = 16
"""Tokens of a reply, at most; every right one is shorter."""

CACHE = 4 * 2**30
"""Bytes of keys and values that the questions answered at a time may take."""


class Checks:
    """The checks of a recipe; calling them gives `nll` (by source, and "mixed" by their weights) and `accuracy`.

    Replies are decoded greedily by the program that is trained.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, pools: Sequence[Pool], processes: Processes) -> None:
        self.recipe, self.tokenizer, self.pools, self.processes = recipe, tokenizer, pools, processes
        self.asked = sorted(
            ((question, self._encoded(question)) for question in questions(recipe)),
            key=lambda pair: (pair[0].loops, len(pair[1])),
        )
        self.cells = list(dict.fromkeys(question.cell for question in questions(recipe)))

    def _encoded(self, question: Question) -> list[int]:
        if self.recipe.text == "look-ups":
            return self.tokenizer.encode(question.prompt, special=False)
        return self.tokenizer.encode_chat([{"role": "user", "content": question.prompt}], enable_thinking=False)

    @torch.no_grad()
    def __call__(self, objective: Objective) -> dict[str, Any]:
        """Every process answers a part; all get the same result."""
        losses = {}
        for source, chunks in watched(self.pools).items():
            rows = [TokenSequence(chunk, 1, self.recipe.loops) for chunk in chunks]
            found = units(rows, micro=len(rows), averaging="token", share=1.0, kind="general")
            each = (unit.to(self.processes.device) for unit in found)
            losses[source] = float(sum(objective(unit)[0] for unit in each))
        counts = self.processes.total(self._counts(objective))
        accuracy = {cell: right / asked for cell, (right, asked) in zip(self.cells, counts.tolist(), strict=True)}
        return {"nll": {**losses, "mixed": mixed(self.pools, losses)}, "accuracy": accuracy}

    def _counts(self, objective: Objective) -> Tensor:
        """[cells, 2]: right replies of this process, and questions."""
        counts = torch.zeros(len(self.cells), 2, dtype=torch.float64, device=self.processes.device)

        for loops in sorted({question.loops for question, _ in self.asked}):
            mine = [pair for pair in self.asked if pair[0].loops == loops][self.processes.index :: self.processes.count]
            together = self._together(objective, loops)
            for start in range(0, len(mine), together):
                some = mine[start : start + together]
                tokens, mask = pad_left([prompt for _, prompt in some])
                program = objective.program(loops)
                said = generate(objective.model, tokens, program, new=REPLY, maps=objective.maps, mask=mask).texts()
                for (question, _), reply in zip(some, said, strict=True):
                    right = question.right(self._judged(self.tokenizer.decode(reply)))
                    counts[self.cells.index(question.cell)] += torch.tensor([right, 1.0], device=counts.device)
        return counts

    def _together(self, objective: Objective, loops: int) -> int:
        """How many questions are answered at a time, by the longest: more at a time are faster."""
        model, longest = objective.model, REPLY + max(len(prompt) for _, prompt in self.asked)
        layers = Sizes.of(pieces_of(model), longest).layers_of(model.program(loops))
        row = longest * layers * 2 * model.heads * model.head_size * 4
        return max(1, CACHE // row)

    def _judged(self, reply: str) -> str:
        """After look-ups nothing tells a model to stop: its first line counts."""
        return reply.strip().partition("\n")[0] if self.recipe.text == "look-ups" else reply
