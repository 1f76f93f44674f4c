"""Loopscope: read, steer and patch looped transformers.

    from loopscope import F, J, grid, load, load_map, run, sweep

The names below are the public surface; each is loaded from its module when first used, so that importing the package
costs nothing.  Rooms have more: `loopscope.execute`, `measure`, `models`, `store`, `tasks`, `training`.
"""

from typing import TYPE_CHECKING

from loopscope.lazy import exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from loopscope.address import Address as Address
    from loopscope.address import Site as Site
    from loopscope.address import grid as grid
    from loopscope.execute import Result as Result
    from loopscope.execute import Sweep as Sweep
    from loopscope.execute import check_model as check_model
    from loopscope.execute import run as run
    from loopscope.execute import sweep as sweep
    from loopscope.loading import load as load
    from loopscope.loading import load_map as load_map
    from loopscope.maps import Dense as Dense
    from loopscope.maps import DiagonalLowRank as DiagonalLowRank
    from loopscope.maps import ResidualLowRank as ResidualLowRank
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
    from loopscope.store import Store as Store
    from loopscope.store import load_backbone as load_backbone
    from loopscope.store import load_fit as load_fit
    from loopscope.table import Table as Table
    from loopscope.training import fit_map as fit_map
    from loopscope.view.notebook import view as view

__all__, __getattr__ = exports(
    __name__,
    {
        "address": ("Address", "Site", "grid"),
        "execute": ("Result", "Sweep", "check_model", "run", "sweep"),
        "loading": ("load", "load_map"),
        "maps": ("Dense", "DiagonalLowRank", "ResidualLowRank", "save_map"),
        "model": ("LoopedTransformer", "ModelConfig", "graph_walk_config", "parity_config", "relations_config"),
        "program": ("F", "Given", "J", "Program", "Run", "h"),
        "store": ("Store", "load_backbone", "load_fit"),
        "table": ("Table",),
        "training": ("fit_map",),
    },
    rooms=("view",),
)
