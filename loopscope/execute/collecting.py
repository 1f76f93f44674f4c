"""What a run gives: measured, and put together from one batch of examples after another."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.finite import Watch

Key = TypeVar("Key", bound=Hashable)


class Collected:
    """Tensors [examples, ...] by name, of one shape and dtype each time they are put.

    Those that are put together lie in one tensor, so that a thousand of them take as many operations as one.
    """

    def __init__(self, examples: int, watch: Watch) -> None:
        self.examples, self.watch = examples, watch
        self._at: dict[Any, tuple[Tensor, int]] = {}

    def put(self, picked: Int[Tensor, " some"], values: Mapping[Any, Tensor]) -> None:
        """Put values [some, ...] of the examples numbered `picked`; a key is a program and what is asked of it."""
        alike: dict[tuple[Any, ...], list[Any]] = {}
        for key, value in values.items():
            alike.setdefault((value.shape[1:], value.dtype), []).append(key)
        for keys in alike.values():
            found = torch.stack([values[key] for key in keys]) if len(keys) > 1 else values[keys[0]][None]
            if keys[0] not in self._at:
                whole = found.new_empty((len(keys), self.examples, *found.shape[2:]))
                self._at.update((key, (whole, place)) for place, key in enumerate(keys))
            self._at[keys[0]][0][:, picked] = found
            self.watch.see_each(found, [(asked, "of", program) for program, asked in keys])

    def __getitem__(self, key: Any) -> Tensor:
        whole, place = self._at[key]
        return whole[place]

    @property
    def dtype(self) -> torch.dtype:
        """That of what was put first."""
        return next(iter(self._at.values()))[0].dtype


def reduced(
    logits: Mapping[Key, Float[Tensor, "examples rows classes"]],
    reduce: Callable[[Tensor, Tensor, Tensor], Tensor],
    numbers: Int[Tensor, " examples"],
    most: int,
) -> dict[Key, Float[Tensor, "examples rows 1"]]:
    """What `reduce` makes of logits, each beside the first: of several programs at once, at most `most` numbers."""
    keys, first = list(logits), next(iter(logits.values()))
    at_once = max(1, most // first.numel())
    found: dict[Key, Tensor] = {}
    for start in range(0, len(keys), at_once):
        some = keys[start : start + at_once]
        together = torch.cat([logits[key] for key in some])
        values = reduce(together, first.repeat(len(some), 1, 1), numbers.repeat(len(some)))
        found.update(zip(some, values.view(len(some), *first.shape[:-1], 1), strict=True))
    return found


@contextmanager
def uncollected() -> Iterator[None]:
    """A block that makes many objects, none of them garbage: Python need not look for any after every few hundred."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()
