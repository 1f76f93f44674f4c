"""The command line.  Every command is thin: it parses, calls the library, prints a table or, with --json, one object.

Each group of commands is a module that hangs them on `app` of `loopscope.cli.app`.  A new group: write its module and
name it below.
"""

from loopscope.cli import (
    benches,
    jobs,
    lm,
    lm_converting,
    lm_heads,
    lm_patching,
    lm_reproducing,
    lm_task,
    lm_tests,
    lm_tuning,
    programs,
    quantities,
    reproducing,
    running,
    stores,
    training,
    view,
)
from loopscope.cli.app import main

__all__ = [
    "benches",
    "jobs",
    "lm",
    "lm_converting",
    "lm_heads",
    "lm_patching",
    "lm_reproducing",
    "lm_task",
    "lm_tests",
    "lm_tuning",
    "main",
    "programs",
    "quantities",
    "reproducing",
    "running",
    "stores",
    "training",
    "view",
]
