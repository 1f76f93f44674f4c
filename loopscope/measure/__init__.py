"""What a user asks of any model: readouts after every loop, how states move, what patches and ablations do, replies."""

from typing import TYPE_CHECKING

from loopscope.lazy import exports

if TYPE_CHECKING:
    from loopscope.measure.ablating import ablations as ablations
    from loopscope.measure.attending import patterns as patterns
    from loopscope.measure.attributing import attribution as attribution
    from loopscope.measure.cells import places as places
    from loopscope.measure.exiting import Recording as Recording
    from loopscope.measure.exiting import exits as exits
    from loopscope.measure.exiting import record_loops as record_loops
    from loopscope.measure.exiting import recording_of as recording_of
    from loopscope.measure.heads import Heads as Heads
    from loopscope.measure.heads import Selection as Selection
    from loopscope.measure.jacobian import contraction as contraction
    from loopscope.measure.lens import answer_ranks as answer_ranks
    from loopscope.measure.lens import logit_lens as logit_lens
    from loopscope.measure.motion import endings as endings
    from loopscope.measure.motion import pattern_changes as pattern_changes
    from loopscope.measure.motion import similarities as similarities
    from loopscope.measure.motion import trajectories as trajectories
    from loopscope.measure.patching import Recovery as Recovery
    from loopscope.measure.patching import compare as compare
    from loopscope.measure.patching import recover as recover
    from loopscope.measure.pathing import paths as paths
    from loopscope.measure.readouts import Readouts as Readouts
    from loopscope.measure.readouts import read_loops as read_loops
    from loopscope.measure.readouts import write_readouts as write_readouts
    from loopscope.measure.replies import ask as ask
    from loopscope.measure.searching import select as select
    from loopscope.measure.spanning import spans as spans
    from loopscope.measure.starts import path_independence as path_independence

__all__, __getattr__ = exports(
    __name__,
    {
        "ablating": ("ablations",),
        "attributing": ("attribution",),
        "cells": ("places",),
        "exiting": ("Recording", "exits", "record_loops", "recording_of"),
        "attending": ("patterns",),
        "heads": ("Heads", "Selection"),
        "jacobian": ("contraction",),
        "lens": ("answer_ranks", "logit_lens"),
        "motion": ("endings", "pattern_changes", "similarities", "trajectories"),
        "patching": ("Recovery", "compare", "recover"),
        "pathing": ("paths",),
        "readouts": ("Readouts", "read_loops", "write_readouts"),
        "replies": ("ask",),
        "searching": ("select",),
        "spanning": ("spans",),
        "starts": ("path_independence",),
    },
)
