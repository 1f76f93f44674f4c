"""What a change makes of a component."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from loopscope.errors import InputError
from loopscope.program import Add, Apply, Scale
from loopscope.protocol import TokenMap


def changed(
    change: Add | Scale | Apply,
    own: Tensor,
    value: Tensor | None,
    functions: Mapping[str, TokenMap],
    visible: Bool[Tensor, "rows T"] | None,
) -> Tensor:
    """What a component [examples, (heads,) rows, n] becomes; `value` is what is added, of a shape that broadcasts.

    `visible` says which rows a pattern may look at: InputError where a function of it looks at others.
    """
    if isinstance(change, Add):
        assert value is not None
        return own + change.times * value
    if isinstance(change, Scale):
        return own * change.factor
    after = functions[change.name](own)
    if after.shape != own.shape:  # of a width that it was not tried with
        raise InputError(f"function {change.name!r} turns {list(own.shape)} into {list(after.shape)}")
    if visible is not None and bool(torch.where(visible, torch.zeros_like(after), after).any()):
        raise InputError(f"function {change.name!r} lets a pattern look at rows that its row does not see")
    return after
