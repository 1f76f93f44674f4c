"""Jobs: a campaign as a graph of values, done by workers on this machine, on Ray or on Slurm.

from loopscope.jobs import graph_of, run

report = run(graph_of({"jobs": [...]}), "store", on="local:4")
"""

from typing import TYPE_CHECKING

from loopscope.lazy import exports

if TYPE_CHECKING:
    from loopscope.jobs.driver import Report as Report
    from loopscope.jobs.driver import run as run
    from loopscope.jobs.job import Graph as Graph
    from loopscope.jobs.job import Job as Job
    from loopscope.jobs.job import Later as Later
    from loopscope.jobs.job import Needs as Needs
    from loopscope.jobs.job import graph_of as graph_of
    from loopscope.jobs.outcome import Outcome as Outcome
    from loopscope.jobs.sweeping import sweep as sweep
    from loopscope.jobs.task import Place as Place
    from loopscope.jobs.task import Task as Task

__all__, __getattr__ = exports(
    __name__,
    {
        "driver": ("Report", "run"),
        "job": ("Graph", "Job", "Later", "Needs", "graph_of"),
        "outcome": ("Outcome",),
        "sweeping": ("sweep",),
        "task": ("Place", "Task"),
    },
)
