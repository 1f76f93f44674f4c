"""What the tasks share: checks of integer labels, and looking codes up in a list of those held out."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from loopscope.errors import InputError


def check_int64(what: str, labels: Tensor) -> None:
    """InputError unless the labels are torch.int64."""
    if labels.dtype != torch.int64:
        raise InputError(f"{what} are {labels.dtype}, but torch.int64 is needed")


def check_range(what: str, values: Tensor, low: int, high: int) -> None:
    """InputError, naming the first value outside low..high; reads the values, so a GPU has to wait."""
    outside = (values < low) | (values > high)
    if bool(outside.any()):
        raise InputError(f"{what} {int(values[outside][0])} does not exist: it is one of {low} to {high}")


def is_listed(codes: Int[Tensor, "*batch"], listed: Int[Tensor, " codes"]) -> Bool[Tensor, "*batch"]:
    """Whether each code is in `listed`, an ascending list on the same device."""
    if len(listed) == 0:
        return torch.zeros_like(codes, dtype=torch.bool)
    place = torch.searchsorted(listed, codes).clamp(max=len(listed) - 1)
    return listed[place] == codes
