"""Tiny models and inputs on which every part matters."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from loopscope.address import COMPONENTS, PER_HEAD, Address, Site
from loopscope.maps import DiagonalLowRank
from loopscope.model import LoopedTransformer, ModelConfig

ROWS = 7
VOCABULARY = 8


def tiny_model(kind: str = "graph", seed: int = 0, dtype: torch.dtype = torch.float32) -> LoopedTransformer:
    """A two-layer (parity: one-layer) model of width 16 with all weights large enough to count."""
    settings = {
        "graph": {"positions": ROWS},
        "parity": {"read_in": "one-hot", "attention_bias": True, "gelu": "tanh", "norm_in_loop": True,
                   "readout": "linear", "init": "gpt2", "layers": 1},
        "relations": {"attention_bias": True, "readout": "tied", "first_class": 1, "init": "torch"},
    }[kind]  # fmt: skip
    config = ModelConfig.from_dict(
        {"vocabulary": VOCABULARY, "classes": 5, "loops": 3, "width": 16, "heads": 4, "mlp": 32, **settings}
    )
    generator = torch.Generator().manual_seed(seed)
    model = LoopedTransformer(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 0.4 + (1.0 if parameter.dim() == 1 and parameter is model.norm.weight else 0.0))
    return model


def tiny_map(seed: int, dtype: torch.dtype = torch.float32) -> DiagonalLowRank:
    """A map that is far from the identity, but keeps states in range."""
    generator = torch.Generator().manual_seed(seed)
    step = DiagonalLowRank(16, 3, seed=seed)
    with torch.no_grad():
        for parameter in step.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return step.to(dtype)


def tiny_tokens(examples: int, seed: int = 0, shared: int = 0) -> Tensor:
    """Random tokens [examples, ROWS]; the first `shared` rows are equal in all examples."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (examples, ROWS), generator=generator)
    tokens[:, :shared] = tokens[0, :shared].clone()
    return tokens


def every_address(loops: int, layers: int) -> list[Address]:
    """Every loop x layer x component, for each head and row alone, and for all together."""
    found = []
    for loop, layer, component in itertools.product(range(1, loops + 1), range(1, layers + 1), COMPONENTS):
        heads = [None, *((i,) for i in range(4))] if component in PER_HEAD else [None]
        for head, row in itertools.product(heads, [None, *((r,) for r in range(ROWS))]):
            found.append(Address(loop, Site(layer, component, head, row)))
    return found
