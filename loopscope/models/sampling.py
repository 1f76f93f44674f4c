"""Tokens that are drawn instead of taken: temperature, the k likeliest, the nucleus, from a seed.

    generate(model, tokens, new=32, sampling=Sampling(temperature=0.8, top_p=0.95, seed=1))

An example's draws depend on its own seed alone, so a batch gives what each of its examples gives alone.  A seed for
each, `seed=[1, 2, 3]`, continues one prompt in several ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.bounds import POSITIONS, is_finite, shown, whole
from loopscope.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; in this order:

    - logits are divided by `temperature`, above 0; at 0 the likeliest token is taken;
    - of `top_k`, the so many likeliest tokens are left;
    - of `top_p`, the fewest likeliest tokens are left whose probabilities come to at least that.

    `seed` is a whole number for all examples, or one for each.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | Sequence[int] = 0

    def __post_init__(self) -> None:
        if not is_finite(self.temperature) or self.temperature < 0:
            raise InputError(f"a temperature is a number from 0, not {shown(self.temperature)} (nearest: 0)")
        if self.top_k is not None:
            whole("top_k", self.top_k, 1, POSITIONS)
        if self.top_p is not None and not (is_finite(self.top_p) and 0 < self.top_p <= 1):
            raise InputError(f"top_p is a share above 0 and up to 1, not {shown(self.top_p)} (nearest: 1)")
        for seed in [self.seed] if isinstance(self.seed, int) else self.seed:
            whole("the seed of a draw", seed, 0, POSITIONS)

    def of(self, examples: Int[Tensor, " some"], count: int) -> Sampling:
        """The same for some of so many examples; InputError as `draws`."""
        seeds = self._seeds(count)
        return replace(self, seed=[seeds[at] for at in examples.tolist()])

    def draws(self, examples: int) -> Draws:
        """What draws token after token; InputError unless there is one seed, or one for every example."""
        return Draws(self, [torch.Generator().manual_seed(seed) for seed in self._seeds(examples)])

    def _seeds(self, examples: int) -> list[int]:
        seeds = [self.seed] * examples if isinstance(self.seed, int) else list(self.seed)
        if len(seeds) != examples:
            raise InputError(f"{examples} examples are drawn from one seed or from as many, not from {len(seeds)}")
        return seeds


class Draws:
    """Token after token of some examples, each from a generator of its own."""

    def __init__(self, sampling: Sampling, generators: Sequence[torch.Generator]) -> None:
        self.sampling, self.generators = sampling, generators

    def next(self, logits: Float[Tensor, "B vocabulary"]) -> Int[Tensor, " B"]:
        """The next token of every example."""
        how = self.sampling
        if how.temperature == 0:
            return logits.argmax(-1)
        likely, tokens = (logits.double() / how.temperature).sort(dim=-1, descending=True, stable=True)
        likely = likely[:, : how.top_k].softmax(-1)
        upto = likely.cumsum(-1)
        if how.top_p is not None:  # what comes before a token does not yet suffice
            likely = likely.where(upto - likely < how.top_p, 0.0)
            upto = likely.cumsum(-1)
        at = torch.cat([torch.rand(1, generator=each, dtype=torch.float64) for each in self.generators])
        at = at[:, None].to(upto.device) * upto[:, -1:]
        place = (upto <= at).sum(-1, keepdim=True).clamp(max=upto.shape[1] - 1)
        return tokens.gather(-1, place)[:, 0]
