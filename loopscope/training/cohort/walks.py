"""Graph walks: the objectives of backbones and of maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.model import LoopedTransformer
from loopscope.tasks.graph_walk import GraphWalk, all_starts, walk
from loopscope.tasks.populations import held_out, population
from loopscope.training.cohort.cohort import Cohort, Precision, State, frozen, stacked
from loopscope.training.cohort.layout import AllStarts, Layout, Runs, SharedBeginnings
from loopscope.training.cohort.objective import Maps, Step, each_loss, mean_loss, share
from loopscope.training.cohort.ops import BEGUN, shared_rows
from loopscope.training.cohort.streams import GraphStream, below, bits, stream_key
from loopscope.training.recipe import BackboneRecipe, ControlFit, GraphData, MapRecipe, WalkFit

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
        # How many examples share a graph; they follow each other, with starts 0, 1, ...
        self.starts = self.task.nodes if isinstance(recipe.data, ControlFit) and recipe.data.starts == "all" else 1
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
        self.stream = GraphStream(recipe.stream, fits, recipe.batch // self.starts, self.task.nodes, codes, device)
        selection = population(self.data.selection)
        self.selection = self._states(*all_starts(selection.graphs), self.exact)
        self.kept = selection.mask(self.data.rule).to(device)
        self.pool = None
        if self.data.pool is not None:
            self.pool = self._states(*all_starts(population(self.data.pool).graphs), self.exact)
            keys = [stream_key(recipe.stream, fit, "rows") for fit in fits]
            self.keys = torch.tensor(keys, device=device)[:, None]

    def layout(self, examples: int) -> Runs | AllStarts:
        """How the rows of so many examples lie."""
        return Runs(self.task.length) if self.starts == 1 else AllStarts(self.task, examples // self.starts)

    def _states(self, graphs: Tensor, starts: Tensor, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """The state [P, R, d] that J first acts on, piece by piece, and the walk [B, ...] that targets are taken from.

        A piece has the rows of one example, or those of one graph where all of its starts are asked for.
        """
        device = self.source.device
        graphs, starts = graphs.to(device), starts.to(device)
        most = self.data.base + max(0, *self.hops) * self.data.calls
        tokens = self.task.tokens(graphs, starts, self.data.request, check=False)
        with torch.no_grad():
            pieces = []
            for part in tokens.split(4096 // self.starts * self.starts):
                layout = self.layout(len(part))
                state = cohort.embed(part[None], layout)
                for _ in range(self.prefix):
                    state = cohort.call(state, layout)
                pieces.append(layout.pieces(cohort.settle(state))[0])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces), walk(graphs, starts, most)

    def _drawn(self, update: Int[Tensor, ""]) -> tuple[Int[Tensor, "fits B N"], Int[Tensor, "fits B"]]:
        """The graphs and starts of an update."""
        graphs = self.stream.graphs(update)
        if self.starts == 1:
            return graphs, self.stream.starts(update)
        each, starts = all_starts(graphs.flatten(0, 1))
        return each.unflatten(0, (len(graphs), -1)), starts.unflatten(0, (len(graphs), -1))

    def shape(self, stage: int, update: int) -> None:
        """All updates are of one shape."""

    def step(self, stage: int, shape: None, update: Int[Tensor, ""]) -> Step:
        """A fresh batch for every fit (or rows of the pool), shared by the members of that fit."""
        batch = self.recipe.batch
        if self.pool is None:
            graphs, starts = self._drawn(update)
            h, path = self._states(graphs.flatten(0, 1), starts.flatten(), self.ahead)
            drawn = torch.cat([graphs.flatten(1), starts], 1)
        else:
            counter = update * batch + torch.arange(batch, device=self.keys.device)
            drawn = below(len(self.pool[0]), bits(self.keys, counter))
            h, path = (part[drawn.flatten()] for part in self.pool)
        h, path = h.unflatten(0, (-1, batch // self.starts))[self.source], path.unflatten(0, (-1, batch))[self.source]
        losses = [mean_loss(logits, target) for logits, target in self._steered(self.fast, h, path)]
        return Step(torch.stack(losses).mean(0), drawn[self.source])

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """On the selection population, in fp32: accuracy over the instances that count, or minus the loss."""
        pieces = []
        (states, paths), graphs = self.selection, SCORED_AT_ONCE // self.starts
        for h, path in zip(states.split(graphs), paths.split(graphs * self.starts), strict=True):
            h, path = (part.expand(len(self.stack), *part.shape) for part in (h, path))
            outcome = [
                -each_loss(logits, target) if self.data.score == "loss" else (logits.argmax(-1) == target).float()
                for logits, target in self._steered(self.exact, h, path)
            ]
            pieces.append(torch.stack(outcome).mean(0))
        return share(torch.cat(pieces, 1)[:, self.kept])

    def _steered(
        self, cohort: Cohort, h: Float[Tensor, "S P R d"], path: Int[Tensor, "S B steps"]
    ) -> list[tuple[Float[Tensor, "S B classes"], Int[Tensor, "S B"]]]:
        """Logits and targets after each of the steered calls (J F)."""
        outcome = []
        for call in range(1, self.data.calls + 1):
            h, logits = self._steer(cohort, h, call == self.data.calls)
            steps = [self.data.base + hops * call for hops in self.hops]
            target = torch.stack([path[member, :, step] for member, step in enumerate(steps)])
            outcome.append((logits.view(*target.shape, -1), target))
        return outcome

    def _mapped(self, h: Float[Tensor, "S P R d"]) -> Float[Tensor, "S P R d"]:
        """J(h), each member's own."""
        return self.maps(h.reshape(len(h), -1, h.shape[-1])).view(h.shape)

    def _steer(
        self, cohort: Cohort, h: Float[Tensor, "S P R d"], last: bool
    ) -> tuple[Float[Tensor, "S P R d"], Float[Tensor, "one examples classes"]]:
        """One steered call: where it leads (after the last, nobody asks), and what is read there."""
        layout = self.layout(h.shape[0] * h.shape[1] * self.starts)
        state = cohort.call(State(layout.pack(self._mapped(h).flatten(0, 1)[None])), layout, last_row=last)
        if last:
            return h, cohort.read_row(state, 1, 0)
        led = cohort.settle(state)
        return layout.pieces(led).view(h.shape), cohort.read(led[:, layout.at(self.task.answer_row)])
