"""Maps for language models: loading those that fit a model, and computing them in their own precision.

step = load_step(Path("walker-map"), Path("walker"), model.width)
run(model, tokens, "F J:step F", maps={"step": InFull(step)})
"""

from __future__ import annotations

from pathlib import Path

from jaxtyping import Float
from torch import Tensor, nn

from loopscope.errors import InputError
from loopscope.files import damaged
from loopscope.lm.folders import read_json
from loopscope.maps import AffineMap, load_map

FITTED = "fitted.json"
"""Beside a fitted map: the SHA-256 of the weights it was fitted to, and how."""


class InFull(nn.Module):
    """A map whose product is formed in the map's own precision and rounded to that of the states at its end.

    Maps stand near the identity: products in bf16 would round away most of what they do.  On states of the map's own
    precision it is the map itself, bit by bit.
    """

    def __init__(self, step: AffineMap) -> None:
        super().__init__()
        self.step = step

    def forward(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """J(h), row by row, in the precision of h."""
        moved: Tensor = self.step(h.to(self.step.b.dtype))
        return moved.to(h.dtype)


def load_step(step: Path, folder: Path, width: object) -> AffineMap:
    """A saved map for the states of a model folder, frozen, in the type it was saved in.

    InputError where it is no map or has another width, DamagedError for files that cannot be read.
    """
    found = load_map(step)
    if found.width != width:
        raise InputError(f"{step} is a map of width {found.width}, but the states of {folder} have width {width}")
    return found.requires_grad_(False)


def check_fitted(step: Path, folder: Path, weights: str) -> int | None:
    """In how many loops a saved map was fitted, where it says so; one may say nothing.

    InputError where it says that it was fitted to other weights than a folder's, DamagedError where it cannot be read.
    """
    if not (step / FITTED).is_file():
        return None
    match read_json(step / FITTED):
        case {"weights": str(found), **rest}:
            if found != weights:
                told, there = (f"{each[:12]}..." for each in (found, weights))
                raise InputError(f"{step} was fitted to weights of SHA-256 {told}, but those of {folder} have {there}")
        case _:
            raise damaged(step / FITTED, "the weights that a map was fitted to", "something else")
    match rest:
        case {"recipe": {"loops": int(loops)}}:
            return loops
    return None
