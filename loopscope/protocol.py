"""What a looped model must offer to be run, read, steered and patched.

`LoopedTransformer` offers it; to use your own looped model, give it these few members.  Everything here but attention
acts row by row, which is what lets the executor compute only the rows that can differ.  Attention must be causal.
`conformity.check_model` says whether a model keeps to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

STATES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Types that a model may compute in, and so those of states, maps and given tensors."""

TokenMap = Callable[[Tensor], Tensor]
"""A map J on states [..., d] that treats every row alike and alone."""


@runtime_checkable
class LoopedLayer(Protocol):
    """One layer of F."""

    scale: float
    """Factor on q k' before the softmax."""

    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        """Queries, keys, values ("q", "kv" or "qkv"), [..., H, R, k] each, of x [..., R, d]; R >= 1.

        `rows` are the positions of x's rows in the input.
        """
        ...

    def attn_out(self, z: Tensor) -> Tensor:
        """What attention adds to the residual stream, from head outputs [..., H, R, k]."""
        ...

    def mlp_out(self, x: Tensor) -> Tensor:
        """What the MLP adds, from the residual stream after attention [..., R, d]."""
        ...


@runtime_checkable
class LoopedModel(Protocol):
    """A model that applies one stack of layers again and again."""

    @property
    def layers(self) -> Sequence[LoopedLayer]:
        """The layers of F, in order."""
        ...

    @property
    def heads(self) -> int:
        """Attention heads per layer."""
        ...

    @property
    def width(self) -> int:
        """Width d of the state."""
        ...

    @property
    def head_size(self) -> int:
        """Size k of one head's query, key, value and output; often, but not always, width / heads."""
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """h_0 [B, T, d] of tokens [B, T]; row r depends on token r alone."""
        ...

    def close(self, h: Tensor) -> Tensor:
        """What F does after its last layer, row by row; the identity where there is nothing."""
        ...

    def read(self, h: Tensor) -> Tensor:
        """Logits [..., classes] of states [..., d], row by row."""
        ...


def device_of(model: object) -> torch.device | None:
    """Where the parameters of a model are; None where it has none that can be asked for."""
    return next((p.device for p in model.parameters()), None) if isinstance(model, nn.Module) else None
