"""The training loop: windows of updates without a word to the host, checks, selection, checkpoints.

On a GPU the whole update (data, forward, backward, clipping, AdamW) is captured once as a CUDA graph for each shape and
replayed; on a CPU the same function is called.  Whatever the trainer needs to go on from where it is is in `state`, so
a run that is killed and resumed gives the same bits as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from loopscope.training.cohort import ops as plain
from loopscope.training.cohort.cohort import Precision, products
from loopscope.training.cohort.objective import Carrying, Objective
from loopscope.training.cohort.streams import absorb
from loopscope.training.recipe import Stage

LOOK_EVERY = {"cuda": 100, "cpu": 10}
"""Updates between two looks at the device, at most: looking costs a GPU time, and a CPU may take long for a few."""
LOSS_SCALES: dict[Precision, tuple[float, ...]] = {"fp16": (1024.0, 32.0, 1.0)}
"""Factors on losses before the backward pass, taken out again afterwards: small gradients would vanish in fp16.

Large ones would overflow, so a window in which a member's gradient does is repeated with the next smaller factor on its
loss.
"""


@dataclass
class Selected:
    """The checkpoint a member keeps so far."""

    stage: int
    update: int
    score: tuple[float, ...]


@dataclass(frozen=True)
class Failure:
    """Why a member was stopped before an update; its parameters are those of the update before."""

    stage: int
    update: int
    loss: float

    def __str__(self) -> str:
        if math.isfinite(self.loss):
            return f"the gradient is not finite (the loss is {self.loss:.4g})"
        return f"the loss is {self.loss}"


class Trainer:
    """Trains the members of an objective's stack together.

    `history` holds one row per member and window: stage, update, loss (mean over the window), gradient norm (of the
    last update), rate, the factor on the loss where the usual one was too large, and at a check the score.  `selected`
    is filled where members are scored.  `keep` is that of a recipe; for a trail the last stage must not end early.
    """

    def __init__(self, objective: Objective, keep: Literal["best", "last", "trail"]) -> None:
        self.objective, self.stack, self.keep = objective, objective.stack, keep
        self.device = self.stack.flat.device
        self.ops: Any = plain
        if self.device.type == "cuda":
            from loopscope.training.cohort import kernels

            self.ops = kernels
        members, flat = len(self.stack), self.stack.flat

        def zeros(kind: torch.dtype) -> Tensor:
            return torch.zeros(members, dtype=kind, device=self.device)

        self.state: dict[str, Tensor] = {
            "flat": flat,
            "m": torch.zeros_like(flat),
            "v": torch.zeros_like(flat),
            "kept": flat.clone(),  # by the rule of selection
            "update": torch.zeros((), dtype=torch.int64, device=self.device),
            "data": zeros(torch.int64),
            "alive": torch.ones(members, dtype=torch.bool, device=self.device),
            "failed_at": zeros(torch.int64),
            "failed_loss": zeros(torch.float32),
        }
        if isinstance(objective, Carrying):
            self.state |= objective.carried
        self.trail_at: list[int] = []
        if keep == "trail":
            last = objective.stages[-1]
            assert last.stop_at is None
            checks = range(last.check_every, last.updates, last.check_every) if last.check_every else ()
            self.trail_at = [0, *checks, last.updates]
            self.state["trail"] = flat.expand(len(self.trail_at), -1, -1).clone()
        self.loss_sum, self.norm = zeros(torch.float32), zeros(torch.float32)
        self.scales = LOSS_SCALES.get(objective.precision, (1.0,))
        self.scale = torch.full_like(self.norm, self.scales[0])
        self.stage, self.update = 0, 0
        self.selected: list[Selected | None] = [None] * members
        self.failures: list[Failure | None] = [None] * members
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self._graphs: dict[tuple[int, Hashable], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._enter()

    # ---- what is saved -----------------------------------------------------------------------------------------------

    def trail(self, member: int) -> dict[str, Tensor]:
        """A member's parameters by name along the last stage [points, ...], and the `update` of each point."""
        points = [self.stack.member(member, flat) for flat in self.state["trail"]]
        stacked = {name: torch.stack([point[name] for point in points]) for name in points[0]}
        return {"update": torch.tensor(self.trail_at), **stacked}

    @property
    def done(self) -> bool:
        """All stages are behind, or no member is left."""
        return self.stage == len(self.objective.stages) or all(self.failures)

    def progress(self) -> dict[str, Any]:
        """What `state` does not hold, as JSON."""
        return {
            "stage": self.stage, "update": self.update, "seconds": self.seconds, "history": self.history,
            "selected": [None if each is None else vars(each) for each in self.selected],
            "failures": [None if each is None else vars(each) for each in self.failures],
        }  # fmt: skip

    def restore(self, state: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Go on from what `state` and `progress` were when they were saved; ValueError for what no trainer saved."""
        stages, members = [*(stage.updates for stage in self.objective.stages), 0], range(len(self.stack))
        stage, update = progress["stage"], progress["update"]
        if not (0 <= stage < len(stages) and 0 <= update <= stages[stage]):
            raise ValueError(f"update {update} of stage {stage}")
        if any(row["member"] not in members for row in progress["history"]):
            raise ValueError("history of more members than there are")
        if not len(members) == len(progress["selected"]) == len(progress["failures"]):
            raise ValueError("other numbers of members")
        for name, tensor in self.state.items():
            tensor.copy_(state[name])
        self.stage, self.update = stage, update
        self.seconds, self.history = progress["seconds"], list(progress["history"])
        self.selected = [each and Selected(each["stage"], each["update"], tuple(each["score"]))
                         for each in progress["selected"]]  # fmt: skip
        self.failures = [each and Failure(**each) for each in progress["failures"]]
        self._enter()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def run(self, report: Callable[[Trainer], None], window: int | None = None) -> None:
        """Train to the end.  `report` is called after every window, and may save or raise."""
        window = window or LOOK_EVERY[self.device.type]
        while not self.done:
            started = time.perf_counter()
            stage = self.objective.stages[self.stage]
            end = min((self.update // window + 1) * window, stage.updates)
            if stage.check_every:
                end = min(end, (self.update // stage.check_every + 1) * stage.check_every)
            rows = self._window(stage, end)
            if self.update == stage.updates or (stage.check_every and self.update % stage.check_every == 0):
                self._check(stage, rows)
            self.history += rows
            self.seconds += time.perf_counter() - started
            if self.update == stage.updates:
                self._next_stage()
            report(self)

    def _enter(self) -> None:
        """Tables of the current stage, so that a captured update can look up its rate by its number."""
        if self.stage == len(self.objective.stages):
            return
        stage = self.objective.stages[self.stage]
        b1, b2 = stage.optimiser.betas
        counts = range(1, stage.updates + 1)
        rows = [[0.0, 1.0, 1.0], *([stage.optimiser.schedule.rate(t), 1 - b1**t, 1 - b2**t] for t in counts)]
        self.table = torch.tensor(rows, dtype=torch.float64).float().to(self.device)
        slow = stage.optimiser.slow
        self.factor = None if slow is None else self.stack.per_parameter(*slow)
        self._graphs.clear()
        self._pool = None

    def _next_stage(self) -> None:
        self.stage, self.update = self.stage + 1, 0
        for name in ("m", "v", "update"):
            self.state[name].zero_()
        self._note_trail()
        self._enter()

    def _note_trail(self) -> None:
        if self.trail_at and self.stage == len(self.objective.stages) - 1:
            self.state["trail"][self.trail_at.index(self.update)].copy_(self.state["flat"])

    def _window(self, stage: Stage, end: int) -> list[dict[str, Any]]:
        first = self.update + 1
        scales = self._updates(stage, first, end)
        self.update = end
        losses, norms = (self.loss_sum / (end - first + 1)).tolist(), self.norm.tolist()
        self._note_failures()
        return [
            {"member": member, "stage": stage.name, "update": end, "loss": losses[member], "norm": norms[member],
             "rate": stage.optimiser.schedule.rate(end)}
            | ({} if scales[member] == self.scales[0] else {"scale": scales[member]})
            for member in range(len(self.stack)) if self.failures[member] is None
        ]  # fmt: skip

    def _updates(self, stage: Stage, first: int, end: int) -> list[float]:
        """Carry out these updates, again where a gradient overflowed; the factor on each member's loss."""
        before, alive = self._copies() if len(self.scales) > 1 else [], self.state["alive"].clone()
        self.scale.fill_(self.scales[0])
        for smaller in (*self.scales[1:], None):
            self.loss_sum.zero_()
            with products(self.objective.precision):
                for update in range(first, end + 1):
                    self._advance(stage, self.objective.shape(self.stage, update))
            if smaller is None:
                break
            overflowed = alive & ~self.state["alive"] & torch.isfinite(self.state["failed_loss"])
            if not overflowed.any():
                break
            self._put_back(before)
            self.scale.masked_fill_(overflowed, smaller)
        return self.scale.tolist()

    def _note_failures(self) -> None:
        at, losses = self.state["failed_at"].tolist(), self.state["failed_loss"].tolist()
        for member, alive in enumerate(self.state["alive"].tolist()):
            if not alive and self.failures[member] is None:
                self.failures[member] = Failure(self.stage, at[member], losses[member])

    def _check(self, stage: Stage, rows: list[dict[str, Any]]) -> None:
        self._note_trail()
        with torch.no_grad():
            scores = self.objective.scores(self.stage)
        for row in rows:
            member, score = row["member"], scores[row["member"]]
            row["score"] = list(score)
            kept = self.selected[member]
            if self.keep != "best" or kept is None or score > kept.score:
                self.selected[member] = Selected(self.stage, self.update, score)
                self.state["kept"][member].copy_(self.state["flat"][member])
        if stage.stop_at is not None and all(scores[row["member"]][0] >= stage.stop_at for row in rows):
            self.update = stage.updates

    # ---- one update --------------------------------------------------------------------------------------------------

    def _update(self, stage: Stage, shape: Any) -> None:
        state, optimiser = self.state, stage.optimiser
        state["update"].add_(1)
        losses, drawn = self.objective.step(self.stage, shape, state["update"])
        gradient = self.stack.gradients((losses * self.scale).sum())
        with torch.no_grad():
            losses = losses.detach()
            norm = torch.linalg.vector_norm(gradient, dim=1) / self.scale
            ok = state["alive"] & torch.isfinite(losses) & torch.isfinite(norm)
            fails = state["alive"] & ~ok
            state["failed_at"].copy_(torch.where(fails, state["update"], state["failed_at"]))
            state["failed_loss"].copy_(torch.where(fails, losses, state["failed_loss"]))
            state["alive"].copy_(ok)
            state["data"].copy_(torch.where(ok, absorb(state["data"], drawn), state["data"]))
            scale = (optimiser.clip / (norm + 1e-6)).clamp(max=1.0) / self.scale
            rate, correction1, correction2 = self.table.index_select(0, state["update"][None])[0].unbind()
            self.ops.adamw(
                state["flat"], gradient, state["m"], state["v"], rate, scale,
                ok, correction1, correction2, self.factor, optimiser.betas, optimiser.eps, optimiser.decay,
            )  # fmt: skip
            self.loss_sum.add_(torch.where(ok, losses, 0.0))
            self.norm.copy_(norm)

    def _advance(self, stage: Stage, shape: Hashable) -> None:
        if self.device.type != "cuda":
            return self._update(stage, shape)
        if (self.stage, shape) not in self._graphs:
            self._graphs[self.stage, shape] = self._capture(stage, shape)
        self._graphs[self.stage, shape].replay()

    def _capture(self, stage: Stage, shape: Hashable) -> torch.cuda.CUDAGraph:
        """The update as a CUDA graph; trying it out first changes nothing that lasts."""
        graph = torch.cuda.CUDAGraph()
        with self._unchanged():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._update(stage, shape)
            torch.cuda.current_stream().wait_stream(side)
            # Graphs of different shapes run one after the other and leave nothing behind, so they share their memory.
            with torch.cuda.graph(graph, pool=self._pool):
                self._update(stage, shape)
        self._pool = graph.pool()
        return graph

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        before = self._copies()
        yield
        self._put_back(before)

    @property
    def _changing(self) -> list[Tensor]:
        """What an update changes."""
        return [*self.state.values(), self.loss_sum, self.norm]

    def _copies(self) -> list[Tensor]:
        return [tensor.clone() for tensor in self._changing]

    def _put_back(self, copies: list[Tensor]) -> None:
        for tensor, copy in zip(self._changing, copies, strict=True):
            tensor.copy_(copy)
