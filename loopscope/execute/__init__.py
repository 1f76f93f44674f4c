"""Running programs: the plain run that defines them, and the executor that computes only what can differ."""

from typing import TYPE_CHECKING

from loopscope.lazy import exports

if TYPE_CHECKING:
    from loopscope.execute.conformity import check_model as check_model
    from loopscope.execute.executor import Result as Result
    from loopscope.execute.executor import Sweep as Sweep
    from loopscope.execute.executor import Trace as Trace
    from loopscope.execute.executor import Work as Work
    from loopscope.execute.executor import check_programs as check_programs
    from loopscope.execute.executor import run as run
    from loopscope.execute.executor import sweep as sweep
    from loopscope.execute.plain import PlainRun as PlainRun
    from loopscope.execute.plain import plain_run as plain_run
    from loopscope.execute.plan import Plan as Plan
    from loopscope.execute.plan import Sizes as Sizes

__all__, __getattr__ = exports(
    __name__,
    {
        "conformity": ("check_model",),
        "executor": ("Result", "Sweep", "Trace", "Work", "check_programs", "run", "sweep"),
        "plain": ("PlainRun", "plain_run"),
        "plan": ("Plan", "Sizes"),
    },
)
