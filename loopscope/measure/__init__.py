"""What a user asks of any model: readouts after every loop, patches, heads, replies."""

from typing import TYPE_CHECKING

from loopscope.lazy import exports

if TYPE_CHECKING:
    from loopscope.measure.heads import Heads as Heads
    from loopscope.measure.heads import Selection as Selection
    from loopscope.measure.heads import select as select
    from loopscope.measure.patching import Recovery as Recovery
    from loopscope.measure.patching import compare as compare
    from loopscope.measure.patching import places as places
    from loopscope.measure.patching import recover as recover
    from loopscope.measure.readouts import Readouts as Readouts
    from loopscope.measure.readouts import read_loops as read_loops
    from loopscope.measure.readouts import write_readouts as write_readouts
    from loopscope.measure.replies import ask as ask

__all__, __getattr__ = exports(
    __name__,
    {
        "heads": ("Heads", "Selection", "select"),
        "patching": ("Recovery", "compare", "places", "recover"),
        "readouts": ("Readouts", "read_loops", "write_readouts"),
        "replies": ("ask",),
    },
)
