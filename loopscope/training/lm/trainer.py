"""The training loop of language models: passes, clipping, optimiser, checks; resumable at the end of every window.

What an update computes is a function of the parameters, the optimiser's state and the number of the update, so a run
that is killed and resumed gives the same bits as one that was not, on the same device.  Nothing waits for a GPU within
a window, and the next update's batches are made while this one is computed.  Where layers are compiled on a GPU,
passes are captured, too (`cuda_graphs`), unless several processes train together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import NotFiniteError
from loopscope.models.passes import known_tokens
from loopscope.training.lm.batches import Data, Unit
from loopscope.training.lm.cuda_graphs import CudaGraphs, padded
from loopscope.training.lm.objective import Loss
from loopscope.training.lm.optimisers import make_optimiser
from loopscope.training.lm.processes import Processes, gathered, shared_like
from loopscope.training.lm.recipe import Recipe
from loopscope.training.lm.task_data import TaskData
from loopscope.training.lm.task_recipe import TaskRecipe

LOOK_EVERY = {"cuda": 10, "cpu": 1}
"""Updates between two looks at the device."""

KINDS = ("task", "general")


class Tuner:
    """Trains the parameters of an objective that require gradients.

    `history` has a row for every window (`loss` of the task and of `general` text, gradient `norm` before clipping,
    `rate`), with the results of a check where one was made; the first row, of update 0, is a check alone.  `answers` in
    a row are how many answers of the window's own texts began right and how many there were, by their depth and the
    loops they are given after ("2 in 1"): looked at in the pass that they are learned from, so before it, and texts are
    drawn anew for every update.  `grown` is the level that a row ends with where `grow_at` let it grow; as rows are
    saved, a run that is resumed knows its level.  Without `captured`, compiled passes are made anew each time.
    """

    stage = 0  # there is one only

    def __init__(
        self, recipe: Recipe | TaskRecipe, objective: Loss, data: Data | TaskData,
        checks: Callable[[Any], dict[str, Any]],
        processes: Processes, captured: bool = True,
    ) -> None:  # fmt: skip
        self.recipe, self.data, self.checks, self.processes = recipe, data, checks, processes
        self.device = processes.device
        self.objective = objective
        self.spread = processes.spread(objective, recipe.trains)
        self.trained = {name: each for name, each in objective.named_parameters() if each.requires_grad}
        self.optimiser = make_optimiser(recipe, self.trained.values(), self.device)
        self.update, self.seconds, self.tokens = 0, 0.0, 0
        self.history: list[dict[str, Any]] = []
        self._sums = torch.zeros(len(KINDS), device=self.device)
        self._norm = torch.zeros((), device=self.device)
        # Of each number of loops and each depth, how many began right, and all.
        self._answers = torch.zeros(recipe.loops + 1, recipe.deepest + 1, 2, device=self.device)
        self._graphs: CudaGraphs | None = None
        if captured and objective.compiled and self.device.type == "cuda" and processes.count == 1:
            self._graphs = CudaGraphs(self._pass)
            for each in self.trained.values():
                each.grad = torch.zeros_like(each)
        self._clear()

    # ---- what is saved -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Tensor]:
        """Parameters and optimiser state by name, whole; every process must ask for it."""
        found = {f"weights.{name}": gathered(each.detach()) for name, each in self.trained.items()}
        for name, each in self.trained.items():
            for key, value in self.optimiser.state[each].items():
                found[f"{key}.{name}"] = gathered(value)
        return found

    @property
    def weights(self) -> dict[str, Tensor]:
        """All parameters by name, trained or not, whole; every process must ask for them."""
        return {name: gathered(each.detach()) for name, each in self.objective.named_parameters()}

    def progress(self) -> dict[str, Any]:
        """What `state` does not hold, as JSON."""
        return {"update": self.update, "seconds": self.seconds, "tokens": self.tokens, "history": self.history}

    def restore(self, state: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Go on from what `state` and `progress` were when they were saved."""
        kept: dict[int, dict[str, Tensor]] = {}
        with torch.no_grad():
            for number, (name, each) in enumerate(self.trained.items()):
                each.copy_(shared_like(state[f"weights.{name}"], each))
                mine = {key.removesuffix(f".{name}"): value for key, value in state.items() if _is_of(key, name)}
                kept[number] = {key: shared_like(value, each) for key, value in mine.items()}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": {n: k for n, k in kept.items() if k}, "param_groups": groups})
        self.update, self.seconds, self.tokens = progress["update"], progress["seconds"], progress["tokens"]
        self.history = list(progress["history"])
        self._clear()

    # ---- level -------------------------------------------------------------------------------------------------------

    def level_at(self, update: int) -> int:
        """The level of an update, the next one or the one after it."""
        if self.recipe.grow_at is None:
            return self.recipe.level_at(update)
        grown = (int(row["grown"]) for row in reversed(self.history) if "grown" in row)
        return next(grown, self.recipe.first_level)

    def _grow(self) -> bool:
        """Whether the level has grown, now that a window has ended."""
        recipe, level = self.recipe, self.level_at(self.update)
        if recipe.grow_at is None or self.update % recipe.grow_every or level == recipe.levels:
            return False
        if not self._learned(level, recipe.grow_at):
            return False
        self.history[-1]["grown"] = level + 1
        return True

    def _learned(self, level: int, share: float) -> bool:
        """Whether this share of the last answers at a level's largest depth began right."""
        counts = answers_since(self.history, self.update - self.recipe.grow_every)
        right, asked = counts.get(self.recipe.depth_at(level), (0, 0))
        return right >= share * asked > 0

    # ---- the loop ----------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """All updates are made, or the gate is passed."""
        return self.update >= self.recipe.updates or self._passed()

    def run(self, report: Callable[[Tuner], None]) -> None:
        """Train to the end.  `report` is called after every window, and may save or raise.

        NotFiniteError when a loss or gradient is not finite.
        """
        if not self.history:
            self.history.append({"update": 0, **self._checked()})
        with ThreadPoolExecutor(max_workers=1) as ahead:
            coming = ahead.submit(self._units, self.update, self.level_at(self.update))
            while not self.done:
                started = time.perf_counter()
                units, shares = coming.result()
                self._capture([unit for unit, _ in units])  # while no other thread has to do with the GPU
                after = self.update + 1
                if after < self.recipe.updates:
                    coming = ahead.submit(self._units, after, self.level_at(after))
                self._step(units)
                for kind, (share, length) in shares.items():
                    self._shares[kind] += share
                    self.tokens += length
                self.update += 1
                last = self.update == self.recipe.updates
                check = self.update % self.recipe.check_every == 0 or last
                growing = self.recipe.grow_at is not None and self.update % self.recipe.grow_every == 0
                ended = self.update % LOOK_EVERY[self.device.type] == 0 or check or growing
                if ended:
                    self._look()
                    if self._grow() and not last:  # what was made ahead is of the level before
                        coming = ahead.submit(self._units, self.update, self.level_at(self.update))
                self.seconds += time.perf_counter() - started
                if check:
                    self.history[-1] |= self._checked()
                if ended:
                    report(self)

    def _units(self, update: int, level: int) -> tuple[list[tuple[Unit, float]], dict[str, tuple[float, int]]]:
        """This process's units on its device, and of all processes' the shares of the loss and the tokens by kind."""
        found = self.data(update, level)
        shares = {
            kind: (
                math.fsum(float(unit.weights.sum()) for unit in found if unit.kind == kind),
                sum(unit.length for unit in found if unit.kind == kind),
            )
            for kind in KINDS
        }
        if self._graphs is not None:
            found = [padded(unit, self.data.positions) for unit in found]
        return [(unit.to(self.device), factor) for unit, factor in self.processes.share(found)], shares

    def _step(self, units: Sequence[tuple[Unit, float]]) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.schedule.rate(self.update + 1)
        if self._graphs is not None:
            for unit, _ in units:
                self._graphs(unit)
        else:
            for number, (unit, factor) in enumerate(units, start=1):
                with self.processes.passing(self.spread, last=number == len(units)):
                    self._pass(unit, factor)
        self._norm = torch.nn.utils.clip_grad_norm_(self.trained.values(), self.recipe.clip)
        self.optimiser.step()
        self._forget_gradients()

    def _pass(self, unit: Unit, factor: float = 1.0) -> None:
        """Add the gradients of a unit, and what is noted of it."""
        with known_tokens():
            with self._precision():
                loss, right = self.spread(unit)
            (factor * loss).backward()
        if factor > 0:
            self._sums[KINDS.index(unit.kind)] += loss.detach()
            counted = torch.stack([right, torch.ones_like(right)], 1).float()
            self._answers.index_put_((unit.after, unit.depths), counted, accumulate=True)

    def _capture(self, units: Sequence[Unit]) -> None:
        """Capture passes of shapes that are new, between two updates: there are no gradients then to be kept."""
        if self._graphs is None:
            return
        new = self._graphs.new(units)
        if not new:
            return
        noted = [(each, each.clone()) for each in (self._sums, self._answers)]
        for unit in new:
            self._graphs.capture(unit)
        for each, before in noted:
            each.copy_(before)
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        """No gradients, or where passes are captured, which add to them in their place, zeros."""
        self.optimiser.zero_grad(set_to_none=self._graphs is None)

    def _precision(self) -> torch.autocast:
        """Products in bf16 on a GPU; on a CPU all in fp32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def _look(self) -> None:
        """End a window: a row of history, from the sums on the device."""
        sums = self.processes.total(self._sums).tolist()
        means = [total / share if share else None for total, share in zip(sums, self._shares.values(), strict=True)]
        row = {"update": self.update, "loss": means[0], "general": means[1], "norm": float(gathered(self._norm)),
               "rate": self.recipe.schedule.rate(self.update)}  # fmt: skip
        counts = self.processes.total(self._answers).long().tolist()
        row["answers"] = {
            f"{depth} in {loops}": count
            for loops, by_depth in enumerate(counts)
            for depth, count in enumerate(by_depth)
            if depth and count[1]
        }
        for name in ("loss", "general", "norm"):
            if (number := row[name]) is not None and not math.isfinite(number):
                raise NotFiniteError(f"{self.recipe.name} stopped at update {self.update:,}: its {name} is {number}")
        self.history.append(row)
        self._clear()

    def _clear(self) -> None:
        self._sums.zero_()
        self._answers.zero_()
        self._shares = dict.fromkeys(KINDS, 0.0)

    def _checked(self) -> dict[str, Any]:
        with self.processes.whole(self.spread), self._precision():
            return self.checks(self.objective)

    def _passed(self) -> bool:
        """Whether the last two checks since the highest level began have every cell at the gate, and it is learned."""
        recipe = self.recipe
        if recipe.gate is None or self.level_at(self.update) < recipe.levels:
            return False
        if recipe.grow_at is None:
            began = (recipe.levels - recipe.first_level) * recipe.grow_every
        else:
            began = max((row["update"] for row in self.history if "grown" in row), default=0)
        rows = [row for row in self.history if "accuracy" in row and row["update"] > began][-2:]
        if len(rows) < 2 or any(min(row["accuracy"].values()) < recipe.gate for row in rows):
            return False
        return recipe.grow_at is None or self._learned(recipe.levels, recipe.grow_at)


def answers_since(history: Sequence[Mapping[str, Any]], update: int) -> dict[int, tuple[int, int]]:
    """By depth, how many answers began right and how many there were in the rows after an update.

    Of a depth that is given after several numbers of loops, those after the fewest, which are the hardest.
    """
    sums: dict[int, dict[int, tuple[int, int]]] = {}
    for row in history:
        for name, (right, asked) in row.get("answers", {}).items() if row["update"] > update else ():
            depth, loops = map(int, name.split(" in "))
            by_loops = sums.setdefault(depth, {})
            before = by_loops.get(loops, (0, 0))
            by_loops[loops] = (before[0] + right, before[1] + asked)
    return {depth: by_loops[min(by_loops)] for depth, by_loops in sorted(sums.items())}


def _is_of(key: str, name: str) -> bool:
    """Whether a saved tensor is of the optimiser's state of this parameter; a key has no full stop before the name."""
    kind, _, rest = key.partition(".")
    return rest == name and kind != "weights"
