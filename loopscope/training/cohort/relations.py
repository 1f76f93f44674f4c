"""Relation composition: the objectives of backbones and of maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.model import LoopedTransformer
from loopscope.tasks import relations
from loopscope.training.cohort.cohort import Cohort, Precision, State, frozen, stacked
from loopscope.training.cohort.objective import Maps, Step, mean_loss, share
from loopscope.training.cohort.streams import QueryStream, below, bits, stream_key
from loopscope.training.recipe import BackboneRecipe, MapRecipe, RelationData, RelationFit

CHECK_SEED = 990_000
"""Base seed of the queries that end a stage of map training."""


class RelationBackbones:
    """Backbones that take one call for each relation, one for each seed."""

    def __init__(
        self, recipe: BackboneRecipe, models: Sequence[LoopedTransformer], seeds: Sequence[int], device: torch.device
    ) -> None:
        assert isinstance(recipe.data, RelationData)
        self.recipe, self.data, self.stages, self.precision = recipe, recipe.data, recipe.stages, recipe.precision
        self.stack = stacked(models, device, small=True)
        self.world = relations.world().to(device)
        held_out = {length: codes.to(device) for length, codes in relations.held_out().items()}
        self.stream = QueryStream(recipe.stream, list(seeds), recipe.batch, self.data.longest, held_out, device)
        lengths = range(1, self.data.longest + 1)
        picked = [relations.compositions("selection", length) for length in lengths]
        self.selection = [relations.Queries(*(part.to(device) for part in queries)) for queries in picked]

    def shape(self, stage: int, update: int) -> int:
        """The length of this update's chains: 1, 2, ... take turns."""
        return 1 + (update - 1) % self.data.longest

    def step(self, stage: int, shape: int, update: Int[Tensor, ""]) -> Step:
        """Chains of one length; call t is read at relation t, against the t-th entity of the path."""
        queries = self.stream.queries(update, shape)
        tokens = relations.tokens(*queries, check=False)
        path = relations.path(self.world, *queries)
        cohort = Cohort(self.recipe.model, self.stack.weights, self.precision, self.stack.sinks)
        state, length, losses = cohort.embed(tokens), shape + 2, []
        for call in range(1, shape + 1):
            last = call == shape
            state = cohort.call(state, length, last_row=last)
            logits = cohort.read_row(state, 1, 0) if last else cohort.read_row(state, length, call + 1)
            losses.append(mean_loss(logits, path[..., call - 1]))
        drawn = torch.cat([queries.starts, queries.relations.flatten(1)], 1)
        return Step(torch.stack(losses).mean(0), drawn)

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """Accuracy on the selection compositions: the mean over lengths, then each length."""
        cohort = Cohort(self.recipe.model, self.stack.weights, self.precision, self.stack.sinks)
        outcome = []
        for length, queries in enumerate(self.selection, 1):
            tokens = relations.tokens(*queries).expand(len(self.stack), -1, -1)
            answers = relations.path(self.world, *queries)[..., -1]
            hits = cohort.answer_logits(tokens, length).argmax(-1) == answers
            outcome.append(hits.double().mean(1))
        each = torch.stack(outcome, 1)
        return [tuple(row) for row in torch.cat([each.mean(1, keepdim=True), each], 1).tolist()]


class RelationFits:
    """One map on one frozen backbone, F (J F)^(n-1) for chains of n relations, longer from stage to stage."""

    def __init__(
        self, recipe: MapRecipe, backbone: LoopedTransformer, members: Sequence[tuple[int, int]], device: torch.device
    ) -> None:
        assert isinstance(recipe.data, RelationFit)
        assert len(members) == 1  # lengths are drawn for each fit, and stages end by its score
        self.recipe, self.data, self.stages = recipe, recipe.data, recipe.stages
        self.precision: Precision = recipe.precision
        weights = frozen(backbone, device)
        self.fast, self.exact = (Cohort(backbone.config, weights, p) for p in (self.precision, "fp32"))
        self.fit = members[0][1]
        self.maps = Maps(recipe, backbone.config.width, [self.fit], device)
        self.stack = self.maps.stack
        self.world = relations.world().to(device)
        self.streams = [
            QueryStream(f"{recipe.stream}/{stage.name}", [self.fit], recipe.batch, max(self.data.lengths), {}, device)
            for stage in self.stages
        ]

    def shape(self, stage: int, update: int) -> int:
        """The length of this update's chains: the stage's, or with probability `replay` any from `shortest` up."""
        longest, shortest = self.data.lengths[stage], self.data.shortest
        name = f"{self.recipe.stream}/{self.stages[stage].name}"
        mode, draw = (
            bits(torch.tensor(stream_key(name, self.fit, part)), torch.tensor(update)) for part in ("mode", "length")
        )
        if longest > shortest and int(below(2**20, mode)) < self.data.replay * 2**20:
            return shortest + int(below(longest + 1 - shortest, draw))
        return longest

    def step(self, stage: int, shape: int, update: Int[Tensor, ""]) -> Step:
        """Chains of one length; every call from the second on is read at its relation."""
        queries = self.streams[stage].queries(update, shape)
        path = relations.path(self.world, *queries)
        steered = self._steered(self.fast, relations.tokens(*queries, check=False))
        losses = [mean_loss(logits, path[..., call]) for call, logits in enumerate(steered, 1)]
        drawn = torch.cat([queries.starts, queries.relations.flatten(1)], 1)
        return Step(torch.stack(losses).mean(0), drawn)

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """Accuracy on a few queries of the stage's length, in fp32."""
        drawn = relations.evaluation(self.data.lengths[stage], self.data.queries, CHECK_SEED)
        queries = relations.Queries(*(part.to(self.world.device)[None] for part in drawn))
        answers = relations.path(self.world, *queries)[..., -1]
        return share(self._steered(self.exact, relations.tokens(*queries))[-1].argmax(-1) == answers)

    def _steered(self, cohort: Cohort, tokens: Int[Tensor, "1 B T"]) -> list[Float[Tensor, "1 B classes"]]:
        """Logits after each call of F (J F)^(n-1) but the first, at the relation of that call."""
        length = tokens.shape[-1]
        with torch.no_grad():  # no map has acted yet
            state = cohort.call(cohort.embed(tokens), length)
        outcome = []
        for call in range(2, length - 1):
            last = call == length - 2
            state = cohort.call(State(self.maps(cohort.settle(state))), length, last_row=last)
            outcome.append(cohort.read_row(state, 1, 0) if last else cohort.read_row(state, length, call + 1))
        return outcome
