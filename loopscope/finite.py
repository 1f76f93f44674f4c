"""Whether the numbers of a run stayed finite, asked once at its end.

A GPU is not waited for on the way: every look leaves one number on the device, and `Watch.check` fetches them together.
Looking at the results alone would not do.  Fused attention gives zeros, not NaN, for a row none of whose scores is a
number, so that a run can lose its attention and still end with plausible logits.  Every row sees itself; if its score
with itself is finite, it was not lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from loopscope.errors import NotFiniteError

HALVES = (torch.float16, torch.bfloat16)


def has_bad(tensor: Tensor) -> bool:
    """Whether a tensor of floating-point numbers holds NaN or infinity; waits for the device."""
    return not bool(torch.isfinite(tensor).all())


def _wide(tensor: Tensor) -> torch.dtype | None:
    return torch.float32 if tensor.dtype in HALVES else None


class Watch:
    """Looks at tensors during a run and asks once, at its end, whether all of them were finite."""

    def __init__(self) -> None:
        self._places: list[tuple[object, ...]] = []
        self._norms: list[Float[Tensor, " n"]] = []

    def see(self, tensor: Tensor, *place: object) -> None:
        """Look at a tensor; the words of `place` say where it stands.

        Its norm is taken: that is not finite if any entry is not.  Nor is it where a square is not; there a layer's
        norm would divide by infinity and go on with zeros.  Norms of half precision are formed in fp32, which holds
        those of large tensors.
        """
        self._places.append(place)
        self._norms.append(torch.linalg.vector_norm(tensor.detach(), dtype=_wide(tensor))[None])

    def see_each(self, tensors: Float[Tensor, "several ..."], places: Sequence[tuple[object, ...]]) -> None:
        """Look at several tensors, each with its place, as `see` does at one."""
        self._places.extend(places)
        self._norms.append(torch.linalg.vector_norm(tensors.detach().flatten(1), dim=1, dtype=_wide(tensors)))

    def scores(self, q: Float[Tensor, "*B R k"], k: Float[Tensor, "*B R k"], *place: object) -> None:
        """Look at the score of every row with itself."""
        self.see(q.detach() * k.detach(), *place)

    def check(self, what: str, dtype: torch.dtype) -> None:
        """NotFiniteError that names the first place where the numbers of `what`, formed in `dtype`, were not finite."""
        if not self._norms:
            return
        kind = torch.float64 if any(each.dtype == torch.float64 for each in self._norms) else torch.float32
        fine = torch.cat([each.to(kind) for each in self._norms]).isfinite().tolist()
        if all(fine):
            return
        place, name = " ".join(map(str, self._places[fine.index(False)])), str(dtype).removeprefix("torch.")
        wider = "float32 holds more; " if dtype in HALVES else ""
        raise NotFiniteError(
            f"the numbers of {what} are not finite from {place} on, in {name}; {wider}are weights or maps too large?"
        )
