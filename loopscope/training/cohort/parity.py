"""Parity: the objectives of backbones and of maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.model import LoopedTransformer
from loopscope.tasks import parity
from loopscope.training.cohort.cohort import Cohort, Precision, State, frozen, stacked
from loopscope.training.cohort.objective import Maps, Step, each_loss
from loopscope.training.cohort.streams import BitStream
from loopscope.training.recipe import BackboneRecipe, MapRecipe, ParityData, ParityFit

CHECK_SEED, CHECKED = 900_001, 1024
"""Strings that score a backbone, drawn once for each seed."""


def _answer_loss(logits: Float[Tensor, "S n classes"], batch: parity.Batch) -> Float[Tensor, " S"]:
    """Cross-entropy averaged over all tokens that are asked for, of all rows together."""
    asked = batch.answer.flatten(1)
    return (each_loss(logits, batch.targets.flatten(1)) * asked).sum(1) / asked.sum(1)


def _scores(logits: Float[Tensor, "S n classes"], batch: parity.Batch) -> list[tuple[float, ...]]:
    """(share of strings with every token right that is asked for, minus the loss) of each member."""
    right = logits.argmax(-1).view(batch.tokens.shape) == batch.targets
    exact = (right | ~batch.answer).all(-1).double().mean(1)
    return list(zip(exact.tolist(), (-_answer_loss(logits, batch)).tolist(), strict=True))


class ParityBackbones:
    """Backbones that need n calls for n bits, one for each seed."""

    def __init__(
        self, recipe: BackboneRecipe, models: Sequence[LoopedTransformer], seeds: Sequence[int], device: torch.device
    ) -> None:
        assert isinstance(recipe.data, ParityData)
        self.recipe, self.data, self.stages, self.precision = recipe, recipe.data, recipe.stages, recipe.precision
        self.stack = stacked(models, device, small=True)
        self.stream = BitStream(recipe.stream, list(seeds), recipe.batch, self.data.longest, device)
        self.host = BitStream(recipe.stream, list(seeds), recipe.batch, self.data.longest)
        draws = [torch.Generator().manual_seed(CHECK_SEED + seed) for seed in seeds]
        bits = torch.stack([torch.randint(2, (CHECKED, self.data.longest), generator=draw) for draw in draws])
        self.checked = parity.fixed_length(bits.to(device))

    def shape(self, stage: int, update: int) -> tuple[int, bool]:
        """(greatest length of this update, whether its strings run out as fast as `_segments` counts on).

        Before the greatest length of all is reached, no two shapes for a few updates each: capturing takes time too.
        """
        most = self.data.reached(update)
        if most < self.data.longest:
            return most, False
        lengths = self.host.lengths(torch.tensor(update), most)
        return most, all(int((lengths >= first).sum(1).max()) <= rows for first, rows in self._segments(most))

    def _segments(self, most: int) -> list[tuple[int, int]]:
        """(first call, strings still to be run) of each run of calls.

        A string of n bits is done after n calls.  Sorted by length, the strings left at call t are the first ones; how
        many is random, but almost never more than 2.5 standard deviations above the mean, and shapes must be known
        beforehand.  The rare update with more is run as a whole.
        """
        batch, segments = self.recipe.batch, []
        for first in range(1, most + 1, 5):
            part = (most + 1 - first) / most
            bound = math.ceil(batch * part + 2.5 * math.sqrt(batch * part * (1 - part)))
            segments.append((first, min(batch, bound)))
        return segments

    def step(self, stage: int, shape: tuple[int, bool], update: Int[Tensor, ""]) -> Step:
        """Strings of 1..most bits, each read after as many calls as it has bits."""
        most, bounded = shape
        bits, lengths = self.stream.bits(update)[..., :most], self.stream.lengths(update, most)
        drawn = torch.cat([lengths, bits.flatten(1)], 1)
        order = lengths.argsort(dim=1, descending=True, stable=True)
        lengths, bits = lengths.gather(1, order), bits.gather(1, order[..., None].expand_as(bits))
        batch = parity.make_batch(bits, lengths, most, check=False)
        cohort = Cohort(self.recipe.model, self.stack.weights, self.precision, self.stack.sinks)
        segments = self._segments(most) if bounded else [(1, self.recipe.batch)]
        h = self._at_own_call(cohort, batch.tokens, lengths, segments, most)
        return Step(_answer_loss(cohort.read(h), batch), drawn)

    @staticmethod
    def _at_own_call(
        cohort: Cohort,
        tokens: Int[Tensor, "S B T"],
        lengths: Int[Tensor, "S B"],
        segments: list[tuple[int, int]],
        most: int,
    ) -> Float[Tensor, "S n d"]:
        """The state of every string after as many calls as it is long; strings are sorted, the longest first."""
        size, left = tokens.shape[-1], dict(segments)
        state = cohort.embed(tokens)
        done = torch.zeros_like(state.x)
        for call in range(1, most + 1):
            if call in left:
                lengths, rows = lengths[:, : left[call]], left[call] * size
                opened = None if state.opened is None else state.opened[:, :rows]
                state = State(state.x[:, :rows], opened=opened)
            state = cohort.call(state, size, again=call < most)
            x, done = cohort.ops.hand_in(state.x, done, lengths == call, size)
            state = State(x, opened=state.opened)
        return done

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """(exact match, minus the loss) at the greatest length, in fp32."""
        cohort = Cohort(self.recipe.model, self.stack.weights, "fp32")
        state = cohort.embed(self.checked.tokens)
        for _ in range(self.data.longest):
            state = cohort.call(state, self.data.longest + 2)
        logits = cohort.read(state.x)
        return _scores(logits, self.checked)


class ParityFits:
    """Maps before calls 2..n of one frozen backbone, one for each fit number."""

    def __init__(
        self, recipe: MapRecipe, backbone: LoopedTransformer, members: Sequence[tuple[int, int]], device: torch.device
    ) -> None:
        assert isinstance(recipe.data, ParityFit)
        self.recipe, self.data, self.stages = recipe, recipe.data, recipe.stages
        self.precision: Precision = recipe.precision
        weights = frozen(backbone, device)
        self.fast, self.exact = (Cohort(backbone.config, weights, p) for p in (self.precision, "fp32"))
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
        return _scores(logits, self.checked)

    def _steered(self, cohort: Cohort, batch: parity.Batch) -> Float[Tensor, "S n classes"]:
        """Logits of every token after F (J F)^(n-1)."""
        members, _, tokens = batch.tokens.shape
        with torch.no_grad():  # no map has acted yet
            state = cohort.call(cohort.embed(batch.tokens.flatten(0, 1)[None]), tokens)
        for _ in range(tokens - 3):
            steered = self.maps(state.x.view(members, -1, state.x.shape[-1]))
            state = cohort.call(State(steered.view(state.x.shape)), tokens)
        return cohort.read(state.x).view(members, -1, cohort.config.classes)
