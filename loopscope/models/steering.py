"""Maps for language models: loading those that fit a model, and computing them in their own precision.

steering_map = load_steering_map(Path("walker-map"), Path("walker"), model.width)
run(model, tokens, "F J:step F", maps={"step": FullPrecisionMap(steering_map)})
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from jaxtyping import Float
from torch import Tensor, nn

from loopscope.errors import InputError
from loopscope.maps import AffineMap, load_map
from loopscope.models.identity import Identity, identify
from loopscope.models.loop_layers import LoopLayers
from loopscope.models.passes import Boundary
from loopscope.store.files import damaged
from loopscope.store.manifest import read_json

FITTED = "fitted.json"
"""Beside a fitted map: the weights it was fitted to and, since identity version 2, the whole identity; and how."""


class FullPrecisionMap(nn.Module):
    """A map whose product is formed in the map's own precision and rounded to that of the states at its end.

    Maps stand near the identity: products in bf16 would round away most of what they do.  On states of the map's own
    precision it is the map itself, bit by bit.
    """

    def __init__(self, steering_map: AffineMap) -> None:
        super().__init__()
        self.steering_map = steering_map

    def __repr__(self) -> str:
        return f"FullPrecisionMap({self.steering_map!r})"

    def forward(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """J(h), row by row, in the precision of h."""
        moved: Tensor = self.steering_map(h.to(self.steering_map.b.dtype))
        return moved.to(h.dtype)


def load_steering_map(saved: Path, folder: Path, width: object) -> AffineMap:
    """A saved map for the states of a model folder, frozen, in the type it was saved in.

    InputError where it is no map or has another width, DamagedError for files that cannot be read.
    """
    found = load_map(saved)
    if found.width != width:
        raise InputError(f"{saved} is a map of width {found.width}, but the states of {folder} have width {width}")
    return found.requires_grad_(False)


@dataclass(frozen=True)
class Fitted:
    """What a saved map says it was fitted to, and in how many loops; None where it does not say.

    A map of identity version 1 names the weights alone.
    """

    weights: str
    identity: Identity | None
    boundary: str | None
    loops: int | None
    loop: str | None = None

    def misfit(
        self, saved: Path, folder: Path, identity: Identity, boundary: str | None, loop: str | None = None
    ) -> str:
        """Why the map is none for a model folder that is run with a boundary and a loop; nothing where it is one.

        A boundary of None is any, and then so is the loop; a loop of None is that of all layers.
        """
        if self.weights != identity.weights:
            fitted, there = (f"{each[:12]}..." for each in (self.weights, identity.weights))
            return f"{saved} was fitted to weights of SHA-256 {fitted}, but those of {folder} have {there}"
        if self.identity is not None and (parts := self.identity.difference(identity)):
            part, fitted, there = parts[0], *(each if each == "none" else f"{each[:12]}..." for each in parts[1:])
            return f"{saved} was fitted to a model whose {part} has SHA-256 {fitted}, but that of {folder} has {there}"
        if None not in (self.boundary, boundary) and self.boundary != boundary:
            return f"{saved} was fitted with boundary {self.boundary}, but {folder} is run with boundary {boundary}"
        if boundary is not None and self.loop != loop:
            fitted, there = ("all layers" if each is None else f"layers {each}" for each in (self.loop, loop))
            return f"{saved} was fitted with {fitted} looped, but {folder} is run with {there} looped"
        return ""


@dataclass(frozen=True)
class Provenance:
    """Whether a map was fitted to the model that it is used on, as far as is known, in words for reports.

    `misfit` says why it was not; such a map is only taken where any is asked for.  `fitted` is what the map says.
    """

    text: str
    misfit: str = ""
    fitted: Fitted | None = None

    @property
    def loops(self) -> int | None:
        """In how many loops the map was fitted, where it says so."""
        return None if self.fitted is None else self.fitted.loops

    @property
    def notes(self) -> dict[str, Any]:
        """For a record: the words and, of a map of another model, what it was fitted to."""
        if not self.misfit or self.fitted is None:
            return {"provenance": self.text}
        of = self.fitted
        known = {"weights": of.weights, "identity": of.identity and of.identity.to_dict(), "boundary": of.boundary}
        return {"provenance": self.text, "fitted_to": known}


UNKNOWN = Provenance("of unknown provenance: it does not say what it was fitted to")


def read_fitted(saved: Path) -> Fitted | None:
    """What a saved map says it was fitted to; None where it says nothing, DamagedError where it cannot be read."""
    file = saved / FITTED
    if not os.path.lexists(file):
        return None
    match read_json(file):
        case {"weights": str(weights), **rest}:
            pass
        case _:
            raise damaged(file, "the weights that a map was fitted to", "something else")
    written, boundary, recipe = rest.get("identity"), rest.get("boundary"), rest.get("recipe", {})
    loop = rest.get("loop")
    loops = recipe.get("loops") if isinstance(recipe, dict) else None
    if boundary not in (None, *get_args(Boundary)) or (loops is not None and (type(loops) is not int or loops < 1)):
        raise damaged(file, "the boundary and the loops that a map was fitted in", f"{boundary!r}, {loops!r}"[:60])
    try:
        if loop is not None:
            LoopLayers.parse(loop)
    except InputError:
        raise damaged(file, "which layers were looped", repr(loop)[:60]) from None
    try:
        identity = None if written is None else Identity.from_dict(written)
    except (AttributeError, ValueError):
        raise damaged(file, "the identity of the model that a map was fitted to", repr(written)[:60]) from None
    if identity is not None and identity.weights != weights:
        raise damaged(file, f"the identity of a model of weights {weights}", f"one of weights {identity.weights}")
    return Fitted(weights, identity, boundary, loops, loop)


def check_fitted(
    saved: Path, folder: Path, boundary: Boundary, *, loop: str | None = None, identity: Identity | None = None,
    any_map: bool = False,
) -> Provenance:  # fmt: skip
    """Whether a saved map was fitted to the model in a folder, run with this boundary and loop; one may not say it.

    `identity` is the folder's, hashed here where it is not given.  InputError where the map says that it was fitted to
    another model, boundary or loop, unless `any_map`; DamagedError where it cannot be read.
    """
    fitted = read_fitted(saved)
    if fitted is None:
        return UNKNOWN
    misfit = fitted.misfit(saved, folder, identity or identify(folder), boundary, loop)
    if misfit and not any_map:
        raise InputError(f"{misfit}; --any-map takes it all the same")
    if misfit:
        return Provenance("fitted to another model or boundary (--any-map)", misfit, fitted)
    if fitted.identity is None:
        return Provenance("fitted to these weights (identity version 1)", fitted=fitted)
    return Provenance("fitted to this model", fitted=fitted)
