"""Graph walks: the objectives of backbones and of maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.model import LoopedTransformer
from loopscope.tasks.graph_walk import GraphWalk, all_starts, walk
from loopscope.tasks.populations import held_out, population
from loopscope.training.cohort import Cohort, Precision, State, frozen, stacked
from loopscope.training.layout import Layout, Runs, SharedBeginnings
from loopscope.training.objective import Maps, Step, each_loss, mean_loss, share
from loopscope.training.ops import BEGUN, shared_rows
from loopscope.training.recipe import BackboneRecipe, GraphData, MapRecipe, WalkFit
from loopscope.training.streams import GraphStream, below, bits, stream_key

SCORED_AT_ONCE = 640  # examples; bounds the memory of a check


class WalkBackbones:
    """Backbones that answer f^d(s), one for each seed."""

    def __init__(
        self, recipe: BackboneRecipe, models: Sequence[LoopedTransformer], seeds: Sequence[int], device: torch.device
    ) -> None:
        assert isinstance(recipe.data, GraphData)
        self.recipe, self.data, self.stages, self.precision = recipe, recipe.data, recipe.stages, recipe.precision
        self.stack = stacked(models, device)
        self.task = GraphWalk(self.data.nodes)
        codes = held_out(self.data.held_out)
        self.stream = GraphStream(recipe.stream, list(seeds), recipe.batch, self.data.nodes, codes, device)
        graphs, starts = (part.to(device) for part in all_starts(population(self.data.selection).graphs))
        self.selection = self.task.tokens(graphs, starts, self.data.depth)
        self.selected = walk(graphs, starts, self.data.depth)[:, -1]

    def shape(self, stage: int, update: int) -> None:
        """All updates are of one shape."""

    def layout(self, graphs: Int[Tensor, "S B N"]) -> Layout:
        """How the rows of a batch lie: beginnings are shared where that leaves fewer rows."""
        pays = self.task.nodes > 2 and shared_rows(self.task.nodes) < BEGUN * self.recipe.batch
        return SharedBeginnings(self.task, graphs) if pays else Runs(self.task.length)

    def step(self, stage: int, shape: None, update: Int[Tensor, ""]) -> Step:
        """A fresh batch for every seed; the loss is read at ANSWER after the last call, or after every call."""
        graphs, starts = self.stream.graphs(update), self.stream.starts(update)
        seeds, batch = starts.shape
        depths = self.stream.depths(update, self.data.depth)
        if self.data.depths == "fixed":
            depths = torch.full_like(depths, self.data.depth)
        flat = graphs.flatten(0, 1), starts.flatten()
        tokens = self.task.tokens(*flat, depths.flatten(), check=False).view(seeds, batch, -1)
        path = walk(*flat, self.data.depth).view(seeds, batch, -1)
        cohort = Cohort(self.recipe.model, self.stack.weights, self.precision, self.stack.sinks)
        drawn, layout = torch.cat([graphs.flatten(1), starts, depths], 1), self.layout(graphs)
        if self.recipe.loss == "final":
            logits = cohort.answer_logits(tokens, self.recipe.model.loops, layout)
            return Step(mean_loss(logits, path.gather(2, depths[..., None])[..., 0]), drawn)
        losses, state = [], cohort.embed(tokens, layout)
        for call in range(1, self.recipe.model.loops + 1):
            last = call == self.recipe.model.loops
            state = cohort.call(state, layout, last_row=last)
            logits = cohort.read_row(state, 1, 0) if last else cohort.read_row(state, layout, self.task.answer_row)
            losses.append(mean_loss(logits, path[..., call]))
        return Step(losses[-1] + torch.stack(losses[:-1]).mean(0), drawn)

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """Accuracy after the last call on the selection population, at the greatest depth."""
        cohort = Cohort(self.recipe.model, self.stack.weights, self.precision, self.stack.sinks)
        tokens = self.selection.expand(len(self.stack), -1, -1)
        return share(cohort.answer_logits(tokens, self.recipe.model.loops).argmax(-1) == self.selected)


class WalkFits:
    """Maps on one frozen backbone, a member for each (hops, fit); members of one fit share their batches and prefix."""

    def __init__(
        self, recipe: MapRecipe, backbone: LoopedTransformer, members: Sequence[tuple[int, int]], device: torch.device
    ) -> None:
        assert isinstance(recipe.data, WalkFit)
        self.recipe, self.data, self.stages = recipe, recipe.data, recipe.stages
        self.precision: Precision = recipe.precision
        self.config = backbone.config
        self.task = GraphWalk(self.config.classes)
        weights = frozen(backbone, device)
        self.fast = Cohort(self.config, weights, self.precision)
        self.exact = Cohort(self.config, weights, "fp32")
        # fp16 has the mantissa of TF32 and half the traffic; what it lacks in range only gradients would miss.
        self.ahead = Cohort(self.config, weights, "fp16")
        self.prefix = self.config.loops if self.data.prefix is None else self.data.prefix
        self.maps = Maps(recipe, self.config.width, [fit for _, fit in members], device)
        self.stack = self.maps.stack
        fits = list(dict.fromkeys(fit for _, fit in members))
        self.source = torch.tensor([fits.index(fit) for _, fit in members], device=device)
        self.hops = [hops for hops, _ in members]
        codes = held_out(self.data.held_out)
        self.stream = GraphStream(recipe.stream, fits, recipe.batch, self.task.nodes, codes, device)
        selection = population(self.data.selection)
        self.selection = self._states(*all_starts(selection.graphs), self.exact)
        self.kept = selection.mask(self.data.rule).to(device)
        self.pool = None
        if self.data.pool is not None:
            self.pool = self._states(*all_starts(population(self.data.pool).graphs), self.exact)
            keys = [stream_key(recipe.stream, fit, "rows") for fit in fits]
            self.keys = torch.tensor(keys, device=device)[:, None]

    def _states(self, graphs: Tensor, starts: Tensor, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """The state [B, T, d] that J first acts on, and the walk [B, ...] from which targets are taken."""
        device = self.source.device
        graphs, starts = graphs.to(device), starts.to(device)
        length, most = self.task.length, self.data.base + max(self.hops) * self.data.calls
        tokens = self.task.tokens(graphs, starts, self.data.request, check=False)
        with torch.no_grad():
            pieces = []
            for part in tokens.split(4096):
                state = cohort.embed(part[None])
                for _ in range(self.prefix):
                    state = cohort.call(state, length)
                pieces.append(cohort.settle(state).view(len(part), length, -1))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces), walk(graphs, starts, most)

    def shape(self, stage: int, update: int) -> None:
        """All updates are of one shape."""

    def step(self, stage: int, shape: None, update: Int[Tensor, ""]) -> Step:
        """A fresh batch for every fit (or rows of the pool), shared by the members of that fit."""
        batch = self.recipe.batch
        if self.pool is None:
            graphs, starts = self.stream.graphs(update), self.stream.starts(update)
            h, path = self._states(graphs.flatten(0, 1), starts.flatten(), self.ahead)
            drawn = torch.cat([graphs.flatten(1), starts], 1)
        else:
            counter = update * batch + torch.arange(batch, device=self.keys.device)
            drawn = below(len(self.pool[0]), bits(self.keys, counter))
            h, path = (part[drawn.flatten()] for part in self.pool)
        h, path = (part.unflatten(0, (-1, batch))[self.source] for part in (h, path))
        losses = [mean_loss(logits, target) for logits, target in self._steered(self.fast, h, path)]
        return Step(torch.stack(losses).mean(0), drawn[self.source])

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """On the selection population, in fp32: accuracy over the instances that count, or minus the loss."""
        pieces = []
        for h, path in zip(*(part.split(SCORED_AT_ONCE) for part in self.selection), strict=True):
            h, path = (part.expand(len(self.stack), *part.shape) for part in (h, path))
            outcome = [
                -each_loss(logits, target) if self.data.score == "loss" else (logits.argmax(-1) == target).float()
                for logits, target in self._steered(self.exact, h, path)
            ]
            pieces.append(torch.stack(outcome).mean(0))
        return share(torch.cat(pieces, 1)[:, self.kept])

    def _steered(
        self, cohort: Cohort, h: Float[Tensor, "S B T d"], path: Int[Tensor, "S B steps"]
    ) -> list[tuple[Float[Tensor, "S B classes"], Int[Tensor, "S B"]]]:
        """Logits and targets after each of the steered calls (J F)."""
        members, batch, length, width = h.shape
        outcome = []
        for call in range(1, self.data.calls + 1):
            last = call == self.data.calls
            steered = self.maps(h.reshape(members, -1, width))
            state = cohort.call(State(steered.view(1, -1, width)), length, last_row=last)
            if last:
                logits = cohort.read_row(state, 1, 0)
            else:
                h = cohort.settle(state)
                logits = cohort.read(h[:, length - 1 :: length])
            steps = [self.data.base + hops * call for hops in self.hops]
            target = torch.stack([path[member, :, step] for member, step in enumerate(steps)])
            outcome.append((logits.view(members, batch, -1), target))
        return outcome
