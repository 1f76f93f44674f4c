"""Loopscope: read, steer and patch looped transformers.

    from loopscope import F, J, run

The names below are the public surface; each is loaded from its module when first used, so that importing the package
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from loopscope.address import Address as Address
    from loopscope.address import Site as Site
    from loopscope.address import grid as grid
    from loopscope.execute.conformity import check_model as check_model
    from loopscope.execute.executor import Result as Result
    from loopscope.execute.executor import Sweep as Sweep
    from loopscope.execute.executor import run as run
    from loopscope.execute.executor import sweep as sweep
    from loopscope.maps import Dense as Dense
    from loopscope.maps import DiagonalLowRank as DiagonalLowRank
    from loopscope.maps import ResidualLowRank as ResidualLowRank
    from loopscope.maps import load_map as load_map
    from loopscope.maps import save_map as save_map
    from loopscope.model import LoopedTransformer as LoopedTransformer
    from loopscope.model import ModelConfig as ModelConfig
    from loopscope.model import graph_walk_config as graph_walk_config
    from loopscope.model import parity_config as parity_config
    from loopscope.model import relations_config as relations_config
    from loopscope.program import F as F
    from loopscope.program import Given as Given
    from loopscope.program import J as J
    from loopscope.program import Program as Program
    from loopscope.program import Run as Run
    from loopscope.program import h as h
    from loopscope.store.artefacts import load_backbone as load_backbone
    from loopscope.store.artefacts import load_fit as load_fit
    from loopscope.store.store import Store as Store

_HOMES = {
    "address": ("Address", "Site", "grid"),
    "store.artefacts": ("load_backbone", "load_fit"),
    "execute.conformity": ("check_model",),
    "execute.executor": ("Result", "Sweep", "run", "sweep"),
    "maps": ("Dense", "DiagonalLowRank", "ResidualLowRank", "load_map", "save_map"),
    "model": ("LoopedTransformer", "ModelConfig", "graph_walk_config", "parity_config", "relations_config"),
    "program": ("F", "Given", "J", "Program", "Run", "h"),
    "store.store": ("Store",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'loopscope' has no attribute {name!r}")
    return getattr(importlib.import_module(f"loopscope.{_HOME[name]}"), name)
