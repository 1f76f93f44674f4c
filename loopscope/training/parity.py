"""Parity: the objectives of backbones and of maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.model import LoopedTransformer
from loopscope.tasks import parity
from loopscope.training.cohort import Cohort, Precision, State
from loopscope.training.objective import Maps, Step, each_loss
from loopscope.training.recipes import BackboneRecipe, MapRecipe, ParityData, ParityFit
from loopscope.training.stack import Stack
from loopscope.training.streams import BitStream

CHECK_SEED, CHECKED = 900_001, 1024
"""Strings that score a backbone, drawn once for each seed."""


def _answer_loss(logits: Float[Tensor, "S n classes"], batch: parity.Batch) -> Float[Tensor, " S"]:
    """Cross-entropy averaged over all tokens that are asked for, of all rows together."""
    asked = batch.answer.flatten(1)
    return (each_loss(logits, batch.targets.flatten(1)) * asked).sum(1) / asked.sum(1)


def _exact(logits: Float[Tensor, "S n classes"], batch: parity.Batch) -> Float[Tensor, "S B"]:
    """Whether every token that is asked for is right."""
    right = logits.argmax(-1).view(batch.tokens.shape) == batch.targets
    return (right | ~batch.answer).all(-1).float()


class ParityBackbones:
    """Backbones that need n calls for n bits, one for each seed."""

    def __init__(
        self, recipe: BackboneRecipe, models: Sequence[LoopedTransformer], seeds: Sequence[int], device: torch.device
    ) -> None:
        assert isinstance(recipe.data, ParityData)
        self.recipe, self.data, self.stages, self.precision = recipe, recipe.data, recipe.stages, recipe.precision
        self.stack = Stack([model.state_dict() for model in models], device)
        self.stream = BitStream(recipe.stream, list(seeds), recipe.batch, self.data.longest, device)
        draws = [torch.Generator().manual_seed(CHECK_SEED + seed) for seed in seeds]
        bits = torch.stack([torch.randint(2, (CHECKED, self.data.longest), generator=draw) for draw in draws])
        self.checked = parity.fixed_length(bits.to(device))

    def shape(self, stage: int, update: int) -> int:
        """The greatest length of this update."""
        return self.data.reached(update)

    def step(self, stage: int, shape: int, update: Int[Tensor, ""]) -> Step:
        """Strings of 1..shape bits, each read after as many calls as it has bits."""
        bits, lengths = self.stream.bits(update)[..., :shape], self.stream.lengths(update, shape)
        batch = parity.make_batch(bits, lengths, shape, check=False)
        cohort = Cohort(self.recipe.model, self.stack.weights, self.precision)
        state, states = cohort.embed(batch.tokens), []
        for _ in range(shape):
            state = cohort.call(state, shape + 2)
            states.append(state.x)
        every = torch.stack(states).unflatten(2, (*lengths.shape[1:], -1)).flatten(3)
        own = (lengths - 1)[None, ..., None].expand(1, -1, -1, every.shape[-1])
        h = every.gather(0, own)[0].view(states[0].shape)
        drawn = torch.cat([lengths, bits.flatten(1)], 1)
        return Step(_answer_loss(cohort.read(h), batch), drawn)

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """(exact match, minus the loss) at the greatest length, in fp32."""
        cohort = Cohort(self.recipe.model, self.stack.weights, "fp32")
        state = cohort.embed(self.checked.tokens)
        for _ in range(self.data.longest):
            state = cohort.call(state, self.data.longest + 2)
        logits = cohort.read(state.x)
        exact, loss = _exact(logits, self.checked).double().mean(1), _answer_loss(logits, self.checked)
        return list(zip(exact.tolist(), (-loss).tolist(), strict=True))


class ParityFits:
    """Maps before calls 2..n of one frozen backbone, one for each fit number."""

    def __init__(
        self, recipe: MapRecipe, backbone: LoopedTransformer, members: Sequence[tuple[int, int]], device: torch.device
    ) -> None:
        assert isinstance(recipe.data, ParityFit)
        self.recipe, self.data, self.stages = recipe, recipe.data, recipe.stages
        self.precision: Precision = recipe.precision
        frozen = {name: w.detach().to(device)[None] for name, w in backbone.state_dict().items()}
        self.fast, self.exact = (Cohort(backbone.config, frozen, p) for p in (self.precision, "fp32"))
        fits = [fit for _, fit in members]
        self.maps = Maps(recipe, backbone.config.width, fits, device)
        self.stack = self.maps.stack
        longest = max(last for _, last, _, _ in self.data.lengths)
        self.stream = BitStream(recipe.stream, fits, recipe.batch, longest, device)
        bits = parity.evaluation_bits(longest, CHECKED // 4, CHECK_SEED).to(device)
        self.checked = parity.fixed_length(bits.expand(len(fits), -1, -1))

    def shape(self, stage: int, update: int) -> tuple[int, int]:
        """(length, batch): inside each part the lengths take turns."""
        done = update - 1
        for first, last, updates, batch in self.data.lengths:
            if done < updates:
                return first + done % (last + 1 - first), batch
            done -= updates
        raise AssertionError("there are no updates behind the last part")

    def step(self, stage: int, shape: tuple[int, int], update: Int[Tensor, ""]) -> Step:
        """Strings of one length, read after as many calls."""
        length, rows = shape
        bits = self.stream.bits(update)[:, :rows, :length]
        batch = parity.fixed_length(bits, check=False)
        return Step(_answer_loss(self._steered(self.fast, batch), batch), bits.flatten(1))

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """(exact match, minus the loss) at the greatest length, in fp32."""
        logits = self._steered(self.exact, self.checked)
        exact, loss = _exact(logits, self.checked).double().mean(1), _answer_loss(logits, self.checked)
        return list(zip(exact.tolist(), (-loss).tolist(), strict=True))

    def _steered(self, cohort: Cohort, batch: parity.Batch) -> Float[Tensor, "S n classes"]:
        """Logits of every token after F (J F)^(n-1)."""
        members, _, tokens = batch.tokens.shape
        with torch.no_grad():  # no map has acted yet
            state = cohort.call(cohort.embed(batch.tokens.flatten(0, 1)[None]), tokens)
        for _ in range(tokens - 3):
            steered = self.maps(state.x.view(members, -1, state.x.shape[-1]))
            state = cohort.call(State(steered.view(state.x.shape)), tokens)
        return cohort.read(state.x).view(members, -1, cohort.config.classes)
