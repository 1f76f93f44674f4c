"""Where the rows of a pass stand, and what they see: left padding, rows behind a cache, branches, masks of layers.

Positions count real rows only.  A mask of a layer is asked for these, example by example, so that padding moves none.
A padded row is seen by itself alone: no real row looks at it, and its own values stay finite but mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from loopscope.errors import InputError
from loopscope.model import causal
from loopscope.pieces import LayerPieces, Pieces


class PassRows:
    """The rows `before` to `total` of a pass.

    - `positions` [R], or [B, R] where examples differ: how many real rows stand before each, among those it sees;
    - `padded` [B, R]: which rows are padding, None where none is;
    - `alone`: all rows are here, and a causal layer needs no mask.
    """

    def __init__(
        self,
        before: int,
        total: int,
        device: torch.device,
        mask: Bool[Tensor, "B S"] | None,
        branches: Int[Tensor, "B R"] | None,
    ) -> None:
        self._rows, self._keys = torch.arange(before, total, device=device), torch.arange(total, device=device)
        self._before, self._mask, self._branches = before, mask, branches
        self.positions, self.padded = self._rows, None
        self._causal: Tensor | None = None
        if mask is not None:
            self.positions = (mask.long().cumsum(1) - 1).clamp(min=0)[:, before:]
            self.padded = ~mask[:, before:]
            self._causal = (causal(self._rows, self._keys) & mask[:, None, None]) | (self._keys == self._rows[:, None])
        elif branches is not None:
            self._causal = (causal(self._rows, self._rows) & _of_one_text(branches))[:, None]
            self.positions = self._causal[:, 0].sum(-1) - 1
        elif before and len(self._rows) > 1:
            self._causal = causal(self._rows, self._keys)
        self.alone = self._causal is None and before == 0
        self._of: dict[tuple[int, int], Tensor | None] = {}

    def of(self, layer: LayerPieces, examples: int) -> Bool[Tensor, "*M R S"] | None:
        """What the rows of the first `examples` see in a layer; None: what a causal layer lets them see.

        InputError where rows in a cache would see new ones, and for branches that what is shared would see.
        """
        if layer.causal and layer.softcap is None and self._causal is None:
            return None
        key = (0 if layer.causal else id(layer.layer), examples)
        if key not in self._of:
            found = self._of_causal() if layer.causal else self._of_mask(layer)
            shared = found.dim() == 2 or len(found) == examples
            self._of[key] = found if shared else found[:examples].clone()  # a view would be compiled anew
        return self._of[key]

    def _of_causal(self) -> Tensor:
        return causal(self._rows, self._keys) if self._causal is None else self._causal

    def _of_mask(self, layer: LayerPieces) -> Tensor:
        if self._branches is not None:
            return self._of_branches(layer, self._branches)
        if self._mask is None:
            self._check_old(layer, 0)
            return layer.visible(self._rows, self._keys)
        paddings = (~self._mask).sum(1)
        found = (self._keys == self._rows[:, None]).repeat(len(self._mask), 1, 1)
        for padding in paddings.unique().tolist():
            self._check_old(layer, padding)
            real = self._rows[self._rows >= padding]
            seen = layer.visible(real - padding, self._keys[padding:] - padding)
            found[paddings == padding, len(self._rows) - len(real) :, padding:] = seen
        return found[:, None]

    def _of_branches(self, layer: LayerPieces, branches: Int[Tensor, "B R"]) -> Bool[Tensor, "B 1 R R"]:
        """What each row sees of its own text, by where the rows stand in that: what is shared, and its branch."""
        found = torch.stack([layer.visible(places, places) for places in self.positions])
        shared, later = branches == 0, self._keys > self._rows[:, None]
        if bool((found & later & shared[..., None] & ~shared[:, None]).any()):
            raise InputError("branches need rows that do not see later ones: what is shared would see every branch")
        return (found & _of_one_text(branches) & ~(later & ~shared[..., None] & shared[:, None]))[:, None]

    def _check_old(self, layer: LayerPieces, padding: int) -> None:
        """InputError where a row in the cache sees a new one: its keys are no longer what they would be."""
        old = self._keys[padding : self._before] - padding
        if len(old) and bool(layer.visible(old, self._rows - padding).any()):
            raise InputError(_LATER)


def _of_one_text(branches: Int[Tensor, "B R"]) -> Bool[Tensor, "B R R"]:
    """Which keys belong to a row's text: what is shared, and its own branch."""
    return (branches == 0)[:, None] | (branches[:, None] == branches[..., None])


_LATER = "rows of this model see rows behind them, so a cache cannot continue a text; leave it out (cached=False)"


def check_continued(pieces: Pieces, lengths: Iterable[int], new: int, device: torch.device) -> None:
    """InputError unless texts of these lengths can be continued by `new` rows behind a cache.

    That is where no row sees one that comes after it in a later step: with causal masks, windows, and a prefix inside
    every text.
    """
    for layer in pieces.layers:
        if layer.causal:
            continue
        for length in set(lengths):
            rows = torch.arange(length + new, device=device)
            later = ~causal(rows, rows) & (rows >= length)
            if bool((layer.visible(rows, rows) & later).any()):
                raise InputError(_LATER)


def check_learnable(pieces: Pieces, length: int) -> None:
    """InputError where a row of a text of this length sees a later one: what comes next could be looked up."""
    for layer in pieces.layers:
        rows = torch.arange(0 if layer.causal else length)
        if bool((layer.visible(rows, rows) & ~causal(rows, rows)).any()):
            raise InputError(
                "rows of this model see rows behind them, so that it would find every next token in its input; the"
                " recipes teach next tokens alone"
            )


def check_mask(mask: Bool[Tensor, "B S"], examples: int, length: int) -> None:
    """InputError unless the mask is [examples, length], True at the end of every example and False only before."""
    if mask.shape != (examples, length):
        raise InputError(f"the mask has shape {list(mask.shape)}, but the tokens {[examples, length]}")
    if not bool(mask[:, -1].all()) or bool((mask[:, :-1] & ~mask[:, 1:]).any()):
        raise InputError("the mask is no left padding: each example must be padded at its start only")
