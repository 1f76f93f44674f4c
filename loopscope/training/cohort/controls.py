"""Controls for maps of one more call: what can J do when the block after it is not the backbone's F, or is not there?

The state h_L, and J's place before the block, are those of the backbone.  What follows J is one of

- "trained": the backbone's F, read by its readout.
- "permuted": the backbone with the entries of every tensor of F's layers permuted by a seeded generator.  Each tensor
  keeps its values, so that F takes in, attends and writes on the scale of the trained block, while what it had learned
  is gone.  Weights drawn afresh would be a harder control for J: their small entries leave attention all but even and
  the residual stream all but untouched, so that little could be selected from them.  Embeddings, positions, final norm
  and readout stay the backbone's.
- "none": nothing.  J(h_L) is read by the backbone's readout.
- a name: the backbone of another task of that name and of the same width, with all that is its own: its layers, what it
  closes F with, its final norm and its readout.  Of its answer classes the first N stand for the N nodes, in order (of
  relation chains, entities 0..9).  J has to translate: from the walker's state into one that this F works on and from
  which, at the last row, this readout reads the node.

In all of them k = 0 needs no F: h_L holds u = f^8(s), which the residual stream carries past any block.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from loopscope.errors import InputError
from loopscope.maps import AffineMap
from loopscope.model import LoopedTransformer
from loopscope.store.artefacts import BACKBONE
from loopscope.store.store import Artefact
from loopscope.store.zoo import find, open_zoo
from loopscope.tasks.graph_walk import GraphWalk
from loopscope.training.cohort.cohort import Cohort, State, frozen
from loopscope.training.cohort.layout import AllStarts, Runs
from loopscope.training.cohort.walks import WalkFits
from loopscope.training.recipe import ControlFit, MapRecipe

TRAINED, PERMUTED, NONE = "trained", "permuted", "none"
OWN = (TRAINED, PERMUTED, NONE)
"""Blocks that are made from the backbone alone."""

SHUFFLE = 20261118
"""Seeds the generator of permuted weights, one tensor after another."""


def permuted(backbone: LoopedTransformer, seed: int = SHUFFLE) -> LoopedTransformer:
    """A copy in which the entries of every tensor of the layers are in random order; all else is as it was."""
    made, generator = deepcopy(backbone), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.startswith("layers."):
                order = torch.randperm(parameter.numel(), generator=generator)
                parameter.copy_(parameter.flatten()[order.to(parameter.device)].view(parameter.shape))
    return made


def block_of(kind: str, backbone: LoopedTransformer, other: LoopedTransformer | None) -> LoopedTransformer | None:
    """The model whose F and readout follow J; None where J(h) is read at once.

    InputError for a backbone of another task that is not given, is of another width or has too few answer classes.
    """
    if kind in OWN:
        return {TRAINED: backbone, PERMUTED: permuted(backbone), NONE: None}[kind]
    if other is None:
        raise InputError(f"the block {kind!r} is a backbone of another task, and none was given")
    if other.width != backbone.width or other.config.classes < backbone.config.classes:
        raise InputError(
            f"{kind} has width {other.width} and {other.config.classes} answer classes; as a block after J it needs "
            f"width {backbone.width} and at least {backbone.config.classes}"
        )
    return other


def other_task(kind: str) -> Artefact | None:
    """The backbone of the zoo that a block is named after; None for a block that is made from the backbone itself."""
    return None if kind in OWN else find(open_zoo(), kind, BACKBONE)


def acted_on(rows: str, task: GraphWalk) -> Bool[Tensor, " T"]:
    """The rows of an example that J acts on, by what `ControlFit.rows` calls them."""
    row = torch.arange(task.length)
    return {
        "all": row >= 0,
        "answer": row == task.answer_row,
        "edges": (row >= 1) & (row < task.query_row),
        "query": (row >= task.query_row) & (row < task.answer_row),
    }[rows]


def steered_logits(
    h: Float[Tensor, "P R d"], layout: Runs | AllStarts, step: AffineMap, rows: str, backbone: Cohort,
    block: Cohort | None,
) -> Float[Tensor, "examples nodes"]:  # fmt: skip
    """What is read at ANSWER after J on some rows and one call of the block, from states h in pieces of a layout."""
    task = GraphWalk(backbone.config.classes)
    row = torch.tensor(layout.row_of, device=h.device)
    if block is None:
        return backbone.read(step(h[:, row == task.answer_row]).flatten(0, 1)[None])[0]
    mapped = torch.where(acted_on(rows, task).to(h.device)[row, None], step(h), h)
    state = block.call(State(layout.pack(mapped[None])), layout, last_row=True)
    return block.read_row(state, 1, 0)[0, :, : task.nodes]


class ControlFits(WalkFits):
    """Maps on one frozen backbone under a control, a member for each (hops, fit); `other` as for `block_of`.

    Products of precision "bf16" are so on a CPU, too: it multiplies several times as fast, and no gradient reaches the
    frozen weights.
    """

    def __init__(
        self, recipe: MapRecipe, backbone: LoopedTransformer, members: Sequence[tuple[int, int]], device: torch.device,
        other: LoopedTransformer | None = None,
    ) -> None:  # fmt: skip
        super().__init__(recipe, backbone, members, device)
        assert isinstance(recipe.data, ControlFit)
        if recipe.data.calls != 1 or recipe.data.pool is not None:
            raise InputError(f"map {recipe.name!r}: a control is for one more call, from states of fresh graphs")
        if recipe.batch % self.starts:
            near = max(1, recipe.batch // self.starts) * self.starts
            raise InputError(
                f"a batch of {recipe.batch} does not hold whole graphs of {self.starts} starts (nearest: {near})"
            )
        row = torch.tensor(self.layout(recipe.batch).row_of)
        self.rows = recipe.data.rows
        self.mask = acted_on(recipe.data.rows, self.task)[row, None].to(device)
        self.answers = (row == self.task.answer_row).nonzero().flatten().to(device)
        self.block = block_of(recipe.data.block, backbone, other)
        if recipe.data.block not in (TRAINED, NONE):
            assert self.block is not None
            weights = frozen(self.block, device)
            self.fast, self.exact = (Cohort(self.block.config, weights, kind) for kind in (self.precision, "fp32"))
        if self.precision == "bf16" and device.type == "cpu":
            self.fast.low = self.ahead.low = torch.bfloat16

    def _mapped(self, h: Float[Tensor, "S P R d"]) -> Float[Tensor, "S P R d"]:
        mapped = super()._mapped(h)
        return mapped if self.rows == "all" else torch.where(self.mask, mapped, h)

    def _steer(
        self, cohort: Cohort, h: Float[Tensor, "S P R d"], last: bool
    ) -> tuple[Float[Tensor, "S P R d"], Float[Tensor, "one examples classes"]]:
        """What is read after J and the block, of as many classes as there are nodes."""
        if self.block is None:
            return h, cohort.read(super()._mapped(h[:, :, self.answers]).flatten(0, 2)[None])
        h, logits = super()._steer(cohort, h, last)
        return h, logits[..., : self.task.nodes]
