"""Running programs: the plain run that defines them, and the executor that computes only what can differ."""

from typing import TYPE_CHECKING

from loopscope.lazy import exports

if TYPE_CHECKING:
    from loopscope.execute.conformity import check_model as check_model
    from loopscope.execute.executor import check_programs as check_programs
    from loopscope.execute.executor import run as run
    from loopscope.execute.plain import PlainRun as PlainRun
    from loopscope.execute.plain import plain_run as plain_run
    from loopscope.execute.plan import Plan as Plan
    from loopscope.execute.runs import Sizes as Sizes
    from loopscope.execute.sweeping import Measured as Measured
    from loopscope.execute.sweeping import Sweep as Sweep
    from loopscope.execute.sweeping import sweep as sweep
    from loopscope.execute.traces import Result as Result
    from loopscope.execute.traces import Trace as Trace
    from loopscope.execute.traces import Work as Work

__all__, __getattr__ = exports(
    __name__,
    {
        "conformity": ("check_model",),
        "executor": ("check_programs", "run"),
        "plain": ("PlainRun", "plain_run"),
        "plan": ("Plan",),
        "runs": ("Sizes",),
        "sweeping": ("Measured", "Sweep", "sweep"),
        "traces": ("Result", "Trace", "Work"),
    },
)
