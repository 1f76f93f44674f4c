"""A backbone that counts ones as planted."""

from __future__ import annotations

from functools import cache

import torch

from loopscope.model import LoopedTransformer
from loopscope.tasks.parity import evaluation_bits, fixed_length
from loopscope.training.cohort.jobs import initial_model
from tests.tiny import tiny_map
from tests.toys import toy_parity

STEP = tiny_map(1).requires_grad_(False)


@cache
def backbone() -> LoopedTransformer:
    """Random, but for a readout that tells the separator from PAD, so that some strings are right at some loops."""
    generator = torch.Generator().manual_seed(56)
    model = initial_model(toy_parity(), 0).requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    h, seen = model.call(model.embed(fixed_length(evaluation_bits(7, 8, 77)).tokens)), []
    for _ in range(12):
        seen.append(h[:, -2:])
        h = model.call(h)
    separator, pad = torch.cat(seen).mean(0)
    rows, bit = torch.zeros(6, 16), torch.randn(16, generator=generator)
    rows[0], rows[1], rows[3] = bit, -bit, 9 * (pad - separator)
    bias = -rows @ separator
    bias[3] -= rows[3] @ (pad - separator) / 2
    bias[[2, 4, 5]] = -99.0
    assert model.readout is not None
    model.readout.weight.copy_(rows)
    model.readout.bias.copy_(bias)
    return model
